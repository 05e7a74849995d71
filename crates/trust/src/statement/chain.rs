//! The chain of policies, verified: the genesis and the newest ones (design `trees.md`, rules 1 and 5).
//!
//! A [`Chain`] is made of policies that were verified one after another, from the genesis on. It keeps the genesis
//! and the newest [`MAX_POLICIES`] − 1: rotation has no end, so no reader keeps all policies. Heads and floors carry
//! the same ones. The policies between are files of a repository; a reader that needs them gives them to
//! [`Chain::extend`] in their order.
//!
//! Time is not checked here: an expired policy may have a successor (rule 2 concerns only the newest policy).

use crate::error::Reject;
use crate::handle::Hasher;
use crate::statement::policy::{Genesis, Policy, Successor};
use crate::statement::signatures::Signatures;
use crate::statement::{Signed, VolumeId};

/// Most policies that a chain keeps, and that a head or a floor carries: the genesis and the newest ones.
pub const MAX_POLICIES: usize = 8;

/// One verified policy.
#[derive(Debug, Clone)]
pub struct Link {
    /// The decoded policy.
    pub policy: Policy,
    /// Its hash.
    pub hash: [u8; 32],
    /// The signed statement.
    pub signed: Signed,
}

impl Link {
    /// A policy of `volume`. Its signatures and its place in the chain are not checked.
    ///
    /// # Errors
    /// [`Reject::Malformed`], [`Reject::Unsupported`], [`Reject::WrongVolume`].
    pub fn read(volume: VolumeId, signed: &Signed) -> Result<Link, Reject> {
        let hash = signed.hash();
        let volume = match hash == *volume.as_bytes() {
            true => VolumeId::UNBORN,
            false => volume,
        };
        Ok(Link {
            policy: signed.statement().read(volume)?,
            hash,
            signed: signed.clone(),
        })
    }

    /// The hash of the policy before it.
    pub fn previous(&self) -> Option<[u8; 32]> {
        match &self.policy {
            Policy::Genesis(_) => None,
            Policy::Successor(successor) => Some(successor.previous),
        }
    }
}

/// A verified chain; never empty.
#[derive(Debug, Clone)]
pub struct Chain {
    volume: VolumeId,
    genesis: Genesis,
    newest: Link,
    /// The genesis, then the newest links without a gap between them.
    links: Vec<Link>,
}

