//! Forks that a reader remembers (design `trees.md`, rule 1 and *Floor*): two policies that follow the same one,
//! and two records of one version. While one stands, nothing new is adopted. It is settled by a later policy or by
//! the user, never by the order in which replicas answer.
//!
//! `agreed` decides how far several chains lead together. It is a function of the set of chains.

use std::collections::{BTreeMap, BTreeSet};

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::history::LogPoint;
use crate::statement::chain::Chain;

/// Most policies and records that the user refused.
pub const MAX_REFUSED: usize = 16;

/// The message about a fork of policies.
pub(crate) const TWO_POLICIES: &str = "two successors of one policy";
/// The message about a fork of records.
pub(crate) const TWO_RECORDS: &str = "two records of one version";

/// Two policies that follow the same policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFork {
    /// Their hashes, ascending.
    pub hashes: [[u8; 32]; 2],
}

/// Two records of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFork {
    /// The version.
    pub version: u64,
    /// Their hashes, ascending, and the logs with each of them as the last leaf.
    pub records: [([u8; 32], LogPoint); 2],
}

/// The forks that a reader has seen, and what its user refused to settle them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forks {
    pub(crate) policies: Option<PolicyFork>,
    pub(crate) records: Option<RecordFork>,
    /// Hashes of policies and records, ascending.
    pub(crate) refused: Vec<[u8; 32]>,
}

impl PolicyFork {
    /// `None` for one policy.
    pub(crate) fn of(one: [u8; 32], other: [u8; 32]) -> Option<PolicyFork> {
        let hashes = [one.min(other), one.max(other)];
        (one != other).then_some(PolicyFork { hashes })
    }

    pub(crate) fn other(&self, hash: &[u8; 32]) -> Option<[u8; 32]> {
        let [one, other] = self.hashes;
        match (one == *hash, other == *hash) {
            (true, _) => Some(other),
            (_, true) => Some(one),
            _ => None,
        }
    }
}

impl RecordFork {
    /// `None` for one record.
    pub(crate) fn of(
        version: u64,
        one: ([u8; 32], LogPoint),
        other: ([u8; 32], LogPoint),
    ) -> Option<RecordFork> {
        let records = match one.0 < other.0 {
            true => [one, other],
            false => [other, one],
        };
        (one.0 != other.0).then_some(RecordFork { version, records })
    }

    pub(crate) fn other(&self, hash: &[u8; 32]) -> Option<[u8; 32]> {
        let [(one, _), (other, _)] = self.records;
        match (one == *hash, other == *hash) {
            (true, _) => Some(other),
            (_, true) => Some(one),
            _ => None,
        }
    }

    /// The log with this record as its last leaf.
    pub(crate) fn log_of(&self, hash: &[u8; 32]) -> Option<LogPoint> {
        let mut records = self.records.iter();
        let (_, log) = records.find(|(record, _)| record == hash)?;
        Some(*log)
    }
}

impl Forks {
    /// The fork of policies that is not settled, if there is one.
    pub fn policies(&self) -> Option<&PolicyFork> {
        self.policies.as_ref()
    }

    /// The fork of records that is not settled, if there is one.
    pub fn records(&self) -> Option<&RecordFork> {
        self.records.as_ref()
    }

    /// Whether a fork stands, so that nothing new may be adopted.
    pub fn stand(&self) -> bool {
        self.policies.is_some() || self.records.is_some()
    }

    /// The policy or record that contradicts this one in a fork that is not settled.
    pub fn rival(&self, hash: &[u8; 32]) -> Option<[u8; 32]> {
        let policies = self.policies.as_ref().and_then(|fork| fork.other(hash));
        policies.or_else(|| self.records.as_ref()?.other(hash))
    }

    /// The policies and records that the user refused, ascending.
    pub fn refused(&self) -> &[[u8; 32]] {
        &self.refused
    }

    /// Whether the user refused the policy or record with this hash.
    pub fn is_refused(&self, hash: &[u8; 32]) -> bool {
        self.refused.binary_search(hash).is_ok()
    }

    pub(crate) fn refuse(&mut self, hash: [u8; 32]) -> Result<(), Reject> {
        if let Err(at) = self.refused.binary_search(&hash) {
            if self.refused.len() >= MAX_REFUSED {
                return Err(Reject::Malformed {
                    what: "floor",
                    why: "too many refused policies and records",
                });
            }
            self.refused.insert(at, hash);
        }
        Ok(())
    }

