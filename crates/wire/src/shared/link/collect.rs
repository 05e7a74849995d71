//! The answer of one request, from its messages. Refuses by the header alone what no honest server sends.

use std::collections::HashSet;

use bytes::Bytes;
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use trust::{Handle, Record, Reject};
use trust_shared::entry::MAX_OPS_BYTES;

use crate::shared::answer::{decode_bodies, decode_checkpoints, decode_have, decode_policies};
use crate::shared::delivery::decode_leaves;
use crate::shared::usage::USAGE_BYTES;
use crate::shared::{MAX_LETTER_BYTES, MAX_PART_BYTES, SentLeaf, Usage, kind};

/// Most bytes that one body takes in an answer: position, length, body.
pub(super) const BODY_BYTES: usize = 8 + 3 + MAX_OPS_BYTES;

/// What a request asks for.
#[derive(Debug, Clone)]
pub(super) enum Expect {
    /// DONE alone.
    Done,
    Leaves {
        from: u64,
        count: u32,
    },
    /// Bodies at some of these positions.
    Bodies(Vec<u64>),
    /// Some of these blocks, and how many bytes of them are kept. Of a longer answer nothing is kept: it is DONE.
    Records(Vec<Handle>, usize),
    /// So many bits.
    Have(usize),
    Policies,
    Letter,
    Checkpoints,
    Usage,
}

/// A whole answer.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Leaves(Vec<SentLeaf>),
    Bodies(Vec<(u64, Bytes)>),
    Records(Vec<Record>),
    Have(Vec<bool>),
    Policies(Vec<Bytes>),
    Letter(Option<Bytes>),
    Checkpoints(Vec<Bytes>),
    Usage(Usage),
}

/// The messages of an answer so far.
#[derive(Debug)]
pub(super) struct Collect {
    expect: Expect,
    /// Bytes that may still come.
    allowance: usize,
    bodies: Vec<(u64, Bytes)>,
    records: Vec<Record>,
    /// Bytes of them.
    kept: usize,
    missing: HashSet<Handle>,
    /// Nobody waits: what comes is skipped.
    abandoned: bool,
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "answer",
        why,
    }
}

impl Collect {
    pub(super) fn new(expect: Expect) -> Collect {
        let (allowance, missing) = match &expect {
            Expect::Done => (0, HashSet::new()),
            Expect::Leaves { .. } | Expect::Policies | Expect::Checkpoints => {
                (MAX_PART_BYTES, HashSet::new())
            }
            Expect::Bodies(wanted) => (wanted.len().saturating_mul(BODY_BYTES), HashSet::new()),
            Expect::Records(wanted, _) => (
                wanted.len().saturating_mul(MAX_RECORD_BYTES),
                wanted.iter().copied().collect(),
            ),
            Expect::Have(count) => (count.div_ceil(8), HashSet::new()),
            Expect::Letter => (MAX_LETTER_BYTES, HashSet::new()),
            Expect::Usage => (USAGE_BYTES, HashSet::new()),
        };
        Collect {
            expect,
            allowance,
            bodies: Vec::new(),
            records: Vec::new(),
            kept: 0,
            missing,
            abandoned: false,
        }
    }

