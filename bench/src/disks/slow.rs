//! A disk that is as slow as many are: a file on the work directory's disk, shown by FUSE, whose reads, writes and syncs
//! take at least so long. Base and protected device lie on such files alike, and pay for FUSE alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mount::device::{DeviceOptions, Served, serve};
use protect::{Block, BlockError};
use tokio::runtime::{Builder, Runtime};
use wal::{Device, FileDevice};

/// A read or a write of a cloud volume or a SATA SSD.
const ACCESS: Duration = Duration::from_micros(300);
/// A sync of them.
const SYNC: Duration = Duration::from_millis(1);
/// How long unmounting waits for requests.
const PATIENCE: Duration = Duration::from_secs(10);
const SECTOR_BYTES: u32 = 512;

/// A file with delays. Dropping it unmounts.
pub struct Slow {
    served: Option<Served>,
    file: PathBuf,
    runtime: Runtime,
}

impl Slow {
    /// Shows `file` in the directory `place`, which is made.
    pub fn over(file: &Path, place: &Path) -> Result<Slow> {
        std::fs::create_dir_all(place)?;
        let device =
            FileDevice::open(file).with_context(|| format!("opening {}", file.display()))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let name = place
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let options = DeviceOptions::new(name.context("a directory has a name")?, "bulla-bench");
        let served = serve(Arc::new(Delayed(device)), place, options);
        let served = runtime.block_on(served).context("showing a slow disk")?;
        Ok(Slow {
            file: served.file().to_owned(),
            served: Some(served),
            runtime,
        })
    }

    /// The file with delays.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        if let Some(served) = self.served.take()
            && let Err(error) = self.runtime.block_on(served.finish(PATIENCE))
        {
            eprintln!("warning: {error:#}");
        }
    }
}

struct Delayed(FileDevice);

impl Delayed {
    /// Does it, and returns when it has taken `least`.
    fn at_least(
        &self,
        least: Duration,
        call: impl FnOnce(&FileDevice) -> std::io::Result<()>,
    ) -> Result<(), BlockError> {
        let begun = Instant::now();
        let done = call(&self.0);
        thread::sleep(least.saturating_sub(begun.elapsed()));
        done.map_err(|source| BlockError::Io {
            device: "the slow disk",
            source,
        })
    }
}

impl Block for Delayed {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.at_least(ACCESS, |file| file.read(offset, into))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.at_least(ACCESS, |file| file.write(offset, from))
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.at_least(ACCESS, |file| file.zero(offset, bytes))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.at_least(SYNC, FileDevice::sync)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_access_takes_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        let slow = Slow::over(&file, &dir.path().join("shown")).unwrap();
        let open = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(slow.file())
            .unwrap();
        let mut block = [0; 4096];
        let begun = Instant::now();
        for offset in 0..100 {
            open.read_exact_at(&mut block, offset * 4096).unwrap();
        }
        assert!(begun.elapsed() >= 100 * ACCESS && block == [7; 4096]);
        open.write_all_at(&block, 4096).unwrap();
        let begun = Instant::now();
        open.sync_data().unwrap();
        assert!(begun.elapsed() >= SYNC);
    }
}
