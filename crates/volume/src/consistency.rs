//! The proof that the log of a new head contains the log of the floor (RFC 6962, consistency), for a head
//! that skips versions which this reader has not seen (docs/decisions/0015). The replicas are asked for
//! the tiles one after the other.
//!
//! A replica that sends a wrong tile is blamed, and the next is asked. Without a proof the head is not
//! adopted, and no fork is reported: a replica that does not answer proves nothing about the publisher.
//! While one that may have the tiles does not answer, all are asked again (docs/decisions/0080).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::mirrors::outage::{Pauses, through_outages};
use store::object::ObjectName;
use store::{Objects, Replica, StoreError};
use trust::Reject;
use trust::error::Class;
use trust::evidence::{Evidence, EvidenceClass};
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::Offer;
use trust::prefix::Prefix;
use trust::tiles::{MAX_TILE_BYTES, TileName};

use crate::error::VolumeError;
use crate::heads::HeadRound;
use crate::kept::{self, lock};

impl HeadRound<'_> {
    /// Proves that the log of `offer` contains the log of the floor, unless it plainly does. `head` is
    /// what the offer was judged from. The replicas in `tellers` are asked first.
    ///
    /// # Errors
    /// A fork, with the evidence kept; [`VolumeError::Read`] (unavailable) when no replica has the
    /// tiles; [`VolumeError::State`]; what [`trust::floor::Floor::adopt`] would say.
    pub async fn prove_log(
        &self,
        offer: &mut Offer,
        head: &Bytes,
        tellers: &[usize],
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let floor = self.floor(deadline).await?;
        let unproved = floor.unproved(offer).map_err(|why| VolumeError::Statement {
            place: "the newest head".to_owned(),
            why,
        });
        let Some(prefix) = unproved? else {
            return Ok(());
        };
        let mut places: Vec<_> = self.mirrors.replicas().cloned().enumerate().collect();
        places.sort_by_key(|(mirror, _)| !tellers.contains(mirror));
        let unfit = |mirror, place: &str, why: &Reject| {
            tracing::error!(replica = %place, %why, "a wrong tile of the log");
            self.mirrors.record_lie(mirror, format!("log: {why}"));
        };
        let asked = (deadline, self.through_outages);
        let supplied = supplied(&places, &prefix, asked, unfit).await;
        let Supplied {
            place,
            prefix,
            tiles,
        } = supplied.map_err(|causes| {
            VolumeError::unavailable("the proof that the log only grew", causes)
        })?;
        let Err(why) = offer.prove(prefix) else {
            return Ok(());
        };
        if why.class() == Class::Fork {
            tracing::error!(replica = %place, %why, "the publisher signed two histories");
            self.keep_proof(floor, offer.record_hash, head.clone(), tiles, deadline)
                .await?;
        }
        Err(VolumeError::Statement { place, why })
    }

    /// Keeps what proves to anybody that a record's log is a fork: the floor, the head with that record, the adopted
    /// head, and the tiles.
    async fn keep_proof(
        &self,
        floor: Floor,
        record_hash: [u8; 32],
        head: Bytes,
        tiles: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let signatures = self.signatures.clone();
        self.update(deadline, move |locked| {
            let mut signatures = lock(&signatures);
            locked.keep_evidence(&Evidence::part(&record_hash, "floor", floor.encode()))?;
            let head = Head::decode(&head).ok();
            let head = head.and_then(|head| {
                floor.head_as_evidence(EvidenceClass::Fork, &head, &mut signatures)
            });
            kept::keep_evidence(locked, &floor, head.as_slice(), &mut signatures)?;
            for (at, tile) in tiles.iter().enumerate() {
                let part = format!("tile-{at}");
                locked.keep_evidence(&Evidence::part(&record_hash, &part, tile.to_vec()))?;
            }
            Ok(())
        })
        .await
    }
}

/// A proof with its tiles, and the replica that gave them.
pub(crate) struct Supplied {
    pub place: String,
    pub prefix: Prefix,
    pub tiles: Vec<Bytes>,
}

