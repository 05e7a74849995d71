//! Where a head skips versions that this reader has not seen: the tiles that show that its log has
//! the one in it which was seen before, asked of the places one after another (docs/decisions/0015).
//!
//! A place that sends a wrong tile is blamed and the next is asked. Without a proof the head is not
//! adopted, and nobody is accused: a place that keeps silent proves nothing about the publisher.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::object::ObjectName;
use store::{Objects, Replica, StoreError};
use trust::error::Class;
use trust::judge::Offer;
use trust::prefix::Prefix;
use trust::tiles::MAX_TILE_BYTES;

use crate::error::VolumeError;
use state::State;

/// Shows that the log of `offer` has the one of the floor in it, where that is not plain. `head` is
/// what the offer was judged from; `places` are asked in their order, with the number to `blame`.
///
/// # Errors
/// A fork, with the evidence kept; [`VolumeError::Read`] (unavailable) when no place has the tiles;
/// [`VolumeError::State`]; what [`trust::floor::Floor::adopt`] would say.
pub async fn show(
    state: &State,
    offer: &mut Offer,
    head: &[u8],
    places: &[(usize, Arc<dyn Replica>)],
    deadline: Instant,
    blame: impl Fn(usize, String),
) -> Result<(), VolumeError> {
    let floor = state.lock()?.load()?;
    let unproved = floor.unproved(offer).map_err(|why| VolumeError::Statement {
        place: "the newest head".to_owned(),
        why,
    });
    let Some(prefix) = unproved? else {
        return Ok(());
    };
    let mut causes = Vec::new();
    for (number, replica) in places {
        let place = replica.place().to_owned();
        let now = Instant::now();
        // Whoever stalls leaves time for the others.
        let until = now + deadline.saturating_duration_since(now) / 2;
        let asked = tokio::time::timeout_at(until.into(), tiles(&**replica, &prefix));
        let tiles = match asked.await {
            Ok(Ok(Some(tiles))) => tiles,
            Ok(Ok(None)) => {
                causes.push(format!("{place} does not keep it"));
                continue;
            }
            Ok(Err(error)) => {
                causes.push(error.to_string());
                continue;
            }
            Err(_) => {
                causes.push(format!("{place} did not answer in time"));
                continue;
            }
        };
        let mut shown = prefix.clone();
        if let Err(why) = tiles.iter().try_for_each(|tile| shown.supply(tile)) {
            tracing::error!(replica = %place, %why, "a wrong tile of the log");
            blame(*number, format!("log: {why}"));
            causes.push(format!("{place}: {why}"));
            continue;
        }
        let Err(why) = offer.prove(shown) else {
            return Ok(());
        };
        if why.class() == Class::Fork {
            tracing::error!(replica = %place, %why, "the publisher signed two histories");
            let locked = state.lock()?;
            // Together they convince anybody.
            locked.keep_evidence(&floor.encode())?;
            locked.keep_contradiction(head)?;
            for tile in &tiles {
                locked.keep_evidence(tile)?;
            }
        }
        return Err(VolumeError::Statement { place, why });
    }
    Err(VolumeError::unavailable(
        "the proof that the log only grew",
        causes.join("; "),
    ))
}

/// The tiles that are wanted, all at once; `None` where one is not there.
async fn tiles(replica: &dyn Replica, prefix: &Prefix) -> Result<Option<Vec<Bytes>>, StoreError> {
    let Some(objects) = replica.objects() else {
        return Ok(None);
    };
    let epoch = prefix.epoch();
    let ask = |tile| async move {
        let name = ObjectName::Tile { epoch, tile };
        match whole(objects, name).await? {
            Some(bytes) => Ok(Some(bytes)),
            // It may have filled since.
            None if !tile.is_full() => {
                let tile = tile.full();
                whole(objects, ObjectName::Tile { epoch, tile }).await
            }
            None => Ok(None),
        }
    };
    let answers = try_join_all(prefix.wants().into_iter().map(ask)).await?;
    Ok(answers.into_iter().collect())
}

/// A tile as the place has it; one byte too many is enough to refuse it.
async fn whole(objects: &dyn Objects, name: ObjectName) -> Result<Option<Bytes>, StoreError> {
    objects.range(name, 0, MAX_TILE_BYTES + 1).await
}
