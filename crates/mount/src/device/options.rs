//! How a device is shown.

/// Options of a device's mount.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Name of the file. The kernel shows it as the backing file of a loop device even when the mount is no longer in
    /// the tree, so it should be unique on the machine.
    pub name: String,
    /// What the mount table shows as the source.
    pub source: String,
    /// Nothing can be written.
    pub read_only: bool,
    /// Reads that are under way at once. Each is a thread, because [`protect::Block`] waits for its disk.
    pub readers: usize,
    /// Writes that are under way at once; the others wait in memory.
    pub writers: usize,
    /// Largest read or write in bytes. The kernel splits larger ones.
    pub max_request_bytes: u32,
    /// Requests that the kernel sends before it waits for answers. A loop device has up to 128, and each can become two
    /// here. If the number is too small, writes that wait keep reads in the kernel.
    pub max_background: u16,
}

impl DeviceOptions {
    /// A writable device.
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> DeviceOptions {
        DeviceOptions {
            name: name.into(),
            source: source.into(),
            read_only: false,
            readers: 32,
            writers: 16,
            max_request_bytes: 128 << 10,
            max_background: 256,
        }
    }

    /// Memory that writes may use while they wait, bytes. A loop device never needs more.
    pub(super) fn write_bytes(&self) -> u64 {
        u64::from(self.max_request_bytes) * u64::from(self.max_background)
    }
}
