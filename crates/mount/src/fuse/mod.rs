//! FUSE for any file system: the layer between the kernel and a [`FileSystem`].
//!
//! From the kernel inwards: [`session`] mounts and unmounts; `dispatch` gets the kernel's requests
//! from `fuser`, gives each to the file system as a typed [`request`], and sends the answer at once or,
//! if it takes time, from a task with a deadline (`parked`). [`notify`] tells the kernel that cached names
//! or data are stale; [`table`] reads the mount table. Nothing here knows what a file system stores.
//! Decision 0028.

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

pub use answer::{Answer, Reply};
pub use error::{Error, Refusal};
pub use file_system::{AddEntry, AddName, FileSystem, Listing};
pub use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, LockOwner, OpenFlags,
    RenameFlags, TimeOrNow,
};
pub use notify::Notifier;
pub use session::{Connection, Session, SessionOptions, Signals};
