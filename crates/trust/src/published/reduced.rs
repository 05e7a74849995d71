//! A verified head without what no policy requires: signatures by keys without a role, timestamps, checkpoints and
//! their lines. A server adds such bytes for free, so they are neither kept nor passed on.

use crate::error::Reject;
use crate::published::checkpoint;
use crate::published::head::Head;
use crate::published::offer::Offer;
use crate::published::root::RootRecord;
use crate::statement::chain::Chain;
use crate::statement::roles::Threshold;

impl Offer {
    /// The head of which this offer came, without what no policy requires.
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
    let mut policies = Vec::with_capacity(head.policies.len());
    let mut before: Option<&Threshold> = None;
    for (number, signed) in (0u64..).zip(&head.policies) {
        let (policy, _) = chain
            .get(number)
            .ok_or_else(|| bad("a policy is missing"))?;
        let owners = &policy.roles().owners;
        let owners_before = before.unwrap_or(owners);
        policies.push(signed.reduced_to(&[owners, owners_before]));
        before = Some(owners);
    }
    let publishers = chain.get(record.policy_number);
    let (publishers, _) = publishers.ok_or_else(|| bad("a policy is missing"))?;
    let newest = chain.newest().roles();
    let timestamp = head.timestamp.as_ref();
    let timestamp = timestamp.filter(|_| !newest.timestamps.is_empty());
    let mut log = head.frontier.clone();
    log.push(head.record.statement().bytes())?;
    let log = log.point(record.log.epoch);
    let note = head.checkpoint.as_ref();
    let note = note.filter(|_| newest.witnesses.needed() > 0);
    Ok(Head {
        policies,
        record: head.record.reduced_to(&[&publishers.roles().publishers]),
        timestamp: timestamp.map(|signed| signed.reduced_to(&[&newest.timestamps])),
        checkpoint: match note {
            Some(note) => {
                let note = checkpoint::reduced(note, chain.volume(), &log, &newest.witnesses)?;
                Some(note.into())
            }
            None => None,
        },
        frontier: head.frontier.clone(),
    })
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: "head", why }
}
