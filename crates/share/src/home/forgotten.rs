//! How many entries of this device the log has that the device does not remember. The file `forgotten` of a home.
//!
//! ```text
//! entries u64 | position of the last one u64
//! ```
//!
//! An honest device meets such entries after a power cut, and after a backup of its home was put back. Otherwise a copy of
//! the device has written them. The file is for people, and nothing is decided by it; so what cannot be read of it is
//! left out.

use std::fs;
use std::path::{Path, PathBuf};

use state::private;

pub use ordering::engine::Forgotten;

const FILE: &str = "forgotten";

/// Reads the file of a memory.
pub(super) fn read(memory: &Path) -> Forgotten {
    let bytes = fs::read(memory.join(FILE)).unwrap_or_default();
    match bytes.as_chunks::<8>() {
        ([entries, last_at], []) => Forgotten {
            entries: u64::from_le_bytes(*entries),
            last_at: u64::from_le_bytes(*last_at),
        },
        _ => Forgotten::default(),
    }
}

/// The file of a running engine.
#[derive(Debug)]
pub(crate) struct Memo {
    path: PathBuf,
    /// What earlier engines met.
    before: Forgotten,
    /// What this one has met so far.
    met: Forgotten,
}

impl Memo {
    /// Opens the file of a memory.
    pub(crate) fn open(memory: &Path) -> Memo {
        Memo {
            path: memory.join(FILE),
            before: read(memory),
            met: Forgotten::default(),
        }
    }

    /// The engine has met so many since its start.
    pub(crate) fn met(&mut self, met: Forgotten) {
        if met == self.met {
            return;
        }
        self.met = met;
        let entries = self.before.entries.saturating_add(met.entries);
        tracing::warn!(
            entries,
            last = met.last_at,
            "the log has entries of this device that it does not remember"
        );
        let bytes = [entries.to_le_bytes(), met.last_at.to_le_bytes()].concat();
        if let Err(error) = private::replace(&self.path, &bytes) {
            tracing::warn!(%error, "the number of these entries is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_all_engines_are_counted() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path()), Forgotten::default());
        for (met, all, last_at) in [(2, 2, 7), (3, 5, 30)] {
            let mut memo = Memo::open(home.path());
            for entries in 1..=met {
                memo.met(Forgotten { entries, last_at });
            }
            let entries = all;
            let expected = Forgotten { entries, last_at };
            assert_eq!(read(home.path()), expected);
        }
        fs::write(home.path().join(FILE), [1; 15]).unwrap();
        assert_eq!(read(home.path()), Forgotten::default());
    }
}
