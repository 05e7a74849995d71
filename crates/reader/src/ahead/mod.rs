//! Fetches a whole tree before a depth-first reader comes to it. Such a reader would wait a round trip for each
//! directory and each file; here a broad tree comes in about as many round trips as it is deep.
//!
//! [`plan`] decides what is fetched and when, without I/O; [`Ahead`] carries its requests out. A request is
//! [`Blocks::get_many`] like any read, so it brings nothing that is not verified. The reader never waits for it: a block
//! that has not come, or failed, is fetched by the reader itself, which gets the error.

mod plan;
mod selection;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use trust::array::Child;
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::map::{Interval, Item, MapRoot, Node};

use crate::blocks::{Blocks, Fetch};
use crate::error::ReadError;
use crate::spawner::Spawner;
use plan::{Place, Plan, Request, Wanted};
pub use selection::Selection;

/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Fetched before the reader comes to it, bytes, if the cache has room for it.
const MOST_AHEAD_BYTES: u64 = 64 << 20;

/// What a place fetches to find blocks for somebody who reads a part of a tree, or names, at most, bytes.
const SMALL_INDEX_BYTES: u64 = 8 << 20;

/// What a reader of a tree is going to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Names and inodes of one directory, and nothing below it.
    Directory,
    /// Names and inodes.
    Names,
    /// Names, inodes, content and extended attributes.
    Everything,
}

impl Reads {
    /// How much a place may fetch to find the blocks that are read below `path`, at most, bytes
    /// ([`store::BlockStore::prepare`]); `None` if they are few.
    pub fn index_bytes(self, path: &[u8]) -> Option<u64> {
        match self {
            Reads::Directory => None,
            Reads::Everything if path.is_empty() => Some(u64::MAX),
            Reads::Names | Reads::Everything => Some(SMALL_INDEX_BYTES),
        }
    }
}

/// Says of a path and its inode whether the reader has the content of the file already.
#[derive(Clone)]
pub struct Here(Arc<Says>);

type Says = dyn Fn(&[u8], &Inode) -> bool + Send + Sync;

impl Here {
    /// What `says` says. It is asked for each file, and must be quick.
    pub fn new(says: impl Fn(&[u8], &Inode) -> bool + Send + Sync + 'static) -> Here {
        Here(Arc::new(says))
    }
}

impl std::fmt::Debug for Here {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Here")
    }
}

/// Blocks that are fetched before a depth-first reader comes to them. Ends when it is dropped.
#[derive(Debug)]
pub struct Ahead {
    work: Arc<Work>,
}

#[derive(Debug)]
struct Work {
    blocks: Arc<Blocks>,
    spawner: Spawner,
    reads: Reads,
    /// Of this only, if it is given.
    selection: Option<Selection>,
    /// Of these files no content.
    here: Option<Here>,
    plan: Mutex<Plan>,
    is_prepared: AtomicBool,
    has_ended: AtomicBool,
    ended: Notify,
}

impl Ahead {
    /// Begins to fetch what is below `top`, the inode at `path` (names with `/` between them).
    pub(crate) fn begin(
        blocks: &Arc<Blocks>,
        spawner: Spawner,
        (path, top): (&[u8], &Inode),
        (reads, here): (Reads, Option<Here>),
    ) -> Ahead {
        Ahead::start(blocks, spawner, (path, top), (reads, None, here))
    }

    /// Begins to fetch parts of the tree below `top`, in no particular order. A path that the tree does not have is skipped.
    /// The memory budget is that of a reader of a whole tree.
    pub(crate) fn parts(
        blocks: &Arc<Blocks>,
        spawner: Spawner,
        top: &Inode,
        selection: Selection,
    ) -> Ahead {
        let how = (Reads::Everything, Some(selection), None);
        Ahead::start(blocks, spawner, (b"", top), how)
    }

    fn start(
        blocks: &Arc<Blocks>,
        spawner: Spawner,
        (path, top): (&[u8], &Inode),
        (reads, selection, here): (Reads, Option<Selection>, Option<Here>),
    ) -> Ahead {
        let (_, cache_bytes) = blocks.memory_bytes();
        let work = Arc::new(Work {
            blocks: Arc::clone(blocks),
            spawner,
            reads,
            selection,
            here,
            plan: Mutex::new(Plan::new(MOST_AHEAD_BYTES.min(cache_bytes / 4))),
            is_prepared: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            ended: Notify::new(),
        });
        if work.selection.is_none()
            && let Some(most_bytes) = reads.index_bytes(path)
        {
            work.prepare(most_bytes);
        }
        work.add(&Place::of_path(path), top);
        work.go_on();
        Ahead { work }
    }

