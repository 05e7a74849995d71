//! A volume as its readers hold it: replicas, floor, and the one version that is adopted.
//!
//! Carries out the client's half of SFSRO 3.2 (freshness) and 3.4 (updates): ask for heads, judge
//! each against the floor, take the newest whose root can really be had, remember it durably, and let
//! nobody read from a statement whose time has passed.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::Replica;
use store::cache::DiskCache;
use store::mirrors::Mirrors;
use trust::error::Class;
use trust::head::Head;
use trust::judge::{Freshness, Offer, Terms};
use trust::signatures::Signatures;
use trust::statement::VolumeId;
use wire::http::Tls;

use crate::blocks::{Blocks, Fetch};
use crate::clock::Clock;
use crate::error::{ReadError, gravest, is_fork};
use crate::growth;
use crate::snapshot::Snapshot;
use crate::source::{Location, Source};
use crate::state::{self, State};

/// How a reader wants its volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Where floors are kept.
    pub state_directory: PathBuf,
    /// Memory for verified blocks, bytes.
    pub cache_bytes: u64,
    /// How long any one operation may take, fail-over included.
    pub deadline: Duration,
    /// How fresh a statement must be.
    pub freshness: Freshness,
    /// What is going to be read first: names with `/` between them. Far places may then send the
    /// way there with their heads. Only a hint.
    pub toward: Option<Vec<u8>>,
    /// Blocks that were fetched before, on this machine's disk.
    pub disk_cache: Option<Arc<DiskCache>>,
    /// Who vouches for https servers.
    pub tls: Tls,
}

/// How long the other mirrors' heads are waited for once one has come.
pub(crate) const HEADS_PATIENCE: Duration = Duration::from_millis(1000);

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            state_directory: state::default_directory(),
            cache_bytes: 128 << 20,
            deadline: Duration::from_secs(30),
            freshness: Freshness::Strict,
            toward: None,
            disk_cache: None,
            tls: Tls::System,
        }
    }
}

/// An open volume.
pub struct Volume {
    id: VolumeId,
    mirrors: Arc<Mirrors>,
    options: VolumeOptions,
    state: State,
    clock: Clock,
    signatures: Mutex<Signatures>,
    adopted: RwLock<Arc<Snapshot>>,
    offline: AtomicBool,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A newer version that was judged good and whose root is at hand, but which is not adopted yet.
#[derive(Debug)]
pub struct Candidate {
    pub(crate) snapshot: Snapshot,
    pub(crate) offer: Offer,
    /// The head that it came in, where it came in its own.
    pub(crate) head: Option<Bytes>,
}

impl Candidate {
    /// The version, for fetching what is in use before it is adopted.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

/// What a refresh found.
#[derive(Debug)]
pub enum Refreshed {
    /// Nothing newer; the statement may hold longer than before.
    Unchanged,
    /// A newer version, now adopted.
    Adopted(Arc<Snapshot>),
}

/// A head that passed the floor, and which mirror told it.
pub(crate) struct Judged {
    pub mirror: usize,
    pub place: String,
    pub offer: Offer,
    /// The head itself; none for a record that was found in a log.
    pub head: Option<Bytes>,
}

/// A head as a mirror told it.
struct Told {
    mirror: usize,
    place: String,
    bytes: Bytes,
}

impl Volume {
    /// Opens a volume: asks all places for their heads, adopts the newest that can be had.
    ///
    /// # Errors
    /// The gravest of what the places did wrong (fork, rollback, integrity, expired, unavailable);
    /// [`ReadError::State`] when the floor cannot be read or kept.
    pub async fn open(
        source: &Source,
        mirrors: &[Location],
        options: VolumeOptions,
    ) -> Result<Arc<Volume>, ReadError> {
        let mut replicas = Vec::new();
        for location in std::iter::once(&source.location).chain(mirrors) {
            replicas.push(location.open_with(source.volume, &options.tls)?);
        }
        Volume::over(source.volume, replicas, options).await
    }

    /// Like [`Volume::open`], over replicas that are open already.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub async fn over(
        id: VolumeId,
        replicas: Vec<Arc<dyn Replica>>,
        options: VolumeOptions,
    ) -> Result<Arc<Volume>, ReadError> {
        let state = State::open(&options.state_directory, &id)?;
        let clock = Clock::start();
        let signatures = Mutex::default();
        let mirrors = Arc::new(Mirrors::new(replicas));
        let asker = Asker {
            mirrors: &mirrors,
            options: &options,
            state: &state,
            signatures: &signatures,
            now: clock.now(),
            toward: options.toward.as_deref(),
        };
        let deadline = Instant::now() + options.deadline;
        let (candidate, offline) = asker.begin(deadline).await?;
        clock.advance_to(candidate.offer.judged_at);
        let snapshot = asker.adopt(candidate)?;
        Ok(Arc::new(Volume {
            id,
            mirrors,
            state,
            clock,
            signatures,
            adopted: RwLock::new(Arc::new(snapshot)),
            offline: AtomicBool::new(offline),
            options,
        }))
    }

