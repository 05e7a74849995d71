//! The parts of a server's directory as they lie on the disk, for its check and its repair. Unlike a start, to open them
//! needs none of them to be right.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use store::StoreError;
use store::disk::{Disk, Local, Lock, io_error};
use trust::volume_id::VolumeId;
use wal::Device as LogDevice;

use super::HostError;
use super::below;
use super::directory::{BLOCKS, LEAVES, RING, open_ring, ring_key, take_lock};
use super::outside::ReadOnly;
use crate::blocks::peek::Peeked;

/// See the head of this file.
pub(crate) struct Parts {
    /// The directory.
    pub root: Arc<dyn Disk>,
    /// The repository of blocks.
    pub blocks: Arc<dyn Disk>,
    /// The temporary log, or why it cannot be opened.
    pub ring: Result<Arc<dyn LogDevice>, Arc<StoreError>>,
    /// The file of the temporary log. None: it is no file.
    pub ring_path: Option<PathBuf>,
    /// No server works here.
    pub _lock: Option<Lock>,
}

impl Parts {
    /// Opens and locks a directory.
    pub fn open(dir: &Path) -> Result<Parts, HostError> {
        let disk = Local::new(dir);
        let lock = take_lock(&disk)?;
        let ring = open_ring(&dir.join(RING)).map(|ring| Arc::new(ring) as Arc<dyn LogDevice>);
        Ok(Parts::of(dir, disk, ring, Some(lock)))
    }

    /// Opens a copy, which is only read. One that cannot be written needs no lock.
    pub fn open_copy(dir: &Path) -> Result<Parts, HostError> {
        let disk = Local::new(dir);
        let lock = match take_lock(&disk) {
            Ok(lock) => Some(lock),
            Err(error) if is_read_only(&error) => None,
            Err(error) => return Err(error),
        };
        let ring = ReadOnly::open(&disk).map(|ring| Arc::new(ring) as Arc<dyn LogDevice>);
        Ok(Parts::of(dir, disk, ring, lock))
    }

    fn of(
        dir: &Path,
        disk: Local,
        ring: io::Result<Arc<dyn LogDevice>>,
        lock: Option<Lock>,
    ) -> Parts {
        let ring = ring.map_err(|error| Arc::new(io_error(&disk, RING, error)));
        Parts {
            root: Arc::new(disk),
            blocks: Arc::new(Local::new(dir.join(BLOCKS))),
            ring,
            ring_path: Some(dir.join(RING)),
            _lock: lock,
        }
    }

    /// The part that has the log of an epoch.
    pub fn disk(&self, epoch: u64) -> Arc<dyn Disk> {
        below::disk(&self.root, epoch)
    }

    /// What the temporary log holds.
    pub fn peek(&self, volume: VolumeId) -> Result<Peeked, HostError> {
        match &self.ring {
            Ok(ring) => Ok(Peeked::read(ring, &ring_key(volume))?),
            Err(error) => Err(HostError::Disk(Arc::clone(error))),
        }
    }
}

/// Whether a directory has the parts of a server's directory, whatever its format file says.
pub(super) fn has_parts(dir: &Path) -> bool {
    let policies = dir.join(store::names::POLICY_DIR);
    policies.is_dir()
        && dir.join(LEAVES).is_dir()
        && dir.join(BLOCKS).is_dir()
        && dir.join(RING).is_file()
}

fn is_read_only(error: &HostError) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let HostError::Disk(error) = error else {
        return false;
    };
    matches!(&**error, StoreError::Io { source, .. }
        if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem))
}
