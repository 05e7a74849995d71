//! A volume as a file system: FUSE over the verified reader (SFSRO 4.2 and 3.4.2; publish.md, *Mount*).
//!
//! From the kernel inwards: [`session`] (mounts, ends, unmounts) → `bridge` (the kernel's requests:
//! answered at once when everything is in memory, by a task with a deadline otherwise) →
//! `operations` (what each request means) → [`nodes`] (file numbers) and `volume::Snapshot` (every
//! byte proved). `freshness` adopts newer versions and lets names go when a statement expires;
//! `names` tells the kernel to forget names; [`report`] is what a mount tells of itself. What a program
//! may rely on stands in docs/semantics.md.
//!
//! Relies on `fuser` for the protocol and needs no `unsafe` of its own.

mod attributes;
mod bridge;
mod directory;
pub mod error;
mod failure;
mod freshness;
mod listing;
mod names;
pub mod nodes;
mod operations;
pub mod options;
pub mod report;
mod seeking;
pub mod session;
pub mod table;
mod unmount;

pub use error::MountError;
pub use options::{MountOptions, NameCaching, Ownership};
pub use report::{Report, Reporter};
pub use session::{Mounted, Signals, mount};
pub use unmount::unmount;
