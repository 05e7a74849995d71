//! `pull`: a repository follows a volume (SFSRO 3.3, pulldb; design `publish.md`, *Replication*).
//!
//! The order, each step a *wave* of requests that wait for those before:
//!
//! 1. heads of all places, judged as a reader judges them (`heads`);
//! 2. what the source's index says of new segments, then those segments (`stock`): hints, kept in memory;
//!    beside them the leaves of the log (`history`);
//! 3. the difference to the version that is here, walked by `trust::reach` (`walk`); what is neither here
//!    nor in stock is asked for by handle, of all places (`sources`), and proved;
//! 4. when everything that the new version reaches is here, the head moves.
//!
//! Until then the old version stands. The block that names the new tree, its root's inode, is written
//! last, so a root that is here has all below it. What has been proved is made durable on the way;
//! whatever ends a pull, the next one finds it again. Only what a signed root reaches is ever written.

mod heads;
mod history;
mod limit;
mod sources;
mod stock;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join;
use reader::ReadError;
use store::disk::Disk;
use store::{Replica, Repository, StoreError, Writer};
use tokio::sync::Notify;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, Terms};
use trust::root::RootRecord;
use trust::statement::VolumeId;

use crate::note::{ReplicaNote, Scope};
use crate::prune::{self, PruneOptions, Pruned};
use heads::{Offered, Told};
use limit::Limit;
use sources::Sources;
use state::clock::wall_seconds;
use state::{self, LockedState, State, StateError};
use stock::Stock;
use volume::error::{VolumeError, gravest, is_fork};
use volume::growth;
use volume::verify::Tally;
use walk::Walk;

/// How a volume is pulled.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Where floors are kept.
    pub state_directory: PathBuf,
    /// How long a place may be silent, and how long an outage of all is waited for.
    pub deadline: Duration,
    /// How fresh a statement must be.
    pub freshness: Freshness,
    /// Most that is received in a second, bytes.
    pub bytes_per_second: Option<u64>,
    /// Which part of the volume the replica is to hold.
    pub scope: Scope,
    /// How many of the newest versions are kept, besides those that are valid. Without it, what no
    /// valid version reaches is collected now and then, when it may be much.
    pub keep: Option<u64>,
    /// Read and prove what is here already, too; fetch anew what is damaged.
    pub paranoid: bool,
    /// Unix seconds; for tests and for whoever trusts another clock than the system's.
    pub clock: fn() -> u64,
    /// Told from outside, ends the pull; what arrived is kept.
    pub stop: Arc<Notify>,
}

impl Default for PullOptions {
    fn default() -> Self {
        PullOptions {
            state_directory: state::default_directory(),
            deadline: Duration::from_secs(30),
            freshness: Freshness::Strict,
            bytes_per_second: None,
            scope: Scope::default(),
            keep: None,
            paranoid: false,
            clock: wall_seconds,
            stop: Arc::default(),
        }
    }
}

/// What a pull did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pulled {
    /// The version at which the replica stands now.
    pub version: u64,
    /// The version at which it stood, if at any.
    pub previous: Option<u64>,
    /// Until when readers may believe it, unix seconds.
    pub valid_until: u64,
    /// Blocks that are new here.
    pub blocks: u64,
    /// Their records, bytes.
    pub block_bytes: u64,
    /// What was received for that, bytes: records, index, log; heads not counted.
    pub received_bytes: u64,
    /// What was written, bytes: segments and index.
    pub written_bytes: u64,
    /// Blocks that were here and had to be fetched anew.
    pub healed: u64,
    /// Requests that waited for one another, from the question for the head on.
    pub waves: u32,
    /// Whether the log is here whole.
    pub log_whole: bool,
    /// What was collected afterwards.
    pub pruned: Option<Pruned>,
}

/// Why nothing was pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The volume could not be had; what arrived is kept.
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
        /// What it says that it holds.
        found: VolumeId,
    },
    /// Told to stop; what arrived is kept.
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

/// The version at which the replica stands.
pub(crate) struct Here {
    pub head: Head,
    pub record: RootRecord,
    pub record_hash: [u8; 32],
}

