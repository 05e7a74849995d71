//! Earlier versions, from the log that replicas keep (docs/decisions/0017): a pinned version is read from
//! it, `log` lists its versions; `past` reads versions by their numbers.
//!
//! A leaf is untrusted until its publishers' signatures are verified and, in a listing, until it hashes
//! into the log that the newest record names. Its blocks may be gone: an old version can be read as long
//! as some replica still has its blocks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use store::mirrors::outage::through_outages;
use store::object::ObjectName;
use store::repository::MAX_LEAF_BYTES;
use store::{Objects, Replica, StoreError};
use trust::Reject;
use trust::chain::Link;
use trust::earlier::Leaf;
use trust::floor::Floor;
use trust::head::Head;
use trust::history::{Frontier, LogPoint};
use trust::judge::{Freshness, Offer, Terms};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::{Signed, VolumeId};
use trust::tiles::TileName;
use trust::version_name::VersionName;

use reader::ReadError;

use crate::consistency::{self, share};
use crate::error::{VolumeError, gravest};
use crate::heads::{HeadRound, VerifiedHead};
use crate::search::Search;
use crate::volume::Volume;

mod policies;

use policies::Policies;

/// Leaves that are asked for at once.
const LEAVES_AT_ONCE: usize = 64;
/// Leaves without a record (policies, missing leaves) that a search skips.
const MAX_STEPS: u64 = 512;

/// How far an entry of a listing is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It hashes into the log that the newest record names.
    Proved,
    /// It is signed, but leaves that the proof of its place needs are missing.
    Unproved,
    /// It, or a leaf beside it, does not hash into that log: it must not be trusted.
    Contradicted,
}

/// What a replica has at one index of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// A signed statement.
    Leaf(Leaf),
    /// Nothing.
    Missing,
    /// A leaf that is not signed as the policy demands.
    Refused(Reject),
}

/// One index of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which log.
    pub epoch: u64,
    /// Which leaf of it.
    pub index: u64,
    /// What the replica has there.
    pub kept: Kept,
    /// How far it is proved.
    pub standing: Standing,
}

/// The history of a volume as one replica shows it. The replica's head is verified, whatever its age.
pub struct History {
    mirror: usize,
    replica: Arc<dyn Replica>,
    floor: Floor,
    head: Head,
    offer: Offer,
    now: u64,
    signatures: Mutex<Signatures>,
    policies: Mutex<Policies>,
    /// For how long the replica is asked again while it does not answer.
    patience: Duration,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History")
            .field("place", &self.replica.place())
            .finish_non_exhaustive()
    }
}

impl History {
    /// Begins from a replica's head.
    ///
    /// # Errors
    /// [`Reject`]: a head whose policies or signatures are bad.
    pub(crate) fn begin(
        mirror: usize,
        replica: Arc<dyn Replica>,
        head: Head,
        floor: Floor,
        round: &HeadRound<'_>,
    ) -> Result<History, Reject> {
        let now = round.now;
        let claimed: RootRecord = head.record.statement().read(floor.volume())?;
        let terms = Terms {
            freshness: Freshness::Pinned {
                version: claimed.version,
                record_hash: head.record.hash(),
            },
            policy_pin: round.policy_pin,
            ..Terms::strict(now)
        };
        let mut signatures = Signatures::default();
        let offer = floor.judge(&head, &terms, &mut signatures)?;
        Ok(History {
            mirror,
            replica,
            floor,
            head,
            offer,
            now,
            signatures: Mutex::new(signatures),
            policies: Mutex::default(),
            patience: Duration::ZERO,
        })
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.floor.volume()
    }

    /// The replica's name.
    pub fn place(&self) -> &str {
        self.replica.place()
    }

    /// The newest record of the replica.
    pub fn newest(&self) -> &RootRecord {
        &self.offer.record
    }

    /// Number of the replica.
    pub(crate) fn mirror(&self) -> usize {
        self.mirror
    }

    /// The name of the replica's newest version.
    pub(crate) fn newest_name(&self) -> Option<VersionName> {
        self.head.record.statement().version_name()
    }

    /// The log before the head's record, and its frontier.
    pub(crate) fn log_of_head(&self) -> (LogPoint, &Frontier) {
        (self.offer.record.log, &self.head.frontier)
    }

