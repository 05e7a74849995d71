//! DecodedBlock blocks: the only door through which bytes of a volume reach anything else.
//!
//! Looks into memory, then on the reader's own disk, then asks mirrors; hashes whatever comes from
//! wherever ([`known`]), lets concurrent equal fetches be one ([`flight`]), and keeps the evidence of
//! wrong answers ([`answers`]). Which mirror is asked and when is decided by `store::mirrors`.

mod decoded;
mod disk;
mod in_flight;
mod response;
mod verified;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use store::BlockStore;
use store::cache::{CacheStore, DiskCache};
use store::mirrors::Mirrors;
use tokio::runtime::Handle as Runtime;
use trust::{Handle, Hasher};

use crate::error::ReadError;
use crate::prefetch::directory::DirectoryPrefetch;
use crate::prefetch::readahead::Readahead;
use crate::read_around::Expect;
pub use decoded::{Decode, DecodedBlock};
use disk::{DiskBreaker, LOOK_BLOCKS};
use in_flight::{FetchGuard, InFlight};
use response::Response;
pub use verified::Counters;
use verified::{VerifiedCache, describe};

/// How long a read may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Not at all: what is not in memory (or in a local repository) fails with
    /// [`ReadError::NotCached`], and the future never waits.
    Cached,
    /// Until then, fail-over included.
    Until(Instant),
}

/// The verified blocks of one volume, over its mirrors.
pub struct Blocks {
    known: Arc<VerifiedCache>,
    mirrors: Arc<Mirrors>,
    ahead: Readahead,
    siblings: DirectoryPrefetch,
    /// Where fetching ahead runs; none outside of a runtime.
    runtime: Option<Runtime>,
    flights: InFlight,
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
    /// Blocks under `hasher`, asked of `mirrors`, with `cache_bytes` of memory and, where there is
    /// one, a cache on disk.
    pub fn new(
        hasher: Hasher,
        mirrors: Arc<Mirrors>,
        cache_bytes: u64,
        disk: Option<Arc<DiskCache>>,
    ) -> Self {
        Blocks {
            known: Arc::new(VerifiedCache::new(hasher, cache_bytes, disk)),
            mirrors,
            flights: InFlight::default(),
            disk: DiskBreaker::default(),
            ahead: Readahead::new(cache_bytes),
            siblings: DirectoryPrefetch::new(cache_bytes),
            runtime: Runtime::try_current().ok(),
        }
    }

    /// What was fetched so far.
    pub fn counters(&self) -> &Counters {
        &self.known.counters
    }

