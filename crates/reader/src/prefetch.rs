//! Prefetch above verified blocks: two pure policies decide, and [`Prefetcher`] carries their
//! requests out on the runtime of a [`Spawner`].
//!
//! | module | what it decides |
//! |---|---|
//! | `readahead` | what to request ahead of sequential readers, and which blocks to drop behind them |
//! | `directory` | when to request the entries beside one that a reader waited for |
//! | `walks` | when to fetch the directories below one that is walked |
//! | `batch` | which entries of a listing such a request brings |
//!
//! The policies do no I/O and read no clock: this module tells them what readers do and how long
//! they wait. A prefetch is [`Blocks::get_many`] like any read, with the same checks, so it cannot
//! bring a block in that a reader could not. No reader waits for a prefetch, and its errors are dropped:
//! a reader that needs such a block asks again and gets the error. See docs/decisions/0030.

mod batch;
mod directory;
mod readahead;
mod walks;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use trust::Handle;
use trust::array::{ArrayRoot, Child};
use trust::inode::Inode;
use trust::map::MapRoot;

use crate::ahead::Ahead;
use crate::blocks::{Blocks, Fetch, now};
use crate::entries;
use crate::error::ReadError;
use crate::extents::{BATCH_BLOCKS, data_handles, extents, next_batch};
use crate::read_around::{Expect, Usage};
use crate::spawner::Spawner;
use batch::{Batch, Candidate, MAX_FILE_BYTES};
use directory::{DirectoryPrefetch, LONG_WAIT, SiblingRequest};
use readahead::Readahead;
use walks::Walks;

/// How long a prefetch may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Entries that are looked through for one request.
const MAX_ENTRIES: usize = 1024;
/// Directory nodes that are fetched one by one, each with the blocks that follow it in the store.
const NEAREST_NODES: usize = 32;
/// Directory nodes of one further request.
const NODES: usize = 32;

/// Fetches what readers of a volume are likely to want next.
///
/// One prefetcher serves all versions of a volume, as its [`Blocks`] do.
pub struct Prefetcher {
    blocks: Arc<Blocks>,
    spawner: Spawner,
    readahead: Mutex<Readahead>,
    directories: Mutex<DirectoryPrefetch>,
    walks: Mutex<Walks>,
}

impl std::fmt::Debug for Prefetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetcher")
            .field("blocks", &self.blocks)
            .field("spawner", &self.spawner)
            .finish_non_exhaustive()
    }
}

impl Prefetcher {
    /// A prefetcher for `blocks` that runs on `spawner`. Readahead and prefetch of directories may
    /// each have an eighth of the memory cache's budget in progress.
    pub fn new(blocks: Arc<Blocks>, spawner: Spawner) -> Arc<Prefetcher> {
        let (_, cache_bytes) = blocks.memory_bytes();
        Arc::new(Prefetcher {
            blocks,
            spawner,
            readahead: Mutex::new(Readahead::new(cache_bytes)),
            directories: Mutex::new(DirectoryPrefetch::new(cache_bytes)),
            walks: Mutex::default(),
        })
    }

    /// The blocks that it fetches into.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The runtime on which it runs.
    pub(crate) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    fn readahead(&self) -> MutexGuard<'_, Readahead> {
        self.readahead
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, DirectoryPrefetch> {
        let directories = self.directories.lock();
        directories.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sequential readers.
impl Prefetcher {
    /// A reader is about to read `[offset, until)` of a content.
    pub(crate) fn content_read(&self, root: &ArrayRoot, offset: u64, until: u64) {
        self.readahead().read(root, offset, until);
    }

    /// Starts readahead, if this reader is a sequential one; `late` when the reader has to wait.
    pub(crate) fn read_ahead(self: &Arc<Self>, root: &ArrayRoot, late: bool) {
        if self.spawner.is_none() {
            return;
        }
        // Not inside the loop's head: the lock must be free before a task is spawned.
        let requests = self.readahead().requests(root, late);
        for request in requests {
            let mut task = ReadaheadTask {
                prefetcher: self.clone(),
                root: *root,
                request,
                began: Instant::now(),
            };
            self.spawner.spawn(async move { task.run().await });
        }
    }

    /// A read has come to the end of these blocks (handle and length in bytes).
    pub(crate) fn passed(&self, root: &ArrayRoot, blocks: impl Iterator<Item = (Handle, u64)>) {
        let dropped = self.readahead().passed(root, blocks);
        for handle in dropped {
            self.blocks.let_go(&handle);
        }
    }
}

/// A request of [`Readahead`]; given back when this is dropped.
struct ReadaheadTask {
    prefetcher: Arc<Prefetcher>,
    root: ArrayRoot,
    request: Range<u64>,
    began: Instant,
}

impl ReadaheadTask {
    async fn run(&mut self) {
        self.began = Instant::now();
        let (blocks, how) = (&self.prefetcher.blocks, Fetch::Until(self.began + DEADLINE));
        let Range { start, end } = self.request;
        if let Ok(extents) = extents(blocks, &self.root, start, end, how).await {
            let (_, batch) = next_batch(&extents);
            let _ = blocks.get_sized(&batch.handles, &batch.lens, how).await;
        }
    }
}

impl Drop for ReadaheadTask {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let mut readahead = self.prefetcher.readahead();
        readahead.finished(&self.root, &self.request, took);
    }
}

/// Directories that are read through.
impl Prefetcher {
    /// A reader found `inode` under `name`.
    pub(crate) fn entry_found(&self, directory: &MapRoot, name: &[u8], inode: &Inode) {
        self.directories().found(directory, name, inode);
    }

