//! The gatherer: one thread that walks the tree and tells the assembler, in the order of the tree, which
//! entries come, while the readers read them. It splits long files, so that all readers can work on one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use crossbeam_channel::{Sender, bounded};
use rustix::fs::{FileType, OFlags, SeekFrom, Statx};
use rustix::io::Errno;
use trust::inode::{Content, Inode, link_group};
use trust::root::Totals;

use crate::blocks_out::Cutter;
use crate::progress::Observer;
use crate::publish_error::{PublishError, Unreadable};
use crate::reading::{self, ATTEMPTS, Publishing, gone};
use crate::statcache::CacheReader;
use crate::walk::{Listed, Visitor, open_at, stat_at, stat_open};
use crate::work::{
    Done, Event, FileId, Item, JOB_BYTES, JOB_FILES, Job, Link, ToRead, WHOLE_FILE_BYTES, What,
};
use content::access::Access;
use content::attributes::{self, Stamp, XattrReader};
use content::chunk::{Chunker, Piece};

/// Bytes of a long file that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Gathers; see the module.
pub(crate) struct Gatherer<'a> {
    pub cutter: Cutter<'a>,
    pub publishing: Publishing,
    pub jobs: Sender<Job>,
    pub events: Sender<Event>,
    pub cancel: &'a AtomicBool,
    pub observer: &'a dyn Observer,
    /// How many names files have in this tree, as far as a first walk has counted them.
    pub known_names: &'a HashMap<FileId, u32>,
    /// The stat cache of the last publication.
    pub cache: Option<CacheReader>,
    pub state: State,
}

/// The state of the gatherer between directories.
#[derive(Default)]
pub(crate) struct State {
    /// Files with several names, of which some have been met and some not.
    links: HashMap<FileId, (u32, Link)>,
    items: Vec<Item>,
    /// How many of `items` are to be read.
    to_read: usize,
    /// The sum of their lengths, bytes.
    to_read_bytes: u64,
    xattrs: XattrReader,
    buffer: Vec<u8>,
}

impl State {
    /// The files that have names outside of the tree, with the number of their names in it.
    pub(crate) fn names_elsewhere(&self) -> Vec<(FileId, u32)> {
        let of = |(file, (met, _)): (&FileId, &(u32, Link))| (*file, *met);
        self.links.iter().map(of).collect()
    }
}

/// Whether a name is the first of its file.
enum Names {
    Only,
    First(Link),
    Again(Link),
}

/// Why a long file was given up.
enum Stop {
    File(Unreadable),
    Publication(PublishError),
}

impl From<Unreadable> for Stop {
    fn from(why: Unreadable) -> Self {
        Stop::File(why)
    }
}
impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::File(errno.into())
    }
}
impl From<PublishError> for Stop {
    fn from(why: PublishError) -> Self {
        Stop::Publication(why)
    }
}

impl Visitor for Gatherer<'_> {
    fn directory(&mut self, directory: &Listed<'_>) -> Result<(), PublishError> {
        self.send(Event::Open {
            path: directory.path.into(),
            subdirectories: directory.subdirectories,
        })?;
        if let Some(cache) = &mut self.cache {
            cache.enter(directory.path);
        }
        for name in directory.others.iter() {
            match stat_at(directory.fd, name) {
                Ok(stat) => self.entry(directory, name, &stat)?,
                Err(Errno::NOENT) => {}
                Err(errno) => self.ready(directory.fd, unreadable(name, errno.into()))?,
            }
        }
        self.flush(directory.fd)?;
        self.close(directory)
    }

    fn unreadable(&mut self, path: &[u8], why: Unreadable) -> Result<(), PublishError> {
        let path = path.into();
        self.send(Event::Unreadable { path, why })
    }
}

