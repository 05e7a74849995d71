//! A volume as a file system: FUSE over the verified reader (SFSRO 4.2 and 3.4.2; publish.md, *Mount*).
//!
//! From the kernel inwards: [`session`] (mounts, ends, unmounts) → `bridge` (the kernel's requests:
//! answered at once when everything is in memory, by a task with a deadline otherwise) →
//! `operations` (what each request means) → [`nodes`] (file numbers) and `publish::Snapshot` (every
//! byte proved). `freshness` adopts newer versions and lets names go when a statement expires;
//! `names` tells the kernel to forget names; [`report`] is what a mount tells of itself. What a program
//! may rely on stands in docs/semantics.md.
//!
//! Relies on `fuser` for the protocol and needs no `unsafe` of its own.

pub mod error;
pub mod fuse;
pub mod published;

pub use error::MountError;
pub use fuse::{table, unmount::unmount};
pub use published::options::{self, MountOptions, NameCaching, Ownership};
pub use published::report::{self, Report, Reporter};
pub use published::session::{self, Mounted, Signals, mount};
pub use published::nodes;