    fn signatures(&self) -> std::sync::MutexGuard<'_, Signatures> {
        let locked = self.signatures.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> Option<&dyn Objects> {
        self.replica.objects()
    }

    /// An object of the replica, at most `max_bytes` and one more; `None` if it does not keep it.
    async fn object(
        &self,
        name: ObjectName,
        max_bytes: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let Some(objects) = self.objects() else {
            return Ok(None);
        };
        let until = Instant::now() + self.patience;
        let ask = || objects.range(name, 0, max_bytes.saturating_add(1));
        through_outages(until, ask).await
    }

    /// Tiles of the replica.
    ///
    /// # Errors
    /// The reason why it gives none, as text for a message.
    pub(crate) async fn tiles(
        &self,
        of: (u64, Vec<TileName>),
        deadline: Instant,
    ) -> Result<Vec<Bytes>, String> {
        consistency::fetch_tiles(&self.replica, of, self.patience, deadline).await
    }

    /// A leaf, of which only the form is checked.
    async fn leaf(&self, epoch: u64, index: u64) -> Result<Option<Signed>, VolumeError> {
        let name = ObjectName::Log { epoch, index };
        let bytes = self.object(name, MAX_LEAF_BYTES).await;
        let what = || format!("the log's leaf {index}");
        let Some(bytes) = bytes.map_err(|e| VolumeError::from_store(what(), &e))? else {
            return Ok(None);
        };
        let signed = Signed::from_bytes(&bytes).map_err(|why| ReadError::Integrity {
            place: self.place().to_owned(),
            what: what(),
            why,
        })?;
        Ok(Some(signed))
    }

    /// The logs of the volume that the head names, newest first, each with its final frontier.
    pub(crate) async fn logs(&self) -> Result<Vec<(LogPoint, Option<Frontier>)>, VolumeError> {
        let mut logs = Vec::new();
        let after = self.head.next_log(self.volume());
        let current = self.offer.record.log.epoch;
        match after {
            Ok((point, frontier)) if point.epoch == current => logs.push((point, Some(frontier))),
            _ => logs.push((self.offer.log_after, None)),
        }
        let mut numbers = (0..=self.offer.record.policy_number).rev();
        let mut later: Option<Arc<Link>> = None;
        // Before the policies of the first log there is no other.
        while later
            .as_ref()
            .map_or(current, |later| later.policy.log_epoch())
            > 0
            && let Some(number) = numbers.next()
        {
            let Some(link) = self.link(number).await? else {
                break;
            };
            if let Some(later) = later.replace(link.clone())
                && link.policy.log_epoch() < later.policy.log_epoch()
                && let Some(last) = later.policy.last()
            {
                logs.push((last.log, None));
            }
        }
        Ok(logs)
    }

    /// Entries of the log, newest first, at most `max`, each with how far it is proved.
    ///
    /// # Errors
    /// [`VolumeError`] when the replica does not answer in time.
    pub async fn list(&self, max: usize, deadline: Instant) -> Result<Vec<Entry>, VolumeError> {
        let mut out: Vec<Entry> = Vec::new();
        for (log, frontier) in self.logs().await? {
            let parts: Vec<(u64, u64, [u8; 32])> = match &frontier {
                Some(frontier) => frontier.subtrees().collect(),
                None => vec![(0, log.size, log.root)],
            };
            for part in parts.into_iter().rev() {
                let room = max.saturating_sub(out.len());
                if room == 0 {
                    return Ok(out);
                }
                let read = self.part(log.epoch, part, room);
                let read = tokio::time::timeout_at(deadline.into(), read).await;
                out.extend(read.unwrap_or_else(|_| Err(self.too_slow()))?);
            }
        }
        Ok(out)
    }

    pub(crate) fn too_slow(&self) -> VolumeError {
        let cause = format!("{} did not answer before the deadline", self.place());
        VolumeError::unavailable("the log", cause)
    }

