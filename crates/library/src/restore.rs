//! Brings back what a shared volume had after an earlier entry of its log: each file gets its old content and attributes
//! as a new version, and the log keeps both. Files that came later stay.
//!
//! No content travels: the old blocks are named again. The server is asked to keep them first ([`touch`]); a file
//! of which it has collected a block is left as it is. Directories that files go into are known by their numbers, so a member
//! that makes a name a symbolic link meanwhile does not lead the restore elsewhere. Memory: a page for each level of
//! directories, `AT_ONCE` files, and a number for each file of several names.

use std::collections::HashMap;
use std::sync::Mutex;

use content::upload::UploadError;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use reader::Reads;
use share::client::Sink;
use share::files::{Attributes, Call, File, FileRef, Refused, Replace, Seen};
use share::writeback::lock;
use trust::change::alike;
use trust::inode::{Content, FileContent, FileKind, Inode, Time, Xattrs};
use trust_shared::principal::{FileId, Name};

use crate::error::Error;
use crate::path::clean;
use crate::shared::places::{self, Address};
use crate::shared::{Made, SharedVolume};
use crate::touch::{TouchError, touch};
use crate::tree::{Entry, Tree};
use crate::walk::{MAX_DEPTH, Step};

/// Files that are restored at a time: they share entries of the log and round trips.
const AT_ONCE: usize = 64;

/// Most paths that are told of; more are only counted.
pub const MAX_SKIPPED_TOLD: usize = 1000;

/// What a restore has done.
#[derive(Debug, Default)]
pub struct Restored {
    /// Regular files that have their old content or attributes again.
    pub files: u64,
    /// Directories that were made, or have their old permissions again.
    pub directories: u64,
    /// Symbolic links, pipes, sockets.
    pub other: u64,
    /// Files and directories that were as they are to be.
    pub unchanged: u64,
    /// Content of `files`, bytes.
    pub bytes: u64,
    /// What was left as it is: the first [`MAX_SKIPPED_TOLD`] paths, and why.
    pub skipped: Vec<(Vec<u8>, Skipped)>,
    /// How much was left as it is.
    pub skipped_count: u64,
}

/// Why a file was left as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skipped {
    /// A directory has its name now, or had it then and a file has it now.
    OtherKind,
    /// Somebody has changed it meanwhile.
    Changed,
    /// This user may not write it.
    NotPermitted,
    /// It could not be listed: it is hidden from this user.
    Unlisted,
    /// The server does not have all of its old content any more.
    Collected,
}

impl SharedVolume {
    /// Restores what was at `path` after an entry of the log, with all that was in it. It goes to `to`, whose directory is
    /// made as it was if `to` is `path` and the directory is gone.
    ///
    /// # Errors
    /// [`Error::NotFound`] if nothing was there, or `to` has no directory; [`Error::Read`] if a block is lost;
    /// as [`SharedVolume::change`]. What was restored before stays.
    pub async fn restore(&self, entry: u64, path: &[u8], to: &[u8]) -> Result<Restored, Error> {
        let past = Tree::shared(self, Some(entry));
        let top = past.find(path).await?;
        let restoring = Restoring {
            shared: self,
            past: &past,
            sink: self.sink(),
            done: Mutex::default(),
            linked: Mutex::default(),
            made: Mutex::default(),
        };
        let is_same_place = clean(path) == clean(to);
        let at = restoring.above(to, is_same_place).await?;
        restoring.everything(top, at).await?;
        let mut done = std::mem::take(&mut *lock(&restoring.done));
        done.skipped.sort();
        Ok(done)
    }
}

struct Restoring<'a> {
    shared: &'a SharedVolume,
    past: &'a Tree<'a>,
    sink: Sink,
    done: Mutex<Restored>,
    /// Files of several names: what they became.
    linked: Mutex<HashMap<FileId, Option<FileId>>>,
    /// Directories that were made, with their old times: names in them change these.
    made: Mutex<Vec<(FileId, Time)>>,
}

