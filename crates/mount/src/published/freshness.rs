//! Adopts newer versions, and makes the kernel drop cached names when a statement expires (SFSRO 3.4;
//! decision 0010).
//!
//! An update swaps the root, then makes every name in the kernel's cache stale with one call. Between the
//! two, for a few microseconds, a path may resolve through names of both versions; the content of a file is
//! always of one. Nothing waits for an invalidation. Relies on [`crate::fuse::Notifier`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use store::BoxFuture;
use trust::error::Class;
use volume::volume::Demands;
use volume::{Fetch, Snapshot, VolumeError};

use crate::fuse::{INodeNo, Notifier};
use crate::published::nodes::Node;
use crate::published::operations::Core;

/// The clock is read at least this often, because it may jump (after a suspend, or when it is set).
const TICK: Duration = Duration::from_secs(5);
/// Longest pause after a failed refresh.
const RETRY: Duration = Duration::from_secs(5);
/// Pause before the second call: a listing that was under way at an update may leave names of the old
/// version behind.
const SECOND_CALL: Duration = Duration::from_secs(1);
/// Shortest pause.
const SHORTEST: Duration = Duration::from_millis(50);
/// Directories of a new version that are fetched before it is adopted: the open ones, then those used last.
const MAX_FETCHED_AHEAD: usize = 64;

/// The task that keeps one mount fresh.
#[derive(Debug)]
pub struct Keeper {
    core: Arc<Core>,
    notifier: Arc<Notifier>,
    /// Whether the kernel can be notified that names are stale.
    can_recall: bool,
    refresh: Duration,
    /// The expiry that was logged last, so that each is logged once.
    told_expiry_of: Option<u64>,
    /// The beginning of the grace period that was logged last.
    told_grace_of: Option<u64>,
    /// An outage was logged that still lasts.
    told_outage: bool,
}

impl Keeper {
    /// For a mount that begins now.
    pub fn new(
        core: Arc<Core>,
        notifier: Arc<Notifier>,
        can_recall: bool,
        refresh: Duration,
    ) -> Self {
        let refresh = refresh.max(SHORTEST);
        Keeper {
            core,
            notifier,
            can_recall,
            refresh,
            told_expiry_of: None,
            told_grace_of: None,
            told_outage: false,
        }
    }

    /// Runs until the task is dropped.
    pub async fn run(mut self) {
        let mut due = Instant::now() + self.until_next(true);
        loop {
            let pause = due.saturating_duration_since(Instant::now());
            tokio::time::sleep(pause.min(TICK).min(self.until_expiry())).await;
            self.warn_of_grace();
            self.let_go_if_expired().await;
            if Instant::now() >= due {
                let went_well = self.refresh().await;
                due = Instant::now() + self.until_next(went_well);
            }
        }
    }

    /// Pause until the next refresh: the interval, but early enough before this statement expires to
    /// leave time for a second attempt.
    fn until_next(&self, went_well: bool) -> Duration {
        let interval = if went_well {
            self.refresh
        } else {
            self.refresh.min(RETRY)
        };
        let left = self.until_expiry();
        if left.is_zero() {
            interval
        } else {
            interval.min(left.mul_f64(0.7))
        }
        .max(SHORTEST)
    }

    /// Time until the statement expires; after that, the pause between two looks at the clock.
    fn until_expiry(&self) -> Duration {
        let until = self.core.view().snapshot.valid_until();
        if self.told_expiry_of == Some(until) {
            return TICK;
        }
        // Both are in whole seconds, rounded down, so the real time left may be a second less.
        let left = until
            .saturating_sub(self.core.volume.now())
            .saturating_sub(1);
        Duration::from_secs(left).max(SHORTEST)
    }

    /// Logs once that only the grace period keeps the volume readable.
    fn warn_of_grace(&mut self) {
        let fresh_until = self.core.view().snapshot.fresh_until();
        if !self.core.volume.is_stale() || self.told_grace_of == Some(fresh_until) {
            return;
        }
        self.told_grace_of = Some(fresh_until);
        tracing::warn!(
            volume = %self.core.volume.id(),
            ended = fresh_until,
            until = self.core.view().snapshot.valid_until(),
            "the statement expired and nothing newer was found: the grace period keeps the volume readable"
        );
    }

    async fn let_go_if_expired(&mut self) {
        let Err(VolumeError::Expired { until }) = self.core.current() else {
            return;
        };
        if self.told_expiry_of != Some(until) {
            self.told_expiry_of = Some(until);
            tracing::error!(
                volume = %self.core.volume.id(),
                until,
                "the statement expired and nothing newer was found: names can no longer be looked up"
            );
            self.recall().await;
        }
    }