    /// The same for a reader of whom nobody knows whether it is going to read the directories below `top`. It fetches
    /// names and inodes, and only after [`Ahead::open`].
    pub(crate) fn perhaps(blocks: &Arc<Blocks>, spawner: Spawner, top: &MapRoot) -> Ahead {
        let (_, cache_bytes) = blocks.memory_bytes();
        let mut plan = Plan::unknown(MOST_AHEAD_BYTES.min(cache_bytes / 8));
        plan.add(Wanted::Directory(Place::of_path(b""), top.child_ref()));
        plan.used(top.handle.as_bytes());
        let work = Work {
            blocks: Arc::clone(blocks),
            spawner,
            reads: Reads::Names,
            selection: None,
            here: None,
            plan: Mutex::new(plan),
            is_prepared: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            ended: Notify::new(),
        };
        Ahead {
            work: Arc::new(work),
        }
    }

    /// The reader has listed the directory with this root and found these entries. False if nothing is known of this
    /// directory here.
    pub(crate) fn used(&self, map: &MapRoot, entries: &[(Bytes, Inode)]) -> bool {
        let place = self.work.plan().used(map.handle.as_bytes());
        let Some(place) = place else {
            return false;
        };
        for (name, inode) in entries {
            self.work.add_entry(&place, name, inode);
        }
        true
    }

    /// The reader seems to read everything: what is known is fetched.
    pub(crate) fn open(&self) {
        self.work.plan().open();
        self.work.prepare(SMALL_INDEX_BYTES);
        self.work.go_on();
    }

    /// The reader has come to this path: blocks before it make room for others.
    pub fn reached(&self, path: &[u8]) {
        self.work.plan().reached(&Place::of_path(path));
        self.work.go_on();
    }

    /// The reader has listed these entries of the directory at `path`.
    pub fn listed(&self, path: &[u8], entries: &[(Bytes, Inode)]) {
        let directory = Place::of_path(path);
        for (name, inode) in entries {
            self.work.add_entry(&directory, name, inode);
        }
        self.work.go_on();
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.work.has_ended.store(true, Ordering::Relaxed);
        self.work.ended.notify_one();
    }
}

impl Work {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what an entry of the directory at a place leads to.
    fn add_entry(&self, directory: &Place, name: &[u8], inode: &Inode) {
        let is_directory = matches!(inode.content, Content::Directory { .. });
        let leads_on = match self.reads {
            Reads::Directory => false,
            Reads::Names => is_directory,
            Reads::Everything => true,
        };
        if leads_on {
            self.add(&directory.entry(name), inode);
        }
    }

    /// Whether nothing is left out, or this is chosen.
    fn chooses(&self, is_chosen: impl FnOnce(&Selection) -> bool) -> bool {
        self.selection.as_ref().is_none_or(is_chosen)
    }

    /// Whether a range of the content at a place is to be fetched.
    fn chooses_range(&self, place: &Place, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        self.chooses(|selection| selection.needs(place, &range))
    }

    fn is_here(&self, place: &Place, inode: &Inode) -> bool {
        let says = |Here(here): &Here| here(&place.path(), inode);
        self.here.as_ref().is_some_and(says)
    }

    /// Adds what an inode at a place leads to.
    fn add(&self, place: &Place, inode: &Inode) {
        let is_file = matches!(inode.content, Content::Regular(FileContent::Array(_)));
        let is_here = is_file && self.is_here(place, inode);
        let mut plan = self.plan();
        if let Content::Directory { map: Some(map), .. } = &inode.content
            && self.chooses(|selection| selection.needs_names(place, &Interval::everything()))
        {
            plan.add(Wanted::Directory(place.clone(), map.child_ref()));
        }
        if self.reads != Reads::Everything {
            return;
        }
        if let Content::Regular(FileContent::Array(root)) = &inode.content
            && self.chooses_range(place, 0, root.len)
            && !is_here
        {
            plan.add(Wanted::Content(place.clone(), 0, root.top()));
        }
        if let Xattrs::Stored(root) = &inode.xattrs
            && self.selection.is_none()
        {
            plan.add(Wanted::Content(place.clone(), 0, root.top()));
        }
    }

    /// Has the mirrors get what they need to find many blocks, at most so many bytes of it; once.
    fn prepare(self: &Arc<Self>, most_bytes: u64) {
        if self.is_prepared.swap(true, Ordering::Relaxed) {
            return;
        }
        let work = Arc::clone(self);
        self.spawner.spawn(async move {
            tokio::select! {
                () = work.blocks.mirrors().prepare(most_bytes) => {}
                () = work.ended.notified() => {}
            }
        });
    }

    /// Starts the requests for which there is room.
    fn go_on(self: &Arc<Self>) {
        if self.spawner.is_none() {
            return;
        }
        while !self.has_ended.load(Ordering::Relaxed) {
            // Not inside the loop's head: the lock must be free before a task is spawned.
            let request = self.plan().next();
            let Some(request) = request else { break };
            let mut task = Task {
                work: Arc::clone(self),
                request,
                began: Instant::now(),
                has_failed: true,
            };
            self.spawner.spawn(async move {
                task.run().await;
                let work = Arc::clone(&task.work);
                drop(task);
                work.go_on();
            });
        }
    }
}

