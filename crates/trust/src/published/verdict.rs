//! Many heads at once: what several replicas show is weighed together, so that the order in which
//! they answer decides nothing (design `trees.md`, *Floor*; `publish.md`, *Client*).
//!
//! First everything that the heads teach is learned, then each is judged by that knowledge, then
//! those that pass are held against one another: two that cannot both be honest are a fork, also
//! where the reader has adopted neither.

use crate::error::Reject;
use crate::published::floor::Floor;
use crate::published::head::Head;
use crate::published::judge::{Offer, Terms};
use crate::statement::signatures::Signatures;

/// What came of judging several heads.
#[derive(Debug)]
pub struct Verdict {
    /// The floor after seeing them; adopted is nothing yet. To be stored.
    pub floor: Floor,
    /// What each head is worth, in the order given.
    pub offers: Vec<Result<Offer, Reject>>,
}

impl Floor {
    /// Judges what several replicas show at one time.
    ///
    /// An honest replica that lags behind is refused as far as the newer ones show it to be too old
    /// under their policies; a removed key profits nothing from answering first.
    pub fn judge_all(&self, heads: &[Head], terms: &Terms, signatures: &mut Signatures) -> Verdict {
        let mut floor = self.clone();
        for head in heads {
            let seen = match floor.judge(head, terms, signatures) {
                Ok(offer) => floor.observe(&offer),
                // The record is refused, its policies may still be news.
                Err(_) => floor.learn(head, signatures),
            };
            // Why a head teaches nothing is told again below.
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

/// Both sides of each contradiction are refused: the reader stops, it does not choose.
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
    /// Whether one publisher can have signed both in honesty.
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
