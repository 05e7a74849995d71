//! The policies that heads rely on and do not carry. A head carries the genesis and the newest seven; a reader that
//! knows less asks replicas for those between, by number, and verifies each before it asks for many more.
//!
//! All replicas that show a head are heard at each number, so that two successors of one policy are seen as a fork
//! whichever replica answers first. A verified policy is stored at once, and the next round goes on after it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use store::mirrors::outage::through_outages;
use store::object::ObjectName;
use store::{Replica, StoreError};
use trust::Reject;
use trust::chain::Link;
use trust::error::Class;
use trust::floor::Floor;
use trust::head::Head;
use trust::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

use crate::error::VolumeError;
use crate::heads::HeadRound;

/// Policies that one replica is asked for at a time.
const REQUESTS: usize = 16;
/// Most policies of one replica that are looked at together. More than the eight that decide a fork.
const MAX_PART: u64 = 64;
/// A part that is longer than this ends, if it has enough policies, bytes.
const MAX_PART_BYTES: usize = 2 << 20;
/// Most that one replica may send in a round, bytes.
const MAX_ROUND_BYTES: usize = 32 << 20;
/// Policies that a part has at least, if there are more.
const MIN_PART: usize = 10;

/// What was learned of the policies between.
pub(crate) struct Learned {
    /// The floor that knows them.
    pub floor: Floor,
    /// For each head: why its replica's policies cannot be read, if they are those of a later bulla.
    newer: Vec<Option<Reject>>,
}

impl Learned {
    /// Why a head is refused: that of number `at` of those that policies were learned for. Policies that this build
    /// cannot read are not missing.
    pub fn reason(&self, at: usize, why: Reject) -> Reject {
        match (self.newer.get(at), why) {
            (Some(Some(newer)), Reject::PoliciesMissing { .. }) => newer.clone(),
            (_, why) => why,
        }
    }
}

/// What a replica shows.
struct Shown<'a> {
    mirror: Option<usize>,
    replica: Option<Arc<dyn Replica>>,
    head: &'a Head,
    bytes: usize,
    /// Whether it was asked for policies beside its head.
    was_asked: bool,
    /// Whether it is not asked any more in this round.
    is_over: bool,
    /// Why its policies cannot be read, if they are those of a later bulla.
    newer: Option<Reject>,
}

/// The genesis and the policies that came.
struct Part {
    policies: Vec<Signed>,
    bytes: usize,
    fault: Option<Fault>,
}

/// Why no more came.
enum Fault {
    /// The replica does not have the policy, or does not answer.
    Outage(String),
    /// What came is no policy.
    Wrong(Reject),
}

