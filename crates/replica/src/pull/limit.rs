//! A limit of the bandwidth that is received. Each answer is charged when it has arrived, so its size need
//! not be guessed. A request waits until everything received before fits into the rate. Idle time earns no
//! credit.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Smallest size of one request under a limit, bytes.
const MIN_REQUEST_BYTES: u64 = 64 << 10;
/// Requests take at most this part of a second's allowance.
const REQUESTS_PER_SECOND: u64 = 8;

/// The limit; without a rate it does nothing.
#[derive(Debug)]
pub(crate) struct Limit {
    bytes_per_second: Option<u64>,
    paid_until: Mutex<Option<Instant>>,
}

impl Limit {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Limit {
        Limit {
            bytes_per_second: bytes_per_second.map(|rate| rate.max(1)),
            paid_until: Mutex::new(None),
        }
    }

    /// How much one request should ask for under this limit instead of `usual`, bytes.
    pub(crate) fn request_bytes(&self, usual: u64) -> u64 {
        match self.bytes_per_second {
            None => usual,
            Some(rate) => usual.min((rate / REQUESTS_PER_SECOND).max(MIN_REQUEST_BYTES)),
        }
    }

    /// How many requests may be under way under this limit instead of `usual`.
    pub(crate) fn requests(&self, usual: usize) -> usize {
        match self.bytes_per_second {
            None => usual,
            Some(_) => usual.min(2),
        }
    }

    /// Waits until everything received so far fits into the rate.
    pub(crate) async fn wait(&self) {
        loop {
            let until = *self.lock();
            match until {
                Some(until) if until > Instant::now() => {
                    tokio::time::sleep_until(until.into()).await;
                }
                _ => return,
            }
        }
    }

    /// Charges received bytes.
    pub(crate) fn pay(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second else {
            return;
        };
        let mut until = self.lock();
        let from = until.map_or_else(Instant::now, |until| until.max(Instant::now()));
        *until = Some(from + Duration::from_secs_f64(bytes as f64 / rate as f64));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.paid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn receiving_is_no_faster_than_the_limit() {
        let limit = Limit::new(Some(1_000_000));
        let began = Instant::now();
        for _ in 0..10 {
            limit.wait().await;
            limit.pay(10_000);
        }
        limit.wait().await;
        assert!(began.elapsed() >= Duration::from_millis(100));
        assert_eq!(limit.request_bytes(4 << 20), 125_000);
        assert_eq!(Limit::new(None).request_bytes(4 << 20), 4 << 20);
    }
}
