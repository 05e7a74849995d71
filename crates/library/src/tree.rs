//! One state of a volume of any kind: names, attributes and content, each proved before it is given.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::{Fetch, ReadError, Runs};
use share::files::{File, FileRef, Listed, Refused};
use trust::inode::{Content, Inode};
use trust::statement::VolumeId;
use trust::text::printable;
use trust_shared::principal::{FileId, Name};
use volume::{Snapshot, Volume};

use crate::error::Error;
use crate::path::{clean, join};
use crate::shared::SharedVolume;

/// Names of a published directory that are listed at a time.
const PAGE_NAMES: usize = 1024;

/// One state of a volume: a version of a published one, or a shared one now or after an entry of its log.
pub struct Tree<'a> {
    contents: reader::Tree,
    /// How long a step may take.
    deadline: Duration,
    pub(crate) of: Of<'a>,
}

/// Of which kind the volume is.
#[derive(Clone)]
pub(crate) enum Of<'a> {
    Published {
        volume: &'a Arc<Volume>,
        snapshot: Arc<Snapshot>,
    },
    Shared {
        volume: &'a SharedVolume,
        /// Size of the prefix of the log. None: the newest.
        size: Option<u64>,
    },
}

/// A file of a volume, of any kind, at a path.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its path from the root directory, names with `/` between them. Empty: the root directory.
    pub path: Bytes,
    /// Its attributes and what its content is. That of a shared directory has no entries and size 0.
    pub inode: Inode,
    /// Its number, in a shared volume.
    pub(crate) id: Option<FileId>,
}

/// What two names of one file have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    /// A set of names of a published version.
    Group([u8; 16]),
    /// A file of a shared volume.
    File(FileId),
}

/// Names of a directory, in the order of their bytes.
#[derive(Debug)]
pub struct Page {
    /// The files. One that this user may not read, or that is gone since, is left out.
    pub entries: Vec<Entry>,
    /// There may be more after this name, which need not exist. None: these are the last ones.
    pub next: Option<Bytes>,
}

impl Entry {
    /// Its last name; empty for the root directory.
    pub fn name(&self) -> &[u8] {
        let cut = self.path.iter().rposition(|byte| *byte == b'/');
        let begin = cut.map_or(0, |cut| cut + 1);
        self.path.get(begin..).unwrap_or_default()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.inode.content, Content::Directory { .. })
    }

    /// Its owner and its number, if the volume is a shared one.
    pub fn id(&self) -> Option<FileId> {
        self.id
    }

    /// What tells that another entry is the same file. None: it has no other name.
    pub(crate) fn link(&self) -> Option<Link> {
        match self.id {
            Some(id) => (self.inode.links > 1 && !self.is_directory()).then_some(Link::File(id)),
            None => self.inode.link_group.map(Link::Group),
        }
    }

    pub(crate) fn of_shared(path: Bytes, file: File) -> Entry {
        Entry {
            path,
            inode: Arc::unwrap_or_clone(file.inode),
            id: Some(file.id),
        }
    }
}