impl HeadRound<'_> {
    /// Learns the policies that lie between the known ones and those of these heads, as far as replicas show them,
    /// and returns the floor that knows them. It is stored if `keeps`. A head that does not connect then is refused
    /// when it is judged; [`Learned::reason`] tells why.
    ///
    /// # Errors
    /// [`VolumeError::State`].
    pub(crate) async fn learn_policies(
        &self,
        heads: &[(Option<usize>, &Head)],
        keeps: bool,
        deadline: Instant,
    ) -> Result<Learned, VolumeError> {
        let mut floor = self.floor(deadline).await?;
        if heads.iter().all(|(_, head)| floor.lacks(head).is_none()) {
            let newer = Vec::new();
            return Ok(Learned { floor, newer });
        }
        // A newcomer knows the genesis by the volume id, whoever shows it.
        let genesis = heads
            .iter()
            .map(|(_, head)| head.policies.iter().take(1).cloned().collect());
        let begun = self.learn_parts(floor, genesis.collect(), keeps, deadline);
        (floor, _) = begun.await?;
        // The other half of the time is for blocks.
        let now = Instant::now();
        let until = now + deadline.saturating_duration_since(now) / 2;
        let replicas: Vec<Arc<dyn Replica>> = self.mirrors.replicas().cloned().collect();
        let mut shown: Vec<Shown<'_>> = heads
            .iter()
            .map(|(mirror, head)| Shown {
                mirror: *mirror,
                replica: mirror.and_then(|mirror| replicas.get(mirror).cloned()),
                head,
                bytes: 0,
                was_asked: false,
                is_over: false,
                newer: None,
            })
            .collect();
        loop {
            let parts = self.parts(&floor, &mut shown, until).await;
            let (next, wrong) = self
                .learn_parts(floor.clone(), parts, keeps, deadline)
                .await?;
            for (shown, why) in shown.iter_mut().zip(wrong) {
                if let Some(why) = why {
                    self.refuse(shown, &why);
                }
            }
            let goes_on = next.policy() != floor.policy() && Instant::now() < until;
            floor = next;
            if !goes_on {
                let newer = shown.into_iter().map(|shown| shown.newer).collect();
                return Ok(Learned { floor, newer });
            }
        }
    }

    async fn learn_parts(
        &self,
        floor: Floor,
        parts: Vec<Vec<Signed>>,
        keeps: bool,
        deadline: Instant,
    ) -> Result<(Floor, Vec<Option<Reject>>), VolumeError> {
        let (signatures, wall) = (self.signatures.clone(), self.wall);
        let learn = move |floor: &Floor| {
            let parts: Vec<&[Signed]> = parts.iter().map(Vec::as_slice).collect();
            let mut signatures = signatures.lock().unwrap_or_else(PoisonError::into_inner);
            floor.learn_parts(&parts, wall, &mut signatures)
        };
        if !keeps {
            return Ok(learn(&floor));
        }
        self.update(deadline, move |locked| {
            let before = locked.load()?;
            let (next, wrong) = learn(&before);
            if next != before {
                locked.store(&next)?;
            }
            Ok((next, wrong))
        })
        .await
    }

    /// Whether a reader learns something of this part alone, and nothing is wrong with it.
    fn teaches(&self, floor: &Floor, part: &Part) -> bool {
        let parts: &[&[Signed]] = &[&part.policies];
        let (next, wrong) = floor.learn_parts(parts, self.wall, &mut self.signatures());
        let is_good = part.fault.is_none() && wrong.iter().all(Option::is_none);
        is_good && next.policy() != floor.policy()
    }

    /// What each of these shows from the newest known policy on. Once one has shown policies that count, the others are
    /// waited for no longer than in a round of heads.
    async fn parts(
        &self,
        floor: &Floor,
        shown: &mut [Shown<'_>],
        mut until: Instant,
    ) -> Vec<Vec<Signed>> {
        let volume = floor.volume();
        let from = floor.policy().map_or(1, |(number, _)| number.max(1));
        let mut parts: Vec<Vec<Signed>> = shown.iter().map(|_| Vec::new()).collect();
        let mut asked = stream::FuturesUnordered::new();
        for (at, (shown, slot)) in shown.iter_mut().zip(&mut parts).enumerate() {
            match (floor.lacks(shown.head), &shown.replica) {
                _ if shown.is_over => {}
                (Some(_), Some(replica)) => {
                    shown.was_asked = true;
                    let (replica, head) = (replica.clone(), shown.head);
                    let asks_until = if self.through_outages {
                        until
                    } else {
                        Instant::now()
                    };
                    let part = async move { part(&*replica, volume, head, from, asks_until).await };
                    asked.push(async move { (at, part.await) });
                }
                _ => slot.clone_from(&shown.head.policies),
            }
        }
        while !asked.is_empty() {
            let Ok(Some((at, part))) = tokio::time::timeout_at(until.into(), asked.next()).await
            else {
                break;
            };
            let Some((shown, slot)) = shown.get_mut(at).zip(parts.get_mut(at)) else {
                continue;
            };
            shown.bytes = shown.bytes.saturating_add(part.bytes);
            shown.is_over |= shown.bytes > MAX_ROUND_BYTES;
            // A fast liar does not shorten the wait for the others.
            if self.teaches(floor, &part) {
                until = until.min(Instant::now() + self.patience);
            }
            match part.fault {
                None => {}
                Some(Fault::Outage(cause)) => {
                    tracing::warn!(%cause, "a policy cannot be fetched");
                }
                Some(Fault::Wrong(why)) => self.refuse(shown, &why),
            }
            *slot = part.policies;
        }
        drop(asked);
        for (shown, part) in shown.iter_mut().zip(&parts) {
            // A replica that has not answered is not asked again.
            shown.is_over |= part.is_empty();
        }
        parts
    }

    /// Asks a replica for no more policies. It is to blame if it shows wrong ones, and not for those of a later bulla.
    fn refuse(&self, shown: &mut Shown<'_>, why: &Reject) {
        shown.is_over = true;
        // The judgement reports the faults of a head itself.
        if !shown.was_asked {
            return;
        }
        let place = shown.replica.as_ref().map_or("", |replica| replica.place());
        match why.class() {
            Class::Integrity => tracing::error!(replica = place, %why, "a wrong policy"),
            Class::Unsupported => {
                tracing::warn!(replica = place, %why, "a policy of a later bulla");
                shown.newer = Some(why.clone());
            }
            _ => return,
        }
        self.blame(shown.mirror, why);
    }
}