    /// A part of a log whose Merkle root is known. All of it is read; the newest `room` entries are
    /// returned.
    pub(crate) async fn part(
        &self,
        epoch: u64,
        (start, leaves, root): (u64, u64, [u8; 32]),
        room: usize,
    ) -> Result<Vec<Entry>, VolumeError> {
        let indices = start..start.saturating_add(leaves);
        let ask = |index| async move { (index, self.leaf(epoch, index).await) };
        let mut answers = stream::iter(indices).map(ask).buffered(LEAVES_AT_ONCE);
        let mut replay = Frontier::new();
        let mut whole = true;
        let mut told = VecDeque::new();
        while let Some((index, answer)) = answers.next().await {
            let kept = match answer {
                Ok(Some(signed)) => {
                    whole &= replay.push(signed.statement().bytes()).is_ok();
                    match self.read(&signed).await? {
                        Ok(leaf) => Kept::Leaf(leaf),
                        Err(why) => Kept::Refused(why),
                    }
                }
                Ok(None) => Kept::Missing,
                Err(VolumeError::Read(ReadError::Integrity { why, .. })) => Kept::Refused(why),
                Err(error) => return Err(error),
            };
            whole &= matches!(kept, Kept::Leaf(_));
            if told.len() == room {
                told.pop_front();
            }
            told.push_back(Entry {
                epoch,
                index,
                kept,
                standing: Standing::Unproved,
            });
        }
        let standing = match whole {
            false => Standing::Unproved,
            true if replay.root() == root => Standing::Proved,
            true => Standing::Contradicted,
        };
        let entries = told.into_iter().rev();
        Ok(entries.map(|entry| Entry { standing, ..entry }).collect())
    }

    /// The signed record of a version, if the replica keeps it. Versions ascend along a log, so this
    /// asks for a logarithmic number of leaves. The record itself shows that it is the right one.
    ///
    /// # Errors
    /// [`VolumeError`] when the place does not answer.
    pub async fn find(&self, version: u64) -> Result<Option<Signed>, VolumeError> {
        if version == self.offer.record.version {
            return Ok(Some(self.head.record.clone()));
        }
        for (log, _) in self.logs().await? {
            let (mut low, mut high) = (0, log.size);
            while low < high {
                let middle = low + (high - low) / 2;
                match self.record_from(log.epoch, low, middle).await? {
                    None => low = middle.saturating_add(1),
                    Some((_, found, signed)) if found == version => return Ok(Some(signed)),
                    Some((_, found, _)) if found < version => low = middle.saturating_add(1),
                    Some((at, ..)) => high = at,
                }
            }
        }
        Ok(None)
    }

    /// The record at `index`, or the next one below it, down to `low`: its index and its version.
    async fn record_from(
        &self,
        epoch: u64,
        low: u64,
        index: u64,
    ) -> Result<Option<(u64, u64, Signed)>, VolumeError> {
        for at in (low..=index).rev().take(MAX_STEPS as usize) {
            let signed = match self.leaf(epoch, at).await {
                Ok(Some(signed)) => signed,
                Ok(None) | Err(VolumeError::Read(ReadError::Integrity { .. })) => continue,
                Err(error) => return Err(error),
            };
            if let Ok(Leaf::Record { record, .. }) = self.read(&signed).await? {
                return Ok(Some((at, record.version, signed)));
            }
        }
        Ok(None)
    }

