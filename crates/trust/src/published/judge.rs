//! Whether a head is believed: every rule of design `trees.md` (*Policy*, *Floor*), in one order.
//!
//! 1. The policy chain verifies, and agrees with the one that the reader knows; the longer of the two
//!    counts (rules 1, 3, 5). It contains the pinned policy, if there is one (rule 6). The volume is not
//!    revoked (rule 5).
//! 2. The record is signed by the publishers of the policy that it names.
//! 3. The record is not behind the floor, and no fork stands that keeps it from being adopted. It is under the newest policy, or enough of its signers are publishers
//!    of that policy too, or that policy names it as `last` (rules 3, 4).
//! 4. The timestamp and the cosignatures that the newest policy requires are present.
//! 5. The current time lies in the validity of the record and of the newest policy (rule 2).
//!
//! So evidence of an attack comes before an outage: a head that is both old and expired is a rollback.

use crate::error::Reject;
use crate::history::prefix::Prefix;
use crate::published::checkpoint;
use crate::published::floor::Floor;
use crate::published::head::Head;
use crate::published::standing::{shown_newest, signed_record, superseded};
use crate::published::timestamp::Timestamp;
use crate::statement::VolumeId;
use crate::statement::chain::{Chain, check_revoked};
use crate::statement::policy::Policy;
use crate::statement::signatures::Signatures;

pub use crate::published::offer::Offer;
pub use crate::published::terms::{Freshness, MAX_AHEAD_SECONDS, Terms};

