//! All inodes of the file system in memory, and operations on names, without any FUSE: each is a plain
//! function with a typed error. Relies on [`super::inode`].

use std::collections::HashMap;

use bytes::Bytes;
use mount::fuse::request::{Changes, Rename};
use mount::fuse::{Error, RenameFlags, TimeOrNow, Timestamp};

use super::content::{Content, PAGE_BYTES};
use super::inode::{Creation, Directory, Inode, Node};

/// Number of the root.
pub const ROOT: u64 = 1;
/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest symbolic link, bytes.
const MAX_TARGET_BYTES: usize = 4095;
/// Largest file, bytes: what `off_t` can name.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;

/// All inodes.
#[derive(Debug)]
pub struct Tree {
    inodes: HashMap<u64, Inode>,
    last_number: u64,
    capacity_pages: u64,
}

impl Tree {
    /// A root that belongs to this process, and room for `capacity_bytes` of content.
    pub fn new(capacity_bytes: u64, uid: u32, gid: u32) -> Tree {
        let creation = Creation {
            mode: 0o755,
            uid,
            gid,
            rdev: 0,
        };
        let root = Inode::new(Node::Directory(Directory::new(ROOT)), &creation);
        Tree {
            inodes: HashMap::from([(ROOT, root)]),
            last_number: ROOT,
            capacity_pages: capacity_bytes / PAGE_BYTES,
        }
    }

    /// The inode of a number.
    pub fn get(&self, number: u64) -> Result<&Inode, Error> {
        self.inodes.get(&number).ok_or(Error::StaleInode)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, number: u64) -> Result<&mut Inode, Error> {
        self.inodes.get_mut(&number).ok_or(Error::StaleInode)
    }

