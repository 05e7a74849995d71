//! Verified blocks: every byte of a volume that is read comes through here.
//!
//! A look-up goes to memory, then to the disk cache and to the mirrors. Each block is hashed, wherever it comes from. `store::mirrors` decides which mirror is
//! asked, and when.
//!
//! | module | what lives there |
//! |---|---|
//! | `verified` | the cache of verified blocks, and the checks by which a block enters |
//! | `decoded` | the decoded blocks of the four kinds of blocks |
//! | `in_flight` | one fetch for concurrent readers of one block |
//! | `wrong` | blocks that came wrong, for all who wait |
//! | `response` | answers of mirrors: verified as they come, evidence of wrong ones kept |
//! | `disk` | a circuit breaker for the disk cache |

mod decoded;
mod disk;
mod in_flight;
mod response;
mod verified;
mod wrong;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use store::blocking::Blocking;
use store::cache::DiskCache;
use store::mirrors::Mirrors;
use trust::{Block, Data, Handle, Hasher};

use crate::error::ReadError;
use crate::read_around::Expect;
pub use decoded::{Decode, DecodedBlock};
use disk::{DiskBreaker, LOOK_BLOCKS};
use in_flight::{FetchGuard, InFlight};
use response::Response;
pub use verified::Counters;
use verified::{VerifiedCache, describe};
use wrong::WrongBlocks;

/// How long a read may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// The read never waits. It fails with [`ReadError::NotCached`] when a block is neither in
    /// memory nor in a local repository.
    Cached,
    /// The read waits until then, including fail-over to other replicas.
    Until(Instant),
}

/// The verified blocks of one volume, over its mirrors.
pub struct Blocks {
    cache: Arc<VerifiedCache>,
    mirrors: Arc<Mirrors>,
    in_flight: InFlight,
    wrong: Arc<WrongBlocks>,
    disk: DiskBreaker,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks")
            .field("mirrors", &self.mirrors)
            .finish_non_exhaustive()
    }
}

impl Blocks {
    /// Blocks named by `hasher` and fetched from `mirrors`, with a cache of `cache_bytes` in memory
    /// and an optional cache on disk.
    pub fn new(
        hasher: Hasher,
        mirrors: Arc<Mirrors>,
        cache_bytes: u64,
        disk: Option<Arc<DiskCache>>,
    ) -> Self {
        Blocks {
            cache: Arc::new(VerifiedCache::new(hasher, cache_bytes, disk)),
            mirrors,
            in_flight: InFlight::default(),
            wrong: Arc::default(),
            disk: DiskBreaker::default(),
        }
    }

    /// Counts of what was fetched so far.
    pub fn counters(&self) -> &Counters {
        &self.cache.counters
    }