    /// The volume id.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// The mirrors from which it is read.
    pub fn mirrors(&self) -> &Arc<Mirrors> {
        &self.mirrors
    }

    /// How the volume is read.
    pub fn options(&self) -> &VolumeOptions {
        &self.options
    }

    /// Unix seconds, never earlier than what this process or its floor has seen.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// The deadline of an operation that begins now.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// The adopted version, whether or not its time has passed (open files read on).
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.adopted
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The adopted version, if it is still valid.
    ///
    /// # Errors
    /// [`ReadError::Expired`].
    pub fn current(&self) -> Result<Arc<Snapshot>, ReadError> {
        let snapshot = self.snapshot();
        if self.now() >= snapshot.valid_until() {
            return Err(ReadError::Expired {
                until: snapshot.valid_until(),
            });
        }
        Ok(snapshot)
    }

    /// Whether only the grace keeps the adopted version alive.
    pub fn is_stale(&self) -> bool {
        let snapshot = self.snapshot();
        self.now() >= snapshot.fresh_until()
    }

    /// Whether it was begun with the version that was kept on this machine, and no place has told
    /// anything to be believed since.
    pub fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Relaxed)
    }

    pub(crate) fn asker(&self) -> Asker<'_> {
        Asker {
            mirrors: &self.mirrors,
            options: &self.options,
            state: &self.state,
            signatures: &self.signatures,
            now: self.now(),
            toward: None,
        }
    }

    /// Looks for a newer version without adopting it. A statement that renews the adopted version
    /// takes effect at once.
    ///
    /// # Errors
    /// As [`Volume::open`]; the adopted version stays.
    pub async fn check(&self) -> Result<Option<Candidate>, ReadError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            // Nothing is newer than the one that is wanted.
            return Ok(None);
        }
        let asker = self.asker();
        let deadline = self.deadline();
        let judged = asker.judged_heads(deadline).await?;
        self.offline.store(false, Ordering::Relaxed);
        let old = self.snapshot();
        if let Some(newest) = judged.first() {
            self.clock.advance_to(newest.offer.judged_at);
        }
        if judged.first().is_some_and(|j| j.offer.stale) && !self.is_stale() {
            // Newer, but over; what is held is not.
            return Ok(None);
        }
        let same = |j: &Judged| j.offer.record_hash == *old.record_hash();
        if judged.first().is_some_and(same) {
            // Several places may tell the same record; the longest timestamp counts.
            let renewed = judged
                .iter()
                .filter(|j| same(j))
                .max_by_key(|j| j.offer.valid_until);
            if let Some(renewed) = renewed {
                self.renew(&old, renewed);
            }
            asker.compare(&judged, old.record().version);
            return Ok(None);
        }
        let candidate = asker.first_adoptable(judged, Some(&old), deadline).await?;
        Ok(Some(candidate))
    }

    /// The same record under another timestamp.
    fn renew(&self, old: &Snapshot, judged: &Judged) {
        let offer = &judged.offer;
        if offer.valid_until != old.valid_until() {
            let snapshot = old.until(offer);
            *self.adopted.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
        }
        if offer.valid_until > old.valid_until()
            && let Some(head) = &judged.head
            && let Err(error) = self.asker().keep(head, offer)
        {
            tracing::warn!(%error, "a longer time for the kept head could not be kept");
        }
    }

    /// Adopts a candidate: durably in the floor first, then for all readers at once.
    ///
    /// # Errors
    /// [`ReadError::State`]; [`ReadError::Statement`] when another process has adopted something
    /// newer in the meantime.
    pub fn adopt(&self, candidate: Candidate) -> Result<Arc<Snapshot>, ReadError> {
        let snapshot = Arc::new(self.asker().adopt(candidate)?);
        *self.adopted.write().unwrap_or_else(PoisonError::into_inner) = snapshot.clone();
        Ok(snapshot)
    }

    /// Checks for a newer version and adopts it.
    ///
    /// # Errors
    /// As [`Volume::check`] and [`Volume::adopt`].
    pub async fn refresh(&self) -> Result<Refreshed, ReadError> {
        match self.check().await? {
            None => Ok(Refreshed::Unchanged),
            Some(candidate) => self.adopt(candidate).map(Refreshed::Adopted),
        }
    }
}