    /// Memory that checked blocks take, and may take, bytes.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.known.memory_bytes()
    }

    /// The mirrors.
    pub fn mirrors(&self) -> &Arc<Mirrors> {
        &self.mirrors
    }

    /// The cache on disk.
    pub fn disk(&self) -> Option<&Arc<DiskCache>> {
        self.known.disk()
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.known.hasher
    }

    /// The sequential readers.
    pub(crate) fn ahead(&self) -> &Readahead {
        &self.ahead
    }

    /// The directories that are being gone through.
    pub(crate) fn siblings(&self) -> &DirectoryPrefetch {
        &self.siblings
    }

    /// Whether a block is in memory.
    pub(crate) fn holds(&self, handle: &Handle) -> bool {
        self.known.holds(handle)
    }

    /// Where fetching ahead runs.
    pub(crate) fn runtime(&self) -> Option<&Runtime> {
        self.runtime.as_ref()
    }

    /// Gives the memory of a block back, if it is there.
    pub(crate) fn let_go(&self, handle: &Handle) {
        self.known.let_go(handle);
    }

    /// One block; `expect` is what may be wanted next.
    ///
    /// # Errors
    /// See [`Blocks::get_many`].
    pub async fn get<K: Decode>(
        &self,
        handle: &Handle<K>,
        expect: Expect,
        how: Fetch,
    ) -> Result<K::Decoded, ReadError> {
        if let Some(form) = self.cached(handle)? {
            return Ok(form);
        }
        let mut forms = self
            .fetch(std::slice::from_ref(handle), expect, how)
            .await?;
        forms.pop().ok_or(ReadError::NotCached)
    }

    /// Many blocks, in the order of `handles`, in as few requests as may be.
    ///
    /// # Errors
    /// [`ReadError::NotCached`] under [`Fetch::Cached`]; [`ReadError::Integrity`] when no replica
    /// gave the right bytes and one gave wrong ones; [`ReadError::Unavailable`] when none gave any
    /// in time; [`ReadError::Malformed`] when a block is what was signed and breaks a rule.
    pub async fn get_many<K: Decode>(
        &self,
        handles: &[Handle<K>],
        how: Fetch,
    ) -> Result<Vec<K::Decoded>, ReadError> {
        let mut forms = Vec::with_capacity(handles.len());
        for handle in handles {
            match self.cached(handle)? {
                Some(form) => forms.push(form),
                None => return self.fetch(handles, Expect::Nothing, how).await,
            }
        }
        Ok(forms)
    }

    /// From memory, or from a place that answers without waiting.
    fn cached<K: Decode>(&self, handle: &Handle<K>) -> Result<Option<K::Decoded>, ReadError> {
        if let Some(form) = self.known.get(handle) {
            return Ok(Some(form));
        }
        let name = handle.any();
        if let Some(disk) = self.known.disk()
            && self.disk.may_ask()
            && let Some(frame) = disk.try_cached(&name)
            && let Some(form) = self.known.admit_from_disk(handle, &frame)?
        {
            return Ok(Some(form));
        }
        for replica in self.mirrors.replicas() {
            // A wrong answer here is not final: the slow way asks the other replicas.
            if let Some(frame) = replica.try_cached(&name)
                && let Ok(form) = self.known.admit(handle, &frame)?
            {
                self.known.keep_on_disk(replica.as_ref(), name, &frame);
                return Ok(form);
            }
        }
        Ok(None)
    }

    async fn fetch<K: Decode>(
        &self,
        handles: &[Handle<K>],
        expect: Expect,
        how: Fetch,
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
                match self.cached(handle)? {
                    Some(form) => drop(have.insert(handle.any(), form)),
                    None => missing.push(*handle),
                }
            }
            if missing.is_empty() {
                return Ok(handles
                    .iter()
                    .filter_map(|h| have.get(&h.any()).cloned())
                    .collect());
            }
            let (flight, others) = FetchGuard::begin(&self.flights, &missing);
            let ours = flight.names.iter();
            missing = ours
                .map(|name| Handle::from_bytes(*name.as_bytes()))
                .collect();
            if !missing.is_empty() {
                self.look_on_disk(&mut missing, &mut have, deadline).await?;
            }
            if !missing.is_empty() {
                have.extend(self.ask_mirrors(&missing, expect, deadline).await?);
            }
            drop(flight);
            for mut other in others {
                // However it ended, we look again: its blocks are in memory, or we ask ourselves.
                let ended = tokio::time::timeout_at(deadline.into(), other.changed());
                if ended.await.is_err() {
                    return Err(ReadError::Unavailable {
                        what: describe::<K>(handles),
                        cause: "no answer before the deadline".to_owned(),
                    });
                }
            }
        }
    }

    /// Takes from `missing` what the reader's own disk has, as long as that is not stuck.
    async fn look_on_disk<K: Decode>(
        &self,
        missing: &mut Vec<Handle<K>>,
        have: &mut HashMap<Handle, K::Decoded>,
        deadline: Instant,
    ) -> Result<(), ReadError> {
        let Some(disk) = self.known.disk() else {
            return Ok(());
        };
        for some in missing.chunks(LOOK_BLOCKS) {
            if !self.disk.may_ask() {
                break;
            }
            let names: Vec<Handle> = some.iter().map(Handle::any).collect();
            let store = CacheStore(disk.clone());
            let look = Box::pin(async move { store.get_many(&names, 0).await });
            let Some(Ok(records)) = self.disk.wait(look, deadline).await else {
                break;
            };
            for record in records {
                let handle = Handle::<K>::from_bytes(*record.handle.as_bytes());
                if let Some(form) = self.known.admit_from_disk(&handle, &record.frame)? {
                    have.insert(record.handle, form);
                }
            }
        }
        missing.retain(|handle| !have.contains_key(&handle.any()));
        Ok(())
    }

    /// Asks mirrors until every wanted block is there and proved.
    async fn ask_mirrors<K: Decode>(
        &self,
        wanted: &[Handle<K>],
        expect: Expect,
        deadline: Instant,
    ) -> Result<HashMap<Handle, K::Decoded>, ReadError> {
        let around = self.known.around(K::KIND).budget(expect);
        let answers = Response::new(self.known.clone(), wanted, expect);
        let counters = &self.known.counters;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let fetch = self.mirrors.fetch(around, answers.clone());
        match tokio::time::timeout_at(deadline.into(), fetch).await {
            Ok(Ok(())) => answers.forms(),
            Ok(Err(faults)) => Err(answers.error(describe::<K>(wanted), &faults)),
            Err(_) => Err(answers.error(describe::<K>(wanted), &[])),
        }
    }
}

/// Runs a reader's future that was asked under [`Fetch::Cached`]: it is ready at once.
///
/// # Errors
/// The future's own; [`ReadError::NotCached`] when it is not ready.
pub fn now<T>(future: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    use futures_util::FutureExt;
    future.now_or_never().unwrap_or(Err(ReadError::NotCached))
}
