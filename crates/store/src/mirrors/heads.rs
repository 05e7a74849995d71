//! A round of heads: who waits for whom, and how long. These are all rules, for readers, mounts and `pull`.
//!
//! 1. All mirrors are asked at once, also those that are set aside.
//! 2. When the first head has come, the others are waited for until each has answered or failed once, and at most for
//!    the caller's [`Asking::patience`]. Who opens a volume waits little, because a user waits; a mount that looks for
//!    a newer version waits longer, because nobody does; `pull` waits longest.
//! 3. If the caller cannot use any of the heads that came, it takes the next ones: a head that is old, wrong or forged
//!    does not end the wait for an honest one ([`Heads::next`]).
//! 4. A mirror that has not answered when that wait ends is set aside like one that stalled, so no request for blocks
//!    waits for it. Its answer may still come, and then it is asked like the others.
//! 5. While no head has come, mirrors that do not answer are asked again ([`super::outage`]) if the caller waits for
//!    outages ([`Asking::through_outages`]). Who has something else to go on with does not.
//! 6. No rule goes beyond the caller's deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Cause;
use super::outage::{Pauses, again_before};
use super::race::cause_of;
use super::{LEFTOVER, MAX_LEFTOVERS, Mirror, Mirrors};
use crate::{BoxFuture, StoreError};

/// How heads are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// The path that the caller will read next ([`crate::Replica::head_toward`]).
    pub toward: Option<&'a [u8]>,
    /// How long the other mirrors are waited for once a head has come.
    pub patience: Duration,
    /// Whether mirrors that do not answer are asked again while no head has come.
    pub through_outages: bool,
}

/// The number of a mirror, and its answer.
pub type HeadAnswer = (usize, Result<Bytes, StoreError>);

/// A round of heads.
pub struct Heads<'a> {
    mirrors: &'a Mirrors,
    asking: Asking<'a>,
    running: FuturesUnordered<BoxFuture<'static, HeadAnswer>>,
    /// Mirrors that have neither answered nor failed.
    unheard: BTreeSet<usize>,
    /// Mirrors that did not answer, and are asked again.
    failed: BTreeMap<usize, StoreError>,
    pauses: Pauses,
    again: Option<Instant>,
    /// Whether all of them failed.
    is_outage: bool,
}

impl std::fmt::Debug for Heads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heads")
            .field("unheard", &self.unheard)
            .finish_non_exhaustive()
    }
}

impl Mirrors {
    /// Begins a round of heads: asks every mirror.
    pub fn heads<'a>(&'a self, asking: Asking<'a>) -> Heads<'a> {
        let mut heads = Heads {
            mirrors: self,
            asking,
            running: FuturesUnordered::new(),
            unheard: (0..self.mirrors.len()).collect(),
            failed: BTreeMap::new(),
            pauses: Pauses::default(),
            again: None,
            is_outage: false,
        };
        (0..self.mirrors.len()).for_each(|index| heads.ask(index));
        heads
    }
}

