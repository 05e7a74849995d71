//! Who signed: counting distinct keys of a role against its threshold, with a cache.
//!
//! The cache knows "this key made this signature over this message" and nothing else. Roles,
//! thresholds, policies and time are evaluated at each judgement by whoever asks.

use std::collections::{HashSet, VecDeque};

use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES};
use crate::statement::Signed;
use crate::statement::roles::Threshold;

/// How many verified signatures are remembered by default (about 100 bytes each).
pub const DEFAULT_CAPACITY: usize = 4096;

/// Signatures that were verified before; the oldest is forgotten first.
#[derive(Debug)]
pub struct Signatures {
    made: HashSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
    capacity: usize,
}

impl Default for Signatures {
    fn default() -> Self {
        Signatures::new(DEFAULT_CAPACITY)
    }
}

impl Signatures {
    /// A cache of at most `capacity` verified signatures; 0 remembers nothing.
    pub fn new(capacity: usize) -> Self {
        Signatures {
            made: HashSet::new(),
            order: VecDeque::new(),
            capacity,
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// Whether `key` made `signature` over `message`.
    pub fn made(
        &mut self,
        message: &[u8],
        key: &PublicKey,
        signature: &[u8; SIGNATURE_BYTES],
    ) -> bool {
        let name = fact(message, key, signature);
        if self.made.contains(&name) {
            return true;
        }
        if !key.verify(message, signature) {
            return false;
        }
        self.remember(name);
        true
    }

    fn remember(&mut self, name: [u8; 32]) {
        if self.capacity == 0 || !self.made.insert(name) {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.made.remove(&oldest);
        }
    }

    /// Requires that at least `role`'s threshold of its distinct keys signed.
    ///
    /// Signatures by other keys say nothing and are passed over; a bad signature in the name of a
    /// key that has the role is refused even where enough others are good.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] naming `whose` signatures are bad or too few.
    pub fn require(
        &mut self,
        signed: &Signed,
        role: &Threshold,
        whose: &'static str,
    ) -> Result<(), Reject> {
        let message = signed.statement().signed_message();
        let mut good = 0usize;
        for key in role.keys() {
            let Some(entry) = signed.by(key) else {
                continue;
            };
            if !self.made(&message, key, &entry.signature) {
                return Err(Reject::NotSigned(whose));
            }
            good = good.saturating_add(1);
        }
        if good < usize::from(role.needed()) {
            return Err(Reject::NotSigned(whose));
        }
        Ok(())
    }
}

/// A name for (message, key, signature): fixed lengths first, so that no two triples share bytes.
fn fact(message: &[u8], key: &PublicKey, signature: &[u8; SIGNATURE_BYTES]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("bulla 0 signature cache");
    hasher.update(key.as_bytes());
    hasher.update(signature);
    hasher.update(message);
    *hasher.finalize().as_bytes()
}
