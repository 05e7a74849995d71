//! What mirrors answer to one fetch: checked as it comes, and the evidence kept.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::BlockStore;
use store::mirrors::{Fault, ResponseVerifier};
use trust::{Handle, Record, Reject};

use super::form::Open;
use super::known::Known;
use crate::around::{Expect, Tally};
use crate::error::ReadError;

/// The answers to one fetch. Outlives it where a mirror is late: what it says is checked all the
/// same.
pub(super) struct Answers<K: Open> {
    known: Arc<Known>,
    /// In the order in which they are asked for.
    order: Vec<Handle>,
    wanted: HashSet<Handle>,
    expect: Expect,
    got: Mutex<Got<K>>,
}

struct Got<K: Open> {
    missing: HashSet<Handle>,
    forms: HashMap<Handle, K::Form>,
    /// A block is what was signed, and breaks a rule: no other mirror has a better one.
    malformed: Option<ReadError>,
    /// The first wrong answer, and who gave it.
    wrong: Option<(String, Reject)>,
}

impl<K: Open> Answers<K> {
    pub(super) fn new(known: Arc<Known>, wanted: &[Handle<K>], expect: Expect) -> Arc<Answers<K>> {
        let order: Vec<Handle> = wanted.iter().map(Handle::any).collect();
        let missing: HashSet<Handle> = order.iter().copied().collect();
        Arc::new(Answers {
            known,
            order,
            wanted: missing.clone(),
            expect,
            got: Mutex::new(Got {
                missing,
                forms: HashMap::new(),
                malformed: None,
                wrong: None,
            }),
        })
    }

    fn got(&self) -> MutexGuard<'_, Got<K>> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that were had, when all were.
    ///
    /// # Errors
    /// [`ReadError::Malformed`].
    pub(super) fn forms(&self) -> Result<HashMap<Handle, K::Form>, ReadError> {
        let mut got = self.got();
        match got.malformed.take() {
            Some(malformed) => Err(malformed),
            None => Ok(std::mem::take(&mut got.forms)),
        }
    }

    /// Why not all were had: evidence beats outage.
    pub(super) fn error(&self, what: String, faults: &[Fault]) -> ReadError {
        let mut got = self.got();
        let of_fault = |fault: &Fault| match fault {
            Fault::Wrong { place, why } => Some((place.clone(), why.clone())),
            Fault::Failed { .. } | Fault::Denied { .. } => None,
        };
        let wrong = got.wrong.take();
        if let Some((place, why)) = wrong.or_else(|| faults.iter().find_map(of_fault)) {
            return ReadError::Integrity { place, what, why };
        }
        let failed = faults.iter().filter_map(|fault| match fault {
            Fault::Failed { cause, .. } => Some(cause.clone()),
            Fault::Wrong { .. } | Fault::Denied { .. } => None,
        });
        let mut told: Vec<String> = failed.collect();
        if told.is_empty() {
            told.extend(faults.iter().filter_map(|fault| match fault {
                Fault::Denied { place, blocks } => {
                    Some(format!("{place} does not give out {blocks} block(s)"))
                }
                Fault::Wrong { .. } | Fault::Failed { .. } => None,
            }));
        }
        if told.is_empty() {
            told.push("no answer before the deadline".to_owned());
        }
        let cause = told.join("; ");
        ReadError::Unavailable { what, cause }
    }
}

impl<K: Open> ResponseVerifier for Answers<K> {
    fn verify(&self, replica: &dyn BlockStore, records: Vec<Record>) -> Vec<(Handle, Reject)> {
        let known = &self.known;
        let tally = Arc::new(Tally::default());
        let mut wrong = Vec::new();
        for record in records {
            let Record { handle, frame } = &record;
            if !self.wanted.contains(handle) {
                known.keep_unasked(replica, &record, &tally);
                continue;
            }
            match known.admit(&Handle::<K>::from_bytes(*handle.as_bytes()), frame) {
                Ok(Ok(form)) => {
                    known.counters.fetched.fetch_add(1, Ordering::Relaxed);
                    known.keep_on_disk(replica, *handle, frame);
                    let mut got = self.got();
                    got.missing.remove(handle);
                    got.forms.extend(form.map(|form| (*handle, form)));
                }
                Ok(Err(why)) => {
                    known.counters.wrong.fetch_add(1, Ordering::Relaxed);
                    let mut got = self.got();
                    let evidence = (replica.place().to_owned(), why.clone());
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
        // What was fetched ahead says nothing about those who ask for themselves.
        if self.expect == Expect::Near {
            known.around(K::KIND).keep(tally);
        }
        wrong
    }

    fn missing(&self) -> Vec<Handle> {
        let got = self.got();
        let is_missing = |handle: &&Handle| got.missing.contains(*handle);
        self.order.iter().filter(is_missing).copied().collect()
    }
}
