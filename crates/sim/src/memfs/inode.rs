//! One inode of the file system in memory: type, attributes, extended attributes; and the names of a
//! directory. Relies on [`super::content`] for files.

use std::collections::BTreeMap;

use bytes::Bytes;
use mount::fuse::request::SetXattr;
use mount::fuse::{Error, FileAttr, FileType, INodeNo, Timestamp};

use super::content::{Content, PAGE_BYTES};

/// Extended attributes of one file, names and values together, bytes.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// The type of an inode, with its content.
#[derive(Debug)]
pub enum Node {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory(Directory),
    /// A symbolic link and its target.
    Symlink(Bytes),
    /// A device, FIFO or socket.
    Special(FileType),
}

/// One file, under however many names.
#[derive(Debug)]
pub struct Inode {
    /// Type and content.
    pub node: Node,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) links: u32,
    pub(super) lookups: u64,
    pub(super) opens: u64,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
}

/// Names of a directory. Positions only grow, so a listing that goes on after a change shows every
/// entry that stayed exactly once.
#[derive(Debug)]
pub struct Directory {
    pub(super) parent: u64,
    positions: BTreeMap<Vec<u8>, u64>,
    pub(super) entries: BTreeMap<u64, (Vec<u8>, u64)>,
    last_position: u64,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Directory {
        Directory {
            parent,
            positions: BTreeMap::new(),
            entries: BTreeMap::new(),
            // After those of `.` and `..`.
            last_position: 2,
        }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        let position = self.positions.get(name)?;
        self.entries.get(position).map(|(_, inode)| *inode)
    }

    pub(super) fn insert(&mut self, name: &[u8], inode: u64) {
        self.last_position += 1;
        self.positions.insert(name.to_vec(), self.last_position);
        self.entries
            .insert(self.last_position, (name.to_vec(), inode));
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(position) = self.positions.remove(name) {
            self.entries.remove(&position);
        }
    }

    /// Points an existing name elsewhere; its position stays.
    pub(super) fn replace(&mut self, name: &[u8], inode: u64) {
        let position = self.positions.get(name);
        if let Some(entry) = position.and_then(|position| self.entries.get_mut(position)) {
            entry.1 = inode;
        }
    }
}

/// Owner, mode and device number of a new file.
#[derive(Debug, Clone, Copy)]
pub struct Creation {
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory's set-group-id bit gives its own.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
}

impl Inode {
    pub(super) fn new(node: Node, creation: &Creation) -> Inode {
        let now = Timestamp::now();
        Inode {
            links: match node {
                Node::Directory(_) => 2,
                _ => 1,
            },
            node,
            mode: (creation.mode & 0o7777) as u16,
            uid: creation.uid,
            gid: creation.gid,
            rdev: creation.rdev,
            atime: now,
            mtime: now,
            ctime: now,
            lookups: 0,
            opens: 0,
            xattrs: BTreeMap::new(),
        }
    }

    /// Content changed now.
    pub fn modified(&mut self) {
        self.mtime = Timestamp::now();
        self.ctime = self.mtime;
    }

    /// Attributes changed now.
    pub(super) fn changed(&mut self) {
        self.ctime = Timestamp::now();
    }

    /// Its type.
    pub fn kind(&self) -> FileType {
        match &self.node {
            Node::File(_) => FileType::RegularFile,
            Node::Directory(_) => FileType::Directory,
            Node::Symlink(_) => FileType::Symlink,
            Node::Special(kind) => *kind,
        }
    }

    /// What `stat` shows.
    pub fn attributes(&self, number: u64) -> FileAttr {
        let (size, pages) = match &self.node {
            Node::File(content) => (content.size(), content.pages()),
            Node::Directory(directory) => (directory.entries.len() as u64, 0),
            Node::Symlink(target) => (target.len() as u64, 0),
            Node::Special(_) => (0, 0),
        };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: pages * (PAGE_BYTES / 512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            kind: self.kind(),
            perm: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: PAGE_BYTES as u32,
        }
    }

    /// Value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Result<Bytes, Error> {
        check_xattr(name)?;
        let value = self.xattrs.get(name);
        value.cloned().ok_or(Error::NoSuchAttribute)
    }

    /// Names of the extended attributes, each ended by a NUL.
    pub fn xattr_names(&self) -> Vec<u8> {
        let names = self.xattrs.keys();
        names.flat_map(|name| [name, &b"\0"[..]].concat()).collect()
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Error> {
        check_xattr(name)?;
        if value.len() > MAX_XATTR_BYTES {
            return Err(Error::AttributeTooLarge);
        }
        match (how, self.xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(Error::AlreadyExists),
            (SetXattr::Replace, false) => return Err(Error::NoSuchAttribute),
            _ => {}
        }
        // As on other file systems, there is room for so much of them in each file.
        let others = self.xattrs.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if used + name.len() + value.len() > MAX_XATTR_BYTES {
            return Err(Error::NoSpace);
        }
        let value = Bytes::copy_from_slice(value);
        self.xattrs.insert(name.to_vec(), value);
        self.changed();
        Ok(())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, name: &[u8]) -> Result<(), Error> {
        check_xattr(name)?;
        self.xattrs.remove(name).ok_or(Error::NoSuchAttribute)?;
        self.changed();
        Ok(())
    }
}

/// POSIX access control lists are not supported, so they must be refused and not stored.
fn check_xattr(name: &[u8]) -> Result<(), Error> {
    if name.starts_with(b"system.") {
        Err(Error::NotSupported)
    } else {
        Ok(())
    }
}