/// Brings the repository on `disk`, which is made if there is none, up to the newest version of
/// `volume` that the places have whole. Waits for the disk: run it where that is allowed.
///
/// # Errors
/// [`PullError`]; the version before stands then, whole.
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
    let state = State::open(&options.state_directory, &volume)?;
    let terms = Terms {
        freshness: options.freshness,
        ..Terms::strict((options.clock)())
    };
    let mut errors = Vec::new();
    let until = Instant::now() + options.deadline;
    let told = heads::ask(replicas, until, &mut errors);
    let mut told = unless_stopped(options, told).await?;
    if let (Some(_), Some(writer)) = (&here, &writer) {
        told.push(Told {
            place: None,
            bytes: writer.statements().clone(),
            files: None,
        });
    }
    let offers = heads::judge(&state, &terms, told, &mut errors)?;
    let own = offers.iter().find(|offered| offered.place.is_none());
    let own_until = own.map_or(0, |own| own.offer.valid_until);
    let writer = match writer {
        Some(writer) => writer,
        None => Writer::begin(&Repository::create_on(disk)?)?,
    };
    let mut pull = Pull {
        replicas,
        options,
        tally,
        state,
        writer,
        here,
        own_until,
        written_bytes: 0,
        owes: None,
    };
    // Nothing waits between the first step of a commit and its last, so none is cut off.
    let pulled = match unless_stopped(options, pull.newest(offers, errors)).await {
        Ok(pulled) => pulled?,
        Err(interrupted) => {
            pull.keep();
            return Err(interrupted);
        }
    };
    // Whatever is owed of the limit is paid before this is called done; the version is here, though.
    if let Some(sources) = &pull.owes {
        let _ = unless_stopped(options, sources.limit.wait()).await;
    }
    Ok(pulled)
}

