//! Counts the distinct keys of a role that signed, and compares with its threshold. Has a cache.
//!
//! The cache only knows "this key made this signature over this message". The caller evaluates roles,
//! thresholds, policies and time at each judgement.

use std::collections::{HashSet, VecDeque};

use crate::error::Reject;
use crate::key::{PublicKey, SIGNATURE_BYTES};
use crate::statement::Signed;
use crate::statement::roles::Threshold;
use crate::statement::tally::Tally;

/// Number of verified signatures in the cache by default (about 100 bytes each).
pub const DEFAULT_CAPACITY: usize = 4096;

/// Signatures that were verified before. The oldest is dropped first.
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
    /// A cache of at most `capacity` verified signatures; with 0 nothing is cached.
    pub fn new(capacity: usize) -> Self {
        Signatures {
            made: HashSet::new(),
            order: VecDeque::new(),
            capacity,
        }
    }

    /// Number of cached signatures.
    pub fn len(&self) -> usize {
        self.made.len()
    }

    /// Whether the cache is empty.
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
    /// Signatures by other keys and by keys of unknown algorithms are ignored. A bad signature that claims a key of the role is refused, even
    /// when enough others are good.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] naming `whose` signatures are bad or too few; [`Reject::Unsupported`] when they are
    /// too few and the role's known keys alone are too few as well.
    pub fn require(
        &mut self,
        signed: &Signed,
        role: &Threshold,
        whose: &'static str,
    ) -> Result<(), Reject> {
        let tally = self.tally(signed, role, whose)?;
        if !tally.is_enough() {
            return Err(role.too_few(whose));
        }
        Ok(())
    }

    /// Which of `role`'s keys signed. Signatures by others are passed over.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] naming `whose` for a bad signature that claims a key of the role.
    pub fn tally(
        &mut self,
        signed: &Signed,
        role: &Threshold,
        whose: &'static str,
    ) -> Result<Tally, Reject> {
        let message = signed.statement().signed_message();
        let mut tally = Tally {
            role: whose,
            needed: role.needed(),
            signed: Vec::new(),
            waiting: Vec::new(),
        };
        for key in role.keys() {
            let Some(entry) = signed.by(key) else {
                tally.waiting.push(*key);
                continue;
            };
            if !self.made(&message, key, &entry.signature) {
                return Err(Reject::NotSigned(whose));
            }
            tally.signed.push(*key);
        }
        Ok(tally)
    }
}

/// The cache key of (message, key, signature): fixed lengths first, so that no two triples give the same
/// bytes.
fn fact(message: &[u8], key: &PublicKey, signature: &[u8; SIGNATURE_BYTES]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("bulla 0 signature cache");
    hasher.update(key.as_bytes());
    hasher.update(signature);
    hasher.update(message);
    *hasher.finalize().as_bytes()
}
