//! How fast a client takes what it asked for. A client that the server has to wait for must take a
//! minimum in each window; some progress is not enough, or a patient client would hold memory for ever.

use std::time::Duration;

use tokio::time::Instant;

use crate::net::limits::Limits;

/// The pace of one client. A window is [`Limits::write_timeout`] of waiting; the time in which the
/// server does not wait for the client does not count.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    waited: Duration,
    taken_bytes: u64,
    /// Since when the server waits for the client.
    since: Option<Instant>,
    /// How much longer the server has waited than the least pace needs for what the client took.
    debt: Duration,
}

impl Pace {
    /// The client takes no more for now. Returns when the window ends unless it does.
    pub(crate) fn wait(&mut self, limits: &Limits) -> Instant {
        if self.waited.is_zero() && self.since.is_none() {
            self.taken_bytes = 0;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        since + limits.write_timeout.saturating_sub(self.waited)
    }

    /// The client took bytes.
    pub(crate) fn took(&mut self, bytes: usize, limits: &Limits) {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes as u64);
        if let Some(since) = self.since.take() {
            let waited = since.elapsed();
            self.waited = self.waited.saturating_add(waited);
            self.debt = self.debt.saturating_add(waited);
        }
        self.debt = self.debt.saturating_sub(limits.time_for(bytes));
    }

    /// Since when the client owes, as if it had taken nothing since then (see `debtors`); `None` when the server
    /// does not wait for it.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        let since = self.since?;
        Some(since.checked_sub(self.debt).unwrap_or(since))
    }

    /// Whether the server waits for the client.
    pub(crate) fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// Ends the window if its time is over; false when the client took too little in it.
    pub(crate) fn keeps_up(&mut self, limits: &Limits) -> bool {
        let running = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let waited = self.waited.saturating_add(running);
        if waited < limits.write_timeout {
            return true;
        }
        let least = limits.min_bytes_per_second as f64 * waited.as_secs_f64();
        let enough = self.taken_bytes as f64 >= least;
        self.waited = Duration::ZERO;
        self.taken_bytes = 0;
        if let Some(since) = &mut self.since {
            self.debt = self.debt.saturating_add(since.elapsed());
            *since = Instant::now();
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;

    fn limits() -> Limits {
        Limits {
            write_timeout: Duration::from_secs(10),
            min_bytes_per_second: 1000,
            ..Limits::default()
        }
    }

    /// Lets a client take `bytes` each `step`; returns how long it is served, an hour at most.
    async fn served(bytes: usize, step: Duration) -> Duration {
        let (limits, mut pace) = (limits(), Pace::default());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3600) {
            let takes = Instant::now() + step;
            loop {
                let until = pace.wait(&limits);
                sleep_until(until.min(takes)).await;
                if !pace.keeps_up(&limits) {
                    return began.elapsed();
                }
                if Instant::now() >= takes {
                    break;
                }
            }
            pace.took(bytes, &limits);
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn progress_alone_is_not_enough() {
        let (tick, second) = (Duration::from_millis(100), Duration::from_secs(1));
        for (bytes, step) in [(0, second), (1, second), (90, tick), (900, second)] {
            let served = served(bytes, step).await;
            assert!(served >= 9 * second && served <= 21 * second, "{served:?}");
        }
        assert!(served(1200, second).await >= 3600 * second);
        assert!(served(120, tick).await >= 3600 * second);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_for_the_client_does_not_count() {
        let (limits, mut pace) = (limits(), Pace::default());
        for _ in 0..100 {
            pace.wait(&limits);
            advance(Duration::from_millis(50)).await;
            pace.took(100, &limits);
            advance(Duration::from_secs(60)).await;
            assert!(pace.keeps_up(&limits));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_quickly_before_buys_no_time() {
        let (limits, mut pace) = (limits(), Pace::default());
        pace.took(1 << 40, &limits);
        pace.wait(&limits);
        advance(Duration::from_secs(11)).await;
        assert!(!pace.keeps_up(&limits));
    }

    #[tokio::test(start_paused = true)]
    async fn debt_grows_with_what_is_not_taken_and_is_paid_by_what_is() {
        let (limits, mut pace) = (limits(), Pace::default());
        let second = Duration::from_secs(1);
        let owes = |pace: &Pace| pace.owes_since().map(|since| since.elapsed());
        pace.took(1 << 40, &limits);
        assert_eq!(owes(&pace), None);
        pace.wait(&limits);
        advance(3 * second).await;
        assert_eq!(owes(&pace), Some(3 * second), "nothing is paid before");
        pace.took(1000, &limits);
        assert_eq!(owes(&pace), None);
        advance(60 * second).await;
        pace.wait(&limits);
        assert_eq!(owes(&pace), Some(2 * second), "only waiting counts");
        advance(20 * second).await;
        pace.keeps_up(&limits);
        assert_eq!(owes(&pace), Some(22 * second), "a new window pays nothing");
        pace.took(22_000, &limits);
        pace.wait(&limits);
        assert_eq!(owes(&pace), Some(Duration::ZERO));
    }
}
