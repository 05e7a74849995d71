//! Policies of a shared volume: its genesis, and the epochs of its log (docs/formats/shared.md, *Policies*). Relies on
//! [`trust::statement::chain`] for the rules that all volumes have.
//!
//! An epoch has one orderer key and begins with a prefix of the log before. A policy that changes the orderer, or that
//! says after a fork which prefix stands, begins the next epoch.

use super::entry::Prefix;
use trust::error::Reject;
use trust::history::Frontier;
use trust::key::PublicKey;
use trust::statement::chain::Chain;
use trust::statement::policy::{Genesis, Last, Policy, Successor};
use trust::statement::signatures::Signatures;
use trust::statement::{Signed, Statement};
use trust::volume_id::VolumeId;

pub use trust::statement::shared_roles::{Founder, MAX_PATIENCE_MS, SharedRoles, Silence};

/// The statement of a new shared volume. Its hash is the volume id, and not [`Genesis::volume_id`], which is that of a
/// published volume.
pub fn genesis(genesis: &Genesis, roles: &SharedRoles) -> Statement {
    Statement::shared_policy(VolumeId::UNBORN, &Policy::Genesis(genesis.clone()), roles)
}

/// The statement of a later policy.
pub fn successor(volume: VolumeId, successor: &Successor, roles: &SharedRoles) -> Statement {
    Statement::shared_policy(volume, &Policy::Successor(successor.clone()), roles)
}

/// The `last` of a policy that begins the epoch after `epoch` with a prefix of that epoch's log.
pub fn standing(epoch: u64, prefix: &Prefix) -> Last {
    Last {
        version: 0,
        record_hash: [0; 32],
        log: prefix.in_epoch(epoch),
    }
}

/// One epoch of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// Its number.
    pub number: u64,
    /// The key that signs its notes.
    pub orderer: PublicKey,
    /// The prefix of the epoch before with which its log begins.
    pub start: Prefix,
    /// Whether a device gives up what it has beyond `start`.
    pub lowers: bool,
}

impl Epoch {
    /// Whether a device whose log has `size` leaves in the epoch before may go over to this epoch. What it has must
    /// begin this epoch's log, as far as both go.
    pub fn takes_over(&self, size: u64) -> bool {
        self.lowers || size <= self.start.size
    }
}

/// The verified policies of a shared volume.
#[derive(Debug, Clone)]
pub struct Policies {
    chain: Chain,
    roles: SharedRoles,
    founder: Founder,
    earlier: Vec<Epoch>,
    newest: Epoch,
}

impl Policies {
    /// Begins with the genesis policy.
    ///
    /// # Errors
    /// Those of [`Chain::begin`].
    pub fn begin(
        volume: VolumeId,
        genesis: &Signed,
        signatures: &mut Signatures,
    ) -> Result<Policies, Reject> {
        let chain = Chain::begin(volume, genesis, signatures)?;
        let roles = genesis.statement().shared_roles()?;
        let founder = roles.founder.clone().ok_or(bad("no founder"))?;
        let epoch = Epoch {
            number: 0,
            orderer: roles.orderer,
            start: Prefix {
                size: 0,
                root: Frontier::new().root(),
            },
            lowers: false,
        };
        Ok(Policies {
            chain,
            roles,
            founder,
            earlier: Vec::new(),
            newest: epoch,
        })
    }

    /// Verifies all policies from the genesis on.
    ///
    /// # Errors
    /// Those of [`Policies::begin`] and [`Policies::extend`].
    pub fn verify<'a>(
        volume: VolumeId,
        policies: impl IntoIterator<Item = &'a Signed>,
        signatures: &mut Signatures,
    ) -> Result<Policies, Reject> {
        let mut policies = policies.into_iter();
        let first = policies.next().ok_or(bad("no policy"))?;
        let mut verified = Policies::begin(volume, first, signatures)?;
        for signed in policies {
            verified.extend(signed, signatures)?;
        }
        Ok(verified)
    }

    /// Adds the next policy.
    ///
    /// # Errors
    /// Those of [`Chain::extend`]; [`Reject::Malformed`] for a policy that changes the orderer or the start of the
    /// log without a new epoch, or names no prefix of the epoch before. Nothing has changed then.
    pub fn extend(&mut self, signed: &Signed, signatures: &mut Signatures) -> Result<(), Reject> {
        let roles = signed.statement().shared_roles()?;
        let policy: Policy = signed.statement().read(self.chain.volume())?;
        let epoch = self.epoch_of(&policy, &roles)?;
        self.chain.extend(signed, signatures)?;
        if let Some(epoch) = epoch {
            self.earlier
                .push(std::mem::replace(&mut self.newest, epoch));
        }
        self.roles = roles;
        Ok(())
    }

    /// The epoch that a policy begins, if it begins one.
    fn epoch_of(&self, policy: &Policy, roles: &SharedRoles) -> Result<Option<Epoch>, Reject> {
        let newest = self.newest_epoch();
        if policy.log_epoch() == newest.number {
            if roles.orderer != newest.orderer {
                return Err(bad("another orderer in the same epoch"));
            }
            if policy.last() != self.chain.newest().last() {
                return Err(bad("another start of the same epoch"));
            }
            return Ok(None);
        }
        let last = policy.last().ok_or(bad("an epoch without a start"))?;
        let start = Prefix {
            size: last.log.size,
            root: last.log.root,
        };
        if *last != standing(newest.number, &start) {
            return Err(bad("an epoch that does not begin with the one before"));
        }
        if start.size < newest.start.size {
            return Err(bad("an epoch that begins before the one before"));
        }
        Ok(Some(Epoch {
            number: policy.log_epoch(),
            orderer: roles.orderer,
            start,
            lowers: policy.lowers(),
        }))
    }

    /// The chain of policies.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Roles and terms of the newest policy.
    pub fn roles(&self) -> &SharedRoles {
        &self.roles
    }

    /// The first user and device.
    pub fn founder(&self) -> &Founder {
        &self.founder
    }

    /// The epoch of the newest policy.
    pub fn newest_epoch(&self) -> &Epoch {
        &self.newest
    }

    /// An epoch by its number.
    pub fn epoch(&self, number: u64) -> Option<&Epoch> {
        match number == self.newest.number {
            true => Some(&self.newest),
            false => self.earlier.get(usize::try_from(number).ok()?),
        }
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "policy of a shared volume",
        why,
    }
}

#[cfg(test)]
mod tests;