/// The genesis, and the policies from `from` on that a replica shows: those of its head, and its files before them.
/// While it does not answer, it is asked again until `asks_until`.
async fn part(
    replica: &dyn Replica,
    volume: VolumeId,
    head: &Head,
    from: u64,
    asks_until: Instant,
) -> Part {
    let mut part = Part {
        policies: head.policies.iter().take(1).cloned().collect(),
        bytes: 0,
        fault: None,
    };
    let Some(objects) = replica.objects() else {
        let cause = format!("{} shows no policies", replica.place());
        part.fault = Some(Fault::Outage(cause));
        return part;
    };
    let begins = head.begins();
    let until = begins.min(from.saturating_add(MAX_PART));
    let ask = |number| {
        let name = ObjectName::Policy(number);
        let once = move || objects.range(name, 0, MAX_SIGNED_BYTES.saturating_add(1));
        async move {
            let answer = through_outages(asks_until, once).await;
            policy_of(answer, replica.place(), volume, number)
        }
    };
    let mut answers = stream::iter(from..until).map(ask).buffered(REQUESTS);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok((policy, bytes)) => {
                part.policies.push(policy);
                part.bytes = part.bytes.saturating_add(bytes);
            }
            Err(fault) => {
                part.fault = Some(fault);
                return part;
            }
        }
        if part.bytes > MAX_PART_BYTES && part.policies.len() >= MIN_PART {
            return part;
        }
    }
    if until == begins {
        part.policies.extend(head.policies.iter().skip(1).cloned());
    }
    part
}

/// The policy in a replica's answer, and how many bytes came. Only its number is checked.
fn policy_of(
    answer: Result<Option<Bytes>, StoreError>,
    place: &str,
    volume: VolumeId,
    number: u64,
) -> Result<(Signed, usize), Fault> {
    let bytes = match answer {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let name = ObjectName::Policy(number);
            return Err(Fault::Outage(format!("{place} does not have {name}")));
        }
        Err(StoreError::Unsupported { why, .. }) => {
            let what = "a policy's file";
            return Err(Fault::Wrong(Reject::Unsupported { what, why }));
        }
        Err(error) => return Err(Fault::Outage(error.to_string())),
    };
    let policy = Signed::from_bytes(&bytes).map_err(Fault::Wrong)?;
    let link = Link::read(volume, &policy).map_err(Fault::Wrong)?;
    match link.policy.number() == number {
        true => Ok((policy, bytes.len())),
        false => Err(Fault::Wrong(Reject::NotSigned(
            "a policy of another number",
        ))),
    }
}