/// Does what may have to wait, unless told to stop.
async fn unless_stopped<T>(
    options: &PullOptions,
    work: impl Future<Output = T>,
) -> Result<T, PullError> {
    tokio::select! {
        done = work => Ok(done),
        () = options.stop.notified() => Err(PullError::Interrupted),
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
    state: State,
    writer: Writer,
    here: Option<Here>,
    /// Until when the head that is here may be believed, unix seconds; 0 where it may not.
    own_until: u64,
    written_bytes: u64,
    /// Those whose limit is still to be paid.
    owes: Option<Arc<Sources>>,
}

impl Pull<'_> {
    /// Takes the newest version that can be had whole. Who announces one and withholds it is passed
    /// over for the next.
    async fn newest(
        &mut self,
        offers: Vec<Offered>,
        mut errors: Vec<VolumeError>,
    ) -> Result<Pulled, PullError> {
        for mut offered in offers {
            let Some(place) = offered.place.clone() else {
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
            let followed = match self.grown(&mut offered, &place).await {
                Ok(()) => self.follow(&offered).await,
                Err(error) if is_fork(&error) => return Err(error.into()),
                Err(error) => Err(error.into()),
            };
            match followed {
                // Proved of what the publisher signed: no place is to blame, and none knows better.
                Err(PullError::Volume(error @ VolumeError::Read(ReadError::NotFound { .. }))) => {
                    self.keep();
                    return Err(error.into());
                }
                Err(PullError::Volume(error)) => {
                    self.keep();
                    let replica = place.place();
                    let version = offered.offer.record.version;
                    tracing::error!(replica, version, %error, "announces a version that cannot be had");
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

    /// Shows that the log of `offered` only grew; who told it is asked first.
    async fn grown(
        &self,
        offered: &mut Offered,
        teller: &Arc<dyn Replica>,
    ) -> Result<(), VolumeError> {
        let mut places: Vec<_> = self.replicas.iter().cloned().enumerate().collect();
        places.sort_by_key(|(_, replica)| !Arc::ptr_eq(replica, teller));
        let (head, offer) = (&offered.bytes, &mut offered.offer);
        let deadline = Instant::now() + self.options.deadline;
        growth::show(&self.state, offer, head, &places, deadline, |_, _| {}).await
    }

    /// Makes durable what arrived, so that the next pull need not fetch it again.
    fn keep(&mut self) {
        if self.writer.pending_bytes() > 0
            && let Err(error) = self.writer.checkpoint()
        {
            tracing::warn!(%error, "what arrived cannot be kept");
        }
    }

    /// Brings everything here that a version reaches, and moves the head to it.
    async fn follow(&mut self, offered: &Offered) -> Result<Pulled, PullError> {
        let note = ReplicaNote::load(self.writer.repository())?;
        let scope = &self.options.scope;
        let proved = self.proved(note.as_ref());
        let stands = self.here.as_ref().map(|here| here.record_hash);
        let same = stands == Some(offered.offer.record_hash) && proved.as_ref() == Some(scope);
        if same && !self.options.paranoid {
            return self.renew(offered);
        }
        let sources = Arc::new(Sources::new(
            offered.offer.chain.hasher(),
            self.replicas,
            self.options.deadline,
            Limit::new(self.options.bytes_per_second),
            self.tally.clone(),
        ));
        let repository = self.writer.repository().clone();
        // A place that stalls is not waited for long: others are asked, too.
        let patience = self.options.deadline / 2;
        let (stock, (leaves, log_whole)) = join(
            lay_in(&sources, offered, &repository, self.options, patience),
            history::carry(&sources, &repository, self.here.as_ref(), offered, patience),
        )
        .await;
        let base = proved.filter(|base| covers(base, scope));
        let base = self.here.as_ref().filter(|_| base.is_some());
        let base = base.map(|here| here.record.root);
        let stock_waves = stock.waves;
        let mut walk = Walk::new(
            sources.clone(),
            &mut self.writer,
            stock,
            offered.offer.record.root,
            self.options,
        );
        walk.walk(base).await?;
        let done = walk.finish()?;
        let note = note.unwrap_or_default();
        note.with(offered.offer.record_hash, scope.clone(), stands)
            .store(&mut self.writer)?;
        for (epoch, index, leaf) in leaves {
            self.writer.put_log_leaf(epoch, index, &leaf)?;
        }
        if log_whole {
            self.writer.tile_log(&offered.offer.log_after);
        }
        self.written_bytes += done.written_bytes;
        self.commit(offered)?;
        if let Err(error) = done.followed.store(&mut self.writer) {
            tracing::debug!(%error, "the source's files will be asked for again");
        }
        let pruned = self.collect();
        let received_bytes = sources.received_bytes.load(Ordering::Relaxed);
        self.owes = Some(sources);
        Ok(Pulled {
            blocks: done.blocks,
            block_bytes: done.block_bytes,
            healed: done.healed,
            received_bytes,
            waves: done.waves.max(1 + stock_waves),
            log_whole,
            pruned,
            ..self.told(offered)
        })
    }

    /// Collects what is no longer kept, where that was asked for or is worth a walk. The pull has
    /// succeeded whatever comes of it.
    fn collect(&mut self) -> Option<Pruned> {
        if self.options.keep.is_none() && !self.writer.has_grown() {
            return None;
        }
        let options = PruneOptions {
            keep: self.options.keep.unwrap_or(1),
            clock: self.options.clock,
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

    /// What is known to be here whole.
    fn proved(&self, note: Option<&ReplicaNote>) -> Option<Scope> {
        let here = self.here.as_ref()?;
        match note {
            None => Some(Scope::default()),
            Some(note) => note.of(&here.record_hash).cloned(),
        }
    }

    /// The version is here already; its statement may hold longer now.
    fn renew(&mut self, offered: &Offered) -> Result<Pulled, PullError> {
        if self.replaces(offered) {
            self.commit(offered)?;
        }
        Ok(Pulled {
            waves: 1,
            log_whole: true,
            ..self.told(offered)
        })
    }

    /// Whether the head that is here makes room for `offered`. One about the same record must tell no
    /// fewer policies and hold no shorter: a source that lags takes nothing away.
    fn replaces(&self, offered: &Offered) -> bool {
        match self.here_for(offered) {
            None => true,
            Some(here) => {
                offered.bytes != self.writer.statements()
                    && offered.head.policies.len() >= here.head.policies.len()
                    && offered.offer.valid_until >= self.own_until
            }
        }
    }

    /// The version at which the replica stands, if it is the one that is offered.
    fn here_for(&self, offered: &Offered) -> Option<&Here> {
        let here = self.here.as_ref()?;
        (here.record_hash == offered.offer.record_hash).then_some(here)
    }

    /// Moves the head, then the floor: were it the other way round, whoever reads from this replica
    /// with this state would be told of a rollback after a crash in between. The better of two heads
    /// about one record stands.
    fn commit(&mut self, offered: &Offered) -> Result<(), PullError> {
        self.adopted(offered)?;
        let bytes = match self.replaces(offered) {
            true => offered.bytes.clone(),
            false => self.writer.statements().clone(),
        };
        let committed = self.writer.commit(&bytes)?;
        self.written_bytes += committed.segment_bytes + committed.index_bytes;
        let (locked, adopted) = self.adopted(offered)?;
        locked.store(&adopted)?;
        if let Err(error) = locked.keep(&bytes) {
            tracing::warn!(%error, "the head is not kept as evidence");
        }
        Ok(())
    }

    /// The floor as it would be, if it may be: another process may have moved it meanwhile.
    fn adopted(&self, offered: &Offered) -> Result<(LockedState, Floor), VolumeError> {
        let locked = self.state.lock()?;
        let refused = |why| VolumeError::Statement {
            place: "what was to be adopted".to_owned(),
            why,
        };
        let adopted = locked.load()?.adopt(&offered.offer).map_err(refused)?;
        Ok((locked, adopted))
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

/// Fetches ahead from whoever told the version, where that is worth while.
async fn lay_in(
    sources: &Sources,
    offered: &Offered,
    repository: &Repository,
    options: &PullOptions,
    patience: Duration,
) -> Stock {
    let place = offered
        .place
        .as_ref()
        .filter(|_| options.scope.is_everything());
    let objects = place.and_then(|place| place.objects());
    let (Some(objects), Some(files)) = (objects, &offered.files) else {
        return Stock::default();
    };
    stock::lay_in(sources, objects, files, repository, patience).await
}

/// Whether a version held as far as `base` is whole as far as `scope`.
fn covers(base: &Scope, scope: &Scope) -> bool {
    let below = |path: &Vec<u8>| {
        base.paths.iter().any(|top| {
            path.strip_prefix(top.as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        })
    };
    base.is_everything() || (!scope.is_everything() && scope.paths.iter().all(below))
}
