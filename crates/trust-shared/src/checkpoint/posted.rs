//! Checkpoints as the server keeps them: the statement with its signatures, and the orderer's note of the same log. With
//! the note, a log that does not continue the checkpoint convicts the orderer, as any other fork does.
//!
//! ```text
//! posted = note [120] | signed statement
//! ```

use super::Checkpoint;
use crate::genesis::Policies;
use crate::note::{NOTE_BYTES, SignedNote};
use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::key::PublicKey;
use trust::signatures::Signatures;
use trust::statement::{Job, Signed};

/// Longest one: the statement, and a signature of each checkpointer.
pub const MAX_POSTED_BYTES: usize = 8 << 10;

/// A checkpoint, and the note of its log. Nothing is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// The orderer's note.
    pub note: SignedNote,
    /// The statement with its signatures.
    pub signed: Signed,
}

impl Posted {
    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let mut e = Encoder::new();
        self.note.encode(&mut e);
        e.raw(&self.signed.to_bytes());
        e.finish().into()
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but a note and a signed statement.
    pub fn decode(bytes: &[u8]) -> Result<Posted, Reject> {
        let mut d = Decoder::new(bytes, "posted checkpoint");
        if bytes.len() > MAX_POSTED_BYTES {
            return Err(d.bad("too long"));
        }
        let note = SignedNote::decode(&mut d)?;
        let signed = bytes.get(NOTE_BYTES..).unwrap_or_default();
        let signed = Signed::from_bytes_of(Job::Shared, signed)?;
        Ok(Posted { note, signed })
    }

    /// The checkpoint in it, if orderer and statement name the same log of the newest epoch. The signatures of the
    /// statement are not verified.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn read(&self, policies: &Policies) -> Result<Checkpoint, Reject> {
        let volume = policies.chain().volume();
        let epoch = policies.newest_epoch();
        let checkpoint: Checkpoint = self.signed.statement().read(volume)?;
        self.note.verify(volume, &epoch.orderer)?;
        let named = self.note.note().log;
        if checkpoint.log != named || named.epoch != epoch.number {
            return Err(Reject::Malformed {
                what: "posted checkpoint",
                why: "its note is of another log",
            });
        }
        Ok(checkpoint)
    }

    /// The checkpointers of the newest policy that signed it.
    pub fn signers(&self, policies: &Policies) -> Vec<PublicKey> {
        let mut signatures = Signatures::default();
        let mut made = |key: &&PublicKey| {
            let own = trust::roles::Threshold::single(**key);
            signatures.require(&self.signed, &own, "checkpoint").is_ok()
        };
        let keys = policies.roles().checkpointers.keys().iter();
        keys.filter(|key| made(key)).copied().collect()
    }
}
