//! Positions in a log.

use std::fmt;

use trust::Reject;
use trust::encode::{Decoder, Encoder};

/// Log sequence number: an offset in bytes in the log as if it had no end. The offset in the ring is the
/// remainder by the ring's length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({})", self.0)
    }
}

/// A point of a log's history: a frame, named by where it ends. A log that does not pass through a mark that was
/// once taken has been put back or replaced.
///
/// A session can begin without a frame. Its mark names the last frame of an earlier session with its own epoch: frames
/// of earlier epochs that show up behind it later are not part of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// How often the log had been opened when the frame was written, or when a session began behind it.
    pub epoch: u64,
    /// Where the frame ends.
    pub lsn: Lsn,
    /// The frame's MAC.
    pub tag: [u8; 32],
}

/// The mark of a log in which nothing was ever written.
pub(crate) const START: Mark = Mark {
    epoch: 0,
    lsn: Lsn(0),
    tag: [0; 32],
};

impl Mark {
    /// Whether both name the same frame. Their epochs may differ.
    pub fn is_same_frame(&self, other: &Mark) -> bool {
        self.lsn == other.lsn && self.tag == other.tag
    }

    pub(crate) fn put(&self, out: &mut Encoder) {
        out.u64(self.epoch).u64(self.lsn.0).raw(&self.tag);
    }

    pub(crate) fn take(fields: &mut Decoder<'_>) -> Result<Mark, Reject> {
        Ok(Mark {
            epoch: fields.u64()?,
            lsn: Lsn(fields.u64()?),
            tag: fields.array()?,
        })
    }
}