    /// A reader of whom nobody knows what it reads next has listed these entries of a directory. When it walks through
    /// a tree, the directories below are fetched ahead.
    pub fn listed(&self, directory: &Inode, entries: &[(Bytes, Inode)]) {
        let Ok(Some(map)) = entries::map_of(directory) else {
            return;
        };
        if self.spawner.is_none() || self.blocks.is_local() {
            return;
        }
        let begin = |map: &MapRoot| Ahead::perhaps(&self.blocks, self.spawner.clone(), map);
        let mut walks = self.walks.lock().unwrap_or_else(PoisonError::into_inner);
        walks.listed(map, entries, begin);
    }

    /// A reader wants a directory.
    pub(crate) fn directory_wanted(self: &Arc<Self>, map: &MapRoot, how: Fetch) {
        let will_wait = how != Fetch::Cached && !self.blocks.holds(&map.handle.any());
        let request = self.directories().wanted(map.handle.as_bytes(), will_wait);
        self.start(request);
    }

    /// The first node of a directory, in which `name` is looked up, has come after a wait.
    pub(crate) fn directory_arrived(
        self: &Arc<Self>,
        directory: &MapRoot,
        name: &[u8],
        waited: Duration,
    ) {
        self.arrived(directory.handle.as_bytes(), waited);
        if waited >= LONG_WAIT {
            let request = self.directories().entered(directory, name);
            self.start(request);
        }
    }

    /// A reader wants the content of a file. True when the neighbours of the file are now being
    /// fetched.
    pub(crate) fn file_wanted(self: &Arc<Self>, root: &ArrayRoot, how: Fetch) -> bool {
        let will_wait = how != Fetch::Cached
            && (!self.blocks.holds(&Handle::from_bytes(root.top))
                // An error in the content is for its reader to report.
                || (root.len <= MAX_FILE_BYTES && matches!(self.holds_content(root), Ok(false))));
        let request = self.directories().wanted(&root.top, will_wait);
        let starts = request.is_some() && !self.spawner.is_none();
        self.start(request);
        starts
    }

    /// The file or directory with this top block has come after a wait.
    pub(crate) fn arrived(self: &Arc<Self>, top: &[u8; 32], waited: Duration) {
        if waited >= LONG_WAIT {
            let request = self.directories().waited(top);
            self.start(request);
        }
    }

    fn start(self: &Arc<Self>, request: Option<SiblingRequest>) {
        let Some(request) = request else { return };
        let mut task = SiblingTask {
            prefetcher: self.clone(),
            request,
            usage: None,
        };
        self.spawner.spawn(async move { task.run().await });
    }

    /// Whether a whole content is in memory. A content of too many extents counts as held, because
    /// it is not prefetched.
    fn holds_content(&self, root: &ArrayRoot) -> Result<bool, ReadError> {
        let blocks = &self.blocks;
        match now(data_handles(blocks, root, BATCH_BLOCKS, Fetch::Cached)) {
            Err(ReadError::NotCached) => Ok(false),
            all => Ok(all?.iter().flatten().all(|data| blocks.holds(&data.any()))),
        }
    }
}

/// A request of [`DirectoryPrefetch`]; given back when this is dropped.
struct SiblingTask {
    prefetcher: Arc<Prefetcher>,
    request: SiblingRequest,
    /// The record of use, once the request has succeeded.
    usage: Option<Arc<Usage>>,
}

impl SiblingTask {
    async fn run(&mut self) {
        let how = Fetch::Until(Instant::now() + DEADLINE);
        self.usage = self.fetch(how).await.ok();
    }

    async fn fetch(&self, how: Fetch) -> Result<Arc<Usage>, ReadError> {
        let batch = self.choose(how).await?;
        let usage = {
            let mut directories = self.prefetcher.directories();
            directories.coming(&self.request, &batch.coming)
        };
        self.fetch_nodes(&batch, how).await;
        let groups = batch.file_groups();
        let groups = groups.into_iter().map(|group| self.fetch_files(group, how));
        join_all(groups).await;
        Ok(usage)
    }

