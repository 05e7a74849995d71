//! What a collection did, and why it may not have removed anything.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use store::StoreError;

use super::HostError;
use crate::blocks;
use crate::collect::needed::Unjudged;

/// What a collection did.
#[derive(Debug, Clone)]
pub struct Collected {
    /// When it ended.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// The first position of the log that was in the window, and the last.
    pub window: (u64, u64),
    /// Snapshots and checkpoints that were kept beside it.
    pub pins: u64,
    /// Blocks that are needed.
    pub marked_blocks: u64,
    /// Blocks of content, and of old folds, that are needed and are not here.
    pub lost_blocks: u64,
    /// Blocks that were removed.
    pub removed_blocks: u64,
    /// Space that they had, bytes.
    pub removed_bytes: u64,
    /// Segments that are damaged, and stay as they are.
    pub damaged_segments: u64,
    /// Why it did not end. What it has removed by then nobody needs.
    pub hindered: Option<Arc<Uncollected>>,
}

/// Why blocks are not removed.
#[derive(Debug, thiserror::Error)]
pub enum Uncollected {
    /// The server stops.
    #[error("the server stops")]
    Stopped,
    /// The walk took longer than clients rely on blocks. The next one begins anew.
    #[error("the walk took longer than half of the retention")]
    Late,
    /// Something that is needed cannot be read.
    #[error("{what}: {why}")]
    Unsure {
        /// What needs it.
        what: String,
        /// What cannot be read, and why.
        why: String,
    },
    /// The blocks or the log cannot be read or written.
    #[error(transparent)]
    Failed(#[from] HostError),
}

impl From<blocks::Error> for Uncollected {
    fn from(error: blocks::Error) -> Self {
        Uncollected::Failed(error.into())
    }
}

impl From<StoreError> for Uncollected {
    fn from(error: StoreError) -> Self {
        Uncollected::Failed(error.into())
    }
}

impl From<Unjudged> for Uncollected {
    fn from(unjudged: Unjudged) -> Self {
        let what = format!("the entry at {}", unjudged.position);
        let why = unjudged.why;
        Uncollected::Unsure { what, why }
    }
}