    /// Memory that the cache of verified blocks uses, and its limit, bytes.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.cache.memory_bytes()
    }

    /// The mirrors.
    pub fn mirrors(&self) -> &Arc<Mirrors> {
        &self.mirrors
    }

    /// The cache on disk.
    pub fn disk(&self) -> Option<&Arc<DiskCache>> {
        self.cache.disk()
    }

    /// Whether all replicas are on this machine, so that nobody waits for a network.
    pub fn is_local(&self) -> bool {
        self.mirrors.replicas().all(|replica| replica.is_local())
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.cache.hasher
    }

    /// Whether a block is in memory.
    pub(crate) fn holds(&self, handle: &Handle) -> bool {
        self.cache.holds(handle)
    }

    /// Drops a block from memory, for a reader who wants it no more. Another reader of it fetches it again.
    pub fn let_go(&self, handle: &Handle) {
        self.cache.let_go(handle);
    }

    /// One block; `expect` says what the caller expects to want next.
    ///
    /// # Errors
    /// See [`Blocks::get_many`].
    pub async fn get<K: Decode>(
        &self,
        handle: &Handle<K>,
        expect: Expect,
        how: Fetch,
    ) -> Result<K::Decoded, ReadError> {
        if let Some(block) = self.at_once(handle, how)? {
            return Ok(block);
        }
        let mut blocks = self
            .fetch(std::slice::from_ref(handle), &[], (expect, how))
            .await?;
        blocks.pop().ok_or(ReadError::NotCached)
    }

    /// Many blocks, in the order of `handles`, in as few requests as possible.
    ///
    /// # Errors
    /// [`ReadError::NotCached`] under [`Fetch::Cached`]; [`ReadError::Integrity`] when no replica
    /// gave the right bytes and one gave wrong ones; [`ReadError::Unavailable`] when no replica gave
    /// any in time; [`ReadError::Malformed`] when the block is the signed one and breaks a rule.
    pub async fn get_many<K: Decode>(
        &self,
        handles: &[Handle<K>],
        how: Fetch,
    ) -> Result<Vec<K::Decoded>, ReadError> {
        match self.all_cached(handles, how)? {
            Some(blocks) => Ok(blocks),
            None => self.fetch(handles, &[], (Expect::Nothing, how)).await,
        }
    }

    /// Many data blocks of which the lengths are known, in the order of `handles`. More of them are under way at a time
    /// than by [`Blocks::get_many`], because no memory is reserved for longer ones. A block of another length is given
    /// too: its reader finds out.
    ///
    /// # Errors
    /// As [`Blocks::get_many`].
    pub async fn get_sized(
        &self,
        handles: &[Handle<Data>],
        lens: &[u32],
        how: Fetch,
    ) -> Result<Vec<Block<Data>>, ReadError> {
        match self.all_cached(handles, how)? {
            Some(blocks) => Ok(blocks),
            None => self.fetch(handles, lens, (Expect::Nothing, how)).await,
        }
    }

    /// The blocks, if [`Blocks::at_once`] gives all of them.
    fn all_cached<K: Decode>(
        &self,
        handles: &[Handle<K>],
        how: Fetch,
    ) -> Result<Option<Vec<K::Decoded>>, ReadError> {
        let mut blocks = Vec::with_capacity(handles.len());
        for handle in handles {
            match self.at_once(handle, how)? {
                Some(block) => blocks.push(block),
                None => return Ok(None),
            }
        }
        Ok(Some(blocks))
    }

    /// A block for which a reader need not wait. One who may wait looks into memory only: the other places are asked
    /// by [`Blocks::fetch`].
    fn at_once<K: Decode>(
        &self,
        handle: &Handle<K>,
        how: Fetch,
    ) -> Result<Option<K::Decoded>, ReadError> {
        match (self.cache.get(handle), how) {
            (None, Fetch::Cached) => self.without_wait(handle, true),
            (there, _) => Ok(there),
        }
    }

    /// A block from a local repository, or from the disk cache if `in_disk_cache`, when the kernel's page cache has it.
    fn without_wait<K: Decode>(
        &self,
        handle: &Handle<K>,
        in_disk_cache: bool,
    ) -> Result<Option<K::Decoded>, ReadError> {
        let name = handle.any();
        if in_disk_cache
            && let Some(disk) = self.cache.disk()
            && self.disk.may_ask()
            && let Some(frame) = disk.try_cached(&name)
            && let Some(block) = self.cache.admit_from_disk(handle, &frame)?
        {
            return Ok(Some(block));
        }
        for replica in self.mirrors.replicas() {
            // A wrong answer here is not final: the fetch asks the other replicas.
            if let Some(frame) = replica.try_cached(&name)
                && let Ok(block) = self.cache.admit(handle, &frame)?
            {
                self.cache.keep_on_disk(replica.as_ref(), name, &frame);
                return Ok(block);
            }
        }
        Ok(None)
    }

    async fn fetch<K: Decode>(
        &self,
        handles: &[Handle<K>],
        lens: &[u32],
        (expect, how): (Expect, Fetch),
    ) -> Result<Vec<K::Decoded>, ReadError> {
        let Fetch::Until(deadline) = how else {
            return Err(ReadError::NotCached);
        };
        let mut have: HashMap<Handle, K::Decoded> = HashMap::with_capacity(handles.len());
        loop {
            let (mut missing, mut seen) = (Vec::new(), HashSet::new());
            for handle in handles {
                if have.contains_key(&handle.any()) || !seen.insert(handle.any()) {
                    continue;
                }
                let there = match self.cache.get(handle) {
                    // A try for each of many blocks would have the kernel read a page of each, and then the rest of
                    // them in pieces. `look_on_disk` reads them together.
                    None => self.without_wait(handle, handles.len() == 1)?,
                    there => there,
                };
                match there {
                    Some(block) => drop(have.insert(handle.any(), block)),
                    None => missing.push(*handle),
                }
            }
            if missing.is_empty() {
                return Ok(handles
                    .iter()
                    .filter_map(|h| have.get(&h.any()).cloned())
                    .collect());
            }
            let (fetch, others) = FetchGuard::begin(&self.in_flight, &missing);
            let ours = fetch.names.iter();
            missing = ours
                .map(|name| Handle::from_bytes(*name.as_bytes()))
                .collect();
            if !missing.is_empty() {
                self.look_on_disk(&mut missing, &mut have, deadline).await?;
            }
            if !missing.is_empty() {
                let lens = handles.iter().map(Handle::any).zip(lens.iter().copied());
                let lens: HashMap<Handle, u32> = lens.collect();
                let asked = self.ask_mirrors(&missing, lens, (expect, deadline));
                match asked.await {
                    Ok(blocks) => have.extend(blocks),
                    Err(error) => return Err(self.gravest(error, &missing)),
                }
            }
            drop(fetch);
            for mut other in others {
                // Look again when that fetch has ended: either the blocks are in memory now, or this
                // fetch requests them itself.
                let ended = tokio::time::timeout_at(deadline.into(), other.changed());
                if ended.await.is_err() {
                    let error = ReadError::Unavailable {
                        what: describe::<K>(handles),
                        cause: "no answer before the deadline".to_owned(),
                        denied: Vec::new(),
                    };
                    return Err(self.gravest(error, handles));
                }
            }
        }
    }

    /// Why these blocks cannot be read. That one of them was wrong counts more than that nobody answers now, also if
    /// another fetch, for example one ahead of its reader, met the wrong one.
    fn gravest<K: Decode>(&self, error: ReadError, handles: &[Handle<K>]) -> ReadError {
        if !error.is_outage() {
            return error;
        }
        match self.wrong.among(handles.iter().map(Handle::any)) {
            None => error,
            Some((place, why)) => ReadError::Integrity {
                place,
                what: describe::<K>(handles),
                why,
            },
        }
    }

    /// Moves from `missing` to `have` what the disk cache has, unless the disk is stuck.
    async fn look_on_disk<K: Decode>(
        &self,
        missing: &mut Vec<Handle<K>>,
        have: &mut HashMap<Handle, K::Decoded>,
        deadline: Instant,
    ) -> Result<(), ReadError> {
        let Some(disk) = self.cache.disk() else {
            return Ok(());
        };
        for some in missing.chunks(LOOK_BLOCKS) {
            if !self.disk.may_ask() {
                break;
            }
            let names: Vec<Handle> = some.iter().map(Handle::any).collect();
            let (cache, disk) = (self.cache.clone(), disk.clone());
            let read = move || Ok(cache.read_from_disk::<K>(&disk, &names));
            let look = async move { Blocking::Pool.run("the disk cache", read).await };
            match self.disk.wait(look, deadline).await {
                Some(Ok(found)) => have.extend(found?),
                Some(Err(_)) | None => break,
            }
        }
        missing.retain(|handle| !have.contains_key(&handle.any()));
        Ok(())
    }

    /// Asks mirrors until every wanted block has come and is verified.
    async fn ask_mirrors<K: Decode>(
        &self,
        wanted: &[Handle<K>],
        lens: HashMap<Handle, u32>,
        (expect, deadline): (Expect, Instant),
    ) -> Result<HashMap<Handle, K::Decoded>, ReadError> {
        let around = self.cache.around(K::KIND).budget(expect);
        let wrong = self.wrong.clone();
        let response = Response::new(self.cache.clone(), wanted, lens, expect, wrong);
        let counters = &self.cache.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        match self.mirrors.fetch(around, response.clone(), deadline).await {
            Ok(()) => response.blocks(),
            Err(faults) => Err(response.error(describe::<K>(wanted), &faults)),
        }
    }
}

/// Runs the future of a read under [`Fetch::Cached`], which is ready at once.
///
/// # Errors
/// The future's own; [`ReadError::NotCached`] when it is not ready.
pub fn now<T>(future: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    use futures_util::FutureExt;
    future.now_or_never().unwrap_or(Err(ReadError::NotCached))
}
