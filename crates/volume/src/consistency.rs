//! The proof that the log of a new head contains the log of the floor (RFC 6962, consistency), for a head
//! that skips versions which this reader has not seen (docs/decisions/0015). The replicas are asked for
//! the tiles one after the other.
//!
//! A replica that sends a wrong tile is blamed, and the next is asked. Without a proof the head is not
//! adopted, and no fork is reported: a replica that does not answer proves nothing about the publisher.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::object::ObjectName;
use store::{Objects, Replica, StoreError};
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
        let mut causes = Vec::new();
        for (mirror, replica) in &places {
            let place = replica.place().to_owned();
            let tiles = match fetch(replica, &prefix, deadline).await {
                Ok(tiles) => tiles,
                Err(cause) => {
                    causes.push(cause);
                    continue;
                }
            };
            let mut shown = prefix.clone();
            if let Err(why) = tiles.iter().try_for_each(|tile| shown.supply(tile)) {
                tracing::error!(replica = %place, %why, "a wrong tile of the log");
                self.mirrors.record_lie(*mirror, format!("log: {why}"));
                causes.push(format!("{place}: {why}"));
                continue;
            }
            let Err(why) = offer.prove(shown) else {
                return Ok(());
            };
            if why.class() == Class::Fork {
                tracing::error!(replica = %place, %why, "the publisher signed two histories");
                self.keep_proof(floor, offer.record_hash, head.clone(), tiles, deadline)
                    .await?;
            }
            return Err(VolumeError::Statement { place, why });
        }
        Err(VolumeError::unavailable(
            "the proof that the log only grew",
            causes.join("; "),
        ))
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

/// The tiles from one replica, which may take half of the time that is left: one that stalls leaves time
/// for the others.
///
/// # Errors
/// The reason why it has none, as text for a message.
pub(crate) async fn fetch(
    replica: &Arc<dyn Replica>,
    prefix: &Prefix,
    deadline: Instant,
) -> Result<Vec<Bytes>, String> {
    fetch_tiles(replica, prefix.epoch(), prefix.wants(), deadline).await
}

/// As [`fetch`], for tiles by their names.
///
/// # Errors
/// As [`fetch`].
pub(crate) async fn fetch_tiles(
    replica: &Arc<dyn Replica>,
    epoch: u64,
    names: Vec<TileName>,
    deadline: Instant,
) -> Result<Vec<Bytes>, String> {
    let now = Instant::now();
    let until = now + deadline.saturating_duration_since(now) / 2;
    let place = replica.place();
    match tokio::time::timeout_at(until.into(), tiles(&**replica, epoch, names)).await {
        Ok(Ok(Some(tiles))) => Ok(tiles),
        Ok(Ok(None)) => Err(format!("{place} does not keep it")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("{place} did not answer in time")),
    }
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
