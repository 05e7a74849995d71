//! How long one more large request would take at a mirror that is busy with others.
//!
//! A mirror gives no more than its line and its disks. What waits there, divided by what it gives in a second, is how
//! long one more request takes; so a mirror that is farther away, or slower, gets the requests that would be answered
//! there earlier (least expected completion). What it gives is measured, and not less than what came lately: a mirror
//! that is asked for little gives little.

use std::time::Duration;

use tokio::time::Instant;

/// A request for so many blocks or bytes is large.
const LARGE_BLOCKS: usize = 16;
const LARGE_BYTES: u64 = 256 << 10;
/// What a block counts for if its length is not known, bytes.
const BLOCK_BYTES: u64 = 8 << 10;
/// How long it is counted what a mirror gives.
const WINDOW: Duration = Duration::from_millis(250);
/// What is slow until it is known what a mirror gives, and what always is.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(2);
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// The rate of an earlier time counts so much less for each window.
const KEPT: f64 = 0.9;

/// What counts for a request for `blocks` of together `most_bytes` of plaintext; `None` if it is not large.
pub(super) fn large_bytes(blocks: usize, most_bytes: Option<u64>) -> Option<u64> {
    let bytes = most_bytes.unwrap_or(blocks as u64 * BLOCK_BYTES);
    (blocks >= LARGE_BLOCKS || bytes >= LARGE_BYTES).then_some(bytes)
}

/// The large requests to one mirror.
#[derive(Debug, Default)]
pub(super) struct Load {
    under_way_bytes: u64,
    /// What it gives, bytes a second; `None` before the first answer.
    rate: Option<f64>,
    /// Since when it is counted what comes, and how many bytes came.
    window: Option<(Instant, u64)>,
    /// When the last answer came, if nothing is under way.
    idle_since: Option<Instant>,
}

impl Load {
    /// A request was sent.
    pub(super) fn sent(&mut self, bytes: u64, now: Instant) {
        if self.under_way_bytes == 0 {
            self.window = Some((now, 0));
            self.idle_since = None;
        }
        self.under_way_bytes = self.under_way_bytes.saturating_add(bytes);
    }

    /// A request has ended; `has_come`: with all that was asked for.
    pub(super) fn ended(&mut self, bytes: u64, has_come: bool, now: Instant) {
        self.under_way_bytes = self.under_way_bytes.saturating_sub(bytes);
        if self.under_way_bytes == 0 {
            self.idle_since = Some(now);
        }
        let Some((since, came)) = self.window.as_mut().filter(|_| has_come) else {
            return;
        };
        *came = came.saturating_add(bytes);
        let elapsed = now.saturating_duration_since(*since);
        if elapsed >= WINDOW || self.rate.is_none() {
            let rate = *came as f64 / elapsed.as_secs_f64().max(1e-3);
            self.rate = Some(self.rate.map_or(rate, |old| rate.max(old * KEPT)));
            self.window = Some((now, 0));
        }
    }

    /// After which time an answer is slow: who asks another mirror earlier fills both lines with the same blocks.
    pub(super) fn patience(&self, bytes: u64, now: Instant) -> Duration {
        let known = self.rate.map(|_| self.expected(bytes, now));
        known.map_or(PATIENCE_AT_FIRST, |wait| {
            wait.saturating_mul(2).min(MOST_PATIENCE)
        })
    }

    /// How long one more request takes, at least. A mirror of which nothing is known gets one, to find out; and what is
    /// known of an idle one counts less and less.
    pub(super) fn expected(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.rate else {
            return match self.under_way_bytes {
                0 => Duration::ZERO,
                _ => Duration::MAX,
            };
        };
        let idle = self
            .idle_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let all_bytes = self.under_way_bytes.saturating_add(bytes) as f64;
        let wait_s = all_bytes / rate.max(1.0) / (1.0 + idle.as_secs_f64());
        Duration::try_from_secs_f64(wait_s).unwrap_or(Duration::MAX)
    }
}
