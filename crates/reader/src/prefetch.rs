//! Prefetch: blocks that a reader is likely to want next.

pub(crate) mod directory;
pub(crate) mod readahead;
