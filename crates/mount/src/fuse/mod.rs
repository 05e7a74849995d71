//! FUSE for any file system: what stands between the kernel and a [`FileSystem`].
//!
//! From the kernel inwards: [`session`] mounts and unmounts; `dispatch` gets the kernel's requests
//! from `fuser`, gives each to the file system as a typed [`request`], and sends the answer at once or,
//! if it has to be waited for, from a task with a deadline (`parked`). [`notify`] tells the kernel that
//! what it remembers is stale; [`table`] reads the mount table. Nothing here knows what a file system
//! stores. Decision 0028.

pub mod answer;
mod dispatch;
pub mod error;
pub mod file_system;
pub mod notify;
mod parked;
mod replies;
pub mod request;
pub mod session;
pub mod table;
pub mod unmount;

pub use answer::Answer;
pub use error::{Error, Refusal};
pub use file_system::{AddEntry, AddName, FileSystem, Listing};
pub use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, LockOwner, OpenFlags,
    RenameFlags, TimeOrNow,
};
pub use notify::Notifier;
pub use session::{Connection, Session, SessionOptions, Signals};
