//! The bytes of answers. An answer of fixed size needs no allocation, and bytes of a file are not copied.

use std::time::Duration;

use bytes::Bytes;

use crate::fuse::request::{Attributes, Data, Entry, Lock, LockKind, Lookup, Opened, Statistics};
use crate::fuse::types::{Errno, FileAttr, FileType, INodeNo, Timestamp};

/// Bytes of `fuse_entry_out` and `fuse_open_out`, the largest answer of fixed size.
const MOST_FIXED_BYTES: usize = ENTRY_BYTES + 16;
/// Bytes of `fuse_entry_out`.
const ENTRY_BYTES: usize = 40 + 88;
/// Linux bounds the value of an extended attribute, and a list of names.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// What follows the header of an answer.
#[derive(Debug)]
pub enum Body {
    /// A structure.
    Fixed(Fixed),
    /// Entries of a directory.
    Entries(Vec<u8>),
    /// The target of a link, or extended attributes.
    Bytes(Bytes),
    /// Bytes of a file.
    Pieces(Data),
}

/// A structure, field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    bytes: [u8; MOST_FIXED_BYTES],
    length: usize,
}

impl Fixed {
    fn new() -> Fixed {
        Fixed {
            bytes: [0; MOST_FIXED_BYTES],
            length: 0,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// `MOST_FIXED_BYTES` is enough for every structure of this file.
    fn put<const N: usize>(mut self, field: [u8; N]) -> Fixed {
        self.bytes[self.length..self.length + N].copy_from_slice(&field);
        self.length += N;
        self
    }

    fn u16(self, field: u16) -> Fixed {
        self.put(field.to_ne_bytes())
    }

    fn u32(self, field: u32) -> Fixed {
        self.put(field.to_ne_bytes())
    }

    fn u64(self, field: u64) -> Fixed {
        self.put(field.to_ne_bytes())
    }

    /// `fuse_attr`
    fn attributes(self, of: &FileAttr) -> Fixed {
        let seconds = |time: Timestamp| time.seconds as u64;
        self.u64(of.ino.0)
            .u64(of.size)
            .u64(of.blocks)
            .u64(seconds(of.atime))
            .u64(seconds(of.mtime))
            .u64(seconds(of.ctime))
            .u32(of.atime.nanoseconds)
            .u32(of.mtime.nanoseconds)
            .u32(of.ctime.nanoseconds)
            .u32(of.kind.mode() | u32::from(of.perm))
            .u32(of.nlink)
            .u32(of.uid)
            .u32(of.gid)
            .u32(of.rdev)
            .u32(of.blksize)
            .u32(0)
    }

    /// `fuse_entry_out`
    fn entry(self, entry: &Entry) -> Fixed {
        let (ttl, inode) = (entry.ttl, entry.attributes.ino);
        self.u64(inode.0)
            .u64(entry.generation)
            .u64(ttl.as_secs())
            .u64(ttl.as_secs())
            .u32(ttl.subsec_nanos())
            .u32(ttl.subsec_nanos())
            .attributes(&entry.attributes)
    }

    /// `fuse_open_out`
    fn opened(self, opened: &Opened) -> Fixed {
        self.u64(opened.handle.0).u32(opened.flags.bits()).u32(0)
    }
}

/// The answer that only says that it worked.
pub fn empty() -> Body {
    Body::Fixed(Fixed::new())
}

/// LOOKUP. Number 0 says that the name does not exist, and that this may be cached.
pub fn lookup(found: &Lookup) -> Body {
    match found {
        Lookup::Found(found) => entry(found),
        Lookup::Absent(ttl) => Body::Fixed(absent(*ttl)),
    }
}

fn absent(ttl: Duration) -> Fixed {
    let mut absent = Fixed::new()
        .u64(0)
        .u64(0)
        .u64(ttl.as_secs())
        .u64(0)
        .u32(ttl.subsec_nanos())
        .u32(0);
    absent.length = ENTRY_BYTES;
    absent
}

/// MKNOD, MKDIR, SYMLINK, LINK
pub fn entry(entry: &Entry) -> Body {
    Body::Fixed(Fixed::new().entry(entry))
}

/// GETATTR, SETATTR
pub fn attributes(of: &Attributes) -> Body {
    let fixed = Fixed::new()
        .u64(of.ttl.as_secs())
        .u32(of.ttl.subsec_nanos())
        .u32(0);
    Body::Fixed(fixed.attributes(&of.attributes))
}

/// OPEN, OPENDIR
pub fn opened(opened: &Opened) -> Body {
    Body::Fixed(Fixed::new().opened(opened))
}

/// CREATE
pub fn created(entry: &Entry, opened: &Opened) -> Body {
    Body::Fixed(Fixed::new().entry(entry).opened(opened))
}

/// WRITE, and COPY_FILE_RANGE
pub fn written(count: u32) -> Body {
    Body::Fixed(Fixed::new().u32(count).u32(0))
}

/// COPY_FILE_RANGE_64
pub fn copied(count: u32) -> Body {
    Body::Fixed(Fixed::new().u64(count.into()))
}

/// LSEEK
pub fn offset(offset: i64) -> Body {
    Body::Fixed(Fixed::new().u64(offset as u64))
}

/// STATFS
pub fn statistics(of: &Statistics) -> Body {
    let mut fixed = Fixed::new()
        .u64(of.blocks)
        .u64(of.free)
        .u64(of.available)
        .u64(of.files)
        .u64(of.free_files)
        .u32(of.best_bytes)
        .u32(of.longest_name)
        .u32(of.unit_bytes)
        .u32(0);
    // `spare`
    fixed.length += 6 * 4;
    Body::Fixed(fixed)
}

/// GETLK
pub fn lock(lock: &Lock) -> Body {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    Body::Fixed(
        Fixed::new()
            .u64(*lock.range.start())
            .u64(*lock.range.end())
            .u32(kind as u32)
            .u32(lock.pid),
    )
}

/// GETXATTR and LISTXATTR: a `size` of 0 asks for the length alone.
///
/// # Errors
/// E2BIG if Linux takes no such value, ERANGE if it is longer than `size`.
pub fn xattr(value: Bytes, size: u32) -> Result<Body, Errno> {
    match value.len() {
        length if length > MAX_XATTR_BYTES => Err(Errno::E2BIG),
        length if size == 0 => Ok(Body::Fixed(Fixed::new().u32(length as u32).u32(0))),
        length if length > size as usize => Err(Errno::ERANGE),
        _ => Ok(Body::Bytes(value)),
    }
}

/// What FUSE_INIT agrees on; see [`super::init`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// 7
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Bytes.
    pub max_read_ahead: u32,
    /// All 64 flags.
    pub flags: u64,
    /// Background requests at once.
    pub max_background: u16,
    /// From how many on the kernel holds back.
    pub congestion_threshold: u16,
    /// Largest write, bytes.
    pub max_write: u32,
    /// Largest request, pages.
    pub max_pages: u16,
}

/// INIT
pub fn init(of: &Init) -> Fixed {
    let mut fixed = Fixed::new()
        .u32(of.major)
        .u32(of.minor)
        .u32(of.max_read_ahead)
        .u32(of.flags as u32)
        .u16(of.max_background)
        .u16(of.congestion_threshold)
        .u32(of.max_write)
        // Times are exact to the nanosecond.
        .u32(1)
        .u16(of.max_pages)
        .u16(0)
        .u32((of.flags >> 32) as u32);
    // `max_stack_depth`, `request_timeout` and reserved ones
    fixed.length += 7 * 4;
    fixed
}

/// An answer to READDIR or READDIRPLUS as it grows.
#[derive(Debug)]
pub struct Directory {
    bytes: Vec<u8>,
    room: usize,
}

impl Directory {
    /// An answer of at most `room` bytes.
    pub fn new(room: usize) -> Directory {
        Directory {
            bytes: Vec::new(),
            room,
        }
    }

