//! The verified reader: the one way from untrusted bytes to believed ones (SFSRO 4.2).
//!
//! From the outside in: [`Tree`] (names, attributes and content below one root) → [`Prefetcher`]
//! (fetches what readers are likely to want next) → [`Blocks`] (hashes, decodes and caches every
//! block) → `store::Mirrors` (untrusted). The reader knows no floor, no policy and no head: its
//! caller decides which root is read.
//!
//! | module | what lives there |
//! |---|---|
//! | [`tree`] | look-ups, listings, reads, extended attributes |
//! | `prefetch` | readahead of sequential readers; prefetch of directories that are read through |
//! | `entries`, `extents` | walks of the two kinds of trees: directories, and contents of files |
//! | [`blocks`] | verified blocks, fetched once for concurrent readers |
//! | [`read_around`] | how many neighbours of a block to request with it |
//! | [`error`] | what can go wrong with a read |

pub mod blocks;
mod entries;
pub mod error;
mod extents;
mod prefetch;
pub mod read_around;
pub mod tree;

pub use blocks::{Blocks, Fetch, now};
pub use error::ReadError;
pub use prefetch::{Prefetcher, Spawner};
pub use tree::Tree;
