//! The floor: what one reader has seen of one volume, so that no server can show it older statements later.
//! It is state, not a cache: its owner keeps it on disk, synced and locked, and stops when it is damaged.
//!
//! Pure functions: [`Floor::judge`] (in [`crate::published::judge`]) compares a head with the floor.
//! [`Floor::learn`], [`Floor::observe`] and [`Floor::adopt`] return the next floor, which the caller stores.

use crate::encode::{Decoder, Encoder, split_checksum};
use crate::error::Reject;
use crate::handle::{Handle, InodeBlock};
use crate::history::LogPoint;
use crate::history::prefix::Prefix;
use crate::published::head::{Head, MAX_HEAD_BYTES};
use crate::published::offer::Offer;
use crate::published::standing::{check_counts, signed_record};
use crate::published::terms::Terms;
use crate::statement::chain::{Chain, MAX_POLICIES, check_revoked};
use crate::statement::policy::Policy;
use crate::statement::signatures::Signatures;
use crate::statement::{Signed, VolumeId};

/// Largest encoded floor, bytes. Its policies came in a head.
pub const MAX_FLOOR_BYTES: usize = MAX_HEAD_BYTES + 1024;

const FORMAT: u16 = 0;
const WHAT: &str = "floor";

/// The newest record that a reader adopted, or that a policy named as `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Its version.
    pub version: u64,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// Its root; `None` when the record is known only from a policy's `last`.
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
    /// The floor of a reader that has seen nothing of `volume`.
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

    /// The newest record that was adopted, or that a policy set.
    pub fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_ref()
    }

    /// Number and hash of the newest policy known.
    pub fn policy(&self) -> Option<(u64, [u8; 32])> {
        let newest = self.policies.last()?;
        Some((self.policies.len().saturating_sub(1) as u64, newest.hash()))
    }

    /// The newest start of a record or issue of a timestamp that was verified, unix seconds, at most ten minutes
    /// after the wall clock at that moment. The reader's time is not earlier.
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
        e.finish_with_checksum()
    }

    /// Reads a floor back.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a damaged floor. The caller must stop, and must not start with a new floor.
    pub fn decode(bytes: &[u8]) -> Result<Floor, Reject> {
        let bad = |why| Reject::Malformed { what: WHAT, why };
        if bytes.len() > MAX_FLOOR_BYTES {
            return Err(bad("too long"));
        }
        let (body, intact) = split_checksum(bytes).ok_or_else(|| bad("truncated"))?;
        let mut d = Decoder::new(body, WHAT);
        let format = d.u16()?;
        if format != FORMAT {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("format {format}"),
            });
        }
        if !intact {
            return Err(bad("damaged: the checksum does not match"));
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
        if policies.is_empty() && adopted.is_some() {
            return Err(bad("a record that no policy allows"));
        }
        Ok(Floor {
            volume,
            policies,
            adopted,
            newest_start,
        })
    }
}

impl Floor {
    /// The floor after learning the policies of `head`, whether or not its record is valid. `wall` is the wall
    /// clock, unix seconds. New policies raise the floor to their `last`; one with `lower` also lowers it (rule 4).
    ///
    /// # Errors
    /// Those of [`Chain::verify`] and [`Chain::newer_of`]: bad signatures, a fork.
    pub fn learn(
        &self,
        head: &Head,
        wall: u64,
        signatures: &mut Signatures,
    ) -> Result<Floor, Reject> {
        let chain = self.known_chain(head, signatures)?;
        Ok(self.with_chain(&chain, Terms::strict(wall).latest_start()))
    }

    /// The floor after seeing `offer` without adopting it. Its policies and its start are known from now on.
    /// The adopted version stays (unless a new policy moves it).
    ///
    /// # Errors
    /// [`Reject::Fork`] when this floor has since learned something that contradicts the offer.
    pub fn observe(&self, offer: &Offer) -> Result<Floor, Reject> {
        if !offer.moves_floor {
            return Ok(self.clone());
        }
        let mut floor = self.with_chain(&self.merged(offer)?, offer.latest_start);
        floor.newest_start = floor.newest_start.max(offer.newest_start);
        Ok(floor)
    }

    /// Whether a record that was adopted before may still be shown under the policies known now.
    ///
    /// # Errors
    /// [`Reject::Revoked`]; [`Reject::NotSigned`] for a record that the newest policy does not let count (rule 3).
    pub fn still_allows(
        &self,
        signed: &Signed,
        signatures: &mut Signatures,
    ) -> Result<(), Reject> {
        let chain = Chain::verify(self.volume, &self.policies, signatures)?;
        check_revoked(&chain)?;
        let record = signed_record(signed, &chain, signatures)?;
        check_counts(&chain, chain.newest(), &record, signed, signatures)
    }

