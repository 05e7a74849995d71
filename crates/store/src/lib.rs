//! Where blocks lie, all of it untrusted.
//!
//! A [`BlockStore`] answers handles with records; nothing that it says is believed before
//! `trust::Hasher::check` has agreed. A [`Replica`] also has a head. The repository on disk, the
//! remote client (crate `wire`), memory and later caches and mirrors are all of these two traits, and
//! pass one conformance suite. The map of the crate:
//!
//! | module | what lives there |
//! |---|---|
//! | [`repository`], [`read`] | a repository open for reading: index view, batched reads, read-around |
//! | [`gather`] | many wanted records as few reads, without I/O |
//! | [`writer`] | the one who appends and commits; what a crash left is cleared here |
//! | [`collect`] | what no kept version reaches gives its room back |
//! | [`rebuild`] | an index made anew from the segments |
//! | [`names`], [`format`], [`head`], [`segment`], [`index`] | the files of a repository |
//! | [`object`] | the same files as others may ask for them |
//! | [`notes`] | small files for whoever looks after it |
//! | [`disk`] | the file system under it, as a trait |
//! | [`memory`] | a replica in memory |
//! | [`late`] | a repository that may not be there yet |
//! | [`cache`] | blocks that were fetched before, on the reader's disk |
//! | [`mirrors`] | several replicas as one place to ask |
//! | `conformance` | what every replica must do (feature `conformance`) |

pub mod blocking;
pub mod cache;
pub mod collect;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod disk;
pub mod error;
pub mod format;
pub mod gather;
pub mod head;
mod history_log;
pub mod index;
pub mod late;
pub mod memory;
pub mod mirrors;
pub mod names;
pub mod notes;
pub mod object;
pub mod read;
pub mod rebuild;
pub mod repository;
pub mod segment;
pub mod sink;
mod traits;
mod view;
pub mod writer;

pub use disk::Patience;
pub use error::StoreError;
pub use memory::MemoryStore;
pub use repository::Repository;
pub use sink::RepositorySink;
pub use traits::{BlockSink, BlockStore, BoxFuture, MAX_RANGE_BYTES, Objects, Replica};
pub use writer::Writer;
