//! Restores files that this device wrote and that the chosen log lacks after a fork. They come back as copies beside what
//! stands, so that nothing is replaced and nothing runs again in silence (decision 0052).
//!
//! What was written is in the memory of the epoch before. The entries of this device that the new log does not have are
//! sorted out: files and symbolic links with a name come back as `NAME (conflict device N DATE)` in the directory where
//! they were, directories that only these entries made are made again, and the rest (changes of files that stand, moves,
//! removals, decisions about members) is counted, for people. A process that is killed meanwhile does it again: a copy that is there with the same
//! content is not made twice.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reader::{Blocks, Fetch, Prefetcher, ReadError, Spawner, Tree};
use state::private;
use store::Replica;
use store::mirrors::Mirrors;
use trust::tree::inode::{Content, FileKind, Inode};
use trust_shared::change::Change;
use trust_shared::guard::Guard;
use trust_shared::ops::{Body, Op};
use trust_shared::principal::{FileId, Name};

use super::connection::{Connection, Lost as Away, Trouble};
use super::driver::Command;
use super::other_place::{OtherPlace, PATIENCE};
use super::own_place::Return;
use super::paths::Paths;
use super::returned::Returned;
use super::{Client, ClientError, NewFile};
use crate::conflict::conflict_name;
use crate::files::{Answer, Call, File, Place};
use crate::home::GIVEN_BACK;
use ordering::signed::Entry;

/// Copies of one name and day.
const MAX_COPIES: u32 = 100;
/// Content that is read at a time, bytes.
const WINDOW_BYTES: u64 = 1 << 20;
/// Memory for blocks of lost work, bytes.
const MEMORY_BYTES: u64 = 16 << 20;

/// What came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Entries of this device that the log does not have.
    pub entries: u64,
    /// Files that are there again.
    pub copies: Vec<Copy>,
    /// Files whose content or directory nobody gives: the path that each had, from the root directory as far as it is
    /// known, and why.
    pub lacking: Vec<(Vec<u8>, String)>,
    /// Changes of files that stand, moves, removals and decisions about members, which do not come back.
    pub others: u64,
}

impl GivenBack {
    /// Whether there is something to tell.
    pub fn is_news(&self) -> bool {
        self.entries > 0 || !self.copies.is_empty() || !self.lacking.is_empty()
    }
}

/// A file that is there again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// The name that it had.
    pub name: Name,
    /// The name that it has now, in the same directory if that is still there.
    pub copy: Name,
    /// Whether its directory is gone, so that it lies in the root directory.
    pub in_root: bool,
}

/// A file that only lost entries have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) file: FileId,
    parent: FileId,
    name: Name,
    pub(super) inode: Arc<Inode>,
}

/// What lost entries did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    directories: HashMap<FileId, Written>,
    pub(super) files: Vec<Written>,
    /// Where directories were, as guards of the entries say.
    linked: HashMap<FileId, (FileId, Name)>,
    others: u64,
    /// Entries whose body is not on this device.
    unread: u64,
}

