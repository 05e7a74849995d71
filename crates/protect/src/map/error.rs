//! What can go wrong in a map.

use std::io;
use std::ops::Range;

/// Why the map cannot answer or store.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A page is not the one that was written. Blocks below it cannot be read until all of them have been replaced.
    #[error(
        "page {index} of level {level} of the map (at offset {offset} of the log's device) is not what was written; \
         it covers the blocks {} to {}", blocks.start, blocks.end.saturating_sub(1)
    )]
    Page {
        /// 0 for a leaf.
        level: u8,
        /// Number of the page in its level.
        index: u64,
        /// Where it lies on the device, in bytes.
        offset: u64,
        /// The blocks of the data device that depend on it.
        blocks: Range<u64>,
    },
    /// The device failed.
    #[error("the map's page at offset {offset} of the log's device cannot be {what}")]
    Io {
        /// `read` or `written`.
        what: &'static str,
        /// Where the request began, in bytes.
        offset: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The blocks are beyond the end of the data device.
    #[error("blocks {} to {} are not blocks of a device of {blocks}", range.start, range.end)]
    Range {
        /// What was asked for.
        range: Range<u64>,
        /// Blocks of the device.
        blocks: u64,
    },
    /// No map has this number of blocks or begins at this place.
    #[error("a map of {blocks} blocks cannot lie there")]
    Shape {
        /// Blocks of the data device.
        blocks: u64,
    },
    /// The area is too small or beyond the device's end.
    #[error("the map needs an area of {needed} bytes, and {area} bytes are there")]
    Area {
        /// Bytes that the map needs.
        needed: u64,
        /// Bytes of the area that the device has.
        area: u64,
    },
    /// The device writes in larger units than a page.
    #[error("the log's device has blocks of {align} bytes; at most 4096 are supported")]
    Align {
        /// The device's physical block.
        align: u32,
    },
    /// A digest below 2^64, which means something else in a map. `DigestKey` yields none.
    #[error("a digest below 2^64 cannot be stored in a map")]
    Digest,
    /// Both slots of a page are in use until it is known which root is durable.
    #[error("the map takes no more changes before the last written root is durable")]
    Uncommitted,
}
