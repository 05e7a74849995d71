//! Verified blocks: the only door through which bytes of a volume reach anything else.
//!
//! Asks replicas for records, hashes what comes, keeps it in one LRU by weight (the paper's inode,
//! indirect-block, directory and file-block caches, SFSRO 4.2, as one), lets concurrent equal fetches
//! be one, and goes on to the next replica when one denies, lies or fails. A block that came unasked
//! (read-around) is kept only when it hashes to the handle claimed for it.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use store::{Replica, StoreError};
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;
use trust::inode::Inode;
use trust::{
    ArrayNode, Block, BlockKind, Data, Frame, Handle, Hasher, InodeBlock, Kind, MapNode, Record,
    Reject, array, map,
};

use crate::ahead::Ahead;
use crate::around::{Around, Expect, Tally};
use crate::error::ReadError;

/// How long a read may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Not at all: what is not in memory (or in a local repository) fails with
    /// [`ReadError::NotCached`], and the future never waits.
    Cached,
    /// Until then, fail-over included.
    Until(Instant),
}

/// A verified block in the form in which it is used.
#[derive(Debug, Clone)]
pub enum Verified {
    /// File content.
    Data(Block<Data>),
    /// A node of an array tree, decoded.
    Array(Arc<array::Node>),
    /// A node of a map tree, decoded.
    Map(Arc<map::Node>),
    /// An inode in a block of its own, decoded.
    Inode(Arc<Inode>),
}

impl Verified {
    /// Memory behind it, bytes.
    fn payload_bytes(&self) -> u64 {
        const INODE_BYTES: u64 = 1024;
        match self {
            Verified::Data(block) => block.bytes().len() as u64,
            Verified::Array(node) => node.weight_bytes() as u64,
            Verified::Map(node) => node.weight_bytes() as u64,
            Verified::Inode(_) => INODE_BYTES,
        }
    }
}

/// A kind of block that can be taken out of [`Verified`].
pub trait Open: BlockKind {
    /// The form in which it is used.
    type Form: Clone + Send;
    /// Decodes a verified block.
    ///
    /// # Errors
    /// A [`Reject`] against the publisher: the block is what was signed, and malformed.
    fn decode(block: Block<Self>) -> Result<Verified, Reject>;
    /// The form, if `verified` is of this kind.
    fn form(verified: &Verified) -> Option<Self::Form>;
}

macro_rules! open {
    ($kind:ident, $form:ty, $variant:ident, $decode:expr) => {
        impl Open for $kind {
            type Form = $form;
            fn decode(block: Block<Self>) -> Result<Verified, Reject> {
                #[allow(clippy::redundant_closure_call)]
                $decode(block)
            }
            fn form(verified: &Verified) -> Option<$form> {
                match verified {
                    Verified::$variant(form) => Some(form.clone()),
                    _ => None,
                }
            }
        }
    };
}
open!(Data, Block<Data>, Data, |b| Ok(Verified::Data(b)));
open!(ArrayNode, Arc<array::Node>, Array, |b: Block<ArrayNode>| {
    Ok(Verified::Array(Arc::new(array::Node::decode(&b)?)))
});
open!(MapNode, Arc<map::Node>, Map, |b: Block<MapNode>| {
    Ok(Verified::Map(Arc::new(map::Node::decode(&b)?)))
});
open!(InodeBlock, Arc<Inode>, Inode, |b: Block<InodeBlock>| {
    Ok(Verified::Inode(Arc::new(Inode::from_block(&b)?)))
});

/// A block in memory, and the tally of the answer that brought it unasked.
#[derive(Debug, Clone)]
struct Kept {
    verified: Verified,
    unasked: Option<Arc<Tally>>,
}

impl From<Verified> for Kept {
    fn from(verified: Verified) -> Kept {
        Kept {
            verified,
            unasked: None,
        }
    }
}

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<Handle, Kept> for ByBytes {
    fn weight(&self, _: &Handle, kept: &Kept) -> u64 {
        const ENTRY_BYTES: u64 = 128;
        ENTRY_BYTES + kept.verified.payload_bytes()
    }
}

