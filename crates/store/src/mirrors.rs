//! Several replicas (mirrors) of one volume: which is asked first, which next, and when.
//!
//! No mirror is trusted; the caller verifies the answers ([`ResponseVerifier`]). This module decides
//! - in which **order** mirrors are asked: by the expected time of an answer; mirrors that are behind
//!   the newest version or often deny blocks come later (`score`);
//! - how mirrors **share** the large requests of one who reads a whole tree: each goes where it is expected to be
//!   answered first, with what waits there already (`load`);
//! - when to **fail over**: at once after a failure, a denial or a wrong block, and only for the
//!   blocks that are still missing;
//! - when to **hedge**: when an answer takes longer than 95% of the earlier ones, a second mirror is
//!   asked; at most once in twenty requests (`budget`);
//! - what a **mute** mirror costs: when nothing at all has come from those that were asked for a quarter of a second,
//!   others are asked in waves that double, so the good one of 32 is asked within half a second (`race`);
//! - which mirrors are **set aside** for a while: those that fail, stall or give wrong answers (`breaker`);
//! - who waits for whose **head** (`heads`);
//! - that an **outage** is waited for until the caller's deadline (`outage`).
//!
//! A mirror that was set aside is tried again beside a request that another mirror answers, so that no caller
//! waits for it. When no other is left, those that did not answer are asked again all the same.
//!
//! A request that lost a race goes on for a bounded time: its answer is already under way, its
//! duration improves the score, and a wrong block in it is evidence.

mod breaker;
mod budget;
mod heads;
mod load;
pub mod outage;
mod race;
mod score;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use trust::{Handle, Record, Reject};

use crate::{BlockStore, Replica};
use breaker::{Breaker, Cause};
use budget::Budget;
pub use heads::{Asking, HeadAnswer, Heads};
use load::{Load, load_bytes};
pub use outage::Outage;
use outage::{SharedOutage, again_before};
use race::{Event, Race};
use score::Score;

/// Maximum time for which a request that lost a race goes on.
const LEFTOVER: Duration = Duration::from_secs(10);
/// After this time without an answer a second mirror is asked even without budget for hedges.
const STALLED: Duration = Duration::from_secs(1);
/// Maximum number of lost requests that go on at a time; further ones are dropped.
const MAX_LEFTOVERS: u64 = 64;

/// Verifies the answers of mirrors and keeps the right blocks.
pub trait ResponseVerifier: Send + Sync + 'static {
    /// Verifies the records of one answer and keeps the right ones; returns the wrong ones.
    fn verify(&self, replica: &dyn BlockStore, records: Vec<Record>) -> Vec<(Handle, Reject)>;

    /// The handles that are still missing. The request ends when there are none.
    fn missing(&self) -> Vec<Handle>;

    /// How long these blocks are together, at most, bytes of plaintext; `None` if that is not known.
    fn most_bytes(&self, _missing: &[Handle]) -> Option<u64> {
        None
    }
}

/// What one mirror did wrong in one request.
#[derive(Debug)]
pub enum Fault {
    /// It gave a wrong block or an invalid answer.
    Wrong {
        /// The mirror.
        place: String,
        /// Which check failed.
        why: Reject,
    },
    /// It gave no answer, or was not asked because it failed recently.
    Failed {
        /// The mirror.
        place: String,
        /// What happened.
        cause: String,
        /// Whether it may answer when it is asked again.
        may_pass: bool,
    },
    /// It needs a newer bulla.
    Unsupported {
        /// Its error message, with its name.
        cause: String,
    },
    /// It denied some of the blocks.
    Denied {
        /// The mirror.
        place: String,
        /// Number of denied blocks.
        blocks: usize,
    },
}

impl Fault {
    /// Whether the mirror may answer when it is asked again.
    fn may_pass(&self) -> bool {
        matches!(self, Fault::Failed { may_pass: true, .. })
    }
}

/// What mirrors that do not answer say, as one line.
fn words(faults: &[Fault]) -> String {
    let causes = faults.iter().filter_map(|fault| match fault {
        Fault::Failed { cause, .. } => Some(cause.as_str()),
        Fault::Wrong { .. } | Fault::Unsupported { .. } | Fault::Denied { .. } => None,
    });
    causes.collect::<Vec<&str>>().join("; ")
}

/// State of a mirror, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Its name.
    pub place: String,
    /// Expected time of a small answer, if one came.
    pub latency: Option<Duration>,
    /// For how long it is still set aside, and why.
    pub set_aside: Option<(Duration, String)>,
    /// Its head is behind the version in use.
    pub behind: bool,
    /// Its requests and their results.
    pub counts: Counts,
    /// The last fault, as text.
    pub last_fault: Option<String>,
}

