//! Earlier versions by their numbers (docs/decisions/0075).
//!
//! A reader of an earlier version has opened the volume, so it has verified the newest one: signatures, freshness, and
//! that its log only grew. Then it proves that the earlier record is signed by the publishers of its policy, and is a leaf
//! of the newest log (`trust::earlier::Placed`), or of an ended log before the size that the next policy names. So a record
//! that was signed and is not part of the history is found out, and nobody can give a version a number that another one had.
//!
//! An earlier version is history: it does not expire, and reading it changes no floor.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reader::{Expect, Fetch, ReadError};
use store::Replica;
use trust::Reject;
use trust::earlier::{Leaf, Placed};
use trust::error::Class;
use trust::history::Frontier;
use trust::judge::{Freshness, Offer};
use trust::tiles::{self, Edge};
use trust::version_name::{BadVersionName, VersionName};

use crate::consistency::share;
use crate::error::{VolumeError, gravest};
use crate::history::{self, History, Kept, Standing};
use crate::snapshot::Snapshot;
use crate::volume::Volume;

/// Which version of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionRef {
    /// The one with this number.
    Number(u64),
    /// The newest one to which the publisher gave this name.
    Name(VersionName),
}

impl fmt::Display for VersionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionRef::Number(number) => write!(f, "{number}"),
            VersionRef::Name(name) => write!(f, "`{name}`"),
        }
    }
}

impl FromStr for VersionRef {
    type Err = BadVersionName;

    fn from_str(text: &str) -> Result<VersionRef, BadVersionName> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(VersionRef::Number(number)),
            _ => text.parse().map(VersionRef::Name),
        }
    }
}

/// Newest entries of the log among which versions that can be read are looked for.
const LISTED: usize = 256;
/// Most leaves of a part of the log that is searched for a name. They are in memory together.
const MOST_LEAVES: u64 = 1 << 16;
/// How long the locations may take to say whether they have such a version.
const LISTING: Duration = Duration::from_secs(5);

impl Volume {
    /// A version of the log of the version in use, as far as its blocks can be fetched; `None` if no replica has its
    /// record. It does not expire.
    ///
    /// # Errors
    /// A fork, for a record that its publishers signed and that is not in the log, if no replica proves another one; as
    /// [`Volume::open`].
    pub async fn version(&self, version: u64) -> Result<Option<Snapshot>, VolumeError> {
        let current = self.snapshot();
        if current.record().version == version {
            return Ok(Some(current.pinned()));
        }
        if current.record().version < version {
            return Ok(None);
        }
        let deadline = self.deadline();
        let histories = self.anchored(deadline).await?;
        let mut errors = Vec::new();
        for (at, history) in histories.iter().enumerate() {
            let until = share(deadline, at + 1 == histories.len());
            let proved = tokio::time::timeout_at(until.into(), history.proved(version, until));
            match proved.await.unwrap_or_else(|_| Err(history.too_slow())) {
                Ok(Some(offer)) => {
                    let how = Fetch::Until(deadline);
                    let opened = Snapshot::open(current.prefetcher().clone(), &offer, how);
                    return Ok(Some(opened.await?));
                }
                Ok(None) => {}
                // Another replica may prove the version. A record that is not in the log, by a key that was removed since,
                // must not stop a reader whom somebody can show the right one.
                Err(error) => {
                    self.note(history, &error);
                    errors.push(error);
                }
            }
        }
        match errors.is_empty() {
            true => Ok(None),
            false => Err(gravest(errors)),
        }
    }

