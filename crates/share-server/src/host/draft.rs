//! What a device is sent. Which leaves that are is decided under the lock of the orderer; they are read after it, from memory
//! when they are new.

use std::sync::Arc;

use trust_shared::attest::SignedAttest;
use trust_shared::mark::{MarkProof, Nonce};
use trust_shared::note::SignedNote;

use super::Core;
use super::error::HostError;
use super::record::{SHORT_BODY_BYTES, StoredLeaf};
use ordering::orderer;
use ordering::roster::Product;

/// Most leaves, and most Attests, of a delivery that is made at once.
const MOST_AT_HAND: usize = 64;
/// Most bytes of its leaves.
const MOST_AT_HAND_BYTES: usize = 64 << 10;

/// What a device is sent.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Position of the first leaf.
    pub from: u64,
    /// Leaves up to the note. An entry has its body if that is short or changes who is a member; devices fetch others.
    pub leaves: Vec<StoredLeaf>,
    /// Proofs of the device's own marks: the position of the leaf, and the mark.
    pub proofs: Vec<(u64, Nonce, MarkProof)>,
    /// The prefix that these leaves end.
    pub note: SignedNote,
    /// There are more leaves to draw.
    pub more: bool,
    /// Attests that are new to the device.
    pub attests: Vec<SignedAttest>,
    /// Somebody wants an Attest.
    pub asked: bool,
    /// This entry cannot be ordered.
    pub refused: Option<[u8; 32]>,
    /// This entry was not ordered: blocks that its author stored before it are missing.
    pub unstored: Option<[u8; 32]>,
}

/// A delivery whose leaves are not read yet.
pub struct Draft {
    core: Arc<Core>,
    drawn: orderer::Delivery<Product>,
    proofs: Vec<(u64, Nonce, MarkProof)>,
}

impl Draft {
    pub(super) fn new(
        core: &Arc<Core>,
        drawn: orderer::Delivery<Product>,
        proofs: Vec<(u64, Nonce, MarkProof)>,
    ) -> Draft {
        let core = Arc::clone(core);
        Draft {
            core,
            drawn,
            proofs,
        }
    }

    /// The delivery, if it is short and its leaves are in memory: that costs less than to wake another thread. Else the
    /// draft, to be read by a thread that may wait for the disk.
    pub fn at_hand(self) -> Result<Delivery, Box<Draft>> {
        let most = (MOST_AT_HAND, MOST_AT_HAND_BYTES);
        if self.drawn.attests.len() > MOST_AT_HAND {
            return Err(Box::new(self));
        }
        match self.core.newest(self.drawn.leaves.clone(), most) {
            Some(leaves) => Ok(self.with(leaves)),
            None => Err(Box::new(self)),
        }
    }

    /// The delivery. Reads from the disk when the device is behind.
    ///
    /// # Errors
    /// [`HostError::Disk`] when leaves are damaged. The session cannot go on then.
    pub fn read(self) -> Result<Delivery, HostError> {
        let leaves = self.core.read(self.drawn.leaves.clone())?;
        Ok(self.with(leaves))
    }

    fn with(self, mut leaves: Vec<StoredLeaf>) -> Delivery {
        let Draft { drawn, proofs, .. } = self;
        for leaf in &mut leaves {
            leaf.body
                .take_if(|body| !leaf.decides && body.len() > SHORT_BODY_BYTES);
        }
        let here = |(at, ..): &(u64, Nonce, MarkProof)| drawn.leaves.contains(at);
        Delivery {
            from: drawn.leaves.start,
            leaves,
            proofs: proofs.into_iter().filter(here).collect(),
            note: drawn.note,
            more: drawn.more,
            attests: drawn.attests,
            asked: drawn.asked,
            refused: drawn.refused,
            unstored: drawn.unstored,
        }
    }
}