impl Floor {
    /// Judges a head.
    ///
    /// # Errors
    /// The reason why the head is not believed; [`Reject::class`] gives its error name. Nothing is recorded:
    /// see [`Floor::learn`], [`Floor::observe`], [`Floor::adopt`].
    pub fn judge(
        &self,
        head: &Head,
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Result<Offer, Reject> {
        let mut offer = self.signed_offer(head, terms, signatures)?;
        if let Freshness::Pinned {
            version,
            record_hash,
        } = terms.freshness
        {
            check_pinned_record(&offer, version, &record_hash)?;
            offer.moves_floor = false;
            return Ok(offer);
        }
        self.check_refused(&offer.record_hash)?;
        self.admit(&offer)?;
        self.observe(&offer)?.check_forks(&offer.record_hash)?;
        let timestamp = demanded_timestamp(head, &offer, signatures)?;
        check_witnesses(head, &offer)?;
        self.check_time(&mut offer, timestamp.as_ref(), terms)?;
        Ok(offer)
    }

    /// Whether a reader would believe this head now, were it confirmed by this timestamp; with `accepts_early`, at the time at
    /// which its record begins. Gives the proof about the log that is still needed. Cosignatures are demanded: a key that has
    /// confirmed a version confirms no older one any more, and nobody would believe this one without them.
    pub(crate) fn confirms(
        &self,
        head: &Head,
        (timestamp, accepts_early): (&Timestamp, bool),
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Result<Option<Prefix>, Reject> {
        let mut offer = self.signed_offer(head, terms, signatures)?;
        self.check_refused(&offer.record_hash)?;
        let proof = self.admit(&offer)?;
        self.observe(&offer)?.check_forks(&offer.record_hash)?;
        check_witnesses(head, &offer)?;
        let now = offer.judged_at;
        match check_begun(offer.record.start, now) {
            Err(_) if accepts_early => {
                check_begun(timestamp.issued, now)?;
                let until = timestamp.until.min(offer.chain.newest().not_after());
                if now >= until {
                    return Err(Reject::Expired { until, now });
                }
            }
            _ => self.check_time(&mut offer, Some(timestamp), terms)?,
        }
        Ok(proof)
    }

    /// The head's record with its policies, if they are signed as they must be. Neither the floor nor the time is
    /// checked.
    pub(crate) fn signed_offer(
        &self,
        head: &Head,
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Result<Offer, Reject> {
        let chain = self.known_chain(head, signatures)?;
        check_pin(&chain, terms)?;
        check_revoked(&chain)?;
        let record = signed_record(&head.record, &chain, signatures)?;
        let record_hash = head.record.hash();
        let after = head.after_record(&record)?;
        let known_start = self.newest_start_under(&chain, terms.latest_start());
        let superseded = superseded(&chain, head, &record, signatures).err();
        Ok(Offer {
            is_new: self.adopted.as_ref().map(|a| a.record_hash) != Some(record_hash),
            log_after: after.point(record.log.epoch),
            before: head.frontier.clone(),
            proved: None,
            record,
            record_hash,
            signed: head.record.clone(),
            superseded,
            chain,
            valid_until: u64::MAX,
            fresh_until: u64::MAX,
            judged_at: terms.now.max(terms.wall).max(known_start),
            stale: false,
            moves_floor: true,
            newest_start: known_start,
            latest_start: terms.latest_start(),
        })
    }

    /// Rule 2 and *Floor*: refuses statements that start in the future or have ended.
    fn check_time(
        &self,
        offer: &mut Offer,
        timestamp: Option<&Timestamp>,
        terms: &Terms,
    ) -> Result<(), Reject> {
        let now = offer.judged_at;
        let start = offer.record.start;
        check_begun(start, now)?;
        if let Some(timestamp) = timestamp {
            check_begun(timestamp.issued, now)?;
        }
        // Bounded by the wall clock. `now` is never before the newest start, so a bound by `now` would allow
        // each start to be ten minutes after the last one, and a stolen key could move readers' time forward
        // without limit.
        let issued = timestamp.map_or(0, |timestamp| timestamp.issued);
        let newest = start.max(issued).min(terms.latest_start());
        offer.newest_start = offer.newest_start.max(newest);
        // The newest policy bounds records under older ones too.
        let longest = offer.chain.newest().roles().record_max;
        let mut until = offer.record.until().min(start.saturating_add(longest));
        if let Some(timestamp) = timestamp {
            until = until.min(timestamp.until);
        }
        let not_after = offer.chain.newest().not_after();
        offer.fresh_until = until.min(not_after);
        offer.stale = now >= until;
        if let Freshness::Grace(seconds) = terms.freshness {
            until = until.saturating_add(seconds);
        }
        until = until.min(not_after);
        if now >= until {
            return Err(Reject::Expired { until, now });
        }
        offer.valid_until = until;
        Ok(())
    }
}

/// Rule 6.
pub(crate) fn check_pin(chain: &Chain, terms: &Terms) -> Result<(), Reject> {
    match &terms.policy_pin {
        Some(hash) if chain.find(hash).is_none() => {
            Err(Reject::NotPinned("the pinned policy is not in the chain"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_pinned_record(
    offer: &Offer,
    version: u64,
    record_hash: &[u8; 32],
) -> Result<(), Reject> {
    if offer.record.version != version {
        return Err(Reject::NotPinned("another version"));
    }
    if offer.record_hash != *record_hash {
        return Err(Reject::NotPinned("another record of that version"));
    }
    Ok(())
}

/// The timestamp for exactly this record under the newest policy, when that policy lists keys.
fn demanded_timestamp(
    head: &Head,
    offer: &Offer,
    signatures: &mut Signatures,
) -> Result<Option<Timestamp>, Reject> {
    let chain = &offer.chain;
    let newest = (chain.newest(), chain.newest_hash());
    let why = match timestamp_under(newest, head, offer, signatures) {
        Ok(timestamp) => return Ok(timestamp),
        Err(why) => why,
    };
    match shown_newest(chain, head) {
        Some(shown) if timestamp_under(shown, head, offer, signatures).is_ok() => Err(
            Reject::Superseded("a timestamp under a policy that has a successor"),
        ),
        _ => Err(why),
    }
}

/// The timestamp that this policy demands.
fn timestamp_under(
    (policy, hash): (&Policy, [u8; 32]),
    head: &Head,
    offer: &Offer,
    signatures: &mut Signatures,
) -> Result<Option<Timestamp>, Reject> {
    let roles = policy.roles();
    if roles.timestamps.is_empty() {
        return Ok(None);
    }
    let Some(signed) = &head.timestamp else {
        return Err(Reject::NotSigned(
            "the timestamp that the policy demands is missing",
        ));
    };
    let timestamp: Timestamp = signed.statement().read(offer.chain.volume())?;
    if timestamp.record_hash != offer.record_hash {
        return Err(Reject::NotSigned("timestamp of another record"));
    }
    if timestamp.policy_number != policy.number() {
        return Err(Reject::NotSigned("timestamp under another policy number"));
    }
    if timestamp.policy_hash != hash {
        return Err(Reject::NotSigned("timestamp under another policy"));
    }
    match timestamp.until.checked_sub(timestamp.issued) {
        Some(validity) if validity <= roles.timestamp_max => {}
        _ => {
            return Err(Reject::NotSigned(
                "timestamp valid for longer than the policy allows",
            ));
        }
    }
    signatures.require(signed, &roles.timestamps, "timestamp")?;
    Ok(Some(timestamp))
}

/// Checks the cosignatures on the log with this record in it, when the newest policy sets a quorum.
fn check_witnesses(head: &Head, offer: &Offer) -> Result<(), Reject> {
    let witnesses = &offer.chain.newest().roles().witnesses;
    if witnesses.needed() == 0 {
        return Ok(());
    }
    let Some(note) = &head.checkpoint else {
        return Err(Reject::NotSigned("the witnessed checkpoint is missing"));
    };
    let volume: VolumeId = offer.chain.volume();
    checkpoint::verify(note, volume, &offer.log_after, witnesses)
}

fn check_begun(start: u64, now: u64) -> Result<(), Reject> {
    if start > now.saturating_add(MAX_AHEAD_SECONDS) {
        return Err(Reject::NotYetValid { start, now });
    }
    Ok(())
}