    /// The number of a version; `None` if no version of the log has the name.
    ///
    /// # Errors
    /// [`VolumeError::Read`] when no replica has the whole log from the version with the name on: one that is missing
    /// may have the name too.
    pub async fn number(&self, which: &VersionRef) -> Result<Option<u64>, VolumeError> {
        let name = match which {
            VersionRef::Number(number) => return Ok(Some(*number)),
            VersionRef::Name(name) => name,
        };
        let deadline = self.deadline();
        let histories = self.anchored(deadline).await?;
        let mut errors = Vec::new();
        for (at, history) in histories.iter().enumerate() {
            let until = share(deadline, at + 1 == histories.len());
            let found = history.named(name, until);
            let found = tokio::time::timeout_at(until.into(), found).await;
            match found.unwrap_or_else(|_| Err(history.too_slow())) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    self.note(history, &error);
                    errors.push(error);
                }
            }
        }
        Err(gravest(errors))
    }

    /// This volume at a version of its log: it stays there. `None` as for [`Volume::version`], or if no version has the
    /// name.
    ///
    /// # Errors
    /// As [`Volume::number`] and [`Volume::version`].
    pub async fn at(&self, which: &VersionRef) -> Result<Option<Arc<Volume>>, VolumeError> {
        let Some(version) = self.number(which).await? else {
            return Ok(None);
        };
        let snapshot = self.version(version).await?;
        Ok(snapshot.map(|snapshot| self.staying_at(snapshot)))
    }

    /// The versions among the newest ones of the log whose trees the replicas still have, newest first. It is their
    /// word, for people: what a replica denies today it may have tomorrow.
    pub async fn readable_versions(&self) -> Vec<u64> {
        let deadline = Instant::now() + LISTING;
        let current = self.snapshot();
        let newest = [(current.record().version, current.record().root)];
        let mut records = Vec::new();
        for history in self.anchored(deadline).await.unwrap_or_default() {
            let entries = history.list(LISTED, deadline).await.unwrap_or_default();
            records.extend(entries.into_iter().filter_map(|entry| match entry.kept {
                Kept::Leaf(Leaf::Record { record, .. }) => Some((record.version, record.root)),
                _ => None,
            }));
        }
        records.extend(newest);
        records.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        records.dedup();
        let blocks = current.blocks();
        let how = Fetch::Until(deadline);
        let roots = records
            .iter()
            .map(|(_, root)| blocks.get(root, Expect::Nothing, how));
        let found = join_all(roots).await;
        let there = records.iter().zip(found).filter(|(_, found)| found.is_ok());
        there.map(|((version, _), _)| *version).collect()
    }

    /// The history of the version in use, at each replica that keeps a log.
    pub(crate) async fn anchored(&self, deadline: Instant) -> Result<Vec<History>, VolumeError> {
        let head = self.head_of(&self.snapshot(), deadline).await?;
        let round = self.round();
        let floor = round.floor(deadline).await?;
        let replicas: Vec<Arc<dyn Replica>> = self.mirrors().replicas().cloned().collect();
        let mut histories = Vec::new();
        for (mirror, replica) in replicas.into_iter().enumerate() {
            if replica.objects().is_none() {
                continue;
            }
            let begun = History::begin(mirror, replica, head.clone(), floor.clone(), &round);
            histories.push(begun.map_err(|why| VolumeError::Statement {
                place: "the version in use".to_owned(),
                why,
            })?);
        }
        if histories.is_empty() {
            return Err(VolumeError::Place("no location shows a log".to_owned()));
        }
        history::wait_for_lone(&mut histories, deadline);
        Ok(histories)
    }

    /// Blames the replica of a history for what it answered, if it is at fault.
    fn note(&self, history: &History, error: &VolumeError) {
        let (replica, version) = (history.place(), self.snapshot().record().version);
        tracing::warn!(%replica, version, %error, "an earlier version is not proved there");
        if error.class() == Some(Class::Integrity) {
            self.mirrors()
                .record_lie(history.mirror(), format!("log: {error}"));
        }
    }
}

impl History {
    /// The newest version with this name: in the head's log, then in those that the owners have ended, as far as they let
    /// them count. Every entry from it on is proved to be in its log.
    async fn named(
        &self,
        name: &VersionName,
        deadline: Instant,
    ) -> Result<Option<u64>, VolumeError> {
        if self.newest_name().as_ref() == Some(name) {
            return Ok(Some(self.newest().version));
        }
        let (log, before) = self.log_of_head();
        for part in before.subtrees().rev() {
            if let Some((version, _)) = self.named_in(log.epoch, part, name).await? {
                return Ok(Some(version));
            }
        }
        let newest = self.newest().log.epoch;
        let mut ended: Vec<u64> = self
            .logs()
            .await?
            .iter()
            .map(|(log, _)| log.epoch)
            .collect();
        ended.retain(|epoch| *epoch != newest);
        ended.dedup();
        for epoch in ended {
            let (frontier, _) = self.ended_log(epoch, deadline).await?;
            for part in frontier.subtrees().rev() {
                let Some((version, hash)) = self.named_in(epoch, part, name).await? else {
                    continue;
                };
                // The owners may have taken readers back further since: then a later log has another version of that number.
                if self
                    .find(version)
                    .await?
                    .is_some_and(|it| it.hash() == hash)
                {
                    return Ok(Some(version));
                }
            }
        }
        Ok(None)
    }

