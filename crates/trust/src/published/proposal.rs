//! A proposal: the next policy of a volume on its way to its owners, who sign it one after another, or each a copy, on
//! machines of their own (docs/formats/statements.md, *Proposal*).
//!
//! It contains the head that it builds on, so that each owner sees what changes. Nobody trusts the file:
//! [`Proposal::examine`] checks all that [`crate::statement::chain`] will check, but for the signatures that are still
//! missing, and that the policy names the last version as its rules demand (design `trees.md`, rules 1 and 4).

use crate::encode::FileForm;
use crate::error::Reject;
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::{Head, MAX_HEAD_BYTES};
use crate::published::request::judged_base;
use crate::published::root::RootRecord;
use crate::signer::{SignError, Signer};
use crate::statement::chain::Chain;
use crate::statement::policy::{Last, Policy, Revocation, Roles, Successor};
use crate::statement::signatures::Signatures;
use crate::statement::tally::Tally;
use crate::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

/// Largest proposal, bytes.
pub const MAX_PROPOSAL_BYTES: usize = MAX_HEAD_BYTES + MAX_SIGNED_BYTES + 64;

const WHAT: &str = "proposal of a policy";
const FORM: FileForm = FileForm {
    magic: b"bullapol",
    format: 0,
    what: WHAT,
    most_bytes: MAX_PROPOSAL_BYTES,
};
/// The roles in tallies.
const OLD_OWNERS: &str = "owners until now";
const NEW_OWNERS: &str = "owners from now on";

/// A policy to be signed, or already signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The head that it builds on: its newest policy is the one before.
    pub base: Box<Head>,
    /// The policy, with the signatures that it has so far.
    pub policy: Signed,
}

/// What the owners decide. The rest of a policy follows from the head that it builds on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// Who may sign what.
    pub roles: Roles,
    /// Nothing is accepted under the policy from this time on, unix seconds.
    pub not_after: u64,
    /// Whether readers go back to the version of the head from a later one (rule 4). A new log begins then.
    pub lower: bool,
    /// Whether the volume ends.
    pub revoked: Option<Revocation>,
    /// Other successors of an earlier policy, which this one refuses to settle a fork.
    pub refused: Vec<[u8; 32]>,
}

/// A proposal whose parts fit together, with the signatures that it has, verified. Some may still be missing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExaminedProposal {
    /// The volume.
    pub volume: VolumeId,
    /// Its name in the genesis policy, for people.
    pub name: String,
    /// The policy before.
    pub before: Policy,
    /// The policy that is to be signed.
    pub policy: Successor,
    /// Its hash.
    pub hash: [u8; 32],
    /// The last version before it.
    pub record: RootRecord,
    /// Hash of that version's record.
    pub record_hash: [u8; 32],
    /// Which owners of the policy before have signed.
    pub old_owners: Tally,
    /// Which owners of the new policy have signed.
    pub new_owners: Tally,
    chain: Chain,
}

impl Proposal {
    /// The next policy after `base`, unsigned.
    ///
    /// # Errors
    /// Those of [`Proposal::examine`] about the base; [`Reject::Malformed`] when the numbers are used up.
    pub fn new(
        base: Head,
        decided: Decided,
        signatures: &mut Signatures,
    ) -> Result<Proposal, Reject> {
        let (volume, offer) = judged_base(&base, signatures)?;
        let newest = offer.chain.newest();
        let number = newest.number().checked_add(1);
        let (log, _) = base.next_log(volume)?;
        let policy = Successor {
            number: number.ok_or_else(|| bad("the numbers of policies are used up"))?,
            previous: offer.chain.newest_hash(),
            not_after: decided.not_after,
            log_epoch: newest.log_epoch().saturating_add(u64::from(decided.lower)),
            roles: decided.roles,
            last: Some(Last {
                version: offer.record.version,
                record_hash: offer.record_hash,
                log,
            }),
            lower: decided.lower,
            revoked: decided.revoked,
            refused: decided.refused,
        };
        Ok(Proposal {
            policy: policy.statement(volume).sign(&[]),
            base: Box::new(base),
        })
    }

    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = FORM.begin();
        e.bytes(&self.base.encode()?);
        self.policy.encode(&mut e);
        FORM.finish(e)
    }

    /// Takes bytes that claim to be a proposal.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one encoding of a
    /// proposal.
    pub fn decode(bytes: &[u8]) -> Result<Proposal, Reject> {
        let mut d = FORM.open(bytes)?;
        let base = Box::new(Head::decode(d.bytes(MAX_HEAD_BYTES)?)?);
        let policy = Signed::decode(&mut d)?;
        d.finish()?;
        Ok(Proposal { base, policy })
    }

    /// Checks that the policy is the next one after its base and names the base's version as the last one, that the
    /// base is signed, and the signatures that the policy has.
    ///
    /// # Errors
    /// The rule that is broken: [`Reject::NotSigned`], [`Reject::Malformed`], [`Reject::Revoked`].
    pub fn examine(&self, signatures: &mut Signatures) -> Result<ExaminedProposal, Reject> {
        let (volume, offer) = judged_base(&self.base, signatures)?;
        let policy: Policy = self.policy.statement().read(volume)?;
        let chain = offer.chain;
        let successor = chain.check_next(&policy)?.clone();
        let (log, _) = self.base.next_log(volume)?;
        let last = Last {
            version: offer.record.version,
            record_hash: offer.record_hash,
            log,
        };
        if successor.last.as_ref() != Some(&last) {
            return Err(bad(
                "the policy names another last version than that of its base",
            ));
        }
        let before = chain.newest().clone();
        let epoch = (before.log_epoch()).checked_add(u64::from(successor.lower));
        if epoch != Some(successor.log_epoch) {
            return Err(bad("a new log begins exactly where readers go back"));
        }
        let owners = (&before.roles().owners, &successor.roles.owners);
        Ok(ExaminedProposal {
            volume,
            name: chain.genesis().name.clone(),
            old_owners: signatures.tally(&self.policy, owners.0, OLD_OWNERS)?,
            new_owners: signatures.tally(&self.policy, owners.1, NEW_OWNERS)?,
            before,
            policy: successor,
            hash: self.policy.hash(),
            record: offer.record,
            record_hash: offer.record_hash,
            chain,
        })
    }

    /// Signs with the key of an owner: of the policy before, of the new one, or of both.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for any other key; [`SignError::NoSignature`] for one that does not sign. The proposal is
    /// unchanged then.
    pub fn sign(&mut self, examined: &ExaminedProposal, key: &dyn Signer) -> Result<(), SignError> {
        if !examined.may_sign(&key.public()) {
            return Err(SignError::Refused(Reject::NotSigned(
                "the key is not an owner's",
            )));
        }
        let owners = [
            &examined.before.roles().owners,
            &examined.policy.roles.owners,
        ];
        let mut policy = self.policy.reduced_to(&owners);
        policy.add_by(key)?;
        self.policy = policy;
        Ok(())
    }

    /// Takes over the signatures of another copy of the same proposal.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a proposal of another policy.
    pub fn merge(&mut self, other: &Proposal) -> Result<(), Reject> {
        if self.policy.hash() != other.policy.hash() {
            return Err(bad("a copy with another policy"));
        }
        self.policy.merge(&other.policy);
        Ok(())
    }
}

