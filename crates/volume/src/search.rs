//! Finding the version to read: of the heads that pass the floor (`heads`), the newest version whose root
//! and top directory can be fetched (SFSRO 3.2).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reader::{Blocks, Fetch, Prefetcher, ReadError, Spawner};
use store::BoxFuture;
use trust::judge::{Freshness, Offer};

use crate::error::{VolumeError, gravest, is_fork};
use crate::heads::{HeadRound, VerifiedHead};
use crate::options::VolumeOptions;
use crate::snapshot::Snapshot;

/// How long the other heads are waited for once one has come: by who opens a volume, because a user waits,
pub(crate) const OPENING_PATIENCE: Duration = Duration::from_millis(250);
/// and by a mount that looks for a newer version, because nobody waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// A newer version that passed the floor and whose root was fetched, but which is not adopted yet.
#[derive(Debug)]
pub struct Candidate {
    pub(crate) snapshot: Snapshot,
    pub(crate) offer: Offer,
    /// The head that named it; none if its record was found in a log.
    pub(crate) head: Option<Bytes>,
}

impl Candidate {
    /// The version. Callers fetch what they need of it before they adopt it.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

/// What a reader must have of a version before it replaces the one in use.
pub trait Demands: Send + Sync {
    /// Fetches the demanded blocks.
    ///
    /// # Errors
    /// Why it cannot be fetched.
    fn fetch<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), VolumeError>>;
}

/// The version in use while a newer one is looked for.
#[derive(Clone, Copy)]
pub(crate) struct CurrentVersion<'a> {
    pub snapshot: &'a Snapshot,
    /// Whether its statement has expired; then the next version need not meet the demands.
    pub is_over: bool,
    pub demands: &'a dyn Demands,
}

/// One search for the version to read.
pub(crate) struct Search<'a> {
    pub round: HeadRound<'a>,
    pub options: &'a VolumeOptions,
}