    /// The proof that is needed before `offer` can be adopted: that its log contains this floor's record.
    /// `None` when the head alone shows it, or when no proof is needed.
    ///
    /// # Errors
    /// Those of [`Floor::adopt`].
    pub fn unproved(&self, offer: &Offer) -> Result<Option<Prefix>, Reject> {
        if !offer.moves_floor {
            return Ok(None);
        }
        self.merged(offer)?;
        match self.admit(offer)? {
            Some(prefix) if offer.proved != Some(prefix.old()) => Ok(Some(prefix)),
            _ => Ok(None),
        }
    }

    /// The floor after adopting `offer`. A pinned offer does not change it.
    ///
    /// # Errors
    /// The floor's rules are applied again, because this floor may have changed since the judgement:
    /// [`Reject::Rollback`], [`Reject::Fork`], [`Reject::NotSigned`]. [`Reject::Unproved`] unless
    /// [`Floor::unproved`] gives `None`.
    pub fn adopt(&self, offer: &Offer) -> Result<Floor, Reject> {
        if !offer.moves_floor {
            return Ok(self.clone());
        }
        let mut floor = self.observe(offer)?;
        if self.unproved(offer)?.is_some() {
            return Err(Reject::Unproved);
        }
        floor.adopted = Some(Adopted {
            version: offer.record.version,
            record_hash: offer.record_hash,
            root: Some(offer.record.root),
            log: offer.log_after,
        });
        Ok(floor)
    }

    /// The chain that counts: the head's or the known one, whichever is longer (rule 3).
    pub(crate) fn known_chain(
        &self,
        head: &Head,
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let offered = Chain::verify(self.volume, &head.policies, signatures)?;
        if self.policies.is_empty() {
            return Ok(offered);
        }
        let known = Chain::verify(self.volume, &self.policies, signatures)?;
        known.newer_of(offered)
    }

    /// The offer's chain, unless this floor knows a newer one by now.
    fn merged(&self, offer: &Offer) -> Result<Chain, Reject> {
        if offer.chain.volume() != self.volume {
            return Err(Reject::WrongVolume);
        }
        let offered = offer.chain.signed();
        let agree = self.policies.iter().zip(offered).all(|(a, b)| {
            // Signatures may differ: more owners may have signed the same policy later.
            a.hash() == b.hash()
        });
        if !agree {
            return Err(Reject::Fork("two successors of one policy"));
        }
        if self.policies.len() > offered.len() {
            return Err(Reject::NotSigned("judged under a policy since superseded"));
        }
        Ok(offer.chain.clone())
    }

    /// This floor under `chain`, which is the known chain or continues it.
    fn with_chain(&self, chain: &Chain, latest_start: u64) -> Floor {
        Floor {
            adopted: self.adopted_under(chain),
            newest_start: self.newest_start_under(chain, latest_start),
            policies: chain.signed().to_vec(),
            ..self.clone()
        }
    }

    /// Rule 4, for the policies that are new to this reader, one after another: the floor is the later of the
    /// adopted version and the policy's `last`. A policy with `lower` sets it to `last` in any case.
    fn adopted_under(&self, chain: &Chain) -> Option<Adopted> {
        let mut adopted = self.adopted.clone();
        for policy in chain.since(self.policies.len()) {
            let Some(last) = policy.last() else {
                continue;
            };
            let is_behind = |a: &Adopted| last.version < a.version && !policy.lowers();
            if adopted.as_ref().is_some_and(is_behind) {
                continue;
            }
            let same = |a: &&Adopted| a.record_hash == last.record_hash;
            adopted = Some(Adopted {
                version: last.version,
                record_hash: last.record_hash,
                root: self.adopted.as_ref().filter(same).and_then(|a| a.root),
                log: last.log,
            });
        }
        adopted
    }

    /// The newest start under `chain`. Only a new policy with `lower` caps it, to the latest start that the wall
    /// clock allows: a cap by any policy would revive expired statements after the clock was set back.
    pub(crate) fn newest_start_under(&self, chain: &Chain, latest_start: u64) -> u64 {
        match chain.since(self.policies.len()).any(Policy::lowers) {
            true => self.newest_start.min(latest_start),
            false => self.newest_start,
        }
    }

    /// The rules that need neither signatures nor the time: rollback, rule 3, fork, log. Returns the proof
    /// about the log that is still needed.
    pub(crate) fn admit(&self, offer: &Offer) -> Result<Option<Prefix>, Reject> {
        let record = &offer.record;
        let floor = self.adopted_under(&offer.chain);
        let floor_version = floor.as_ref().map_or(0, |f| f.version);
        if record.version < floor_version {
            return Err(Reject::Rollback {
                offered: record.version,
                floor: floor_version,
            });
        }
        if let Some(why) = &offer.superseded {
            return Err(why.clone());
        }
        let Some(floor) = floor else {
            return Ok(None);
        };
        if record.version == floor.version {
            if offer.record_hash != floor.record_hash {
                return Err(Reject::Fork("two records of one version"));
            }
            return Ok(None);
        }
        offer.grows_from(&floor.log)
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
