//! The verified reader: the only way from untrusted to verified bytes (SFSRO 4.2).
//!
//! From the outside in: [`Tree`] (names, attributes and content below one root) → [`Prefetcher`]
//! (fetches what readers are likely to want next) → [`Blocks`] (hashes, decodes and caches every
//! block) → `store::mirrors::Mirrors` (untrusted). The reader knows no floor, no policy and no head:
//! its caller decides which root is read.
//!
//! | module | what lives there |
//! |---|---|
//! | `tree` | look-ups, listings, reads, extended attributes |
//! | `ahead` | whole trees, or chosen parts, fetched before a reader comes to them |
//! | `prefetch` | readahead of sequential readers; prefetch of directories that are read through |
//! | `entries`, `extents` | walks of the two kinds of trees: directories, and contents of files |
//! | `blocks` | verified blocks, fetched once for concurrent readers |
//! | `spawner` | the runtime on which blocks are fetched ahead |
//! | `read_around` | how many neighbours of a block to request with it |
//! | `error` | what can go wrong with a read |

mod ahead;
mod blocks;
mod entries;
mod error;
mod extents;
mod prefetch;
mod read_around;
mod spawner;
mod tally;
mod tree;

pub use ahead::{Ahead, Here, Reads, Selection};
pub use blocks::{Blocks, Counters, Decode, DecodedBlock, Fetch, now};
pub use error::ReadError;
pub use prefetch::Prefetcher;
pub use read_around::Expect;
pub use spawner::Spawner;
pub use tally::Tally;
pub use tree::{Runs, Tree};
