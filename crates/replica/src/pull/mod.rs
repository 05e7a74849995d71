//! `pull`: a repository follows a volume (SFSRO 3.3, pulldb; design `publish.md`, *Replication*).
//!
//! A pull makes *waves* of requests; each wave waits for the one before:
//!
//! 1. the heads of all sources, judged as a reader judges them (`heads`);
//! 2. the source's index of new segments, then those segments (`prefetch`). They are hints and stay in
//!    memory. At the same time, the leaves of the log (`history`);
//! 3. the walk with `trust::reach` over the difference from the version in the repository (`walk`). A block
//!    that is neither in the repository nor prefetched is fetched by handle from the sources (`sources`), and
//!    proved;
//! 4. when everything that the new version reaches is in the repository, the head moves.
//!
//! Until then the old version stays the newest. The inode of the new root is written last, so a root in the
//! repository has everything below it. Proved blocks are made durable on the way: when a pull ends early,
//! the next one finds them. Only blocks that a signed root reaches are written.

mod heads;
mod history;
mod limit;
mod policies;
mod prefetch;
mod sources;
mod walk;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join;
use reader::ReadError;
use store::disk::Disk;
use store::mirrors::Mirrors;
use store::{Replica, Repository, StoreError, Writer};
use tokio::sync::Notify;
use trust::Reject;
use trust::head::Head;
use trust::judge::Freshness;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

use crate::note::{ReplicaNote, Scope};
use crate::prune::{self, PruneOptions, Pruned};
use heads::Offered;
use limit::Limit;
use prefetch::SegmentPrefetch;
use reader::Tally;
use sources::Sources;
use state::{Clock, StateError, VolumeState};
use volume::error::{VolumeError, gravest, is_fork};
use volume::heads::HeadRound;
use volume::kept::Kept;
use walk::Walk;

/// How a volume is pulled.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// The directory that holds the floors.
    pub state_directory: PathBuf,
    /// How long one source may be silent, and how long a pull waits when all sources are.
    pub deadline: Duration,
    /// How fresh a statement must be.
    pub freshness: Freshness,
    /// The hash of a policy that the policies of the volume must contain.
    pub policy_pin: Option<[u8; 32]>,
    /// Most that is received in a second, bytes.
    pub bytes_per_second: Option<u64>,
    /// Which part of the volume the replica is to hold.
    pub scope: Scope,
    /// How many of the newest versions are kept, besides those that are valid. With `None`, blocks that no
    /// valid version reaches are collected now and then, when there may be many.
    pub keep: Option<u64>,
    /// Also read and prove the blocks in the repository, and fetch damaged ones again.
    pub paranoid: bool,
    /// The clock by which expiry is judged.
    pub clock: Clock,
    /// Ends the pull when it is notified. What arrived is kept.
    pub stop: Arc<Notify>,
}

impl Default for PullOptions {
    fn default() -> Self {
        PullOptions {
            state_directory: state::default_directory(),
            deadline: Duration::from_secs(30),
            freshness: Freshness::Strict,
            policy_pin: None,
            bytes_per_second: None,
            scope: Scope::default(),
            keep: None,
            paranoid: false,
            clock: Clock::system(),
            stop: Arc::default(),
        }
    }
}

/// What a pull did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pulled {
    /// The version of the replica's head now.
    pub version: u64,
    /// The version of its head before, if it had one.
    pub previous: Option<u64>,
    /// Until when readers may believe it, unix seconds.
    pub valid_until: u64,
    /// Number of new blocks.
    pub blocks: u64,
    /// Their records, bytes.
    pub block_bytes: u64,
    /// Bytes received for them: records, index, log; without heads.
    pub received_bytes: u64,
    /// Bytes written: segments and index.
    pub written_bytes: u64,
    /// Number of damaged blocks that were fetched again.
    pub healed: u64,
    /// Number of requests that waited for one another, from the request for the head on.
    pub waves: u32,
    /// Whether the replica's log is complete.
    pub log_whole: bool,
    /// The result of the collection afterwards.
    pub pruned: Option<Pruned>,
}

