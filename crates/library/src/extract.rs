//! `bulla extract`: writes a tree of a volume of any kind to a directory, with every attribute that a stranger may set.
//!
//! Relies on [`Tree`] for proved bytes. Neither the publisher nor the members of a shared volume are trusted: whatever
//! names, links and modes they chose, nothing outside the target directory is touched. Every name is opened beneath it,
//! and no symbolic link is followed. No set-user-id program, device or capability is made unless the caller also trusts
//! the publisher with owners. A few blocks can describe a tree that is larger than any disk, so the work stops with an
//! error before the target's file system is full.
//!
//! An extraction that was interrupted goes on where it was: its mark lies in the target. What is there is compared by
//! content, never by size and time (decision 0081).
//!
//! | module | what lives there |
//! |---|---|
//! | `link` | other names of files that were made |
//! | `mark` | the mark of an unfinished extraction |
//! | `outcome` | what is asked, and what comes of it |
//! | `target` | one file: its content and its attributes |
//! | `there` | what lies in the target already |

mod link;
mod mark;
mod outcome;
mod target;
mod there;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::fs::{AtFlags, Dev, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tokio::task::JoinSet;
use trust::inode::{Content, Inode, check_name};
use trust::root::Totals;

use reader::{ReadError, Reads};
use store::beneath;

use crate::extract::link::{First, Linked};
use crate::extract::mark::Mark;
use crate::extract::outcome::shown;
pub use crate::extract::outcome::{ExtractError, ExtractOptions, Extracted, Refused};
use crate::extract::target::{Fill, Shared, open_target, system, times};
use crate::extract::there::{There, below, replace, split};
use crate::path::join;
use crate::tree::{Entry, Link, Tree};
use crate::walk::{MAX_DEPTH, Step, Unlisted, Walk};
use reader::Tally;

/// Files that are written at a time.
const TASKS: usize = 16;
/// Entries between two checks of the free space; the first check comes when only the target is made.
const ROOM_EVERY: u64 = 64;
/// Most left-out entries that are listed; more are only counted.
const MAX_SKIPPED_TOLD: usize = 1000;
/// Nearly every file system, and every limit that users set (RLIMIT_FSIZE), takes files of so many bytes. Of a longer one
/// it is asked before it is filled.
const FITS_ANYWHERE_BYTES: u64 = 16 << 20;

/// Most memory for files with several names, bytes. Names of further ones become files of their own.
const MAX_LINKS_BYTES: usize = 256 << 20;

/// Copies `top`, an entry of `tree`, into `target`: the content of a directory, or a single file under its name. The
/// target is made when missing. It must be empty, or have the mark of the same extraction that was interrupted; then
/// this one goes on with what is there.
///
/// # Errors
/// [`ExtractError`]; the first one ends the work.
pub async fn extract(
    tree: &Tree<'_>,
    top: &Entry,
    target: &Path,
    options: &ExtractOptions,
    tally: &Arc<Tally>,
) -> Result<Extracted, ExtractError> {
    let (base, name) = split(&top.path);
    let is_directory = top.is_directory();
    let of_mark = mark::name(tree, (name, top)).await?;
    let root = open_target(target)?;
    let text = mark::text(tree.volume(), &top.path);
    let (mark, goes_on) = mark::begin(root.as_fd(), target, of_mark, &text)?;
    let mut work = Work {
        tree,
        shared: Arc::new(Shared {
            deadline: tree.deadline(),
            tree: tree.contents().read_once(),
            options: options.clone(),
            tally: Arc::clone(tally),
            refused: Mutex::default(),
        }),
        root: Arc::new(root),
        base: Bytes::copy_from_slice(if is_directory { &top.path } else { base }),
        goes_on,
        mark,
        links: HashMap::new(),
        links_bytes: 0,
        refuses_links: false,
        tasks: JoinSet::new(),
        made: Extracted {
            went_on: goes_on,
            ..Extracted::default()
        },
    };
    let outcome = match is_directory {
        true => work.tree(top).await,
        false => work.single(top).await,
    };
    // No task writes any more when this returns, even after an error.
    let mut drained = Ok(());
    while let Some(settled) = work.settle_one().await {
        drained = drained.and(settled);
    }
    if let Err(error) = outcome.and(drained) {
        work.leave_nothing();
        return Err(error);
    }
    work.mark.remove(work.root.as_fd()).map_err(system(b""))?;
    if is_directory {
        work.finish_root(&top.inode)?;
    }
    Ok(work.done())
}

/// The result of a task for its file.
struct Written {
    path: Bytes,
    left_out: Vec<String>,
    /// Whether its content was there.
    kept: bool,
}

/// A directory that is being filled.
struct Open {
    fd: Arc<OwnedFd>,
    /// Entries that were made in it.
    entries: u64,
}

/// What tells that two entries are one file. A whole inode besides: if a publisher makes members of one set differ, each
/// becomes a file of its own.
type Key = (Link, Vec<u8>);

struct Work<'a> {
    tree: &'a Tree<'a>,
    shared: Arc<Shared>,
    root: Arc<OwnedFd>,
    /// The path in the volume that the target stands for.
    base: Bytes,
    /// Something of an earlier run may be there.
    goes_on: bool,
    mark: Mark,
    /// Files with several names that were begun.
    links: HashMap<Key, First>,
    /// Their memory, bytes.
    links_bytes: usize,
    /// The file system has no hard links.
    refuses_links: bool,
    tasks: JoinSet<Result<Written, ExtractError>>,
    made: Extracted,
}

