//! Destinations of new blocks: a repository, or a counter in a dry run.

use std::collections::HashSet;

use store::StoreError;
use store::repository::Repository;
use store::writer::Writer;
use trust::{Handle, Record};

use crate::publish_error::PublishError;

/// After this many new bytes the blocks are committed without a head. A publication that is interrupted
/// finds them again when it is repeated.
const CHECKPOINT_BYTES: u64 = 1 << 30;

/// Takes new blocks.
pub(crate) trait Destination {
    /// Whether it has a block already.
    fn contains(&self, handle: &Handle) -> Result<bool, StoreError>;
    /// Adds a block unless it has it.
    fn append(&mut self, record: &Record) -> Result<(), PublishError>;
}

/// A repository that is being written.
pub(crate) struct Writing {
    pub writer: Writer,
    /// Bytes of segments and index committed so far.
    pub committed_bytes: u64,
}

impl Destination for Writing {
    fn contains(&self, handle: &Handle) -> Result<bool, StoreError> {
        self.writer.contains(handle)
    }

    fn append(&mut self, record: &Record) -> Result<(), PublishError> {
        self.writer.append(record)?;
        if self.writer.pending_bytes() >= CHECKPOINT_BYTES {
            let committed = self.writer.checkpoint()?;
            self.committed_bytes += committed.segment_bytes + committed.index_bytes;
        }
        Ok(())
    }
}

/// Writes nothing, and counts what would be written.
pub(crate) struct Counting {
    pub repository: Option<Repository>,
    pub new: HashSet<Handle>,
    pub bytes: u64,
}

impl Destination for Counting {
    fn contains(&self, handle: &Handle) -> Result<bool, StoreError> {
        match &self.repository {
            _ if self.new.contains(handle) => Ok(true),
            Some(repository) => repository.contains(handle),
            None => Ok(false),
        }
    }

    fn append(&mut self, record: &Record) -> Result<(), PublishError> {
        if !self.contains(&record.handle)? {
            self.new.insert(record.handle);
            self.bytes += record.len() as u64;
        }
        Ok(())
    }
}