    /// Adds a name, and the position that follows it. `true`: it does not fit.
    pub fn add_name(&mut self, next: u64, name: &[u8], inode: INodeNo, kind: FileType) -> bool {
        self.add(&[], next, name, inode, kind)
    }

    /// Adds a name with its attributes.
    pub fn add_entry(&mut self, next: u64, name: &[u8], entry: &Entry) -> bool {
        let (inode, kind) = (entry.attributes.ino, entry.attributes.kind);
        let fixed = Fixed::new().entry(entry);
        self.add(fixed.as_slice(), next, name, inode, kind)
    }

    /// `fuse_dirent`, after `fuse_entry_out` or nothing.
    fn add(
        &mut self,
        entry: &[u8],
        next: u64,
        name: &[u8],
        inode: INodeNo,
        kind: FileType,
    ) -> bool {
        let whole = (entry.len() + 24 + name.len()).next_multiple_of(8);
        let length = self.bytes.len() + whole;
        if length > self.room {
            return true;
        }
        self.bytes.extend_from_slice(entry);
        self.bytes.extend(inode.0.to_ne_bytes());
        self.bytes.extend(next.to_ne_bytes());
        self.bytes.extend((name.len() as u32).to_ne_bytes());
        self.bytes.extend((kind.mode() >> 12).to_ne_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(length, 0);
        false
    }

    /// The answer.
    pub fn finish(self) -> Body {
        Body::Entries(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::types::{FileHandle, FopenFlags};

    fn entry_of(inode: u64) -> Entry {
        let time = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        Entry {
            attributes: FileAttr {
                ino: INodeNo(inode),
                size: 1 << 40,
                blocks: 8,
                atime: time(i64::MIN, 1),
                mtime: time(-1, 2),
                ctime: time(i64::MAX, 3),
                kind: FileType::Directory,
                perm: 0o7755,
                nlink: 3,
                uid: 1000,
                gid: 100,
                rdev: 5,
                blksize: 4096,
            },
            ttl: Duration::new(6, 7),
            generation: 8,
        }
    }

    fn bytes(body: &Body) -> &[u8] {
        match body {
            Body::Fixed(fixed) => fixed.as_slice(),
            Body::Entries(bytes) => bytes,
            Body::Bytes(bytes) => bytes,
            Body::Pieces(_) => panic!("bytes of a file"),
        }
    }

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn entry_has_the_layout_of_fuse_entry_out() {
        let body = entry(&entry_of(9));
        let bytes = bytes(&body);
        assert_eq!(bytes.len(), 128);
        let quads: Vec<u64> = (0..4).map(|at| u64_at(bytes, 8 * at)).collect();
        assert_eq!(quads, [9, 8, 6, 6]);
        assert_eq!((u32_at(bytes, 32), u32_at(bytes, 36)), (7, 7));
        let quads: Vec<i64> = (5..11).map(|at| u64_at(bytes, 8 * at) as i64).collect();
        assert_eq!(quads, [9, 1 << 40, 8, i64::MIN, -1, i64::MAX]);
        let words: Vec<u32> = (22..32).map(|at| u32_at(bytes, 4 * at)).collect();
        assert_eq!(words, [1, 2, 3, 0o47755, 3, 1000, 100, 5, 4096, 0]);
    }

    #[test]
    fn structures_have_their_lengths() {
        let opened_of = Opened {
            handle: FileHandle(4),
            flags: FopenFlags::FOPEN_KEEP_CACHE,
        };
        let attributes_of = Attributes {
            attributes: entry_of(9).attributes,
            ttl: Duration::ZERO,
        };
        let statistics_of = Statistics {
            blocks: 1,
            free: 2,
            available: 3,
            files: 4,
            free_files: 5,
            best_bytes: 6,
            longest_name: 7,
            unit_bytes: 8,
        };
        let lock_of = Lock {
            range: 0..=u64::MAX,
            kind: LockKind::Write,
            pid: 6,
        };
        let absent_of = Lookup::Absent(Duration::from_secs(1));
        for (body, length) in [
            (empty(), 0),
            (lookup(&absent_of), 128),
            (attributes(&attributes_of), 104),
            (opened(&opened_of), 16),
            (created(&entry_of(9), &opened_of), 144),
            (written(1), 8),
            (copied(1), 8),
            (offset(-1), 8),
            (statistics(&statistics_of), 80),
            (lock(&lock_of), 24),
        ] {
            assert_eq!(bytes(&body).len(), length, "{body:?}");
        }
    }

    #[test]
    fn entries_are_added_as_long_as_they_fit_and_padded() {
        // 24 bytes and three of the name, padded.
        let mut names = Directory::new(64 + 7);
        let mut add = || names.add_name(1, b"abc", INodeNo(2), FileType::Symlink);
        assert!(!add() && !add() && add());
        let body = names.finish();
        assert_eq!(bytes(&body).len(), 64);
        assert_eq!((u64_at(bytes(&body), 0), u64_at(bytes(&body), 8)), (2, 1));
        assert_eq!(
            (u32_at(bytes(&body), 16), u32_at(bytes(&body), 20)),
            (3, 10)
        );
        assert_eq!(bytes(&body)[24..32], *b"abc\0\0\0\0\0");

        let mut entries = Directory::new(128 + 32 + 159);
        let mut add = || entries.add_entry(1, b"a", &entry_of(2));
        assert!(!add() && add());
        assert_eq!(bytes(&entries.finish()).len(), 160);
    }

    #[test]
    fn extended_attribute_that_does_not_fit_is_erange() {
        let value = Bytes::from_static(b"value");
        let length = xattr(value.clone(), 0).unwrap();
        assert_eq!(bytes(&length), [5_u32, 0].map(u32::to_ne_bytes).concat());
        assert_eq!(bytes(&xattr(value.clone(), 5).unwrap()), b"value");
        assert_eq!(xattr(value, 4).map(|_| ()), Err(Errno::ERANGE));
        let long = Bytes::from(vec![0; MAX_XATTR_BYTES + 1]);
        assert_eq!(xattr(long, 0).map(|_| ()), Err(Errno::E2BIG));
    }
}
