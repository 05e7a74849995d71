//! A root record that a judge believes, and until when. Comes out of [`crate::published::judge`]; what the reader's
//! floor makes of it stands in [`crate::published::floor`].

use crate::error::Reject;
use crate::history::prefix::{self, Prefix};
use crate::history::{Frontier, LogPoint};
use crate::published::root::RootRecord;
use crate::statement::chain::Chain;

/// A root record that may be believed until `valid_until`. Comes only out of [`judge`](crate::published::judge).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Offer {
    /// The record.
    pub record: RootRecord,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// The newest policies known, verified.
    pub chain: Chain,
    /// Whether it is another record than the one adopted.
    pub is_new: bool,
    /// Until when it may be served, unix seconds (exclusive); with the grace where one was asked.
    pub valid_until: u64,
    /// What time it was for the judge, unix seconds: the clock's, or the newest start if that is
    /// later. Whoever watches `valid_until` begins to count here.
    pub judged_at: u64,
    /// Until when the statements themselves say so, unix seconds (exclusive): what lies between this
    /// and `valid_until` is grace.
    pub fresh_until: u64,
    /// Whether only the grace keeps it alive: warn, and prefer anything fresher.
    pub stale: bool,
    /// The log with this record as its last leaf.
    pub log_after: LogPoint,
    /// The log before this record, as the head tells it and the record's signers confirm.
    pub(crate) before: Frontier,
    /// An older log that was shown to be the beginning of it.
    pub(crate) proved: Option<LogPoint>,
    /// Whether the floor follows it (not for a pinned one).
    pub(crate) moves_floor: bool,
    /// The newest start that this judgement vouches for, unix seconds.
    pub(crate) newest_start: u64,
}

impl Offer {
    /// A newer record stands in a log that has the older one in it: what tiles must show of that,
    /// where the head alone does not.
    pub(crate) fn grows_from(&self, older: &LogPoint) -> Result<Option<Prefix>, Reject> {
        prefix::grown(older, &self.record.log, &self.before)
    }

    /// Takes a proof to which every tile was supplied.
    ///
    /// # Errors
    /// [`Reject::Fork`]: the publisher signed two histories. [`Reject::Unproved`] while tiles are
    /// wanted, or for the proof of another offer.
    pub fn prove(&mut self, prefix: Prefix) -> Result<(), Reject> {
        self.proved = Some(prefix.finish(&self.record.log)?);
        Ok(())
    }
}
