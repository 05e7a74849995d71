//! What refused heads prove, for people: forks, rollbacks and stray policies.
//!
//! A mirror can vary a head without a key: with signatures by strangers, with unsigned timestamps and checkpoints, and
//! with any record beside contradicting policies. So a piece of evidence has only what was verified, and its name is
//! that of the statement. All variants of one head give one name.

use crate::error::Reject;
use crate::published::floor::Floor;
use crate::published::forks::TWO_POLICIES;
use crate::published::head::Head;
use crate::published::standing::signed_record;
use crate::statement::Signed;
use crate::statement::chain::{Chain, Link};
use crate::statement::signatures::Signatures;
use crate::text::{self, Noun};

/// What a piece of evidence proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvidenceClass {
    /// Two statements that an honest signer cannot both have signed.
    Fork,
    /// An older record than one already seen.
    Rollback,
    /// A second successor of a policy that is not the newest. Removed owners can make any number of them.
    StrayPolicy,
}

impl EvidenceClass {
    /// How the names of its evidence begin.
    pub fn prefix(self) -> &'static str {
        match self {
            EvidenceClass::Fork => "fork-",
            EvidenceClass::Rollback => "rollback-",
            EvidenceClass::StrayPolicy => "stray-",
        }
    }
}

/// A piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// What it proves.
    pub class: EvidenceClass,
    /// Its name: the class and the record or policy.
    pub name: String,
    /// A head without what no policy requires, a signed policy, or a part of the proof of a fork.
    pub bytes: Vec<u8>,
}

impl Evidence {
    /// A part of the proof that the log of this record is a fork: the reader's floor, or a tile.
    pub fn part(record_hash: &[u8; 32], part: &str, bytes: Vec<u8>) -> Evidence {
        let class = EvidenceClass::Fork;
        let record = text::write(Noun::Record, record_hash);
        Evidence {
            class,
            name: format!("{}{record}.{part}", class.prefix()),
            bytes,
        }
    }

    fn policy(class: EvidenceClass, signed: &Signed) -> Evidence {
        let policy = text::write(Noun::Policy, &signed.hash());
        Evidence {
            class,
            name: format!("{}{policy}", class.prefix()),
            bytes: signed.to_bytes(),
        }
    }
}

impl Floor {
    /// What a head proves that was refused for `why`: the head, or the policy in it that contradicts the known ones
    /// and the known one in its place. Nothing for a head that proves nothing. `self` is the floor after the
    /// judgement.
    pub fn evidence(
        &self,
        head: &Head,
        why: &Reject,
        signatures: &mut Signatures,
    ) -> Vec<Evidence> {
        let class = match why {
            Reject::StrayPolicy(_) => EvidenceClass::StrayPolicy,
            Reject::Rollback { .. } => EvidenceClass::Rollback,
            Reject::Fork(_) => EvidenceClass::Fork,
            _ => return Vec::new(),
        };
        if class == EvidenceClass::StrayPolicy || *why == Reject::Fork(TWO_POLICIES) {
            let known = self.chain(signatures).ok().flatten();
            let chain = Chain::shown(self.volume, &head.policies, known.as_ref(), signatures);
            return chain.map_or(Vec::new(), |chain| self.policies_apart(class, &chain));
        }
        let head = self.head_as_evidence(class, head, signatures);
        head.into_iter().collect()
    }

    /// A head of which the policies and the record are signed as they must be.
    pub fn head_as_evidence(
        &self,
        class: EvidenceClass,
        head: &Head,
        signatures: &mut Signatures,
    ) -> Option<Evidence> {
        let chain = self.known_chain(head, signatures).ok()?;
        let record = signed_record(&head.record, &chain, signatures).ok()?;
        head.after_record(&record).ok()?;
        let (policy, _) = chain.get(record.policy_number)?;
        let shown = head.newest_policy();
        let proved = Head {
            policies: chain.beginning(shown.saturating_add(1))?.signed(),
            record: head.record.reduced_to(&[&policy.roles().publishers]),
            timestamp: None,
            checkpoint: None,
            frontier: head.frontier.clone(),
            later_log: None,
        };
        let record = text::write(Noun::Record, &proved.record.hash());
        Some(Evidence {
            class,
            name: format!("{}{record}", class.prefix()),
            bytes: proved.encode().ok()?,
        })
    }

    /// The first policy of `chain` that is not known, and the known one in its place.
    fn policies_apart(&self, class: EvidenceClass, chain: &Chain) -> Vec<Evidence> {
        let of_fork = |signed: &&Signed| {
            let fork = self.forks.policies();
            fork.is_some_and(|fork| fork.other(&signed.hash()).is_some())
        };
        let number = |signed: &Signed| {
            let link = Link::read(self.volume, signed);
            link.ok().map(|link| link.policy.number())
        };
        let known = |at: &Signed| {
            self.policies
                .iter()
                .find(|known| number(known) == number(at))
        };
        let shown = chain.signed();
        let new = shown
            .iter()
            .find(|it| known(it).is_none_or(|k| k.hash() != it.hash()));
        let (lie, known) = match (new, shown.iter().find(of_fork)) {
            (_, Some(signed)) => (Some(signed), self.policies.iter().find(of_fork)),
            (Some(signed), None) => (Some(signed), known(signed)),
            (None, None) => (None, None),
        };
        let found = lie.into_iter().chain(known);
        found
            .map(|signed| Evidence::policy(class, signed))
            .collect()
    }
}
