//! Settings of a loop device that a protected device cannot use.

use std::fmt;

/// A setting that is not as a protected device needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Requests go one by one through the page cache, and what is read may come from there.
    PageCache,
    /// The logical sector is not that of the device below.
    Sector {
        /// As it is, bytes.
        is: u32,
        /// As it should be, bytes.
        should: u32,
    },
    /// The loop device begins in the file or ends before it.
    Partial,
    /// The loop device goes away with the last program that closes it.
    Autoclear,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::PageCache => f.write_str("direct I/O is off"),
            Fault::Sector { is, should } => {
                write!(f, "the logical sector is {is} bytes instead of {should}")
            }
            Fault::Partial => f.write_str("it shows only a part of the file"),
            Fault::Autoclear => f.write_str("it is detached when the last program closes it"),
        }
    }
}
