//! `bulla extract`: writes a volume to a directory tree, with every attribute that was published.
//!
//! Relies on `snapshot` for proved bytes. The publisher is not trusted: whatever names, links and
//! modes it chose, nothing outside the target directory is touched. Every name is opened beneath it, and
//! no symbolic link is followed. No set-user-id program, device or capability is made unless the caller
//! also trusts the publisher with owners. A few blocks can describe a tree that is larger than any disk,
//! so the work stops with an error before the target's file system is full.

mod target;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{AtFlags, Dev, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use tokio::task::JoinSet;
use trust::error::Class;
use trust::inode::{Content, Inode, check_name};
use trust::root::Totals;

use reader::{ReadError, Reads};

use crate::extract::target::{Shared, open_beneath, open_target, shown, system, times};
use crate::snapshot::Snapshot;
use crate::verify::{MAX_DEPTH, Tally};
use crate::volume::Volume;
use crate::walk::{Step, Unlisted, Walk};

/// Files that are written at a time.
const TASKS: usize = 16;
/// Entries between two checks of the free space; the first check comes when only the target is made.
const ROOM_EVERY: u64 = 64;
/// Most left-out entries that are listed; more are only counted.
const MAX_SKIPPED_TOLD: usize = 1000;

/// What the caller asks for.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// Set owners, set-user-id bits, capabilities and devices as published. Needs root. The publisher can
    /// then take over this machine.
    pub owner: bool,
    /// Leave out what cannot be made here instead of giving up.
    pub skip_special: bool,
    /// Bytes of the target's file system that stay free.
    pub keep_free_bytes: u64,
    /// Number of files (inodes) of the target's file system that stay free, if it has a limit.
    pub keep_free_files: u64,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        ExtractOptions {
            owner: false,
            skip_special: false,
            keep_free_bytes: 64 << 20,
            keep_free_files: 1024,
        }
    }
}

/// What was made.
#[derive(Debug, Default)]
pub struct Extracted {
    /// What was made, in numbers; the content of a hard-linked file counts once.
    pub totals: Totals,
    /// Entries and attributes that were left out.
    pub skipped_count: u64,
    /// The first of them: path, and why.
    pub skipped: Vec<(PathBuf, String)>,
}

/// Why a tree could not be extracted. Files that were made until then stay.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The bytes cannot be fetched, or cannot be proved.
    #[error("{}", path.display())]
    Read {
        /// Inside the volume.
        path: PathBuf,
        /// Why not.
        #[source]
        why: ReadError,
    },
    /// The target is not an empty directory.
    #[error("{} is not an empty directory", path.display())]
    NotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// The system returned an error.
    #[error("cannot make {}", path.display())]
    System {
        /// Inside the target.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A device or another entry that only root may make, and only for a trusted publisher.
    #[error("{} is a {what}, which is made only by root and with --owner", path.display())]
    Special {
        /// Inside the target.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The tree needs more space than there is.
    #[error(
        "{}: the target's file system is nearly full; the tree is larger than what it can hold",
        path.display()
    )]
    NoRoom {
        /// What was being made, inside the target.
        path: PathBuf,
    },
    /// The tree is deeper than [`crate::verify::MAX_DEPTH`].
    #[error("{} is nested too deeply", path.display())]
    TooDeep {
        /// Inside the target.
        path: PathBuf,
    },
    /// A task ended without a result, which is a defect of this program.
    #[error("a task died: {0}")]
    Died(String),
}

impl ExtractError {
    /// The product-wide name of the error, if it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            ExtractError::Read { why, .. } => why.class(),
            _ => None,
        }
    }
}

/// Copies the tree of `snapshot` into `target`, which is made when missing and must be empty.
///
/// # Errors
/// [`ExtractError`]; the first one ends the work.
pub async fn extract(
    volume: &Arc<Volume>,
    snapshot: &Arc<Snapshot>,
    target: &Path,
    options: &ExtractOptions,
    tally: &Arc<Tally>,
) -> Result<Extracted, ExtractError> {
    let root = open_target(target)?;
    let mut work = Work {
        shared: Arc::new(Shared {
            volume: Arc::clone(volume),
            tree: snapshot.tree().read_once(),
            options: options.clone(),
            tally: Arc::clone(tally),
        }),
        root: Arc::new(root),
        links: HashMap::new(),
        tasks: JoinSet::new(),
        // The target is the root directory.
        made: Extracted {
            totals: Totals::of(snapshot.root()),
            ..Extracted::default()
        },
    };
    let outcome = work.tree(snapshot).await;
    // No task writes any more when this returns, even after an error.
    let mut drained = Ok(());
    while let Some(settled) = work.settle_one().await {
        drained = drained.and(settled);
    }
    outcome.and(drained)?;
    work.finish_root()?;
    Ok(work.made)
}

