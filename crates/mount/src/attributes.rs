//! Converts the inode of a volume to the attributes of `stat` (docs/semantics.md, *Attributes*).

use trust::inode::{Content, FileKind, Inode, Time};

use crate::fuse::{FileAttr, FileType, INodeNo, Timestamp};

/// `st_blksize`: the size at which reading is cheap, bytes.
pub const BLOCK_BYTES: u32 = 128 << 10;
/// Unit of `statfs`, bytes: small, so that a small volume does not look ten times as large.
pub const STATFS_UNIT_BYTES: u32 = 4096;

/// Owner of files for which none was published, and whether published owners are used.
#[derive(Debug, Clone, Copy)]
pub struct Owners {
    /// Numeric user.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Published owners are used.
    pub published: bool,
}

impl Owners {
    /// All files belong to the user of this process.
    pub fn own() -> Owners {
        Owners {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            published: false,
        }
    }
}

/// The attributes of `inode` under the number `number`.
pub fn of(inode: &Inode, number: u64, owners: &Owners) -> FileAttr {
    let mtime = time(inode.mtime);
    let owner = inode.owner.filter(|_| owners.published);
    FileAttr {
        ino: INodeNo(number),
        size: inode.size,
        blocks: blocks(inode),
        atime: mtime,
        mtime,
        // Of published volumes there is none: it would not survive a copy.
        ctime: inode.ctime.map_or(mtime, time),
        kind: kind(inode.kind()),
        perm: inode.mode,
        nlink: links(inode),
        uid: owner.map_or(owners.uid, |o| o.uid),
        gid: owner.map_or(owners.gid, |o| o.gid),
        rdev: device(&inode.content),
        blksize: BLOCK_BYTES,
    }
}

/// The type of a file in the terms of FUSE.
pub fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A directory shows one link, which tells tools that its subdirectories are not counted.
fn links(inode: &Inode) -> u32 {
    match inode.kind() {
        FileKind::Directory => 1,
        _ => inode.links.max(1),
    }
}

/// Units of 512 bytes. Only a walk of the whole array tree would show the holes, so a file with holes counts
/// as one without; `SEEK_HOLE` finds them.
fn blocks(inode: &Inode) -> u64 {
    match inode.kind() {
        FileKind::Regular | FileKind::Symlink => inode.size.div_ceil(512),
        _ => 0,
    }
}

fn device(content: &Content) -> u32 {
    match content {
        Content::CharDevice { major, minor } | Content::BlockDevice { major, minor } => {
            encode_device(*major, *minor)
        }
        _ => 0,
    }
}

/// The kernel's `new_encode_dev`: twelve bits of major, twenty of minor.
fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

fn time(time: Time) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanos,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_encoded_as_the_kernel_does() {
        let expected = rustix::fs::makedev(8, 0x12345);
        let (major, minor) = (rustix::fs::major(expected), rustix::fs::minor(expected));
        assert_eq!(encode_device(major, minor), 0x45 | 8 << 8 | 0x123 << 20);
    }
}
