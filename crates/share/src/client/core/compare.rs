//! Compares this device's log with a note that another device has shown on some other way.

use std::path::PathBuf;

use trust_shared::note::SignedNote;

use super::Core;
use crate::client::error::Stopped;
use crate::client::evidence::{Hashes, Proofs, fork};
use ordering::roster::Product;
use ordering::scheme::{Log, Scheme};

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compared {
    /// The note names a prefix of this device's log, of this size.
    Same {
        /// Number of leaves.
        size: u64,
    },
    /// The note names more than this device has seen.
    Behind {
        /// What this device has.
        size: u64,
    },
    /// The note names a prefix from before the checkpoint with which this device began: it cannot tell. The device that
    /// has shown the note can, with a note of this one.
    Early {
        /// The first size that this device can compare.
        first: u64,
    },
    /// The orderer signed two logs.
    Fork {
        /// The file that proves it.
        evidence: Result<PathBuf, String>,
    },
    /// The orderer of this volume did not sign the note.
    NotSigned,
    /// The memory of this device cannot be read.
    Unreadable(String),
}

impl Compared {
    /// Why the device writes no more, if the comparison convicts the server.
    pub(super) fn convicts(&self) -> Option<Stopped> {
        match self {
            Compared::Fork { evidence } => Some(Stopped::Convicted {
                what: "it has shown two devices different logs".to_owned(),
                evidence: evidence.clone().ok(),
            }),
            _ => None,
        }
    }
}

pub(super) fn compare(core: &Core, note: &SignedNote) -> Compared {
    let engine = core.engine();
    if !engine.scheme().note_is_signed(note) {
        return Compared::NotSigned;
    }
    let size = note.note().log.size;
    let log = engine.ledger().log();
    if size > Log::<Product>::size(log) {
        let size = Log::<Product>::size(log);
        return Compared::Behind { size };
    }
    let hashes = match core.court().hashes(core.disk()) {
        Ok(hashes) => hashes,
        Err(error) => return Compared::Unreadable(error.to_string()),
    };
    let mine = Proofs::new(hashes);
    match is_same(mine.root_at(size), note.note().log.root) {
        Some(true) => return Compared::Same { size },
        Some(false) => {}
        // This device did not see how the log came to the checkpoint with which it began.
        None if size < core.disk().first() => {
            let first = core.disk().first();
            return Compared::Early { first };
        }
        None => return Compared::Unreadable("its files have less than it has seen".to_owned()),
    }
    let own = engine.ledger().note();
    // Of two logs the longer one proves it, and that is this device's.
    let offence = own.and_then(|own| fork([(note, Proofs::new(Hashes::default())), (own, mine)]));
    let evidence = offence.ok_or_else(|| "this device has no note".to_owned());
    let kept = evidence.and_then(|offence| core.court().keep(offence));
    Compared::Fork {
        evidence: kept.map(|(_, path)| path),
    }
}

/// Whether this device's root of a prefix is the one that a note names. None: its files do not have the prefix, because
/// a write has failed. That convicts nobody.
fn is_same(found: Option<[u8; 32]>, noted: [u8; 32]) -> Option<bool> {
    found.map(|root| root == noted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_that_the_files_do_not_have_is_no_fork() {
        assert_eq!(is_same(Some([1; 32]), [1; 32]), Some(true));
        assert_eq!(is_same(Some([2; 32]), [1; 32]), Some(false));
        assert_eq!(is_same(None, [1; 32]), None);
    }
}
