//! Several replicas of one volume as one place to ask: who is asked first, who next, and when.
//!
//! None is trusted, and who asks checks what comes ([`Taker`]). Here it is decided
//! - in which **order** mirrors are asked: by the time that an answer is expected to take, those
//!   behind the newest version and those that often deny later ([`score`]);
//! - when to **fail over**: at once on a failure, a denial or a wrong block, for the blocks that are
//!   still missing and no others;
//! - when to **hedge**: an answer that takes longer than nineteen of twenty did is asked for a second
//!   time elsewhere, at most once in twenty requests;
//! - who is **set aside** for a while: the dead, the stalled, the liars ([`breaker`]). Their next try
//!   rides along with a request that another mirror answers, so that nobody waits for it. With all
//!   of several mirrors dead a request fails at once until the next try is due; a lone mirror is
//!   always asked.
//!
//! A request that lost a race is left to end by itself, within a bound: its answer is on its way
//! anyway, its duration is worth knowing, and a wrong block in it is evidence like any other.
//! Design: `publish.md`, *Client*.

mod breaker;
mod budget;
mod race;
mod score;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout};
use trust::{Handle, Record, Reject};

use crate::{BlockStore, Replica, StoreError};
use breaker::{Breaker, Cause};
use budget::Budget;
use race::{Event, Race, cause_of};
use score::Score;

/// How long a request that lost a race may go on.
const LEFTOVER: Duration = Duration::from_secs(10);
/// Whoever is silent for so long is not waited for, whatever the budget for hedges says.
const STALLED: Duration = Duration::from_secs(1);
/// Requests that lost a race and may go on at a time; further ones are dropped.
const MAX_LEFTOVERS: u64 = 64;

/// Who checks what mirrors answer, and keeps what is right.
pub trait Taker: Send + Sync + 'static {
    /// Checks the records of one answer and keeps the right ones; gives back what is wrong.
    fn take(&self, replica: &dyn BlockStore, records: Vec<Record>) -> Vec<(Handle, Reject)>;

    /// What is still to be had; empty ends the request.
    fn missing(&self) -> Vec<Handle>;
}

/// What one mirror did wrong about one request.
#[derive(Debug)]
pub enum Fault {
    /// It gave something that is not what was asked for.
    Wrong {
        /// The mirror.
        place: String,
        /// Which check failed.
        why: Reject,
    },
    /// It failed to answer, or was not asked because it failed lately.
    Failed {
        /// The mirror.
        place: String,
        /// What happened.
        cause: String,
    },
    /// It does not have this many of the blocks.
    Denied {
        /// The mirror.
        place: String,
        /// How many.
        blocks: usize,
    },
}

/// How a mirror does, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Its name.
    pub place: String,
    /// The time that a small answer is expected to take, if any came.
    pub latency: Option<Duration>,
    /// Set aside for so long still, and why.
    pub set_aside: Option<(Duration, String)>,
    /// Its head is behind the version in use.
    pub behind: bool,
    /// What was asked and what came of it.
    pub counts: Counts,
    /// The last fault, in words.
    pub last_fault: Option<String>,
}

/// What a mirror was asked, and what came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests for blocks.
    pub requests: u64,
    /// Requests without an answer, or with one too late.
    pub failures: u64,
    /// Blocks that were not what was asked for, and answers that were none.
    pub wrong: u64,
    /// Requests of which it denied a block.
    pub denials: u64,
    /// Requests that were sent to it because another mirror was slow, or to try it again.
    pub hedges: u64,
}

#[derive(Debug, Default)]
struct Tallies {
    score: Score,
    breaker: Breaker,
    counts: Counts,
    last_fault: Option<String>,
    /// Why it brought no head that could be used, when last asked.
    refused: Option<String>,
    /// The requests under way, by ticket.
    outstanding: BTreeMap<u64, Sent>,
    tickets: u64,
}

/// When a request was sent, and when its answer is slow and overdue.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    slow: Instant,
    overdue: Instant,
}

impl Tallies {
    fn sent(&mut self, blocks: usize) -> (u64, Sent) {
        let at = Instant::now();
        let sent = Sent {
            at,
            slow: at + self.score.patience(blocks),
            overdue: at + self.score.overdue_after(blocks),
        };
        self.counts.requests += 1;
        self.tickets += 1;
        self.outstanding.insert(self.tickets, sent);
        (self.tickets, sent)
    }

    /// How long the oldest of the slow answers has been waited for.
    fn waiting(&self, now: Instant) -> Duration {
        let slow = self.outstanding.values().filter(|sent| sent.slow <= now);
        let oldest = slow.map(|sent| sent.at).min();
        oldest.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }
}

