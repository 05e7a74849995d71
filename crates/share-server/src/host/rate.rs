//! How much each device may do: bytes of messages, entries, and bytes of entries, each with a burst.
//!
//! Entries that are too many are turned away ([`Quotas`]). Bytes are *paid* afterwards: a message is carried out, and says how
//! long its sender rests then ([`Rates::pay`]). So nothing has to be kept for a sender that is too fast, and what an
//! answer costs may be known only when it is read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trust::device::DeviceKey;

use ordering::orderer::Quotas;

/// How much may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the long run, in a second.
    pub per_second: u64,
    /// At once, after a pause.
    pub burst: u64,
}

impl Rate {
    /// How long so much takes in the long run.
    fn time_for(self, amount: u64) -> Duration {
        let nanos = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The account of one who sends. It is even at an instant: so far ahead of now it has sent.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    rate: Rate,
    even: Instant,
}

impl Meter {
    /// An account that is even.
    pub fn new(rate: Rate, now: Instant) -> Meter {
        Meter { rate, even: now }
    }

    /// Counts what was done. Gives how long its owner rests before the next.
    pub fn pay(&mut self, amount: u64, now: Instant) -> Duration {
        let (even, rest) = paid(self.rate, self.even, amount, now);
        self.even = even;
        rest
    }
}

/// When an account is even after so much more, and how far beyond its burst it is.
fn paid(rate: Rate, even: Instant, amount: u64, now: Instant) -> (Instant, Duration) {
    let even = even.max(now);
    let even = even.checked_add(rate.time_for(amount)).unwrap_or(even);
    let ahead = even.saturating_duration_since(now);
    (even, ahead.saturating_sub(rate.time_for(rate.burst.max(1))))
}

/// The accounts of devices that sent something lately. They outlast a connection.
#[derive(Debug, Clone)]
pub struct Rates {
    rate: Rate,
    /// When the device's account is even.
    even: HashMap<DeviceKey, Instant>,
    /// Accounts at which those that are even are forgotten.
    sweep_at: usize,
}

/// Accounts that are kept without looking.
const FEW: usize = 1024;

impl Rates {
    pub(super) fn new(rate: Rate) -> Rates {
        Rates {
            rate,
            even: HashMap::new(),
            sweep_at: FEW,
        }
    }

    /// Counts what a device has done. Gives how long it rests before the next.
    pub(super) fn pay(&mut self, device: DeviceKey, amount: u64, now: Instant) -> Duration {
        let even = self.even.get(&device).copied().unwrap_or(now);
        let (even, rest) = paid(self.rate, even, amount, now);
        self.set(device, even, now);
        rest
    }

    fn allows_at(&mut self, device: DeviceKey, amount: u64, now: Instant) -> bool {
        let even = self.even.get(&device).copied().unwrap_or(now);
        let (even, beyond) = paid(self.rate, even, amount, now);
        if !beyond.is_zero() {
            return false;
        }
        self.set(device, even, now);
        true
    }

    fn set(&mut self, device: DeviceKey, even: Instant, now: Instant) {
        self.even.insert(device, even);
        if self.even.len() > self.sweep_at {
            self.even.retain(|_, even| *even > now);
            self.sweep_at = FEW.max(2 * self.even.len());
        }
    }
}

impl Quotas<DeviceKey> for Rates {
    fn allows(&mut self, device: DeviceKey, amount: u64) -> bool {
        self.allows_at(device, amount, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 10,
        burst: 20,
    };

    fn device(number: u32) -> DeviceKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        DeviceKey::from_bytes(key)
    }

    #[test]
    fn device_may_send_a_burst_and_then_its_rate() {
        let (mut rates, now) = (Rates::new(RATE), Instant::now());
        let mut sent = |number, at| {
            let all = (0..100).filter(|_| rates.allows_at(device(number), 1, at));
            all.count()
        };
        assert_eq!(sent(1, now), 20);
        assert_eq!(sent(2, now), 20);
        assert_eq!(sent(1, now + Duration::from_secs(1)), 10);
        assert_eq!(sent(1, now + Duration::from_secs(100)), 20);
    }

    #[test]
    fn who_has_done_too_much_rests_until_it_is_paid() {
        let (mut rates, now) = (Rates::new(RATE), Instant::now());
        assert_eq!(rates.pay(device(1), 20, now), Duration::ZERO);
        assert_eq!(rates.pay(device(1), 5, now), Duration::from_millis(500));
        // What nobody has rested for is not forgotten, however much it is.
        assert_eq!(
            rates.pay(device(1), 1000, now),
            Duration::from_millis(100_500)
        );
        assert_eq!(rates.pay(device(2), 1, now), Duration::ZERO);
        let later = now + Duration::from_millis(100_500);
        assert_eq!(rates.pay(device(1), 0, later), Duration::ZERO);
        assert_eq!(rates.pay(device(1), 1, later), Duration::from_millis(100));
        let mut meter = Meter::new(RATE, now);
        assert_eq!(meter.pay(30, now), Duration::from_secs(1));
        // A pause gives back no more than the burst.
        let later = now + Duration::from_secs(1000);
        assert_eq!(meter.pay(30, later), Duration::from_secs(1));
    }

    #[test]
    fn rates_of_a_gibibyte_count_every_byte() {
        let rate = Rate {
            per_second: 1 << 30,
            burst: 1,
        };
        let (mut meter, now) = (Meter::new(rate, Instant::now()), Instant::now());
        let rested = (0..1 << 10).map(|_| meter.pay(1 << 20, now)).max();
        let second = rested.unwrap().as_secs_f64();
        assert!((0.999..1.001).contains(&second), "{second}");
        assert!(meter.pay(u64::MAX, now) > Duration::from_secs(1 << 30));
    }

    #[test]
    fn devices_that_are_silent_are_forgotten() {
        let (mut rates, now) = (Rates::new(RATE), Instant::now());
        for number in 0..100_000 {
            let later = now + Duration::from_secs(number.into());
            assert!(rates.allows_at(device(number), 1, later));
        }
        assert!(rates.even.len() <= FEW + 1, "{}", rates.even.len());
    }
}
