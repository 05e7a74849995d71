//! `publish -`: a tar stream as the tree, with the same root as the directory that it would unpack to.
//!
//! Content goes into the repository as it arrives. The inode of a member is spooled; `sort` puts the inodes
//! into the order of the walk, and the assembler builds directories from them as from any tree. Memory is
//! bounded except for 40 bytes for each name, by which hard links find their targets.
//!
//! Of several members with one name, the last counts. A directory that is not in the archive has the mode
//! 0755 and the time 0. Names that lead out of the tree are refused.

mod header;
mod sort;
mod stream;
mod tell;

pub(crate) use tell::assemble;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use state::own_files::START_BYTES;
use trust::Hasher;
use trust::array::{Builder, Extent};
use trust::handle::ArrayNode;
use trust::inode::{
    Content, FileContent, Inode, MAX_INLINE_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTR_VALUE_BYTES,
    Owner, Xattrs, check_name,
};

use crate::blocks_out::{Cutter, Outgoing};
use crate::destination::Destination;
use crate::limits;
use crate::progress::Observer;
use crate::publish_error::{PublishError, Unreadable};
use crate::reading::{self, Publishing};
use crate::work::WHOLE_FILE_BYTES;
use content::access;
use content::attributes::{WITH_OWNER, XattrList};
use content::chunk::{Chunker, Piece};
use sort::{Merge, Place, Row, Sorter, Spool, Spooled};
use stream::{Archive, Kind, Member, Stretch};

/// Which parts of an archive are published, and how.
pub(crate) struct Unpacking<'a> {
    pub exclude: &'a crate::exclude::Exclude,
    pub publishing: Publishing,
    pub cancel: &'a AtomicBool,
    pub observer: &'a dyn Observer,
    /// Directory for the temporary files of the sort.
    pub spool_dir: PathBuf,
}

impl Unpacking<'_> {
    /// Refuses a file of bulla's own, by its first bytes; [`named`] adds its name.
    fn check(&self, start: &[u8]) -> Result<(), PublishError> {
        self.publishing
            .check(start)
            .map_err(|why| unreadable(b"", why))
    }
}

/// Reads an archive to its end: content into `destination`, the rest into a sorted spool.
pub(crate) fn unpack<D: Destination>(
    input: impl Read,
    unpacking: &Unpacking<'_>,
    cutter: Cutter<'_>,
    destination: &mut D,
) -> Result<Unpacked, PublishError> {
    let mut archive = Archive::new(input);
    let mut taking = Taking {
        unpacking,
        cutter,
        destination,
        sorter: Sorter::new(&unpacking.spool_dir),
        spool: Spool::new(&unpacking.spool_dir)?,
        number: 0,
        files: HashMap::new(),
        names: HashMap::new(),
    };
    while let Some(member) = archive.next()? {
        if unpacking.cancel.load(Ordering::Relaxed) {
            return Err(PublishError::Interrupted);
        }
        taking.member(&mut archive, member)?;
    }
    archive.drain()?;
    Ok(Unpacked {
        rows: taking.sorter.merge()?,
        spool: taking.spool.finish()?,
        names: taking.names,
    })
}

/// An archive that was read: its members in the order of the walk.
pub(crate) struct Unpacked {
    rows: Merge,
    spool: Spooled,
    /// The final number of names of each file that was linked, by the offset of its inode.
    names: HashMap<u64, u32>,
}

/// The first half: from the stream to blocks and spool.
struct Taking<'a, D> {
    unpacking: &'a Unpacking<'a>,
    cutter: Cutter<'a>,
    destination: &'a mut D,
    sorter: Sorter,
    spool: Spool,
    number: u64,
    /// Offset in the spool of the inode of each name, by the hash of the name.
    files: HashMap<[u8; 16], u64>,
    /// The number of names of each file that was linked, by the offset of its inode.
    names: HashMap<u64, u32>,
}

fn refused(path: &[u8], why: &'static str) -> PublishError {
    PublishError::Archive {
        path: trust::change::path(path),
        why,
    }
}

/// A member that cannot be published.
fn unreadable(path: &[u8], why: Unreadable) -> PublishError {
    let path = trust::change::path(path);
    match why {
        Unreadable::OwnFile(what) => PublishError::OwnFile { path, what },
        why => PublishError::Unreadable { path, why },
    }
}

/// The names of a path; refuses a path that leads out of the tree.
fn components(path: &[u8]) -> Result<Vec<&[u8]>, PublishError> {
    if path.starts_with(b"/") {
        return Err(refused(path, "an absolute name"));
    }
    let mut names = Vec::new();
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(refused(path, "a name that leads upwards")),
            name => {
                check_name(name).map_err(|why| PublishError::Unreadable {
                    path: trust::change::path(path),
                    why: why.into(),
                })?;
                names.push(name);
            }
        }
    }
    let bytes = names.iter().map(|name| name.len() + 1).sum::<usize>();
    limits::check_path(bytes.saturating_sub(1), names.len())
        .map_err(|why| unreadable(path, why))?;
    Ok(names)
}

