//! FUSE for any file system: the layer between the kernel and a [`FileSystem`].
//!
//! From the kernel inwards: [`session`] mounts (`attach`), agrees with the kernel on features, and unmounts; `reading`
//! has the threads that read requests from `/dev/fuse` (`channel`); [`protocol`] gives the bytes their meaning;
//! `dispatch` gives each to the file system as a typed [`request`], and sends the answer at once or, if it takes time,
//! from a task with a deadline (`parked`), which a signal may end (`under_way`). [`notify`] tells the kernel that
//! cached names or data are stale; [`table`] reads the mount table. Nothing here knows what a file system stores.
//! Decisions 0028 and 0108.

pub mod answer;
mod attach;
mod channel;
mod dispatch;
pub mod error;
pub mod file_system;
pub mod notify;
mod parked;
pub mod protocol;
mod reading;
pub mod request;
pub mod session;
pub mod table;
mod types;
mod under_way;
pub mod unmount;

pub use answer::{Answer, Reply};
pub use error::{Error, Refusal};
pub use file_system::{AddEntry, AddName, FileSystem, Listing};
pub use notify::Notifier;
pub use session::{Connection, Session, SessionOptions, Signals};
pub use types::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, LockOwner, OpenFlags,
    RenameFlags, TimeOrNow, Timestamp,
};
