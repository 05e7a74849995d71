//! A device that takes no write without a lease.

use std::io;
use std::sync::Arc;

use super::Lease;
use crate::device::Device;

/// A device that is written only while its user has the claim. A sync succeeds only if the claim still stood after it:
/// what was acknowledged was durable before another host could take the log.
pub struct Fenced {
    device: Arc<dyn Device>,
    lease: Arc<Lease>,
}

impl Fenced {
    /// Puts a fence before a device.
    pub fn new(device: Arc<dyn Device>, lease: Arc<Lease>) -> Fenced {
        Fenced { device, lease }
    }
}

impl Device for Fenced {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn align(&self) -> u32 {
        self.device.align()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.lease.check()?;
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.lease.check()?;
        self.device.zero(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.lease.check()?;
        self.device.sync()?;
        self.lease.check()
    }
}
