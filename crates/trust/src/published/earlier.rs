//! Records that a newer one has replaced: how the log of a replica keeps them, and when a reader believes one
//! (docs/decisions/0006). For readers that pin an older version, and for `log` and `diff`.
//!
//! A leaf file holds the statement with its signatures; only the statement is hashed into the log. So each
//! leaf file proves who signed it, and all of them together prove that they are the log which the newest
//! record names. [`Placed`] shows it for one record, from a few tiles.

use crate::error::Reject;
use crate::history::prefix::Prefix;
use crate::history::{Frontier, LogPoint};
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::Head;
use crate::published::judge::{Freshness, Offer, Terms, check_pin, check_pinned_record};
use crate::published::root::RootRecord;
use crate::published::standing::{record_under, signed_record};
use crate::published::version_name::VersionName;
use crate::statement::chain::{Link, check_revoked};
use crate::statement::signatures::Signatures;
use crate::statement::{Purpose, Signed, VolumeId};

/// The statement in a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// A root record that the publishers of its policy signed.
    Record {
        /// The record.
        record: Box<RootRecord>,
        /// Its hash.
        record_hash: [u8; 32],
        /// The publishers whose valid signatures it has.
        signers: Vec<PublicKey>,
        /// The name that they gave to the version.
        name: Option<VersionName>,
    },
    /// A policy of the chain.
    Policy {
        /// Its number.
        number: u64,
        /// Its hash.
        hash: [u8; 32],
    },
}

impl Leaf {
    /// Number of the policy by which a leaf is read: a policy itself, or the one that a record names.
    ///
    /// # Errors
    /// [`Reject::Malformed`], [`Reject::WrongVolume`].
    pub fn policy_number(signed: &Signed, volume: VolumeId) -> Result<u64, Reject> {
        if signed.statement().purpose() == Purpose::Policy {
            return Ok(Link::read(volume, signed)?.policy.number());
        }
        let record: RootRecord = signed.statement().read(volume)?;
        Ok(record.policy_number)
    }

    /// Reads a leaf of `volume`. `policy` is that of the chain with the number that [`Leaf::policy_number`] gives.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a record that its policy's publishers did not sign and for a policy
    /// that is not in the chain; [`Reject::Malformed`], [`Reject::WrongVolume`].
    pub fn read(
        signed: &Signed,
        volume: VolumeId,
        policy: &Link,
        signatures: &mut Signatures,
    ) -> Result<Leaf, Reject> {
        let hash = signed.hash();
        if signed.statement().purpose() == Purpose::Policy {
            if hash != policy.hash {
                return Err(Reject::NotSigned("a policy outside of the chain"));
            }
            let number = policy.policy.number();
            return Ok(Leaf::Policy { number, hash });
        }
        let record = signed.statement().read(volume)?;
        let record = record_under(signed, record, policy, signatures)?;
        let keys = policy.policy.roles().publishers.keys();
        Ok(Leaf::Record {
            record: Box::new(record),
            record_hash: hash,
            name: signed.statement().version_name(),
            signers: keys
                .iter()
                .filter(|key| signed.by(key).is_some())
                .copied()
                .collect(),
        })
    }
}

/// A leaf that [`Leaf::read`] accepted, with the signatures of its own policy's roles and no others: what strangers
/// add does not travel on. `policy` is that by which it was read.
pub fn reduced(signed: &Signed, policy: &Link) -> Signed {
    match signed.statement().purpose() {
        Purpose::Policy => policy.signed.clone(),
        _ => signed.reduced_to(&[&policy.policy.roles().publishers]),
    }
}

/// Shows that an earlier record is a leaf of the log that a later statement names. Two proofs that a log only grew, one
/// after the other: first for the log that the record names, then for the same log with the record as its next leaf.
#[derive(Debug, Clone)]
pub struct Placed {
    leaf: Signed,
    log: LogPoint,
    later: Frontier,
    stored: u64,
    prefix: Prefix,
    /// Whether `prefix` is about the log with the record in it.
    with_leaf: bool,
}

