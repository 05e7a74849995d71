//! Stores of blocks. None of them is trusted.
//!
//! A [`BlockStore`] returns records for handles; a caller believes a record only after
//! `trust::Hasher::check` accepts it. A [`Replica`] also has a head. A [`BlockSink`] takes blocks. The
//! repository on disk, the remote stores (crate `wire`), memory, caches and mirrors implement these
//! traits and pass the suites in `conformance`.
//!
//! | module | content |
//! |---|---|
//! | `traits` | [`BlockStore`], [`BlockSink`], [`Replica`], [`Objects`] |
//! | [`repository`], [`read`] | a repository that is open for reading; batched reads |
//! | [`read_plan`] | read plans: many wanted records become few reads (sans-I/O) |
//! | `read_memory` | memory of long reads, used again |
//! | `view` | one state of the head with its open index runs |
//! | [`writer`] | appends records and commits versions; removes what a crash left |
//! | [`collect`] | frees the space of blocks that no kept version reaches |
//! | [`survey`], [`mend`] | what of the blocks and their index is damaged; mending it |
//! | [`names`], [`mod@format`], [`head`], [`segment`], [`index`], [`notes`], `history_log`, `policies` | the files of a repository |
//! | [`object`] | names under which peers ask for these files |
//! | [`disk`] | the file system under a repository, as a trait |
//! | [`blocking`] | where work that waits for a disk runs |
//! | [`lazy`] | a repository that is opened on first use |
//! | [`cache`] | fetched blocks on the reader's own disk |
//! | [`mirrors`] | several replicas of one volume: order, fail-over, hedging |
//! | [`error`] | [`StoreError`] |
//! | `conformance`, `memory` | suites for replicas and sinks, and a store in memory (feature `conformance`) |
//!
//! Modules depend on one another in this direction only: `error` and `names` below, then `disk`, the
//! files, `view`, `read`, `repository`, `writer`.

pub mod beneath;
pub mod blocking;
pub mod cache;
pub mod collect;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod disk;
pub mod error;
pub mod format;
pub mod head;
mod history_log;
pub mod index;
pub mod lazy;
#[cfg(feature = "conformance")]
pub mod memory;
pub mod mend;
pub mod mirrors;
pub mod names;
pub mod notes;
pub mod object;
mod policies;
pub mod read;
mod read_memory;
pub mod read_plan;
pub mod repository;
pub mod segment;
pub mod survey;
mod traits;
mod view;
pub mod writer;

pub use disk::Patience;
pub use error::StoreError;
#[cfg(feature = "conformance")]
pub use memory::MemoryStore;
pub use repository::Repository;
pub use traits::{BlockSink, BlockStore, BoxFuture, MAX_RANGE_BYTES, Objects, Replica};
pub use writer::Writer;
