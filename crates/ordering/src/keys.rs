//! Keys of devices, ready to verify: to read a key costs a quarter of a verification, and a machine meets the same
//! devices again and again. It holds keys of the last devices that it was asked for, some 900 KiB at most.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use trust::Reject;
use trust::device::{DeviceKey, KnownDevice};

/// Keys that are kept. Volumes have fewer devices that write.
const MOST: usize = 4096;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Keys {
    known: RwLock<HashMap<DeviceKey, KnownDevice>>,
}

impl Keys {
    /// The device with its key.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for bytes that are no key.
    pub fn of(&self, device: DeviceKey) -> Result<KnownDevice, Reject> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&device) {
            return Ok(*known);
        }
        drop(known);
        let new = KnownDevice::new(device)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(device, new);
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::key::SecretKey;

    #[test]
    fn keys_are_kept_up_to_a_bound() {
        let keys = Keys::default();
        let device = |seed: u32| {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&seed.to_le_bytes());
            DeviceKey::from(&SecretKey::from_seed(&bytes).public())
        };
        for seed in 0..MOST as u32 + 10 {
            assert_eq!(keys.of(device(seed)).unwrap().device(), device(seed));
        }
        let count = keys.known.read().unwrap().len();
        assert!(0 < count && count <= MOST, "{count}");
        assert!(keys.of(DeviceKey::from_bytes([0; 32])).is_err());
    }
}