    /// The version before the newest, as far as the replica keeps the log.
    ///
    /// # Errors
    /// [`VolumeError`] when the place does not answer.
    pub async fn previous(&self) -> Result<Option<u64>, VolumeError> {
        for (i, (log, _)) in self.logs().await?.into_iter().enumerate() {
            // The log point in the newest record does not include that record.
            let end = if i == 0 {
                self.offer.record.log.size
            } else {
                log.size
            };
            if let Some(last) = end.checked_sub(1)
                && let Some((_, version, _)) = self.record_from(log.epoch, 0, last).await?
            {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    /// Judges a record that [`History::find`] gave.
    pub(crate) async fn judge(
        &self,
        signed: &Signed,
        freshness: Freshness,
    ) -> Result<Offer, VolumeError> {
        if signed.hash() == self.offer.record_hash {
            return Ok(self.offer.clone());
        }
        let refused = |why| VolumeError::Statement {
            place: self.place().to_owned(),
            why,
        };
        let number = Leaf::policy_number(signed, self.volume()).map_err(refused)?;
        let unknown = || refused(Reject::NotSigned("root record, under an unknown policy"));
        let policy = self.link(number).await?.ok_or_else(unknown)?;
        let terms = Terms {
            freshness,
            ..Terms::strict(self.now)
        };
        let mut signatures = self.signatures();
        self.floor
            .judge_earlier(&self.head, signed, &policy, &terms, &mut signatures)
            .map_err(refused)
    }
}

impl HeadRound<'_> {
    /// The history as each replica shows it, newest head first.
    async fn histories(
        &self,
        deadline: Instant,
    ) -> Result<(Vec<History>, Vec<VolumeError>), VolumeError> {
        let fetched = self.next(&mut self.ask(), deadline).await;
        let fetched = fetched.unwrap_or_default();
        let mut errors: Vec<_> = fetched.errors.into_iter().map(|(_, error)| error).collect();
        let mut histories = Vec::new();
        if fetched.heads.is_empty() {
            return Ok((histories, errors));
        }
        let mut heads = Vec::new();
        for told in fetched.heads {
            match self.decoded(&told) {
                Ok(head) => heads.push((told, head)),
                Err(error) => errors.push(error),
            }
        }
        // The floor is only read: reading history does not move it.
        let shown: Vec<_> = heads
            .iter()
            .map(|(told, head)| (told.mirror, head))
            .collect();
        let learned = self.learn_policies(&shown, false, deadline).await?;
        let replicas: Vec<Arc<dyn Replica>> = self.mirrors.replicas().cloned().collect();
        for (at, (told, head)) in heads.into_iter().enumerate() {
            let Some((mirror, replica)) = told
                .mirror
                .and_then(|mirror| Some((mirror, replicas.get(mirror)?.clone())))
            else {
                continue;
            };
            match History::begin(mirror, replica, head, learned.floor.clone(), self) {
                Ok(history) => histories.push(history),
                Err(why) => {
                    let why = learned.reason(at, why);
                    let place = told.place;
                    errors.push(VolumeError::Statement { place, why });
                }
            }
        }
        histories.sort_by_key(|h| std::cmp::Reverse(h.newest().version));
        wait_for_lone(&mut histories, deadline);
        Ok((histories, errors))
    }
}

impl Search<'_> {
    /// The pinned record, from a head or from the log of a later head.
    pub(crate) async fn pinned(&self, deadline: Instant) -> Result<Vec<VerifiedHead>, VolumeError> {
        let freshness = self.options.freshness;
        let Freshness::Pinned {
            version,
            record_hash,
        } = freshness
        else {
            return Ok(Vec::new());
        };
        let (histories, mut errors) = self.round.histories(deadline).await?;
        let mut judged = Vec::new();
        for (at, history) in histories.iter().enumerate() {
            let place = history.place().to_owned();
            let until = share(deadline, at + 1 == histories.len());
            let find = tokio::time::timeout_at(until.into(), history.find(version)).await;
            let found = find.unwrap_or_else(|_| Err(history.too_slow()));
            let why = match found {
                Ok(Some(signed)) if signed.hash() == record_hash => {
                    match history.judge(&signed, freshness).await {
                        Ok(offer) => {
                            judged.push(VerifiedHead {
                                mirror: Some(history.mirror),
                                place,
                                offer,
                                head: None,
                            });
                            continue;
                        }
                        Err(error) => {
                            errors.push(error);
                            continue;
                        }
                    }
                }
                Ok(Some(_)) => Reject::NotPinned("another record of that version"),
                Ok(None) => Reject::NotPinned("its log has no such version"),
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            errors.push(VolumeError::Statement { place, why });
        }
        if judged.is_empty() {
            return Err(gravest(errors));
        }
        Ok(judged)
    }
}

impl Volume {
    /// The history as each replica shows it, newest head first; at least one.
    ///
    /// # Errors
    /// The gravest error of the replicas.
    pub async fn histories(&self) -> Result<Vec<History>, VolumeError> {
        let (mut histories, mut errors) = self.round().histories(self.deadline()).await?;
        histories.retain(|history| {
            let tells = history.objects().is_some();
            if !tells {
                errors.push(VolumeError::Place(format!(
                    "{} shows no log",
                    history.place()
                )));
            }
            tells
        });
        if histories.is_empty() {
            return Err(gravest(errors));
        }
        Ok(histories)
    }
}

/// A replica that is the only one to tell the history is asked again while it does not answer. Of several, the next one is
/// asked.
pub(crate) fn wait_for_lone(histories: &mut [History], deadline: Instant) {
    if let [lone] = histories {
        lone.patience = deadline.saturating_duration_since(Instant::now());
    }
}