struct Mirror {
    replica: Arc<dyn Replica>,
    behind: AtomicBool,
    tallies: Mutex<Tallies>,
}

impl Mirror {
    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> &str {
        self.replica.place()
    }

    /// What orders mirrors that are ready: first whether they are behind, then the time to wait,
    /// which is at least as long as a slow answer has been waited for.
    fn rank(&self, tallies: &Tallies, now: Instant) -> (bool, Duration) {
        let behind = self.behind.load(Ordering::Relaxed);
        (
            behind,
            tallies.score.expected_wait().max(tallies.waiting(now)),
        )
    }

    /// An answer came after `elapsed`.
    fn answered(&self, handles: usize, elapsed: Duration) {
        let mut tallies = self.tallies();
        tallies.score.answered(handles, elapsed);
        tallies.breaker.good(Instant::now());
    }

    fn faulty(&self, cause: Cause, words: String) {
        let mut tallies = self.tallies();
        match cause {
            Cause::Outage | Cause::Stall => tallies.counts.failures += 1,
            Cause::Lie => tallies.counts.wrong += 1,
        }
        tallies.breaker.bad(cause, Instant::now());
        tallies.last_fault = Some(words);
    }
}

/// Mirrors of one volume.
pub struct Mirrors {
    mirrors: Vec<Arc<Mirror>>,
    budget: Budget,
    leftovers: Arc<AtomicU64>,
}

impl std::fmt::Debug for Mirrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let places = self.mirrors.iter().map(|m| m.place());
        f.debug_list().entries(places).finish()
    }
}

/// Who is to be asked, in this order.
struct Order {
    /// To be asked one after the other.
    turns: VecDeque<Arc<Mirror>>,
    /// Was set aside and is due for another try, beside the first.
    due: Option<Arc<Mirror>>,
    /// Those left out, with the reason.
    out: Vec<Fault>,
}

impl Mirrors {
    /// Mirrors, in the order in which they are asked as long as nothing is known of them.
    pub fn new(replicas: Vec<Arc<dyn Replica>>) -> Mirrors {
        let mirror = |replica| {
            Arc::new(Mirror {
                replica,
                behind: AtomicBool::new(false),
                tallies: Mutex::default(),
            })
        };
        Mirrors {
            mirrors: replicas.into_iter().map(mirror).collect(),
            budget: Budget::default(),
            leftovers: Arc::default(),
        }
    }

    /// The replicas, in the order in which they were given.
    pub fn replicas(&self) -> impl Iterator<Item = &Arc<dyn Replica>> {
        self.mirrors.iter().map(|m| &m.replica)
    }

    /// How each mirror does.
    pub fn status(&self) -> Vec<Status> {
        let now = Instant::now();
        let one = |mirror: &Arc<Mirror>| {
            let tallies = mirror.tallies();
            Status {
                place: mirror.place().to_owned(),
                latency: tallies.score.latency(),
                set_aside: tallies.breaker.set_aside(now).map(|(left, cause)| {
                    let words = tallies.last_fault.clone();
                    (left, words.unwrap_or_else(|| cause.to_string()))
                }),
                behind: mirror.behind.load(Ordering::Relaxed),
                counts: tallies.counts,
                last_fault: tallies.last_fault.clone(),
            }
        };
        self.mirrors.iter().map(one).collect()
    }

    /// Says whether the head of the `index`th mirror is behind the version in use: it is then asked
    /// for blocks after the others.
    pub fn set_behind(&self, index: usize, behind: bool) {
        if let Some(mirror) = self.mirrors.get(index)
            && mirror.behind.swap(behind, Ordering::Relaxed)
            && !behind
        {
            mirror.tallies().score.forget_denials();
        }
    }

    /// Says why the head of the `index`th mirror cannot be used, or that it can. Whether that was
    /// different before.
    pub fn is_news(&self, index: usize, refused: Option<String>) -> bool {
        let Some(mirror) = self.mirrors.get(index) else {
            return false;
        };
        let mut tallies = mirror.tallies();
        let is_news = tallies.refused != refused;
        tallies.refused = refused;
        is_news
    }

    /// Says that the `index`th mirror told something refused, or promised what it does not give.
    pub fn told_wrong(&self, index: usize, words: String) {
        if let Some(mirror) = self.mirrors.get(index) {
            mirror.faulty(Cause::Lie, words);
        }
    }

