//! Roles: which keys may sign what, and how many of them must (design `trees.md`, *Policy*). Keys of unknown
//! algorithms have their place in a role and never count.

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::key::PublicKey;
use crate::statement::algorithm::{ED25519, KeyBytes, UnknownKey};

/// Most keys of one role.
pub const MAX_ROLE_KEYS: usize = 32;
/// Longest validity of a record under a new volume's policy, seconds: a leap year.
pub const DEFAULT_RECORD_MAX: u64 = 366 * 24 * 3600;

/// k distinct keys of n.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    needed: u8,
    keys: Vec<PublicKey>,
    unknown: Vec<UnknownKey>,
}

impl Threshold {
    /// `needed` of `keys`, in any order.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when a key comes twice, there are more than [`MAX_ROLE_KEYS`], or
    /// `needed` is more than there are.
    pub fn new(needed: u8, keys: Vec<PublicKey>) -> Result<Self, Reject> {
        Threshold::with_unknown(needed, keys, Vec::new())
    }

    /// As [`Threshold::new`], with keys of unknown algorithms too.
    ///
    /// # Errors
    /// As [`Threshold::new`].
    pub fn with_unknown(
        needed: u8,
        mut keys: Vec<PublicKey>,
        mut unknown: Vec<UnknownKey>,
    ) -> Result<Self, Reject> {
        keys.sort();
        unknown.sort();
        let threshold = Threshold {
            needed,
            keys,
            unknown,
        };
        threshold.checked()
    }

    /// One key alone.
    pub fn single(key: PublicKey) -> Self {
        Threshold {
            needed: 1,
            keys: vec![key],
            unknown: Vec::new(),
        }
    }

    /// No keys: for roles that may be empty.
    pub fn none() -> Self {
        Threshold {
            needed: 0,
            keys: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// How many of the keys must sign.
    pub fn needed(&self) -> u8 {
        self.needed
    }

    /// The Ed25519 keys, sorted, each once.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// The keys of unknown algorithms, sorted, each once. Their signatures never count.
    pub fn unknown(&self) -> &[UnknownKey] {
        &self.unknown
    }

    /// Whether the role has no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.unknown.is_empty()
    }

    /// Whether this build knows the algorithms of enough keys to count up to the threshold.
    pub fn is_countable(&self) -> bool {
        usize::from(self.needed) <= self.keys.len()
    }

    pub(crate) fn has(&self, key: KeyBytes<'_>) -> bool {
        self.all().any(|own| own == key)
    }

    /// All keys, in the order of their encoding.
    fn all(&self) -> impl Iterator<Item = KeyBytes<'_>> {
        let known = self.keys.iter();
        let known = known.map(|key| KeyBytes::ed25519(key.as_bytes()));
        known.chain(self.unknown.iter().map(UnknownKey::as_key))
    }

    /// The refusal of a statement that too few keys signed.
    pub(crate) fn too_few(&self, whose: &'static str) -> Reject {
        if self.is_countable() {
            return Reject::NotSigned(whose);
        }
        Reject::Unsupported {
            what: whose,
            why: "keys of unknown algorithms must sign".to_owned(),
        }
    }

    fn checked(self) -> Result<Self, Reject> {
        let bad = |why| Reject::Malformed {
            what: "policy role",
            why,
        };
        let count = self.all().count();
        if count > MAX_ROLE_KEYS {
            return Err(bad("too many keys"));
        }
        if !self.all().is_sorted_by(|a, b| a < b) {
            return Err(bad("keys not sorted, or one twice"));
        }
        if usize::from(self.needed) > count {
            return Err(bad("needs more keys than it has"));
        }
        Ok(self)
    }

    pub(super) fn encode(&self, out: &mut Encoder) {
        out.u8(self.needed).u8(self.all().count() as u8);
        for key in self.all() {
            key.encode(out);
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let (needed, count) = (d.u8()?, d.u8()?);
        let (mut keys, mut unknown) = (Vec::new(), Vec::new());
        let mut last = None;
        // At most 255 keys before `checked` refuses them.
        for _ in 0..count {
            let key = KeyBytes::decode_after(&mut last, d)?;
            if key.algorithm != ED25519 {
                unknown.push(UnknownKey::copy(key));
                continue;
            }
            let bytes: Result<[u8; 32], _> = key.bytes.try_into();
            let bytes = bytes.map_err(|_| d.bad("an Ed25519 key of another length"))?;
            keys.push(PublicKey::from_bytes(bytes)?);
        }
        let threshold = Threshold {
            needed,
            keys,
            unknown,
        };
        threshold.checked()
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