impl Gatherer<'_> {
    fn send(&self, event: Event) -> Result<(), PublishError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(PublishError::Interrupted);
        }
        // If the receiver is gone, the assembler has failed, and its error is the one that is reported.
        self.events
            .send(event)
            .map_err(|_| PublishError::WorkerDied)
    }

    fn give(&self, job: Job) -> Result<(), PublishError> {
        self.jobs.send(job).map_err(|_| PublishError::WorkerDied)
    }

    fn entry(
        &mut self,
        directory: &Listed<'_>,
        name: &CStr,
        stat: &Statx,
    ) -> Result<(), PublishError> {
        let kind = attributes::file_type(stat);
        let link = match self.names(directory.path, name, stat) {
            Names::Again(link) => {
                return self.ready(directory.fd, done(name, What::Link(link), None));
            }
            Names::First(link) => Some(link),
            Names::Only => None,
        };
        if let Some(what) = self.remembered(name, stat, link) {
            let is_regular = kind == FileType::RegularFile;
            self.observer
                .found(1, if is_regular { stat.stx_size } else { 0 });
            return self.ready(directory.fd, done(name, what, Some(Stamp::of(stat))));
        }
        let major_minor = (stat.stx_rdev_major, stat.stx_rdev_minor);
        let content = match kind {
            FileType::RegularFile => {
                self.observer.found(1, stat.stx_size);
                return self.regular(directory, name, stat, link);
            }
            FileType::Symlink => match rustix::fs::readlinkat(&**directory.fd, name, Vec::new()) {
                Ok(target) => Content::Symlink(Bytes::from(target.into_bytes())),
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) => {
                    return self.ready(directory.fd, unreadable(name, errno.into()));
                }
            },
            FileType::Fifo => Content::Fifo,
            FileType::Socket => Content::Socket,
            FileType::CharacterDevice => Content::CharDevice {
                major: major_minor.0,
                minor: major_minor.1,
            },
            FileType::BlockDevice => Content::BlockDevice {
                major: major_minor.0,
                minor: major_minor.1,
            },
            _ => {
                return self.ready(directory.fd, unreadable(name, Unreadable::Replaced));
            }
        };
        self.observer.found(1, 0);
        let access = match kind {
            FileType::Symlink => Access::MODE,
            _ => match attributes::access_at(directory.fd, name) {
                Ok(access) => access,
                Err(why) => return self.ready(directory.fd, unreadable(name, why.into())),
            },
        };
        let mut inode = attributes::inode(stat, access, self.publishing.owner, content);
        reading::name_link(&mut inode, link.as_ref());
        let what = file(inode, link);
        self.ready(directory.fd, done(name, what, Some(Stamp::of(stat))))
    }

    /// Whether a file has been met under another name, and its link group if it has several names.
    fn names(&mut self, directory: &[u8], name: &CStr, stat: &Statx) -> Names {
        let file = Stamp::of(stat).file;
        let names = match self.known_names.get(&file) {
            Some(known) => *known,
            None => stat.stx_nlink,
        };
        if names <= 1 {
            return Names::Only;
        }
        match self.state.links.entry(file) {
            Entry::Occupied(mut entry) => {
                let (met, link) = entry.get_mut();
                *met += 1;
                let mut link = *link;
                link.last = *met >= link.names;
                if link.last {
                    entry.remove();
                }
                Names::Again(link)
            }
            Entry::Vacant(entry) => {
                let mut path = directory.to_vec();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name.to_bytes());
                let link = Link {
                    file,
                    group: link_group(self.cutter.hasher(), &path),
                    names,
                    last: false,
                };
                entry.insert((1, link));
                Names::First(link)
            }
        }
    }

    /// The entry of a file that is as it was last time.
    fn remembered(&mut self, name: &CStr, stat: &Statx, link: Option<Link>) -> Option<What> {
        let cache = self.cache.as_mut()?;
        let entry = cache.find(name.to_bytes(), &Stamp::of(stat))?;
        if link.is_none() && !entry.linked {
            let mut totals = Totals::default();
            match attributes::file_type(stat) {
                FileType::RegularFile => (totals.files, totals.bytes) = (1, stat.stx_size),
                _ => totals.other = 1,
            }
            let value = entry.value;
            return Some(What::Value { value, totals });
        }
        // The stored entry may name another link group: the first name of the file may have changed.
        let Ok(trust::inode::Entry::Inode(mut inode)) = trust::inode::Entry::decode(&entry.value)
        else {
            return None;
        };
        reading::name_link(&mut inode, link.as_ref());
        Some(file(inode, link))
    }

    fn regular(
        &mut self,
        directory: &Listed<'_>,
        name: &CStr,
        stat: &Statx,
        link: Option<Link>,
    ) -> Result<(), PublishError> {
        if stat.stx_size > WHOLE_FILE_BYTES {
            self.flush(directory.fd)?;
            return self.long_file(directory.fd, name, link);
        }
        self.read(directory.fd, name, link, stat.stx_size)
    }

    fn read(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &CStr,
        link: Option<Link>,
        bytes: u64,
    ) -> Result<(), PublishError> {
        self.state.to_read += 1;
        self.state.to_read_bytes += bytes;
        let name = name.to_owned();
        self.item(directory, Item::Read(ToRead { name, link }))
    }

    fn ready(&mut self, directory: &Arc<OwnedFd>, done: Done) -> Result<(), PublishError> {
        self.item(directory, Item::Ready(done))
    }

    fn item(&mut self, directory: &Arc<OwnedFd>, item: Item) -> Result<(), PublishError> {
        self.state.items.push(item);
        if self.state.items.len() >= JOB_FILES || self.state.to_read_bytes >= JOB_BYTES as u64 {
            self.flush(directory)?;
        }
        Ok(())
    }

    /// Sends off what has been collected.
    fn flush(&mut self, directory: &Arc<OwnedFd>) -> Result<(), PublishError> {
        let items = std::mem::take(&mut self.state.items);
        let to_read = std::mem::take(&mut self.state.to_read);
        self.state.to_read_bytes = 0;
        if items.is_empty() {
            return Ok(());
        }
        if to_read == 0 {
            let ready = |item| match item {
                Item::Ready(done) => Some(done),
                Item::Read(_) => None,
            };
            return self.send(Event::Entries(
                items.into_iter().filter_map(ready).collect(),
            ));
        }
        let (reply, answer) = bounded(1);
        self.give(Job::Entries {
            directory: directory.clone(),
            items,
            reply,
        })?;
        self.send(Event::Coming(answer))
    }

    fn close(&mut self, directory: &Listed<'_>) -> Result<(), PublishError> {
        let mut blocks = Vec::new();
        let empty = Content::Directory {
            map: None,
            opaque: false,
        };
        let publishing = self.publishing;
        let mut inode = attributes::inode(directory.stat, Access::MODE, publishing.owner, empty);
        match self.state.xattrs.read(directory.fd, publishing.owner) {
            Ok((list, access)) => {
                inode.mode = access.narrow(inode.mode);
                inode.xattrs = reading::store_xattrs(&mut self.cutter, list, &mut blocks)?;
            }
            Err(why) => {
                inode.mode = Access::OWNER.narrow(inode.mode);
                self.unreadable(directory.path, why.into())?;
            }
        }
        let inode = Box::new(inode);
        self.send(Event::Close { inode, blocks })
    }

    fn long_file(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &CStr,
        link: Option<Link>,
    ) -> Result<(), PublishError> {
        for _ in 0..ATTEMPTS {
            match self.cut_up(directory, name, link) {
                Ok(Some(Cut::Whole(done))) => return self.send(Event::EndOfFile(done)),
                Ok(Some(Cut::Short)) => {
                    self.read(directory, name, link, 0)?;
                    return self.flush(directory);
                }
                Ok(None) => self.send(Event::Restart)?,
                Err(Stop::Publication(e)) => return Err(e),
                Err(Stop::File(why)) => {
                    self.send(Event::Restart)?;
                    return self.send(Event::Entries(vec![unreadable(name, why)]));
                }
            }
        }
        let why = Unreadable::Changing(ATTEMPTS);
        self.send(Event::Entries(vec![unreadable(name, why)]))
    }

    /// Sends a long file in parts; `None` when it changed meanwhile or its size is wrong.
    fn cut_up(
        &mut self,
        directory: &OwnedFd,
        name: &CStr,
        link: Option<Link>,
    ) -> Result<Option<Cut>, Stop> {
        let fd = open_at(directory, name, OFlags::empty())?;
        let before = reading::begin(&fd)?;
        if before.stx_size <= WHOLE_FILE_BYTES {
            return Ok(Some(Cut::Short));
        }
        if link.is_some_and(|link| link.file != Stamp::of(&before).file) {
            return Err(Unreadable::Replaced.into());
        }
        let read = self.state.xattrs.read(&fd, self.publishing.owner);
        let (list, access) = read.map_err(Unreadable::from)?;
        let complete = self.parts(&fd, before.stx_size)?;
        let after = stat_open(&fd)?;
        // A file system that tells a wrong size does not change the times.
        if !complete || !reading::unchanged(&before, &after) {
            return Ok(None);
        }
        let mut blocks = Vec::new();
        let no_content = Content::Regular(trust::inode::FileContent::Empty);
        let mut inode = attributes::inode(&after, access, self.publishing.owner, no_content);
        inode.xattrs = reading::store_xattrs(&mut self.cutter, list, &mut blocks)?;
        reading::name_link(&mut inode, link.as_ref());
        let inode = Box::new(inode);
        let what = What::File {
            inode,
            blocks,
            link,
        };
        let whole = done(name, what, Some(Stamp::of(&after)));
        Ok(Some(Cut::Whole(whole)))
    }

    /// Reads a file of `len` bytes, holes without reading them, and sends it in parts. False when it ends elsewhere.
    fn parts(&mut self, fd: &OwnedFd, len: u64) -> Result<bool, Stop> {
        let mut buffer = std::mem::take(&mut self.state.buffer);
        buffer.resize(READ_BYTES, 0);
        let complete = self.parts_until(&mut buffer, fd, len);
        self.state.buffer = buffer;
        Ok(complete? && ends_at(fd, len)?)
    }

    /// As `parts`, but does not detect a longer file, nor one that ends in what `lseek` reports as a hole.
    fn parts_until(&self, buffer: &mut [u8], fd: &OwnedFd, len: u64) -> Result<bool, Stop> {
        let mut group = Group::default();
        let mut chunker = Chunker::new();
        let mut emit = |piece: Piece<'_>| self.piece(piece, &mut group);
        let mut at = 0;
        while at < len {
            let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(data) => data.min(len),
                Err(Errno::NXIO) => len,
                Err(errno) => return Err(errno.into()),
            };
            chunker.push_zeros(data - at);
            if data == len {
                break;
            }
            let end = rustix::fs::seek(fd, SeekFrom::Hole(data))?.min(len);
            rustix::fs::seek(fd, SeekFrom::Start(data))?;
            at = data;
            while at < end {
                let room = (end - at).min(READ_BYTES as u64) as usize;
                let target = buffer.get_mut(..room).unwrap_or_default();
                let read = reading::read_full(fd, target)?;
                if read == 0 {
                    return Ok(false);
                }
                if at == 0 {
                    self.publishing.check(buffer)?;
                }
                chunker.push(buffer.get(..read).unwrap_or_default(), &mut emit)?;
                at += read as u64;
            }
        }
        chunker.finish(&mut emit)?;
        self.part(&mut group)?;
        Ok(true)
    }

    fn piece(&self, piece: Piece<'_>, group: &mut Group) -> Result<(), PublishError> {
        match piece {
            Piece::Data(bytes) => {
                group.bytes.extend_from_slice(bytes);
                group.chunks.push(bytes.len() as u32);
                if group.bytes.len() >= JOB_BYTES {
                    self.part(group)?;
                }
                Ok(())
            }
            Piece::Hole(len) => {
                self.part(group)?;
                self.send(Event::Hole(len))
            }
        }
    }

    fn part(&self, group: &mut Group) -> Result<(), PublishError> {
        if group.chunks.is_empty() {
            return Ok(());
        }
        let (reply, answer) = bounded(1);
        self.give(Job::Part {
            bytes: std::mem::take(&mut group.bytes),
            chunks: std::mem::take(&mut group.chunks),
            reply,
        })?;
        self.send(Event::Part(answer))
    }
}

/// How cutting up a file ended.
enum Cut {
    Whole(Done),
    /// It has become short.
    Short,
}

/// Chunks that go to one reader.
#[derive(Default)]
struct Group {
    bytes: Vec<u8>,
    chunks: Vec<u32>,
}

/// Whether a file has a byte before `len` and none there.
fn ends_at(fd: &OwnedFd, len: u64) -> Result<bool, Errno> {
    rustix::fs::seek(fd, SeekFrom::Start(len.saturating_sub(1)))?;
    Ok(reading::read_full(fd, &mut [0; 2])? == 1)
}

fn done(name: &CStr, what: What, stamp: Option<Stamp>) -> Done {
    let name = name.to_bytes().into();
    Done { name, what, stamp }
}

fn file(inode: Inode, link: Option<Link>) -> What {
    What::File {
        inode: Box::new(inode),
        blocks: Vec::new(),
        link,
    }
}

fn unreadable(name: &CStr, why: Unreadable) -> Done {
    let what = match why {
        Unreadable::Io(e) if gone(&e) => What::Vanished,
        why => What::Unreadable(why),
    };
    done(name, what, None)
}