impl Work<'_> {
    async fn tree(&mut self, top: &Entry) -> Result<(), ExtractError> {
        // The target is the root directory.
        self.made.totals = Totals::of(&top.inode);
        let tree = self.tree;
        let mut walk = match self.goes_on {
            true => Walk::rest(tree, top, there::of_same_length(&self.root, &self.base)),
            false => tree.walk(top, Reads::Everything),
        };
        let mut open = vec![Open {
            fd: Arc::clone(&self.root),
            entries: 0,
        }];
        loop {
            let step = match walk.next().await {
                Err(unlisted) if unlisted.is_hidden() => {
                    self.made.hidden += 1;
                    continue;
                }
                step => step.map_err(|Unlisted { path, why }| ExtractError::read(&path, why))?,
            };
            match step {
                None => {
                    self.made.hidden += walk.hidden();
                    return Ok(());
                }
                Some(Step::Left(directory)) => {
                    let Some(done) = open.pop() else {
                        return Ok(());
                    };
                    if self.goes_on {
                        self.look_over(&done, &directory).await?;
                    }
                    // Everything in it has been made (filling its files does not change it): the mode and
                    // time that are set now stay.
                    if !open.is_empty() {
                        self.directory_attributes(&done.fd, &directory).await?;
                    }
                }
                Some(Step::Entry(entry)) => {
                    let Some(directory) = open.last_mut() else {
                        return Ok(());
                    };
                    // The reader has checked names already. Checked again, because a bad one leaves the target.
                    check_name(entry.name()).map_err(|why| {
                        ExtractError::read(&entry.path, ReadError::of_signed(why).into())
                    })?;
                    if self.made.totals.entries() % ROOM_EVERY == 1 {
                        self.shared
                            .check_room(directory.fd.as_fd(), &entry.path, 0)?;
                    }
                    let above = Arc::clone(&directory.fd);
                    if !entry.is_directory() {
                        let is_made = self.entry(&above, entry).await?;
                        directory.entries += u64::from(is_made);
                        continue;
                    }
                    if walk.depth() >= MAX_DEPTH {
                        let path = shown(&entry.path);
                        return Err(ExtractError::TooDeep { path });
                    }
                    directory.entries += 1;
                    open.push(Open {
                        fd: self.directory(&above, entry.name(), &entry.path)?,
                        entries: 0,
                    });
                    self.made.totals.add(Totals::of(&entry.inode));
                    walk.enter(entry);
                }
            }
        }
    }

    /// Extracts what is no directory, under its own name.
    async fn single(&mut self, top: &Entry) -> Result<(), ExtractError> {
        let root = Arc::clone(&self.root);
        self.shared.check_room(root.as_fd(), &top.path, 0)?;
        self.entry(&root, top.clone()).await?;
        Ok(())
    }

    /// Makes a directory.
    fn directory(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<Arc<OwnedFd>, ExtractError> {
        let make = || rustix::fs::mkdirat(parent, name, Mode::RWXU);
        let mut made = make();
        if self.goes_on && made == Err(Errno::EXIST) {
            match there::directory(parent.as_fd(), name) {
                Ok(fd) => return Ok(Arc::new(fd)),
                // Not a directory, or a link to one.
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    made = there::clear(parent.as_fd(), name).and_then(|()| make());
                }
                Err(errno) => made = Err(errno),
            }
        }
        made.map_err(system(path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = beneath::open(parent.as_fd(), name, flags, Mode::empty());
        Ok(Arc::new(fd.map_err(system(path))?))
    }

    /// Compares the names in a directory with those of the tree: what is there besides them is told and left alone.
    async fn look_over(&mut self, done: &Open, directory: &Entry) -> Result<(), ExtractError> {
        let path = &directory.path[..];
        let is_top = path.len() == self.base.len();
        let mut names = Vec::new();
        for entry in Dir::read_from(&done.fd).map_err(system(path))? {
            let entry = entry.map_err(system(path))?;
            let name = entry.file_name().to_bytes();
            let is_mark = is_top && name == self.mark.name;
            if !is_mark && !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        let known = self.tree.known(directory, &names).await;
        let known = known.map_err(|why| ExtractError::read(path, why))?;
        let mut found = 0;
        for (name, is_known) in names.iter().zip(known) {
            if is_known {
                found += 1;
                continue;
            }
            self.made.extra_count += 1;
            if self.made.extra.len() < MAX_SKIPPED_TOLD {
                let extra = join(below(&self.base, path), name);
                self.made.extra.push(shown(&extra));
            }
        }
        if found < done.entries {
            return Err(ExtractError::Fewer { path: shown(path) });
        }
        Ok(())
    }

    /// Makes an entry that is no directory; false if it is left out.
    async fn entry(
        &mut self,
        directory: &Arc<OwnedFd>,
        entry: Entry,
    ) -> Result<bool, ExtractError> {
        let mut totals = Totals::of(&entry.inode);
        let key = entry.link().map(|link| (link, entry.inode.encode()));
        let (name, path) = (entry.path.slice_ref(entry.name()), entry.path);
        if let Some(first) = key.as_ref().and_then(|key| self.links.get(key)).cloned()
            && !self.refuses_links
            && self.link(&first, directory, &name, &path)?
        {
            totals.bytes = 0;
            self.made.totals.add(totals);
            self.shared.tally.add(1, 0);
            return Ok(true);
        }
        let before = self.made.totals;
        self.made.totals.add(totals);
        let is_made = self.make(directory, &name, &path, entry.inode).await?;
        if !is_made {
            self.made.totals = before;
        } else if let Some(key) = key
            && self.links_bytes < MAX_LINKS_BYTES
        {
            self.links_bytes += key.1.len() + path.len();
            let first = First::of(path.clone(), (directory.as_fd(), &name));
            self.links.insert(key, first.map_err(system(&path))?);
        }
        Ok(is_made)
    }

    /// Makes an entry that is no directory and no other name of a file; false if it is left out.
    async fn make(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        path: &Bytes,
        inode: Inode,
    ) -> Result<bool, ExtractError> {
        match &inode.content {
            Content::Regular(_) => self.file(directory, name, path.clone(), inode).await,
            Content::Symlink(target) => {
                let place = (directory.as_fd(), name);
                let make = || rustix::fs::symlinkat(&**target, directory, name);
                replace(self.goes_on, place, make).map_err(system(path))?;
                self.named_attributes(directory, name, path, &inode)?;
                Ok(true)
            }
            // A program that reads one waits for its other end, and members are strangers.
            Content::Fifo | Content::Socket if self.tree.as_shared().is_some() => {
                self.skipped(path, "a pipe or socket of a member".to_owned());
                Ok(false)
            }
            Content::Fifo => self.node(directory, name, path, &inode, FileType::Fifo, 0),
            Content::Socket => self.node(directory, name, path, &inode, FileType::Socket, 0),
            Content::CharDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                self.node(
                    directory,
                    name,
                    path,
                    &inode,
                    FileType::CharacterDevice,
                    device,
                )
            }
            Content::BlockDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                self.node(directory, name, path, &inode, FileType::BlockDevice, device)
            }
            Content::Directory { .. } => Ok(true),
        }
    }

    /// Makes a file here, or takes the one that is there, and fills it in a task. False if it is left out.
    async fn file(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        path: Bytes,
        inode: Inode,
    ) -> Result<bool, ExtractError> {
        while self.tasks.len() >= TASKS {
            if let Some(settled) = self.settle_one().await {
                settled?;
            }
        }
        let there = match self.goes_on {
            true => there::file(directory.as_fd(), name),
            false => None,
        };
        let shared = Arc::clone(&self.shared);
        let (fd, fill) = match there {
            Some(There::Own(fd)) => (fd, Fill::Mend),
            // Here and not in a task: the next member of a set of links must find the file that stays, and a directory
            // must not change after its time is set.
            Some(There::Fixed(fd))
                if shared
                    .content(fd.as_fd(), &path, &inode, Fill::Compare)
                    .await? =>
            {
                (fd, Fill::Compare)
            }
            Some(There::Fixed(_)) | None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let mode = Mode::RUSR | Mode::WUSR;
                let make = || beneath::open(directory.as_fd(), name, flags, mode);
                let made = replace(self.goes_on, (directory.as_fd(), name), make);
                (made.map_err(system(&path))?, Fill::Write)
            }
        };
        let len = inode.content.size();
        if fill != Fill::Compare && len > FITS_ANYWHERE_BYTES {
            match rustix::fs::ftruncate(&fd, len) {
                Err(Errno::FBIG) => {
                    there::clear(directory.as_fd(), name).map_err(system(&path))?;
                    let why = format!("the file system takes no file of {len} bytes");
                    self.skipped(&path, why);
                    return Ok(false);
                }
                outcome => outcome.map_err(system(&path))?,
            }
        }
        self.tasks.spawn(async move {
            let kept = match fill {
                Fill::Compare => true,
                fill => shared.content(fd.as_fd(), &path, &inode, fill).await?,
            };
            let left_out = shared.attributes(fd.as_fd(), &path, &inode).await?;
            Ok(Written {
                path,
                left_out,
                kept: kept && fill != Fill::Write,
            })
        });
        Ok(true)
    }

    /// Makes another name of a file that was made before, which is found again beneath the target. False if there can
    /// be none.
    fn link(
        &mut self,
        first: &First,
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<bool, ExtractError> {
        let (parent, base) = split(below(&self.base, &first.path));
        let parent = if parent.is_empty() {
            Arc::clone(&self.root)
        } else {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let fd = beneath::open(self.root.as_fd(), parent, flags, Mode::empty());
            Arc::new(fd.map_err(system(path))?)
        };
        let (from, to) = ((parent.as_fd(), base), (directory.as_fd(), name));
        match first.link(from, to, self.goes_on).map_err(system(path))? {
            Linked::Made => Ok(true),
            Linked::Full => Ok(false),
            Linked::Refused => {
                // Asked again, it would take away what an earlier run has made.
                self.refuses_links = true;
                Ok(false)
            }
            Linked::Replaced => Err(ExtractError::Replaced {
                path: shown(&first.path),
            }),
        }
    }

    /// Makes a special file; false if it is left out.
    fn node(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
        inode: &Inode,
        kind: FileType,
        device: Dev,
    ) -> Result<bool, ExtractError> {
        let what = match kind {
            FileType::CharacterDevice => "character device",
            FileType::BlockDevice => "block device",
            _ => "special file",
        };
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        let made = if is_device && !self.shared.options.owner {
            Err(Errno::PERM)
        } else {
            let mode = Mode::RUSR | Mode::WUSR;
            let make = || rustix::fs::mknodat(directory, name, kind, mode, device);
            replace(self.goes_on, (directory.as_fd(), name), make)
        };
        match made {
            Ok(()) => {
                self.named_attributes(directory, name, path, inode)?;
                Ok(true)
            }
            Err(Errno::PERM) if self.shared.options.skip_special => {
                self.skipped(path, format!("a {what}, which only root may make"));
                Ok(false)
            }
            Err(Errno::PERM) => Err(ExtractError::Special {
                path: shown(path),
                what,
            }),
            Err(errno) => Err(system(path)(errno)),
        }
    }

    /// Owner, mode and time of an entry that cannot be opened.
    fn named_attributes(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
        inode: &Inode,
    ) -> Result<(), ExtractError> {
        let (stay, shared) = (AtFlags::SYMLINK_NOFOLLOW, &self.shared);
        let mode = shared.owner(path, inode, |uid, gid| {
            rustix::fs::chownat(directory, name, uid, gid, stay)
        })?;
        if !matches!(inode.content, Content::Symlink(_)) {
            let outcome = rustix::fs::chmodat(directory, name, mode, AtFlags::empty());
            shared.mode(path, outcome)?;
        }
        let outcome = rustix::fs::utimensat(directory, name, &times(inode), stay);
        shared.time(path, outcome)?;
        shared.tally.add(1, 0);
        Ok(())
    }

    async fn directory_attributes(
        &mut self,
        done: &OwnedFd,
        directory: &Entry,
    ) -> Result<(), ExtractError> {
        let (path, inode) = (&directory.path, &directory.inode);
        let left_out = self.shared.attributes(done.as_fd(), path, inode).await?;
        for why in left_out {
            self.skipped(path, why);
        }
        Ok(())
    }

    /// The target itself comes last, because its mode may forbid the other steps.
    fn finish_root(&mut self, top: &Inode) -> Result<(), ExtractError> {
        let path = self.base.clone();
        let mode = Mode::from_raw_mode(u32::from(top.mode) & self.shared.allowed());
        self.shared
            .mode(&path, rustix::fs::fchmod(&self.root, mode))?;
        self.shared
            .time(&path, rustix::fs::futimens(&self.root, &times(top)))?;
        Ok(())
    }

    /// After an error: a target in which nothing was made is as it was.
    fn leave_nothing(&self) {
        let is_empty = self.made.totals.entries() <= 1 && !self.goes_on;
        if is_empty {
            // If it stays, the next run goes on with nothing.
            let _ = self.mark.remove(self.root.as_fd());
        }
    }

    fn done(mut self) -> Extracted {
        let refused = &self.shared.refused;
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        self.made.refused = std::mem::take(&mut refused);
        drop(refused);
        self.made
    }

    /// Waits for one file; `None` when there is none.
    async fn settle_one(&mut self) -> Option<Result<(), ExtractError>> {
        let written = match self.tasks.join_next().await? {
            Ok(Ok(written)) => written,
            Ok(Err(error)) => return Some(Err(error)),
            Err(died) => return Some(Err(ExtractError::Died(died.to_string()))),
        };
        self.shared.tally.add(1, 0);
        self.made.kept += u64::from(written.kept);
        for why in written.left_out {
            self.skipped(&written.path, why);
        }
        Some(Ok(()))
    }

    fn skipped(&mut self, path: &[u8], why: String) {
        self.made.skipped_count += 1;
        if self.made.skipped.len() < MAX_SKIPPED_TOLD {
            self.made.skipped.push((shown(path), why));
        }
    }
}
