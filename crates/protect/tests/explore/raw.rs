//! A raw disk: no log, no map. It shows that the explorer finds what a device without protection does wrong.

use std::sync::Arc;

use protect::BlockError;
use sim::device::{Machine, SimDevice};
use wal::Device;

use crate::subject::{Attach, Subject};

/// The device `D` of a machine, as it is.
pub struct RawDisk {
    /// Makes durable what an earlier session left, before the first read.
    pub syncs_at_attach: bool,
}

struct Attached(Arc<SimDevice>);

impl Attach for RawDisk {
    fn attach(&self, machine: &Machine) -> Result<Box<dyn Subject>, String> {
        let device = machine.device("D");
        if self.syncs_at_attach {
            device.sync().map_err(|error| error.to_string())?;
        }
        Ok(Box::new(Attached(device)))
    }
}

fn failed(source: std::io::Error) -> BlockError {
    let device = "data device";
    BlockError::Io { device, source }
}

impl Subject for Attached {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.0.write(offset, bytes).map_err(failed)
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.0.zero(offset, bytes).map_err(failed)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.0.read(offset, into).map_err(failed)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        self.0.sync().map_err(failed)
    }

    fn detach(self: Box<Self>) -> Result<(), String> {
        self.0.sync().map_err(|error| error.to_string())
    }
}
