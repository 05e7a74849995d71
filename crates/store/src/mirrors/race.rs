//! One request for blocks, sent to one or several mirrors: which requests are under way, which mirror
//! is next, and how each answer is judged.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use trust::{Handle, Record};

use super::breaker::Cause;
use super::load::load_bytes;
use super::{Fault, Mirror, ResponseVerifier, Sent};
use crate::{BoxFuture, StoreError};

/// What happened next in a race.
pub(super) enum Event {
    Answer(Answered),
    /// The one that was asked last takes long.
    Slow,
    /// Nothing has come from any of those that were asked.
    Mute,
    Nobody,
}

/// When nothing has come for so long, the mirrors that were asked are mute. A mirror that is known to be farther away gets
/// more time, and at most [`MOST_QUIET`].
const QUIET: Duration = Duration::from_millis(250);
const MOST_QUIET: Duration = Duration::from_secs(1);
/// Pause between the waves in which others are asked then. Each wave asks twice as many as the one before, so that 32 have
/// been asked after five.
const WAVE: Duration = Duration::from_millis(30);

/// One request for blocks, sent to one or several mirrors.
pub(super) struct Race {
    pub(super) verifier: Arc<dyn ResponseVerifier>,
    pub(super) around: usize,
    pub(super) turns: VecDeque<Arc<Mirror>>,
    pub(super) running: FuturesUnordered<Asked>,
    /// Ticket of the last request that was sent in turn.
    pub(super) newest: u64,
    /// When that request becomes slow.
    pub(super) slow_at: Instant,
    pub(super) faults: Vec<Fault>,
    /// How many mirrors the next wave asks.
    wave: usize,
    /// Not before this time.
    wave_at: Instant,
}

impl Race {
    /// A race in which the mirrors of `turns` are asked; `faults` are those of others.
    pub(super) fn new(
        verifier: Arc<dyn ResponseVerifier>,
        around: usize,
        turns: VecDeque<Arc<Mirror>>,
        faults: Vec<Fault>,
    ) -> Race {
        Race {
            verifier,
            around,
            turns,
            running: FuturesUnordered::new(),
            newest: 0,
            slow_at: Instant::now(),
            faults,
            wave: 1,
            wave_at: Instant::now(),
        }
    }

    pub(super) async fn event(&mut self) -> Event {
        if self.turns.is_empty() {
            let answered = self.running.next().await;
            return answered.map_or(Event::Nobody, Event::Answer);
        }
        loop {
            let mute_at = self.mute_at();
            let wake = mute_at.map_or(self.slow_at, |at| at.min(self.slow_at));
            match tokio::time::timeout_at(wake, self.running.next()).await {
                Ok(answered) => return answered.map_or(Event::Nobody, Event::Answer),
                Err(_) if self.mute_at().is_some_and(|at| at <= Instant::now()) => {
                    return Event::Mute;
                }
                Err(_) if self.slow_at <= Instant::now() => return Event::Slow,
                // Something has come in the meantime.
                Err(_) => {}
            }
        }
    }

    /// When all that were asked count as mute if nothing comes until then; `None` if one of them may be sending.
    fn mute_at(&self) -> Option<Instant> {
        let mut first: Option<Instant> = None;
        let mut heard_until = self.wave_at;
        for asked in &self.running {
            let sign = asked.mirror.replica.heard().map(Instant::from_std);
            if sign.is_none() && asked.sent.load_bytes.is_some() {
                return None;
            }
            let quiet = asked.mirror.state().score.patience(1);
            let quiet = quiet.clamp(QUIET, MOST_QUIET);
            let until = asked.sent.at + quiet;
            first = Some(first.map_or(until, |first| first.min(until)));
            if let Some(sign) = sign.filter(|sign| *sign > asked.sent.at) {
                heard_until = heard_until.max(sign + quiet);
            }
        }
        first.map(|first| first.max(heard_until))
    }

    /// Asks twice as many others as the last time.
    pub(super) fn ask_more(&mut self) {
        for _ in 0..self.wave {
            if let Some(next) = self.turns.front() {
                next.state().counts.hedges += 1;
            }
            self.ask_next();
        }
        self.wave = self.wave.saturating_mul(2);
        self.wave_at = Instant::now() + WAVE;
    }

    pub(super) fn newest_age(&self) -> Duration {
        let newest = self.running.iter().find(|a| a.ticket == self.newest);
        newest.map_or(Duration::MAX, |asked| asked.sent.at.elapsed())
    }

    pub(super) fn ask_next(&mut self) {
        if let Some(next) = self.turns.pop_front() {
            let asked = self.ask(next, self.around);
            self.newest = asked.ticket;
            self.slow_at = asked.sent.slow;
            self.running.push(asked);
        }
    }

    pub(super) fn hedge(&mut self) {
        if let Some(next) = self.turns.front() {
            next.state().counts.hedges += 1;
        }
        self.ask_next();
    }

    /// Tries a mirror again that failed, beside the one that is asked in turn.
    pub(super) fn ask_beside(&mut self, mirror: Arc<Mirror>) {
        self.turns.retain(|turn| !Arc::ptr_eq(turn, &mirror));
        mirror.state().counts.hedges += 1;
        let asked = self.ask(mirror, 0);
        self.running.push(asked);
    }

