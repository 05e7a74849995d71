//! A root record that passed the judgement, and until when it may be believed. Made by
//! [`crate::published::judge`]; [`crate::published::floor`] adopts it.

use crate::error::Reject;
use crate::history::prefix::{self, Prefix};
use crate::history::{Frontier, LogPoint};
use crate::published::root::RootRecord;
use crate::statement::Signed;
use crate::statement::chain::Chain;

/// A root record that may be believed until `valid_until`. Made only by [`judge`](crate::published::judge).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Offer {
    /// The record.
    pub record: RootRecord,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// It with its signatures.
    pub signed: Signed,
    /// The newest policies that are known, verified.
    pub chain: Chain,
    /// Whether it differs from the adopted record.
    pub is_new: bool,
    /// Until when it may be served, unix seconds (exclusive). Includes the grace that was asked for.
    pub valid_until: u64,
    /// The time of the judgement, unix seconds: the clock's, or the newest start if that is later. A caller
    /// that measures the time until `valid_until` starts here.
    pub judged_at: u64,
    /// Until when the statements themselves are valid, unix seconds (exclusive). The time from this to
    /// `valid_until` is grace.
    pub fresh_until: u64,
    /// Whether only the grace keeps it valid: warn, and prefer any fresher record.
    pub stale: bool,
    /// The log with this record as its last leaf.
    pub log_after: LogPoint,
    /// The log before this record, as the head gives it and the record's signers confirm.
    pub(crate) before: Frontier,
    /// Why the newest policy does not let it count, if it does not (rule 3).
    pub(crate) superseded: Option<Reject>,
    /// An older log that was proved to be the beginning of this one.
    pub(crate) proved: Option<LogPoint>,
    /// Whether adopting it changes the floor (false for a pinned record).
    pub(crate) moves_floor: bool,
    /// The newest start or issue that this judgement verified, unix seconds, bounded by the wall clock.
    pub(crate) newest_start: u64,
    /// The latest start or issue that the wall clock allows to record, unix seconds.
    pub(crate) latest_start: u64,
}

impl Offer {
    /// What tiles must show so that this record's log is known to contain the record of `older`. `None` when
    /// the head alone shows it.
    pub(crate) fn grows_from(&self, older: &LogPoint) -> Result<Option<Prefix>, Reject> {
        prefix::grown(older, &self.record.log, &self.before)
    }

    /// Accepts a proof after all its tiles were supplied.
    ///
    /// # Errors
    /// [`Reject::Fork`]: the publisher signed two histories. [`Reject::Unproved`] while tiles are
    /// wanted, or for the proof of another offer.
    pub fn prove(&mut self, prefix: Prefix) -> Result<(), Reject> {
        self.proved = Some(prefix.finish(&self.record.log)?);
        Ok(())
    }
}
