//! What the explorer drives: a block device on a simulated machine, and how a restarted machine attaches it.

use protect::BlockError;
use sim::device::Machine;

/// An attached device, driven by one thread.
pub trait Subject {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BlockError>;
    fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), BlockError>;
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BlockError>;
    fn flush(&mut self) -> Result<(), BlockError>;

    /// Takes one stage of the background work with this number. False: there is nothing to do.
    fn step(&mut self, _actor: usize) -> bool {
        false
    }

    /// Number of kinds of background work.
    fn actors(&self) -> usize {
        0
    }

    /// What it has reported about devices that lie.
    fn alarms(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes that went through the log.
    fn log_end(&self) -> u64 {
        0
    }

    /// Ends the session in order. The data device then is what a raw disk would be.
    fn detach(self: Box<Self>) -> Result<(), String>;
}

/// Attaches the device of a machine, after a crash too.
pub trait Attach {
    /// # Errors
    /// The device is refused.
    fn attach(&self, machine: &Machine) -> Result<Box<dyn Subject>, String>;
}
