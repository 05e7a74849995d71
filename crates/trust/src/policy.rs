//! Policies: who answers for a volume (design `trees.md`, rules 1-6).
//!
//! The [`Genesis`] policy has number 0 and its hash is the volume id, so the name of a volume never
//! changes while its keys do: each [`Successor`] names the policy before it. How a chain of them is
//! verified stands in [`crate::chain`].

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::Hasher;
use crate::history::LogPoint;
use crate::key::PublicKey;
use crate::statement::{Body, Purpose, Statement};

pub use crate::chain::{Chain, MAX_POLICIES};
pub use crate::statement::VolumeId;

/// Most keys of one role.
pub const MAX_ROLE_KEYS: usize = 32;
/// Longest name of a volume, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The not-after of a policy that has none.
pub const NO_END: u64 = u64::MAX;

/// The block hash of this format: BLAKE3 keyed from the iv (see [`crate::handle`]).
const BLAKE3: u8 = 1;

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

    /// Nobody: for roles that may be empty.
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
    /// Sign timestamps; without keys none are needed.
    pub timestamps: Threshold,
    /// Longest validity of a timestamp, seconds; 0 where there are no timestamp keys.
    pub timestamp_max: u64,
    /// Cosign checkpoints of the log; with a threshold of 0 none are needed.
    pub witnesses: Threshold,
}

impl Roles {
    /// Every role that must exist held by one key: how a volume begins.
    pub fn single(key: PublicKey) -> Self {
        Roles {
            owners: Threshold::single(key),
            publishers: Threshold::single(key),
            timestamps: Threshold::none(),
            timestamp_max: 0,
            witnesses: Threshold::none(),
        }
    }

    fn encode(&self, out: &mut Encoder) {
        self.owners.encode(out);
        self.publishers.encode(out);
        self.timestamps.encode(out);
        out.u64(self.timestamp_max);
        self.witnesses.encode(out);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let roles = Roles {
            owners: Threshold::decode(d)?,
            publishers: Threshold::decode(d)?,
            timestamps: Threshold::decode(d)?,
            timestamp_max: d.u64()?,
            witnesses: Threshold::decode(d)?,
        };
        if roles.owners.needed == 0 {
            return Err(d.bad("a policy that no owner need sign"));
        }
        if roles.publishers.needed == 0 {
            return Err(d.bad("a policy under which no publisher need sign"));
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

/// The first policy of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Genesis {
    /// What people call the volume; a label, never looked up.
    pub name: String,
    /// Makes volumes of the same name and keys distinct.
    pub random: [u8; 32],
    /// Keys the volume's hash function (SFSRO 3.2).
    pub iv: [u8; 32],
    /// Nothing is accepted under this policy from then on, unix seconds.
    pub not_after: u64,
    /// Who may sign what.
    pub roles: Roles,
}

impl Genesis {
    /// A policy without end for a new volume.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a name that is too long or holds control characters.
    pub fn new(
        name: &str,
        random: [u8; 32],
        iv: [u8; 32],
        roles: Roles,
    ) -> Result<Genesis, Reject> {
        check_name(name)?;
        Ok(Genesis {
            name: name.to_owned(),
            random,
            iv,
            not_after: NO_END,
            roles,
        })
    }

    /// The statement to sign; the hash of it is the volume id.
    pub fn statement(&self) -> Statement {
        Statement::new(VolumeId::UNBORN, &Policy::Genesis(self.clone()))
    }

    /// The volume's name.
    pub fn volume_id(&self) -> VolumeId {
        VolumeId::from_bytes(self.statement().hash())
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(&self.iv)
    }
}

fn check_name(name: &str) -> Result<(), Reject> {
    let bad = |why| Reject::Malformed {
        what: "volume name",
        why,
    };
    if name.len() > MAX_NAME_BYTES {
        return Err(bad("too long"));
    }
    if name.chars().any(char::is_control) {
        return Err(bad("control characters"));
    }
    Ok(())
}

/// What the policy before last saw published last: the line between what a removed key may have
/// signed and what it may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    /// The record's version.
    pub version: u64,
    /// The record's hash.
    pub record_hash: [u8; 32],
    /// The log just before the policy that names this record became a leaf.
    pub log: LogPoint,
}

/// The end of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// A volume that the owners recommend instead; shown, never followed silently.
    pub successor: Option<VolumeId>,
}

/// A later policy of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The number of the policy before it, plus one.
    pub number: u64,
    /// Hash of the policy before it.
    pub previous: [u8; 32],
    /// Nothing is accepted under this policy from then on, unix seconds.
    pub not_after: u64,
    /// The log to which records under this policy belong: that of the policy before, or the next.
    pub log_epoch: u64,
    /// Who may sign what.
    pub roles: Roles,
    /// The last record of the policies before, if any was published.
    pub last: Option<Last>,
    /// Whether the volume ends here.
    pub revoked: Option<Revocation>,
}