impl Placed {
    /// Begins to show that the record of `earlier` is in the log with the number `epoch` and the frontier `later`, of
    /// which replicas have the tiles of at least `stored` leaves.
    ///
    /// # Errors
    /// [`Reject::Fork`] when no tiles could show it: the record names another or a longer log.
    pub fn begin(
        earlier: &Offer,
        epoch: u64,
        later: &Frontier,
        stored: u64,
    ) -> Result<Placed, Reject> {
        let log = earlier.record.log;
        Ok(Placed {
            leaf: earlier.signed.clone(),
            log,
            later: later.clone(),
            stored,
            prefix: Prefix::new(log, epoch, later, stored)?,
            with_leaf: false,
        })
    }

    /// The proof that is wanted now: supply it with tiles, and give it to [`Placed::proved`].
    pub fn wants(&self) -> &Prefix {
        &self.prefix
    }

    /// Takes the proof that was wanted, with all its tiles. `None`: the record is in the log. Otherwise another proof is
    /// wanted.
    ///
    /// # Errors
    /// [`Reject::Fork`]: the publishers signed a record that is not in the log which they signed later.
    /// [`Reject::Unproved`] while tiles are wanted.
    pub fn proved(mut self, prefix: Prefix) -> Result<Option<Placed>, Reject> {
        let epoch = self.log.epoch;
        if prefix.old() != self.prefix.old() {
            return Err(Reject::Unproved);
        }
        let frontier = prefix.frontier(&self.later.point(epoch));
        let mut frontier = frontier.map_err(|why| match why {
            Reject::Fork(_) => Reject::Fork(OUTSIDE),
            why => why,
        })?;
        if self.with_leaf {
            return Ok(None);
        }
        frontier.push(self.leaf.statement().bytes())?;
        let with_leaf = frontier.point(epoch);
        self.prefix = Prefix::new(with_leaf, epoch, &self.later, self.stored)?;
        self.with_leaf = true;
        Ok(Some(self))
    }
}

const OUTSIDE: &str = "a signed record that is not in the log";

impl Floor {
    /// Judges an earlier record of the volume, with a head that has replaced it. A valid one is known to be
    /// signed by its publishers. It does not show which version is current, so it does not change the floor.
    ///
    /// `policy` is that of the chain which the record names.
    ///
    /// Under [`Freshness::Pinned`] it must be the pinned record.
    ///
    /// # Errors
    /// As [`Floor::judge`] when the head's policies or signatures are bad;
    /// [`Reject::NotSigned`] for a record that is not signed or does not come before the head's;
    /// [`Reject::NotPinned`].
    pub fn judge_earlier(
        &self,
        head: &Head,
        earlier: &Signed,
        policy: &Link,
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Result<Offer, Reject> {
        let chain = self.known_chain(head, signatures)?;
        check_pin(&chain, terms)?;
        check_revoked(&chain)?;
        let newest = signed_record(&head.record, &chain, signatures)?;
        let kept = chain.link(policy.policy.number());
        if kept.is_some_and(|kept| kept.hash != policy.hash) {
            return Err(Reject::NotSigned("root record, under another policy"));
        }
        let record = earlier.statement().read(self.volume)?;
        let record = record_under(earlier, record, policy, signatures)?;
        if record.version >= newest.version {
            return Err(Reject::NotSigned("a record not earlier than the head's"));
        }
        let offer = Offer {
            is_new: true,
            log_after: record.log,
            before: Frontier::new(),
            proved: None,
            record_hash: earlier.hash(),
            signed: earlier.clone(),
            superseded: None,
            record,
            chain,
            valid_until: u64::MAX,
            fresh_until: u64::MAX,
            judged_at: terms.now.max(terms.wall).max(self.newest_start),
            stale: false,
            moves_floor: false,
            newest_start: self.newest_start,
            latest_start: terms.latest_start(),
        };
        if let Freshness::Pinned {
            version,
            record_hash,
        } = terms.freshness
        {
            check_pinned_record(&offer, version, &record_hash)?;
        }
        Ok(offer)
    }
}
