//! What a policy of a shared volume adds: tagged extensions with the roles of that job (docs/formats/shared.md,
//! *Policies*). Published volumes have none of them.

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::key::PublicKey;
use crate::statement::algorithm::{ED25519, KeyBytes};
use crate::statement::policy::{MAX_NAME_BYTES, check_name};
use crate::statement::roles::Threshold;

/// Longest wait for a silent device that a policy can set, milliseconds.
pub const MAX_PATIENCE_MS: u32 = 3_600_000;

const ORDERER: u64 = 1;
const CHECKPOINTERS: u64 = 3;
const SILENCE: u64 = 7;
const FOUNDER: u64 = 9;
/// The extensions of a shared volume's policies.
pub(super) const TAGS: [u64; 4] = [ORDERER, CHECKPOINTERS, SILENCE, FOUNDER];
const WHAT: &str = "policy of a shared volume";

/// What happens when the author of an unattested entry stays silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Silence {
    /// The reader gets an error: fork consistency.
    Strict,
    /// The reader gets the content, and the entry is marked: fork* consistency.
    Relaxed,
}

/// The first user of a volume, and its first device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founder {
    /// The user: 32 random bytes.
    pub user: [u8; 32],
    /// The user's name for people: 1 to 64 bytes.
    pub name: String,
    /// The device's key.
    pub device: PublicKey,
}

/// The roles and terms of a shared volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRoles {
    /// Signs the notes of the log. Another key begins another epoch.
    pub orderer: PublicKey,
    /// Sign checkpoints. Without keys there are none but one's own.
    pub checkpointers: Threshold,
    /// What happens when an author stays silent.
    pub silence: Silence,
    /// How long a reader waits for a silent author, milliseconds; at least 1.
    pub patience_ms: u32,
    /// Who may write first. In the genesis policy, and in no other.
    pub founder: Option<Founder>,
}

impl SharedRoles {
    pub(super) fn extensions(&self) -> Vec<(u64, Vec<u8>)> {
        let value = |encode: &dyn Fn(&mut Encoder)| {
            let mut e = Encoder::new();
            encode(&mut e);
            e.finish()
        };
        let orderer = KeyBytes::ed25519(self.orderer.as_bytes());
        let mut extensions = vec![(ORDERER, value(&|e| orderer.encode(e)))];
        if !self.checkpointers.is_empty() {
            extensions.push((CHECKPOINTERS, value(&|e| self.checkpointers.encode(e))));
        }
        let silence = match self.silence {
            Silence::Strict => 0,
            Silence::Relaxed => 1,
        };
        let terms = value(&|e| {
            e.u8(silence).u32(self.patience_ms);
        });
        extensions.push((SILENCE, terms));
        if let Some(founder) = &self.founder {
            let founder = value(&|e| {
                e.raw(&founder.user).bytes(founder.name.as_bytes());
                e.raw(founder.device.as_bytes());
            });
            extensions.push((FOUNDER, founder));
        }
        extensions
    }

    pub(super) fn decode(extensions: &[(u64, &[u8])], genesis: bool) -> Result<Self, Reject> {
        let find = |tag| {
            let found = extensions.iter().find(|(found, _)| *found == tag);
            found.map(|(_, value)| Decoder::new(value, WHAT))
        };
        let missing = |why| Reject::Malformed { what: WHAT, why };
        let orderer = read(find(ORDERER), orderer)?.ok_or(missing("no orderer"))?;
        let checkpointers = read(find(CHECKPOINTERS), checkpointers)?;
        let terms = read(find(SILENCE), terms)?;
        let (silence, patience_ms) = terms.ok_or(missing("no terms for silent devices"))?;
        let founder = read(find(FOUNDER), founder)?;
        if founder.is_some() != genesis {
            return Err(missing("a founder belongs to the genesis policy alone"));
        }
        Ok(SharedRoles {
            orderer,
            checkpointers: checkpointers.unwrap_or(Threshold::none()),
            silence,
            patience_ms,
            founder,
        })
    }
}

/// Reads the whole value of an extension, if there is one.
fn read<'a, T>(
    value: Option<Decoder<'a>>,
    part: impl Fn(&mut Decoder<'a>) -> Result<T, Reject>,
) -> Result<Option<T>, Reject> {
    let Some(mut d) = value else {
        return Ok(None);
    };
    let read = part(&mut d)?;
    d.finish()?;
    Ok(Some(read))
}

fn orderer(d: &mut Decoder<'_>) -> Result<PublicKey, Reject> {
    let key = KeyBytes::decode_after(&mut None, d)?;
    if key.algorithm != ED25519 {
        return Err(Reject::Unsupported {
            what: WHAT,
            why: format!("an orderer with a key of algorithm {}", key.algorithm),
        });
    }
    let bytes = key.bytes.try_into();
    PublicKey::from_bytes(bytes.map_err(|_| d.bad("an Ed25519 key of another length"))?)
}

fn checkpointers(d: &mut Decoder<'_>) -> Result<Threshold, Reject> {
    let role = Threshold::decode(d)?;
    if role.needed() == 0 {
        return Err(d.bad("checkpointers of which none need sign"));
    }
    Ok(role)
}

fn terms(d: &mut Decoder<'_>) -> Result<(Silence, u32), Reject> {
    let silence = match d.u8()? {
        0 => Silence::Strict,
        1 => Silence::Relaxed,
        other => {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("rule {other} for silent devices"),
            });
        }
    };
    let patience_ms = d.u32()?;
    if !(1..=MAX_PATIENCE_MS).contains(&patience_ms) {
        return Err(d.bad("waits for silent devices not at all, or over an hour"));
    }
    Ok((silence, patience_ms))
}

fn founder(d: &mut Decoder<'_>) -> Result<Founder, Reject> {
    let user = d.array()?;
    let name = std::str::from_utf8(d.bytes(MAX_NAME_BYTES)?);
    let name = name.map_err(|_| d.bad("name of the founder is not UTF-8"))?;
    check_name(name)?;
    if name.is_empty() {
        return Err(d.bad("a founder without a name"));
    }
    Ok(Founder {
        user,
        name: name.to_owned(),
        device: PublicKey::from_bytes(d.array()?)?,
    })
}