    /// The newest version with this name in a part of a log, and the hash of its record.
    async fn named_in(
        &self,
        epoch: u64,
        part: (u64, u64, [u8; 32]),
        name: &VersionName,
    ) -> Result<Option<(u64, [u8; 32])>, VolumeError> {
        let unavailable = |cause: String| {
            VolumeError::unavailable(format!("the version with the name `{name}`"), cause)
        };
        if part.1 > MOST_LEAVES {
            return Err(unavailable(
                "the log is too long to be searched for names".to_owned(),
            ));
        }
        for entry in self.part(epoch, part, usize::MAX).await? {
            match (entry.kept, entry.standing) {
                (
                    Kept::Leaf(Leaf::Record {
                        record,
                        record_hash,
                        name: found,
                        ..
                    }),
                    Standing::Proved,
                ) => {
                    if found.as_ref() == Some(name) {
                        return Ok(Some((record.version, record_hash)));
                    }
                }
                (Kept::Leaf(Leaf::Policy { .. }), Standing::Proved) => {}
                (_, Standing::Contradicted) => {
                    let index = entry.index;
                    return Err(VolumeError::from(ReadError::Integrity {
                        place: self.place().to_owned(),
                        what: format!("the log's leaf {index}"),
                        why: Reject::BadHistory("leaves that are not in the log"),
                    }));
                }
                _ => {
                    let cause = format!("{} does not keep the whole log", self.place());
                    return Err(unavailable(cause));
                }
            }
        }
        Ok(None)
    }

    /// The record of a version with the proof that it is in the log of the head, if the replica keeps it.
    async fn proved(&self, version: u64, deadline: Instant) -> Result<Option<Offer>, VolumeError> {
        let Some(signed) = self.find(version).await? else {
            return Ok(None);
        };
        let offer = self.judge(&signed, Freshness::Strict).await?;
        self.place_of(&offer, deadline).await?;
        Ok(Some(offer))
    }

    /// The frontier of a log that a policy has ended, as that policy names it, and its size.
    async fn ended_log(
        &self,
        epoch: u64,
        deadline: Instant,
    ) -> Result<(Frontier, u64), VolumeError> {
        let what = "the end of a log that the owners have ended";
        let logs = self.logs().await?;
        let log = logs.into_iter().find(|(log, _)| log.epoch == epoch);
        let Some((log, _)) = log else {
            let cause = format!("{} does not keep the policy that ended it", self.place());
            return Err(VolumeError::unavailable(what, cause));
        };
        let names = Edge::names(log.size);
        let tiles = self.tiles((epoch, names), deadline).await;
        let tiles = tiles.map_err(|cause| VolumeError::unavailable(what, cause))?;
        let frontier = tiles::frontier_of(&log, &tiles).map_err(|why| ReadError::Integrity {
            place: self.place().to_owned(),
            what: what.to_owned(),
            why,
        })?;
        Ok((frontier, log.size))
    }

    /// Proves that an earlier record is in the log of the head, or in one that was ended before it.
    async fn place_of(&self, offer: &Offer, deadline: Instant) -> Result<(), VolumeError> {
        let (log, later) = self.log_of_head();
        let epoch = offer.record.log.epoch;
        // The newest record is the next leaf. A log that has ended gets no more.
        let (later, stored) = match epoch == log.epoch {
            true => (later.clone(), log.size.saturating_add(1)),
            false => self.ended_log(epoch, deadline).await?,
        };
        let refused = |why| VolumeError::Statement {
            place: self.place().to_owned(),
            why,
        };
        let what = "the proof that the version is in the log";
        let wrong_tile = |why: Reject| ReadError::Integrity {
            place: self.place().to_owned(),
            what: what.to_owned(),
            why,
        };
        let mut placed = Placed::begin(offer, epoch, &later, stored).map_err(refused)?;
        loop {
            let mut prefix = placed.wants().clone();
            let tiles = self.tiles((prefix.epoch(), prefix.wants()), deadline).await;
            let tiles = tiles.map_err(|cause| VolumeError::unavailable(what, cause))?;
            for tile in tiles {
                prefix.supply(&tile).map_err(wrong_tile)?;
            }
            match placed.proved(prefix).map_err(refused)? {
                Some(next) => placed = next,
                None => return Ok(()),
            }
        }
    }
}
