//! An open volume: its replicas, its floor, and the one version that is adopted.
//!
//! Carries out the client's half of SFSRO 3.2 (freshness) and 3.4 (updates): find the newest version
//! that the replicas have (`search`), store it durably as the floor, and refuse reads from a statement
//! that has expired.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use store::mirrors::Mirrors;
use store::{BoxFuture, Replica};
use trust::head::Head;
use trust::judge::Freshness;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

use state::{SteadyClock, VolumeState};

use crate::error::VolumeError;
use crate::heads::{HeadRound, VerifiedHead, nothing_published};
pub use crate::options::VolumeOptions;
pub use crate::search::{Candidate, Demands};
use crate::search::{CurrentVersion, OPENING_PATIENCE, PATIENCE, Search};
use crate::snapshot::Snapshot;

/// An open volume.
pub struct Volume {
    id: VolumeId,
    mirrors: Arc<Mirrors>,
    options: VolumeOptions,
    state: VolumeState,
    clock: Arc<SteadyClock>,
    signatures: Arc<Mutex<Signatures>>,
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
    /// Nothing newer. The statement may hold longer than before.
    Unchanged,
    /// A newer version, now adopted.
    Adopted(Arc<Snapshot>),
}

impl Volume {
    /// Opens a volume: asks all replicas for their heads and adopts the newest version that can be
    /// fetched.
    ///
    /// # Errors
    /// The gravest error of the replicas (fork, rollback, integrity, expired, unavailable);
    /// [`VolumeError::State`] when the floor cannot be read or kept.
    pub async fn open(
        id: VolumeId,
        replicas: Vec<Arc<dyn Replica>>,
        options: VolumeOptions,
    ) -> Result<Arc<Volume>, VolumeError> {
        let state = VolumeState::at(&options.state_directory, &id);
        let clock = Arc::new(SteadyClock::start(options.clock.clone()));
        let signatures = Arc::default();
        let mirrors = Arc::new(Mirrors::new(replicas));
        let round = HeadRound {
            mirrors: &mirrors,
            state: &state,
            signatures: &signatures,
            freshness: options.freshness,
            policy_pin: options.policy_pin,
            wall: clock.wall(),
            now: clock.now(),
            toward: options.toward.as_deref(),
            patience: OPENING_PATIENCE,
            through_outages: true,
        };
        let search = Search {
            round,
            options: &options,
        };
        let deadline = Instant::now() + options.deadline;
        let (candidate, offline) = search.begin(deadline).await?;
        let Candidate {
            snapshot,
            offer,
            head,
        } = candidate;
        clock.advance_to(offer.judged_at);
        round.adopt(&offer, head, deadline).await?;
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

    /// How long an operation may take.
    pub fn patience(&self) -> Duration {
        self.options.deadline
    }

    /// The deadline of an operation that begins now.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// The adopted version, expired or not (open files stay readable).
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

    /// Whether it was opened with the head that was kept on this machine, and no replica has sent a
    /// head that passes the floor since.
    pub fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Relaxed)
    }

    /// This volume for readers of one version, which it never leaves.
    pub(crate) fn staying_at(&self, snapshot: Snapshot) -> Arc<Volume> {
        let freshness = Freshness::Pinned {
            version: snapshot.record().version,
            record_hash: *snapshot.record_hash(),
        };
        let options = VolumeOptions {
            freshness,
            ..self.options.clone()
        };
        Arc::new(Volume {
            id: self.id,
            mirrors: Arc::clone(&self.mirrors),
            options,
            state: self.state.clone(),
            clock: Arc::clone(&self.clock),
            signatures: Arc::clone(&self.signatures),
            adopted: RwLock::new(Arc::new(snapshot)),
            offline: AtomicBool::new(self.is_offline()),
        })
    }

    /// Where evidence about it is kept.
    pub(crate) fn evidence_directory(&self) -> std::path::PathBuf {
        self.state.evidence_directory()
    }

    pub(crate) fn round(&self) -> HeadRound<'_> {
        HeadRound {
            mirrors: &self.mirrors,
            state: &self.state,
            signatures: &self.signatures,
            freshness: self.options.freshness,
            policy_pin: self.options.policy_pin,
            wall: self.clock.wall(),
            now: self.now(),
            toward: None,
            patience: PATIENCE,
            // The version in use stays while nothing newer is found.
            through_outages: false,
        }
    }

    pub(crate) fn search(&self) -> Search<'_> {
        Search {
            round: self.round(),
            options: &self.options,
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

    /// As [`Volume::check`], for a reader that demands more of a version than its top directory. While
    /// the statement in use holds, a version that does not meet the demands is passed over for the next
    /// one. After it has expired, the newest version is returned all the same.
    ///
    /// # Errors
    /// As [`Volume::check`].
    pub async fn check_for(&self, demands: &dyn Demands) -> Result<Option<Candidate>, VolumeError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            // A pinned version has no newer one.
            return Ok(None);
        }
        let search = self.search();
        let deadline = self.deadline();
        let verified = search.verified_heads(deadline).await;
        self.end_if_withdrawn(&search.round, deadline).await?;
        let verified = verified?;
        self.offline.store(false, Ordering::Relaxed);
        let old = self.snapshot();
        let Some(newest) = verified.first() else {
            return Ok(None);
        };
        self.clock.advance_to(newest.offer.judged_at);
        if newest.offer.stale && !self.is_stale() {
            // It is newer but has expired, and the version in use has not.
            return Ok(None);
        }
        let same = |head: &VerifiedHead| head.offer.record_hash == *old.record_hash();
        if same(newest) {
            // Several replicas may send the same record; the longest timestamp counts.
            let renewed = verified
                .iter()
                .filter(|head| same(head))
                .max_by_key(|head| head.offer.valid_until);
            if let Some(renewed) = renewed {
                self.renew(&old, renewed, deadline).await;
            }
            search.round.compare(&verified, old.record().version);
            return Ok(None);
        }
        let current = CurrentVersion {
            snapshot: &old,
            is_over: self.current().is_err(),
            demands,
        };
        let found = search.first_adoptable(verified, Some(current), deadline);
        found.await.map(Some)
    }

    /// Uses another timestamp of the record in use.
    async fn renew(&self, old: &Snapshot, head: &VerifiedHead, deadline: Instant) {
        let offer = &head.offer;
        if let Some(renewed) = old.renewed(offer) {
            self.show(renewed);
        }
        if offer.valid_until <= old.valid_until() {
            return;
        }
        let Some(bytes) = head.bytes().cloned() else {
            return;
        };
        let kept = self.round().keep(bytes, offer.record_hash, deadline).await;
        if let Err(error) = kept {
            tracing::warn!(%error, "cannot keep the renewed head");
        }
    }

    /// Adopts a candidate: first durably in the floor, then for all readers at once.
    ///
    /// # Errors
    /// [`VolumeError::State`]; [`VolumeError::Statement`] when another process has adopted something
    /// newer in the meantime.
    pub async fn adopt(&self, candidate: Candidate) -> Result<Arc<Snapshot>, VolumeError> {
        let Candidate {
            snapshot,
            offer,
            head,
        } = candidate;
        self.round().adopt(&offer, head, self.deadline()).await?;
        Ok(self.show(snapshot))
    }

    fn show(&self, snapshot: Snapshot) -> Arc<Snapshot> {
        let snapshot = Arc::new(snapshot);
        *self.adopted.write().unwrap_or_else(PoisonError::into_inner) = snapshot.clone();
        snapshot
    }

    /// Ends the version in use if the floor does not allow it any more: the owners revoked the volume, or continued
    /// from another record (rules 3 and 5), or the user refused it or its policy when a fork was settled.
    async fn end_if_withdrawn(
        &self,
        round: &HeadRound<'_>,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let floor = round.floor(deadline).await?;
        let old = self.snapshot();
        let is_newer = floor
            .policy()
            .is_some_and(|(number, _)| number > old.policy());
        let mut named = [old.record_hash(), &old.record().policy_hash].into_iter();
        if !is_newer && !named.any(|hash| floor.forks().is_refused(hash)) {
            return Ok(());
        }
        let allowed = floor.still_allows(old.signed(), &mut round.signatures());
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
            Some(candidate) => self.adopt(candidate).await.map(Refreshed::Adopted),
        }
    }
}

/// The volume id that a replica claims to have, to show it to a user who named none. Nothing is
/// verified.
///
/// # Errors
/// [`VolumeError`] when the replica does not answer, has no single volume, or has no head.
pub async fn claimed_id(replica: &dyn Replica) -> Result<VolumeId, VolumeError> {
    let bytes = replica.head().await;
    let bytes = bytes.map_err(|e| VolumeError::from_store("the head", &e))?;
    let place = replica.place();
    if bytes.is_empty() {
        return Err(nothing_published(place));
    }
    let claimed = Head::decode(&bytes).and_then(|head| head.volume());
    claimed.map_err(|why| VolumeError::Statement {
        place: place.to_owned(),
        why,
    })
}
