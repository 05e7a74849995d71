//! A verified head without what no policy requires: signatures by keys without a role, timestamps, checkpoints and
//! their lines. A server adds such bytes for free, so they are neither kept nor passed on.

use crate::error::Reject;
use crate::history::Frontier;
use crate::published::checkpoint;
use crate::published::head::Head;
use crate::published::offer::Offer;
use crate::published::root::RootRecord;
use crate::statement::chain::Chain;

impl Offer {
    /// The head without signatures, timestamps and checkpoints that its policies do not require, and with the policies by
    /// which it was judged. `head`: the one that this offer was read from.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another head.
    pub fn reduced(&self, head: &Head) -> Result<Head, Reject> {
        if head.record.hash() != self.record_hash {
            return Err(bad("of another record"));
        }
        reduced(head, &self.chain, &self.record)
    }
}

/// The head without the parts that are not required, so that a check covers each byte of the rest.
pub(crate) fn reduced(head: &Head, chain: &Chain, record: &RootRecord) -> Result<Head, Reject> {
    let newest = chain.newest().roles();
    let timestamp = head.timestamp.as_ref();
    let timestamp = timestamp.filter(|_| !newest.timestamps.is_empty());
    let mut log = head.frontier.clone();
    log.push(head.record.statement().bytes())?;
    let log = log.point(record.log.epoch);
    let note = head.checkpoint.as_ref();
    let note = note.filter(|_| newest.witnesses.needed() > 0);
    Ok(Head {
        policies: chain.signed(),
        // The owners name a record under an older policy by its hash, and nobody knows its publishers.
        record: match chain.get(record.policy_number) {
            Some((policy, _)) => head.record.reduced_to(&[&policy.roles().publishers]),
            None => head.record.clone(),
        },
        timestamp: timestamp.map(|signed| signed.reduced_to(&[&newest.timestamps])),
        checkpoint: match note {
            Some(note) => {
                let note = checkpoint::reduced(note, chain.volume(), &log, &newest.witnesses)?;
                Some(note.into())
            }
            None => None,
        },
        frontier: head.frontier.clone(),
        later_log: later_log(head, chain, record),
    })
}

/// The log after the record that the first policy shown continues, if there are policies between.
fn later_log(head: &Head, chain: &Chain, record: &RootRecord) -> Option<Frontier> {
    let (first, _) = chain.get(chain.oldest().max(1))?;
    let gap = first.number() > record.policy_number.saturating_add(1);
    head.checked_later_log(first).ok().filter(|_| gap)
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: "head", why }
}