type Task<'a> = LocalBoxFuture<'a, Result<(), Error>>;

impl<'a> Restoring<'a> {
    /// The name to restore to, in a directory that is there.
    async fn above(&self, to: &[u8], is_same_place: bool) -> Result<Address, Error> {
        let place = self.shared.place(to)?;
        let Some((_, above)) = place.path.split_last() else {
            return Ok(Address::of(place));
        };
        let mut at = Address::of(self.shared.place(b"")?);
        let mut id = self.shared.client().root();
        for (depth, name) in above.iter().enumerate() {
            at = at.inside(id, name);
            let found = self.shared.look(&at.name, true).await?;
            id = match found {
                Some(file) if file.inode.kind() == FileKind::Directory => file.id,
                None if is_same_place => {
                    let names = above.get(..=depth).unwrap_or_default();
                    let names: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
                    let was = self.past.find(&names.join(&b'/')).await?;
                    self.new_directory(&at, &was.inode).await?
                }
                _ => return Err(Error::not_found(&places::path_of(&at.path))),
            };
        }
        let name = place.path.last();
        Ok(name.map_or_else(|| Address::of(place.clone()), |name| at.inside(id, name)))
    }

    async fn everything(&self, top: Entry, at: Address) -> Result<(), Error> {
        if !top.is_directory() {
            self.file(top, at).await?;
            return Ok(());
        }
        let Some(id) = self.directory(&top.inode, &at).await? else {
            return Ok(());
        };
        let mut walk = self.past.walk(&top, Reads::Names);
        let mut inside = vec![(at, id)];
        let mut links = Vec::new();
        let mut under_way = FuturesUnordered::<Task<'_>>::new();
        loop {
            let entry = match walk.next().await {
                Ok(None) => break,
                Ok(Some(Step::Entry(entry))) => entry,
                Ok(Some(Step::Left(_))) => {
                    inside.pop();
                    continue;
                }
                Err(unlisted) if unlisted.is_hidden() => {
                    self.skipped_at(unlisted.path.to_vec(), Skipped::Unlisted);
                    inside.pop();
                    continue;
                }
                Err(unlisted) => return Err(unlisted.why),
            };
            let Some((above, id)) = inside.last() else {
                return Err(Error::Defect);
            };
            let name = Name::new(entry.name());
            let name = name.map_err(|why| Error::bad_path(&entry.path, why.to_string()))?;
            let at = above.inside(*id, &name);
            if entry.is_directory() {
                if inside.len() >= MAX_DEPTH {
                    return Err(Error::too_deep(&entry.path));
                }
                if let Some(id) = self.directory(&entry.inode, &at).await? {
                    inside.push((at, id));
                    walk.enter(entry);
                }
                continue;
            }
            // The other names of a file are linked when it is there.
            let of = entry.id().filter(|_| entry.inode.links > 1);
            if let Some(of) = of
                && self.has_begun(of)
            {
                links.push((of, entry, at));
                continue;
            }
            while under_way.len() >= AT_ONCE
                && let Some(done) = under_way.next().await
            {
                done?;
            }
            under_way.push(Box::pin(self.file(entry, at)));
        }
        while let Some(done) = under_way.next().await {
            done?;
        }
        for (of, entry, at) in links {
            self.link(of, entry, at).await?;
        }
        self.set_times().await
    }

    fn has_begun(&self, of: FileId) -> bool {
        let mut linked = lock(&self.linked);
        let is_known = linked.contains_key(&of);
        linked.entry(of).or_default();
        is_known
    }

    fn skipped(&self, at: &Address, why: Skipped) {
        self.skipped_at(places::path_of(&at.path), why);
    }

    fn skipped_at(&self, path: Vec<u8>, why: Skipped) {
        let mut done = lock(&self.done);
        done.skipped_count += 1;
        if done.skipped.len() < MAX_SKIPPED_TOLD {
            done.skipped.push((path, why));
        }
    }

