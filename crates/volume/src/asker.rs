//! Asking the places for their heads: each is judged against the floor, and the newest whose root can
//! really be had is taken (SFSRO 3.2, freshness).

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::mirrors::Mirrors;
use trust::error::Class;
use trust::head::Head;
use trust::judge::{Freshness, Offer, Terms};
use trust::signatures::Signatures;

use reader::{Blocks, Fetch, Prefetcher, ReadError, Spawner};

use crate::error::{VolumeError, gravest, is_evidence, is_fork, is_old};
use crate::growth;
use crate::snapshot::Snapshot;
use crate::volume::{Candidate, Demands, VolumeOptions};
use state::State;

/// How long the other mirrors' heads are waited for once one has come.
pub(crate) const HEADS_PATIENCE: Duration = Duration::from_millis(1000);

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

/// What is in use while something newer is looked for.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    pub snapshot: &'a Snapshot,
    /// Its statement is over: what comes next need not be as complete.
    pub is_over: bool,
    pub demands: &'a dyn Demands,
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
    pub(crate) async fn newest(&self, deadline: Instant) -> Result<Candidate, VolumeError> {
        let judged = self.judged_heads(deadline).await?;
        self.first_adoptable(judged, None, deadline).await
    }

    /// The heads that pass the floor, newest first; those that only the grace keeps alive come last.
    pub(crate) async fn judged_heads(&self, deadline: Instant) -> Result<Vec<Judged>, VolumeError> {
        if matches!(self.options.freshness, Freshness::Pinned { .. }) {
            return self.pinned(deadline).await;
        }
        let places: Vec<String> = self.places();
        let place = |mirror: usize| places.get(mirror).cloned().unwrap_or_default();
        let mut errors = Vec::new();
        let mut heads = Vec::new();
        // Not so long that the deadline takes away what has come.
        let left = deadline.saturating_duration_since(Instant::now());
        let patience = HEADS_PATIENCE.min(left / 2);
        let asked = self.mirrors.heads(self.toward, patience);
        match tokio::time::timeout_at(deadline.into(), asked).await {
            Ok(answers) => {
                for (mirror, answer) in answers {
                    match answer {
                        Ok(bytes) => heads.push(Told {
                            mirror,
                            place: place(mirror),
                            bytes,
                        }),
                        Err(error) => {
                            let error = VolumeError::from_store("the head", &error);
                            errors.push((Some(mirror), error));
                        }
                    }
                }
            }
            Err(_) => {
                let what = "the head".to_owned();
                let cause = format!("{} did not answer before the deadline", places.join(", "));
                errors.push((None, VolumeError::unavailable(what, cause)));
            }
        }
        let mut judged = self.judge(heads, &mut errors)?;
        judged.sort_by_key(|j| {
            let version = Reverse(j.offer.record.version);
            (j.offer.stale, version, j.offer.record_hash)
        });
        let fork = |(_, error): &(_, VolumeError)| error.class() == Some(Class::Fork);
        if judged.is_empty() || errors.iter().any(fork) {
            return Err(gravest(
                errors.into_iter().map(|(_, error)| error).collect(),
            ));
        }
        self.tell_once(&judged, &errors);
        Ok(judged)
    }

    /// Logs which places brought nothing, when that begins and when it ends: readers ask often.
    fn tell_once(&self, judged: &[Judged], errors: &[(Option<usize>, VolumeError)]) {
        for (mirror, error) in errors {
            if !mirror.is_none_or(|mirror| {
                self.mirrors
                    .set_head_refusal(mirror, Some(error.to_string()))
            }) {
                continue;
            }
            if matches!(error, VolumeError::Statement { why, .. } if is_old(why)) {
                tracing::info!(%error, "a place is behind: it is asked for blocks only");
            } else {
                tracing::warn!(%error, "a place was set aside");
            }
        }
        for judged in judged {
            if self.mirrors.set_head_refusal(judged.mirror, None) {
                tracing::info!(place = judged.place, "a place brings the head again");
            }
        }
    }

    /// Judges heads together, under the lock of the floor, so that two processes see one order of
    /// events. What they teach (policies, the newest start) is kept at once; adoption comes later.
    fn judge(
        &self,
        told: Vec<Told>,
        errors: &mut Vec<(Option<usize>, VolumeError)>,
    ) -> Result<Vec<Judged>, VolumeError> {
        let mut heads = Vec::new();
        let mut tellers = Vec::new();
        for told in told {
            match Head::decode(&told.bytes) {
                Ok(head) => {
                    heads.push(head);
                    tellers.push(told);
                }
                Err(why) => {
                    self.mirrors.record_lie(told.mirror, format!("head: {why}"));
                    let place = told.place;
                    errors.push((Some(told.mirror), VolumeError::Statement { place, why }));
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
        let (mut judged, mut refused) = (Vec::new(), Vec::new());
        for (told, offer) in tellers.into_iter().zip(verdict.offers) {
            match offer {
                Ok(offer) => judged.push(Judged {
                    mirror: told.mirror,
                    place: told.place,
                    offer,
                    head: Some(told.bytes),
                }),
                Err(why) => refused.push((told, why)),
            }
        }
        for (told, why) in refused {
            match why.class() {
                // Who lags has old blocks all the same; where all have ended, nobody lags.
                Class::Rollback => self.mirrors.set_behind(told.mirror, true),
                Class::Expired => self.mirrors.set_behind(told.mirror, !judged.is_empty()),
                _ => self.mirrors.record_lie(told.mirror, format!("head: {why}")),
            }
            if judged.is_empty() || !is_old(&why) {
                tracing::error!(replica = %told.place, %why, "head refused");
            }
            if is_evidence(&why, judged.is_empty()) {
                locked.keep_contradiction(&told.bytes)?;
            }
            let place = told.place;
            errors.push((Some(told.mirror), VolumeError::Statement { place, why }));
        }
        if verdict.floor != before {
            locked.store(&verdict.floor)?;
        }
        Ok(judged)
    }

    /// The newest judged version whose root and top directory can be had, and what else is demanded;
    /// who withholds them is logged and passed over.
    pub(crate) async fn first_adoptable(
        &self,
        judged: Vec<Judged>,
        held: Option<Held<'_>>,
        deadline: Instant,
    ) -> Result<Candidate, VolumeError> {
        let (mut errors, mut incomplete) = (Vec::new(), None);
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
            let old = held.map(|held| held.snapshot);
            let snapshot = match self.open_offer(&offer, old, until).await {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    self.withheld(same, &error);
                    errors.push(error);
                    continue;
                }
            };
            let fetched = match held {
                Some(held) => held.demands.fetch(&snapshot, until).await,
                None => Ok(()),
            };
            let candidate = Candidate {
                snapshot,
                offer,
                head,
            };
            let version = candidate.offer.record.version;
            match fetched {
                Ok(()) => {
                    self.compare(&judged, version);
                    return Ok(candidate);
                }
                Err(error) => {
                    tracing::error!(version, %error, "a version is announced and what is in use of it cannot be had");
                    errors.push(error);
                    incomplete.get_or_insert(candidate);
                }
            }
        }
        match incomplete {
            Some(candidate) if held.is_some_and(|held| held.is_over) => {
                self.compare(&judged, candidate.offer.record.version);
                Ok(candidate)
            }
            _ => Err(gravest(errors)),
        }
    }

    /// Says that a version cannot be had from those who told it.
    fn withheld(&self, tellers: &[Judged], error: &VolumeError) {
        for teller in tellers {
            let (replica, version) = (&teller.place, teller.offer.record.version);
            if matches!(error, VolumeError::Read(ReadError::Malformed(_))) {
                // It is what was signed: no place is to blame.
                tracing::error!(%replica, version, %error, "announces a version that is malformed");
                continue;
            }
            tracing::error!(%replica, version, %error, "announces a version and withholds it");
            let words = format!("withholds version {version}");
            self.mirrors.record_lie(teller.mirror, words);
        }
    }

    /// Shows that the log of `offer` only grew; who told it is asked first.
    async fn grown(
        &self,
        offer: &mut Offer,
        head: &[u8],
        same: &[Judged],
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let mut places: Vec<_> = self.mirrors.replicas().cloned().enumerate().collect();
        places.sort_by_key(|(mirror, _)| !same.iter().any(|j| j.mirror == *mirror));
        let blame = |mirror, words| self.mirrors.record_lie(mirror, words);
        growth::show(self.state, offer, head, &places, deadline, blame).await
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
                    self.mirrors.clone(),
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

    /// Tells the mirrors which of them are behind the version in use.
    pub(crate) fn compare(&self, judged: &[Judged], version: u64) {
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
    async fn enter(&self, snapshot: &Snapshot, how: Fetch) -> Result<(), VolumeError> {
        let first = self
            .toward
            .and_then(|path| path.split(|b| *b == b'/').next());
        match first {
            Some(name) => drop(snapshot.lookup(snapshot.root(), name, how).await?),
            None => drop(snapshot.list(snapshot.root(), None, 1, how).await?),
        }
        Ok(())
    }

    pub(crate) fn adopt(&self, candidate: Candidate) -> Result<Snapshot, VolumeError> {
        let locked = self.state.lock()?;
        let floor = locked.load()?;
        let adopted = floor
            .adopt(&candidate.offer)
            .map_err(|why| VolumeError::Statement {
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