    /// The forks of a reader that knew `known` policies and now knows `chain`, whose tip may be forked itself.
    pub(crate) fn under(&self, chain: &Chain, known: u64, tip: Option<PolicyFork>) -> Forks {
        let settles = |fork: &RecordFork| {
            chain.since(known).any(|policy| {
                let last = policy.last();
                last.is_some_and(|last| last.version >= fork.version || policy.lowers())
            })
        };
        Forks {
            policies: tip,
            records: self.records.clone().filter(|fork| !settles(fork)),
            refused: self.refused.clone(),
        }
    }

    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u8(u8::from(self.policies.is_some()));
        if let Some(fork) = &self.policies {
            fork.hashes.iter().for_each(|hash| {
                e.raw(hash);
            });
        }
        e.u8(u8::from(self.records.is_some()));
        if let Some(fork) = &self.records {
            e.u64(fork.version);
            for (hash, log) in &fork.records {
                e.raw(hash);
                log.encode(e);
            }
        }
        e.varint(self.refused.len() as u64);
        for hash in &self.refused {
            e.raw(hash);
        }
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let mut forks = Forks::default();
        if d.flag()? {
            let hashes: [[u8; 32]; 2] = [d.array()?, d.array()?];
            if !hashes.is_sorted_by(|a, b| a < b) {
                return Err(d.bad("policies of a fork not ascending, or one policy"));
            }
            forks.policies = Some(PolicyFork { hashes });
        }
        if d.flag()? {
            let version = d.u64()?;
            let one = (d.array()?, LogPoint::decode(d)?);
            let other = (d.array()?, LogPoint::decode(d)?);
            let records: [([u8; 32], LogPoint); 2] = [one, other];
            if !records.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(d.bad("records of a fork not ascending, or one record"));
            }
            forks.records = Some(RecordFork { version, records });
        }
        let count = d.bounded(MAX_REFUSED as u64, "too many refused")?;
        for _ in 0..count {
            forks.refused.push(d.array()?);
        }
        if !forks.refused.is_sorted_by(|a, b| a < b) {
            return Err(d.bad("refused hashes not sorted"));
        }
        Ok(forks)
    }
}

/// How far chains lead together: the policies on which they agree, and whether two policies follow the last one.
pub(crate) struct Agreed {
    pub chain: Chain,
    pub fork: Option<PolicyFork>,
}

/// How far `known` and `offered` lead. The known chain is never left: a second successor of its newest policy is a
/// fork until the chain goes on, and one of an older policy is nobody's concern. Where policies that are new to the
/// reader contradict each other, the chain ends before them, unless exactly one branch has a policy among the five
/// after them that names all others as refused. `None` without any chain.
///
/// A contradiction is decided only right after the known chain, where all that counts of each branch is in sight:
/// one that comes later is left to the next call. So it does not matter in which parts a chain is shown.
pub(crate) fn agreed(
    known: Option<&Chain>,
    offered: &[Chain],
    remembered: Option<&PolicyFork>,
) -> Option<Agreed> {
    let first = known.or(offered.first())?;
    let tip = known.map_or(0, Chain::len);
    let continues = |chain: &&Chain| known.is_none_or(|known| chain.begins_with(known));
    let branches: Vec<&Chain> = offered.iter().filter(continues).collect();
    let ours = known.map(Chain::newest_hash);
    // A fork between the known tip and a sibling is no fork of what follows the tip.
    let is_ours = |fork: &&PolicyFork| ours.is_some_and(|ours| fork.other(&ours).is_some());
    let remembered_next = remembered.filter(|fork| !is_ours(fork));
    let lead = match undisputed(&branches, tip, remembered_next) {
        Some(lead) => lead,
        None => match lead(&branches, tip, remembered_next) {
            // What comes after the decided policy is judged with the policies after it in sight.
            Some(lead) => Lead {
                len: lead.len.min(tip.saturating_add(1)),
                ..lead
            },
            None => Lead {
                chain: first,
                len: tip,
                fork: remembered_next.cloned(),
            },
        },
    };
    let mut fork = lead.fork;
    if let (true, Some(known), None) = (lead.len == tip, known, &fork) {
        let siblings = offered.iter().filter_map(|chain| chain.sibling_of(known));
        let sibling = siblings.min();
        let new = sibling.and_then(|sibling| PolicyFork::of(known.newest_hash(), sibling));
        fork = remembered.filter(is_ours).cloned().or(new);
    }
    let chain = match known {
        Some(known) => known.continued(lead.chain, lead.len),
        None => lead.chain.beginning(lead.len)?,
    };
    Some(Agreed { chain, fork })
}