/// Counts of the requests to a mirror and of their results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests for blocks.
    pub requests: u64,
    /// Requests that were not answered, or answered too late.
    pub failures: u64,
    /// Wrong blocks and invalid answers.
    pub wrong: u64,
    /// Requests in which it denied a block.
    pub denials: u64,
    /// Requests that were sent because another mirror was slow, or to try this one again.
    pub hedges: u64,
}

#[derive(Debug, Default)]
struct MirrorState {
    score: Score,
    load: Load,
    breaker: Breaker,
    counts: Counts,
    last_fault: Option<String>,
    /// No good answer came since its last fault.
    is_failing: bool,
    /// Why its last head could not be used.
    refused: Option<String>,
    /// Requests under way, by ticket.
    outstanding: BTreeMap<u64, Sent>,
}

/// When a request was sent, and when its answer becomes slow and overdue.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    slow: Instant,
    overdue: Instant,
    /// What a large request counts for, bytes.
    load_bytes: Option<u64>,
}

impl MirrorState {
    fn sent(&mut self, ticket: u64, blocks: usize, load_bytes: Option<u64>) -> Sent {
        let at = Instant::now();
        let (mut slow, mut overdue) = (
            self.score.patience(blocks),
            self.score.overdue_after(blocks),
        );
        if let Some(bytes) = load_bytes {
            let patience = self.load.patience(bytes, at);
            slow = slow.max(patience);
            overdue = overdue.max(patience * 2);
            self.load.sent(bytes, at);
        }
        let sent = Sent {
            at,
            slow: at + slow,
            overdue: at + overdue,
            load_bytes,
        };
        self.counts.requests += 1;
        self.outstanding.insert(ticket, sent);
        sent
    }

    /// A request has ended; `came_bytes`: what came, if that is all that was asked for.
    fn ended(&mut self, ticket: u64, came_bytes: Option<u64>) {
        let sent = self.outstanding.remove(&ticket);
        if let Some(bytes) = sent.and_then(|sent| sent.load_bytes) {
            self.load.ended(bytes, came_bytes, Instant::now());
        }
    }

    /// How long the oldest slow request has been waiting.
    fn waiting(&self, now: Instant) -> Duration {
        let slow = self.outstanding.values().filter(|sent| sent.slow <= now);
        let oldest = slow.map(|sent| sent.at).min();
        oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }
}

struct Mirror {
    replica: Arc<dyn Replica>,
    /// The last ticket of a request to any of the mirrors: no two requests share one.
    tickets: Arc<AtomicU64>,
    behind: AtomicBool,
    state: Mutex<MirrorState>,
}

impl Mirror {
    fn state(&self) -> MutexGuard<'_, MirrorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> &str {
        self.replica.place()
    }

    /// Notes a request for `blocks`, which may be large; returns its ticket.
    fn sent(&self, blocks: usize, load_bytes: Option<u64>) -> (u64, Sent) {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        (ticket, self.state().sent(ticket, blocks, load_bytes))
    }

    /// Sort key of a ready mirror: first whether it is behind, then the expected time, which is at
    /// least as long as its oldest slow request has been waiting, and for a large request as what waits there takes.
    fn rank(&self, state: &MirrorState, load_bytes: Option<u64>, now: Instant) -> (bool, Duration) {
        let behind = self.behind.load(Ordering::Relaxed);
        let answer = state.score.expected_wait().max(state.waiting(now));
        let load = load_bytes.map(|bytes| state.load.expected(bytes, now));
        (behind, load.map_or(answer, |load| load.max(answer)))
    }

    /// Records an answer that came after `elapsed`.
    fn answered(&self, handles: usize, elapsed: Duration) {
        let mut state = self.state();
        state.score.answered(handles, elapsed);
        state.breaker.good(Instant::now());
        state.is_failing = false;
    }

    /// Records a fault; gives whether it is the first one since a good answer.
    fn faulty(&self, cause: Cause, words: String) -> bool {
        let mut state = self.state();
        match cause {
            Cause::Outage | Cause::Stall => state.counts.failures += 1,
            Cause::Lie => state.counts.wrong += 1,
            Cause::Newer => {}
        }
        state.breaker.bad(cause, Instant::now());
        state.last_fault = Some(words);
        !std::mem::replace(&mut state.is_failing, true)
    }
}

/// Mirrors of one volume.
pub struct Mirrors {
    mirrors: Vec<Arc<Mirror>>,
    budget: Budget,
    leftovers: Arc<AtomicU64>,
    outage: SharedOutage,
}

impl std::fmt::Debug for Mirrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.mirrors.iter().map(|m| m.place());
        f.debug_list().entries(places).finish()
    }
}