/// Why nothing was pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The volume cannot be fetched; what arrived is kept.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The replica's own repository failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The repository holds another volume.
    #[error("{} holds another volume: {found}", path.display())]
    OtherVolume {
        /// The repository.
        path: PathBuf,
        /// The volume that it holds.
        found: VolumeId,
    },
    /// Asked to stop; what arrived is kept.
    #[error("interrupted")]
    Interrupted,
}

impl From<ReadError> for PullError {
    fn from(error: ReadError) -> PullError {
        PullError::Volume(error.into())
    }
}

impl From<StateError> for PullError {
    fn from(error: StateError) -> PullError {
        PullError::Volume(error.into())
    }
}

/// The version of the replica's head.
pub(crate) struct Here {
    pub head: Head,
    pub record: RootRecord,
    pub record_hash: [u8; 32],
}

/// Updates the repository on `disk`, which is made if there is none, to the newest version of `volume`
/// that the sources have whole. Waits for the disk of the repository on the calling thread.
///
/// # Errors
/// [`PullError`]; the previous version stays whole then.
pub async fn pull(
    volume: VolumeId,
    replicas: &[Arc<dyn Replica>],
    disk: Arc<dyn Disk>,
    options: &PullOptions,
    tally: Arc<Tally>,
) -> Result<Pulled, PullError> {
    let writer = match Repository::open_on(disk.clone()) {
        Ok(repository) => Some(Writer::begin(&repository)?),
        Err(StoreError::NoRepository { .. }) => None,
        Err(e) => return Err(e.into()),
    };
    let here = match &writer {
        Some(writer) => here(writer, volume)?,
        None => None,
    };
    let state = VolumeState::at(&options.state_directory, &volume);
    let mirrors = Arc::new(Mirrors::new(replicas.to_vec()));
    let signatures = Arc::<Mutex<Signatures>>::default();
    let round = HeadRound {
        mirrors: &mirrors,
        state: &state,
        signatures: &signatures,
        freshness: options.freshness,
        policy_pin: options.policy_pin,
        wall: options.clock.now(),
        now: options.clock.now(),
        toward: None,
        patience: heads::PATIENCE,
        through_outages: true,
    };
    let until = Instant::now() + options.deadline;
    let committing = AtomicBool::new(false);
    let own = match (&here, &writer) {
        (Some(_), Some(writer)) => Some(writer.statements().clone()),
        _ => None,
    };
    let heads = async {
        let answers = heads::ask(&round, replicas, until).await;
        heads::verify(&round, replicas, answers, own, until).await
    };
    let (offers, errors) = unless_stopped(options, &committing, heads).await??;
    let own = offers.iter().find(|offered| offered.source.is_none());
    let own_until = own.map_or(0, |own| own.offer.valid_until);
    let writer = match writer {
        Some(writer) => writer,
        None => Writer::begin(&Repository::create_on(disk)?)?,
    };
    let mut pull = Pull {
        replicas,
        options,
        tally,
        round,
        committing: &committing,
        writer,
        here,
        own_until,
        written_bytes: 0,
        owes: None,
    };
    let pulled = match unless_stopped(options, &committing, pull.newest(offers, errors)).await {
        Ok(pulled) => pulled?,
        Err(interrupted) => {
            pull.keep();
            return Err(interrupted);
        }
    };
    // The version is committed; the last wait is for the bandwidth limit.
    if let Some(sources) = &pull.owes {
        let _ = unless_stopped(options, &AtomicBool::new(false), sources.limit.wait()).await;
    }
    Ok(pulled)
}

