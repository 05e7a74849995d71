//! Judges several heads together, so that the order in which replicas answer does not matter (design
//! `trees.md`, *Floor*; `publish.md`, *Client*).
//!
//! First the reader learns from all heads, then it judges each head with that knowledge, then it compares
//! those that pass. Two records that an honest publisher cannot both have signed are a fork, even when the
//! reader has adopted neither.

use crate::error::Reject;
use crate::history::LogPoint;
use crate::published::floor::Floor;
use crate::published::forks::{RecordFork, TWO_POLICIES, TWO_RECORDS};
use crate::published::head::Head;
use crate::published::judge::{Freshness, Offer, Terms};
use crate::statement::Signed;
use crate::statement::signatures::Signatures;

/// The result of judging several heads.
#[derive(Debug)]
pub struct Verdict {
    /// The floor after seeing them, with nothing adopted yet. The caller stores it.
    pub floor: Floor,
    /// The judgement of each head, in the given order.
    pub offers: Vec<Result<Offer, Reject>>,
}

impl Floor {
    /// Judges the heads that several replicas show at one time. The order of the heads decides nothing.
    ///
    /// A head of an honest replica that lags behind is refused when newer heads show that it is too old under
    /// their policies. A removed key gains nothing when its head comes first. Of policies and records that
    /// contradict each other none is kept, and the returned floor remembers the fork.
    pub fn judge_all(&self, heads: &[Head], terms: &Terms, signatures: &mut Signatures) -> Verdict {
        let mut floor = self.learn_all(heads, terms, signatures);
        for head in heads {
            if let Ok(offer) = floor.judge(head, terms, signatures)
                && offer.moves_floor
            {
                floor.newest_start = floor.newest_start.max(offer.newest_start);
            }
        }
        let judge = |head: &Head| floor.judge(head, terms, signatures);
        let mut offers: Vec<Result<Offer, Reject>> = heads.iter().map(judge).collect();
        if floor.forks.records.is_none() {
            floor.forks.records = floor.record_fork(heads, &offers, terms, signatures);
        }
        refuse_forks(&mut offers);
        for offer in &mut offers {
            if let Ok(passed) = offer
                && passed.moves_floor
                && let Err(why) = floor.check_forks(&passed.record_hash)
            {
                *offer = Err(why);
            }
        }
        if floor.forks.policies != self.forks.policies {
            name_branches(&floor, heads, &mut offers);
        }
        Verdict { floor, offers }
    }

    /// The floor after learning what the policies of all heads agree on. A pinned reader learns nothing.
    fn learn_all(&self, heads: &[Head], terms: &Terms, signatures: &mut Signatures) -> Floor {
        if matches!(terms.freshness, Freshness::Pinned { .. }) {
            return self.clone();
        }
        // The error of a head that teaches nothing comes again when it is judged.
        let parts: Vec<&[Signed]> = heads.iter().map(|head| &*head.policies).collect();
        self.learn_parts(&parts, terms.wall, signatures).0
    }

    /// Two records of one version among the offers, or between a head and the adopted record. Of several such pairs
    /// the smallest, whatever the order of the heads.
    fn record_fork(
        &self,
        heads: &[Head],
        offers: &[Result<Offer, Reject>],
        terms: &Terms,
        signatures: &mut Signatures,
    ) -> Option<RecordFork> {
        let mut known: Vec<(u64, ([u8; 32], LogPoint))> = Vec::new();
        let adopted = self.adopted.as_ref();
        known.extend(adopted.map(|a| (a.version, (a.record_hash, a.log))));
        for (head, offer) in heads.iter().zip(offers) {
            let record = match offer {
                Ok(offer) if offer.moves_floor => Some(offer.clone()),
                Err(Reject::Fork(TWO_RECORDS)) => self.signed_offer(head, terms, signatures).ok(),
                _ => None,
            };
            known.extend(record.map(|o| (o.record.version, (o.record_hash, o.log_after))));
        }
        known.sort_by_key(|(version, (hash, _))| (*version, *hash));
        known.dedup_by_key(|(version, (hash, _))| (*version, *hash));
        let mut pairs = known.iter().zip(known.iter().skip(1));
        let (one, other) = pairs.find(|(one, other)| one.0 == other.0)?;
        RecordFork::of(one.0, one.1, other.1)
    }
}

/// Names the heads that show one of two contradicting policies, which are evidence, apart from those that are
/// refused only because of that fork.
fn name_branches(floor: &Floor, heads: &[Head], offers: &mut [Result<Offer, Reject>]) {
    let Some(fork) = floor.forks.policies() else {
        return;
    };
    for (head, offer) in heads.iter().zip(offers) {
        let mut hashes = head.policies.iter().map(Signed::hash);
        if offer.as_ref().is_err_and(Reject::is_unsettled_fork)
            && hashes.any(|hash| fork.other(&hash).is_some())
        {
            *offer = Err(Reject::Fork(TWO_POLICIES));
        }
    }
}

/// Refuses both sides of each contradiction: the reader stops and does not choose.
fn refuse_forks(offers: &mut [Result<Offer, Reject>]) {
    let contradicts = |one: &Result<Offer, Reject>| {
        let one = one.as_ref().ok()?;
        let others = offers.iter().filter_map(|o| o.as_ref().ok());
        others
            .filter_map(|other| one.agrees_with(other).err())
            .min_by_key(Reject::to_string)
    };
    let forks: Vec<Option<Reject>> = offers.iter().map(contradicts).collect();
    for (offer, fork) in offers.iter_mut().zip(forks) {
        if let Some(fork) = fork {
            *offer = Err(fork);
        }
    }
}

impl Offer {
    /// Whether an honest publisher can have signed both.
    ///
    /// # Errors
    /// [`Reject::Fork`] for two records of one version, or a newer one whose log lacks the older.
    pub fn agrees_with(&self, other: &Offer) -> Result<(), Reject> {
        if self.record_hash == other.record_hash {
            return Ok(());
        }
        if self.record.version == other.record.version {
            return Err(Reject::Fork(TWO_RECORDS));
        }
        let (older, newer) = if self.record.version < other.record.version {
            (self, other)
        } else {
            (other, self)
        };
        newer.grows_from(&older.log_after).map(drop)
    }
}
