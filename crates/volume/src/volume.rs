//! A volume as its readers hold it: replicas, floor, and the one version that is adopted.
//!
//! Carries out the client's half of SFSRO 3.2 (freshness) and 3.4 (updates): take the newest version
//! that the places have (`asker`), remember it durably, and let nobody read from a statement whose time
//! has passed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::cache::DiskCache;
use store::mirrors::Mirrors;
use store::{BoxFuture, Replica};
use trust::head::Head;
use trust::judge::{Freshness, Offer};
use trust::signatures::Signatures;
use trust::statement::VolumeId;

use crate::asker::{Asker, Held, Judged};
use crate::error::VolumeError;
use crate::snapshot::Snapshot;
use state::clock::Clock;
use state::{self, State};

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
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            state_directory: state::default_directory(),
            cache_bytes: 128 << 20,
            deadline: Duration::from_secs(30),
            freshness: Freshness::Strict,
            toward: None,
            disk_cache: None,
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

/// What of a version must be there before it takes the place of another.
pub trait Demands: Send + Sync {
    /// Fetches it.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn fetch<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), VolumeError>>;
}

/// Demands nothing.
struct Nothing;

impl Demands for Nothing {
    fn fetch<'a>(&'a self, _: &'a Snapshot, _: Instant) -> BoxFuture<'a, Result<(), VolumeError>> {
        Box::pin(async { Ok(()) })
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

impl Volume {
    /// Opens a volume: asks all places for their heads, adopts the newest that can be had.
    ///
    /// # Errors
    /// The gravest of what the places did wrong (fork, rollback, integrity, expired, unavailable);
    /// [`VolumeError::State`] when the floor cannot be read or kept.
    pub async fn open(
        id: VolumeId,
        replicas: Vec<Arc<dyn Replica>>,
        options: VolumeOptions,
    ) -> Result<Arc<Volume>, VolumeError> {
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
    /// [`VolumeError::Expired`].
    pub fn current(&self) -> Result<Arc<Snapshot>, VolumeError> {
        let snapshot = self.snapshot();
        if self.now() >= snapshot.valid_until() {
            return Err(VolumeError::Expired {
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
    pub async fn check(&self) -> Result<Option<Candidate>, VolumeError> {
        self.check_for(&Nothing).await
    }

    /// The same for a reader who must have more of a version than its top directory before it takes
    /// the place of the one in use. While that holds, a version of which this cannot be had is passed
    /// over for the next; once it is over, any is better than none.
    ///
    /// # Errors
    /// As [`Volume::check`].
    pub async fn check_for(&self, demands: &dyn Demands) -> Result<Option<Candidate>, VolumeError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            // Nothing is newer than the one that is wanted.
            return Ok(None);
        }
        let asker = self.asker();
        let deadline = self.deadline();
        let judged = asker.judged_heads(deadline).await;
        self.end_if_withdrawn(&asker)?;
        let judged = judged?;
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
        let held = Held {
            snapshot: &old,
            is_over: self.current().is_err(),
            demands,
        };
        let found = asker.first_adoptable(judged, Some(held), deadline).await;
        found.map(Some)
    }

    /// The same record under another timestamp.
    fn renew(&self, old: &Snapshot, judged: &Judged) {
        let offer = &judged.offer;
        if let Some(renewed) = old.renewed(offer) {
            self.show(renewed);
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
    /// [`VolumeError::State`]; [`VolumeError::Statement`] when another process has adopted something
    /// newer in the meantime.
    pub fn adopt(&self, candidate: Candidate) -> Result<Arc<Snapshot>, VolumeError> {
        let snapshot = self.asker().adopt(candidate)?;
        Ok(self.show(snapshot))
    }

    fn show(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        *self.adopted.write().unwrap_or_else(PoisonError::into_inner) = snapshot.clone();
        snapshot
    }

    /// Ends the version in use where the policies known by now do not allow it: the owners revoked the
    /// volume, or went on from another record (rules 3 and 5).
    fn end_if_withdrawn(&self, asker: &Asker<'_>) -> Result<(), VolumeError> {
        let floor = self.state.lock()?.load()?;
        let old = self.snapshot();
        if floor
            .policy()
            .is_none_or(|(number, _)| number <= old.policy())
        {
            return Ok(());
        }
        let allowed = floor.still_allows(old.record(), old.record_hash(), &mut asker.signatures());
        if let Err(why) = allowed
            && self.current().is_ok()
        {
            tracing::error!(volume = %self.id, version = old.record().version, %why, "the version in use was withdrawn");
            self.show(old.ended(self.now()));
        }
        Ok(())
    }

    /// Checks for a newer version and adopts it.
    ///
    /// # Errors
    /// As [`Volume::check`] and [`Volume::adopt`].
    pub async fn refresh(&self) -> Result<Refreshed, VolumeError> {
        match self.check().await? {
            None => Ok(Refreshed::Unchanged),
            Some(candidate) => self.adopt(candidate).map(Refreshed::Adopted),
        }
    }
}

/// The volume id that a place claims to have: to be shown to a user who named none, and believed in
/// nothing.
///
/// # Errors
/// [`VolumeError`] when the place does not answer, has no single volume, or has no head.
pub async fn claimed_id(replica: &dyn Replica) -> Result<VolumeId, VolumeError> {
    let bytes = replica.head().await;
    let bytes = bytes.map_err(|e| VolumeError::from_store("the head", &e))?;
    let place = replica.place();
    if bytes.is_empty() {
        let words = format!("{place}: nothing is published here yet");
        return Err(VolumeError::Place(words));
    }
    let claimed = Head::decode(&bytes).and_then(|head| head.volume());
    claimed.map_err(|why| VolumeError::Statement {
        place: place.to_owned(),
        why,
    })
}