/// Does `work` until the pull is asked to stop. Once `committing` is set, `work` ends first: a commit is
/// bounded by the deadline of the state, and its result must be reported.
async fn unless_stopped<T>(
    options: &PullOptions,
    committing: &AtomicBool,
    work: impl Future<Output = T>,
) -> Result<T, PullError> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => Ok(done),
        () = options.stop.notified() => match committing.load(Ordering::Relaxed) {
            true => {
                let done = work.await;
                // For the wait that follows the commit: it must end too.
                options.stop.notify_one();
                Ok(done)
            }
            false => Err(PullError::Interrupted),
        },
    }
}

fn here(writer: &Writer, volume: VolumeId) -> Result<Option<Here>, PullError> {
    if writer.statements().is_empty() {
        return Ok(None);
    }
    let path = || writer.repository().disk_shared().path("");
    let damaged = |why: Reject| StoreError::Damaged {
        path: path().join("head"),
        why: why.to_string(),
    };
    let head = Head::decode(writer.statements()).map_err(damaged)?;
    let found = head.volume().map_err(damaged)?;
    if found != volume {
        let path = path();
        return Err(PullError::OtherVolume { path, found });
    }
    let record: RootRecord = head.record.statement().read(volume).map_err(damaged)?;
    let record_hash = head.record.hash();
    Ok(Some(Here {
        head,
        record,
        record_hash,
    }))
}

struct Pull<'a> {
    replicas: &'a [Arc<dyn Replica>],
    options: &'a PullOptions,
    tally: Arc<Tally>,
    round: HeadRound<'a>,
    /// Set while a commit is under way, which a stop does not cut off.
    committing: &'a AtomicBool,
    writer: Writer,
    here: Option<Here>,
    /// Until when the repository's own head is valid, unix seconds; 0 if it is not.
    own_until: u64,
    written_bytes: u64,
    /// The sources whose bandwidth limit is still to be waited for.
    owes: Option<Arc<Sources>>,
}