impl<'a> Tree<'a> {
    /// A version of a published volume.
    pub fn published(volume: &'a Arc<Volume>, snapshot: Arc<Snapshot>) -> Tree<'a> {
        Tree {
            contents: snapshot.tree().clone(),
            deadline: volume.patience(),
            of: Of::Published { volume, snapshot },
        }
    }

    /// A shared volume, after an entry of its log or now.
    pub fn shared(volume: &'a SharedVolume, entry: Option<u64>) -> Tree<'a> {
        let size = entry.map(|entry| entry.saturating_add(1));
        Tree {
            contents: volume.contents(),
            deadline: volume.deadline(),
            of: Of::Shared { volume, size },
        }
    }

    /// The same state for a reader that reads each file once, while a walk fetches all of it ahead: what was read leaves
    /// memory.
    pub fn read_once(&self) -> Tree<'a> {
        Tree {
            contents: self.contents.read_once(),
            deadline: self.deadline,
            of: self.of.clone(),
        }
    }

    /// Reads the content of its files.
    pub(crate) fn contents(&self) -> &reader::Tree {
        &self.contents
    }

    /// Until when a step may take that begins now.
    pub(crate) fn how(&self) -> Fetch {
        Fetch::Until(Instant::now() + self.deadline)
    }

    /// How long a step may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        match &self.of {
            Of::Published { volume, .. } => volume.id(),
            Of::Shared { volume, .. } => volume.home().volume(),
        }
    }

    /// The published version that it is.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        match &self.of {
            Of::Published { snapshot, .. } => Some(snapshot),
            Of::Shared { .. } => None,
        }
    }

    /// The shared volume that it is a state of.
    pub fn as_shared(&self) -> Option<&'a SharedVolume> {
        match &self.of {
            Of::Published { .. } => None,
            Of::Shared { volume, .. } => Some(volume),
        }
    }

    /// The root directory.
    ///
    /// # Errors
    /// As [`Tree::look_up`].
    pub async fn root(&self) -> Result<Entry, Error> {
        self.find(b"").await
    }

    /// The file at a path. A symbolic link in the middle is followed within the volume, one at the end is not. None is
    /// proved: the path does not exist.
    ///
    /// # Errors
    /// [`Error`]: the path is none, or no server answers, or what it answers is refused.
    pub async fn look_up(&self, path: &[u8]) -> Result<Option<Entry>, Error> {
        self.resolve(path, false).await
    }

    /// As [`Tree::look_up`]; a symbolic link at the end is followed too. The path of the entry is the one that was
    /// asked for.
    ///
    /// # Errors
    /// As [`Tree::look_up`].
    pub async fn follow(&self, path: &[u8]) -> Result<Option<Entry>, Error> {
        self.resolve(path, true).await
    }

    /// As [`Tree::look_up`], for a file that must be there.
    ///
    /// # Errors
    /// [`Error::NotFound`] besides.
    pub async fn find(&self, path: &[u8]) -> Result<Entry, Error> {
        let found = self.look_up(path).await?;
        found.ok_or_else(|| Error::not_found(path))
    }

    async fn resolve(&self, path: &[u8], follow: bool) -> Result<Option<Entry>, Error> {
        let path = Bytes::from(clean(path));
        match &self.of {
            Of::Published { snapshot, .. } => {
                let found = match follow {
                    true => snapshot.follow(&path, self.how()).await,
                    false => snapshot.resolve(&path, self.how()).await,
                };
                let found = found.map_err(|why| about(&path, why))?;
                Ok(found.map(|inode| Entry {
                    path,
                    inode: Inode::clone(&inode),
                    id: None,
                }))
            }
            Of::Shared { volume, size } => {
                let place = volume.place(&path)?;
                let found = volume.look_at(*size, &place, follow).await?;
                Ok(found.map(|file| Entry::of_shared(path, file)))
            }
        }
    }

    /// Whether a directory has this name.
    pub(crate) async fn inside(&self, directory: &Entry, name: &[u8]) -> Result<bool, Error> {
        match &self.of {
            Of::Published { .. } => {
                let found = self.contents.lookup(&directory.inode, name, self.how());
                Ok(found.await?.is_some())
            }
            Of::Shared { .. } => {
                match self.look_up(&join(&directory.path, name)).await {
                    // A name of this machine that no file of a volume can have.
                    Err(Error::BadPath { .. }) => Ok(false),
                    // It is there, and this user may not read it, or nobody can.
                    Err(Error::Refused {
                        why: Refused::NotPermitted | Refused::Damaged(_),
                        ..
                    }) => Ok(true),
                    found => Ok(found?.is_some()),
                }
            }
        }
    }

    /// Which of these names of this machine a directory has. Names that this user may not read count as absent in a
    /// shared volume.
    pub(crate) async fn known(
        &self,
        directory: &Entry,
        names: &[Vec<u8>],
    ) -> Result<Vec<bool>, Error> {
        let mut known = Vec::with_capacity(names.len());
        if let Of::Published { .. } = &self.of {
            for name in names {
                known.push(self.inside(directory, name).await?);
            }
            return Ok(known);
        }
        // Pages take fewer round trips than a look-up of each name.
        let (mut there, mut after) = (HashSet::new(), None);
        loop {
            let page = self.list(directory, after.as_deref()).await?;
            there.extend(page.entries.iter().map(|entry| entry.name().to_vec()));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        known.extend(names.iter().map(|name| there.contains(name)));
        Ok(known)
    }

    /// Names of a directory, those after `after`.
    ///
    /// # Errors
    /// As [`Tree::look_up`]; also if it is no directory.
    pub async fn list(&self, directory: &Entry, after: Option<&[u8]>) -> Result<Page, Error> {
        match &self.of {
            Of::Published { .. } => {
                let list = self
                    .contents
                    .list(&directory.inode, after, PAGE_NAMES, self.how());
                let names = list.await.map_err(|why| about(&directory.path, why))?;
                let next = names.last().filter(|_| names.len() == PAGE_NAMES);
                let next = next.map(|(name, _)| name.clone());
                let entry = |(name, inode): (Bytes, Inode)| Entry {
                    path: join(&directory.path, &name),
                    inode,
                    id: None,
                };
                let entries = names.into_iter().map(entry).collect();
                Ok(Page { entries, next })
            }
            Of::Shared { volume, size } => {
                let about = volume.place(&directory.path)?;
                let from = match directory.id {
                    Some(id) => FileRef::File(id),
                    None => FileRef::Place(about.clone()),
                };
                let bad = |why| Error::bad_path(&directory.path, format!("{why}"));
                let after = after.map(Name::new).transpose().map_err(bad)?;
                let page = volume.page(*size, from, &about, after, true).await?;
                let entry = |listed: Listed| {
                    let path = join(&directory.path, listed.name.as_bytes());
                    Some(Entry::of_shared(path, listed.file?))
                };
                let next = page
                    .next
                    .map(|name| Bytes::copy_from_slice(name.as_bytes()));
                let entries = page.names.into_iter().filter_map(entry).collect();
                Ok(Page { entries, next })
            }
        }
    }

    /// Bytes of a file from `offset` on, in pieces: at most `len`, fewer at its end. Behind the end there are no pieces.
    ///
    /// # Errors
    /// As [`Tree::look_up`]; also if it is no regular file.
    pub async fn read(&self, file: &Entry, offset: u64, len: usize) -> Result<Vec<Bytes>, Error> {
        let read = self.contents.read(&file.inode, offset, len, self.how());
        let mut pieces = read.await.map_err(|why| about(&file.path, why))?;
        pieces.retain(|piece| !piece.is_empty());
        Ok(pieces)
    }

    /// Where a file has data between two offsets, and up to where that is known; the rest are holes.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub async fn data_runs(&self, file: &Entry, from: u64, until: u64) -> Result<Runs, Error> {
        let runs = self
            .contents
            .data_runs(&file.inode, from, until, self.how());
        runs.await.map_err(|why| about(&file.path, why).into())
    }

    /// Extended attributes of a file, sorted by name.
    ///
    /// # Errors
    /// As [`Tree::look_up`].
    pub async fn xattrs(&self, file: &Entry) -> Result<Vec<(Bytes, Bytes)>, Error> {
        let xattrs = self.contents.xattrs(&file.inode, self.how());
        xattrs.await.map_err(|why| about(&file.path, why).into())
    }
}

/// Adds the path that was asked for to an error of the reader that does not have it.
pub(crate) fn about(path: &[u8], error: ReadError) -> ReadError {
    match error {
        ReadError::WrongKind { path: unknown, why } if unknown.is_empty() => {
            let path = printable(path);
            ReadError::WrongKind { path, why }
        }
        error => error,
    }
}
