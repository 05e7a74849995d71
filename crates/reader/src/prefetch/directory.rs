//! Files of one directory that are wanted one after the other: the rest is fetched before it is asked for.
//!
//! A program that starts opens some files of each of some directories. From afar each costs a round trip.
//! Where a reader has waited long for two files of a directory, the directory's other small files are
//! fetched meanwhile, those behind it in the order of names first; where it has waited for two directories
//! of a directory, the first nodes of the others. As with read-around, tallies of what came and of what
//! was wanted afterwards decide: while much is wanted, one wait is enough; while little is, nothing is
//! fetched. So who wants little of what lies together does not download a tree. What is under way is
//! bounded by an eighth of the cache's budget.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use trust::Handle;
use trust::array::{ArrayRoot, Child};
use trust::inode::{Content, FileContent, Inode, Mtime};
use trust::map::MapRoot;

use crate::blocks::Fetch;
use crate::error::ReadError;
use crate::extents::{BATCH_BLOCKS, data_handles};
use crate::read_around::{Expect, ReadAroundPolicy, Usage, Worth};
use crate::tree::Tree;

/// Names that are remembered.
const MAX_KNOWN: usize = 8192;
/// Directories that are remembered.
const MAX_PLACES: usize = 64;
/// Waits in one directory before the others are fetched.
const PROVEN_WAITS: u32 = 2;
/// A shorter wait is no reason to fetch anything ahead.
const LONG: Duration = Duration::from_millis(5);
/// Bytes under way at most, where the cache has room for them.
const MOST_UNDER_WAY_BYTES: u64 = 16 << 20;
/// Bytes that are fetched for one directory at a time, at most, and of one request.
const BATCH_BYTES: u64 = 4 << 20;
const REQUEST_BYTES: u64 = 256 << 10;
/// Larger files are a sequential reader's affair, bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// What a directory's first node counts for, bytes; how many of the nearest are a request each, with what
/// their files begin with; how many of the others are one request.
const NODE_BYTES: u64 = 8 << 10;
const NEAREST_NODES: usize = 32;
const NODES: usize = 32;
/// Names that are looked through for one fetch.
const MAX_NAMES: usize = 1024;
/// How long a fetch may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// What is alike in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Files,
    Directories,
}

/// What is to be fetched: the others in a directory, those behind a name first.
#[derive(Debug, Clone)]
pub struct SiblingRequest {
    directory: MapRoot,
    alike: EntryKind,
    behind: Bytes,
}

#[derive(Debug)]
struct KnownEntry {
    others: SiblingRequest,
    /// Of the fetch that brought it, until it is wanted; with its length, bytes.
    unasked: Option<(Arc<Usage>, u64)>,
}

#[derive(Debug)]
struct Place {
    directory: MapRoot,
    alike: EntryKind,
    waits: u32,
    under_way: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By the top of a file's content or of a directory's tree.
    known: HashMap<[u8; 32], KnownEntry>,
    order: VecDeque<[u8; 32]>,
    /// Newest first.
    places: VecDeque<Place>,
}

/// The directories that are being gone through.
#[derive(Debug)]
pub struct DirectoryPrefetch {
    state: Mutex<State>,
    around: ReadAroundPolicy,
    under_way_bytes: AtomicU64,
    most_bytes: u64,
    /// What is fetched for one directory at a time.
    batch_bytes: u64,
}

/// What a directory or file is known by.
fn top_of(inode: &Inode) -> Option<([u8; 32], EntryKind)> {
    match &inode.content {
        Content::Regular(FileContent::Array(root)) => Some((root.top, EntryKind::Files)),
        Content::Directory { map: Some(map), .. } => {
            Some((*map.handle.as_bytes(), EntryKind::Directories))
        }
        _ => None,
    }
}