impl Search<'_> {
    /// The newest version that some replica has.
    pub(crate) async fn newest(&self, deadline: Instant) -> Result<Candidate, VolumeError> {
        let heads = self.verified_heads(deadline).await?;
        self.first_adoptable(heads, None, deadline).await
    }

    /// The heads that pass the floor, newest first; for a pinned version, the replicas that have it.
    pub(crate) async fn verified_heads(
        &self,
        deadline: Instant,
    ) -> Result<Vec<VerifiedHead>, VolumeError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            return self.pinned(deadline).await;
        }
        self.round.heads(deadline).await
    }

    /// The newest of `heads` whose root and top directory can be fetched, and what `current` demands.
    /// A replica that withholds them is logged, and its version is passed over.
    pub(crate) async fn first_adoptable(
        &self,
        heads: Vec<VerifiedHead>,
        current: Option<CurrentVersion<'_>>,
        deadline: Instant,
    ) -> Result<Candidate, VolumeError> {
        if current.is_none() {
            self.prepare();
        }
        let (mut errors, mut incomplete) = (Vec::new(), None);
        let same_record =
            |a: &VerifiedHead, b: &VerifiedHead| a.offer.record_hash == b.offer.record_hash;
        let mut versions = heads.chunk_by(same_record).peekable();
        while let Some(same) = versions.next() {
            // A replica that announces a version and then stalls leaves time for the other versions.
            let now = Instant::now();
            let until = match versions.peek() {
                None => deadline,
                Some(_) => now + deadline.saturating_duration_since(now) / 2,
            };
            let Some(longest) = same.iter().max_by_key(|head| head.offer.valid_until) else {
                continue;
            };
            let (mut offer, head) = (longest.offer.clone(), longest.bytes().cloned());
            match self.prove_log(&mut offer, head.as_ref(), same, until).await {
                Ok(()) => {}
                Err(error) if is_fork(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(version = offer.record.version, %error, "a version cannot be adopted");
                    errors.push(error);
                    continue;
                }
            }
            let old = current.map(|current| current.snapshot);
            let snapshot = match self.open_offer(&offer, old, until).await {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    self.not_fetched(same, &error);
                    errors.push(error);
                    continue;
                }
            };
            let met = match current {
                Some(current) => current.demands.fetch(&snapshot, until).await,
                None => Ok(()),
            };
            let version = offer.record.version;
            let candidate = Candidate {
                snapshot,
                offer,
                head,
            };
            match met {
                Ok(()) => {
                    self.round.compare(&heads, version);
                    return Ok(candidate);
                }
                Err(error) => {
                    tracing::error!(version, %error, "a version is announced, but its blocks for files in use cannot be fetched");
                    errors.push(error);
                    incomplete.get_or_insert(candidate);
                }
            }
        }
        match incomplete {
            Some(candidate) if current.is_some_and(|current| current.is_over) => {
                self.round.compare(&heads, candidate.offer.record.version);
                Ok(candidate)
            }
            _ => Err(gravest(errors)),
        }
    }

    /// Logs that a version cannot be fetched. Withholding is what a replica that announces it does itself: it
    /// denies the blocks. (A wrong block is noted where it is found.) An outage of the replica, or a fault of
    /// another one, is no withholding.
    fn not_fetched(&self, tellers: &[VerifiedHead], error: &VolumeError) {
        for teller in tellers {
            let (replica, version) = (&teller.place, teller.offer.record.version);
            match error {
                VolumeError::Read(ReadError::Malformed(_) | ReadError::Unsupported { .. }) => {
                    // The publisher signed it: no replica is to blame.
                    tracing::error!(%replica, version, %error, "announces a version that cannot be read");
                }
                VolumeError::Read(ReadError::Unavailable { denied, .. })
                    if denied.contains(replica) =>
                {
                    tracing::error!(%replica, version, %error, "announces a version and withholds it");
                    if let Some(mirror) = teller.mirror {
                        let words = format!("withholds version {version}");
                        self.round.mirrors.record_lie(mirror, words);
                    }
                }
                _ => {
                    tracing::warn!(%replica, version, %error, "announces a version that cannot be fetched");
                }
            }
        }
    }

    /// Has the mirrors get ready for a reader of a whole tree, beside what comes now.
    fn prepare(&self) {
        let path = self.round.toward.unwrap_or_default();
        let most_bytes = self.options.reads.and_then(|reads| reads.index_bytes(path));
        if let Some(most_bytes) = most_bytes {
            let mirrors = Arc::clone(self.round.mirrors);
            tokio::spawn(async move { mirrors.prepare(most_bytes).await });
        }
    }

    async fn prove_log(
        &self,
        offer: &mut Offer,
        head: Option<&Bytes>,
        same: &[VerifiedHead],
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let tellers: Vec<usize> = same.iter().filter_map(|head| head.mirror).collect();
        let none = Bytes::new();
        let head = head.unwrap_or(&none);
        self.round.prove_log(offer, head, &tellers, deadline).await
    }

    pub(crate) async fn open_offer(
        &self,
        offer: &Offer,
        old: Option<&Snapshot>,
        deadline: Instant,
    ) -> Result<Snapshot, VolumeError> {
        let prefetcher = match old {
            Some(old) => old.prefetcher().clone(),
            None => {
                let blocks = Blocks::new(
                    offer.chain.hasher(),
                    self.round.mirrors.clone(),
                    self.options.cache_bytes,
                    self.options.disk_cache.clone(),
                );
                let runtime = tokio::runtime::Handle::current();
                Prefetcher::new(Arc::new(blocks), Spawner::on(runtime))
            }
        };
        let how = Fetch::Until(deadline);
        let snapshot = Snapshot::open(prefetcher, offer, how).await?;
        self.enter(&snapshot, how).await?;
        Ok(snapshot)
    }

    /// Fetches the first directory on the path to `toward`, or the root directory if there is no hint.
    async fn enter(&self, snapshot: &Snapshot, how: Fetch) -> Result<(), VolumeError> {
        let first = self
            .round
            .toward
            .and_then(|path| path.split(|b| *b == b'/').next());
        match first {
            Some(name) => drop(snapshot.lookup(snapshot.root(), name, how).await?),
            None => drop(snapshot.list(snapshot.root(), None, 1, how).await?),
        }
        Ok(())
    }
}