/// Which mirrors are asked, in this order.
struct Order {
    /// Asked one after the other.
    turns: VecDeque<Arc<Mirror>>,
    /// Was set aside and is due for another try: asked beside the first.
    due: Option<Arc<Mirror>>,
    /// Are set aside because they do not answer; among those that are left out.
    silent: VecDeque<Arc<Mirror>>,
    /// Mirrors that are left out, with the reason.
    out: Vec<Fault>,
}

impl Mirrors {
    /// Mirrors, in the order in which they are asked while nothing is known about them.
    pub fn new(replicas: Vec<Arc<dyn Replica>>) -> Mirrors {
        // 0 is the ticket of no request.
        let tickets = Arc::new(AtomicU64::new(1));
        let mirror = |replica| {
            Arc::new(Mirror {
                replica,
                tickets: Arc::clone(&tickets),
                behind: AtomicBool::new(false),
                state: Mutex::default(),
            })
        };
        Mirrors {
            mirrors: replicas.into_iter().map(mirror).collect(),
            budget: Budget::default(),
            leftovers: Arc::default(),
            outage: SharedOutage::default(),
        }
    }

    /// The replicas, in the order in which they were given.
    pub fn replicas(&self) -> impl Iterator<Item = &Arc<dyn Replica>> {
        self.mirrors.iter().map(|m| &m.replica)
    }

    /// State of each mirror.
    pub fn status(&self) -> Vec<Status> {
        let now = Instant::now();
        let one = |mirror: &Arc<Mirror>| {
            let state = mirror.state();
            Status {
                place: mirror.place().to_owned(),
                latency: state.score.latency(),
                set_aside: state.breaker.set_aside(now).map(|(left, cause)| {
                    let words = state.last_fault.clone();
                    (left, words.unwrap_or_else(|| cause.to_string()))
                }),
                behind: mirror.behind.load(Ordering::Relaxed),
                counts: state.counts,
                last_fault: state.last_fault.clone(),
            }
        };
        self.mirrors.iter().map(one).collect()
    }

    /// The outage, if no mirror answers.
    pub fn outage(&self) -> Option<Outage> {
        self.outage.status()
    }

    /// Records whether the head of the `index`th mirror is behind the version in use. Such a mirror
    /// is asked for blocks after the others.
    pub fn set_behind(&self, index: usize, behind: bool) {
        if let Some(mirror) = self.mirrors.get(index)
            && mirror.behind.swap(behind, Ordering::Relaxed)
            && !behind
        {
            mirror.state().score.forget_denials();
        }
    }

    /// Records why the head of the `index`th mirror cannot be used (`None`: it can). Returns whether
    /// this differs from before.
    pub fn set_head_refusal(&self, index: usize, refused: Option<String>) -> bool {
        let Some(mirror) = self.mirrors.get(index) else {
            return false;
        };
        let mut state = mirror.state();
        let is_news = state.refused != refused;
        state.refused = refused;
        is_news
    }

    /// Records that the `index`th mirror gave a wrong answer, or promised blocks that it does not give.
    pub fn record_lie(&self, index: usize, words: String) {
        if let Some(mirror) = self.mirrors.get(index) {
            mirror.faulty(Cause::Lie, words);
        }
    }

    /// Records that the `index`th mirror needs a newer bulla. It is set aside without blame.
    pub fn record_unsupported(&self, index: usize, words: String) {
        if let Some(mirror) = self.mirrors.get(index) {
            mirror.faulty(Cause::Newer, words);
        }
    }

    /// Asks one mirror after the other, and others at the same time when one is slow or mute, until `verifier` misses
    /// nothing. `around` is the maximum read-around, bytes. While mirrors that may have the rest do not answer, asks
    /// again until `until`.
    ///
    /// # Errors
    /// What each mirror did wrong, as far as it is known at `until`.
    pub async fn fetch(
        &self,
        around: usize,
        verifier: Arc<dyn ResponseVerifier>,
        until: std::time::Instant,
    ) -> Result<(), Vec<Fault>> {
        let until: Instant = until.into();
        let mut known = Vec::new();
        loop {
            let asked = self.ask_each(around, Arc::clone(&verifier), !known.is_empty());
            let faults = match timeout_at(until, asked).await {
                Ok(Ok(())) => {
                    self.outage.ends();
                    return Ok(());
                }
                Ok(Err(faults)) => faults,
                Err(_) => return Err(known),
            };
            if !faults.iter().any(Fault::may_pass) {
                return Err(faults);
            }
            let again = self.outage.goes_on(|| words(&faults));
            let Some(again) = again_before(again, until) else {
                return Err(faults);
            };
            known = faults;
            tokio::time::sleep_until(again).await;
        }
    }