impl Chain {
    /// Verifies all policies of `volume` from the genesis on. The volume's id is the hash of the first one.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`] for another genesis, [`Reject::NotSigned`] for missing or bad signatures,
    /// [`Reject::Malformed`] for policies that do not form a chain.
    pub fn verify<'a>(
        volume: VolumeId,
        policies: impl IntoIterator<Item = &'a Signed>,
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let mut policies = policies.into_iter();
        let first = policies.next().ok_or_else(|| bad("no policy"))?;
        let mut chain = Chain::begin(volume, first, signatures)?;
        for signed in policies {
            chain.extend(signed, signatures)?;
        }
        Ok(chain)
    }

    /// Reads back the policies that a floor keeps. The floor has verified what lies between the genesis and the
    /// others.
    pub(crate) fn kept(
        volume: VolumeId,
        policies: &[Signed],
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let [first, second, ..] = policies else {
            return Chain::verify(volume, policies, signatures);
        };
        let mut chain = Chain::begin(volume, first, signatures)?;
        let link = Link::read(volume, second)?;
        if link.policy.number() <= 1 {
            return Chain::verify(volume, policies, signatures);
        }
        chain.push(link);
        for signed in policies.iter().skip(2) {
            chain.extend(signed, signatures)?;
        }
        Ok(chain)
    }

    /// The chain that a head's policies show to a reader that knows `known`: `policies` are the genesis and
    /// consecutive later ones, which begin with number 1 or connect with the known ones.
    ///
    /// # Errors
    /// [`Reject::PoliciesMissing`] when policies lie between the known ones and these;
    /// [`Reject::Superseded`] when all of these are older than those that the reader keeps; those of
    /// [`Chain::verify`].
    pub fn shown(
        volume: VolumeId,
        policies: &[Signed],
        known: Option<&Chain>,
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        if policies.len() > MAX_POLICIES {
            return Err(bad("too many policies"));
        }
        let [first, second, ..] = policies else {
            return Chain::verify(volume, policies, signatures);
        };
        let begins = Link::read(volume, second)?.policy.number();
        if begins <= 1 {
            return Chain::verify(volume, policies, signatures);
        }
        // The genesis is known by the volume's id, but each part of a head is checked.
        let from = Chain::begin(volume, first, signatures)?.len();
        let known = known.filter(|known| known.len() >= begins);
        let known = known.ok_or(Reject::PoliciesMissing {
            from,
            until: begins,
        })?;
        let mut rest = policies.iter().skip(1);
        let mut chain = match known.beginning(begins) {
            Some(chain) => chain,
            None => known.meet(&mut rest)?,
        };
        for signed in rest {
            chain.extend(signed, signatures)?;
        }
        Ok(chain)
    }

    /// This chain up to the oldest of its newest policies, which `policies` must contain. Older ones are passed over.
    fn meet<'a>(&self, policies: &mut impl Iterator<Item = &'a Signed>) -> Result<Chain, Reject> {
        let oldest = self.oldest();
        for signed in policies {
            let link = Link::read(self.volume, signed)?;
            if link.policy.number() < oldest {
                continue;
            }
            let same = |(_, hash)| hash == link.hash;
            return match self.get(oldest).is_some_and(same) {
                true => self
                    .beginning(oldest.saturating_add(1))
                    .ok_or_else(|| bad("no policy")),
                false => Err(Reject::NotSigned("policies apart from the known ones")),
            };
        }
        Err(Reject::Superseded("policies older than the newest seven"))
    }

    /// Begins with the genesis.
    ///
    /// # Errors
    /// Those of [`Chain::verify`].
    pub fn begin(
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
        let link = Link {
            policy,
            hash,
            signed: owned,
        };
        Ok(Chain {
            volume,
            genesis,
            newest: link.clone(),
            links: vec![link],
        })
    }

    /// Adds the next policy. Rule 1: number + 1, the previous hash, signatures of the old and the new owners.
    /// Rule 5: no policy after a revocation.
    ///
    /// # Errors
    /// Those of [`Chain::verify`]; the chain is unchanged then.
    pub fn extend(&mut self, signed: &Signed, signatures: &mut Signatures) -> Result<(), Reject> {
        let policy: Policy = signed.statement().read(self.volume)?;
        let successor = self.check_next(&policy)?;
        let newest = self.newest();
        signatures.require(signed, &newest.roles().owners, "policy, by the old owners")?;
        signatures.require(signed, &successor.roles.owners, "policy, by the new owners")?;
        let owners = [&newest.roles().owners, &successor.roles.owners];
        let owned = signed.reduced_to(&owners);
        self.push(Link {
            hash: signed.hash(),
            policy,
            signed: owned,
        });
        Ok(())
    }

    /// Rules 1 and 5 but for the signatures: whether `policy` is the next one after these.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn check_next<'a>(&self, policy: &'a Policy) -> Result<&'a Successor, Reject> {
        let Policy::Successor(successor) = policy else {
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
        Ok(successor)
    }

    fn push(&mut self, link: Link) {
        self.newest = link.clone();
        self.links.push(link);
        if self.links.len() > MAX_POLICIES {
            self.links.remove(1);
        }
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

    /// Number of policies from the genesis to the newest one, kept or not.
    pub fn len(&self) -> u64 {
        self.newest().number().saturating_add(1)
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The lowest number from which on all policies are kept.
    pub fn oldest(&self) -> u64 {
        let kept = self.links.len() as u64;
        match self.len().saturating_sub(kept) {
            0 => 0,
            // Without the genesis.
            lost => lost.saturating_add(1),
        }
    }

    fn place(&self, number: u64) -> Option<usize> {
        match number {
            0 => Some(0),
            _ => usize::try_from(number.checked_sub(self.oldest())?)
                .ok()?
                .checked_add(usize::from(self.oldest() > 0)),
        }
    }

    /// The policy with this number, and its hash, if it is kept.
    pub fn get(&self, number: u64) -> Option<(&Policy, [u8; 32])> {
        self.link(number).map(|link| (&link.policy, link.hash))
    }

    /// The policy with this number, if it is kept.
    pub fn link(&self, number: u64) -> Option<&Link> {
        self.links.get(self.place(number)?)
    }

    /// The policies that this chain and `other` both keep, with their numbers.
    fn beside<'a>(&'a self, other: &'a Chain) -> impl Iterator<Item = (&'a Link, &'a Link)> {
        let pair = |link: &'a Link| Some((link, other.link(link.policy.number())?));
        self.links.iter().filter_map(pair)
    }

    /// Whether `other` is the beginning of this chain, or all of it. Not if this chain keeps neither the newest
    /// policy of `other` nor the one after it.
    pub(crate) fn begins_with(&self, other: &Chain) -> bool {
        let tip = other.newest().number();
        let here = self.link(tip).map(|link| link.hash);
        let after = || self.link(tip.checked_add(1)?)?.previous();
        here.or_else(after) == Some(other.newest_hash())
    }

    /// Whether a policy after the one with the number `known` takes readers back from `version` (rule 4). What was
    /// signed as that version under the known policies binds nobody any more then.
    pub fn takes_back(&self, known: u64, version: u64) -> bool {
        let takes_back = |policy: &Policy| match policy {
            Policy::Genesis(_) => false,
            Policy::Successor(it) => {
                it.lower && it.last.as_ref().is_some_and(|it| it.version < version)
            }
        };
        let later = |link: &&Link| link.policy.number() > known;
        (self.links.iter().filter(later)).any(|link| takes_back(&link.policy))
    }

    /// The first `len` policies. `None` for none, and when the last of them is not kept.
    pub(crate) fn beginning(&self, len: u64) -> Option<Chain> {
        let place = self.place(len.checked_sub(1)?)?;
        let newest = self.links.get(place)?.clone();
        let mut chain = self.clone();
        chain.links.truncate(place.saturating_add(1));
        chain.newest = newest;
        Some(chain)
    }

    /// This chain with the policies of `longer`, which begins with it, up to the first `len`.
    pub(crate) fn continued(&self, longer: &Chain, len: u64) -> Chain {
        let mut chain = self.clone();
        for link in &longer.links {
            let number = link.policy.number();
            if number < len && number == chain.len() {
                chain.push(link.clone());
            }
        }
        chain
    }

    /// The hash of the policy that this chain has in the place of the newest policy of `known`, if it is another
    /// one. A revocation there is void (rule 5).
    pub(crate) fn sibling_of(&self, known: &Chain) -> Option<[u8; 32]> {
        let tip = known.newest().number();
        let before = tip.checked_sub(1)?;
        let link = self
            .link(tip)
            .filter(|link| link.hash != known.newest.hash)?;
        if link.previous() != known.get(before).map(|(_, hash)| hash) {
            return None;
        }
        let is_void = link.policy.revocation().is_some() && known.newest().revocation().is_none();
        (!is_void).then_some(link.hash)
    }

    /// Whether one of the policies with these numbers names `hash` as refused.
    pub(crate) fn refuses(&self, numbers: std::ops::Range<u64>, hash: &[u8; 32]) -> bool {
        let mut policies = self.links.iter().map(|link| &link.policy);
        policies.any(|policy| numbers.contains(&policy.number()) && policy.refused().contains(hash))
    }

    /// The policies from this number on that are kept, oldest first.
    pub(crate) fn since(&self, number: u64) -> impl DoubleEndedIterator<Item = &Policy> {
        let policies = self.links.iter().map(|link| &link.policy);
        policies.filter(move |policy| policy.number() >= number)
    }

    /// The policy with this hash, if it is kept.
    pub fn find(&self, hash: &[u8; 32]) -> Option<&Link> {
        self.links.iter().find(|link| link.hash == *hash)
    }

    /// The signed statements that a head or a floor carries, with the signatures of owners and no others.
    pub fn signed(&self) -> Vec<Signed> {
        self.links.iter().map(|link| link.signed.clone()).collect()
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
        for (known, claimed) in self.beside(&offered) {
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
        match self.len() < offered.len() {
            true => Ok(offered),
            false => Ok(self),
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
