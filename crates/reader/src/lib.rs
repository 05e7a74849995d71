//! The verified reader: the only way from untrusted to verified bytes (SFSRO 4.2).
//!
//! From the outside in: [`Tree`] (names, attributes and content below one root) → [`Prefetcher`]
//! (fetches what readers are likely to want next) → [`Blocks`] (hashes, decodes and caches every
//! block) → `store::mirrors::Mirrors` (untrusted). The reader knows no floor, no policy and no head:
//! its caller decides which root is read.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::{Duration, Instant};
//! use reader::{Blocks, Fetch, Prefetcher, ReadError, Spawner, Tree};
//!
//! # async fn read(
//! #     hasher: trust::Hasher,
//! #     mirrors: Arc<store::mirrors::Mirrors>,
//! #     root: trust::Handle<trust::InodeBlock>,
//! # ) -> Result<(), ReadError> {
//! let blocks = Arc::new(Blocks::new(hasher, mirrors, 64 << 20, None));
//! let spawner = Spawner::on(tokio::runtime::Handle::current());
//! let how = Fetch::Until(Instant::now() + Duration::from_secs(30));
//! let tree = Tree::open(Prefetcher::new(blocks, spawner), &root, how).await?;
//! if let Some(file) = tree.follow(b"docs/README", how).await? {
//!     let first = tree.read(&file, 0, 4096, how).await?;
//!     println!("{} bytes", first.concat().len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | module | what lives there |
//! |---|---|
//! | `tree` | look-ups, listings, reads, extended attributes |
//! | `ahead` | whole trees, or chosen parts, fetched before a reader comes to them |
//! | `prefetch` | readahead of sequential readers; prefetch of directories that are read through |
//! | `entries`, `extents` | walks of the two kinds of trees: directories, and contents of files |
//! | `blocks` | verified blocks, fetched once for concurrent readers; the [`Overlay`] of unstored ones |
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
mod tree;

pub use ahead::{Ahead, Reads, Selection};
pub use blocks::{
    Blocks, Counters, Decode, DecodedBlock, Fetch, Overlay, OverlayError, Position, Upload, now,
};
pub use error::ReadError;
pub use prefetch::Prefetcher;
pub use read_around::Expect;
pub use spawner::Spawner;
pub use tree::{Runs, Tree};
