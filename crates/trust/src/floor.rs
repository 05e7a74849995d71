//! The floor: what one reader has seen of one volume, so that nobody can show it less. State, not
//! cache: its owner keeps it on disk, synced and locked, and refuses to go on when it is damaged.
//!
//! Pure: [`Floor::judge`] (in [`crate::judge`]) weighs a head against it; [`Floor::learn`],
//! [`Floor::observe`] and [`Floor::adopt`] give the floor that follows, to be stored by the caller.

use crate::chain::MAX_POLICIES;
use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Handle, InodeBlock};
use crate::head::MAX_HEAD_BYTES;
use crate::history::LogPoint;
use crate::statement::{Signed, VolumeId};

/// Largest encoded floor, bytes: its policies came in a head.
pub const MAX_FLOOR_BYTES: usize = MAX_HEAD_BYTES + 1024;

const FORMAT: u16 = 0;

/// The newest record that a reader adopted, or that a policy named as `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Its version.
    pub version: u64,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// Its root; unknown where the record is known from a policy's `last` alone.
    pub root: Option<Handle<InodeBlock>>,
    /// The log with that record in it.
    pub log: LogPoint,
}

/// What a reader has seen of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    pub(crate) volume: VolumeId,
    pub(crate) policies: Vec<Signed>,
    pub(crate) adopted: Option<Adopted>,
    pub(crate) newest_start: u64,
}

impl Floor {
    /// The floor of a reader who has seen nothing of `volume`.
    pub fn new(volume: VolumeId) -> Self {
        Floor {
            volume,
            policies: Vec::new(),
            adopted: None,
            newest_start: 0,
        }
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The newest record adopted, or set by a policy.
    pub fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_ref()
    }

    /// Number and hash of the newest policy known.
    pub fn policy(&self) -> Option<(u64, [u8; 32])> {
        let newest = self.policies.last()?;
        Some((self.policies.len().saturating_sub(1) as u64, newest.hash()))
    }

    /// The newest start of validity that was verified, unix seconds: it is not earlier than that.
    pub fn newest_start(&self) -> u64 {
        self.newest_start
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u16(FORMAT).raw(self.volume.as_bytes());
        e.u64(self.newest_start);
        e.varint(self.policies.len() as u64);
        for policy in &self.policies {
            policy.encode(&mut e);
        }
        e.u8(u8::from(self.adopted.is_some()));
        if let Some(adopted) = &self.adopted {
            e.u64(adopted.version).raw(&adopted.record_hash);
            adopted.log.encode(&mut e);
            e.u8(u8::from(adopted.root.is_some()));
            if let Some(root) = &adopted.root {
                e.raw(root.as_bytes());
            }
        }
        e.finish()
    }

    /// Reads a floor back.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a damaged one: its owner must stop, not begin anew.
    pub fn decode(bytes: &[u8]) -> Result<Floor, Reject> {
        let mut d = Decoder::new(bytes, "floor");
        if bytes.len() > MAX_FLOOR_BYTES {
            return Err(d.bad("too long"));
        }
        let format = d.u16()?;
        if format != FORMAT {
            return Err(Reject::Unsupported {
                what: "floor",
                why: format!("format {format}"),
            });
        }
        let volume = VolumeId::from_bytes(d.array()?);
        let newest_start = d.u64()?;
        let count = d.bounded(MAX_POLICIES as u64, "too many policies")?;
        let mut policies = Vec::new();
        for _ in 0..count {
            policies.push(Signed::decode(&mut d)?);
        }
        let adopted = match flag(&mut d)? {
            true => Some(decode_adopted(&mut d)?),
            false => None,
        };
        d.finish()?;
        Ok(Floor {
            volume,
            policies,
            adopted,
            newest_start,
        })
    }
}

fn decode_adopted(d: &mut Decoder<'_>) -> Result<Adopted, Reject> {
    let (version, record_hash) = (d.u64()?, d.array()?);
    let log = LogPoint::decode(d)?;
    let root = match flag(d)? {
        true => Some(Handle::from_bytes(d.array()?)),
        false => None,
    };
    Ok(Adopted {
        version,
        record_hash,
        root,
        log,
    })
}

fn flag(d: &mut Decoder<'_>) -> Result<bool, Reject> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(d.bad("a flag is 0 or 1")),
    }
}
