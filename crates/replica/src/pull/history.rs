//! Copies the volume's log. Fetches the leaves between those that the replica has and those that the new
//! record names. Each must have valid signatures (which no log covers), and all must hash into the log that
//! the record names (RFC 6962). If a source has no log, or another one, or does not answer, the replica
//! lacks a part of the log, and the rest of the pull goes on.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use store::names;
use store::object::ObjectName;
use store::repository::MAX_LEAF_BYTES;
use store::{Objects, Repository};
use trust::Reject;
use trust::earlier::Leaf;
use trust::history::{Frontier, LogPoint};
use trust::judge::Offer;
use trust::signatures::Signatures;
use trust::statement::Signed;

use super::Here;
use super::heads::Offered;
use super::sources::Sources;

/// Most leaves that one pull fetches.
const MAX_LEAVES: u64 = 1 << 17;
/// Requests under way at a time.
const REQUESTS: usize = 64;

/// Leaves to be written: epoch, index, bytes.
pub(crate) type Leaves = Vec<(u64, u64, Bytes)>;

/// The leaves that the replica lacks for the log of `offered`, the last being the record itself; and
/// whether the log is complete with them. A source may take `patience` for each.
pub(crate) async fn carry(
    sources: &Sources,
    repository: &Repository,
    here: Option<&Here>,
    offered: &Offered,
    patience: Duration,
) -> (Leaves, bool) {
    let log = offered.offer.record.log;
    let own = Bytes::from(offered.head.record.to_bytes());
    let own = (log.epoch, log.size, own);
    let start = start(repository, here, &log);
    if start.size() == log.size && start.root() == log.root {
        return (vec![own], true);
    }
    if log.size.saturating_sub(start.size()) > MAX_LEAVES {
        tracing::warn!(leaves = log.size, "the log is too long to be copied");
        return (vec![own], false);
    }
    for place in sources.order() {
        let Some(objects) = place.replica.objects() else {
            continue;
        };
        let fetch = Fetch {
            sources,
            objects,
            repository,
            epoch: log.epoch,
            patience,
        };
        match fetch.between(start.clone(), &offered.offer).await {
            Ok(mut leaves) => {
                leaves.push(own);
                return (leaves, true);
            }
            Err(why) => {
                let replica = place.replica.place();
                tracing::warn!(replica, %why, "cannot copy the log from this source");
            }
        }
    }
    (vec![own], false)
}

/// The part of this log that the replica has for certain: all leaves before the record of its head, if
/// none of them is missing.
fn start(repository: &Repository, here: Option<&Here>, log: &LogPoint) -> Frontier {
    let Some(here) = here else {
        return Frontier::new();
    };
    let frontier = &here.head.frontier;
    let grows = here.record.log.epoch == log.epoch && frontier.size() <= log.size;
    if grows && leaves_below(repository, log.epoch, frontier.size()) == frontier.size() {
        return frontier.clone();
    }
    Frontier::new()
}

/// How many of the first `size` leaves of a log are here.
fn leaves_below(repository: &Repository, epoch: u64, size: u64) -> u64 {
    let dir = format!("{}/{epoch}", names::LOG_DIR);
    let listed = repository.disk_shared().list(&dir).unwrap_or_default();
    let indexes = listed.iter().filter_map(|name| name.parse::<u64>().ok());
    indexes.filter(|index| *index < size).count() as u64
}

/// Where the leaves of a log come from.
struct Fetch<'a> {
    sources: &'a Sources,
    objects: &'a dyn Objects,
    repository: &'a Repository,
    epoch: u64,
    patience: Duration,
}

impl Fetch<'_> {
    async fn between(&self, mut frontier: Frontier, offer: &Offer) -> Result<Leaves, Reject> {
        let log = &offer.record.log;
        let first = frontier.size();
        let requests = self.sources.limit.requests(REQUESTS);
        let leaves = (first..log.size).map(|index| self.leaf(index));
        let mut answers = stream::iter(leaves).buffered(requests);
        let mut signatures = Signatures::default();
        let mut leaves = Vec::new();
        while let Some(answer) = answers.next().await {
            let (index, leaf, fetched) = answer?;
            let signed = Signed::from_bytes(&leaf)?;
            frontier.push(signed.statement().bytes())?;
            if fetched {
                Leaf::read(&signed, &offer.chain, &mut signatures)?;
                leaves.push((self.epoch, index, leaf));
            }
        }
        if frontier.root() != log.root {
            return Err(missing("its leaves are not those that the record names"));
        }
        Ok(leaves)
    }

    /// A leaf, and whether it was fetched.
    async fn leaf(&self, index: u64) -> Result<(u64, Bytes, bool), Reject> {
        let epoch = self.epoch;
        if let Ok(Some(leaf)) = self.repository.log_leaf(epoch, index)
            && Signed::from_bytes(&leaf).is_ok()
        {
            return Ok((index, leaf, false));
        }
        self.sources.limit.wait().await;
        let name = ObjectName::Log { epoch, index };
        let range = self.objects.range(name, 0, MAX_LEAF_BYTES);
        let range = tokio::time::timeout(self.patience, range).await;
        let range = range.map_err(|_| missing("a leaf does not come in time"))?;
        let leaf = range.ok().flatten();
        let leaf = leaf.ok_or_else(|| missing("a leaf is missing"))?;
        self.sources.received(leaf.len() as u64);
        Ok((index, leaf, true))
    }
}

fn missing(why: &'static str) -> Reject {
    Reject::Malformed { what: "log", why }
}
