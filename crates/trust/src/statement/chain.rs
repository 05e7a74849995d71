//! The chain of policies from the genesis to the newest, verified (design `trees.md`, rules 1 and 5).
//!
//! A [`Chain`] is made only by [`Chain::verify`]. Time is not checked here: an expired policy may have a
//! successor (rule 2 concerns only the newest policy).

use std::cmp::Ordering;

use crate::error::Reject;
use crate::handle::Hasher;
use crate::statement::policy::{Genesis, Policy};
use crate::statement::signatures::Signatures;
use crate::statement::{Signed, VolumeId};

/// Highest number of policies in a chain.
pub const MAX_POLICIES: usize = 256;

/// One verified policy.
#[derive(Debug, Clone)]
struct Link {
    policy: Policy,
    hash: [u8; 32],
}

/// A verified chain; never empty.
#[derive(Debug, Clone)]
pub struct Chain {
    volume: VolumeId,
    genesis: Genesis,
    newest: Link,
    /// All links, including the newest.
    links: Vec<Link>,
    signed: Vec<Signed>,
}

impl Chain {
    /// Verifies a chain for `volume`, whose id is the hash of the first policy.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`] for another genesis, [`Reject::NotSigned`] for missing or bad signatures,
    /// [`Reject::Malformed`] for policies that do not form a chain.
    pub fn verify(
        volume: VolumeId,
        policies: &[Signed],
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let Some((first, rest)) = policies.split_first() else {
            return Err(bad("no policy"));
        };
        if policies.len() > MAX_POLICIES {
            return Err(bad("too many policies"));
        }
        let mut chain = Chain::begin(volume, first, signatures)?;
        for signed in rest {
            chain.extend(signed, signatures)?;
        }
        Ok(chain)
    }

    fn begin(
        volume: VolumeId,
        first: &Signed,
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let hash = first.hash();
        if hash != *volume.as_bytes() {
            return Err(Reject::WrongVolume);
        }
        let policy: Policy = first.statement().read(VolumeId::UNBORN)?;
        let Policy::Genesis(genesis) = &policy else {
            return Err(bad("does not begin with a genesis policy"));
        };
        signatures.require(first, &genesis.roles.owners, "genesis policy")?;
        // Only what was verified travels on.
        let owned = first.reduced_to(&[&genesis.roles.owners]);
        let genesis = genesis.clone();
        let link = Link { policy, hash };
        Ok(Chain {
            volume,
            genesis,
            newest: link.clone(),
            links: vec![link],
            signed: vec![owned],
        })
    }

