//! Why a device cannot be enrolled.

use std::io;

use wal::{LogError, VolumeId};

use super::Found;
use crate::map::MapError;

/// Why an enrolment did not end.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    /// The data device is empty, too large, or its length is not in whole sectors.
    #[error(
        "a device of {bytes} bytes cannot be protected: not whole sectors, empty, or too large"
    )]
    Shape {
        /// Its length.
        bytes: u64,
    },
    /// The log needs more space.
    #[error("the log needs {needed} bytes, and its device has {found}")]
    TooSmall {
        /// Bytes that the log needs.
        needed: u64,
        /// Bytes of its device.
        found: u64,
    },
    /// The log's device is not empty.
    #[error("the log's device {}", shown(found))]
    Occupied {
        /// What it is.
        found: Found,
    },
    /// The enrolment began with another size of the ring.
    #[error("this enrolment began with a ring of {ring_bytes} bytes")]
    OtherRing {
        /// The size.
        ring_bytes: u64,
    },
    /// The key is not the one of the enrolment, or the record of it was changed.
    #[error("the key does not open the unfinished enrolment of volume {volume}")]
    WrongKey {
        /// The volume that is being made.
        volume: VolumeId,
    },
    /// The data device was written to since the enrolment began.
    #[error("the data device was changed since its enrolment began; enrol it anew")]
    Changed,
    /// The data device cannot be read.
    #[error("the data device cannot be read at offset {offset}")]
    Data {
        /// Where, in bytes.
        offset: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The log's device failed.
    #[error("the log's device cannot be {what}")]
    LogDevice {
        /// `read` or `written`.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The log cannot be made.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The map cannot be written, or what an earlier run wrote has changed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The caller ended it.
    #[error("stopped; {done} bytes of the device are done")]
    Stopped {
        /// Bytes that the next run does not read again.
        done: u64,
    },
}

impl EnrolError {
    pub(super) fn log_read(source: io::Error) -> EnrolError {
        EnrolError::LogDevice {
            what: "read",
            source,
        }
    }

    pub(super) fn log_write(source: io::Error) -> EnrolError {
        EnrolError::LogDevice {
            what: "written",
            source,
        }
    }

    pub(super) fn data(offset: u64) -> impl Fn(io::Error) -> EnrolError {
        move |source| EnrolError::Data { offset, source }
    }
}

fn shown(found: &Found) -> String {
    match found {
        Found::Nothing => "holds nothing".to_owned(),
        Found::Data => "holds data".to_owned(),
        Found::Log(volume) => format!("is the log of volume {volume}"),
        Found::Unfinished(unfinished) => {
            format!(
                "holds the unfinished enrolment of volume {}",
                unfinished.volume
            )
        }
    }
}
