//! SFSRO: a tree becomes a signed volume, and a volume is read as if it were local and checked as
//! if every place that holds it were hostile.
//!
//! The reader, from the outside in: [`source`] (what people type) → [`volume`] (heads, floor,
//! adoption) → [`snapshot`] (names, attributes, content of one version) → [`blocks`] (every byte
//! hashed) → `store::Replica` (believed in nothing). [`state`] keeps the floor.

pub mod blocks;
pub mod error;
pub mod snapshot;
pub mod source;
pub mod state;
pub mod volume;

pub use blocks::Fetch;
pub use error::ReadError;
pub use snapshot::Snapshot;
pub use source::{Location, Source};
pub use volume::{Refreshed, Volume, VolumeOptions};