impl ExaminedProposal {
    /// Whether this is the key of an owner, before or after.
    pub fn may_sign(&self, key: &PublicKey) -> bool {
        self.old_owners.has(key) || self.new_owners.has(key)
    }

    /// Who has signed: the owners of the policy before and those of the new one; once, if they stay the same.
    pub fn owners(&self) -> Vec<Tally> {
        let same = Tally {
            role: "owners",
            ..self.new_owners.clone()
        };
        match (Tally {
            role: "owners",
            ..self.old_owners.clone()
        }) == same
        {
            true => vec![same],
            false => vec![self.old_owners.clone(), self.new_owners.clone()],
        }
    }

    /// The owners of whom more must sign. Empty when the policy is signed.
    pub fn missing(&self) -> Vec<Tally> {
        let mut owners = self.owners();
        owners.retain(|tally| !tally.is_enough());
        owners
    }

    /// Whether the file has all policies before this one, so that each was verified from the genesis on.
    pub fn shows_all_policies(&self) -> bool {
        self.chain.oldest() == 0
    }

    /// Whether the policy can follow `signed`, the newest policy of this volume that this signer has signed before.
    ///
    /// # Errors
    /// [`Reject::Rollback`] for a lower number; [`Reject::Fork`] for another policy of the same number, and for
    /// policies that do not contain the signed one; [`Reject::Unproved`] when the head does not carry that one any
    /// more.
    pub fn follows(&self, signed: &Signed) -> Result<(), Reject> {
        let known: Policy = signed.statement().read(self.volume)?;
        let (number, hash) = (known.number(), signed.hash());
        if self.policy.number < number {
            return Err(Reject::Rollback {
                offered: self.policy.number,
                floor: number,
            });
        }
        if self.policy.number == number {
            return match self.hash == hash {
                true => Ok(()),
                false => Err(Reject::Fork("two policies of one number")),
            };
        }
        match self.chain.get(number) {
            Some((_, kept)) if kept == hash => Ok(()),
            Some(_) => Err(Reject::Fork(
                "it continues another policy than the one signed before",
            )),
            None => Err(Reject::Unproved),
        }
    }
}

/// The head after a policy is installed on top of `shown`, which may have a newer version than the one that the policy
/// names as last. `known` is the floor of somebody who knows the policies of `shown`.
///
/// # Errors
/// Those of [`Chain::extend`]; [`Reject::NotSigned`] for a version that does not count under the new policy (rule 3).
pub fn installed(
    known: &Floor,
    shown: &Head,
    policy: &Signed,
    signatures: &mut Signatures,
) -> Result<Head, Reject> {
    let volume = shown.volume()?;
    let known = known.learn(shown, 0, signatures)?;
    let after = known.after(policy, signatures)?;
    let chain = after.chain(signatures)?;
    let newest = chain.as_ref().map(Chain::newest);
    if newest.is_some_and(|policy| policy.revocation().is_none()) {
        after.still_allows(&shown.record, signatures)?;
    }
    let record: RootRecord = shown.record.statement().read(volume)?;
    let last = newest.and_then(Policy::last);
    if last.is_some_and(|last| last.version > record.version) {
        return Err(Reject::Rollback {
            offered: record.version,
            floor: last.map_or(0, |last| last.version),
        });
    }
    let mut head = shown.rotated(policy.clone())?;
    // A timestamp names the policy under which it was issued.
    head.timestamp = None;
    Ok(head)
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
