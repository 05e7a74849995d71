//! What lies on the device in two copies: what a scrub says of a wrong one, and how it is written again.

use crate::buffer::Buffer;
use crate::device::Device;

/// What has two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// A superblock.
    Superblock,
    /// The key slots.
    KeySlots,
}

/// A copy that is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyDefect {
    /// What it is a copy of.
    pub of: Copied,
    /// Where it lies on the device, in bytes.
    pub offset: u64,
    /// Whether it is right now. If not, there is no right copy, or it cannot be written.
    pub is_mended: bool,
}

/// Whether the device has these bytes. They are read twice before they count as wrong.
pub(crate) fn has(device: &dyn Device, offset: u64, bytes: &[u8]) -> bool {
    let mut found = Buffer::zeroed(bytes.len());
    (0..2).any(|_| device.read(offset, &mut found).is_ok() && *found == *bytes)
}

/// Writes a copy, and reads it back. False if the device does not have it then.
pub(crate) fn rewrite(device: &dyn Device, offset: u64, bytes: &[u8]) -> bool {
    device.write(offset, bytes).is_ok() && has(device, offset, bytes)
}
