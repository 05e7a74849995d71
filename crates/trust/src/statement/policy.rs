//! Policies: which keys may sign for a volume (design `trees.md`, rules 1-6).
//!
//! The [`Genesis`] policy has number 0 and its hash is the volume id. So the id of a volume stays the same
//! when its keys change: each [`Successor`] names the policy before it. [`crate::statement::chain`] verifies
//! a chain of policies.

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::Hasher;
use crate::history::LogPoint;
use crate::statement::{Body, Purpose, Statement};

pub use crate::statement::VolumeId;
pub use crate::statement::roles::{MAX_ROLE_KEYS, Roles, Threshold};

/// Most policies that one policy refuses.
pub const MAX_REFUSED_POLICIES: u8 = 16;
/// Longest name of a volume, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// The not-after of a policy that has none.
pub const NO_END: u64 = u64::MAX;

/// The block hash of this format: BLAKE3 keyed from the iv (see [`crate::handle`]).
const BLAKE3: u8 = 1;

/// The first policy of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Genesis {
    /// A name for people; never used for look-up.
    pub name: String,
    /// Makes volumes of the same name and keys distinct.
    pub random: [u8; 32],
    /// Keys the volume's hash function (SFSRO 3.2).
    pub iv: [u8; 32],
    /// Nothing is accepted under this policy from this time on, unix seconds.
    pub not_after: u64,
    /// Who may sign what.
    pub roles: Roles,
}

impl Genesis {
    /// A policy without end, for a new volume.
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

    /// The statement to sign; its hash is the volume id.
    pub fn statement(&self) -> Statement {
        Statement::new(VolumeId::UNBORN, &Policy::Genesis(self.clone()))
    }

    /// The volume's id.
    pub fn volume_id(&self) -> VolumeId {
        VolumeId::from_bytes(self.statement().hash())
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(&self.iv)
    }
}

pub(super) fn check_name(name: &str) -> Result<(), Reject> {
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

/// The last record published under the policies before, as the owners know it. It counts whoever signed it.
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
    /// A volume that the owners recommend instead. Show it to the user; never follow it automatically.
    pub successor: Option<VolumeId>,
}

/// A later policy of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The number of the policy before it, plus one.
    pub number: u64,
    /// Hash of the policy before it.
    pub previous: [u8; 32],
    /// Nothing is accepted under this policy from this time on, unix seconds.
    pub not_after: u64,
    /// The epoch of the log for records under this policy: that of the policy before, or the next one.
    pub log_epoch: u64,
    /// Who may sign what.
    pub roles: Roles,
    /// The last record of the policies before, if any was published. Mandatory if the policy before has one.
    pub last: Option<Last>,
    /// Whether readers go down to `last` from a later version (rule 4). Needs `last`.
    pub lower: bool,
    /// Whether the volume ends here.
    pub revoked: Option<Revocation>,
    /// Hashes of other successors of an earlier policy of this chain, ascending. It settles a fork (rule 1).
    pub refused: Vec<[u8; 32]>,
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
    /// Its number in the chain.
    pub fn number(&self) -> u64 {
        match self {
            Policy::Genesis(_) => 0,
            Policy::Successor(s) => s.number,
        }
    }

    /// The time of its end, unix seconds.
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

    /// The epoch of the log for records under this policy.
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

    /// Hashes of policies that this one refuses, to settle a fork.
    pub fn refused(&self) -> &[[u8; 32]] {
        match self {
            Policy::Genesis(_) => &[],
            Policy::Successor(s) => &s.refused,
        }
    }

    /// Whether readers go down to [`Policy::last`] from a later version.
    pub fn lowers(&self) -> bool {
        match self {
            Policy::Genesis(_) => false,
            Policy::Successor(s) => s.lower,
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
const LOWERS: u8 = 8;
const REFUSES: u8 = 16;
const KNOWN_PARTS: u8 = HAS_LAST | REVOKED | HAS_SUCCESSOR_VOLUME | LOWERS | REFUSES;

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
        if self.lower {
            parts |= LOWERS;
        }
        if !self.refused.is_empty() {
            parts |= REFUSES;
        }
        out.raw(&self.previous).u64(self.log_epoch).u8(parts);
        if let Some(last) = &self.last {
            out.u64(last.version).raw(&last.record_hash);
            last.log.encode(out);
        }
        if let Some(volume) = successor {
            out.raw(volume.as_bytes());
        }
        if !self.refused.is_empty() {
            out.u8(self.refused.len() as u8);
            for hash in &self.refused {
                out.raw(hash);
            }
        }
    }

    fn decode_rest(
        d: &mut Decoder<'_>,
        number: u64,
        not_after: u64,
        roles: Roles,
    ) -> Result<Self, Reject> {
        let (previous, log_epoch, parts) = (d.array()?, d.u64()?, d.u8()?);
        if parts & !KNOWN_PARTS != 0 {
            return Err(Reject::Unsupported {
                what: "policy",
                why: format!("parts {parts:#04x}"),
            });
        }
        if parts & LOWERS != 0 && parts & HAS_LAST == 0 {
            return Err(d.bad("lowers the floor to no record"));
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
        let refused = match parts & REFUSES {
            0 => Vec::new(),
            _ => decode_refused(d)?,
        };
        let revoked = (parts & REVOKED != 0).then_some(Revocation { successor });
        Ok(Successor {
            number,
            previous,
            not_after,
            log_epoch,
            roles,
            last,
            lower: parts & LOWERS != 0,
            revoked,
            refused,
        })
    }
}

fn decode_refused(d: &mut Decoder<'_>) -> Result<Vec<[u8; 32]>, Reject> {
    let count = d.u8()?;
    if count == 0 || count > MAX_REFUSED_POLICIES {
        return Err(d.bad("refuses no policy, or too many"));
    }
    let mut refused = Vec::new();
    for _ in 0..count {
        refused.push(d.array()?);
    }
    if !refused.is_sorted_by(|a, b| a < b) {
        return Err(d.bad("refused policies not sorted, or one twice"));
    }
    Ok(refused)
}
