//! The feed of changes as programs get it (decision 0101): a cursor, and a page of files and names that may have changed. The
//! bytes of a page are in `feed_codec`.

use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust_shared::principal::{FileId, Name, Principal};

/// Most changes of a page. An entry that may change more is answered with [`Feed::LookAgain`].
pub const MAX_TOUCHED: usize = 4096;

/// How far a program has been told what changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Epoch of the log.
    pub epoch: u64,
    /// Size of the prefix.
    pub size: u64,
}

/// Something that readers may see changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Thing {
    /// The inode of a file: its content or its attributes, or whether there is one.
    File(FileId),
    /// Where a name of a directory leads, or whether it is there, wherever the directory itself is.
    Name(FileId, Name),
    /// All files of a user or group, and the names in their directories. Another device has folded them, and nobody
    /// but that device answers for what the fold says.
    Owned(Principal),
}

/// Something that may have changed, and the last entry that may have changed it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Touched {
    /// Position of the entry. What a program has read after a prefix that is longer has the change already.
    pub at: u64,
    /// What may have changed.
    pub what: Thing,
}

/// What comes after a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum After {
    /// Nothing, at the moment of the answer.
    Nothing,
    /// More of the log.
    More,
    /// An entry for which nobody speaks yet, so that readers may not use it.
    Held,
}

/// What may have changed since a cursor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Feed {
    /// These things may have changed, and no others.
    Changes {
        /// Each thing once, in the order of the entries that changed them last. At most [`MAX_TOUCHED`].
        changes: Vec<Touched>,
        /// Where the next question begins.
        until: Cursor,
        /// What comes then.
        after: After,
    },
    /// Everything may have changed. What is read from now on is no older than this cursor.
    LookAgain {
        /// Where the next question begins.
        now: Cursor,
    },
}

impl Cursor {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.varint(self.epoch).varint(self.size);
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Cursor, Reject> {
        Ok(Cursor {
            epoch: d.varint()?,
            size: d.varint()?,
        })
    }
}
