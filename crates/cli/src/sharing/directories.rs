//! Directories that the other side owns: a device reads blocks in the directory of a server, and the repair of a server
//! reads what a device remembers. Neither library knows the other one, so the two meet here.

use std::path::Path;
use std::time::{Duration, Instant};

use ::share::client::{DirectoryBlocks, DirectoryError};
use ::share::disk::Remembered;
use ::share::home::Home;
use share_server::host::{DeviceLog, DeviceMemory, Outside};
use store::StoreError;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust::{Handle, Record};
use trust_shared::note::SignedNote;

use ordering::roster::Product;
use ordering::scheme::Leaf;

/// How long an engine may keep a device's memory.
const PATIENCE: Duration = Duration::from_secs(2);

struct ServerBlocks(Outside);

impl DirectoryBlocks for ServerBlocks {
    fn get(&mut self, want: &[Handle]) -> Result<(Vec<Record>, u64), StoreError> {
        self.0.get(want)
    }
}

/// Opens the directory of the server of a volume, for [`::share::client::OtherPlace`].
pub fn open_server(
    path: &Path,
    volume: VolumeId,
) -> Result<Box<dyn DirectoryBlocks>, DirectoryError> {
    Ok(Box::new(ServerBlocks(Outside::open(path, volume)?)))
}

struct Memory(Home);

impl DeviceMemory for Memory {
    fn policies(&self) -> Result<Vec<Signed>, String> {
        self.0.signed_policies().map_err(|why| why.to_string())
    }

    fn log(&self, epoch: u64) -> Result<Option<Box<dyn DeviceLog>>, String> {
        let found = self.0.remembered(epoch, Instant::now() + PATIENCE);
        let found = found.map_err(|why| why.to_string())?;
        Ok(found.map(|log| Box::new(Log(log)) as Box<dyn DeviceLog>))
    }
}

struct Log(Remembered);

impl DeviceLog for Log {
    fn end(&self) -> u64 {
        self.0.end()
    }

    fn leaf(&self, at: u64) -> Option<Leaf<Product>> {
        self.0.leaf(at)
    }

    fn notes(&self) -> &[SignedNote] {
        self.0.notes()
    }
}

/// Opens what a device remembers, if the directory is that of a device, for [`share_server::host::RepairSource`].
pub fn open_device(path: &Path) -> Result<Option<Box<dyn DeviceMemory>>, String> {
    let home = Home::at(path).map_err(|why| why.to_string())?;
    Ok(home.map(|home| Box::new(Memory(home)) as Box<dyn DeviceMemory>))
}