/// What was fetched and what became of it; for metrics and tests.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests sent to replicas.
    pub requests: AtomicU64,
    /// Blocks wanted and received.
    pub fetched: AtomicU64,
    /// Blocks received unasked and kept.
    pub around: AtomicU64,
    /// Answers that failed a check.
    pub wrong: AtomicU64,
}

/// The verified blocks of one volume, over its replicas.
pub struct Blocks {
    hasher: Hasher,
    replicas: Vec<Arc<dyn Replica>>,
    cache: Cache<Handle, Kept, ByBytes>,
    around: Around,
    ahead: Ahead,
    /// Where fetching ahead runs; none outside of a runtime.
    runtime: Option<Runtime>,
    flights: Mutex<HashMap<Handle, watch::Receiver<()>>>,
    counters: Counters,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places: Vec<&str> = self.replicas.iter().map(|r| r.place()).collect();
        f.debug_struct("Blocks")
            .field("replicas", &places)
            .finish_non_exhaustive()
    }
}

impl Blocks {
    /// Blocks under `hasher`, asked of `replicas` in their order, with `cache_bytes` of memory.
    pub fn new(hasher: Hasher, replicas: Vec<Arc<dyn Replica>>, cache_bytes: u64) -> Self {
        // The largest item must fit into a shard, or it would never be kept.
        let shards = (cache_bytes >> 23).clamp(1, 16) as usize;
        let options = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity((cache_bytes >> 13).max(64) as usize)
            .weight_capacity(cache_bytes)
            .shards(shards)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByBytes,
                Default::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter((cache_bytes >> 13) as usize, cache_bytes, ByBytes),
        };
        Blocks {
            hasher,
            replicas,
            cache,
            flights: Mutex::default(),
            around: Around::default(),
            ahead: Ahead::new(cache_bytes),
            runtime: Runtime::try_current().ok(),
            counters: Counters::default(),
        }
    }

    /// What was fetched so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The replicas, in the order in which they are asked.
    pub fn replicas(&self) -> &[Arc<dyn Replica>] {
        &self.replicas
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The sequential readers.
    pub(crate) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// Where fetching ahead runs.
    pub(crate) fn runtime(&self) -> Option<&Runtime> {
        self.runtime.as_ref()
    }

    /// Gives the memory of a block back, if it is there.
    pub(crate) fn let_go(&self, handle: &Handle) {
        self.cache.remove(handle);
    }

    /// One block; `expect` is what may be wanted next.
    ///
    /// # Errors
    /// See [`Blocks::get_many`].
    pub async fn get<K: Open>(
        &self,
        handle: &Handle<K>,
        expect: Expect,
        how: Fetch,
    ) -> Result<K::Form, ReadError> {
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
    pub async fn get_many<K: Open>(
        &self,
        handles: &[Handle<K>],
        how: Fetch,
    ) -> Result<Vec<K::Form>, ReadError> {
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
    fn cached<K: Open>(&self, handle: &Handle<K>) -> Result<Option<K::Form>, ReadError> {
        let name = handle.any();
        if let Some(Kept { verified, unasked }) = self.cache.get(&name)
            && let Some(form) = K::form(&verified)
        {
            if let Some(tally) = unasked {
                tally.wanted(verified.payload_bytes());
                self.cache.insert(name, verified.into());
            }
            return Ok(Some(form));
        }
        for replica in &self.replicas {
            // A wrong answer here is not final: the slow way asks the other replicas.
            if let Some(frame) = replica.try_cached(&name)
                && let Ok(verified) = self.verify(handle, &frame)?
            {
                let form = K::form(&verified);
                self.cache.insert(name, verified.into());
                return Ok(form);
            }
        }
        Ok(None)
    }

    /// Checks a frame against the handle by which it was asked. The outer error is the publisher's
    /// fault, the inner one the replica's.
    fn verify<K: Open>(
        &self,
        handle: &Handle<K>,
        frame: &Frame,
    ) -> Result<Result<Verified, Reject>, ReadError> {
        let checked = frame
            .plaintext::<K>()
            .and_then(|plain| self.hasher.check(handle, own_memory(frame, plain)));
        match checked {
            Ok(block) => K::decode(block).map(Ok).map_err(ReadError::Malformed),
            Err(why) => Ok(Err(why)),
        }
    }

    async fn fetch<K: Open>(
        &self,
        handles: &[Handle<K>],
        expect: Expect,
        how: Fetch,
    ) -> Result<Vec<K::Form>, ReadError> {
        let Fetch::Until(deadline) = how else {
            return Err(ReadError::NotCached);
        };
        let work = self.fetch_all(handles, expect);
        match tokio::time::timeout_at(deadline.into(), work).await {
            Ok(result) => result,
            Err(_) => Err(ReadError::Unavailable {
                what: describe::<K>(handles),
                cause: "no answer before the deadline".to_owned(),
            }),
        }
    }

    async fn fetch_all<K: Open>(
        &self,
        handles: &[Handle<K>],
        expect: Expect,
    ) -> Result<Vec<K::Form>, ReadError> {
        let mut have: HashMap<Handle, K::Form> = HashMap::with_capacity(handles.len());
        loop {
            let mut missing = Vec::new();
            for handle in handles {
                if have.contains_key(&handle.any()) || missing.contains(handle) {
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
            let (flight, others) = Flight::begin(&self.flights, &missing);
            let mine: Vec<Handle<K>> = missing
                .into_iter()
                .filter(|h| flight.names.contains(&h.any()))
                .collect();
            if !mine.is_empty() {
                self.ask_replicas(&mine, expect, &mut have).await?;
            }
            drop(flight);
            for mut other in others {
                // However it ended, we look again: its blocks are in memory, or we ask ourselves.
                let _ = other.changed().await;
            }
        }
    }

    /// Asks one replica after the other until every wanted block is there and proved.
    async fn ask_replicas<K: Open>(
        &self,
        wanted: &[Handle<K>],
        expect: Expect,
        have: &mut HashMap<Handle, K::Form>,
    ) -> Result<(), ReadError> {
        let around = self.around.budget(expect);
        let mut missing: Vec<Handle<K>> = wanted.to_vec();
        let mut faults = Faults::default();
        for replica in &self.replicas {
            let names: Vec<Handle> = missing.iter().map(Handle::any).collect();
            self.counters.requests.fetch_add(1, Ordering::Relaxed);
            let answer = replica.get_many(&names, around).await;
            match answer {
                Ok(records) => {
                    self.take(replica.place(), records, &missing, have, &mut faults)?;
                }
                Err(error) => faults.store(replica.place(), error),
            }
            missing.retain(|h| !have.contains_key(&h.any()));
            if missing.is_empty() {
                return Ok(());
            }
            faults.denied(replica.place(), missing.len());
        }
        Err(faults.into_error(describe::<K>(&missing)))
    }

    /// Checks an answer and keeps what is right in it.
    fn take<K: Open>(
        &self,
        place: &str,
        records: Vec<Record>,
        wanted: &[Handle<K>],
        have: &mut HashMap<Handle, K::Form>,
        faults: &mut Faults,
    ) -> Result<(), ReadError> {
        let names: HashSet<Handle> = wanted.iter().map(Handle::any).collect();
        let tally = Arc::new(Tally::default());
        for Record { handle, frame } in records {
            if !names.contains(&handle) {
                self.keep_unasked(handle, &frame, &tally);
                continue;
            }
            match self.verify(&Handle::<K>::from_bytes(*handle.as_bytes()), &frame)? {
                Ok(verified) => {
                    self.counters.fetched.fetch_add(1, Ordering::Relaxed);
                    if let Some(form) = K::form(&verified) {
                        have.insert(handle, form);
                    }
                    self.cache.insert(handle, verified.into());
                }
                Err(why) => {
                    self.counters.wrong.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(replica = place, %handle, %why, "wrong block");
                    faults.wrong(place, why);
                }
            }
        }
        self.around.keep(tally);
        Ok(())
    }

    /// Keeps a block that came unasked, if it proves to be what is claimed.
    fn keep_unasked(&self, handle: Handle, frame: &Frame, tally: &Arc<Tally>) {
        if self.cache.peek(&handle).is_some() {
            return;
        }
        let Ok(plain) = frame.unpack() else {
            return;
        };
        let plain = own_memory(frame, plain);
        let bytes = *handle.as_bytes();
        fn check<K: Open>(hasher: &Hasher, bytes: [u8; 32], plain: Bytes) -> Option<Verified> {
            hasher
                .check(&Handle::<K>::from_bytes(bytes), plain)
                .and_then(K::decode)
                .ok()
        }
        let verified = match frame.kind() {
            Kind::Data => check::<Data>(&self.hasher, bytes, plain),
            Kind::Array => check::<ArrayNode>(&self.hasher, bytes, plain),
            Kind::Map => check::<MapNode>(&self.hasher, bytes, plain),
            Kind::Inode => check::<InodeBlock>(&self.hasher, bytes, plain),
        };
        if let Some(verified) = verified {
            self.counters.around.fetch_add(1, Ordering::Relaxed);
            tally.brought(verified.payload_bytes());
            let unasked = Some(tally.clone());
            self.cache.insert(handle, Kept { verified, unasked });
        }
    }
}

/// A small block leaves the buffer of the answer that brought it, which it would keep alive whole.
fn own_memory(frame: &Frame, plain: Bytes) -> Bytes {
    const SMALL_BYTES: usize = 32 << 10;
    if frame.is_raw() && plain.len() < SMALL_BYTES {
        Bytes::copy_from_slice(&plain)
    } else {
        plain
    }
}

fn describe<K: BlockKind>(handles: &[Handle<K>]) -> String {
    match handles {
        [one] => format!("{:?} block {one}", K::KIND).to_lowercase(),
        [first, ..] => {
            format!("{:?} block {first} and {} more", K::KIND, handles.len() - 1).to_lowercase()
        }
        [] => "nothing".to_owned(),
    }
}

/// A fetch under way: others who want the same wait for its end, however it ends.
struct Flight<'a> {
    flights: &'a Mutex<HashMap<Handle, watch::Receiver<()>>>,
    names: Vec<Handle>,
    _end: watch::Sender<()>,
}

impl<'a> Flight<'a> {
    /// Takes what nobody fetches yet; gives back the flights of the rest.
    fn begin<K>(
        flights: &'a Mutex<HashMap<Handle, watch::Receiver<()>>>,
        handles: &[Handle<K>],
    ) -> (Self, Vec<watch::Receiver<()>>) {
        let (end, waiter) = watch::channel(());
        let mut names = Vec::with_capacity(handles.len());
        let mut others = Vec::new();
        let mut map = flights.lock().unwrap_or_else(PoisonError::into_inner);
        for name in handles.iter().map(Handle::any) {
            match map.get(&name) {
                Some(other) => others.push(other.clone()),
                None => {
                    map.insert(name, waiter.clone());
                    names.push(name);
                }
            }
        }
        drop(map);
        (
            Flight {
                flights,
                names,
                _end: end,
            },
            others,
        )
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut map = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            map.remove(name);
        }
    }
}

/// What each replica did wrong, and which of it counts (evidence beats outage).
#[derive(Default)]
struct Faults {
    wrong: Option<(String, Reject)>,
    told: Vec<String>,
}

impl Faults {
    fn wrong(&mut self, place: &str, why: Reject) {
        self.wrong.get_or_insert((place.to_owned(), why));
    }

    fn store(&mut self, place: &str, error: StoreError) {
        if let StoreError::BadAnswer { why, .. } = &error {
            self.wrong(place, why.clone());
        }
        tracing::warn!(replica = place, %error, "replica failed");
        self.told.push(error.to_string());
    }

    fn denied(&mut self, place: &str, blocks: usize) {
        if self.told.is_empty() && self.wrong.is_none() {
            self.told
                .push(format!("{place} does not give out {blocks} block(s)"));
        }
    }

    fn into_error(self, what: String) -> ReadError {
        match self.wrong {
            Some((place, why)) => ReadError::Integrity { place, what, why },
            None => ReadError::Unavailable {
                what,
                cause: self.told.join("; "),
            },
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