    fn directory(&self, number: u64) -> Result<&Directory, Error> {
        match &self.get(number)?.node {
            Node::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    fn directory_mut(&mut self, number: u64) -> Result<&mut Directory, Error> {
        match &mut self.get_mut(number)?.node {
            Node::Directory(directory) => Ok(directory),
            _ => Err(Error::NotADirectory),
        }
    }

    /// Content of a regular file.
    pub fn content(&self, number: u64) -> Result<&Content, Error> {
        match &self.get(number)?.node {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Error::IsADirectory),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Changes content. `new_end` is how far it may reach afterwards, `range` what may take space.
    pub fn change<T>(
        &mut self,
        number: u64,
        range: std::ops::Range<u64>,
        how: impl FnOnce(&mut Content) -> T,
    ) -> Result<T, Error> {
        if range.end > MAX_FILE_BYTES {
            return Err(Error::FileTooLarge);
        }
        let missing = self.content(number)?.missing_pages(&range);
        if missing > self.free_pages() {
            return Err(Error::NoSpace);
        }
        match &mut self.get_mut(number)?.node {
            Node::File(content) => Ok(how(content)),
            _ => Err(Error::InvalidArgument),
        }
    }

    /// Pages in all, and those that are free.
    pub fn pages(&self) -> (u64, u64) {
        (self.capacity_pages, self.free_pages())
    }

    fn free_pages(&self) -> u64 {
        let used: u64 = self
            .inodes
            .values()
            .map(|inode| match &inode.node {
                Node::File(content) => content.pages(),
                _ => 0,
            })
            .sum();
        self.capacity_pages.saturating_sub(used)
    }

    /// How many inodes there are.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// The inode of a name.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<u64>, Error> {
        check_name(name)?;
        Ok(self.directory(parent)?.get(name))
    }

    /// Makes an inode under a name.
    pub fn create(
        &mut self,
        parent: u64,
        name: &[u8],
        node: Node,
        creation: &Creation,
    ) -> Result<u64, Error> {
        check_name(name)?;
        if self.directory(parent)?.get(name).is_some() {
            return Err(Error::AlreadyExists);
        }
        let above = self.get(parent)?;
        if above.links == 0 {
            return Err(Error::NotFound);
        }
        let mut inode = Inode::new(node, creation);
        if above.mode & 0o2000 != 0 {
            inode.gid = above.gid;
            if matches!(inode.node, Node::Directory(_)) {
                inode.mode |= 0o2000;
            }
        }
        let is_directory = matches!(inode.node, Node::Directory(_));
        self.last_number += 1;
        let number = self.last_number;
        self.inodes.insert(number, inode);
        self.directory_mut(parent)?.insert(name, number);
        let above = self.get_mut(parent)?;
        above.links += u32::from(is_directory);
        above.modified();
        Ok(number)
    }

    /// A directory to [`Tree::create`].
    pub fn new_directory(parent: u64) -> Node {
        Node::Directory(Directory::new(parent))
    }

    /// A symbolic link to [`Tree::create`].
    pub fn new_symlink(target: &[u8]) -> Result<Node, Error> {
        if target.len() > MAX_TARGET_BYTES {
            return Err(Error::NameTooLong);
        }
        Ok(Node::Symlink(Bytes::copy_from_slice(target)))
    }

    /// Gives a file another name.
    pub fn link(&mut self, number: u64, parent: u64, name: &[u8]) -> Result<(), Error> {
        check_name(name)?;
        if self.directory(parent)?.get(name).is_some() {
            return Err(Error::AlreadyExists);
        }
        let inode = self.get_mut(number)?;
        if matches!(inode.node, Node::Directory(_)) {
            return Err(Error::NotPermitted);
        }
        if inode.links == 0 {
            return Err(Error::NotFound);
        }
        inode.links = inode.links.checked_add(1).ok_or(Error::TooManyLinks)?;
        inode.changed();
        self.directory_mut(parent)?.insert(name, number);
        self.get_mut(parent)?.modified();
        Ok(())
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<(), Error> {
        let number = self.lookup(parent, name)?.ok_or(Error::NotFound)?;
        if matches!(self.get(number)?.node, Node::Directory(_)) {
            return Err(Error::IsADirectory);
        }
        self.directory_mut(parent)?.remove(name);
        self.get_mut(parent)?.modified();
        self.drop_link(number)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, parent: u64, name: &[u8]) -> Result<(), Error> {
        let number = self.lookup(parent, name)?.ok_or(Error::NotFound)?;
        if !self.directory(number)?.entries.is_empty() {
            return Err(Error::DirectoryNotEmpty);
        }
        self.directory_mut(parent)?.remove(name);
        let above = self.get_mut(parent)?;
        above.links -= 1;
        above.modified();
        self.drop_link(number)
    }

    /// Moves or exchanges names.
    pub fn rename(&mut self, rename: &Rename<'_>) -> Result<(), Error> {
        let (parent, new_parent) = (rename.parent.0, rename.new_parent.0);
        let moved = self.lookup(parent, rename.name)?.ok_or(Error::NotFound)?;
        let target = self.lookup(new_parent, rename.new_name)?;
        self.refuse_circle(moved, new_parent)?;
        match (rename.flags, target) {
            (RenameFlags::RENAME_NOREPLACE, Some(_)) => return Err(Error::AlreadyExists),
            (RenameFlags::RENAME_NOREPLACE, None) => {}
            (RenameFlags::RENAME_EXCHANGE, Some(target)) => {
                self.refuse_circle(target, parent)?;
                return self.exchange(rename, moved, target);
            }
            (RenameFlags::RENAME_EXCHANGE, None) => return Err(Error::NotFound),
            (flags, _) if !flags.is_empty() => return Err(Error::InvalidArgument),
            // Both names belong to one file: POSIX keeps both.
            (_, Some(target)) if target == moved => return Ok(()),
            (_, Some(target)) => self.remove_target(new_parent, rename.new_name, moved, target)?,
            (_, None) => {}
        }
        if self.get(new_parent)?.links == 0 {
            return Err(Error::NotFound);
        }
        self.directory_mut(parent)?.remove(rename.name);
        self.directory_mut(new_parent)?
            .insert(rename.new_name, moved);
        self.moved(moved, parent, new_parent)?;
        self.get_mut(parent)?.modified();
        self.get_mut(new_parent)?.modified();
        self.get_mut(moved)?.changed();
        Ok(())
    }

    /// A directory must not come below itself.
    fn refuse_circle(&self, moved: u64, new_parent: u64) -> Result<(), Error> {
        let mut at = new_parent;
        loop {
            if at == moved {
                return Err(Error::InvalidArgument);
            }
            if at == ROOT {
                return Ok(());
            }
            at = self.directory(at)?.parent;
        }
    }

    fn remove_target(
        &mut self,
        parent: u64,
        name: &[u8],
        moved: u64,
        target: u64,
    ) -> Result<(), Error> {
        let moved_is_directory = matches!(self.get(moved)?.node, Node::Directory(_));
        match (&self.get(target)?.node, moved_is_directory) {
            (Node::Directory(_), true) => self.rmdir(parent, name),
            (Node::Directory(_), false) => Err(Error::IsADirectory),
            (_, true) => Err(Error::NotADirectory),
            (_, false) => self.unlink(parent, name),
        }
    }

    fn exchange(&mut self, rename: &Rename<'_>, moved: u64, target: u64) -> Result<(), Error> {
        let (parent, new_parent) = (rename.parent.0, rename.new_parent.0);
        self.directory_mut(parent)?.replace(rename.name, target);
        self.directory_mut(new_parent)?
            .replace(rename.new_name, moved);
        self.moved(moved, parent, new_parent)?;
        self.moved(target, new_parent, parent)?;
        self.get_mut(parent)?.modified();
        self.get_mut(new_parent)?.modified();
        self.get_mut(moved)?.changed();
        self.get_mut(target)?.changed();
        Ok(())
    }

    /// A directory got another parent. Adjusts the link counts of both parents.
    fn moved(&mut self, number: u64, from: u64, to: u64) -> Result<(), Error> {
        if let Node::Directory(directory) = &mut self.get_mut(number)?.node
            && from != to
        {
            directory.parent = to;
            self.get_mut(from)?.links -= 1;
            self.get_mut(to)?.links += 1;
        }
        Ok(())
    }

    fn drop_link(&mut self, number: u64) -> Result<(), Error> {
        let inode = self.get_mut(number)?;
        let links = match inode.node {
            // Its own `.` goes with it.
            Node::Directory(_) => 0,
            _ => inode.links - 1,
        };
        inode.links = links;
        inode.changed();
        self.collect(number);
        Ok(())
    }

    /// The kernel or a handle holds the inode.
    pub fn hold(&mut self, number: u64, lookups: u64, opens: u64) -> Result<(), Error> {
        let inode = self.get_mut(number)?;
        inode.lookups += lookups;
        inode.opens += opens;
        Ok(())
    }

    /// The kernel or a handle releases the inode. It is removed if it has no names.
    pub fn let_go(&mut self, number: u64, lookups: u64, opens: u64) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            inode.opens = inode.opens.saturating_sub(opens);
            self.collect(number);
        }
    }

    fn collect(&mut self, number: u64) {
        let unused = |inode: &Inode| inode.links == 0 && inode.lookups == 0 && inode.opens == 0;
        if self.inodes.get(&number).is_some_and(unused) {
            self.inodes.remove(&number);
        }
    }

    /// Up to `count` entries after position `after`: the position that follows each, name, inode.
    pub fn list(
        &self,
        number: u64,
        after: u64,
        count: usize,
    ) -> Result<Vec<(u64, Vec<u8>, u64)>, Error> {
        let directory = self.directory(number)?;
        let dots = [
            (1, b".".to_vec(), number),
            (2, b"..".to_vec(), directory.parent),
        ];
        let entries = directory.entries.range(after.saturating_add(1)..);
        let entries = entries.map(|(position, (name, inode))| (*position, name.clone(), *inode));
        let dots = dots.into_iter().filter(|(position, ..)| *position > after);
        Ok(dots.chain(entries).take(count).collect())
    }

    /// Changes attributes. Permissions were checked by the kernel.
    pub fn set_attributes(&mut self, number: u64, changes: &Changes) -> Result<(), Error> {
        if let Some(size) = changes.size {
            if size > MAX_FILE_BYTES {
                return Err(Error::FileTooLarge);
            }
            self.change(number, 0..0, |content| content.truncate(size))?;
            self.get_mut(number)?.modified();
        }
        let inode = self.get_mut(number)?;
        if let Some(mode) = changes.mode {
            inode.mode = (mode & 0o7777) as u16;
        }
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        inode.changed();
        if let Some(atime) = changes.atime {
            inode.atime = time(atime);
        }
        if let Some(mtime) = changes.mtime {
            inode.mtime = time(mtime);
        }
        if let Some(ctime) = changes.ctime {
            inode.ctime = ctime;
        }
        Ok(())
    }
}

fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_NAME_BYTES {
        Err(Error::NameTooLong)
    } else {
        Ok(())
    }
}

fn time(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => Timestamp::now(),
    }
}
