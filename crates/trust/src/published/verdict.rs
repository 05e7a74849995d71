//! Judges several heads together, so that the order in which replicas answer does not matter (design
//! `trees.md`, *Floor*; `publish.md`, *Client*).
//!
//! First the reader learns from all heads, then it judges each head with that knowledge, then it compares
//! those that pass. Two records that an honest publisher cannot both have signed are a fork, even when the
//! reader has adopted neither.

use crate::error::Reject;
use crate::published::floor::Floor;
use crate::published::head::Head;
use crate::published::judge::{Offer, Terms};
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
    /// Judges the heads that several replicas show at one time.
    ///
    /// A head of an honest replica that lags behind is refused when newer heads show that it is too old under
    /// their policies. A removed key gains nothing when its head comes first.
    pub fn judge_all(&self, heads: &[Head], terms: &Terms, signatures: &mut Signatures) -> Verdict {
        let mut floor = self.clone();
        for head in heads {
            let seen = match floor.judge(head, terms, signatures) {
                Ok(offer) => floor.observe(&offer),
                // The record is refused, but its policies may be new.
                Err(_) => floor.learn(head, terms.wall, signatures),
            };
            // The error of a head that teaches nothing comes again below.
            floor = seen.unwrap_or(floor);
        }
        let mut offers: Vec<Result<Offer, Reject>> = heads
            .iter()
            .map(|head| floor.judge(head, terms, signatures))
            .collect();
        refuse_forks(&mut offers);
        Verdict { floor, offers }
    }
}

/// Refuses both sides of each contradiction: the reader stops and does not choose.
fn refuse_forks(offers: &mut [Result<Offer, Reject>]) {
    let contradicts = |one: &Result<Offer, Reject>| {
        let one = one.as_ref().ok()?;
        let others = offers.iter().filter_map(|o| o.as_ref().ok());
        others
            .filter_map(|other| one.agrees_with(other).err())
            .next()
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
            return Err(Reject::Fork("two records of one version"));
        }
        let (older, newer) = if self.record.version < other.record.version {
            (self, other)
        } else {
            (other, self)
        };
        newer.grows_from(&older.log_after).map(drop)
    }
}
