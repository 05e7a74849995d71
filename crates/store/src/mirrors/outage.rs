//! Outages: no mirror that could answer does.
//!
//! An outage is not a failure while the caller has time. A server that restarts, refuses connections, breaks them off
//! or answers with 500s is asked again until the caller's deadline, with growing pauses. The pauses are jittered, so
//! that readers who lost one server at the same moment do not come back together. All requests to one volume share an
//! outage: they are asked again at the same times, and it is logged once.
//!
//! A place that answers and says that it does not have the volume, or that lies, is no outage
//! ([`StoreError::may_pass`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::StoreError;

/// The target of the event that says that requests wait: people want to know it at once.
pub const WAITS: &str = "bulla::waits";
/// The first pause before places are asked again, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Before a deadline, places are asked for the last time when so much is left of it.
const LAST_TRY: Duration = Duration::from_millis(100);

/// Growing, jittered pauses.
#[derive(Debug, Default)]
pub struct Pauses {
    count: u32,
}

impl Pauses {
    /// The next pause: from half of its length to one and a half.
    pub fn following(&mut self) -> Duration {
        let (first, longest) = PAUSE;
        let length = first.saturating_mul(1 << self.count.min(16)).min(longest);
        self.count = self.count.saturating_add(1);
        let mut random = [128u8; 1];
        // Without random bytes the pause has its length.
        let _ = getrandom::fill(&mut random);
        length.mul_f64(0.5 + f64::from(random[0]) / 255.0)
    }
}

/// Does `work`, and again after growing pauses while the place does not answer, until `until` is near. The caller holds
/// the deadline and drops the future.
///
/// # Errors
/// Those of `work`.
pub async fn through_outages<T, Work>(
    until: std::time::Instant,
    mut work: impl FnMut() -> Work,
) -> Result<T, StoreError>
where
    Work: Future<Output = Result<T, StoreError>>,
{
    let mut pauses = Pauses::default();
    loop {
        let error = match work().await {
            Err(error) if error.may_pass() => error,
            done => return done,
        };
        let again = Instant::now() + pauses.following();
        match again_before(again, until.into()) {
            Some(again) => tokio::time::sleep_until(again).await,
            None => return Err(error),
        }
    }
}

/// When to ask again before `until`; `None` if there is no time left.
pub(super) fn again_before(again: Instant, until: Instant) -> Option<Instant> {
    let last = until.checked_sub(LAST_TRY)?;
    (Instant::now() < last).then(|| again.min(last))
}

/// The outage of a volume's mirrors, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// For how long nobody has been able to read.
    pub lasts: Duration,
    /// What the mirrors say.
    pub cause: String,
}

/// The outage that all requests share.
#[derive(Debug, Default)]
pub(super) struct SharedOutage {
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    since: Instant,
    cause: String,
    pauses: Pauses,
    next: Instant,
}

impl SharedOutage {
    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No mirror answered; gives the time when they are asked again. Logs the begin.
    pub(super) fn goes_on(&self, cause: impl FnOnce() -> String) -> Instant {
        let (mut current, now) = (self.current(), Instant::now());
        match &mut *current {
            Some(outage) => {
                // The requests that failed together wait for the same time.
                if outage.next <= now {
                    outage.next = now + outage.pauses.following();
                    outage.cause = cause();
                }
                outage.next
            }
            None => {
                let (mut pauses, cause) = (Pauses::default(), cause());
                let next = now + pauses.following();
                tracing::warn!(
                    target: WAITS,
                    %cause,
                    "no location answers: what is read waits until its deadline"
                );
                *current = Some(Current {
                    since: now,
                    cause,
                    pauses,
                    next,
                });
                next
            }
        }
    }

    /// A mirror gave what was asked for.
    pub(super) fn ends(&self) {
        if let Some(outage) = self.current().take() {
            let lasted_s = outage.since.elapsed().as_secs_f32();
            tracing::info!(lasted_s, "a location answers again");
        }
    }

    pub(super) fn status(&self) -> Option<Outage> {
        self.current().as_ref().map(|outage| Outage {
            lasts: outage.since.elapsed(),
            cause: outage.cause.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_are_jittered() {
        let all: Vec<Vec<Duration>> = (0..20)
            .map(|_| {
                let mut pauses = Pauses::default();
                (0..40).map(|_| pauses.following()).collect()
            })
            .collect();
        for some in &all {
            for (at, pause) in some.iter().enumerate() {
                let middle = PAUSE.0.saturating_mul(1 << at.min(16)).min(PAUSE.1);
                assert!(*pause >= middle / 2, "{at}: {pause:?}");
                assert!(*pause <= middle * 3 / 2, "{at}: {pause:?}");
            }
        }
        assert!(all.iter().any(|some| some != &all[0]), "all are alike");
    }

    #[tokio::test(start_paused = true)]
    async fn last_try_is_shortly_before_the_deadline() {
        let now = Instant::now();
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(
            again_before(now + second, now + second * 9),
            Some(now + second)
        );
        assert_eq!(
            again_before(now + second, now + second),
            Some(now + 900 * ms)
        );
        assert_eq!(again_before(now + second, now + 100 * ms), None);
    }
}
