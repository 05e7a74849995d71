//! The data device as an enrolment sees it.

use std::io;
use std::ops::Range;

use wal::{Device, FileDevice};

/// A data device that can say more about its bytes.
pub trait Source: Device {
    /// The first range at or after `offset` that may hold anything but zeros; nothing if only zeros follow.
    ///
    /// # Errors
    /// The system's error.
    fn data_after(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        Ok((offset < self.bytes()).then(|| offset..self.bytes()))
    }

    /// A value that changes when the content changes, if the device has one.
    ///
    /// # Errors
    /// The system's error.
    fn changed(&self) -> io::Result<Option<i128>> {
        Ok(None)
    }
}

impl Source for FileDevice {
    fn data_after(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        FileDevice::data_after(self, offset)
    }

    fn changed(&self) -> io::Result<Option<i128>> {
        self.modified()
    }
}