    /// Lists the directory, from behind the entry that a reader waited for and then from the
    /// beginning, and chooses entries that are small and not in memory.
    async fn choose(&self, how: Fetch) -> Result<Batch, ReadError> {
        let blocks = &self.prefetcher.blocks;
        let SiblingRequest {
            directory, behind, ..
        } = &self.request;
        let mut listed = entries::list(blocks, directory, Some(behind), MAX_ENTRIES, how).await?;
        if listed.len() < MAX_ENTRIES {
            listed.extend(entries::list(blocks, directory, None, MAX_ENTRIES, how).await?);
        }
        let mut batch = self.prefetcher.directories().batch(&self.request);
        for (name, inode) in listed {
            // The following look-ups may all be in memory, so the task would never yield.
            tokio::task::consume_budget().await;
            let Some(candidate) = batch.candidate(&inode) else {
                continue;
            };
            if self.holds(&candidate)? {
                continue;
            }
            if !batch.add(name, candidate) {
                break;
            }
        }
        Ok(batch)
    }

    fn holds(&self, candidate: &Candidate) -> Result<bool, ReadError> {
        let blocks = &self.prefetcher.blocks;
        Ok(match candidate {
            // The top block may have come with the directory, without the rest.
            Candidate::File(root) => {
                blocks.holds(&Handle::from_bytes(root.top))
                    && self.prefetcher.holds_content(root)?
            }
            Candidate::Directory(node) => blocks.holds(&node.any()),
        })
    }

    /// Fetches the nearest nodes one by one, each with the first nodes of its files, and the others
    /// together.
    async fn fetch_nodes(&self, batch: &Batch, how: Fetch) {
        let blocks = &self.prefetcher.blocks;
        let (near, far) = batch.nodes.split_at(batch.nodes.len().min(NEAREST_NODES));
        let near = near.iter().map(|node| blocks.get(node, Expect::Next, how));
        let far = far.chunks(NODES).map(|some| blocks.get_many(some, how));
        join(join_all(near), join_all(far)).await;
    }

    /// Fetches files, except those that would make the request one of more than [`BATCH_BLOCKS`]
    /// blocks: a publisher may cut a small file into very many.
    async fn fetch_files(&self, files: &[ArrayRoot], how: Fetch) -> Result<(), ReadError> {
        let blocks = &self.prefetcher.blocks;
        let node = |root: &ArrayRoot| match root.top() {
            Child::Node { handle, .. } => Some(handle),
            Child::Extent(_) => None,
        };
        let nodes: Vec<_> = files.iter().filter_map(node).collect();
        blocks.get_many(&nodes, how).await?;
        let mut handles = Vec::new();
        for root in files {
            let most = BATCH_BLOCKS.saturating_sub(handles.len());
            let data = data_handles(blocks, root, most, how).await?;
            handles.extend(data.into_iter().flatten());
        }
        blocks.get_many(&handles, how).await.map(drop)
    }
}

impl Drop for SiblingTask {
    fn drop(&mut self) {
        let usage = self.usage.take();
        self.prefetcher.directories().finished(&self.request, usage);
    }
}

#[cfg(test)]
mod tests {
    use store::mirrors::Mirrors;
    use trust::Hasher;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A sequential reader of a file that no replica has, waiting for its second megabyte.
    fn waiting(spawner: Spawner) -> Arc<Prefetcher> {
        let mirrors = Arc::new(Mirrors::new(Vec::new()));
        let blocks = Blocks::new(Hasher::new(&[1; 32]), mirrors, 256 * MIB, None);
        let prefetcher = Prefetcher::new(Arc::new(blocks), spawner);
        let root = ArrayRoot {
            len: 100 * MIB,
            height: 2,
            top: [7; 32],
        };
        prefetcher.content_read(&root, 0, MIB);
        prefetcher.read_ahead(&root, true);
        prefetcher
    }

    #[test]
    fn cancelled_tasks_give_their_requests_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        // Nothing drives this runtime, so the tasks never run.
        let prefetcher = waiting(Spawner::on(runtime.handle().clone()));
        assert_eq!(prefetcher.readahead().in_progress_bytes(), 2 * MIB);
        drop(runtime);
        assert_eq!(prefetcher.readahead().in_progress_bytes(), 0);
    }

    #[test]
    fn no_spawner_means_no_request() {
        let prefetcher = waiting(Spawner::none());
        assert_eq!(prefetcher.readahead().in_progress_bytes(), 0);
        let root = ArrayRoot {
            len: 3000,
            height: 1,
            top: [8; 32],
        };
        let how = Fetch::Until(Instant::now() + DEADLINE);
        assert!(!prefetcher.file_wanted(&root, how));
    }
}