/// The result of a task for its file.
struct Written {
    path: Bytes,
    left_out: Vec<String>,
}

struct Work {
    shared: Arc<Shared>,
    root: Arc<OwnedFd>,
    /// Hard-link sets that were begun: the encoded inode, and its first path.
    links: HashMap<Vec<u8>, Bytes>,
    tasks: JoinSet<Result<Written, ExtractError>>,
    made: Extracted,
}

impl Work {
    async fn tree(&mut self, snapshot: &Snapshot) -> Result<(), ExtractError> {
        let top = snapshot.root().as_ref().clone();
        let shared = Arc::clone(&self.shared);
        let mut walk = Walk::new(snapshot, Bytes::new(), top, Reads::Everything);
        // The directories that are being filled.
        let mut open = vec![Arc::clone(&self.root)];
        loop {
            let step = walk.next(|| shared.how()).await;
            let step = step.map_err(|Unlisted { path, why }| ExtractError::Read {
                path: shown(&path),
                why,
            })?;
            match step {
                None => return Ok(()),
                Some(Step::Left { path, inode }) => {
                    // Everything in it has been made (filling its files does not change it): the mode and
                    // time that are set now stay.
                    if let (Some(done), false) = (open.pop(), open.is_empty()) {
                        self.directory_attributes(&done, &path, &inode).await?;
                    }
                }
                Some(Step::Entry { path, name, inode }) => {
                    let Some(directory) = open.last().map(Arc::clone) else {
                        return Ok(());
                    };
                    // The reader has checked names already. Checked again, because a bad one leaves the target.
                    check_name(&name).map_err(|why| ExtractError::Read {
                        path: shown(&path),
                        why: ReadError::of_signed(why),
                    })?;
                    if self.made.totals.entries() % ROOM_EVERY == 1 {
                        self.shared.check_room(directory.as_fd(), &path, 0)?;
                    }
                    if !matches!(inode.content, Content::Directory { .. }) {
                        self.entry(&directory, &name, path, inode).await?;
                        continue;
                    }
                    if walk.depth() >= MAX_DEPTH {
                        return Err(ExtractError::TooDeep { path: shown(&path) });
                    }
                    open.push(self.directory(&directory, &name, &path)?);
                    self.made.totals.add(Totals::of(&inode));
                    walk.enter(path, inode);
                }
            }
        }
    }

