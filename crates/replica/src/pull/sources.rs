//! Asks several sources for many blocks. Each answer is proved before it is used (SFSRO 3.2: *verify by
//! hashing*). A source that is silent, sends wrong blocks or denies blocks is asked last from then on; the
//! others are still asked. Relies on `trust::reach` for the proof of a block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reader::ReadError;
use store::{Replica, StoreError};
use trust::reach::{Found, Wanted};
use trust::{Handle, Hasher, Record, Reject};

use super::limit::Limit;
use reader::Tally;
use volume::error::VolumeError;

/// How long a source that did not answer is asked last.
const DOWN: Duration = Duration::from_secs(10);
/// Pause before all sources are asked once more.
const PAUSE: Duration = Duration::from_millis(500);
/// Assumed size of a tree's block before it has arrived, bytes.
const NODE_BYTES: u32 = 8 << 10;

/// Estimated size of a wanted block, bytes.
pub(crate) fn weight_bytes(wanted: &Wanted) -> u64 {
    u64::from(match wanted {
        Wanted::Data { len, .. } => *len,
        _ => NODE_BYTES,
    })
}

/// A block that matches its handle. If it is a node that breaks a rule of the trees, the publisher is to
/// blame, and every source has the same one.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub wanted: Wanted,
    pub record: Record,
    pub found: Result<Found, Reject>,
}

/// The result of a request.
#[derive(Debug, Default)]
pub(crate) struct Got {
    pub blocks: Vec<Fetched>,
    pub missing: Vec<Wanted>,
    /// The errors. If a block is missing, the gravest is reported.
    pub faults: Vec<VolumeError>,
}

/// The sources, and how each has behaved so far.
pub(crate) struct Sources {
    pub hasher: Hasher,
    pub limit: Limit,
    pub tally: Arc<Tally>,
    places: Vec<Place>,
    deadline: Duration,
    began: Instant,
    /// Bytes of records received.
    pub received_bytes: AtomicU64,
    /// Requests made.
    pub requests: AtomicU64,
}

pub(crate) struct Place {
    pub replica: Arc<dyn Replica>,
    busy: AtomicUsize,
    wrong: AtomicU32,
    denied: AtomicU32,
    /// Milliseconds since the start of the pull.
    down_until_ms: AtomicU64,
    answered_ms: AtomicU64,
}

