//! The verified reader: the one way from untrusted bytes to believed ones (SFSRO 4.2).
//!
//! From the outside in: [`tree`] (names, attributes, content below one root) → [`blocks`] (every byte
//! hashed, cached in memory and on disk) → `store::Mirrors` (believed in nothing). Knows no floor, no
//! policy and no head: `volume` decides which root is read.
//!
//! | module | what lives there |
//! |---|---|
//! | [`tree`] | look-ups, listings, reads, extended attributes |
//! | [`blocks`] | verified blocks, fetched once for concurrent readers |
//! | [`extents`] | the extents of a content, and how they are asked for |
//! | [`read_around`] | how much read-around to ask for |
//! | `prefetch` | readahead of sequential readers; prefetch of directories that are read through |
//! | [`error`] | what can go wrong with a read |

pub mod blocks;
pub mod error;
pub mod extents;
mod prefetch;
pub mod read_around;
pub mod tree;

pub use blocks::{Blocks, Fetch};
pub use error::ReadError;
pub use tree::Tree;
