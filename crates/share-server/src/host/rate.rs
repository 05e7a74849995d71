//! How much each device may send to the orderer: messages, and KiB of entries, with a burst.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trust::device::DeviceKey;

use ordering::orderer::Quotas;

/// Messages, or KiB, that a device may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In the long run.
    pub per_second: u32,
    /// At once, after a pause.
    pub burst: u32,
}

impl Default for Rate {
    fn default() -> Self {
        Rate {
            per_second: 2000,
            burst: 4000,
        }
    }
}

/// The accounts of devices that sent something lately.
#[derive(Debug, Clone)]
pub struct Rates {
    rate: Rate,
    /// When the device's account is even: so far ahead of now it has sent.
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

    fn allows_at(&mut self, device: DeviceKey, cost: u64, now: Instant) -> bool {
        let each = Duration::from_secs(1) / self.rate.per_second.max(1);
        let cost = each.saturating_mul(u32::try_from(cost).unwrap_or(u32::MAX));
        let burst = each.saturating_mul(self.rate.burst.max(1));
        let even = self.even.get(&device).map_or(now, |even| (*even).max(now));
        let (Some(even), Some(most)) = (even.checked_add(cost), now.checked_add(burst)) else {
            return false;
        };
        if even > most {
            return false;
        }
        self.even.insert(device, even);
        if self.even.len() > self.sweep_at {
            self.even.retain(|_, even| *even > now);
            self.sweep_at = FEW.max(2 * self.even.len());
        }
        true
    }
}

impl Quotas<DeviceKey> for Rates {
    fn allows(&mut self, device: DeviceKey, cost: u64) -> bool {
        self.allows_at(device, cost, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: u32) -> DeviceKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        DeviceKey::from_bytes(key)
    }

    #[test]
    fn device_may_send_a_burst_and_then_its_rate() {
        let rate = Rate {
            per_second: 10,
            burst: 20,
        };
        let (mut rates, now) = (Rates::new(rate), Instant::now());
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
    fn devices_that_are_silent_are_forgotten() {
        let (mut rates, now) = (Rates::new(Rate::default()), Instant::now());
        for number in 0..100_000 {
            let later = now + Duration::from_millis(number.into());
            assert!(rates.allows_at(device(number), 1, later));
        }
        assert!(rates.even.len() <= FEW + 1, "{}", rates.even.len());
    }
}
