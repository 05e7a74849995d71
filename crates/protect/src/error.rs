//! Why a device cannot be attached.

use std::io;

use trust::Reject;
use wal::LogError;

use crate::engine::EngineError;
use crate::map::MapError;
use crate::replay::Contradiction;

/// Why a device cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The log is damaged, put back, another volume's, or in use.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log protects a device of another length.
    #[error("the log protects a device of {expected} bytes; this one has {found}")]
    OtherDevice {
        /// Bytes of the device that was enrolled.
        expected: u64,
        /// Bytes of this one.
        found: u64,
    },
    /// None of the blocks that were read as a sample is what the log says.
    #[error("the log protects another device: {sampled} blocks were read, and all of them differ")]
    OtherContent {
        /// Blocks that were read.
        sampled: usize,
    },
    /// More blocks than a failing disk explains are not what the log says: this may be another device.
    #[error(
        "the device is not as the log says: of {sampled} blocks that were compared, {changed} have something else"
    )]
    ChangedContent {
        /// Blocks that were compared.
        sampled: usize,
        /// Blocks that the log does not explain.
        changed: usize,
    },
    /// A later version of bulla wrote the log.
    #[error("the log has a form that this version of bulla does not know")]
    Format(#[source] Reject),
    /// The log contradicts itself, although it is authentic: a defect of the program that wrote it.
    #[error("the log contradicts itself")]
    Contradiction(#[from] Contradiction),
    /// The map cannot be read or written.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The data device failed.
    #[error("the data device cannot be {action}")]
    Data {
        /// `written` or `synced`.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The system has no threads.
    #[error("cannot start a thread")]
    Threads(#[source] io::Error),
    /// The session could not begin.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