/// A request of the plan; given back when this is dropped.
struct Task {
    work: Arc<Work>,
    request: Request,
    began: Instant,
    has_failed: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let mut plan = self.work.plan();
        plan.finished(&self.request, took, self.has_failed);
    }
}

impl Task {
    async fn run(&mut self) {
        if self.work.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let how = Fetch::Until(Instant::now() + DEADLINE);
        // An error is for the reader to report, which meets the block too.
        self.has_failed = self.fetch(how).await.is_err();
    }

    async fn fetch(&self, how: Fetch) -> Result<(), ReadError> {
        let blocks = &self.work.blocks;
        match self.request.wanted.first() {
            Some(Wanted::Directory(..)) => self.fetch_directories(how).await,
            Some(Wanted::Inode(..)) => self.fetch_inodes(how).await,
            Some(Wanted::Content(_, _, Child::Node { .. })) => self.fetch_nodes(how).await,
            Some(Wanted::Content(_, _, Child::Extent(_))) => {
                let (handles, lens) = self.request.data();
                blocks.get_sized(&handles, &lens, how).await.map(drop)
            }
            None => Ok(()),
        }
    }

    async fn fetch_directories(&self, how: Fetch) -> Result<(), ReadError> {
        let wanted = self.request.wanted.iter();
        let directories: Vec<_> = wanted
            .filter_map(|wanted| match wanted {
                Wanted::Directory(place, child) => Some((wanted, place, child)),
                _ => None,
            })
            .collect();
        let handles: Vec<_> = directories.iter().map(|(.., child)| child.handle).collect();
        let nodes = self.work.blocks.get_many(&handles, how).await?;
        for ((wanted, place, child), node) in directories.into_iter().zip(nodes) {
            let bytes = node.weight_bytes() as u64;
            self.work.plan().weighed(wanted, bytes);
            // Decoding many nodes takes long, and other tasks wait for this thread.
            tokio::task::consume_budget().await;
            if node.check(child).is_ok() {
                self.entries(place, &node, &child.interval);
            }
        }
        Ok(())
    }

    /// Adds what a node of the directory at a place leads to.
    fn entries(&self, place: &Place, node: &Node, interval: &Interval) {
        for item in node.items(interval) {
            match item {
                Item::Child(child) => {
                    let interval = &child.interval;
                    let is_needed = |selection: &Selection| selection.needs_names(place, interval);
                    if self.work.chooses(is_needed) {
                        let wanted = Wanted::Directory(place.clone(), child);
                        self.work.plan().add(wanted);
                    }
                }
                Item::Entry(name, _) if !self.leads_on(place, &name) => {}
                Item::Entry(name, value) => match Entry::decode(&value) {
                    Ok(Entry::Inode(inode)) => self.work.add_entry(place, &name, &inode),
                    Ok(Entry::Block(handle)) => {
                        let wanted = Wanted::Inode(place.entry(&name), handle);
                        self.work.plan().add(wanted);
                    }
                    Err(_) => {}
                },
            }
        }
    }

    /// Whether anything at or below an entry of the directory at a place is to be fetched.
    fn leads_on(&self, directory: &Place, name: &[u8]) -> bool {
        let leads = |selection: &Selection| selection.leads_to(&directory.entry(name));
        self.work.chooses(leads)
    }

    async fn fetch_inodes(&self, how: Fetch) -> Result<(), ReadError> {
        let wanted = self.request.wanted.iter();
        let (places, handles): (Vec<_>, Vec<_>) = wanted
            .filter_map(|wanted| match wanted {
                Wanted::Inode(place, handle) => Some((place, *handle)),
                _ => None,
            })
            .unzip();
        let inodes = self.work.blocks.get_many(&handles, how).await?;
        for (place, inode) in places.into_iter().zip(inodes) {
            if self.work.reads != Reads::Directory {
                self.work.add(place, &inode);
            }
        }
        Ok(())
    }

    async fn fetch_nodes(&self, how: Fetch) -> Result<(), ReadError> {
        let wanted = self.request.wanted.iter();
        let nodes: Vec<_> = wanted
            .filter_map(|wanted| match wanted {
                Wanted::Content(place, offset, Child::Node { handle, len, level }) => {
                    Some((wanted, (place, *offset), *handle, (*level, *len)))
                }
                _ => None,
            })
            .collect();
        let handles: Vec<_> = nodes.iter().map(|(_, _, handle, _)| *handle).collect();
        let decoded = self.work.blocks.get_many(&handles, how).await?;
        for ((wanted, (place, offset), _, (level, len)), node) in nodes.into_iter().zip(decoded) {
            let mut plan = self.work.plan();
            plan.weighed(wanted, node.weight_bytes() as u64);
            if node.check(level, len).is_err() {
                continue;
            }
            let mut at = offset;
            for child in node.children() {
                let len = child.len();
                if self.work.chooses_range(place, at, len) {
                    plan.add(Wanted::Content(place.clone(), at, child));
                }
                at = at.saturating_add(len);
            }
        }
        Ok(())
    }
}