    fn ask(&self, mirror: Arc<Mirror>, around: usize) -> Asked {
        let want = self.verifier.missing();
        let most_bytes = self.verifier.most_bytes(&want);
        Asked::new(mirror, want, (around, most_bytes))
    }

    pub(super) fn settle(&mut self, answered: Answered) {
        self.faults.extend(answered.settle(self.verifier.as_ref()));
    }
}

/// A request to one mirror that is under way.
pub(super) struct Asked {
    ticket: u64,
    mirror: Arc<Mirror>,
    want: Vec<Handle>,
    sent: Sent,
    ended: bool,
    answer: BoxFuture<'static, Result<Vec<Record>, StoreError>>,
}

/// The answer of one mirror.
pub(super) struct Answered {
    pub(super) ticket: u64,
    mirror: Arc<Mirror>,
    want: Vec<Handle>,
    elapsed: Duration,
    answer: Result<Vec<Record>, StoreError>,
}

impl Asked {
    fn new(
        mirror: Arc<Mirror>,
        want: Vec<Handle>,
        (around, most_bytes): (usize, Option<u64>),
    ) -> Asked {
        let (ticket, sent) = mirror.sent(want.len(), load_bytes(want.len(), most_bytes));
        let (replica, handles) = (mirror.replica.clone(), want.clone());
        Asked {
            ticket,
            mirror,
            want,
            sent,
            ended: false,
            answer: Box::pin(async move {
                match most_bytes {
                    Some(most_bytes) => replica.get_within(&handles, around, most_bytes).await,
                    None => replica.get_many(&handles, around).await,
                }
            }),
        }
    }
}

impl Future for Asked {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        let Poll::Ready(answer) = self.answer.as_mut().poll(context) else {
            return Poll::Pending;
        };
        self.ended = true;
        let all = answer
            .as_ref()
            .ok()
            .filter(|records| records.len() >= self.want.len());
        let came_bytes = all.map(|records| records.iter().map(|record| record.len() as u64).sum());
        self.mirror.state().ended(self.ticket, came_bytes);
        Poll::Ready(Answered {
            ticket: self.ticket,
            mirror: self.mirror.clone(),
            want: std::mem::take(&mut self.want),
            elapsed: self.sent.at.elapsed(),
            answer,
        })
    }
}

impl Drop for Asked {
    /// A request that is dropped after its answer was overdue counts as a stall; otherwise nothing is
    /// recorded.
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.mirror.state().ended(self.ticket, None);
        if self.sent.overdue <= Instant::now() {
            let waited = self.sent.at.elapsed().as_secs_f32();
            let words = format!("no answer within {waited:.1} s");
            self.mirror.faulty(Cause::Stall, words);
        }
    }
}

impl Answered {
    /// Verifies the answer and records the result; returns what was wrong.
    pub(super) fn settle(self, verifier: &dyn ResponseVerifier) -> Vec<Fault> {
        let place = || self.mirror.place().to_owned();
        let records = match self.answer {
            Ok(records) => records,
            Err(error) => {
                // Once, and not for each request while it does not answer.
                let words = error.to_string();
                match self.mirror.faulty(cause_of(&error), words) || !error.may_pass() {
                    true => tracing::warn!(replica = self.mirror.place(), %error, "replica failed"),
                    false => tracing::debug!(replica = self.mirror.place(), %error, "still fails"),
                }
                return vec![match error {
                    StoreError::BadAnswer { place, why } => Fault::Wrong { place, why },
                    error @ StoreError::Unsupported { .. } => Fault::Unsupported {
                        cause: error.to_string(),
                    },
                    error => Fault::Failed {
                        place: place(),
                        cause: error.to_string(),
                        may_pass: error.may_pass(),
                    },
                }];
            }
        };
        self.mirror.answered(self.want.len(), self.elapsed);
        let came: HashSet<Handle> = records.iter().map(|r| r.handle).collect();
        let denied = self.want.iter().filter(|h| !came.contains(h)).count();
        let mut faults = Vec::new();
        for (handle, why) in verifier.verify(self.mirror.replica.as_ref(), records) {
            tracing::error!(replica = self.mirror.place(), %handle, %why, "wrong block");
            if faults.is_empty() {
                self.mirror
                    .faulty(Cause::Lie, format!("block {handle}: {why}"));
            }
            faults.push(Fault::Wrong {
                place: place(),
                why,
            });
        }
        let mut state = self.mirror.state();
        state.score.denied(denied > 0);
        if denied > 0 {
            state.counts.denials += 1;
            faults.push(Fault::Denied {
                place: place(),
                blocks: denied,
            });
        }
        faults
    }
}

pub(super) fn cause_of(error: &StoreError) -> Cause {
    match error {
        StoreError::BadAnswer { .. } => Cause::Lie,
        StoreError::Unsupported { .. } | StoreError::Format { .. } => Cause::Newer,
        _ => Cause::Outage,
    }
}