    /// Rule 1: number + 1, the previous hash, signatures of the old and the new owners. Rule 5: no policy
    /// after a revocation.
    fn extend(&mut self, signed: &Signed, signatures: &mut Signatures) -> Result<(), Reject> {
        let policy: Policy = signed.statement().read(self.volume)?;
        let Policy::Successor(successor) = &policy else {
            return Err(bad("a second genesis policy"));
        };
        let newest = self.newest();
        if newest.number().checked_add(1) != Some(successor.number) {
            return Err(bad("policy numbers do not count up by one"));
        }
        if successor.previous != self.newest_hash() {
            return Err(bad("a policy does not name the one before it"));
        }
        if newest.revocation().is_some() {
            return Err(bad("a policy after a revocation"));
        }
        if newest.last().is_some() && successor.last.is_none() {
            return Err(bad("a policy without the last record after one with it"));
        }
        let epochs = successor.log_epoch.checked_sub(newest.log_epoch());
        if !matches!(epochs, Some(0 | 1)) {
            return Err(bad("log epochs do not count up by at most one"));
        }
        signatures.require(signed, &newest.roles().owners, "policy, by the old owners")?;
        signatures.require(signed, &successor.roles.owners, "policy, by the new owners")?;
        let owners = [&newest.roles().owners, &successor.roles.owners];
        let owned = signed.reduced_to(&owners);
        self.newest = Link {
            hash: signed.hash(),
            policy,
        };
        self.links.push(self.newest.clone());
        self.signed.push(owned);
        Ok(())
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> Hasher {
        self.genesis.hasher()
    }

    /// The first policy.
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// The newest policy.
    pub fn newest(&self) -> &Policy {
        &self.newest.policy
    }

    /// Hash of the newest policy.
    pub fn newest_hash(&self) -> [u8; 32] {
        self.newest.hash
    }

    /// The policy with this number, and its hash.
    pub fn get(&self, number: u64) -> Option<(&Policy, [u8; 32])> {
        let link = self.links.get(usize::try_from(number).ok()?)?;
        Some((&link.policy, link.hash))
    }

    /// Whether `other` is the beginning of this chain, or all of it.
    pub(crate) fn begins_with(&self, other: &Chain) -> bool {
        let mut pairs = self.links.iter().zip(&other.links);
        self.links.len() >= other.links.len() && pairs.all(|(a, b)| a.hash == b.hash)
    }

    /// The first `len` policies. `None` for none, or for more than there are.
    pub(crate) fn beginning(&self, len: usize) -> Option<Chain> {
        let newest = self.links.get(len.checked_sub(1)?)?.clone();
        let mut chain = self.clone();
        chain.links.truncate(len);
        chain.signed.truncate(len);
        chain.newest = newest;
        Some(chain)
    }

    /// The hash of the policy that this chain has in the place of the newest policy of `known`, if it is another
    /// one. A revocation there is void (rule 5).
    pub(crate) fn sibling_of(&self, known: &Chain) -> Option<[u8; 32]> {
        let at = known.links.len().checked_sub(1)?;
        let agreed = self.links.iter().zip(&known.links);
        let agreed = agreed.take_while(|(a, b)| a.hash == b.hash).count();
        let link = self.links.get(at).filter(|_| agreed == at)?;
        let is_void = link.policy.revocation().is_some() && known.newest().revocation().is_none();
        (!is_void).then_some(link.hash)
    }

    /// Whether one of the policies with these numbers names `hash` as refused.
    pub(crate) fn refuses(&self, numbers: std::ops::Range<usize>, hash: &[u8; 32]) -> bool {
        let policies = self.links.get(numbers).unwrap_or_default();
        policies
            .iter()
            .any(|link| link.policy.refused().contains(hash))
    }

    /// The policies from this number on, oldest first.
    pub(crate) fn since(&self, number: usize) -> impl DoubleEndedIterator<Item = &Policy> {
        self.links.iter().skip(number).map(|link| &link.policy)
    }

    /// Whether the chain contains the policy with this hash.
    pub fn contains(&self, hash: &[u8; 32]) -> bool {
        self.links.iter().any(|l| l.hash == *hash)
    }

    /// The signed statements, for heads and floors, with the signatures of owners and no others.
    pub fn signed(&self) -> &[Signed] {
        &self.signed
    }

    /// The longer of two chains of one volume, if the other is its beginning.
    ///
    /// # Errors
    /// [`Reject::Fork`] when `offered` has another policy in the place of this chain's newest, and
    /// [`Reject::StrayPolicy`] in the place of an older one. [`Reject::NotSigned`] for a revocation in the place of
    /// a policy that this chain knows: such a revocation is void (rule 5).
    pub fn newer_of(self, offered: Chain) -> Result<Chain, Reject> {
        if self.volume != offered.volume {
            return Err(Reject::WrongVolume);
        }
        let newest = self.newest_hash();
        let pairs = self.links.iter().zip(&offered.links);
        for (known, claimed) in pairs {
            if known.hash == claimed.hash {
                continue;
            }
            if claimed.policy.revocation().is_some() && known.policy.revocation().is_none() {
                return Err(Reject::NotSigned("a revocation under a superseded policy"));
            }
            if known.hash != newest {
                return Err(Reject::StrayPolicy("the one after them has a successor"));
            }
            return Err(Reject::Fork("two successors of one policy"));
        }
        match self.links.len().cmp(&offered.links.len()) {
            Ordering::Less => Ok(offered),
            Ordering::Equal | Ordering::Greater => Ok(self),
        }
    }
}

/// Rule 5: nothing is accepted for a revoked volume.
pub(crate) fn check_revoked(chain: &Chain) -> Result<(), Reject> {
    match chain.newest().revocation() {
        Some(revocation) => Err(Reject::Revoked {
            successor: revocation.successor,
        }),
        None => Ok(()),
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "policy chain",
        why,
    }
}
