//! Checks statements against a floor without changing it. Used for proofs of paths.

use crate::error::{Reject, UNSETTLED};
use crate::published::floor::{Adopted, Floor};
use crate::published::forks::TWO_RECORDS;
use crate::published::root::RootRecord;

impl Floor {
    /// Refuses another chain than that of the newest known policy. `policies` are the hashes of a whole chain.
    pub(crate) fn check_known(&self, policies: &[[u8; 32]]) -> Result<(), Reject> {
        let Some((number, hash)) = self.policy() else {
            return Ok(());
        };
        let at = usize::try_from(number).ok().and_then(|at| policies.get(at));
        match at {
            Some(same) if *same == hash => Ok(()),
            Some(_) => Err(Reject::Fork("another policy than the known one")),
            None => Err(Reject::Rollback {
                offered: (policies.len() as u64).saturating_sub(1),
                floor: number,
            }),
        }
    }

    /// Refuses policies and records of a fork that stands, except for the adopted record, and those that the user
    /// refused.
    pub(crate) fn check_not_contradicted(&self, hashes: &[[u8; 32]]) -> Result<(), Reject> {
        if hashes.iter().any(|hash| self.forks.is_refused(hash)) {
            return Err(Reject::Refused("a policy or record that the user refused"));
        }
        let is_adopted =
            |hash: &[u8; 32]| (self.adopted.as_ref()).is_some_and(|it| it.record_hash == *hash);
        let is_rival = |hash: &[u8; 32]| self.forks.rival(hash).is_some() && !is_adopted(hash);
        match hashes.iter().any(is_rival) {
            true => Err(Reject::Fork(UNSETTLED)),
            false => Ok(()),
        }
    }

    /// Refuses another record than the adopted one with its version. A new log may have the number again.
    pub(crate) fn check_same_version(
        &self,
        record: &RootRecord,
        record_hash: &[u8; 32],
    ) -> Result<(), Reject> {
        let is_other = |it: &Adopted| {
            it.version == record.version
                && it.log.epoch == record.log.epoch
                && it.record_hash != *record_hash
        };
        match self.adopted.as_ref().is_some_and(is_other) {
            true => Err(Reject::Fork(TWO_RECORDS)),
            false => Ok(()),
        }
    }
}