    /// Looks for a newer version and adopts it. If that fails, the old version stays while it is valid.
    async fn refresh(&mut self) -> bool {
        let outcome = self.try_refresh().await;
        self.core.faults.refreshed(outcome.as_ref().err());
        let class = outcome.as_ref().err().and_then(VolumeError::class);
        let is_outage = class == Some(Class::Unavailable);
        // Reads that wait for its end have logged it, or the refresh before has.
        let is_told = self.told_outage || self.core.volume.mirrors().outage().is_some();
        self.told_outage = is_outage;
        match outcome {
            Ok(()) => true,
            Err(error) => {
                let volume = self.core.volume.id();
                match error.class() {
                    Some(Class::Unavailable) if is_told => {
                        tracing::debug!(%volume, %error, "nothing newer was adopted");
                    }
                    Some(Class::Unavailable) | None => {
                        tracing::warn!(%volume, %error, "nothing newer was adopted");
                    }
                    // The expiry was logged once, as an error.
                    Some(Class::Expired) if self.told_expiry_of.is_some() => {
                        tracing::debug!(%volume, %error, "nothing newer was adopted");
                    }
                    class => tracing::error!(%volume, ?class, %error, "nothing newer was adopted"),
                }
                false
            }
        }
    }

    async fn try_refresh(&self) -> Result<(), VolumeError> {
        let old = self.core.view();
        let checked = self.core.volume.check_for(&InUse(&self.core)).await;
        if !matches!(checked, Ok(Some(_))) {
            // The same version may be valid for longer now, or be revoked.
            let snapshot = self.core.volume.snapshot();
            let sooner = snapshot.valid_until() < old.snapshot.valid_until();
            self.core.show(snapshot, false);
            if sooner {
                self.recall().await;
            }
        }
        match checked? {
            None => {}
            Some(candidate) => {
                let snapshot = self.core.volume.adopt(candidate).await?;
                let version = snapshot.record().version;
                self.core.show(snapshot, true);
                tracing::info!(volume = %self.core.volume.id(), version, "adopted");
                self.recall().await;
            }
        }
        Ok(())
    }

    /// Makes the kernel look up every name again, and the attributes of directories.
    async fn recall(&self) {
        if !self.can_recall {
            return;
        }
        let made_stale = self.notifier.increment_epoch();
        let (core, notifier) = (self.core.clone(), self.notifier.clone());
        let attributes = tokio::task::spawn_blocking(move || {
            // Working directories and open directories are not looked up again.
            for node in core.nodes.directories() {
                // Fails if the kernel has dropped it in the meantime; then there is nothing to do.
                let _ = notifier.invalidate_attributes(INodeNo(node.number()));
            }
        });
        let notifier = self.notifier.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SECOND_CALL).await;
            // Fails only when the mount is gone.
            let _ = notifier.increment_epoch();
        });
        // A panic there is reported by tokio.
        let _ = attributes.await;
        if let Err(error) = made_stale {
            tracing::debug!(%error, "the kernel was not notified: the mount has ended");
        }
    }
}

/// The directories in use. A new version is adopted only when they can be fetched: a replica that announces
/// a version and withholds its blocks does not take away the old one.
struct InUse<'a>(&'a Core);

impl Demands for InUse<'_> {
    fn fetch<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), VolumeError>> {
        let directories = self.0.directories_in_use(MAX_FETCHED_AHEAD);
        let paths: Vec<Path> = directories.into_iter().map(path_of).collect();
        Box::pin(async move {
            let how = Fetch::Until(deadline);
            let fetches = paths
                .iter()
                .map(|path| fetch_directory(snapshot, path, how));
            join_all(fetches).await.into_iter().collect()
        })
    }
}

/// The nodes on the way from the root, which is left out.
type Path = Vec<Arc<Node>>;

fn path_of(directory: Arc<Node>) -> Path {
    let mut path = Vec::new();
    let mut at = directory;
    while let Some(parent) = at.parent().cloned() {
        path.push(at);
        at = parent;
    }
    path.reverse();
    path
}

async fn fetch_directory(snapshot: &Snapshot, path: &Path, how: Fetch) -> Result<(), VolumeError> {
    let mut at = snapshot.root().clone();
    for node in path {
        match snapshot.lookup(&at, node.name(), how).await? {
            Some(inode) if inode.kind() == trust::inode::FileKind::Directory => {
                at = Arc::new(inode);
            }
            _ => return Ok(()),
        }
    }
    snapshot.list(&at, None, 1, how).await?;
    Ok(())
}
