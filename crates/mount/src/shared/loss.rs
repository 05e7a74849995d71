//! Why bytes that programs wrote are not in the log.

use crate::fuse::Errno;

/// Why bytes are not in the log.
#[derive(Debug, Clone)]
pub struct Loss {
    /// For people.
    pub why: String,
    /// For programs.
    pub errno: Errno,
}
