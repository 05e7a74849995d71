//! SFSRO (Fu, Kaashoek, Mazières 2002): a tree becomes a signed volume, and is read back as if it
//! were local and checked as if every place that holds it were hostile.
//!
//! The reader, from the outside in: [`source`] (what people type) → [`volume`] (heads, floor,
//! adoption) → [`snapshot`] (names, attributes, content of one version) → [`blocks`] (every byte
//! hashed) → `store::Replica` (believed in nothing).
//!
//! | module | what lives there |
//! |---|---|
//! | [`source`], [`volume`], [`snapshot`], [`blocks`] | the verified reader |
//! | [`state`] | the floor on disk |
//! | [`error`] | what a reader is told |
//! | [`chunk`] | where content is cut into blocks and holes |
//! | [`exclude`] | names that are left out |
//! | [`keyfile`] | the secret key on disk |
//! | `walk` | the tree in its order |
//! | [`publish_error`] | what can go wrong in publishing |

mod around;
pub mod blocks;
pub mod chunk;
pub mod error;
pub mod exclude;
pub mod keyfile;
pub mod publish_error;
pub mod snapshot;
pub mod source;
pub mod state;
pub mod volume;
mod walk;

pub use blocks::Fetch;
pub use error::ReadError;
pub use snapshot::Snapshot;
pub use source::{Location, Source};
pub use volume::{Refreshed, Volume, VolumeOptions};
