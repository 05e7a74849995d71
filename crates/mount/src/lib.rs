//! Mounts: file systems of ours in the kernel's tree, by FUSE.
//!
//! [`fuse`] is the plumbing: any [`fuse::FileSystem`], read-only or writable, becomes a mount with
//! deadlines, notifications and an end. [`published`] is the first of the file systems: a published
//! volume. [`shared`] is the second: a shared volume, read and write. [`device`] is the third: one file over a protected
//! device, which [`loop_device`] makes a block device. There is no `unsafe` here.

mod attributes;
pub mod device;
pub mod error;
pub mod fuse;
pub mod loop_device;
pub mod published;
pub mod shared;

pub use error::MountError;
pub use fuse::FileSystem;
pub use fuse::session::Signals;
pub use fuse::table;
pub use fuse::unmount::unmount;
pub use published::mounted::{Mounted, mount};
pub use published::options::{FetchFirst, MountOptions, NameCaching, Ownership};
pub use published::recording::Recorder;
pub use published::report::{self, Report, Reporter};
pub use shared::mounted::{SharedMountOptions, SharedMounted, mount_shared};
