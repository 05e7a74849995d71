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
//! | [`pieces`] | the extents of a content, and how they are asked for |
//! | [`around`] | how much read-around to ask for |
//! | `ahead` | readahead of sequential readers |
//! | `siblings` | prefetch of files and directories beside those in use |
//! | [`error`] | what can go wrong with a read |

mod ahead;
pub mod around;
pub mod blocks;
pub mod error;
pub mod pieces;
mod siblings;
pub mod tree;

pub use blocks::{Blocks, Fetch};
pub use error::ReadError;
pub use tree::Tree;
