//! A device that takes no write without a lease.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Lease;
use crate::device::Device;

/// A device that is written only while its user has the claim. A sync of something written succeeds only if the claims
/// are read after it and the own one still stands: what was acknowledged was durable before another host could take the
/// log. That holds on any clock, also on one that stood still because a hypervisor paused the machine.
pub struct Fenced {
    device: Arc<dyn Device>,
    lease: Arc<Lease>,
    /// Writes that have ended.
    written: AtomicU64,
    /// Those of them that were durable while the claim stood.
    confirmed: AtomicU64,
}

impl Fenced {
    /// Puts a fence before a device.
    pub fn new(device: Arc<dyn Device>, lease: Arc<Lease>) -> Fenced {
        Fenced {
            device,
            lease,
            written: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
        }
    }

    /// A sync during a write need not have made it durable, so the next one must not count it as confirmed.
    fn counted(&self, written: io::Result<()>) -> io::Result<()> {
        self.written.fetch_add(1, Ordering::SeqCst);
        written
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
        self.counted(self.device.write(offset, from))
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.lease.check()?;
        self.counted(self.device.zero(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.lease.check()?;
        let written = self.written.load(Ordering::SeqCst);
        self.device.sync()?;
        if self.confirmed.load(Ordering::SeqCst) >= written {
            return self.lease.check();
        }
        self.lease.confirm()?;
        self.confirmed.fetch_max(written, Ordering::SeqCst);
        Ok(())
    }
}
