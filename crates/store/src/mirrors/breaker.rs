//! Circuit breaker of a mirror. A mirror that fails, stalls or gives wrong answers is set aside for a time
//! that doubles with each further fault.

use std::time::Duration;

use tokio::time::Instant;

/// Number of successive outages without a pause: a connection may break. Stalls and wrong answers always
/// pause.
const FORGIVEN: u32 = 1;
/// The first pause after outages, and the longest.
const OUTAGE_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The first pause after a wrong answer, and the longest.
const LIE_PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// After so long without a wrong answer one of them is forgotten. It is longer than the longest pause, so a
/// mirror that lies whenever it is asked is never forgiven. Good answers do not count: a malicious mirror can
/// give as many as it likes.
const LIE_FORGOTTEN: Duration = Duration::from_secs(3600);
/// The pause after a mirror turned out to need a newer bulla. It is no fault and does not double.
const NEWER_PAUSE: Duration = Duration::from_secs(30);

/// Why a mirror is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It gave no answer.
    Outage,
    /// It was silent for too long.
    Stall,
    /// It gave a wrong block or an invalid answer.
    Lie,
    /// It speaks a later protocol or keeps a later format.
    Newer,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Cause::Outage => "it failed",
            Cause::Stall => "it stalled",
            Cause::Lie => "it gave a wrong answer",
            Cause::Newer => "it needs a newer bulla",
        })
    }
}

/// Breaker of one mirror.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    faults: u32,
    lies: u32,
    last_lie: Option<Instant>,
    until: Option<(Instant, Cause)>,
}

impl Breaker {
    /// Records a good answer. It does not end the pause after a wrong answer, because a malicious mirror can
    /// answer well in between.
    pub(super) fn good(&mut self, now: Instant) {
        self.faults = 0;
        let lied = |(until, cause)| cause == Cause::Lie && until > now;
        if !self.until.is_some_and(lied) {
            self.until = None;
        }
    }

    /// Records a fault.
    pub(super) fn bad(&mut self, cause: Cause, now: Instant) {
        let (count, (first, longest)) = match cause {
            Cause::Newer => (1, (NEWER_PAUSE, NEWER_PAUSE)),
            Cause::Lie => {
                let quiet = self
                    .last_lie
                    .replace(now)
                    .map_or(Duration::ZERO, |at| now - at);
                let forgotten = quiet.as_secs() / LIE_FORGOTTEN.as_secs();
                let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
                self.lies = self.lies.saturating_sub(forgotten).saturating_add(1);
                (self.lies, LIE_PAUSE)
            }
            Cause::Outage | Cause::Stall => {
                self.faults = self.faults.saturating_add(1);
                if cause == Cause::Outage && self.faults <= FORGIVEN {
                    return;
                }
                (self.faults.saturating_sub(FORGIVEN).max(1), OUTAGE_PAUSE)
            }
        };
        let doubled = first.saturating_mul(1 << (count - 1).min(16));
        let until = now + doubled.min(longest);
        if self.until.is_none_or(|(old, _)| old < until) {
            self.until = Some((until, cause));
        }
    }

    /// For how long it is still set aside, and why.
    pub(super) fn set_aside(&self, now: Instant) -> Option<(Duration, Cause)> {
        let (until, cause) = self.until?;
        (until > now).then(|| (until - now, cause))
    }

    /// Whether it was set aside and no good answer has come since. (The pause may be over.)
    pub(super) fn is_due(&self) -> bool {
        self.until.is_some()
    }
}