    /// Frees what has come; the rest is skipped.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.bodies = Vec::new();
        self.records = Vec::new();
    }

    /// Checks that an honest server could send this message now.
    pub(super) fn check(&self, kind: u8, body_bytes: usize) -> Result<(), Reject> {
        let fits = match (&self.expect, kind) {
            (Expect::Done | Expect::Letter, kind::DONE) => body_bytes == 0,
            (Expect::Bodies(_) | Expect::Records(..), kind::DONE) => body_bytes == 0,
            (Expect::Leaves { .. }, kind::DONE) => body_bytes == 0,
            (Expect::Leaves { .. }, kind::LEAVES_PART) => body_bytes > 0,
            (Expect::Bodies(_), kind::BODIES_PART) => body_bytes > 0,
            (Expect::Records(..), kind::RECORDS) => body_bytes >= RECORD_HEADER_BYTES,
            (Expect::Have(count), kind::HAVE) => body_bytes == count.div_ceil(8),
            (Expect::Policies, kind::POLICIES_PART) => true,
            (Expect::Checkpoints, kind::CHECKPOINTS_PART) => true,
            (Expect::Letter, kind::LETTER) => body_bytes > 0,
            (Expect::Usage, kind::USED) => body_bytes == USAGE_BYTES,
            _ => false,
        };
        if !fits {
            return Err(bad("not to what was asked"));
        }
        if body_bytes > self.allowance {
            return Err(bad("longer than what was asked for"));
        }
        Ok(())
    }

    /// Takes a message that [`Collect::check`] accepted; gives the answer when it was the last.
    pub(super) fn feed(&mut self, kind: u8, body: Bytes) -> Result<Option<Answer>, Reject> {
        self.allowance = self.allowance.saturating_sub(body.len());
        if self.abandoned {
            let part = matches!(kind, kind::RECORDS | kind::BODIES_PART);
            return Ok((!part).then_some(Answer::Done));
        }
        match (&self.expect, kind) {
            (Expect::Bodies(_), kind::BODIES_PART) => self.take_bodies(&body)?,
            (Expect::Records(_, most_bytes), kind::RECORDS) => {
                self.kept = self.kept.saturating_add(body.len());
                if self.kept > *most_bytes {
                    self.abandon();
                    return Ok(None);
                }
                self.take_records(body)?;
            }
            (Expect::Leaves { from, count }, kind::LEAVES_PART) => {
                return leaves(*from, *count, &body).map(Some);
            }
            (Expect::Leaves { .. }, _) => return Ok(Some(Answer::Leaves(Vec::new()))),
            (Expect::Have(count), _) => {
                return decode_have(&body, *count).map(|have| Some(Answer::Have(have)));
            }
            (Expect::Policies, _) => {
                return decode_policies(&body).map(|all| Some(Answer::Policies(all)));
            }
            (Expect::Checkpoints, _) => {
                return decode_checkpoints(&body).map(|all| Some(Answer::Checkpoints(all)));
            }
            (Expect::Usage, _) => {
                return Usage::decode(&body).map(|usage| Some(Answer::Usage(usage)));
            }
            (Expect::Letter, kind::LETTER) => {
                let letter = Bytes::copy_from_slice(&body);
                return Ok(Some(Answer::Letter(Some(letter))));
            }
            (Expect::Letter, _) => return Ok(Some(Answer::Letter(None))),
            (Expect::Bodies(_), _) => {
                return Ok(Some(Answer::Bodies(std::mem::take(&mut self.bodies))));
            }
            (Expect::Records(..), _) => {
                return Ok(Some(Answer::Records(std::mem::take(&mut self.records))));
            }
            (Expect::Done, _) => return Ok(Some(Answer::Done)),
        }
        Ok(None)
    }

    fn take_bodies(&mut self, body: &[u8]) -> Result<(), Reject> {
        let Expect::Bodies(wanted) = &self.expect else {
            return Ok(());
        };
        for (position, body) in decode_bodies(body)? {
            let ascends = self.bodies.last().is_none_or(|(last, _)| *last < position);
            if !ascends || wanted.binary_search(&position).is_err() {
                return Err(bad("a body that was not asked for, or twice"));
            }
            self.bodies.push((position, body));
        }
        Ok(())
    }

    fn take_records(&mut self, mut body: Bytes) -> Result<(), Reject> {
        while !body.is_empty() {
            let record = match Record::take(&mut body) {
                Ok(record) => record.ok_or(bad("ends inside a block"))?,
                // A block of a later bulla: this one does without it.
                Err(Reject::UnknownFrame(_)) => continue,
                Err(why) => return Err(why),
            };
            if !self.missing.remove(&record.handle) {
                return Err(bad("a block that was not asked for, or twice"));
            }
            self.records.push(record);
        }
        Ok(())
    }
}

fn leaves(from: u64, count: u32, body: &[u8]) -> Result<Answer, Reject> {
    let (first, leaves) = decode_leaves(body)?;
    if first != from || leaves.len() > count as usize {
        return Err(bad("other leaves than were asked for"));
    }
    Ok(Answer::Leaves(leaves))
}

#[cfg(test)]
mod tests {
    use trust::Kind;
    use trust::frame::Packer;

    use super::*;

    #[test]
    fn answer_that_is_longer_than_what_is_kept_is_skipped() {
        let record = |number: u8| Record {
            handle: Handle::from_bytes([number; 32]),
            frame: Packer::new().pack(Kind::Data, &[number; 1000]).unwrap(),
        };
        let records = [record(1), record(2)];
        let len = records[0].len();
        let wanted = || records.iter().map(|record| record.handle).collect();
        for (most_bytes, is_kept) in [(2 * len, true), (2 * len - 1, false)] {
            let mut collect = Collect::new(Expect::Records(wanted(), most_bytes));
            for record in &records {
                let mut body = bytes::BytesMut::new();
                record.put(&mut body);
                collect.check(kind::RECORDS, body.len()).unwrap();
                assert!(
                    collect
                        .feed(kind::RECORDS, body.freeze())
                        .unwrap()
                        .is_none()
                );
            }
            assert_eq!(collect.records.len(), if is_kept { 2 } else { 0 });
            let answer = collect.feed(kind::DONE, Bytes::new()).unwrap();
            assert_eq!(matches!(answer, Some(Answer::Records(_))), is_kept);
        }
    }
}