    /// A directory as it was. None: something else has its name.
    async fn directory(&self, was: &Inode, at: &Address) -> Result<Option<FileId>, Error> {
        let Some(there) = self.shared.look(&at.name, false).await? else {
            return Ok(Some(self.new_directory(at, was).await?));
        };
        if there.inode.kind() != FileKind::Directory {
            self.skipped(at, Skipped::OtherKind);
            return Ok(None);
        }
        if there.inode.mode != was.mode {
            let attributes = Attributes {
                mode: Some(was.mode),
                ..Attributes::default()
            };
            if self.set(&there, attributes, at).await? {
                lock(&self.done).directories += 1;
            }
        } else {
            lock(&self.done).unchanged += 1;
        }
        Ok(Some(there.id))
    }

    async fn new_directory(&self, at: &Address, was: &Inode) -> Result<FileId, Error> {
        let mut inode = was.clone();
        if !self.touch(was).await? {
            self.skipped(at, Skipped::Collected);
            inode.xattrs = Xattrs::None;
        }
        let id = self.shared.create(at, inode, None).await?;
        lock(&self.done).directories += 1;
        lock(&self.made).push((id, was.mtime));
        Ok(id)
    }

    /// Any other file as it was.
    fn file(&self, was: Entry, at: Address) -> Task<'_> {
        Box::pin(async move {
            let there = self.shared.look(&at.name, false).await?;
            let id = match there {
                Some(there) if there.inode.kind() == FileKind::Directory => {
                    self.skipped(&at, Skipped::OtherKind);
                    return Ok(());
                }
                Some(there) if alike(&there.inode, &was.inode) => {
                    lock(&self.done).unchanged += 1;
                    Some(there.id)
                }
                Some(there) if can_be_set(&there.inode, &was.inode) => {
                    let set = self.set_all(&there, &was.inode, &at).await?;
                    set.then_some(there.id)
                }
                there => self.new_file(there, &was.inode, &at).await?,
            };
            if let (Some(of), Some(id)) = (was.id(), id) {
                lock(&self.linked)
                    .entry(of)
                    .and_modify(|became| *became = Some(id));
            }
            Ok(())
        })
    }

    /// Gives a regular file that is there its old content and attributes. Its other names show them too.
    async fn set_all(&self, there: &File, was: &Inode, at: &Address) -> Result<bool, Error> {
        if there.inode.content != was.content {
            if !self.touch(was).await? {
                self.skipped(at, Skipped::Collected);
                return Ok(false);
            }
            let call = Call::SetContent {
                file: FileRef::File(there.id),
                content: was.content.clone(),
                mtime: was.mtime,
                expect: Some(there.inode.content.clone()),
            };
            if !self.tried(self.shared.change(call, &|| at.shown()).await, at)? {
                return Ok(false);
            }
        }
        let attributes = Attributes {
            mode: (there.inode.mode != was.mode).then_some(was.mode),
            mtime: Some(was.mtime),
            owner: None,
            xattrs: Vec::new(),
        };
        let is_set = there.inode.mode == was.mode && there.inode.content != was.content;
        if !is_set && !self.set(there, attributes, at).await? {
            return Ok(false);
        }
        self.counted(was);
        Ok(true)
    }

    /// A new file in the place of what is there.
    async fn new_file(
        &self,
        there: Option<File>,
        was: &Inode,
        at: &Address,
    ) -> Result<Option<FileId>, Error> {
        if !self.touch(was).await? {
            self.skipped(at, Skipped::Collected);
            return Ok(None);
        }
        let seen = there.map(|there| (there.id, there.inode.content.clone()));
        let replace = Replace::Seen(Seen(seen));
        let made = self.shared.make(at, was.clone(), None, replace).await;
        let id = match made {
            Ok(Made::Alone(id) | Made::Over(id, _)) => id,
            Ok(Made::Stale) => {
                self.skipped(at, Skipped::Changed);
                return Ok(None);
            }
            Err(why) => return self.tried(Err(why), at).map(|_| None),
        };
        self.counted(was);
        Ok(Some(id))
    }

    /// Another name of a file that is there again.
    async fn link(&self, of: FileId, was: Entry, at: Address) -> Result<(), Error> {
        let Some(became) = lock(&self.linked).get(&of).copied().flatten() else {
            // Its first name was left as it is.
            return self.file(was, at).await;
        };
        let there = self.shared.look(&at.name, false).await?;
        if there.is_some_and(|there| there.id == became) {
            lock(&self.done).unchanged += 1;
            return Ok(());
        }
        let call = Call::Link {
            file: FileRef::File(became),
            to: at.name.clone(),
        };
        match self.shared.change(call, &|| at.shown()).await {
            // Another file has the name: it gets the content.
            Err(Error::Refused {
                why: Refused::Exists,
                ..
            }) => self.file(was, at).await,
            linked => {
                if self.tried(linked, &at)? {
                    self.counted(&was.inode);
                }
                Ok(())
            }
        }
    }

    async fn set(&self, there: &File, attributes: Attributes, at: &Address) -> Result<bool, Error> {
        let call = Call::SetAttributes {
            file: FileRef::File(there.id),
            attributes,
            expect: None,
        };
        self.tried(self.shared.change(call, &|| at.shown()).await, at)
    }

    /// Whether a change had effect. What stops only this file is noted.
    fn tried(&self, outcome: Result<(), Error>, at: &Address) -> Result<bool, Error> {
        let why = match outcome {
            Ok(()) => return Ok(true),
            Err(Error::Refused {
                why: Refused::Stale | Refused::NotFound | Refused::NotADirectory | Refused::Exists,
                ..
            }) => Skipped::Changed,
            Err(Error::Refused {
                why: Refused::NotPermitted,
                ..
            }) => Skipped::NotPermitted,
            Err(why) => return Err(why),
        };
        self.skipped(at, why);
        Ok(false)
    }

    fn counted(&self, was: &Inode) {
        let mut done = lock(&self.done);
        match was.content {
            Content::Regular(_) => {
                done.files += 1;
                done.bytes = done.bytes.saturating_add(was.size);
            }
            _ => done.other += 1,
        }
    }

    /// Gives the directories that were made their old times.
    async fn set_times(&self) -> Result<(), Error> {
        let made = std::mem::take(&mut *lock(&self.made));
        for (directory, mtime) in made {
            let attributes = Attributes {
                mtime: Some(mtime),
                ..Attributes::default()
            };
            let call = Call::SetAttributes {
                file: FileRef::File(directory),
                attributes,
                expect: None,
            };
            let about = || "the time of a directory".to_owned();
            match self.shared.change(call, &about).await {
                // Somebody has removed it meanwhile.
                Err(Error::Refused {
                    why: Refused::Stale | Refused::NotFound,
                    ..
                }) => {}
                set => set?,
            }
        }
        Ok(())
    }

    /// Asks the server to keep the blocks of a file. Gives whether it has all of them.
    async fn touch(&self, was: &Inode) -> Result<bool, Error> {
        let content = match &was.content {
            Content::Regular(FileContent::Array(root)) => Some(root),
            _ => None,
        };
        let xattrs = match &was.xattrs {
            Xattrs::Stored(root) => Some(root),
            Xattrs::None | Xattrs::Inline(_) => None,
        };
        for root in content.into_iter().chain(xattrs) {
            let touched = touch(self.past.contents(), &self.sink, root, || self.past.how());
            let is_there = touched.await.map_err(|why| match why {
                TouchError::Read(why) => Error::Read(why),
                TouchError::Sink(why) => UploadError::Sink(why).into(),
            })?;
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a file can become what it was without a new one in its place: then it keeps its number and its other names.
fn can_be_set(there: &Inode, was: &Inode) -> bool {
    let both_are = there.kind() == FileKind::Regular && was.kind() == FileKind::Regular;
    both_are && there.xattrs == was.xattrs && there.owner == was.owner
}