impl Lost {
    /// Sorts entries of one device, in their order. What they made and removed again is left out.
    pub(super) fn of(entries: &[Entry]) -> Lost {
        let mut lost = Lost::default();
        let mut inodes: HashMap<FileId, Arc<Inode>> = HashMap::new();
        let mut names: Vec<((FileId, Name), FileId)> = Vec::new();
        // Files of which only the content or the attributes were changed.
        let mut changed: HashSet<FileId> = HashSet::new();
        for entry in entries {
            if entry.signed().entry().is_resume() {
                continue;
            }
            let Some(Ok(body)) = entry.body().map(|body| Body::decode(body)) else {
                lost.unread = lost.unread.saturating_add(1);
                continue;
            };
            let guards = body.ops().iter().flat_map(|op| &op.guards);
            lost.linked.extend(guards.filter_map(place_of));
            changed.extend(body.ops().iter().filter_map(changed_by));
            for change in body.ops().iter().flat_map(|op| &op.changes) {
                match change {
                    Change::Set { file, inode } => {
                        let mut inode = Arc::clone(inode);
                        if let Some(before) = inodes.get(file)
                            && inode.kind() == FileKind::Directory
                        {
                            Arc::make_mut(&mut inode).mtime = before.mtime;
                        }
                        inodes.insert(*file, inode);
                    }
                    Change::Touch {
                        directory, mtime, ..
                    } => {
                        if let Some(inode) = inodes.get_mut(directory) {
                            Arc::make_mut(inode).mtime = *mtime;
                        }
                    }
                    Change::Remove { file } => {
                        inodes.remove(file);
                        changed.remove(file);
                        names.retain(|(_, target)| target != file);
                    }
                    Change::Link {
                        directory,
                        name,
                        target,
                    } => {
                        let place = (*directory, name.clone());
                        names.retain(|(other, _)| *other != place);
                        names.push((place, target.file));
                    }
                    Change::Unlink { directory, name } => {
                        let place = (*directory, name.clone());
                        let before = names.len();
                        names.retain(|(other, _)| *other != place);
                        if names.len() == before {
                            lost.others = lost.others.saturating_add(1);
                        }
                    }
                    Change::Decide(_) => lost.others = lost.others.saturating_add(1),
                    Change::Fold { .. }
                    | Change::Lock { .. }
                    | Change::Unlock { .. }
                    | Change::Pass { .. }
                    | Change::Claim { .. }
                    | Change::Hold { .. }
                    | Change::Release { .. } => {}
                }
            }
        }
        for ((parent, name), file) in names {
            changed.remove(&file);
            let Some(inode) = inodes.get(&file) else {
                // A file that stands got another name.
                lost.others = lost.others.saturating_add(1);
                continue;
            };
            let written = Written {
                file,
                parent,
                name,
                inode: Arc::clone(inode),
            };
            match inode.kind() {
                FileKind::Directory => drop(lost.directories.insert(file, written)),
                _ => lost.files.push(written),
            }
        }
        // No entry names them, so they have no place to come back to.
        lost.others = lost.others.saturating_add(changed.len() as u64);
        lost
    }
}

impl Lost {
    /// Where directories are, as far as these entries say.
    fn places(&self) -> HashMap<FileId, (FileId, Name)> {
        let made = self.directories.values();
        let made = made.map(|it| (it.file, (it.parent, it.name.clone())));
        self.linked.clone().into_iter().chain(made).collect()
    }
}

/// The file whose content or attributes an op changes, if it changes nothing else.
fn changed_by(op: &Op) -> Option<FileId> {
    match op.changes.as_slice() {
        [Change::Set { file, .. }] => Some(*file),
        _ => None,
    }
}

/// The directory that a guard is about, and where it is.
fn place_of(guard: &Guard) -> Option<(FileId, (FileId, Name))> {
    match guard {
        Guard::Linked {
            directory,
            parent,
            name,
        } => Some((*directory, (*parent, name.clone()))),
        _ => None,
    }
}

fn copy_name(written: &Written, which: u32) -> Option<Name> {
    let device = written.file.number.device;
    conflict_name(&written.name, device, written.inode.mtime.seconds, which)
}

