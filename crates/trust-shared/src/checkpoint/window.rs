//! The end of a checkpoint's log: the hashes of so many leaves that every prefix which a later entry may name has its
//! root. They lead to the root of the log, so a checkpointer cannot lie about them.

use super::Row;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::history::{Frontier, LogPoint};

/// An entry names a prefix that is at most so many leaves shorter than the log where it stands.
pub const WINDOW: u64 = 1 << 16;
/// The first leaf whose hash is in a checkpoint is a multiple of this.
pub const PAGE: u64 = 256;
/// Hashes in a row but for the last one.
pub const LEAVES_OF_ROW: usize = 64;

/// The end of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// The log before these leaves.
    pub before: Frontier,
    /// Their hashes.
    pub leaves: Vec<[u8; 32]>,
}

impl Window {
    /// Position of the first leaf whose hash is in the checkpoint of a log of `size` leaves.
    pub fn begins(size: u64) -> u64 {
        let first = size.saturating_sub(WINDOW);
        first - first % PAGE
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = (Row, Vec<u8>)> {
        let mut e = Encoder::new();
        self.before.encode(&mut e);
        let leaves = (self.before.size()..).step_by(LEAVES_OF_ROW);
        let leaves = leaves.zip(self.leaves.chunks(LEAVES_OF_ROW));
        let leaves = leaves.map(|(at, hashes)| (Row::Leaves(at), hashes.concat()));
        std::iter::once((Row::Before, e.finish())).chain(leaves)
    }
}

/// Reads the rows.
#[derive(Debug, Default)]
pub(super) struct WindowRows {
    window: Window,
    has_begun: bool,
}

impl WindowRows {
    pub fn begin(&mut self, mut d: Decoder<'_>) -> Result<(), Reject> {
        self.window.before = Frontier::decode(&mut d)?;
        self.has_begun = true;
        d.finish()
    }

    pub fn leaves(&mut self, at: u64, mut d: Decoder<'_>) -> Result<(), Reject> {
        let count = d.remaining() / 32;
        let next = (self.window.before.size()).saturating_add(self.window.leaves.len() as u64);
        // The row before had all that a row has, or it was the last one.
        let is_aligned = self.window.leaves.len().is_multiple_of(LEAVES_OF_ROW);
        if at != next || !is_aligned || count == 0 || count > LEAVES_OF_ROW {
            return Err(d.bad("leaves are missing, or in another row"));
        }
        for _ in 0..count {
            self.window.leaves.push(d.array()?);
        }
        d.finish()
    }

    pub fn finish(self, log: &LogPoint) -> Result<Window, Reject> {
        let window = self.window;
        let bad = |why| Reject::Malformed {
            what: "checkpoint",
            why,
        };
        if !self.has_begun || window.before.size() != Window::begins(log.size) {
            return Err(bad("the hashes of leaves begin elsewhere"));
        }
        let mut whole = window.before.clone();
        for leaf in &window.leaves {
            whole.push_hash(*leaf)?;
        }
        if whole.point(log.epoch) != *log {
            let why = "the leaves of a checkpoint do not lead to its root";
            return Err(Reject::BadHistory(why));
        }
        Ok(window)
    }
}
