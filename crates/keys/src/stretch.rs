//! A passphrase becomes a key: Argon2id, with bounds on what a stored cost may ask for.
//!
//! Costs are stored beside what they lock, in files and on devices that may be hostile. A cost above the bounds is
//! refused before any memory is taken.

use argon2::{Algorithm, Argon2, Params, Version};
use zeroize::Zeroizing;

/// Bytes of a salt.
pub(crate) const SALT_BYTES: usize = 16;

/// What a derivation costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes. They are computed one after the other.
    pub lanes: u32,
}

impl Cost {
    /// The cost for new keys. RFC 9106, second recommended choice: 64 MiB, 3 passes, 4 lanes.
    pub const NEW: Cost = Cost {
        memory_kib: 64 << 10,
        passes: 3,
        lanes: 4,
    };

    /// Whether the cost is within the bounds: at most 1 GiB and some seconds.
    pub fn is_bearable(&self) -> bool {
        let Cost {
            memory_kib,
            passes,
            lanes,
        } = *self;
        (1..=1 << 20).contains(&memory_kib)
            && (1..=16).contains(&passes)
            && (1..=16).contains(&lanes)
            && memory_kib >= 8 * lanes
    }

    /// KiB that a derivation writes: a measure of its time.
    pub fn work_kib(&self) -> u64 {
        u64::from(self.memory_kib).saturating_mul(self.passes.into())
    }

    /// The key for a passphrase.
    ///
    /// # Errors
    /// What argon2 says. A cost that is not bearable is always an error.
    pub fn derive(
        &self,
        passphrase: &[u8],
        salt: &[u8; SALT_BYTES],
    ) -> Result<Zeroizing<[u8; 32]>, String> {
        if !self.is_bearable() {
            return Err("the stored cost is out of bounds".to_owned());
        }
        let params = Params::new(self.memory_kib, self.passes, self.lanes, Some(32));
        let params = params.map_err(|e| e.to_string())?;
        let mut key = Zeroizing::new([0; 32]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(passphrase, salt, &mut *key)
            .map_err(|e| e.to_string())?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_out_of_bounds_is_refused_before_memory_is_taken() {
        let good = Cost {
            memory_kib: 64,
            passes: 1,
            lanes: 1,
        };
        assert!(good.derive(b"word", &[0; SALT_BYTES]).is_ok());
        for (memory_kib, passes, lanes) in [
            (0, 1, 1),
            ((1 << 20) + 1, 1, 1),
            (u32::MAX, 1, 1),
            (64, 0, 1),
            (64, 17, 1),
            (64, u32::MAX, 1),
            (64, 1, 0),
            (1 << 20, 1, 17),
            (64, 1, 9),
        ] {
            let cost = Cost {
                memory_kib,
                passes,
                lanes,
            };
            assert!(!cost.is_bearable(), "{cost:?}");
            assert!(cost.derive(b"word", &[0; SALT_BYTES]).is_err());
        }
    }
}
