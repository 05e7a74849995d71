//! What a client gives to the block server at once, and what it is told.

use trust::Record;
use wal::Mark;

use super::Session;
use super::error::Error;

/// Called with the result of a batch, on the thread that made it durable: keep it short.
pub type Done = Box<dyn FnOnce(Result<Receipt, Error>) + Send>;

/// Blocks and records of the orderer that become durable together: all of them or none.
pub struct Batch {
    /// The session that stores the blocks.
    pub session: Session,
    /// The blocks.
    pub blocks: Vec<Record>,
    /// The orderer's records, which are opaque here.
    pub entries: Vec<wal::Record>,
}

/// What became of a batch. Everything in it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// For each block, whether the server did not have it.
    pub stored: Vec<bool>,
    /// How far the temporary log is durable.
    pub durable: Mark,
}
