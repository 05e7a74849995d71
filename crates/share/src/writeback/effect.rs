//! What the state machine of a file asks for, and what it is told.

use std::sync::Arc;

use trust::inode::{Content, Inode, Time};

use super::overlay::{Moved, Overlay};

/// What the caller keeps for a file.
pub trait Kinds {
    /// Where local bytes lie. A copy is the same place.
    type Bytes: Clone;
    /// Blocks of new content that are not stored yet.
    type Blocks;
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
    /// Cut the new content into blocks. Answer: [`Cached::cut`](super::Cached::cut).
    Cut {
        /// The changes.
        taken: Taken<K::Bytes>,
        /// Its blocks are stored, all of them: none travels with the op. The server has refused them before.
        stored: bool,
    },
    /// Set the content in the log, in no more than one op, behind its blocks. Answer:
    /// [`Cached::sent`](super::Cached::sent).
    Send {
        /// The new content.
        content: Content,
        /// Its blocks.
        blocks: K::Blocks,
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
    /// Make a conflict copy beside the file. Its blocks are stored again: nobody knows whether the server has those that
    /// travelled before. Answer: [`Cached::copied`](super::Cached::copied).
    Copy(Taken<K::Bytes>),
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

/// Why there are no blocks of the new content, or they are not stored.
#[derive(Debug)]
pub enum NotStored<L> {
    /// The server cannot be reached now, or refuses them now.
    Now(L),
    /// They cannot be made or stored.
    Ever(L),
}

/// Why content is not set.
#[derive(Debug)]
pub enum NotSent<L> {
    /// The file has other content, or no name any more.
    Stale,
    /// Nobody knows.
    Unknown,
    /// Its blocks could not be stored. It had no effect.
    Unstored(NotStored<L>),
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
    Cutting,
    Sending(Content),
    /// The log did not take the content, or nobody knows.
    Looking,
    /// With what the file is now.
    Copying(Option<(Arc<Inode>, u64)>),
    /// The content is cut again after a while.
    RestingToCut,
    /// The file is looked at again after a while.
    RestingToLook,
}

/// Why local changes move onto another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// A program opened the file.
    Shown,
    /// Another device was first.
    Commit,
}