impl Sources {
    pub(crate) fn new(
        hasher: Hasher,
        replicas: &[Arc<dyn Replica>],
        deadline: Duration,
        limit: Limit,
        tally: Arc<Tally>,
    ) -> Sources {
        let place = |replica: &Arc<dyn Replica>| Place {
            replica: replica.clone(),
            busy: AtomicUsize::new(0),
            wrong: AtomicU32::new(0),
            denied: AtomicU32::new(0),
            down_until_ms: AtomicU64::new(0),
            answered_ms: AtomicU64::new(0),
        };
        Sources {
            hasher,
            limit,
            tally,
            places: replicas.iter().map(place).collect(),
            deadline,
            began: Instant::now(),
            received_bytes: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// Asks one source after the other for a batch, until it is complete or all have been asked. If none
    /// answers, tries again until the deadline.
    pub(crate) async fn fetch(self: Arc<Self>, batch: Vec<Wanted>) -> Got {
        let began = Instant::now();
        let mut got = Got {
            missing: batch,
            ..Got::default()
        };
        loop {
            let mut outage = false;
            for place in self.order() {
                outage |= self.ask(place, &mut got).await;
                if got.missing.is_empty() {
                    return got;
                }
            }
            if !outage || began.elapsed() + PAUSE >= self.deadline {
                return got;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The sources, the most promising first.
    pub(crate) fn order(&self) -> Vec<&Place> {
        let now_ms = self.now_ms();
        let mut places: Vec<&Place> = self.places.iter().collect();
        places.sort_by_cached_key(|place| {
            (
                place.down_until_ms.load(Ordering::Relaxed) > now_ms,
                place.wrong.load(Ordering::Relaxed),
                place.denied.load(Ordering::Relaxed),
                place.busy.load(Ordering::Relaxed),
            )
        });
        places
    }

    /// Counts bytes that came over the network.
    pub(crate) fn received(&self, bytes: u64) {
        self.limit.pay(bytes);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Where the whole volume is expected, its content is counted, which is signed.
        if self.tally.total_bytes.load(Ordering::Relaxed) == 0 {
            self.tally.add(0, bytes);
        }
    }

    /// Notes that a source sent a block that does not match its handle.
    pub(crate) fn lied(&self, place: &Place, what: String, why: Reject) -> VolumeError {
        let name = place.replica.place();
        if place.wrong.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(replica = name, %what, %why, "gives wrong blocks");
        }
        ReadError::Integrity {
            place: name.to_owned(),
            what,
            why,
        }
        .into()
    }

    /// Asks one source; returns whether it failed to answer.
    async fn ask(&self, place: &Place, got: &mut Got) -> bool {
        self.limit.wait().await;
        let names: Vec<Handle> = got.missing.iter().map(Wanted::handle).collect();
        let most_bytes = got.missing.iter().map(|wanted| wanted.most_bytes() as u64);
        let most_bytes = most_bytes.sum();
        self.requests.fetch_add(1, Ordering::Relaxed);
        place.busy.fetch_add(1, Ordering::Relaxed);
        let answer = self.answer(place, &names, most_bytes).await;
        place.busy.fetch_sub(1, Ordering::Relaxed);
        match answer {
            Ok(records) => {
                let now_ms = self.now_ms();
                place.answered_ms.store(now_ms, Ordering::Relaxed);
                self.take(place, records, got);
                false
            }
            Err(error) => {
                let until_ms = self.now_ms().saturating_add(DOWN.as_millis() as u64);
                place.down_until_ms.store(until_ms, Ordering::Relaxed);
                tracing::warn!(replica = place.replica.place(), %error, "does not answer");
                got.faults.push(error);
                true
            }
        }
    }

    /// Waits for an answer as long as the source makes progress.
    async fn answer(
        &self,
        place: &Place,
        names: &[Handle],
        most_bytes: u64,
    ) -> Result<Vec<Record>, VolumeError> {
        let what = || format!("{} block(s)", names.len());
        let asked_ms = self.now_ms();
        let mut answer = std::pin::pin!(place.replica.get_within(names, 0, most_bytes));
        loop {
            let alive_ms = place.answered_ms.load(Ordering::Relaxed).max(asked_ms);
            let until = self.began + Duration::from_millis(alive_ms) + self.deadline;
            match tokio::time::timeout_at(until.into(), &mut answer).await {
                Ok(answer) => {
                    return answer.map_err(|e: StoreError| VolumeError::from_store(what(), &e));
                }
                Err(_) if place.answered_ms.load(Ordering::Relaxed) > alive_ms => {}
                Err(_) => {
                    let cause = format!("{} gives no answer", place.replica.place());
                    return Err(VolumeError::unavailable(what(), cause));
                }
            }
        }
    }

    /// Proves the records that came; drops those that were not requested.
    fn take(&self, place: &Place, records: Vec<Record>, got: &mut Got) {
        self.received(records.iter().map(|r| r.len() as u64).sum());
        for record in records {
            let Some(at) = got
                .missing
                .iter()
                .position(|wanted| wanted.handle() == record.handle)
            else {
                continue;
            };
            let Some(wanted) = got.missing.get(at).copied() else {
                continue;
            };
            match wanted.unpack(&self.hasher, &record.frame) {
                Err(why) if !why.is_publishers_fault() => {
                    let what = format!("block {}", record.handle);
                    got.faults.push(self.lied(place, what, why));
                }
                found => {
                    got.missing.swap_remove(at);
                    got.blocks.push(Fetched {
                        wanted,
                        record,
                        found,
                    });
                }
            }
        }
        if let Some(wanted) = got.missing.first() {
            place.denied.fetch_add(1, Ordering::Relaxed);
            let cause = format!(
                "{} does not have {} block(s)",
                place.replica.place(),
                got.missing.len()
            );
            got.faults.push(VolumeError::unavailable(
                format!("block {}", wanted.handle()),
                cause,
            ));
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}
