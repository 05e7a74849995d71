//! The blocks in a server's directory, for a program that is not its server: nothing is locked and nothing is written, and
//! a server may run there meanwhile. Nothing that comes from here is verified.
//!
//! Most blocks are in the repository. The newest are in the temporary log only, until the server has moved them; the log is
//! read when the repository lacks a block.

use std::collections::HashMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use store::disk::{Disk, DiskFile, Local, damaged, read_file};
use store::{Repository, StoreError, names};
use trust::statement::{Job, MAX_SIGNED_BYTES, Signed};
use trust::volume_id::VolumeId;
use trust::{Frame, Handle, Record};
use wal::{Lsn, PAGE_BYTES, Recovery};

use super::HostError;
use super::directory::{BLOCKS, RING, is_shared, ring_key};
use crate::blocks::record::{BLOCKS as CLIENT, Body, STORED};

/// Blocks of the temporary log that are remembered. Those beyond are not found.
const MAX_BLOCKS: usize = 1 << 20;

/// See the head of this file.
pub struct Outside {
    volume: VolumeId,
    repository: Repository,
    newest: Newest,
}

/// The temporary log.
enum Newest {
    /// In this directory.
    Unread(Arc<dyn Disk>),
    /// It cannot be read.
    None,
    Read(Box<Temporary>),
}

/// The temporary log, as it was when it was read.
struct Temporary {
    recovery: Recovery,
    /// The first page of the record that a block is in, and the block's offset and length in the record's pages.
    blocks: HashMap<Handle, (Lsn, u32, u32)>,
}

impl Outside {
    /// Opens the directory of the server of this volume.
    ///
    /// # Errors
    /// [`HostError::NotShared`], [`HostError::OtherVolume`], [`HostError::Policy`], [`HostError::Disk`].
    pub fn open(dir: &Path, volume: VolumeId) -> Result<Outside, HostError> {
        let path = || dir.to_owned();
        if !is_shared(dir)? {
            return Err(HostError::NotShared { path: path() });
        }
        let disk = Local::new(dir);
        let genesis = names::policy(0);
        let bytes = read_file(&disk, &genesis, MAX_SIGNED_BYTES)?;
        let bytes = bytes.ok_or_else(|| damaged(&disk, &genesis, "is missing"))?;
        let genesis = Signed::from_bytes_of(Job::Shared, &bytes).map_err(HostError::Policy)?;
        if VolumeId::from_bytes(genesis.statement().hash()) != volume {
            return Err(HostError::OtherVolume { path: path() });
        }
        Ok(Outside {
            volume,
            repository: Repository::open(dir.join(BLOCKS))?,
            newest: Newest::Unread(Arc::new(disk)),
        })
    }

    /// The blocks of `want` that are here, each once, and how many of them are damaged. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn get(&mut self, want: &[Handle]) -> Result<(Vec<Record>, u64), StoreError> {
        let (mut found, mut damaged) = (Vec::new(), 0);
        let mut lacking = Vec::new();
        for handle in want {
            // One by one: a record that is damaged must not hide others.
            match read(&self.repository, handle) {
                Ok(Some(record)) => found.push(record),
                Ok(None) => lacking.push(*handle),
                Err(error @ StoreError::Io { .. }) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "a block of a server's directory cannot be read");
                    damaged += 1;
                    lacking.push(*handle);
                }
            }
        }
        if !lacking.is_empty()
            && let Some(newest) = self.newest()
        {
            let newest = lacking.iter().filter_map(|handle| newest.get(handle));
            found.extend(newest);
        }
        Ok((found, damaged))
    }

    fn newest(&mut self) -> Option<&Temporary> {
        if let Newest::Unread(disk) = &self.newest {
            self.newest = match Temporary::read(&**disk, self.volume) {
                Ok(temporary) => Newest::Read(Box::new(temporary)),
                Err(why) => {
                    let path = disk.path(RING);
                    let path = path.display();
                    tracing::warn!(%path, %why, "the newest blocks of a server's directory cannot be read");
                    Newest::None
                }
            };
        }
        match &self.newest {
            Newest::Read(temporary) => Some(temporary),
            Newest::Unread(_) | Newest::None => None,
        }
    }
}

fn read(repository: &Repository, handle: &Handle) -> Result<Option<Record>, StoreError> {
    let mut found = None;
    repository.read_blocking(std::slice::from_ref(handle), 0, &mut |region| {
        found = Some(region.bytes);
        ControlFlow::Break(())
    })?;
    let record = found.map(|mut bytes| Record::take(&mut bytes)).transpose();
    let disk = repository.disk_shared();
    Ok(record
        .map_err(|why| damaged(&*disk, "", &why.to_string()))?
        .flatten())
}

impl Temporary {
    /// Reads which blocks the log holds. What is damaged ends it.
    fn read(disk: &dyn Disk, volume: VolumeId) -> Result<Temporary, String> {
        let device = Arc::new(ReadOnly::open(disk).map_err(|e| e.to_string())?);
        let options = wal::OpenOptions {
            cut_at_error: true,
            ..wal::OpenOptions::default()
        };
        let recovery = wal::open(device, &ring_key(volume), None, options);
        let recovery = recovery.map_err(|e| e.to_string())?;
        let mut blocks = HashMap::new();
        for entry in recovery.cursor(CLIENT) {
            let Ok(entry) = entry else { break };
            let pages = entry.digests.len().saturating_mul(PAGE_BYTES);
            let body = Body::decode(&entry.body, pages);
            let Some(body) = body.ok().filter(|_| entry.kind == STORED) else {
                continue;
            };
            for block in &body.blocks {
                if blocks.len() < MAX_BLOCKS {
                    blocks.insert(block.handle, (entry.payload, block.offset, block.length));
                }
            }
        }
        Ok(Temporary { recovery, blocks })
    }

    /// A block. Damage of another block on the same page does not matter.
    fn get(&self, handle: &Handle) -> Option<Record> {
        let (payload, offset, length) = *self.blocks.get(handle)?;
        let (begin, end) = (offset as usize, offset as usize + length as usize);
        let first = begin / PAGE_BYTES;
        let mut pages = Vec::new();
        for number in first..end.div_ceil(PAGE_BYTES) {
            let lsn = Lsn(payload.0.checked_add((number * PAGE_BYTES) as u64)?);
            let page = self.recovery.read_unverified(lsn).ok()?;
            pages.extend_from_slice(&page);
        }
        let from = begin - first * PAGE_BYTES;
        let frame = pages.get(from..from + length as usize)?;
        let frame = Frame::parse(bytes::Bytes::copy_from_slice(frame)).ok()?;
        Some(Record {
            handle: *handle,
            frame,
        })
    }
}

/// A file as a device that cannot be written.
pub(super) struct ReadOnly {
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

impl ReadOnly {
    /// The temporary log of a server's directory.
    pub fn open(disk: &dyn Disk) -> io::Result<ReadOnly> {
        let file = disk.open(RING)?;
        let bytes = file.len_bytes()?;
        Ok(ReadOnly { file, bytes })
    }
}

impl wal::Device for ReadOnly {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn align(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        match self.file.read_at(into, offset)? == into.len() {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// What is read here is hashed, so it need not be durable.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
