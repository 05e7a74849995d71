//! How long one more large request would take at a mirror that is busy with others.
//!
//! The time is the bytes that are under way there, divided by the bytes that the mirror sends in a second. Each request
//! goes to the mirror with the shortest time (least expected completion), so a mirror that is farther away or slower
//! also gets some. The rate is measured. It falls slowly, because a mirror that is asked for little sends little.

use std::time::Duration;

use tokio::time::Instant;

/// A request for so many blocks or bytes is large.
const LARGE_BLOCKS: usize = 16;
const LARGE_BYTES: u64 = 256 << 10;
/// What a block counts for if its length is not known, bytes.
const BLOCK_BYTES: u64 = 8 << 10;
/// The rate of a mirror is measured over this time.
const WINDOW: Duration = Duration::from_millis(250);
/// Patience with a mirror whose rate is not known.
const PATIENCE_AT_FIRST: Duration = Duration::from_secs(2);
/// Patience with any mirror, at most.
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// In each window the rate falls to this part of the earlier one at most.
const KEPT: f64 = 0.75;
/// The first answers say something of the line if they have so many bytes. Shorter ones only say how far the mirror is.
const FIRST_BYTES: u64 = 64 << 10;

/// The load of a large request for `blocks` of together `most_bytes` of plaintext, bytes; `None` if it is not large.
pub(super) fn load_bytes(blocks: usize, most_bytes: Option<u64>) -> Option<u64> {
    let bytes = most_bytes.unwrap_or(blocks as u64 * BLOCK_BYTES);
    (blocks >= LARGE_BLOCKS || bytes >= LARGE_BYTES).then_some(bytes)
}

/// The large requests to one mirror.
#[derive(Debug, Default)]
pub(super) struct Load {
    under_way_bytes: u64,
    /// Bytes that it sends in a second; `None` before the first answer.
    rate: Option<f64>,
    /// The start of the current window, and the bytes that came in it.
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

    /// A request of this load has ended; `came_bytes`: what came, if it was answered in full. That may be much less than the
    /// load, which counts blocks of unknown length as long ones.
    pub(super) fn ended(&mut self, load_bytes: u64, came_bytes: Option<u64>, now: Instant) {
        self.under_way_bytes = self.under_way_bytes.saturating_sub(load_bytes);
        if self.under_way_bytes == 0 {
            self.idle_since = Some(now);
        }
        let Some((came_bytes, (since, came))) = came_bytes.zip(self.window.as_mut()) else {
            return;
        };
        *came = came.saturating_add(came_bytes);
        let elapsed = now.saturating_duration_since(*since);
        let is_first = self.rate.is_none() && *came >= FIRST_BYTES;
        if elapsed >= WINDOW || is_first {
            let rate = *came as f64 / elapsed.as_secs_f64().max(1e-3);
            self.rate = Some(self.rate.map_or(rate, |old| rate.max(old * KEPT)));
            self.window = Some((now, 0));
        }
    }

    /// How long an answer may take before the same blocks are asked for elsewhere. Less would fill two lines with them.
    pub(super) fn patience(&self, bytes: u64, now: Instant) -> Duration {
        let known = self.rate.map(|_| self.expected(bytes, now));
        known.map_or(PATIENCE_AT_FIRST, |wait| {
            wait.saturating_mul(2).min(MOST_PATIENCE)
        })
    }

    /// How long one more request is expected to take. A mirror with an unknown rate gets one request, which measures it. The
    /// time of an idle mirror falls, so that its rate is measured again.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// A mirror that has answered a request for a load with so many bytes, in so many milliseconds.
    fn measured(load_bytes: u64, came_bytes: u64, ms: u64) -> (Load, Instant) {
        let (mut load, began) = (Load::default(), Instant::now());
        load.sent(load_bytes, began);
        let ended = began + Duration::from_millis(ms);
        load.ended(load_bytes, Some(came_bytes), ended);
        (load, ended)
    }

    fn expected_ms(load: &Load, bytes: u64, now: Instant) -> u128 {
        load.expected(bytes, now).as_millis()
    }

    #[test]
    fn what_is_under_way_divided_by_the_rate_is_the_time() {
        let (mut load, now) = measured(MB, MB, 1000);
        assert_eq!(expected_ms(&load, MB, now), 1000);
        load.sent(2 * MB, now);
        assert_eq!(expected_ms(&load, MB, now), 3000);
        // Patience is twice that, with bounds.
        assert_eq!(load.patience(MB, now), Duration::from_secs(6));
        assert_eq!(load.patience(MB / 10, now), Duration::from_millis(4200));
        assert_eq!(load.patience(100 * MB, now), MOST_PATIENCE);
        assert_eq!(Load::default().patience(MB, now), PATIENCE_AT_FIRST);
    }

    #[test]
    fn rate_is_of_bytes_that_came_and_not_of_the_load() {
        let (load, now) = measured(10 * MB, MB / 2, 500);
        assert_eq!(expected_ms(&load, MB, now), 1000);
        // A short answer says nothing of the line, unless it takes long.
        let (load, now) = measured(10 * MB, 4000, 10);
        assert_eq!(load.expected(MB, now), Duration::ZERO);
        let (load, now) = measured(10 * MB, 4000, 400);
        assert_eq!(expected_ms(&load, 10_000, now), 1000);
    }

    #[test]
    fn idle_mirror_is_expected_to_answer_earlier_and_earlier() {
        let (mut load, now) = measured(MB, MB, 1000);
        let later = now + Duration::from_secs(3);
        assert_eq!(expected_ms(&load, MB, later), 250);
        load.sent(MB, later);
        assert_eq!(expected_ms(&load, MB, later), 2000);
    }

    #[test]
    fn rate_rises_at_once_and_falls_slowly() {
        let (mut load, mut now) = measured(MB, MB, 100);
        let mut times = Vec::new();
        for _ in 0..3 {
            load.sent(MB, now);
            now += Duration::from_secs(1);
            load.ended(MB, Some(MB), now);
            times.push(expected_ms(&load, MB, now));
        }
        assert_eq!(times, [133, 177, 237]);
        load.sent(MB, now);
        now += Duration::from_millis(250);
        load.ended(MB, Some(10 * MB), now);
        assert_eq!(expected_ms(&load, MB, now), 25);
    }
}