/// The tiles of a proof from the first of these numbered replicas that has fitting ones; `unfit` is told who sends
/// others. If that is wanted, all are asked again while one of them does not answer.
///
/// # Errors
/// What each replica said, as text for a message.
pub(crate) async fn supplied(
    replicas: &[(usize, Arc<dyn Replica>)],
    wanted: &Prefix,
    (deadline, again): (Instant, bool),
    unfit: impl Fn(usize, &str, &Reject),
) -> Result<Supplied, String> {
    // The other half of the time is for blocks.
    let until = share(deadline, false);
    let mut pauses = Pauses::default();
    loop {
        let (mut causes, mut may_pass) = (Vec::new(), false);
        for (mirror, replica) in replicas {
            let (epoch, names) = (wanted.epoch(), wanted.wants());
            let asked = in_time(replica, deadline, tiles(&**replica, epoch, names));
            let tiles = match asked.await {
                Ok(tiles) => tiles,
                Err(none) => {
                    may_pass |= none.may_pass;
                    causes.push(none.cause);
                    continue;
                }
            };
            let mut prefix = wanted.clone();
            match tiles.iter().try_for_each(|tile| prefix.supply(tile)) {
                Ok(()) => {
                    let place = replica.place().to_owned();
                    return Ok(Supplied {
                        place,
                        prefix,
                        tiles,
                    });
                }
                Err(why) => {
                    unfit(*mirror, replica.place(), &why);
                    causes.push(format!("{}: {why}", replica.place()));
                }
            }
        }
        let next = Instant::now() + pauses.following();
        if !(again && may_pass && next < until) {
            return Err(causes.join("; "));
        }
        tokio::time::sleep_until(next.into()).await;
    }
}

/// Why a replica gave no tiles.
struct NoTiles {
    cause: String,
    may_pass: bool,
}

/// The tiles from one replica, which may take half of the time that is left: one that stalls leaves time
/// for the others.
async fn in_time(
    replica: &Arc<dyn Replica>,
    deadline: Instant,
    tiles: impl Future<Output = Result<Option<Vec<Bytes>>, StoreError>>,
) -> Result<Vec<Bytes>, NoTiles> {
    let place = replica.place();
    let none = |cause, may_pass| Err(NoTiles { cause, may_pass });
    match tokio::time::timeout_at(share(deadline, false).into(), tiles).await {
        Ok(Ok(Some(tiles))) => Ok(tiles),
        Ok(Ok(None)) => none(format!("{place} does not keep it"), false),
        Ok(Err(error)) => none(error.to_string(), error.may_pass()),
        Err(_) => none(format!("{place} did not answer in time"), false),
    }
}

/// Tiles by their names from one replica, which is asked again for `patience` while it does not answer.
///
/// # Errors
/// The reason why it has none, as text for a message.
pub(crate) async fn fetch_tiles(
    replica: &Arc<dyn Replica>,
    (epoch, names): (u64, Vec<TileName>),
    patience: Duration,
    deadline: Instant,
) -> Result<Vec<Bytes>, String> {
    let until = share(deadline, false).min(Instant::now() + patience);
    let ask = || tiles(&**replica, epoch, names.clone());
    let asked = in_time(replica, deadline, through_outages(until, ask)).await;
    asked.map_err(|none| none.cause)
}

/// These tiles, all requested at once; `None` where one is missing.
async fn tiles(
    replica: &dyn Replica,
    epoch: u64,
    names: Vec<TileName>,
) -> Result<Option<Vec<Bytes>>, StoreError> {
    let Some(objects) = replica.objects() else {
        return Ok(None);
    };
    let ask = |tile| async move {
        let name = ObjectName::Tile { epoch, tile };
        match whole(objects, name).await? {
            Some(bytes) => Ok(Some(bytes)),
            // It may have become full since.
            None if !tile.is_full() => {
                let tile = tile.full();
                whole(objects, ObjectName::Tile { epoch, tile }).await
            }
            None => Ok(None),
        }
    };
    let answers = try_join_all(names.into_iter().map(ask)).await?;
    Ok(answers.into_iter().collect())
}

/// A tile as the replica has it. One byte more than allowed is enough to refuse it.
async fn whole(objects: &dyn Objects, name: ObjectName) -> Result<Option<Bytes>, StoreError> {
    objects.range(name, 0, MAX_TILE_BYTES + 1).await
}

/// The deadline for one replica. Each but the last gets half of the time that is left, so one that
/// stalls leaves time for those after it.
pub(crate) fn share(deadline: Instant, is_last: bool) -> Instant {
    if is_last {
        return deadline;
    }
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}