    /// Asks the mirrors until `verifier` misses nothing, or all that may be asked were asked. In an outage
    /// (`is_outage`), those that are set aside because they do not answer are asked too.
    async fn ask_each(
        &self,
        around: usize,
        verifier: Arc<dyn ResponseVerifier>,
        is_outage: bool,
    ) -> Result<(), Vec<Fault>> {
        let want = verifier.missing();
        let load_bytes = load_bytes(want.len(), verifier.most_bytes(&want));
        let mut order = self.order(load_bytes, Instant::now());
        // Rather than nobody. The requests that wait keep the pauses.
        if is_outage || order.turns.is_empty() {
            order.out.retain(|fault| !fault.may_pass());
            order.turns.append(&mut order.silent);
        }
        let mut race = Race::new(verifier, around, order.turns, order.out);
        self.budget.earn();
        race.ask_next();
        if let Some(due) = order.due
            && self.budget.spend()
        {
            race.ask_beside(due);
        }
        loop {
            match race.event().await {
                Event::Nobody => return Err(race.faults),
                Event::Answer(answered) => {
                    let was_newest = answered.ticket == race.newest;
                    race.settle(answered);
                    if race.verifier.missing().is_empty() {
                        self.leave(race);
                        return Ok(());
                    }
                    if was_newest || race.running.is_empty() {
                        race.ask_next();
                    }
                }
                Event::Mute => race.ask_more(),
                Event::Slow if self.budget.spend() => race.hedge(),
                Event::Slow if race.newest_age() >= STALLED => race.hedge(),
                Event::Slow => race.slow_at += STALLED,
            }
        }
    }

    /// Has the mirror that is asked first get ready for a reader of a whole tree ([`crate::BlockStore::prepare`]).
    pub async fn prepare(&self, most_bytes: u64) {
        let order = self.order(None, Instant::now());
        if let Some(first) = order.turns.front() {
            first.replica.prepare(most_bytes).await;
        }
    }

    /// Decides which mirrors are asked, and in what order: for a request that counts `load_bytes`, or for a small one.
    fn order(&self, load_bytes: Option<u64>, now: Instant) -> Order {
        let mut ready = Vec::with_capacity(self.mirrors.len());
        let (mut due, mut liars) = (Vec::new(), Vec::new());
        let mut order = Order {
            turns: VecDeque::new(),
            due: None,
            silent: VecDeque::new(),
            out: Vec::new(),
        };
        // A single mirror is always asked.
        if let [lone] = self.mirrors.as_slice() {
            order.turns.push_back(lone.clone());
            return order;
        }
        for mirror in &self.mirrors {
            let state = mirror.state();
            match state.breaker.set_aside(now) {
                None if state.breaker.is_due() => due.push(mirror),
                None => ready.push((mirror.rank(&state, load_bytes, now), mirror)),
                // Wrong answers are detected, so such a mirror is better than none.
                Some((_, Cause::Lie)) => liars.push(mirror),
                Some((_, Cause::Newer)) => order.out.push(Fault::Unsupported {
                    cause: state.last_fault.clone().unwrap_or_default(),
                }),
                Some((left, _)) => {
                    let fault = state.last_fault.as_deref().unwrap_or("it failed recently");
                    order.out.push(Fault::Failed {
                        place: mirror.place().to_owned(),
                        cause: format!("{fault}; next try in {:.1} s", left.as_secs_f32()),
                        may_pass: true,
                    });
                    order.silent.push_back(Arc::clone(mirror));
                }
            }
        }
        // The sort is stable: equal mirrors keep the order in which they were given.
        ready.sort_by_key(|(rank, _)| *rank);
        order
            .turns
            .extend(ready.into_iter().map(|(_, m)| m.clone()));
        // While a mirror is ready, no caller waits for one that is only due for a try.
        if !order.turns.is_empty() {
            order.due = due.first().map(|m| Arc::clone(m));
        }
        order.turns.extend(due.into_iter().cloned());
        order.turns.extend(liars.into_iter().cloned());
        order
    }

    /// Lets the lost requests go on in the background.
    fn leave(&self, race: Race) {
        let Race {
            running, verifier, ..
        } = race;
        for asked in running {
            if self.leftovers.fetch_add(1, Ordering::Relaxed) >= MAX_LEFTOVERS {
                self.leftovers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let leftovers = self.leftovers.clone();
            let verifier = verifier.clone();
            tokio::spawn(async move {
                if let Ok(answered) = timeout(LEFTOVER, asked).await {
                    answered.settle(verifier.as_ref());
                }
                leftovers.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}