impl Heads<'_> {
    fn ask(&mut self, index: usize) {
        let Some(mirror) = self.mirrors.mirrors.get(index).cloned() else {
            return;
        };
        let toward = self.asking.toward.map(<[u8]>::to_vec);
        self.running.push(Box::pin(ask(index, mirror, toward)));
    }

    /// The next answers, in the order of the mirrors: a head, and what else came while the others were waited for. If
    /// no head comes any more, the errors; `None` if they were given before. Ends at `until` at the latest.
    pub async fn next(&mut self, until: std::time::Instant) -> Option<Vec<HeadAnswer>> {
        let until: Instant = until.into();
        let mut answers: Vec<HeadAnswer> = Vec::new();
        // When the others are not waited for any more.
        let mut over: Option<Instant> = None;
        loop {
            if over.is_some() && self.unheard.is_empty() {
                break;
            }
            let again = self.again.filter(|_| over.is_none());
            if self.running.is_empty() && again.is_none() {
                break;
            }
            let wake = over.unwrap_or(until).min(again.unwrap_or(until));
            match self.answer(wake).await {
                Some((index, answer)) => {
                    self.unheard.remove(&index);
                    match answer {
                        Err(error) if self.asking.through_outages && error.may_pass() => {
                            self.failed.insert(index, error);
                            self.plan(until, over.is_some());
                        }
                        answer => {
                            if answer.is_ok() {
                                // Heads that have come would be lost at the deadline.
                                let left = until.saturating_duration_since(Instant::now());
                                let patience = self.asking.patience.min(left / 2);
                                over.get_or_insert_with(|| Instant::now() + patience);
                            }
                            answers.push((index, answer));
                        }
                    }
                }
                None if again.is_some_and(|again| again <= Instant::now()) => {
                    self.again = None;
                    for (index, _) in std::mem::take(&mut self.failed) {
                        self.ask(index);
                    }
                }
                None => break,
            }
        }
        match over {
            Some(_) => self.pass_over(),
            None => self.give_up(&mut answers),
        }
        answers.sort_by_key(|(index, _)| *index);
        (!answers.is_empty()).then_some(answers)
    }

    /// The next answer; `None` at `wake`.
    async fn answer(&mut self, wake: Instant) -> Option<HeadAnswer> {
        if self.running.is_empty() {
            tokio::time::sleep_until(wake).await;
            return None;
        }
        timeout_at(wake, self.running.next()).await.ok().flatten()
    }

    /// Plans when those that failed are asked again.
    fn plan(&mut self, until: Instant, has_head: bool) {
        if self.again.is_none() {
            let again = Instant::now() + self.pauses.following();
            self.again = again_before(again, until);
        }
        if self.running.is_empty() && !has_head {
            self.is_outage = true;
            let failed = self.failed.values();
            self.mirrors.outage.goes_on(|| words(failed));
        }
    }

    /// Sets those aside that have not answered.
    fn pass_over(&mut self) {
        if std::mem::take(&mut self.is_outage) {
            self.mirrors.outage.ends();
        }
        for index in &self.unheard {
            if let Some(mirror) = self.mirrors.mirrors.get(*index) {
                mirror.faulty(Cause::Stall, "no head in time".to_owned());
            }
        }
    }

    /// Adds what is known of those that gave no answer.
    fn give_up(&mut self, answers: &mut Vec<HeadAnswer>) {
        self.again = None;
        let failed = std::mem::take(&mut self.failed);
        answers.extend(failed.into_iter().map(|(index, error)| (index, Err(error))));
        for index in std::mem::take(&mut self.unheard) {
            let mirror = self.mirrors.mirrors.get(index);
            let place = mirror.map(|mirror| mirror.place().to_owned());
            let error = StoreError::Unavailable {
                place: place.unwrap_or_default(),
                cause: "no answer before the deadline".to_owned(),
            };
            answers.push((index, Err(error)));
        }
    }
}

impl Drop for Heads<'_> {
    /// Answers that are under way say which mirrors can be asked for blocks.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        for answer in std::mem::take(&mut self.running) {
            let leftovers = Arc::clone(&self.mirrors.leftovers);
            if leftovers.fetch_add(1, Ordering::Relaxed) >= MAX_LEFTOVERS {
                leftovers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            runtime.spawn(async move {
                // The answer is recorded where it comes.
                let _ = timeout(LEFTOVER, answer).await;
                leftovers.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

async fn ask(index: usize, mirror: Arc<Mirror>, toward: Option<Vec<u8>>) -> HeadAnswer {
    let started = Instant::now();
    let answer = match toward {
        Some(path) => mirror.replica.head_toward(&path).await,
        None => mirror.replica.head().await,
    };
    match &answer {
        Ok(_) => mirror.answered(1, started.elapsed()),
        Err(error) => drop(mirror.faulty(cause_of(error), error.to_string())),
    }
    (index, answer)
}

/// What mirrors say, as one line.
fn words<'a>(errors: impl Iterator<Item = &'a StoreError>) -> String {
    let errors: Vec<String> = errors.map(StoreError::to_string).collect();
    errors.join("; ")
}
