//! What mirrors answer to one fetch: each record is verified as it comes, and evidence of wrong
//! answers is kept. Relies on [`super::verified`] for the checks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::BlockStore;
use store::mirrors::{Fault, ResponseVerifier};
use trust::frame::MAX_BLOCK_BYTES;
use trust::{Handle, Record, Reject};

use super::decoded::Decode;
use super::verified::VerifiedCache;
use super::wrong::{Evidence, WrongBlocks};
use crate::error::ReadError;
use crate::read_around::{Expect, Usage};

/// The answers to one fetch. It outlives the fetch while a mirror is late, because that answer is
/// still verified and kept.
pub(super) struct Response<K: Decode> {
    cache: Arc<VerifiedCache>,
    /// The wanted blocks, in the order in which they are requested.
    order: Vec<Handle>,
    wanted: HashSet<Handle>,
    /// The lengths that are known, bytes.
    lens: HashMap<Handle, u32>,
    expect: Expect,
    /// Of all fetches.
    wrong: Arc<WrongBlocks>,
    got: Mutex<Got<K>>,
}

struct Got<K: Decode> {
    missing: HashSet<Handle>,
    blocks: HashMap<Handle, K::Decoded>,
    /// A block is the signed one and malformed, so no other mirror has a better one.
    malformed: Option<ReadError>,
    /// The first wrong answer, and the mirror that gave it.
    wrong: Option<Evidence>,
}

impl<K: Decode> Response<K> {
    pub(super) fn new(
        cache: Arc<VerifiedCache>,
        wanted: &[Handle<K>],
        lens: HashMap<Handle, u32>,
        expect: Expect,
        wrong: Arc<WrongBlocks>,
    ) -> Arc<Response<K>> {
        let order: Vec<Handle> = wanted.iter().map(Handle::any).collect();
        let missing: HashSet<Handle> = order.iter().copied().collect();
        Arc::new(Response {
            cache,
            order,
            wanted: missing.clone(),
            lens,
            expect,
            wrong,
            got: Mutex::new(Got {
                missing,
                blocks: HashMap::new(),
                malformed: None,
                wrong: None,
            }),
        })
    }

    fn got(&self) -> MutexGuard<'_, Got<K>> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks, once all have come.
    ///
    /// # Errors
    /// [`ReadError::Malformed`].
    pub(super) fn blocks(&self) -> Result<HashMap<Handle, K::Decoded>, ReadError> {
        let mut got = self.got();
        match got.malformed.take() {
            Some(malformed) => Err(malformed),
            None => Ok(std::mem::take(&mut got.blocks)),
        }
    }

    /// Why some blocks did not come. Evidence of a wrong answer is reported before an outage.
    pub(super) fn error(&self, what: String, faults: &[Fault]) -> ReadError {
        let mut got = self.got();
        let of_fault = |fault: &Fault| match fault {
            Fault::Wrong { place, why } => Some((place.clone(), why.clone())),
            Fault::Failed { .. } | Fault::Unsupported { .. } | Fault::Denied { .. } => None,
        };
        let wrong = got.wrong.take();
        if let Some((place, why)) = wrong.or_else(|| faults.iter().find_map(of_fault)) {
            return ReadError::Integrity { place, what, why };
        }
        let newer = faults.iter().find_map(|fault| match fault {
            Fault::Unsupported { cause, .. } => Some(cause.clone()),
            Fault::Wrong { .. } | Fault::Failed { .. } | Fault::Denied { .. } => None,
        });
        if let Some(cause) = newer {
            return ReadError::Unsupported { what, cause };
        }
        let failed = faults.iter().filter_map(|fault| match fault {
            Fault::Failed { cause, .. } => Some(cause.clone()),
            Fault::Wrong { .. } | Fault::Unsupported { .. } | Fault::Denied { .. } => None,
        });
        let mut told: Vec<String> = failed.collect();
        if told.is_empty() {
            told.extend(faults.iter().filter_map(|fault| match fault {
                Fault::Denied { place, blocks } => {
                    Some(format!("{place} does not have {blocks} of the blocks"))
                }
                Fault::Wrong { .. } | Fault::Failed { .. } | Fault::Unsupported { .. } => None,
            }));
        }
        if told.is_empty() {
            told.push("no answer before the deadline".to_owned());
        }
        let cause = told.join("; ");
        let denied = faults.iter().filter_map(|fault| match fault {
            Fault::Denied { place, .. } => Some(place.clone()),
            Fault::Wrong { .. } | Fault::Failed { .. } | Fault::Unsupported { .. } => None,
        });
        ReadError::Unavailable {
            what,
            cause,
            denied: denied.collect(),
        }
    }
}

impl<K: Decode> ResponseVerifier for Response<K> {
    fn verify(&self, replica: &dyn BlockStore, records: Vec<Record>) -> Vec<(Handle, Reject)> {
        let cache = &self.cache;
        let usage = Arc::new(Usage::default());
        let mut wrong = Vec::new();
        for record in records {
            let Record { handle, frame } = &record;
            if !self.wanted.contains(handle) {
                cache.keep_unasked(replica, &record, &usage);
                continue;
            }
            match cache.admit(&Handle::<K>::from_bytes(*handle.as_bytes()), frame) {
                Ok(Ok(block)) => {
                    cache.counters.fetched.fetch_add(1, Ordering::Relaxed);
                    cache.keep_on_disk(replica, *handle, frame);
                    self.wrong.came_right(handle);
                    let mut got = self.got();
                    got.missing.remove(handle);
                    got.blocks.extend(block.map(|block| (*handle, block)));
                }
                Ok(Err(why)) => {
                    cache.counters.wrong.fetch_add(1, Ordering::Relaxed);
                    let evidence = (replica.place().to_owned(), why.clone());
                    let mut got = self.got();
                    // A late answer says nothing of a block that has come right.
                    if got.missing.contains(handle) {
                        self.wrong.came_wrong(*handle, evidence.clone());
                    }
                    got.wrong.get_or_insert(evidence);
                    wrong.push((*handle, why));
                }
                Err(malformed) => {
                    let mut got = self.got();
                    got.missing.clear();
                    got.malformed.get_or_insert(malformed);
                }
            }
        }
        // Requests of prefetch do not count: they do not show what readers want.
        if self.expect == Expect::Near {
            cache.around(K::KIND).keep(usage);
        }
        wrong
    }

    fn most_bytes(&self, missing: &[Handle]) -> Option<u64> {
        if K::MOST_BYTES >= MAX_BLOCK_BYTES && self.lens.is_empty() {
            return None;
        }
        let len = |handle: &Handle| {
            let len = self.lens.get(handle).map(|len| u64::from(*len));
            len.unwrap_or(K::MOST_BYTES as u64)
        };
        Some(missing.iter().map(len).fold(0, u64::saturating_add))
    }

    fn missing(&self) -> Vec<Handle> {
        let got = self.got();
        let is_missing = |handle: &&Handle| got.missing.contains(*handle);
        self.order.iter().filter(is_missing).copied().collect()
    }
}