/// The key under which a name is found again. Two names share it only if their hashes collide.
fn name_hash(hasher: &Hasher, components: &[&[u8]]) -> [u8; 16] {
    let hash = hasher.name(trust::Kind::Data, &components.join(&b'/'));
    let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *hash.as_bytes();
    half
}

impl<D: Destination> Taking<'_, D> {
    fn member<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        member: Member,
    ) -> Result<(), PublishError> {
        let path = member.path.clone();
        let names = components(&path)?;
        let is_directory = member.kind == Kind::Directory;
        if names.is_empty() && !is_directory {
            return Err(refused(&path, "not a valid name"));
        }
        if self.left_out(&names, is_directory) {
            return Ok(());
        }
        self.number += 1;
        if let Kind::HardLink(target) = &member.kind {
            return self.link(&names, target, &path);
        }
        let inode = self.inode(archive, member).map_err(|e| named(e, &path))?;
        let encoded = inode.encode();
        // Rules of the format that an archive can break: the length of a link's target, for one.
        Inode::decode(&encoded).map_err(|why| PublishError::Unreadable {
            path: trust::change::path(&path),
            why: why.into(),
        })?;
        let at = self.spool.push(&encoded)?;
        let place = match is_directory {
            true => Place::directory(&names),
            false => {
                self.name(&names, at);
                self.unpacking.observer.found(1, content_bytes(&inode));
                Place::entry(&names)
            }
        };
        let number = self.number;
        self.sorter.push(Row { place, number, at })
    }

    /// From now on the file at `at` has this name.
    fn name(&mut self, names: &[&[u8]], at: u64) {
        let before = self
            .files
            .insert(name_hash(self.cutter.hasher(), names), at);
        if let Some(count) = before.and_then(|before| self.names.get_mut(&before)) {
            *count = count.saturating_sub(1);
        }
    }

    fn link(&mut self, names: &[&[u8]], target: &[u8], path: &[u8]) -> Result<(), PublishError> {
        let nowhere = || refused(path, "a hard link to a name not before it in the archive");
        let target = components(target)?;
        let hash = name_hash(self.cutter.hasher(), &target);
        let at = *self.files.get(&hash).ok_or_else(nowhere)?;
        if target.as_slice() == names {
            return Ok(());
        }
        *self.names.entry(at).or_insert(1) += 1;
        self.name(names, at);
        let (place, number) = (Place::entry(names), self.number);
        self.sorter.push(Row { place, number, at })
    }

    fn left_out(&self, names: &[&[u8]], is_directory: bool) -> bool {
        let exclude = self.unpacking.exclude;
        if exclude.is_empty() {
            return false;
        }
        let mut above: Vec<u8> = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let inner = i + 1 < names.len();
            if exclude.leaves_out(&above, name, inner || is_directory) {
                return true;
            }
            if !above.is_empty() {
                above.push(b'/');
            }
            above.extend_from_slice(name);
        }
        false
    }

    fn inode<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        member: Member,
    ) -> Result<Inode, PublishError> {
        let content = match member.kind {
            Kind::Regular => self.content(archive, member.size)?,
            Kind::Directory => Content::Directory {
                map: None,
                opaque: false,
            },
            Kind::Symlink(target) => Content::Symlink(target.into()),
            Kind::Fifo => Content::Fifo,
            Kind::CharDevice { major, minor } => Content::CharDevice { major, minor },
            Kind::BlockDevice { major, minor } => Content::BlockDevice { major, minor },
            Kind::HardLink(_) => return Err(PublishError::WorkerDied),
        };
        let mode = access::of_member(&member.lists).narrow(member.mode);
        let mut inode = Inode::new(mode, member.mtime, content);
        if self.unpacking.publishing.owner {
            // The last number means nobody.
            let narrow = |n: i64| u32::try_from(n).ok().filter(|n| *n < u32::MAX);
            let owner = narrow(member.uid).zip(narrow(member.gid));
            let (uid, gid) = owner.ok_or_else(|| refused(b"", "an owner over 32 bits"))?;
            inode.owner = Some(Owner { uid, gid });
        }
        inode.xattrs = self.xattrs(member.xattrs)?;
        Ok(inode)
    }

    /// The attributes that are published; the rules are those for files of a directory.
    fn xattrs(&mut self, told: Vec<(Bytes, Bytes)>) -> Result<Xattrs, PublishError> {
        let mut list = XattrList::new();
        let mut total = 0;
        for (name, value) in told {
            if name.starts_with(b"user.bulla.") {
                let why = "an attribute whose name is reserved (user.bulla.)";
                return Err(refused(b"", why));
            }
            let with_owner = self.unpacking.publishing.owner;
            if *name == b"user."[..] {
                return Err(refused(b"", "an attribute without a name"));
            }
            if !(name.starts_with(b"user.") || (with_owner && WITH_OWNER.contains(&&*name))) {
                continue;
            }
            total += name.len() + value.len() + 8;
            if value.len() > MAX_XATTR_VALUE_BYTES || total > MAX_XATTR_LIST_BYTES {
                return Err(refused(b"", "too long an extended attribute"));
            }
            // Of one name, the last.
            list.retain(|(before, _)| *before != name);
            list.push((name, value));
        }
        list.sort();
        content::attributes::check_xattrs(&list).map_err(|why| unreadable(b"", why.into()))?;
        let mut blocks = Vec::new();
        let xattrs = reading::store_xattrs(&mut self.cutter, list, &mut blocks)?;
        blocks.into_iter().try_for_each(|block| self.store(block))?;
        Ok(xattrs)
    }

    fn content<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        size: u64,
    ) -> Result<Content, PublishError> {
        if size > WHOLE_FILE_BYTES {
            return self.long(archive);
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        archive.content(|stretch| {
            match stretch {
                Stretch::Bytes(more) => bytes.extend_from_slice(more),
                // At most the length of the file, which is short.
                Stretch::Zeros(zeros) => {
                    let len = bytes
                        .len()
                        .saturating_add(usize::try_from(zeros).unwrap_or(0));
                    bytes.resize(len, 0);
                }
            }
            Ok(())
        })?;
        self.unpacking.check(&bytes)?;
        Ok(Content::Regular(if bytes.is_empty() {
            FileContent::Empty
        } else if bytes.len() <= MAX_INLINE_BYTES {
            FileContent::Inline(bytes.into())
        } else {
            let mut blocks = Vec::new();
            let root = self.cutter.content(&bytes, &mut blocks)?;
            blocks.into_iter().try_for_each(|block| self.store(block))?;
            root.map_or(FileContent::Empty, FileContent::Array)
        }))
    }

    /// A long file, chunk by chunk.
    fn long<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<Content, PublishError> {
        let unpacking = self.unpacking;
        let mut start = Vec::with_capacity(START_BYTES);
        let mut chunker = Chunker::new();
        let nodes = std::cell::RefCell::new(Vec::new());
        let sink = |_, node: &Bytes| nodes.borrow_mut().push(node.clone());
        let mut builder = Builder::new(self.cutter.hasher(), sink);
        let mut emit = |piece: Piece<'_>| -> Result<(), PublishError> {
            let extent = match piece {
                Piece::Hole(len) => Extent::Hole { len },
                Piece::Data(bytes) => {
                    let mut blocks = Vec::new();
                    let extent = self.cutter.data(bytes, &mut blocks)?;
                    blocks.into_iter().try_for_each(|block| self.store(block))?;
                    extent
                }
            };
            builder.push(extent)?;
            for node in nodes.take() {
                let (_, outgoing) = self.cutter.block::<ArrayNode>(&node)?;
                self.store(outgoing)?;
            }
            Ok(())
        };
        archive.content(|stretch| {
            if unpacking.cancel.load(Ordering::Relaxed) {
                return Err(PublishError::Interrupted);
            }
            let wanted = START_BYTES - start.len();
            match stretch {
                Stretch::Bytes(bytes) => {
                    start.extend_from_slice(bytes.get(..wanted).unwrap_or(bytes));
                    chunker.push(bytes, &mut emit)
                }
                Stretch::Zeros(zeros) => {
                    let zeros_there = usize::try_from(zeros).unwrap_or(wanted).min(wanted);
                    start.resize(start.len() + zeros_there, 0);
                    chunker.push_zeros(zeros);
                    Ok(())
                }
            }
        })?;
        unpacking.check(&start)?;
        chunker.finish(&mut emit)?;
        let root = builder.finish()?;
        for node in nodes.take() {
            let (_, outgoing) = self.cutter.block::<ArrayNode>(&node)?;
            self.store(outgoing)?;
        }
        let content = root.map_or(FileContent::Empty, FileContent::Array);
        Ok(Content::Regular(content))
    }

    fn store(&mut self, block: Outgoing) -> Result<(), PublishError> {
        self.cutter.store(block, self.destination)
    }
}

fn content_bytes(inode: &Inode) -> u64 {
    match inode.content {
        Content::Regular(_) => inode.size,
        _ => 0,
    }
}

/// Adds the name of the member to an error without one.
fn named(error: PublishError, path: &[u8]) -> PublishError {
    match error {
        PublishError::Archive { path: none, why } if none == Path::new(".") => refused(path, why),
        PublishError::Tree(why) => unreadable(path, why.into()),
        PublishError::OwnFile { path: none, what } if none == Path::new(".") => {
            unreadable(path, Unreadable::OwnFile(what))
        }
        PublishError::Unreadable { path: none, why } if none == Path::new(".") => {
            unreadable(path, why)
        }
        other => other,
    }
}