    /// Makes a directory.
    fn directory(
        &self,
        parent: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<Arc<OwnedFd>, ExtractError> {
        rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(system(path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = open_beneath(parent.as_fd(), name, flags, Mode::empty());
        Ok(Arc::new(fd.map_err(system(path))?))
    }

    async fn entry(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        path: Bytes,
        inode: Inode,
    ) -> Result<(), ExtractError> {
        let mut totals = Totals::of(&inode);
        if inode.link_group.is_some() {
            // Keyed by the whole inode: if a publisher makes members of one set differ, each becomes a
            // file of its own.
            let key = inode.encode();
            if let Some(first) = self.links.get(&key) {
                let first = first.clone();
                totals.bytes = 0;
                self.made.totals.add(totals);
                self.shared.tally.add(1, 0);
                return self.link(&first, directory, name, &path);
            }
            self.links.insert(key, path.clone());
        }
        self.made.totals.add(totals);
        match &inode.content {
            Content::Regular(_) => self.file(directory, name, path, inode).await,
            Content::Symlink(target) => {
                rustix::fs::symlinkat(&**target, directory, name).map_err(system(&path))?;
                self.named_attributes(directory, name, &path, &inode)
            }
            Content::Fifo => self.node(directory, name, &path, &inode, FileType::Fifo, 0),
            Content::Socket => self.node(directory, name, &path, &inode, FileType::Socket, 0),
            Content::CharDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                self.node(
                    directory,
                    name,
                    &path,
                    &inode,
                    FileType::CharacterDevice,
                    device,
                )
            }
            Content::BlockDevice { major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                self.node(
                    directory,
                    name,
                    &path,
                    &inode,
                    FileType::BlockDevice,
                    device,
                )
            }
            Content::Directory { .. } => Ok(()),
        }
    }

    /// Makes a file here, and fills it in a task.
    async fn file(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        path: Bytes,
        inode: Inode,
    ) -> Result<(), ExtractError> {
        while self.tasks.len() >= TASKS {
            if let Some(settled) = self.settle_one().await {
                settled?;
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = open_beneath(directory.as_fd(), name, flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(system(&path))?;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            shared.content(fd.as_fd(), &path, &inode).await?;
            let left_out = shared.attributes(fd.as_fd(), &path, &inode).await?;
            Ok(Written { path, left_out })
        });
        Ok(())
    }

    /// Another name of a file that was made before, found again beneath the target.
    fn link(
        &mut self,
        first: &[u8],
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<(), ExtractError> {
        let (parent, base) = split(first);
        let parent = if parent.is_empty() {
            Arc::clone(&self.root)
        } else {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let fd = open_beneath(self.root.as_fd(), parent, flags, Mode::empty());
            Arc::new(fd.map_err(system(path))?)
        };
        rustix::fs::linkat(&parent, base, directory, name, AtFlags::empty()).map_err(system(path))
    }

    fn node(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
        inode: &Inode,
        kind: FileType,
        device: Dev,
    ) -> Result<(), ExtractError> {
        let what = match kind {
            FileType::CharacterDevice => "character device",
            FileType::BlockDevice => "block device",
            _ => "special file",
        };
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        let made = if is_device && !self.shared.options.owner {
            Err(Errno::PERM)
        } else {
            rustix::fs::mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)
        };
        match made {
            Ok(()) => self.named_attributes(directory, name, path, inode),
            Err(Errno::PERM) if self.shared.options.skip_special => {
                self.made.totals.other = self.made.totals.other.saturating_sub(1);
                self.skipped(path, format!("a {what}, which only root may make"));
                Ok(())
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
        let stay = AtFlags::SYMLINK_NOFOLLOW;
        if let (true, Some(owner)) = (self.shared.options.owner, &inode.owner) {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            rustix::fs::chownat(directory, name, Some(uid), Some(gid), stay)
                .map_err(system(path))?;
        }
        if !matches!(inode.content, Content::Symlink(_)) {
            rustix::fs::chmodat(directory, name, self.shared.mode(inode), AtFlags::empty())
                .map_err(system(path))?;
        }
        rustix::fs::utimensat(directory, name, &times(inode), stay).map_err(system(path))?;
        self.shared.tally.add(1, 0);
        Ok(())
    }

    async fn directory_attributes(
        &mut self,
        done: &OwnedFd,
        path: &[u8],
        inode: &Inode,
    ) -> Result<(), ExtractError> {
        let left_out = self.shared.attributes(done.as_fd(), path, inode).await?;
        for why in left_out {
            self.skipped(path, why);
        }
        Ok(())
    }

    /// The target itself comes last, because its mode may forbid the other steps.
    fn finish_root(&mut self) -> Result<(), ExtractError> {
        let top = Arc::clone(self.shared.tree.root());
        rustix::fs::fchmod(&self.root, self.shared.mode(&top)).map_err(system(b""))?;
        rustix::fs::futimens(&self.root, &times(&top)).map_err(system(b""))
    }

    /// Waits for one file; `None` when there is none.
    async fn settle_one(&mut self) -> Option<Result<(), ExtractError>> {
        let written = match self.tasks.join_next().await? {
            Ok(Ok(written)) => written,
            Ok(Err(error)) => return Some(Err(error)),
            Err(died) => return Some(Err(ExtractError::Died(died.to_string()))),
        };
        self.shared.tally.add(1, 0);
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

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => {
            let (parent, base) = path.split_at(at);
            (parent, base.strip_prefix(b"/").unwrap_or(base))
        }
        None => (b"", path),
    }
}