/// How far chains lead that agree on their first policies.
struct Lead<'a> {
    chain: &'a Chain,
    len: u64,
    fork: Option<PolicyFork>,
}

/// The policies from `tip` on that no other policy contradicts; `None` if there is none.
fn undisputed<'a>(
    chains: &[&'a Chain],
    tip: u64,
    remembered: Option<&PolicyFork>,
) -> Option<Lead<'a>> {
    let mut chains = chains.to_vec();
    let mut longest = None;
    let mut len = tip;
    while remembered.is_none() {
        chains.retain(|chain| chain.len() > len);
        let mut hashes = chains
            .iter()
            .filter_map(|chain| chain.link(len))
            .map(|link| link.hash);
        let Some(hash) = hashes.next() else {
            break;
        };
        if !hashes.all(|other| other == hash) {
            break;
        }
        longest = chains.first().copied();
        len = len.saturating_add(1);
    }
    let chain = longest?;
    Some(Lead {
        chain,
        len,
        fork: None,
    })
}

/// `chains` agree on their first `depth` policies. `remembered` are two policies after those.
fn lead<'a>(chains: &[&'a Chain], depth: u64, remembered: Option<&PolicyFork>) -> Option<Lead<'a>> {
    let mut branches: BTreeMap<[u8; 32], Vec<&Chain>> = BTreeMap::new();
    for chain in chains {
        if let Some((_, hash)) = chain.get(depth) {
            branches.entry(hash).or_default().push(chain);
        }
    }
    let mut here = Lead {
        chain: chains.first()?,
        len: depth,
        fork: remembered.cloned(),
    };
    if branches.is_empty() {
        return Some(here);
    }
    let mut hashes: BTreeSet<[u8; 32]> = branches.keys().copied().collect();
    hashes.extend(remembered.iter().flat_map(|fork| fork.hashes));
    let mut settled = Vec::new();
    for (hash, chains) in &branches {
        let lead = lead(chains, depth.saturating_add(1), None)?;
        let mut others = hashes.iter().filter(|other| *other != hash);
        let after = depth.saturating_add(1)..lead.len;
        if others.all(|other| lead.chain.refuses(after.clone(), other)) {
            settled.push(lead);
        }
    }
    if settled.len() == 1 {
        return settled.pop();
    }
    if here.fork.is_none() {
        let mut two = hashes.into_iter();
        here.fork = PolicyFork::of(two.next()?, two.next()?);
    }
    Some(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<Forks, Reject> {
        Forks::decode(&mut Decoder::new(bytes, "forks"))
    }

    fn encode(forks: &Forks) -> Vec<u8> {
        let mut e = Encoder::new();
        forks.encode(&mut e);
        e.finish()
    }

    #[test]
    fn fork_has_one_encoding() {
        let log = LogPoint {
            epoch: 0,
            size: 3,
            root: [7; 32],
        };
        let records = RecordFork::of(4, ([1; 32], log), ([2; 32], log));
        let mut forks = Forks {
            policies: PolicyFork::of([1; 32], [2; 32]),
            records,
            refused: vec![],
        };
        assert_eq!(decode(&encode(&forks)), Ok(forks.clone()));
        // The same two in the other order, or one of them twice.
        for hashes in [[[2; 32], [1; 32]], [[1; 32], [1; 32]]] {
            let mut other = forks.clone();
            other.policies = Some(PolicyFork { hashes });
            assert!(decode(&encode(&other)).is_err());
        }
        forks.policies = None;
        for [one, two] in [[[2; 32], [1; 32]], [[1; 32], [1; 32]]] {
            let records = [(one, log), (two, log)];
            forks.records = Some(RecordFork {
                version: 4,
                records,
            });
            assert!(decode(&encode(&forks)).is_err());
        }
    }
}