impl DirectoryPrefetch {
    /// With an eighth of this budget, at most.
    pub fn new(cache_bytes: u64) -> Self {
        let most_bytes = (cache_bytes / 8).min(MOST_UNDER_WAY_BYTES);
        DirectoryPrefetch {
            state: Mutex::default(),
            around: ReadAroundPolicy::default(),
            under_way_bytes: AtomicU64::new(0),
            most_bytes,
            batch_bytes: most_bytes.min(BATCH_BYTES),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where something was found.
    pub fn found(&self, directory: &MapRoot, name: &[u8], inode: &Inode) {
        let Some((top, alike)) = top_of(inode) else {
            return;
        };
        let mut state = self.state();
        if state.known.contains_key(&top) {
            return;
        }
        let others = SiblingRequest {
            directory: *directory,
            alike,
            behind: Bytes::copy_from_slice(name),
        };
        state.remember(top, others, None);
    }

    /// Notes that something is wanted. Gives what to fetch meanwhile, if much of what was fetched so
    /// was wanted lately; who takes it must say when it is done.
    pub fn wanted(&self, top: &[u8; 32], will_wait: bool) -> Option<SiblingRequest> {
        let mut state = self.state();
        let known = state.known.get_mut(top)?;
        if let Some((tally, bytes)) = known.unasked.take() {
            tally.wanted(bytes);
        }
        let others = known.others.clone();
        if !will_wait || self.around.worth() != Worth::Much {
            return None;
        }
        self.take(&mut state, others)
    }

    /// Notes that a reader had to wait long. Gives what to fetch, as [`DirectoryPrefetch::wanted`].
    pub fn waited(&self, top: &[u8; 32]) -> Option<SiblingRequest> {
        let mut state = self.state();
        let others = state.known.get(top)?.others.clone();
        let place = state.place(&others);
        place.waits += 1;
        if place.waits < PROVEN_WAITS || self.around.budget(Expect::Near) == 0 {
            return None;
        }
        self.take(&mut state, others)
    }

    /// Notes that a reader had to wait long for a directory in which it looks up a name. Gives the files
    /// of it to fetch, as [`DirectoryPrefetch::wanted`].
    fn entered(&self, directory: &MapRoot, name: &[u8]) -> Option<SiblingRequest> {
        if self.around.worth() != Worth::Much {
            return None;
        }
        let others = SiblingRequest {
            directory: *directory,
            alike: EntryKind::Files,
            behind: Bytes::copy_from_slice(name),
        };
        self.take(&mut self.state(), others)
    }

    fn take(&self, state: &mut State, others: SiblingRequest) -> Option<SiblingRequest> {
        let under_way = &self.under_way_bytes;
        if under_way.load(Ordering::Relaxed) + self.batch_bytes > self.most_bytes {
            return None;
        }
        let place = state.place(&others);
        if place.under_way {
            return None;
        }
        place.under_way = true;
        place.waits = 0;
        under_way.fetch_add(self.batch_bytes, Ordering::Relaxed);
        Some(others)
    }

    /// Notes what is going to come, with the length of each, bytes: its tally.
    fn coming(&self, others: &SiblingRequest, came: &[([u8; 32], Bytes, u64)]) -> Arc<Usage> {
        let tally = Arc::new(Usage::default());
        let mut state = self.state();
        for (top, name, bytes) in came {
            tally.brought(*bytes);
            let others = SiblingRequest {
                behind: name.clone(),
                ..others.clone()
            };
            state.remember(*top, others, Some((tally.clone(), *bytes)));
        }
        tally
    }

    /// The fetch has ended, however it ended.
    fn done(&self, others: &SiblingRequest, tally: Option<Arc<Usage>>) {
        self.under_way_bytes
            .fetch_sub(self.batch_bytes, Ordering::Relaxed);
        self.state().place(others).under_way = false;
        if let Some(tally) = tally {
            self.around.keep(tally);
        }
    }
}

impl State {
    fn remember(
        &mut self,
        top: [u8; 32],
        others: SiblingRequest,
        unasked: Option<(Arc<Usage>, u64)>,
    ) {
        if self
            .known
            .insert(top, KnownEntry { others, unasked })
            .is_none()
        {
            self.order.push_back(top);
        }
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn place(&mut self, others: &SiblingRequest) -> &mut Place {
        let same = |p: &Place| p.directory == others.directory && p.alike == others.alike;
        let at = self.places.iter().position(same);
        let place = at.and_then(|at| self.places.remove(at));
        let place = place.unwrap_or(Place {
            directory: others.directory,
            alike: others.alike,
            waits: 0,
            under_way: false,
        });
        self.places.truncate(MAX_PLACES - 1);
        self.places.push_front(place);
        &mut self.places[0]
    }
}

impl Tree {
    /// A directory is wanted: what lies beside it may be fetched meanwhile.
    pub fn go_to_directory(&self, map: &MapRoot, how: Fetch) {
        let will_wait = how != Fetch::Cached && !self.blocks().holds(&map.handle.any());
        self.go_to(map.handle.as_bytes(), will_wait);
    }

    /// The same for a file's content. Whether what lies beside it is fetched.
    pub async fn go_to_file(&self, root: &ArrayRoot, how: Fetch) -> bool {
        let will_wait = how != Fetch::Cached
            && (!self.blocks().holds(&Handle::from_bytes(root.top))
                // What is wrong with the content, its reader will see.
                || (root.len <= MAX_FILE_BYTES
                    && matches!(self.holds_content(root).await, Ok(false))));
        self.go_to(&root.top, will_wait)
    }

    fn go_to(&self, top: &[u8; 32], will_wait: bool) -> bool {
        let others = self.blocks().siblings().wanted(top, will_wait);
        let is_fetched = others.is_some();
        others
            .into_iter()
            .for_each(|others| self.fetch_others(others));
        is_fetched
    }

    /// The first node of a directory is there, where a name is looked up.
    pub fn arrived_at(&self, directory: &MapRoot, name: &[u8], waited: Duration) {
        self.arrived(directory.handle.as_bytes(), waited);
        if waited >= LONG
            && let Some(others) = self.blocks().siblings().entered(directory, name)
        {
            self.fetch_others(others);
        }
    }

    /// It is there.
    pub fn arrived(&self, top: &[u8; 32], waited: Duration) {
        if waited >= LONG
            && let Some(others) = self.blocks().siblings().waited(top)
        {
            self.fetch_others(others);
        }
    }

    fn fetch_others(&self, others: SiblingRequest) {
        let Some(runtime) = self.blocks().runtime() else {
            self.blocks().siblings().done(&others, None);
            return;
        };
        let snapshot = self.clone();
        runtime.spawn(async move {
            let how = Fetch::Until(Instant::now() + DEADLINE);
            // Nobody waits for it: a reader who comes for these blocks sees why they are missing.
            let tally = snapshot.others(&others, how).await.ok();
            snapshot.blocks().siblings().done(&others, tally);
        });
    }

    async fn others(&self, others: &SiblingRequest, how: Fetch) -> Result<Arc<Usage>, ReadError> {
        let map = Some(others.directory);
        let content = Content::Directory { map, opaque: false };
        let directory = Inode::new(0o755, Mtime::default(), content);
        let behind = Some(others.behind.as_ref());
        let mut entries = self.list(&directory, behind, MAX_NAMES, how).await?;
        if entries.len() < MAX_NAMES {
            entries.extend(self.list(&directory, None, MAX_NAMES, how).await?);
        }
        let (mut files, mut nodes, mut coming) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut seen) = (0, HashSet::new());
        for (name, inode) in entries {
            // What follows may be no more than looks into memory, and many of them.
            tokio::task::consume_budget().await;
            let Some((top, alike)) = top_of(&inode) else {
                continue;
            };
            if alike != others.alike || !seen.insert(top) {
                continue;
            }
            let holds = self.blocks().holds(&Handle::from_bytes(top));
            let len = match &inode.content {
                Content::Regular(FileContent::Array(root)) if root.len <= MAX_FILE_BYTES => {
                    if holds && self.holds_content(root).await? {
                        continue;
                    }
                    root.len
                }
                Content::Directory { .. } if !holds => NODE_BYTES,
                _ => continue,
            };
            bytes += len;
            if bytes > self.blocks().siblings().batch_bytes {
                break;
            }
            match &inode.content {
                Content::Regular(FileContent::Array(root)) => files.push(*root),
                Content::Directory { map: Some(map), .. } => nodes.push(map.handle),
                _ => continue,
            }
            coming.push((top, name, len));
        }
        let tally = self.blocks().siblings().coming(others, &coming);
        // The nearest each with what its files begin with, the others together.
        let (near, far) = nodes.split_at(nodes.len().min(NEAREST_NODES));
        let near = near
            .iter()
            .map(|node| self.blocks().get(node, Expect::Next, how));
        let far = far
            .chunks(NODES)
            .map(|some| self.blocks().get_many(some, how));
        join(join_all(near), join_all(far)).await;
        let requests = requests(&files);
        join_all(requests.into_iter().map(|some| self.contents(some, how))).await;
        Ok(tally)
    }

    /// Whether a content whose top is in memory is there whole: the top may have come with the directory.
    /// One that is cut into too many extents is as good as there: it is not fetched ahead.
    async fn holds_content(&self, root: &ArrayRoot) -> Result<bool, ReadError> {
        match data_handles(self.blocks(), root, BATCH_BLOCKS, Fetch::Cached).await {
            Err(ReadError::NotCached) => Ok(false),
            all => Ok(all?
                .iter()
                .flatten()
                .all(|data| self.blocks().holds(&data.any()))),
        }
    }

    /// Fetches these files, but for those that would make it more than one request's blocks: a publisher
    /// may cut a small file into very many.
    async fn contents(&self, files: &[ArrayRoot], how: Fetch) -> Result<(), ReadError> {
        let node = |root: &ArrayRoot| match root.top() {
            Child::Node { handle, .. } => Some(handle),
            Child::Extent(_) => None,
        };
        let nodes: Vec<_> = files.iter().filter_map(node).collect();
        self.blocks().get_many(&nodes, how).await?;
        let mut handles = Vec::new();
        for root in files {
            let most = BATCH_BLOCKS - handles.len();
            let data = data_handles(self.blocks(), root, most, how).await?;
            handles.extend(data.into_iter().flatten());
        }
        self.blocks().get_many(&handles, how).await.map(drop)
    }
}

/// Files that are fetched in one request each.
fn requests(files: &[ArrayRoot]) -> Vec<&[ArrayRoot]> {
    let (mut requests, mut rest) = (Vec::new(), files);
    while !rest.is_empty() {
        let mut bytes = 0;
        let many = rest.iter().take_while(|root| {
            bytes += root.len;
            bytes <= REQUEST_BYTES
        });
        let (now, later) = rest.split_at(many.count().max(1));
        requests.push(now);
        rest = later;
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(number: u8) -> MapRoot {
        MapRoot {
            handle: Handle::from_bytes([number; 32]),
            height: 1,
            entries: 9,
            salt: Default::default(),
        }
    }

    fn file(number: u8) -> Inode {
        let root = ArrayRoot {
            len: 3000,
            height: 1,
            top: [number; 32],
        };
        let content = Content::Regular(FileContent::Array(root));
        Inode::new(0o644, Mtime::default(), content)
    }

    /// Two waits in each of some directories, and of what was fetched then all was wanted, or nothing.
    fn taught(siblings: &DirectoryPrefetch, all_wanted: bool) {
        for round in 0..4u8 {
            let directory = directory(100 + round);
            let first = 10 * round;
            siblings.found(&directory, b"a", &file(first));
            siblings.found(&directory, b"b", &file(first + 1));
            siblings.waited(&[first; 32]);
            let Some(others) = siblings.waited(&[first + 1; 32]) else {
                continue;
            };
            let came = [first + 2, first + 3].map(|n| ([n; 32], Bytes::new(), 3000));
            let tally = siblings.coming(&others, &came);
            siblings.done(&others, Some(tally));
            for (top, ..) in came.iter().filter(|_| all_wanted) {
                siblings.wanted(top, false);
            }
        }
    }

    #[test]
    fn one_wait_in_a_directory_is_no_reason_and_two_are() {
        let siblings = DirectoryPrefetch::new(256 << 20);
        siblings.found(&directory(1), b"a", &file(1));
        siblings.found(&directory(1), b"b", &file(2));
        siblings.found(&directory(2), b"c", &file(3));
        assert!(siblings.waited(&[1; 32]).is_none());
        assert!(siblings.waited(&[3; 32]).is_none(), "another directory");
        let others = siblings.waited(&[2; 32]).unwrap();
        assert_eq!(others.directory, directory(1));
        assert_eq!(others.alike, EntryKind::Files);
        assert_eq!(others.behind, b"b".as_slice());
    }

    #[test]
    fn who_enters_a_directory_gets_its_files_while_files_are_wanted() {
        let siblings = DirectoryPrefetch::new(256 << 20);
        let at_first = siblings.entered(&directory(1), b"m");
        assert!(at_first.is_none(), "nothing is known yet");
        taught(&siblings, true);
        let others = siblings.entered(&directory(1), b"m").unwrap();
        assert_eq!(others.directory, directory(1));
        assert_eq!(others.alike, EntryKind::Files);
        assert_eq!(others.behind, b"m".as_slice());
        let again = siblings.entered(&directory(1), b"n");
        assert!(again.is_none(), "it is under way");
        siblings.done(&others, None);
        assert!(siblings.entered(&directory(1), b"n").is_some());
    }

    #[test]
    fn who_wanted_nothing_of_it_gets_nothing_more() {
        let siblings = DirectoryPrefetch::new(256 << 20);
        taught(&siblings, false);
        assert!(siblings.entered(&directory(1), b"m").is_none());
        siblings.found(&directory(1), b"a", &file(90));
        assert!(siblings.wanted(&[90; 32], true).is_none());
    }

    #[test]
    fn what_is_under_way_is_bounded_and_given_back() {
        let siblings = DirectoryPrefetch::new(256 << 20);
        taught(&siblings, true);
        let enter = |number| siblings.entered(&directory(number), b"m");
        let taken: Vec<SiblingRequest> = (1..=20).filter_map(enter).collect();
        assert_eq!(taken.len() as u64, MOST_UNDER_WAY_BYTES / BATCH_BYTES);
        for others in &taken {
            siblings.done(others, None);
        }
        assert!(enter(30).is_some());
    }
}
