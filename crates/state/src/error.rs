//! What can go wrong with the state directory.

/// The state directory cannot be read or written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("state directory: {path}: {cause}")]
pub struct StateError {
    /// The file.
    pub path: String,
    /// The reason, in the system's words where it has one.
    pub cause: String,
}