impl Successor {
    /// The statement to sign.
    pub fn statement(&self, volume: VolumeId) -> Statement {
        Statement::new(volume, &Policy::Successor(self.clone()))
    }
}

/// Any policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Number 0.
    Genesis(Genesis),
    /// Number 1 and up.
    Successor(Successor),
}

impl Policy {
    /// Its place in the chain.
    pub fn number(&self) -> u64 {
        match self {
            Policy::Genesis(_) => 0,
            Policy::Successor(s) => s.number,
        }
    }

    /// When it ends, unix seconds.
    pub fn not_after(&self) -> u64 {
        match self {
            Policy::Genesis(g) => g.not_after,
            Policy::Successor(s) => s.not_after,
        }
    }

    /// Who may sign what.
    pub fn roles(&self) -> &Roles {
        match self {
            Policy::Genesis(g) => &g.roles,
            Policy::Successor(s) => &s.roles,
        }
    }

    /// The log to which records under this policy belong.
    pub fn log_epoch(&self) -> u64 {
        match self {
            Policy::Genesis(_) => 0,
            Policy::Successor(s) => s.log_epoch,
        }
    }

    /// The last record of the policies before.
    pub fn last(&self) -> Option<&Last> {
        match self {
            Policy::Genesis(_) => None,
            Policy::Successor(s) => s.last.as_ref(),
        }
    }

    /// Whether the volume ends with it.
    pub fn revocation(&self) -> Option<&Revocation> {
        match self {
            Policy::Genesis(_) => None,
            Policy::Successor(s) => s.revoked.as_ref(),
        }
    }
}

impl Body for Policy {
    const PURPOSE: Purpose = Purpose::Policy;

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.number()).u64(self.not_after());
        self.roles().encode(out);
        match self {
            Policy::Genesis(g) => {
                out.bytes(g.name.as_bytes());
                out.raw(&g.random).u8(BLAKE3).raw(&g.iv);
            }
            Policy::Successor(s) => s.encode_rest(out),
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let (number, not_after) = (d.u64()?, d.u64()?);
        let roles = Roles::decode(d)?;
        if number > 0 {
            return Successor::decode_rest(d, number, not_after, roles).map(Policy::Successor);
        }
        let name = std::str::from_utf8(d.bytes(MAX_NAME_BYTES)?)
            .map_err(|_| d.bad("volume name is not UTF-8"))?
            .to_owned();
        check_name(&name)?;
        let random = d.array()?;
        let algorithm = d.u8()?;
        if algorithm != BLAKE3 {
            return Err(Reject::Unsupported {
                what: "policy",
                why: format!("hash algorithm {algorithm}"),
            });
        }
        let iv = d.array()?;
        Ok(Policy::Genesis(Genesis {
            name,
            random,
            iv,
            not_after,
            roles,
        }))
    }
}

const HAS_LAST: u8 = 1;
const REVOKED: u8 = 2;
const HAS_SUCCESSOR_VOLUME: u8 = 4;

impl Successor {
    fn encode_rest(&self, out: &mut Encoder) {
        let successor = self.revoked.as_ref().and_then(|r| r.successor);
        let mut parts = 0;
        if self.last.is_some() {
            parts |= HAS_LAST;
        }
        if self.revoked.is_some() {
            parts |= REVOKED;
        }
        if successor.is_some() {
            parts |= HAS_SUCCESSOR_VOLUME;
        }
        out.raw(&self.previous).u64(self.log_epoch).u8(parts);
        if let Some(last) = &self.last {
            out.u64(last.version).raw(&last.record_hash);
            last.log.encode(out);
        }
        if let Some(volume) = successor {
            out.raw(volume.as_bytes());
        }
    }

    fn decode_rest(
        d: &mut Decoder<'_>,
        number: u64,
        not_after: u64,
        roles: Roles,
    ) -> Result<Self, Reject> {
        let (previous, log_epoch, parts) = (d.array()?, d.u64()?, d.u8()?);
        if parts & !(HAS_LAST | REVOKED | HAS_SUCCESSOR_VOLUME) != 0 {
            return Err(d.bad("unknown parts"));
        }
        if parts & HAS_SUCCESSOR_VOLUME != 0 && parts & REVOKED == 0 {
            return Err(d.bad("a successor volume without a revocation"));
        }
        let mut last = None;
        if parts & HAS_LAST != 0 {
            last = Some(Last {
                version: d.u64()?,
                record_hash: d.array()?,
                log: LogPoint::decode(d)?,
            });
        }
        let mut successor = None;
        if parts & HAS_SUCCESSOR_VOLUME != 0 {
            successor = Some(VolumeId::from_bytes(d.array()?));
        }
        let revoked = (parts & REVOKED != 0).then_some(Revocation { successor });
        Ok(Successor {
            number,
            previous,
            not_after,
            log_epoch,
            roles,
            last,
            revoked,
        })
    }
}
