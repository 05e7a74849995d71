//! Roles: which keys may sign what, and how many of them must (design `trees.md`, *Policy*).

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::key::PublicKey;

/// Most keys of one role.
pub const MAX_ROLE_KEYS: usize = 32;
/// Longest validity of a record under a new volume's policy, seconds: a leap year.
pub const DEFAULT_RECORD_MAX: u64 = 366 * 24 * 3600;

/// k distinct keys of n.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    needed: u8,
    keys: Vec<PublicKey>,
}

impl Threshold {
    /// `needed` of `keys`, in any order.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when a key comes twice, there are more than [`MAX_ROLE_KEYS`], or
    /// `needed` is more than there are.
    pub fn new(needed: u8, mut keys: Vec<PublicKey>) -> Result<Self, Reject> {
        keys.sort();
        Threshold { needed, keys }.checked()
    }

    /// One key alone.
    pub fn single(key: PublicKey) -> Self {
        Threshold {
            needed: 1,
            keys: vec![key],
        }
    }

    /// No keys: for roles that may be empty.
    pub fn none() -> Self {
        Threshold {
            needed: 0,
            keys: Vec::new(),
        }
    }

    /// How many of the keys must sign.
    pub fn needed(&self) -> u8 {
        self.needed
    }

    /// The keys, sorted, each once.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// Whether the role has no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn checked(self) -> Result<Self, Reject> {
        let bad = |why| Reject::Malformed {
            what: "policy role",
            why,
        };
        if self.keys.len() > MAX_ROLE_KEYS {
            return Err(bad("too many keys"));
        }
        if !self.keys.is_sorted_by(|a, b| a < b) {
            return Err(bad("keys not sorted, or one twice"));
        }
        if usize::from(self.needed) > self.keys.len() {
            return Err(bad("needs more keys than it has"));
        }
        Ok(self)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u8(self.needed).u8(self.keys.len() as u8);
        for key in &self.keys {
            out.raw(key.as_bytes());
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let (needed, count) = (d.u8()?, d.u8()?);
        let mut keys = Vec::new();
        // At most 255 keys before `checked` refuses them.
        for _ in 0..count {
            keys.push(PublicKey::from_bytes(d.array()?)?);
        }
        Threshold { needed, keys }.checked()
    }
}

/// Who may sign what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// Sign policies; kept offline.
    pub owners: Threshold,
    /// Sign root records.
    pub publishers: Threshold,
    /// Longest validity of a root record, seconds; at least 1. It bounds what a thief of their keys can sign.
    pub record_max: u64,
    /// Sign timestamps; when empty, no timestamp is needed.
    pub timestamps: Threshold,
    /// Longest validity of a timestamp, seconds; 0 when there are no timestamp keys.
    pub timestamp_max: u64,
    /// Sign checkpoints of the log. When empty, the publishers' keys do.
    pub log: Threshold,
    /// Cosign checkpoints of the log; with a threshold of 0, no cosignature is needed.
    pub witnesses: Threshold,
}

impl Roles {
    /// One key holds every role that must exist, as in a new volume.
    pub fn single(key: PublicKey) -> Self {
        Roles {
            owners: Threshold::single(key),
            publishers: Threshold::single(key),
            record_max: DEFAULT_RECORD_MAX,
            timestamps: Threshold::none(),
            timestamp_max: 0,
            log: Threshold::none(),
            witnesses: Threshold::none(),
        }
    }

    /// The keys that sign checkpoints of the log: the role's own, or the publishers'.
    pub fn log_keys(&self) -> &Threshold {
        match self.log.is_empty() {
            true => &self.publishers,
            false => &self.log,
        }
    }

    pub(crate) fn encode(&self, out: &mut Encoder) {
        self.owners.encode(out);
        self.publishers.encode(out);
        out.u64(self.record_max);
        self.timestamps.encode(out);
        out.u64(self.timestamp_max);
        self.log.encode(out);
        self.witnesses.encode(out);
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let roles = Roles {
            owners: Threshold::decode(d)?,
            publishers: Threshold::decode(d)?,
            record_max: d.u64()?,
            timestamps: Threshold::decode(d)?,
            timestamp_max: d.u64()?,
            log: Threshold::decode(d)?,
            witnesses: Threshold::decode(d)?,
        };
        if roles.owners.needed == 0 {
            return Err(d.bad("a policy that no owner need sign"));
        }
        if roles.publishers.needed == 0 {
            return Err(d.bad("a policy under which no publisher need sign"));
        }
        if roles.record_max == 0 {
            return Err(d.bad("a policy under which no record is valid"));
        }
        if (roles.log.needed == 0) != roles.log.is_empty() {
            return Err(d.bad("log keys of which none need sign"));
        }
        if (roles.timestamps.needed == 0) != roles.timestamps.is_empty() {
            return Err(d.bad("timestamp keys of which none need sign"));
        }
        if (roles.timestamp_max == 0) != roles.timestamps.is_empty() {
            return Err(d.bad("timestamp validity without keys, or keys without it"));
        }
        Ok(roles)
    }
}
