//! What the state machine of a file asks for, and what it is told.

use std::sync::Arc;

use trust::inode::{Content, Inode, Time};

use super::overlay::{Moved, Overlay};

/// What the caller keeps for a file.
pub trait Kinds {
    /// Where local bytes lie. A copy is the same place.
    type Bytes: Clone;
    /// A request that waits.
    type Waiter;
    /// Why bytes are not in the log, for people and programs.
    type Loss: Clone;
}

/// Local changes as a commit takes them.
#[derive(Debug, Clone)]
pub struct Taken<B> {
    /// The version that they lie over.
    pub base: Arc<Inode>,
    /// What changed.
    pub overlay: Overlay,
    /// The bytes.
    pub bytes: B,
    /// When a program wrote last.
    pub mtime: Time,
}

/// What the caller does for a file.
#[derive(Debug)]
pub enum Effect<K: Kinds> {
    /// A request waits no more.
    Answer(K::Waiter, Result<(), K::Loss>),
    /// The first local changes: the file stays known until [`Effect::Clean`].
    Dirty,
    /// Nothing is local any more.
    Clean,
    /// Store the blocks of the new content. Answer: [`Cached::stored`](super::Cached::stored).
    Store(Taken<K::Bytes>),
    /// Set the content in the log, in no more than one op. Answer: [`Cached::sent`](super::Cached::sent).
    Send {
        /// The new content.
        content: Content,
        /// Its time.
        mtime: Time,
        /// The content that it was made of, which guards the op.
        expect: Content,
    },
    /// Ask what the file is now, by its number. Answer: [`Cached::found`](super::Cached::found).
    Look,
    /// Copy local bytes to the offsets at which they are after a rebase. Answer: [`Cached::moved`](super::Cached::moved).
    Move {
        /// Where they are.
        from: K::Bytes,
        /// The changes as they were.
        overlay: Overlay,
        /// What moves.
        moved: Moved,
    },
    /// Make a conflict copy of this content beside the file. Answer: [`Cached::copied`](super::Cached::copied).
    Copy {
        /// The changes that it shows.
        taken: Taken<K::Bytes>,
        /// The content.
        content: Content,
    },
    /// Call [`Cached::rang`](super::Cached::rang) after this time.
    Wait(Timer),
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timer {
    /// Local changes are so old that they are committed.
    Dirty,
    /// A step of a commit is tried again: the server could not be reached.
    Again,
    /// A commit that failed is tried again.
    Retry,
}

/// Why blocks are not stored.
#[derive(Debug)]
pub enum NotStored<L> {
    /// The server cannot be reached now.
    Now(L),
    /// They cannot be stored.
    Ever(L),
}

/// Why content is not set.
#[derive(Debug)]
pub enum NotSent<L> {
    /// The file has other content, or no name any more.
    Stale,
    /// Nobody knows.
    Unknown,
    /// The log does not take it.
    Refused(L),
    /// It was written under a lock that is lost: it goes beside the file.
    Unlocked(L),
}

/// What a look found.
#[derive(Debug)]
pub enum Found<L> {
    /// The file, at the end of this prefix of the log.
    File(Arc<Inode>, u64),
    /// It has no name any more.
    Nothing,
    /// Nobody knows now.
    Unknown,
    /// It cannot be known.
    Failed(L),
}

/// What is under way.
#[derive(Debug)]
pub(super) enum Work {
    /// Local bytes move onto this version, with these changes then.
    Moving(Arc<Inode>, Overlay, Why),
    Storing,
    Sending(Content),
    /// With the content that the log did not take, or of which nobody knows.
    Looking(Content),
    /// With what the file is now.
    Copying(Option<(Arc<Inode>, u64)>),
    /// Blocks are stored again after a while.
    RestingToStore,
    /// The file is looked at again after a while.
    RestingToLook(Content),
}

/// Why local changes move onto another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// A program opened the file.
    Shown,
    /// Another device was first.
    Commit,
}
