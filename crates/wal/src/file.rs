//! A regular file or block device as a [`Device`]: O_DIRECT, so that what is read comes from the device and what was
//! written is on it after fdatasync; exclusive, so that no second process uses it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::buffer::{Buffer, PAGE_BYTES};
use crate::device::Device;

/// Bytes that are copied at once where a caller's memory is not aligned.
const COPY_BYTES: usize = 1 << 20;

/// A file or block device that this process alone uses.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    bytes: u64,
    align: u32,
    direct: bool,
    block: bool,
    /// The file again, with the page cache: writes less than a block at the end of a file that has such an end.
    cached: Option<File>,
}

impl FileDevice {
    /// Opens an existing file or block device for reading and writing.
    ///
    /// # Errors
    /// The system's error: [`io::ErrorKind::WouldBlock`] or [`io::ErrorKind::ResourceBusy`] if another process uses
    /// it, [`io::ErrorKind::InvalidInput`] if it is neither a file nor a block device.
    pub fn open(path: &Path) -> io::Result<FileDevice> {
        let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
        let block = kind == FileType::BlockDevice;
        if !block && kind != FileType::RegularFile {
            let why = "neither a regular file nor a block device";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // For a block device, O_EXCL without O_CREAT excludes mounts and other exclusive users (open(2)).
        let exclusive = if block { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | exclusive;
        let (file, direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => (File::from(file), true),
            Err(Errno::INVAL) => (
                File::from(rustix::fs::open(path, flags, Mode::empty())?),
                false,
            ),
            Err(error) => return Err(error.into()),
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if !direct {
            tracing::warn!(
                path = %path.display(),
                "the file system does not allow O_DIRECT: reads come from the page cache"
            );
        }
        let bytes = rustix::fs::seek(&file, SeekFrom::End(0))?;
        let cached = if direct && !bytes.is_multiple_of(PAGE_BYTES as u64) {
            let flags = flags.difference(OFlags::EXCL);
            Some(File::from(rustix::fs::open(path, flags, Mode::empty())?))
        } else {
            None
        };
        Ok(FileDevice {
            cached,
            file,
            bytes,
            align: PAGE_BYTES as u32,
            direct,
            block,
        })
    }

    /// The first range at or after `offset` that may hold anything but zeros: of a sparse file, without its holes.
    /// Nothing if only zeros follow.
    ///
    /// # Errors
    /// The system's error.
    pub fn data_after(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        if offset >= self.bytes {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A block device, or a file system that knows of no holes.
            Err(Errno::INVAL) => return Ok(Some(offset..self.bytes)),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
        Ok((start < self.bytes).then(|| start..end.min(self.bytes)))
    }

    /// When the content of a file was last changed, in nanoseconds; nothing for a block device.
    ///
    /// # Errors
    /// The system's error.
    pub fn modified(&self) -> io::Result<Option<i128>> {
        let stat = rustix::fs::fstat(&self.file)?;
        let nanoseconds =
            i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        Ok((!self.block).then_some(nanoseconds))
    }

    fn whole_blocks(&self, bytes: usize) -> usize {
        if self.direct {
            bytes / self.align as usize * self.align as usize
        } else {
            bytes
        }
    }

    /// Reads what lies behind the last whole block: a direct read of a block ends at the end of the file.
    fn read_tail(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        let mut block = Buffer::zeroed(self.align as usize);
        loop {
            match self.file.read_at(&mut block, offset) {
                Ok(got) if got >= into.len() => break,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        into.copy_from_slice(&block[..into.len()]);
        Ok(())
    }

    /// Whether requests bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn align(&self) -> u32 {
        self.align
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        check_range(self, offset, into.len() as u64)?;
        let (blocks, tail) = into.split_at_mut(self.whole_blocks(into.len()));
        let tail_at = offset + blocks.len() as u64;
        if !self.direct || Buffer::is_aligned(blocks, self.align as usize) {
            self.file.read_exact_at(blocks, offset)?;
        } else {
            let mut copy = Buffer::zeroed(blocks.len().min(COPY_BYTES));
            let mut at = offset;
            for part in blocks.chunks_mut(COPY_BYTES) {
                let copy = &mut copy[..part.len()];
                self.file.read_exact_at(copy, at)?;
                part.copy_from_slice(copy);
                at += part.len() as u64;
            }
        }
        self.read_tail(tail_at, tail)
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        check_range(self, offset, from.len() as u64)?;
        let (blocks, tail) = from.split_at(self.whole_blocks(from.len()));
        if !self.direct || Buffer::is_aligned(blocks, self.align as usize) {
            self.file.write_all_at(blocks, offset)?;
        } else {
            let mut copy = Buffer::zeroed(blocks.len().min(COPY_BYTES));
            let mut at = offset;
            for part in blocks.chunks(COPY_BYTES) {
                let copy = &mut copy[..part.len()];
                copy.copy_from_slice(part);
                self.file.write_all_at(copy, at)?;
                at += part.len() as u64;
            }
        }
        let cached = self.cached.as_ref().unwrap_or(&self.file);
        cached.write_all_at(tail, offset + blocks.len() as u64)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        check_range(self, offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // On a block device the kernel zeroes without discarding (BLKZEROOUT): a discard may bring back old bytes.
        let mode = if self.block {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        };
        Ok(rustix::fs::fallocate(&self.file, mode, offset, bytes)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn check_range(device: &FileDevice, offset: u64, bytes: u64) -> io::Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= device.bytes => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
