//! The kernel's requests on a device's mount: a root directory with one regular file, whose size and attributes never
//! change. Relies on `protect::Block` for everything that is stored.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use protect::{Block, BlockError};

use super::buffers::{Buffers, Lent};
use super::faults::Faults;
use super::options::DeviceOptions;
use super::work::{Pool, Room, Taken};
use crate::fuse::request::{
    Allocation, Attributes, Caller, Changes, Data, Entry, Features, Lookup, Opened, Read,
    Statistics, Write,
};
use crate::fuse::{
    AddEntry, AddName, Answer, Errno, Error, FileAttr, FileHandle, FileSystem, FileType,
    FopenFlags, INodeNo, InitFlags, Listing, LockOwner, OpenFlags, Refusal, Timestamp,
};

const ROOT: INodeNo = INodeNo(1);
const FILE: INodeNo = INodeNo(2);
/// Nothing about the file ever changes.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// Handles: how the file was opened.
const TO_READ: u64 = 1;
const TO_WRITE: u64 = 2;
/// Larger requests always go to a thread: copying them takes longer than waking it.
const AT_ONCE_BYTES: u64 = 32 << 10;
/// Buffers that are kept when no request needs them.
const KEEP_BYTES: u64 = 8 << 20;

impl Faults {
    fn refuse(&self, (operation, offset): (&'static str, u64), error: BlockError) -> DeviceError {
        self.note(operation, offset, &error);
        DeviceError::Block(error)
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum DeviceError {
    /// The request is not for this file.
    File(Error),
    /// The device refused, and has been noted by [`Faults`].
    Block(BlockError),
}

impl From<Error> for DeviceError {
    fn from(error: Error) -> DeviceError {
        DeviceError::File(error)
    }
}

impl Refusal for DeviceError {
    fn errno(&self) -> Errno {
        match self {
            DeviceError::File(error) => error.errno(),
            DeviceError::Block(error) => Errno::from_i32(error.errno()),
        }
    }
}

/// Where requests wait and run. Each pool is for calls that wait for different things: a read for a disk, a write for
/// space, FSYNC for a sync, and no call waits behind one that waits for something else.
#[derive(Debug)]
pub struct Pools {
    reads: Pool,
    writes: Pool,
    zeros: Pool,
    flushes: Pool,
}

impl Pools {
    fn all(&self) -> [&Pool; 4] {
        [&self.reads, &self.writes, &self.zeros, &self.flushes]
    }
}

/// The file system.
pub struct DeviceFile {
    block: Arc<dyn Block>,
    options: DeviceOptions,
    pools: Pools,
    buffers: Arc<Buffers>,
    write_room: Arc<Room>,
    /// Held while a part of a sector is read, changed and written.
    in_parts: Arc<Mutex<()>>,
    faults: Arc<Faults>,
    attributes: FileAttr,
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        for pool in self.pools.all() {
            pool.close();
        }
    }
}

/// The entries of the root.
pub struct Entries {
    offset: u64,
}

impl DeviceFile {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system refuses one.
    pub fn new(block: Arc<dyn Block>, options: DeviceOptions) -> std::io::Result<DeviceFile> {
        let pools = Pools {
            reads: Pool::new("device-read", options.readers)?.with_first_here(),
            writes: Pool::new("device-write", options.writers)?,
            zeros: Pool::new("device-zero", 1)?,
            flushes: Pool::new("device-flush", 1)?.with_first_here(),
        };
        Ok(DeviceFile {
            pools,
            buffers: Buffers::new(KEEP_BYTES),
            write_room: Room::new(options.write_bytes()),
            in_parts: Arc::default(),
            faults: Arc::default(),
            attributes: attributes(&*block, options.read_only),
            block,
            options,
        })
    }

    /// What failed so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Accepts no more requests, and waits for those that were accepted, until `deadline` at most. Returns how many
    /// are left.
    pub fn drain(&self, deadline: std::time::Instant) -> usize {
        for pool in self.pools.all() {
            pool.close();
        }
        let left = self.pools.all().map(|pool| pool.wait_quiet(deadline));
        left.iter().sum()
    }

    /// Runs `work` on a thread of `pool`. `at`, operation and offset, is for the log.
    fn on<T: Send + 'static>(
        &self,
        pool: &Pool,
        at: (&'static str, u64),
        work: impl FnOnce(&dyn Block) -> Result<T, BlockError> + Send + 'static,
    ) -> Answer<T, DeviceError> {
        let (block, faults, pool) = (self.block.clone(), self.faults.clone(), pool.clone());
        Answer::elsewhere(move |reply| {
            pool.run(Box::new(move || {
                let result = work(&*block);
                reply.send(result.map_err(|error| faults.refuse(at, error)));
            }));
        })
    }

    /// Whether `range` may be changed.
    fn check_change(&self, handle: FileHandle, range: &Range<u64>) -> Result<(), Error> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        if handle.0 != TO_WRITE {
            return Err(Error::BadHandle);
        }
        if range.end > self.attributes.size {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    fn is_whole_sectors(&self, range: &Range<u64>) -> bool {
        let sector = u64::from(self.block.sector_bytes());
        range.start.is_multiple_of(sector) && range.end.is_multiple_of(sector)
    }

    /// A copy of what is to be written, if there is room for it. Only programs that open the file themselves can have
    /// more under way than the kernel gives a loop device.
    fn copied(&self, data: &[u8]) -> Option<(Lent, Taken)> {
        let room = self.write_room.take(data.len() as u64)?;
        let mut copy = self.buffers.lend(data.len());
        copy.copy_from_slice(data);
        Some((copy, room))
    }

    /// Writes parts of sectors, for programs that open the file themselves: the kernel cuts their requests anywhere. Two
    /// such writes never change one sector at once.
    fn write_parts(&self, offset: u64, data: &[u8]) -> Answer<u32, DeviceError> {
        let Some((copy, room)) = self.copied(data) else {
            return Error::Busy.into();
        };
        let sector = u64::from(self.block.sector_bytes());
        let start = offset / sector * sector;
        let bytes = (offset + data.len() as u64).next_multiple_of(sector) - start;
        let (buffers, in_parts) = (self.buffers.clone(), self.in_parts.clone());
        self.on(&self.pools.writes, ("write", offset), move |block| {
            let alone = in_parts.lock().unwrap_or_else(PoisonError::into_inner);
            let mut whole = buffers.lend(bytes as usize);
            block.read(start, &mut whole)?;
            if let Some(part) = whole.get_mut((offset - start) as usize..) {
                for (into, from) in part.iter_mut().zip(&*copy) {
                    *into = *from;
                }
            }
            let written = block.write(start, &whole);
            drop((alone, room));
            written.map(|()| copy.len() as u32)
        })
    }

    fn found(&self) -> Entry {
        Entry {
            attributes: self.attributes,
            ttl: TTL,
            generation: 0,
        }
    }

    fn root(&self) -> FileAttr {
        FileAttr {
            ino: ROOT,
            size: 0,
            blocks: 0,
            kind: FileType::Directory,
            perm: 0o700,
            nlink: 2,
            ..self.attributes
        }
    }
}

impl FileSystem for DeviceFile {
    type Error = DeviceError;
    type Listing = Entries;

    fn features(&self) -> Features {
        Features {
            // Without it the kernel sends one request of the loop device at a time.
            flags: InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_PARALLEL_DIROPS,
            max_request_bytes: self.options.max_request_bytes,
            max_read_ahead_bytes: self.options.max_request_bytes,
            max_background: self.options.max_background,
        }
    }

    fn lookup(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<Lookup, DeviceError> {
        let found = if parent == ROOT && name == self.options.name.as_bytes() {
            Lookup::Found(self.found())
        } else {
            Lookup::Absent(TTL)
        };
        Answer::Now(Ok(found))
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, DeviceError> {
        let attributes = match inode {
            ROOT => self.root(),
            FILE => self.attributes,
            _ => return Error::StaleInode.into(),
        };
        Answer::Now(Ok(Attributes {
            attributes,
            ttl: TTL,
        }))
    }

    fn setattr(&self, _: &Caller, _: INodeNo, _: &Changes) -> Answer<Attributes, DeviceError> {
        Error::NotPermitted.into()
    }

    fn open(&self, _: &Caller, inode: INodeNo, flags: OpenFlags) -> Answer<Opened, DeviceError> {
        if inode != FILE {
            return Error::IsADirectory.into();
        }
        let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        if writes && self.options.read_only {
            return Error::ReadOnly.into();
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        Answer::Now(Ok(Opened {
            flags,
            ..Opened::new(if writes { TO_WRITE } else { TO_READ })
        }))
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, DeviceError> {
        let wanted = u64::from(read.size.min(self.options.max_request_bytes));
        let end = read.offset.saturating_add(wanted).min(self.attributes.size);
        if read.offset >= end {
            return Answer::Now(Ok(Data::new()));
        }
        // A program may read any range of the file. A loop device reads whole sectors.
        let sector = u64::from(self.block.sector_bytes());
        let start = read.offset / sector * sector;
        let bytes = end.next_multiple_of(sector) - start;
        let inner = (read.offset - start) as usize..(end - start) as usize;
        let at = ("read", read.offset);
        let mut buffer = self.buffers.lend(bytes as usize);
        let done = if bytes <= AT_ONCE_BYTES {
            self.block.read_at_once(start, &mut buffer)
        } else {
            Ok(false)
        };
        match done {
            Ok(true) => return Answer::Now(Ok(vec![Bytes::from_owner(buffer).slice(inner)])),
            Ok(false) => {}
            Err(error) => return Answer::Now(Err(self.faults.refuse(at, error))),
        }
        // A queue of reads holds no memory.
        drop(buffer);
        let buffers = self.buffers.clone();
        self.on(&self.pools.reads, at, move |block| {
            let mut buffer = buffers.lend(bytes as usize);
            block.read(start, &mut buffer)?;
            Ok(vec![Bytes::from_owner(buffer).slice(inner)])
        })
    }

    fn write(&self, _: &Caller, write: &Write<'_>) -> Answer<u32, DeviceError> {
        let (offset, bytes) = (write.offset, write.data.len());
        let Some(end) = offset.checked_add(bytes as u64) else {
            return Error::FileTooLarge.into();
        };
        if let Err(error) = self.check_change(write.handle, &(offset..end)) {
            return error.into();
        }
        let at = ("write", offset);
        if !self.is_whole_sectors(&(offset..end)) {
            return self.write_parts(offset, write.data);
        }
        let done = if bytes as u64 <= AT_ONCE_BYTES {
            self.block.write_at_once(offset, write.data)
        } else {
            Ok(false)
        };
        match done {
            Ok(true) => return Answer::Now(Ok(bytes as u32)),
            Ok(false) => {}
            Err(error) => return Answer::Now(Err(self.faults.refuse(at, error))),
        }
        let Some((copy, room)) = self.copied(write.data) else {
            return Error::Busy.into();
        };
        self.on(&self.pools.writes, at, move |block| {
            let written = block.write(offset, &copy);
            drop((copy, room));
            // All or an error: the loop device fails a write that is short.
            written.map(|()| bytes as u32)
        })
    }

    fn flush(
        &self,
        by: &Caller,
        inode: INodeNo,
        handle: FileHandle,
        _: LockOwner,
    ) -> Answer<(), DeviceError> {
        match handle.0 {
            TO_WRITE => self.fsync(by, inode, handle, false),
            _ => Answer::Now(Ok(())),
        }
    }

    /// Never answered ENOSYS: the kernel would send no FSYNC any more and tell every caller that it worked.
    fn fsync(&self, _: &Caller, _: INodeNo, _: FileHandle, _: bool) -> Answer<(), DeviceError> {
        self.on(&self.pools.flushes, ("flush", 0), |block| block.flush())
    }

    fn fallocate(
        &self,
        _: &Caller,
        _: INodeNo,
        handle: FileHandle,
        range: Range<u64>,
        what: Allocation,
    ) -> Answer<(), DeviceError> {
        if let Allocation::Allocate { .. } = what {
            return Error::NotSupported.into();
        }
        if let Err(error) = self.check_change(handle, &range) {
            return error.into();
        }
        if !self.is_whole_sectors(&range) {
            return Error::InvalidArgument.into();
        }
        self.on(&self.pools.zeros, ("zero", range.start), move |block| {
            block.zero(range.start, range.end - range.start)
        })
    }

    fn readdir(
        &self,
        _: &Caller,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
    ) -> Answer<Entries, DeviceError> {
        Answer::Now(Ok(Entries { offset }))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, DeviceError> {
        Answer::Now(Ok(Statistics {
            blocks: self.attributes.size / 512,
            free: 0,
            available: 0,
            files: 1,
            free_files: 0,
            best_bytes: DISCARDED_BYTES,
            longest_name: 255,
            unit_bytes: 512,
        }))
    }
}

impl Listing<DeviceFile> for Entries {
    fn names(self, file_system: &DeviceFile, add: AddName<'_>) {
        let name = file_system.options.name.as_bytes();
        let all: [(&[u8], INodeNo, FileType); 3] = [
            (b".", ROOT, FileType::Directory),
            (b"..", ROOT, FileType::Directory),
            (name, FILE, FileType::RegularFile),
        ];
        for (next, (name, inode, kind)) in (1..).zip(all) {
            if next > self.offset && add(next, name, inode, kind) {
                return;
            }
        }
    }

    /// Not asked for: [`DeviceFile::features`] has no READDIRPLUS.
    fn entries(self, _: &DeviceFile, _: AddEntry<'_>) {}
}

/// The smallest hole that a file system above is told to free: Linux takes the block size of `statfs` as the granularity
/// of discards of a loop device.
const DISCARDED_BYTES: u32 = 4096;
/// `st_blksize`: the size at which programs read and write, bytes.
const READ_BYTES: u32 = 128 << 10;

fn attributes(block: &dyn Block, read_only: bool) -> FileAttr {
    let now = Timestamp::now();
    FileAttr {
        ino: FILE,
        size: block.bytes(),
        blocks: block.bytes() / 512,
        atime: now,
        mtime: now,
        ctime: now,
        kind: FileType::RegularFile,
        perm: if read_only { 0o400 } else { 0o600 },
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: READ_BYTES,
    }
}
