//! Evidence: a file that convicts the orderer of a shared volume, or a device, in the eyes of a third person who has
//! nothing but the volume's id (docs/formats/shared.md, *Evidence*).
//!
//! It is made of what the accused signed: notes of the orderer with what their roots fix, or entries of the device.
//! It carries the policies that say whose key the orderer's is. What a server answered without a signature is no
//! evidence.
//!
//! | module | what it does |
//! |---|---|
//! | `codec` | the file's bytes |
//! | `judge` | whether they convict, and whom |

use std::fmt;

use bytes::Bytes;

use super::entry::SignedEntry;
use super::note::SignedNote;
use trust::device::DeviceKey;
use trust::error::Reject;
use trust::key::PublicKey;
use trust::statement::Signed;
use trust::volume_id::VolumeId;

mod codec;
mod judge;

pub use codec::is_evidence;

/// Longest evidence, bytes.
pub const MAX_EVIDENCE_BYTES: usize = 4 << 20;

/// A file of evidence. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the log.
    pub epoch: u64,
    /// The policies from the genesis to the one that begins the epoch, with the signatures of owners alone. None
    /// where a device is accused: its own key convicts it.
    pub policies: Vec<Signed>,
    /// What was done.
    pub offence: Offence,
}

/// A leaf, and the proof that it is in a note's log (RFC 6962, 2.1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Included {
    /// Position in the log.
    pub index: u64,
    /// The leaf's bytes.
    pub leaf: Bytes,
    /// The proof.
    pub path: Vec<[u8; 32]>,
}

/// What was done, with all that is needed to judge it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offence {
    /// Two notes of one epoch: the log of the second does not begin with that of the first.
    Fork {
        /// The note with fewer leaves; of two with as many, the one with the lower root.
        first: SignedNote,
        /// The other.
        second: SignedNote,
        /// Proof of the second log's prefix ([`trust::history::proof::prefix_root`]).
        proof: Vec<[u8; 32]>,
    },
    /// The log does not begin with the prefix that the owners have named for the epoch.
    OtherStart {
        /// A note of the epoch.
        note: SignedNote,
        /// Proof of the log's prefix with the size that the owners have named. If the log is shorter: proof of the
        /// named prefix's own prefix with the size of the log.
        proof: Vec<[u8; 32]>,
    },
    /// A leaf that no orderer may accept, whatever the log: malformed, of another epoch, not signed by its author, or
    /// beyond its own position.
    BadLeaf {
        /// A note.
        note: SignedNote,
        /// The leaf in its log.
        leaf: Included,
    },
    /// An entry whose author has seen another log.
    SeenElsewhere {
        /// A note.
        note: SignedNote,
        /// The entry in its log.
        entry: Included,
        /// Proof of the prefix of the size that the author has seen.
        proof: Vec<[u8; 32]>,
    },
    /// An entry whose author has not seen its own entry before; a Resume whose author has not seen its Resume before.
    SeenMissesOwn {
        /// A note.
        note: SignedNote,
        /// An earlier entry of the author; for a Resume, a Resume.
        before: Included,
        /// The entry.
        entry: Included,
    },
    /// An entry that does not follow the one that it names as its author's entry before.
    OtherPrevious {
        /// A note.
        note: SignedNote,
        /// The leaf that the entry names.
        previous: Bytes,
        /// The entry.
        entry: Included,
    },
    /// An entry that passes over an entry of its author.
    PassesOver {
        /// A note.
        note: SignedNote,
        /// The entry that it names as the one before.
        previous: Included,
        /// A later entry of the author.
        passed: Included,
        /// The entry.
        entry: Included,
    },
    /// Two entries of one device with one number, the one with the lower bytes first. Its key signed twice; that does
    /// not say who used it.
    SignedTwice(Box<[SignedEntry; 2]>),
}

impl Offence {
    /// Two entries with one number, in their order.
    pub fn signed_twice(one: SignedEntry, other: SignedEntry) -> Offence {
        let mut both = [one, other];
        both.sort_by(|a, b| a.bytes().cmp(b.bytes()));
        Offence::SignedTwice(Box::new(both))
    }

    /// Whether it accuses a device, and not the orderer.
    pub fn accuses_device(&self) -> bool {
        matches!(self, Offence::SignedTwice(_))
    }
}

/// Whose key convicts its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Convicted {
    /// The orderer of the epoch.
    Orderer(PublicKey),
    /// A device.
    Device(DeviceKey),
}

/// What evidence proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the log.
    pub epoch: u64,
    /// Who signed it.
    pub convicted: Convicted,
    /// What was done, for people.
    pub what: &'static str,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { volume, epoch, .. } = self;
        match &self.convicted {
            Convicted::Orderer(key) => write!(f, "the orderer {key}")?,
            Convicted::Device(key) => write!(f, "the device {key}")?,
        }
        write!(f, " of {volume}, epoch {epoch}: {}", self.what)
    }
}

/// Reads a file of evidence, and judges it.
///
/// # Errors
/// [`Reject::Malformed`] for anything but the one encoding of evidence; [`Reject::NotSigned`] and
/// [`Reject::BadHistory`] when it proves nothing; [`Reject::Unsupported`] when a later bulla must judge it.
pub fn verify(bytes: &[u8]) -> Result<Verdict, Reject> {
    Evidence::decode(bytes)?.judge()
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "evidence",
        why,
    }
}

#[cfg(test)]
mod tests;
