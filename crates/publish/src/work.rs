//! What the threads of a publication send to one another.
//!
//! ```text
//!            jobs (bounded)                 answers (one slot for each job)
//! gather ───────────────────▶ readers ─────────────────────┐
//!    │                                                     ▼
//!    └──────────────── events (bounded, in order) ────▶ assemble ──▶ repository
//! ```
//!
//! A reader waits only for jobs, because its answer always has room. So no deadlock is possible, and work in
//! flight is bounded by the two queues: at most about 1 MiB of content in each place.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use trust::array::Extent;
use trust::inode::Inode;
use trust::root::Totals;

use crate::blocks_out::Outgoing;
use crate::publish_error::{PublishError, Unreadable};
use content::attributes::Stamp;

/// A file up to this long is read whole by one reader; a longer one is cut up by the gatherer, and its
/// parts are packed in parallel.
pub(crate) const WHOLE_FILE_BYTES: u64 = 1 << 20;
/// Content of one job, bytes, more or less.
pub(crate) const JOB_BYTES: usize = 512 << 10;
/// Files of one job.
pub(crate) const JOB_FILES: usize = 128;

/// Answer to a job.
pub(crate) type Answer<T> = Receiver<Result<T, PublishError>>;
/// Where the answer to a job goes.
pub(crate) type Reply<T> = Sender<Result<T, PublishError>>;

/// Work for a reader.
pub(crate) enum Job {
    /// Entries of one directory, in order.
    Entries {
        directory: Arc<OwnedFd>,
        items: Vec<Item>,
        reply: Reply<Vec<Done>>,
    },
    /// A part of a long file: chunks of these lengths.
    Part {
        bytes: Vec<u8>,
        chunks: Vec<u32>,
        reply: Reply<Part>,
    },
}

/// An entry, in order.
pub(crate) enum Item {
    /// Nothing is left to do.
    Ready(Done),
    /// A file to be read.
    Read(ToRead),
}

/// A file to be read.
pub(crate) struct ToRead {
    pub name: CString,
    pub link: Option<Link>,
}

/// Blocks of a part of a long file.
pub(crate) struct Part {
    pub extents: Vec<Extent>,
    pub blocks: Vec<Outgoing>,
}

/// What the assembler receives, in the order of the tree.
pub(crate) enum Event {
    /// The files of a directory follow; this many sub-directories of it have been closed.
    Open {
        path: Box<[u8]>,
        subdirectories: usize,
    },
    /// Entries of the open directory, in order.
    Entries(Vec<Done>),
    /// Entries that a reader is still working on.
    Coming(Answer<Vec<Done>>),
    /// The next part of a long file.
    Part(Answer<Part>),
    /// A hole in a long file.
    Hole(u64),
    /// The parts of the long file so far are void.
    Restart,
    /// The long file that the parts before belong to; they are its content.
    EndOfFile(Done),
    /// The open directory has no more entries: its own inode, the map still missing.
    Close {
        inode: Box<Inode>,
        blocks: Vec<Outgoing>,
    },
    /// A directory that cannot be read.
    Unreadable { path: Box<[u8]>, why: Unreadable },
    /// The tree ended: which files have names elsewhere.
    End(Vec<(FileId, u32)>),
    /// The walk failed; nothing follows.
    Failed(PublishError),
}

/// Device and inode number.
pub(crate) type FileId = (u64, u64);

/// One of several names of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub file: FileId,
    /// Identity in the volume.
    pub group: [u8; 16],
    /// How many names the volume has, as far as is known.
    pub names: u32,
    /// Whether no other name will come.
    pub last: bool,
}

/// A directory entry, ready or nearly so.
pub(crate) struct Done {
    pub name: Box<[u8]>,
    pub what: What,
    /// The state of the file that was read, if it may be remembered.
    pub stamp: Option<Stamp>,
}

/// The content of a directory entry.
pub(crate) enum What {
    /// An encoded entry, as it was last time.
    Value { value: Vec<u8>, totals: Totals },
    /// A file, and the blocks that belong to it.
    File {
        inode: Box<Inode>,
        blocks: Vec<Outgoing>,
        link: Option<Link>,
    },
    /// Another name of a file that came before.
    Link(Link),
    /// It is gone.
    Vanished,
    /// It cannot be published.
    Unreadable(Unreadable),
}
