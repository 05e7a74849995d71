//! The interface between a protected device and its front ends (FUSE file, NBD).

use std::io;

use rustix::io::Errno;

/// A block device. Calls come from many threads and wait as long as the work takes: a write waits while too much is
/// unsettled, so a front end must keep threads for reads that writes cannot use up.
///
/// Offsets and lengths are multiples of [`sector_bytes`](Block::sector_bytes). Writes are not durable before
/// [`flush`](Block::flush) returns. Calls on ranges that overlap have no order unless one began after the other ended.
pub trait Block: Send + Sync {
    /// Length in bytes.
    fn bytes(&self) -> u64;

    /// The logical sector in bytes: 512 or 4096.
    fn sector_bytes(&self) -> u32;

    /// Fills `into` from `offset`, all of it or none.
    ///
    /// # Errors
    /// [`BlockError::Integrity`] where no right bytes can be had.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError>;

    /// Writes all of `from` at `offset`, or nothing.
    ///
    /// # Errors
    /// As for any call.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError>;

    /// As [`read`](Block::read), if that waits for no device and no lock that is held long: a front end calls it on a
    /// thread that serves other requests too. `false`: nothing was done.
    ///
    /// # Errors
    /// As [`read`](Block::read).
    fn read_at_once(&self, offset: u64, into: &mut [u8]) -> Result<bool, BlockError> {
        let _ = (offset, into);
        Ok(false)
    }

    /// As [`write`](Block::write), if that waits for no device and no space. `false`: nothing was done.
    ///
    /// # Errors
    /// As [`write`](Block::write).
    fn write_at_once(&self, offset: u64, from: &[u8]) -> Result<bool, BlockError> {
        let _ = (offset, from);
        Ok(false)
    }

    /// Makes the range read as zeros.
    ///
    /// # Errors
    /// As for any call.
    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError>;

    /// Makes durable what was written by calls that have returned. Costs one sync of the log.
    ///
    /// # Errors
    /// As for any call. What was written since the last success may be lost.
    fn flush(&self) -> Result<(), BlockError>;
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The data device does not have what was written to it, and neither does the log.
    #[error("block {block} (at offset {offset}) is not what was written to it")]
    Integrity {
        /// Number of the block of 4 KiB.
        block: u64,
        /// Where it begins on the data device, in bytes.
        offset: u64,
    },
    /// A device failed.
    #[error("{device} failed")]
    Io {
        /// Which device.
        device: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The device takes no more writes, because an earlier one could not be made durable.
    #[error("read-only: {why}")]
    ReadOnly {
        /// What happened.
        why: String,
    },
    /// The request is beyond the end or not aligned to sectors.
    #[error("{bytes} bytes at {offset} are outside the device or not whole sectors")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The device is being detached.
    #[error("the device is detached")]
    Detached,
}

impl BlockError {
    /// The errno for the kernel.
    pub fn errno(&self) -> i32 {
        match self {
            BlockError::Integrity { .. } | BlockError::Io { .. } | BlockError::Detached => {
                Errno::IO
            }
            BlockError::ReadOnly { .. } => Errno::ROFS,
            BlockError::Range { .. } => Errno::INVAL,
        }
        .raw_os_error()
    }
}
