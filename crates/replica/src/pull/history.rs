//! Copies the volume's log. Fetches the leaves between those that the replica has and those that the new
//! record names. Each must have valid signatures (which no log covers), and all must hash into the log that
//! the record names (RFC 6962). If a source has no log, or another one, or does not answer, the replica
//! lacks a part of the log, and the rest of the pull goes on.
//!
//! Each record in the log names the log before it, so it proves the leaves that came before. They are written in
//! windows: memory stays bounded, and a pull that is interrupted loses at most one. Leaves that turn out to be of
//! another branch are removed.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use store::names;
use store::object::ObjectName;
use store::repository::MAX_LEAF_BYTES;
use store::{Objects, Repository, StoreError, Writer};
use trust::Reject;
use trust::chain::Link;
use trust::earlier::{self, Leaf};
use trust::history::{Frontier, LogPoint};
use trust::judge::Offer;
use trust::signatures::Signatures;
use trust::statement::Signed;

use super::Here;
use super::heads::Offered;
use super::sources::Sources;

/// Most leaves that one pull fetches.
const MAX_LEAVES: u64 = 1 << 17;
/// Leaves, and bytes of leaves, that are held until they are written.
const WINDOW_LEAVES: usize = 256;
const WINDOW_BYTES: usize = 4 << 20;
/// Requests under way at a time.
const REQUESTS: usize = 64;

/// Why the log is not copied from a source.
enum Failed {
    /// The source does not give a leaf, or not the volume's.
    Source(Reject),
    /// The leaves are not those that the record names; and whether some of them were here before.
    Another { reused: bool },
    /// The replica's own repository failed.
    Store(StoreError),
}

impl From<Reject> for Failed {
    fn from(why: Reject) -> Failed {
        Failed::Source(why)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

/// Writes the leaves that the replica lacks before the record of `offered`. Returns whether the log is complete up
/// to that record. A source may take `patience` for each leaf.
///
/// # Errors
/// Those of the repository.
pub(crate) async fn carry(
    sources: &Sources,
    writer: &mut Writer,
    here: Option<&Here>,
    offered: &Offered,
    patience: Duration,
) -> Result<bool, StoreError> {
    let log = offered.offer.record.log;
    let repository = writer.repository().clone();
    let start = start(&repository, here, &log);
    if start.size() == log.size && start.root() == log.root {
        return Ok(true);
    }
    if log.size.saturating_sub(start.size()) > MAX_LEAVES {
        tracing::warn!(leaves = log.size, "the log is too long to be copied");
        return Ok(false);
    }
    for place in sources.order() {
        let Some(objects) = place.replica.objects() else {
            continue;
        };
        // A leaf that an interrupted pull wrote may be of another branch: then all are fetched.
        for reuses in [true, false] {
            let fetch = Fetch {
                sources,
                objects,
                repository: &repository,
                epoch: log.epoch,
                patience,
                reuses,
            };
            let mut written = Written::default();
            let copied = fetch.between(start.clone(), &offered.offer, writer, &mut written);
            let why = match copied.await {
                Ok(()) => return Ok(true),
                Err(Failed::Store(error)) => return Err(error),
                Err(Failed::Source(why)) => {
                    writer.remove_log(log.epoch, written.unproved())?;
                    why
                }
                Err(Failed::Another { reused }) => {
                    // Signed by the publisher, but on another branch.
                    writer.remove_log(log.epoch, &written.indexes)?;
                    if reused {
                        continue;
                    }
                    missing("its leaves are not those that the record names")
                }
            };
            let replica = place.replica.place();
            tracing::warn!(replica, %why, "cannot copy the log from this source");
            break;
        }
    }
    Ok(false)
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
    /// Whether leaves that are here are used.
    reuses: bool,
}

/// Leaves that were written.
#[derive(Default)]
struct Written {
    indexes: Vec<u64>,
    /// How many of them a record proves.
    proved: usize,
}

impl Written {
    fn unproved(&self) -> &[u64] {
        self.indexes.get(self.proved..).unwrap_or_default()
    }
}

/// Fetched leaves that are not written yet.
#[derive(Default)]
struct Window {
    leaves: Vec<(u64, Bytes)>,
    bytes: usize,
}

impl Window {
    fn hold(&mut self, index: u64, leaf: Bytes) {
        self.bytes = self.bytes.saturating_add(leaf.len());
        self.leaves.push((index, leaf));
    }

    fn is_full(&self) -> bool {
        self.leaves.len() >= WINDOW_LEAVES || self.bytes >= WINDOW_BYTES
    }

    /// Writes the leaves, and adds their indexes to `written`.
    fn write(
        &mut self,
        epoch: u64,
        writer: &mut Writer,
        written: &mut Written,
    ) -> Result<(), StoreError> {
        for (index, leaf) in std::mem::take(self).leaves {
            writer.put_log_leaf(epoch, index, &leaf)?;
            written.indexes.push(index);
        }
        writer.flush_log()
    }
}

impl Fetch<'_> {
    async fn between(
        &self,
        mut frontier: Frontier,
        offer: &Offer,
        writer: &mut Writer,
        written: &mut Written,
    ) -> Result<(), Failed> {
        let log = &offer.record.log;
        let first = frontier.size();
        let requests = self.sources.limit.requests(REQUESTS);
        let leaves = (first..log.size).map(|index| self.leaf(index));
        let mut answers = stream::iter(leaves).buffered(requests);
        let mut signatures = Signatures::default();
        let (mut window, mut reused) = (Window::default(), false);
        while let Some(answer) = answers.next().await {
            let (index, leaf, fetched) = answer?;
            let signed = Signed::from_bytes(&leaf)?;
            reused |= !fetched;
            if fetched {
                let policy = self.policy(&signed, offer)?;
                let read = Leaf::read(&signed, offer.chain.volume(), &policy, &mut signatures)?;
                let is_record = matches!(read, Leaf::Record { .. });
                if let Leaf::Record { record, .. } = read
                    && record.log != frontier.point(self.epoch)
                {
                    return Err(Failed::Another { reused });
                }
                // Before a policy the window may not be proved yet: any number of policies may follow one record.
                if window.is_full() {
                    window.write(self.epoch, writer, written)?;
                }
                if is_record {
                    written.proved = written.indexes.len();
                }
                let leaf = earlier::reduced(&signed, &policy);
                window.hold(index, leaf.to_bytes().into());
            }
            frontier.push(signed.statement().bytes())?;
        }
        if frontier.root() != log.root {
            return Err(Failed::Another { reused });
        }
        Ok(window.write(self.epoch, writer, written)?)
    }

    /// The policy by which a leaf is read: of the chain, or of the repository, which has the older ones already.
    fn policy(&self, leaf: &Signed, offer: &Offer) -> Result<Link, Reject> {
        let volume = offer.chain.volume();
        let number = Leaf::policy_number(leaf, volume)?;
        if let Some(link) = offer.chain.link(number) {
            return Ok(link.clone());
        }
        let policy = self.repository.policy(number).ok().flatten();
        let policy = policy.ok_or_else(|| missing("a policy of a leaf is missing"))?;
        Link::read(volume, &Signed::from_bytes(&policy)?)
    }

    /// A leaf, and whether it was fetched.
    async fn leaf(&self, index: u64) -> Result<(u64, Bytes, bool), Reject> {
        let epoch = self.epoch;
        if self.reuses
            && let Ok(Some(leaf)) = self.repository.log_leaf(epoch, index)
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