impl Client {
    /// Gives back what this device wrote and the log does not have. Call it when the engine runs; once it has ended
    /// well there is nothing to give back any more. `other`: a place that may have content that this device and the server
    /// do not have. `patience`: how long each call may take.
    ///
    /// # Errors
    /// [`ClientError::Disk`] when the memory of an earlier epoch cannot be read; those of [`Client::call`];
    /// [`ClientError::Deadline`] when the content of a file does not come, or a device is silent. Then the next call goes
    /// on.
    pub async fn give_back(
        &self,
        other: Option<&Arc<OtherPlace>>,
        patience: Duration,
    ) -> Result<GivenBack, ClientError> {
        let until = Instant::now() + patience;
        let memories = self.0.before.owing();
        self.0.before.memories().owed = None;
        let entries = self.ask(until, Command::Lost).await??;
        let lost = Lost::of(&entries);
        let own = |entry: &&Entry| !entry.signed().entry().is_resume();
        let mut given = GivenBack {
            entries: entries.iter().filter(own).count() as u64,
            others: lost.others.saturating_add(lost.unread),
            ..GivenBack::default()
        };
        let (mut made, mut later) = (HashMap::new(), None);
        let mut paths = Paths::of(self.root(), lost.places());
        let mut returned = Returned::read(&memories);
        if returned.has_begun {
            (given.entries, given.others) = (0, 0);
        }
        let tree = self.returning(other, patience);
        let other = other.map(|other| other.lent().place);
        for written in &lost.files {
            if returned.has(written.file) {
                continue;
            }
            let back = match is_readable(&tree, &written.inode, patience).await {
                Ok(()) => self.put_back(written, &lost, &mut made, patience).await,
                Err(error) => read_failed(&error, other.as_deref()),
            };
            match back {
                Ok(Ok(copy)) => {
                    returned.files.insert(written.file);
                    given.copies.push(copy);
                }
                Ok(Err(why)) => {
                    let path = paths
                        .path(self, (written.parent, &written.name), until)
                        .await;
                    given.lacking.push((path, why));
                }
                // What does not come must not hold up the others.
                Err(error) if Instant::now() < until => later = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = later {
            return Err(error);
        }
        if given.lacking.is_empty() {
            for memory in &memories {
                mark(memory)?;
            }
        } else {
            // Nothing is given up unasked. A later process tries again; this one has told it.
            returned.write(&memories)?;
            self.0.before.memories().tried = true;
        }
        Ok(given)
    }

    /// Content of lost work: from this disk or from another place, from where it goes to the server, or from the server.
    fn returning(&self, other: Option<&Arc<OtherPlace>>, patience: Duration) -> Tree {
        let place: Arc<dyn Replica> = Arc::new(Return {
            own: self.0.own.clone(),
            other: other.cloned(),
            server: self.server_blocks(),
            sink: self.server_sink(patience),
        });
        let mirrors = Arc::new(Mirrors::new(vec![place]));
        let blocks = Blocks::new(self.hasher().clone(), mirrors, MEMORY_BYTES, None);
        let spawner = Spawner::on(tokio::runtime::Handle::current());
        Tree::of_contents(Prefetcher::new(Arc::new(blocks), spawner))
    }

    /// Puts one file beside what stands. The inner error says why it cannot be there.
    async fn put_back(
        &self,
        written: &Written,
        lost: &Lost,
        made: &mut HashMap<FileId, FileId>,
        patience: Duration,
    ) -> Result<Result<Copy, String>, ClientError> {
        let found = self.directory(written.parent, lost, made, patience).await?;
        let directory = found.unwrap_or(self.root());
        for which in 0..MAX_COPIES {
            let Some(name) = copy_name(written, which) else {
                break;
            };
            let place = Place {
                start: directory,
                path: vec![name.clone()],
            };
            let copy = Copy {
                name: written.name.clone(),
                copy: name,
                in_root: found.is_none(),
            };
            match self.make(&place, &written.inode, patience).await? {
                Answer::Done(_) => return Ok(Ok(copy)),
                Answer::Refused(crate::files::Refused::Exists) => {}
                Answer::Refused(why) => return Ok(Err(why.to_string())),
                _ => return Err(silent()),
            }
            // An earlier try may have ended after this.
            let there = self.file_at(place, patience).await?;
            if there.is_some_and(|file| file.inode.content == written.inode.content) {
                return Ok(Ok(copy));
            }
        }
        Ok(Err("there are too many copies of it".to_owned()))
    }

    /// The directory with this number, or the one that takes its place. None: it is gone.
    async fn directory(
        &self,
        wanted: FileId,
        lost: &Lost,
        made: &mut HashMap<FileId, FileId>,
        patience: Duration,
    ) -> Result<Option<FileId>, ClientError> {
        // The way up to a directory that stands, or was made again.
        let (mut way, mut seen) = (Vec::new(), HashSet::new());
        let mut at = wanted;
        let mut base = loop {
            if let Some(there) = made.get(&at) {
                break *there;
            }
            let place = Place {
                start: at,
                path: Vec::new(),
            };
            let there = self.file_at(place, patience).await?;
            if there.is_some_and(|file| file.inode.kind() == FileKind::Directory) {
                break at;
            }
            let Some(directory) = lost.directories.get(&at).filter(|_| seen.insert(at)) else {
                return Ok(None);
            };
            way.push(directory);
            at = directory.parent;
        };
        while let Some(directory) = way.pop() {
            let place = Place {
                start: base,
                path: vec![directory.name.clone()],
            };
            let there = match self.make(&place, &directory.inode, patience).await? {
                Answer::Done(file) => Some(file),
                Answer::Silent { .. } => return Err(silent()),
                _ => {
                    let there = self.file_at(place, patience).await?;
                    let there = there.filter(|it| it.inode.kind() == FileKind::Directory);
                    there.map(|file| file.id)
                }
            };
            let Some(there) = there else {
                return Ok(None);
            };
            made.insert(directory.file, there);
            base = there;
        }
        Ok(Some(base))
    }

    async fn make(
        &self,
        place: &Place,
        inode: &Inode,
        patience: Duration,
    ) -> Result<Answer, ClientError> {
        let file = NewFile {
            place: place.clone(),
            // It is made now, whenever it was written.
            inode: Inode {
                ctime: None,
                ..inode.clone()
            },
            owner: None,
            replace: false.into(),
        };
        Ok(self.create(file, Instant::now() + patience).await?.answer)
    }

    async fn file_at(&self, place: Place, patience: Duration) -> Result<Option<File>, ClientError> {
        let follow = false;
        let until = Instant::now() + patience;
        let answered = self.call(Call::Lookup { place, follow }, until).await?;
        match answered.answer {
            Answer::Found(file) => Ok(Some(file)),
            Answer::Silent { .. } => Err(silent()),
            _ => Ok(None),
        }
    }
}

/// Whether the content of a file is at the server now.
async fn is_readable(tree: &Tree, inode: &Inode, patience: Duration) -> Result<(), ReadError> {
    let patience = patience.min(PATIENCE);
    let how = Fetch::Until(Instant::now() + patience);
    tree.xattrs(inode, how).await?;
    if !matches!(inode.content, Content::Regular(_)) {
        return Ok(());
    }
    let (len, mut at) = (inode.content.size(), 0);
    while at < len {
        let how = Fetch::Until(Instant::now() + patience);
        let until = at.saturating_add(WINDOW_BYTES);
        let runs = tree.data_runs(inode, at, until, how).await?;
        for run in runs.data {
            let bytes = usize::try_from(run.end.saturating_sub(run.start)).unwrap_or(0);
            tree.read(inode, run.start, bytes, how).await?;
        }
        at = runs.until;
    }
    Ok(())
}

/// What a file comes to whose content cannot be read: it is lost if the server does not have it. Otherwise it may come
/// later.
fn read_failed(
    error: &ReadError,
    other: Option<&str>,
) -> Result<Result<Copy, String>, ClientError> {
    match error {
        ReadError::NotCached => Err(later(error.to_string())),
        ReadError::Unavailable { denied, .. } if denied.is_empty() => Err(later(error.to_string())),
        ReadError::Unavailable { .. } => Ok(Err(match other {
            None => "the server does not have its content".to_owned(),
            Some(other) => format!("neither the server nor {other} gives its content"),
        })),
        _ => Ok(Err(error.to_string())),
    }
}

fn later(why: String) -> ClientError {
    ClientError::Deadline {
        connection: Connection::Offline(Away::new(Trouble::Unreachable, why)),
    }
}

fn silent() -> ClientError {
    later("the server or another device is silent".to_owned())
}

/// Notes, durably, that nothing of a memory is to be given back.
fn mark(memory: &Path) -> Result<(), ClientError> {
    let written = private::replace(&memory.join(GIVEN_BACK), b"");
    written.map_err(|error| ClientError::Home(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::tree::inode::{FileContent, Time};
    use trust_shared::principal::{Device, INumber, Principal};

    fn written(name: &[u8], seconds: i64) -> Written {
        let file = FileId {
            principal: Principal::from_bytes([7; 32]),
            number: INumber {
                device: Device(3),
                counter: 9,
            },
        };
        let mtime = Time { seconds, nanos: 0 };
        let inode = Inode::new(0o644, mtime, Content::Regular(FileContent::Empty));
        Written {
            file,
            parent: file,
            name: Name::new(name).unwrap(),
            inode: Arc::new(inode),
        }
    }

    #[test]
    fn copy_is_named_after_its_file_device_and_day() {
        let name = |written: &Written, which| {
            let name = copy_name(written, which).unwrap();
            String::from_utf8(name.as_bytes().to_vec()).unwrap()
        };
        let plan = written(b"plan", 1_795_392_000);
        assert_eq!(name(&plan, 0), "plan (conflict device 3 2026-11-23)");
        assert_eq!(name(&plan, 1), "plan (conflict device 3 2026-11-23) 2");
    }
}
