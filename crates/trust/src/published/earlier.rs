//! Records that a newer one has replaced: how the log of a replica keeps them, and when a reader believes one
//! (docs/decisions/0006). For readers that pin an older version, and for `log` and `diff`.
//!
//! A leaf file holds the statement with its signatures; only the statement is hashed into the log. So each
//! leaf file proves who signed it, and all of them together prove that they are the log which the newest
//! record names.

use crate::error::Reject;
use crate::history::Frontier;
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::Head;
use crate::published::judge::{Freshness, Offer, Terms, check_pin, check_pinned_record};
use crate::published::root::RootRecord;
use crate::published::standing::signed_record;
use crate::statement::chain::{Chain, check_revoked};
use crate::statement::signatures::Signatures;
use crate::statement::{Purpose, Signed};

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
    /// Reads a leaf of a volume whose policies are known.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a record that its policy's publishers did not sign and for a policy
    /// that is not in the chain; [`Reject::Malformed`], [`Reject::WrongVolume`].
    pub fn read(
        signed: &Signed,
        chain: &Chain,
        signatures: &mut Signatures,
    ) -> Result<Leaf, Reject> {
        if signed.statement().purpose() == Purpose::Policy {
            let hash = signed.hash();
            let known = chain
                .signed()
                .iter()
                .position(|policy| policy.hash() == hash);
            let number = known.ok_or(Reject::NotSigned("a policy outside of the chain"))?;
            return Ok(Leaf::Policy {
                number: number as u64,
                hash,
            });
        }
        let record = signed_record(signed, chain, signatures)?;
        let role = chain
            .get(record.policy_number)
            .map(|(policy, _)| policy.roles());
        let keys = role.map_or(&[][..], |roles| roles.publishers.keys());
        Ok(Leaf::Record {
            record: Box::new(record),
            record_hash: signed.hash(),
            signers: keys
                .iter()
                .filter(|key| signed.by(key).is_some())
                .copied()
                .collect(),
        })
    }
}

/// A leaf that [`Leaf::read`] accepted, with the signatures of its own policy's roles and no others: what strangers
/// add does not travel on.
pub fn reduced(signed: &Signed, chain: &Chain) -> Result<Signed, Reject> {
    if signed.statement().purpose() == Purpose::Policy {
        let hash = signed.hash();
        let known = chain.signed().iter().find(|policy| policy.hash() == hash);
        let known = known.ok_or(Reject::NotSigned("a policy outside of the chain"))?;
        return Ok(known.clone());
    }
    let record: RootRecord = signed.statement().read(chain.volume())?;
    let policy = chain.get(record.policy_number);
    let (policy, _) = policy.ok_or(Reject::NotSigned("root record, under an unknown policy"))?;
    Ok(signed.reduced_to(&[&policy.roles().publishers]))
}

impl Floor {
    /// Judges an earlier record of the volume, with a head that has replaced it. A valid one is known to be
    /// signed by its publishers. It does not show which version is current, so it does not change the floor.
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
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Result<Offer, Reject> {
        let chain = self.known_chain(head, signatures)?;
        check_pin(&chain, terms)?;
        check_revoked(&chain)?;
        let newest = signed_record(&head.record, &chain, signatures)?;
        let record = signed_record(earlier, &chain, signatures)?;
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
