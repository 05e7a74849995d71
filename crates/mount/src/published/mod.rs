//! A published volume as a read-only file system (SFSRO 4.2 and 3.4.2; publish.md, *Mount*).
//!
//! `file_system` implements [`crate::fuse::FileSystem`]; `operations` says what each request means,
//! on top of [`nodes`] (inode numbers) and `volume::Snapshot` (verified reading). `freshness` adopts
//! newer versions and makes the kernel drop cached names when a statement expires. [`report`] gives the
//! state of a mount. docs/semantics.md says what a program may rely on.

mod directory;
mod failure;
mod faults;
mod file_system;
mod freshness;
mod listing;
pub mod mounted;
pub mod nodes;
mod operations;
pub mod options;
pub mod recording;
mod repeats;
pub mod report;
mod seeking;
mod view;
