//! A device: bytes that are read, written and made durable by offset. The log and its clients believe nothing that it
//! returns.

use std::io;

/// A file or block device. Calls come from several threads; calls on ranges that overlap are the caller's to order.
///
/// Offsets and lengths are multiples of [`align`](Device::align), except that the last request may end at the end
/// of the device. A call transfers all bytes or fails; after a failed write the range holds old bytes, new bytes or
/// a mixture. Nothing written is durable before [`sync`](Device::sync) returns.
pub trait Device: Send + Sync {
    /// Length in bytes. It does not change while the device is open.
    fn bytes(&self) -> u64;

    /// The physical block in bytes: a power of two, at least 512. A write of one aligned block may still tear into
    /// sectors of 512 bytes at a power cut.
    fn align(&self) -> u32;

    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// The system's error. A range beyond the end is [`io::ErrorKind::UnexpectedEof`].
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from` at `offset`.
    ///
    /// # Errors
    /// The system's error. Nothing is written beyond the end.
    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Makes the range read as zeros. Durable after [`sync`](Device::sync), like a write; where the device can,
    /// without storing zeros.
    ///
    /// # Errors
    /// The system's error.
    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// The system's error. What was written since the last success may be lost, even if a later sync succeeds.
    fn sync(&self) -> io::Result<()>;
}