/// One round of asking for heads.
pub(crate) struct Asker<'a> {
    pub mirrors: &'a Arc<Mirrors>,
    pub options: &'a VolumeOptions,
    pub state: &'a State,
    pub signatures: &'a Mutex<Signatures>,
    pub now: u64,
    /// Where the reader goes first.
    pub toward: Option<&'a [u8]>,
}

impl Asker<'_> {
    pub(crate) fn signatures(&self) -> MutexGuard<'_, Signatures> {
        let signatures = self.signatures.lock();
        signatures.unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest version that some place has.
    pub(crate) async fn newest(&self, deadline: Instant) -> Result<Candidate, ReadError> {
        let judged = self.judged_heads(deadline).await?;
        self.first_adoptable(judged, None, deadline).await
    }

    /// The heads that pass the floor, newest first; those that only the grace keeps alive come last.
    async fn judged_heads(&self, deadline: Instant) -> Result<Vec<Judged>, ReadError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            return self.pinned(deadline).await;
        }
        let places: Vec<String> = self.places();
        let place = |mirror: usize| places.get(mirror).cloned().unwrap_or_default();
        let mut errors = Vec::new();
        let mut heads = Vec::new();
        let asked = self.mirrors.heads(self.toward, HEADS_PATIENCE);
        match tokio::time::timeout_at(deadline.into(), asked).await {
            Ok(answers) => {
                for (mirror, answer) in answers {
                    match answer {
                        Ok(bytes) => heads.push(Told {
                            mirror,
                            place: place(mirror),
                            bytes,
                        }),
                        Err(error) => errors.push(ReadError::from_store("the head", &error)),
                    }
                }
            }
            Err(_) => errors.push(ReadError::Unavailable {
                what: "the head".to_owned(),
                cause: format!("{} did not answer before the deadline", places.join(", ")),
            }),
        }
        let mut judged = self.judge(heads, &mut errors)?;
        judged.sort_by_key(|j| {
            let version = Reverse(j.offer.record.version);
            (j.offer.stale, version, j.offer.record_hash)
        });
        let fork = errors.iter().any(|e| e.class() == Some(Class::Fork));
        if judged.is_empty() || fork {
            return Err(gravest(errors));
        }
        for error in &errors {
            tracing::warn!(%error, "a place was set aside");
        }
        Ok(judged)
    }

    /// Judges heads together, under the lock of the floor, so that two processes see one order of
    /// events. What they teach (policies, the newest start) is kept at once; adoption comes later.
    fn judge(
        &self,
        told: Vec<Told>,
        errors: &mut Vec<ReadError>,
    ) -> Result<Vec<Judged>, ReadError> {
        let mut heads = Vec::new();
        let mut tellers = Vec::new();
        for told in told {
            match Head::decode(&told.bytes) {
                Ok(head) => {
                    heads.push(head);
                    tellers.push(told);
                }
                Err(why) => {
                    self.mirrors.told_wrong(told.mirror, format!("head: {why}"));
                    let place = told.place;
                    errors.push(ReadError::Statement { place, why });
                }
            }
        }
        let locked = self.state.lock()?;
        let before = locked.load()?;
        let terms = Terms {
            freshness: self.options.freshness,
            ..Terms::strict(self.now)
        };
        let mut signatures = self.signatures();
        let verdict = before.judge_all(&heads, &terms, &mut signatures);
        drop(signatures);
        let mut judged = Vec::new();
        for (told, offer) in tellers.into_iter().zip(verdict.offers) {
            match offer {
                Ok(offer) => judged.push(Judged {
                    mirror: told.mirror,
                    place: told.place,
                    offer,
                    head: Some(told.bytes),
                }),
                Err(why) => {
                    let place = told.place;
                    tracing::error!(replica = %place, %why, "head refused");
                    if matches!(why.class(), Class::Fork | Class::Rollback) {
                        locked.keep_contradiction(&told.bytes)?;
                    }
                    match why.class() {
                        // Who lags has old blocks all the same.
                        Class::Rollback | Class::Expired => {
                            self.mirrors.set_behind(told.mirror, true);
                        }
                        _ => self.mirrors.told_wrong(told.mirror, format!("head: {why}")),
                    }
                    errors.push(ReadError::Statement { place, why });
                }
            }
        }
        if verdict.floor != before {
            locked.store(&verdict.floor)?;
        }
        Ok(judged)
    }

    /// The newest judged version whose root and top directory can be had; who withholds them is
    /// logged and passed over.
    async fn first_adoptable(
        &self,
        judged: Vec<Judged>,
        old: Option<&Snapshot>,
        deadline: Instant,
    ) -> Result<Candidate, ReadError> {
        let mut errors = Vec::new();
        let mut left = judged.as_slice();
        while let Some((first, _)) = left.split_first() {
            let told = |j: &Judged| j.offer.record_hash == first.offer.record_hash;
            let (same, others) = left.split_at(left.iter().take_while(|j| told(j)).count());
            left = others;
            // Whoever announces something and then stalls takes no time from what others offer.
            let now = Instant::now();
            let until = match others {
                [] => deadline,
                _ => now + deadline.saturating_duration_since(now) / 2,
            };
            let longest = same.iter().max_by_key(|j| j.offer.valid_until);
            let longest = longest.unwrap_or(first);
            let (mut offer, head) = (longest.offer.clone(), longest.head.clone());
            let told = head.as_deref().unwrap_or_default();
            match self.grown(&mut offer, told, same, until).await {
                Ok(()) => {}
                Err(error) if is_fork(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(version = offer.record.version, %error, "is not adopted");
                    errors.push(error);
                    continue;
                }
            }
            match self.open_offer(&offer, old, until).await {
                Ok(snapshot) => {
                    self.compare(&judged, offer.record.version);
                    return Ok(Candidate {
                        snapshot,
                        offer,
                        head,
                    });
                }
                Err(error) => {
                    for Judged { mirror, place, .. } in same {
                        tracing::error!(replica = %place, %error, "announces a version and withholds it");
                        let words = format!("withholds version {}", offer.record.version);
                        self.mirrors.told_wrong(*mirror, words);
                    }
                    errors.push(error);
                }
            }
        }
        Err(gravest(errors))
    }

    /// Shows that the log of `offer` only grew; who told it is asked first.
    async fn grown(
        &self,
        offer: &mut Offer,
        head: &[u8],
        same: &[Judged],
        deadline: Instant,
    ) -> Result<(), ReadError> {
        let mut places: Vec<_> = self.mirrors.replicas().cloned().enumerate().collect();
        places.sort_by_key(|(mirror, _)| !same.iter().any(|j| j.mirror == *mirror));
        let blame = |mirror, words| self.mirrors.told_wrong(mirror, words);
        growth::show(self.state, offer, head, &places, deadline, blame).await
    }

    pub(crate) async fn open_offer(
        &self,
        offer: &Offer,
        old: Option<&Snapshot>,
        deadline: Instant,
    ) -> Result<Snapshot, ReadError> {
        let blocks = match old {
            Some(old) => old.blocks().clone(),
            None => Arc::new(Blocks::new(
                offer.chain.hasher(),
                self.mirrors.clone(),
                self.options.cache_bytes,
                self.options.disk_cache.clone(),
            )),
        };
        let how = Fetch::Until(deadline);
        let snapshot = Snapshot::open(blocks, offer, how).await?;
        self.enter(&snapshot, how).await?;
        Ok(snapshot)
    }

    /// Tells the mirrors which of them are behind the version in use.
    fn compare(&self, judged: &[Judged], version: u64) {
        for judged in judged {
            let behind = judged.offer.record.version < version;
            self.mirrors.set_behind(judged.mirror, behind);
        }
    }

    fn places(&self) -> Vec<String> {
        let replicas = self.mirrors.replicas();
        replicas.map(|r| r.place().to_owned()).collect()
    }

    /// Goes into the top directory: where the reader is going, or anywhere.
    async fn enter(&self, snapshot: &Snapshot, how: Fetch) -> Result<(), ReadError> {
        let first = self
            .toward
            .and_then(|path| path.split(|b| *b == b'/').next());
        match first {
            Some(name) => snapshot.lookup(snapshot.root(), name, how).await.map(drop),
            None => snapshot.list(snapshot.root(), None, 1, how).await.map(drop),
        }
    }

    fn adopt(&self, candidate: Candidate) -> Result<Snapshot, ReadError> {
        let locked = self.state.lock()?;
        let floor = locked.load()?;
        let adopted = floor
            .adopt(&candidate.offer)
            .map_err(|why| ReadError::Statement {
                place: "what was to be adopted".to_owned(),
                why,
            })?;
        if adopted != floor {
            locked.store(&adopted)?;
        }
        if let Some(head) = &candidate.head
            && let Err(error) = locked.keep(head)
        {
            tracing::warn!(%error, "the head is kept neither for a start without any place nor as evidence");
        }
        Ok(candidate.snapshot)
    }
}