impl Pull<'_> {
    /// Follows the newest version that can be fetched whole. Skips a version that its source withholds.
    async fn newest(
        &mut self,
        offers: Vec<Offered>,
        mut errors: Vec<VolumeError>,
    ) -> Result<Pulled, PullError> {
        for mut offered in offers {
            let Some((number, place)) = offered.source.clone() else {
                continue;
            };
            if let Some(here) = &self.here
                && offered.offer.record.version < here.record.version
                && offered.offer.record.policy_number <= here.record.policy_number
            {
                let why = Reject::Rollback {
                    offered: offered.offer.record.version,
                    floor: here.record.version,
                };
                let place = place.place().to_owned();
                errors.push(VolumeError::Statement { place, why });
                continue;
            }
            let followed = match self.prove_log(&mut offered, number).await {
                Ok(()) => self.follow(&offered).await,
                Err(error) if is_fork(&error) => return Err(error.into()),
                Err(error) => Err(error.into()),
            };
            match followed {
                // The publisher's own tree proves that the path is not there: no source is to blame.
                Err(PullError::Volume(error @ VolumeError::Read(ReadError::NotFound { .. }))) => {
                    self.keep();
                    return Err(error.into());
                }
                Err(PullError::Volume(error)) => {
                    self.keep();
                    let replica = place.place();
                    let version = offered.offer.record.version;
                    tracing::error!(replica, version, %error, "announces a version that cannot be fetched");
                    errors.push(error);
                }
                Err(error) => {
                    self.keep();
                    return Err(error);
                }
                Ok(pulled) => return Ok(pulled),
            }
        }
        Err(gravest(errors).into())
    }

    /// Proves that the log of `offered` only grew. The source that announced it is asked first.
    async fn prove_log(&self, offered: &mut Offered, source: usize) -> Result<(), VolumeError> {
        let deadline = Instant::now() + self.options.deadline;
        let (offer, head) = (&mut offered.offer, &offered.bytes);
        self.round.prove_log(offer, head, &[source], deadline).await
    }

    /// Makes durable what arrived, so that the next pull need not fetch it again.
    fn keep(&mut self) {
        if self.writer.pending_bytes() > 0
            && let Err(error) = self.writer.checkpoint()
        {
            tracing::warn!(%error, "cannot keep the blocks that arrived");
        }
    }

    /// Fetches everything that a version reaches, and moves the head to it.
    async fn follow(&mut self, offered: &Offered) -> Result<Pulled, PullError> {
        let note = ReplicaNote::load(self.writer.repository())?;
        let scope = &self.options.scope;
        let proved = self.proved(note.as_ref());
        let stands = self.here.as_ref().map(|here| here.record_hash);
        let same = stands == Some(offered.offer.record_hash) && proved.as_ref() == Some(scope);
        if same && !self.options.paranoid {
            return self.renew(offered).await;
        }
        // Before the log, whose leaves are read by them.
        self.carry_policies(offered).await?;
        let sources = Arc::new(Sources::new(
            offered.offer.chain.hasher(),
            self.replicas,
            self.options.deadline,
            Limit::new(self.options.bytes_per_second),
            self.tally.clone(),
        ));
        let repository = self.writer.repository().clone();
        // Half of the deadline for one source that stalls leaves time to ask others.
        let patience = self.options.deadline / 2;
        let here = self.here.as_ref();
        let (prefetched, log_whole) = join(
            prefetch(&sources, offered, &repository, self.options, patience),
            history::carry(&sources, &mut self.writer, here, offered, patience),
        )
        .await;
        let log_whole = log_whole?;
        let base = proved.filter(|base| covers(base, scope));
        let base = self.here.as_ref().filter(|_| base.is_some());
        let base = base.map(|here| here.record.root);
        let prefetch_waves = prefetched.waves;
        if base.is_none() && scope.is_everything() {
            let total = &self.tally.total_bytes;
            total.store(offered.offer.record.totals.bytes, Ordering::Relaxed);
        }
        let mut walk = Walk::new(
            sources.clone(),
            &mut self.writer,
            prefetched,
            offered.offer.record.root,
            self.options,
        );
        walk.walk(base).await?;
        let done = walk.finish()?;
        let note = note.unwrap_or_default();
        note.with(offered.offer.record_hash, scope.clone(), stands)
            .store(&mut self.writer)?;
        let (log, own) = (offered.offer.record.log, offered.head.record.to_bytes());
        self.writer.put_log_leaf(log.epoch, log.size, &own)?;
        if log_whole {
            self.writer.tile_log(&offered.offer.log_after);
        }
        self.written_bytes += done.written_bytes;
        self.commit(offered).await?;
        if let Err(error) = done.followed.store(&mut self.writer) {
            tracing::debug!(%error, "cannot remember the source's files: they will be fetched again");
        }
        let pruned = self.collect();
        let received_bytes = sources.received_bytes.load(Ordering::Relaxed);
        self.owes = Some(sources);
        Ok(Pulled {
            blocks: done.blocks,
            block_bytes: done.block_bytes,
            healed: done.healed,
            received_bytes,
            waves: done.waves.max(1 + prefetch_waves),
            log_whole,
            pruned,
            ..self.told(offered)
        })
    }

    /// Collects versions that are no longer kept, if that was asked for or is worth a walk. The pull has
    /// succeeded even if this fails.
    fn collect(&mut self) -> Option<Pruned> {
        if self.options.keep.is_none() && !self.writer.has_grown() {
            return None;
        }
        let options = PruneOptions {
            keep: self.options.keep.unwrap_or(1),
            clock: self.options.clock.clone(),
            ..PruneOptions::default()
        };
        match prune::collect(&mut self.writer, &options) {
            Ok(pruned) => Some(pruned),
            Err(error) => {
                tracing::warn!(%error, "nothing was collected");
                None
            }
        }
    }

    /// The part of the version that is known to be complete here.
    fn proved(&self, note: Option<&ReplicaNote>) -> Option<Scope> {
        let here = self.here.as_ref()?;
        match note {
            None => Some(Scope::default()),
            Some(note) => note.of(&here.record_hash).cloned(),
        }
    }

    /// The replica has the version already; its statement may be valid for longer now.
    async fn renew(&mut self, offered: &Offered) -> Result<Pulled, PullError> {
        if self.replaces(offered) {
            self.carry_policies(offered).await?;
            self.commit(offered).await?;
        }
        Ok(Pulled {
            waves: 1,
            log_whole: true,
            ..self.told(offered)
        })
    }

    /// Copies the policies on which the head of `offered` relies.
    async fn carry_policies(&mut self, offered: &Offered) -> Result<(), PullError> {
        // Half of the deadline for one source that stalls leaves time to ask others.
        let patience = self.options.deadline / 2;
        let here = self.here.as_ref().filter(|_| !self.options.paranoid);
        policies::carry(self.replicas, &mut self.writer, here, offered, patience).await
    }

    /// Whether `offered` replaces the repository's head.
    fn replaces(&self, offered: &Offered) -> bool {
        let Some(here) = &self.here else {
            return true;
        };
        let kept = Kept::new(&here.head, self.own_until);
        offered.bytes != self.writer.statements()
            && kept.gives_way_to(&Kept::new(&offered.head, offered.offer.valid_until))
    }

    /// The version of the replica's head, if it is the offered one.
    fn here_for(&self, offered: &Offered) -> Option<&Here> {
        let here = self.here.as_ref()?;
        (here.record_hash == offered.offer.record_hash).then_some(here)
    }

    /// Moves the head, then the floor. In the other order, a crash in between would make this replica's
    /// own readers report a rollback. Of two heads about one record, the better one is kept.
    async fn commit(&mut self, offered: &Offered) -> Result<(), PullError> {
        self.committing.store(true, Ordering::Relaxed);
        let committed = self.commit_whole(offered).await;
        self.committing.store(false, Ordering::Relaxed);
        committed
    }

    async fn commit_whole(&mut self, offered: &Offered) -> Result<(), PullError> {
        let deadline = || Instant::now() + self.options.deadline;
        // Another process may have moved the floor meanwhile.
        let offer = &offered.offer;
        self.round.check_adoptable(offer, deadline()).await?;
        let bytes = match self.replaces(offered) {
            true => offered.bytes.clone(),
            false => self.writer.statements().clone(),
        };
        let committed = self.writer.commit(&bytes)?;
        self.written_bytes += committed.segment_bytes + committed.index_bytes;
        let deadline = Instant::now() + self.options.deadline;
        self.round.adopt(offer, Some(bytes), deadline).await?;
        Ok(())
    }

    fn told(&self, offered: &Offered) -> Pulled {
        let own_until = self.here_for(offered).map_or(0, |_| self.own_until);
        Pulled {
            version: offered.offer.record.version,
            previous: self.here.as_ref().map(|here| here.record.version),
            valid_until: offered.offer.valid_until.max(own_until),
            written_bytes: self.written_bytes,
            ..Pulled::default()
        }
    }
}

/// Prefetches new segments from the source that announced the version, if the whole volume is pulled.
async fn prefetch(
    sources: &Sources,
    offered: &Offered,
    repository: &Repository,
    options: &PullOptions,
    patience: Duration,
) -> SegmentPrefetch {
    let source = offered
        .source
        .as_ref()
        .filter(|_| options.scope.is_everything());
    let objects = source.and_then(|(_, source)| source.objects());
    let (Some(objects), Some(files)) = (objects, &offered.files) else {
        return SegmentPrefetch::default();
    };
    prefetch::prefetch(sources, objects, files, repository, patience).await
}

/// Whether a version of which `base` is held has everything in `scope`.
fn covers(base: &Scope, scope: &Scope) -> bool {
    let below = |path: &Vec<u8>| {
        base.paths.iter().any(|top| {
            path.strip_prefix(top.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        })
    };
    base.is_everything() || (!scope.is_everything() && scope.paths.iter().all(below))
}