    /// Asks every mirror for its head, set aside or not, for a reader who goes `toward` a path (see
    /// [`Replica::head_toward`]). Those that have not answered `patience`
    /// after the first good answer are not waited for; what they say is then not known.
    pub async fn heads(
        &self,
        toward: Option<&[u8]>,
        patience: Duration,
    ) -> Vec<(usize, Result<Bytes, StoreError>)> {
        let mut running: FuturesUnordered<_> = self
            .mirrors
            .iter()
            .enumerate()
            .map(|(index, mirror)| async move {
                let started = Instant::now();
                let answer = match toward {
                    Some(path) => mirror.replica.head_toward(path).await,
                    None => mirror.replica.head().await,
                };
                match &answer {
                    Ok(_) => mirror.answered(1, started.elapsed()),
                    Err(error) => mirror.faulty(cause_of(error), error.to_string()),
                }
                (index, answer)
            })
            .collect();
        let mut heads = Vec::with_capacity(self.mirrors.len());
        let mut until: Option<Instant> = None;
        loop {
            let next = match until {
                None => running.next().await,
                Some(until) => match tokio::time::timeout_at(until, running.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            let Some((index, answer)) = next else { break };
            if answer.is_ok() {
                until.get_or_insert_with(|| Instant::now() + patience);
            }
            heads.push((index, answer));
        }
        heads.sort_by_key(|(index, _)| *index);
        heads
    }

    /// Asks one mirror after the other, and two at a time where the first is slow, until `taker`
    /// misses nothing. `around` is the budget for read-around, bytes.
    ///
    /// # Errors
    /// What each mirror did wrong, when all that may be asked were asked. There is no deadline
    /// here: the caller drops the future.
    pub async fn fetch(&self, around: usize, taker: Arc<dyn Taker>) -> Result<(), Vec<Fault>> {
        let order = self.order(Instant::now());
        let mut race = Race {
            taker,
            around,
            turns: order.turns,
            running: FuturesUnordered::new(),
            newest: 0,
            slow_at: Instant::now(),
            faults: order.out,
        };
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
                    if race.taker.missing().is_empty() {
                        self.leave(race);
                        return Ok(());
                    }
                    if was_newest || race.running.is_empty() {
                        race.ask_next();
                    }
                }
                Event::Slow if self.budget.spend() => race.hedge(),
                Event::Slow if race.newest_age() >= STALLED => race.hedge(),
                Event::Slow => race.slow_at += STALLED,
            }
        }
    }

    /// Who is asked, and in what order.
    fn order(&self, now: Instant) -> Order {
        let mut ready = Vec::with_capacity(self.mirrors.len());
        let (mut due, mut liars) = (Vec::new(), Vec::new());
        let mut order = Order {
            turns: VecDeque::new(),
            due: None,
            out: Vec::new(),
        };
        // There is nobody to spare a lone mirror for.
        if let [lone] = self.mirrors.as_slice() {
            order.turns.push_back(lone.clone());
            return order;
        }
        for mirror in &self.mirrors {
            let tallies = mirror.tallies();
            match tallies.breaker.set_aside(now) {
                None if tallies.breaker.is_due() => due.push(mirror),
                None => ready.push((mirror.rank(&tallies, now), mirror)),
                // Whoever lies can do no harm: better than nobody.
                Some((_, Cause::Lie)) => liars.push(mirror),
                Some((left, _)) => {
                    let fault = tallies.last_fault.as_deref().unwrap_or("it failed lately");
                    order.out.push(Fault::Failed {
                        place: mirror.place().to_owned(),
                        cause: format!("{fault}; next try in {:.1} s", left.as_secs_f32()),
                    });
                }
            }
        }
        // The sort is stable: among equals the order is that in which the mirrors were given.
        ready.sort_by_key(|(rank, _)| *rank);
        order
            .turns
            .extend(ready.into_iter().map(|(_, m)| m.clone()));
        // Nobody waits for whoever is due while somebody is ready.
        if !order.turns.is_empty() {
            order.due = due.first().map(|m| Arc::clone(m));
        }
        order.turns.extend(due.into_iter().cloned());
        order.turns.extend(liars.into_iter().cloned());
        order
    }

    /// Lets the requests that lost end by themselves.
    fn leave(&self, race: Race) {
        let Race { running, taker, .. } = race;
        for asked in running {
            if self.leftovers.fetch_add(1, Ordering::Relaxed) >= MAX_LEFTOVERS {
                self.leftovers.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let leftovers = self.leftovers.clone();
            let taker = taker.clone();
            tokio::spawn(async move {
                if let Ok(answered) = timeout(LEFTOVER, asked).await {
                    answered.settle(taker.as_ref());
                }
                leftovers.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}
