//! Collects one answer: a state machine without I/O that decides whether a message can belong to the
//! answer of a request, and how much memory it may take.
//!
//! Relies on the codecs only, and on [`super::records`], which gives each record memory of its own.

use bytes::{Bytes, BytesMut};
use trust::frame::Frame;
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use trust::{Handle, Record, Reject};

use super::records::IncomingRecords;
use crate::frame::MAX_ANSWER_BYTES;
use crate::mirror::kind;

/// What a request asks for.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    /// The head.
    Head {
        /// Most bytes of records that may come with it.
        around_bytes: usize,
        /// Whether the server was told which head is known.
        knows: bool,
    },
    /// Records; `want` has no handle twice.
    Data {
        /// The wanted handles.
        want: Vec<Handle>,
        /// Most bytes of records that may come besides.
        around_bytes: usize,
        /// Memory that is reserved for the answer, bytes. A longer answer may be honest, and is not taken.
        reserved_bytes: usize,
    },
    /// Bytes of an object.
    Range {
        /// Most bytes.
        len_bytes: usize,
    },
}

/// A complete answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The range's bytes.
    Bytes(Bytes),
    /// The head's bytes, and the records that came with it.
    Head(Bytes, Vec<Record>),
    /// The known head is still the newest.
    Unchanged,
    /// Wanted records, then the others.
    Records(Vec<Record>),
}

/// An answer that is coming in.
pub(super) struct Collect {
    ask: Ask,
    /// Parallel to `want`: whether the record has come.
    found: Vec<bool>,
    /// Where in `want` to look first for the next record: answers mostly keep the order.
    cursor: usize,
    around_left_bytes: usize,
    wanted: Vec<Record>,
    others: Vec<Record>,
    range: Gathered,
}

/// What a record is to the request.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// It was asked for.
    Wanted,
    /// It was asked for and has come before. It is dropped: an answer has each wanted record at most once.
    Repeated,
    /// It was not asked for.
    Unasked,
}

/// The parts of a range that have come.
#[derive(Default)]
struct Gathered {
    /// The only part so far; mostly it is all.
    first: Bytes,
    all: BytesMut,
}

impl Gathered {
    fn push(&mut self, body: Body) {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = body.into_own();
            return;
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&body.bytes);
    }

    fn take(&mut self) -> Bytes {
        if self.all.is_empty() {
            return std::mem::take(&mut self.first);
        }
        std::mem::take(&mut self.all).freeze()
    }
}

/// A body, and whether its buffer is shared with other messages.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    pub(super) shared: bool,
}

impl Body {
    fn into_own(self) -> Bytes {
        if self.shared {
            Bytes::copy_from_slice(&self.bytes)
        } else {
            self.bytes
        }
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "answer",
        why,
    }
}

/// Most bytes of all bodies of an honest answer to `ask`.
pub(super) fn allowance_bytes(ask: &Ask) -> usize {
    match ask {
        Ask::Head { around_bytes, .. } => MAX_ANSWER_BYTES.saturating_add(*around_bytes),
        Ask::Data {
            want, around_bytes, ..
        } => want
            .len()
            .saturating_mul(MAX_RECORD_BYTES)
            .saturating_add(*around_bytes),
        Ask::Range { len_bytes } => *len_bytes,
    }
}

/// Bytes of all bodies of an answer to `ask` for which memory is reserved.
pub(super) fn reserved_bytes(ask: &Ask) -> usize {
    match ask {
        Ask::Data { reserved_bytes, .. } => *reserved_bytes,
        _ => allowance_bytes(ask),
    }
}

/// Checks that a message of this type can be part of an answer to `ask`. ERROR is handled before.
pub(super) fn fits(ask: &Ask, message_kind: u8, body_bytes: usize) -> Result<(), Reject> {
    match (ask, message_kind) {
        (Ask::Head { .. }, kind::HEAD) => Ok(()),
        (Ask::Range { .. }, kind::RANGE) if body_bytes == 0 => Err(bad("empty part of a range")),
        (Ask::Range { .. }, kind::RANGE) => Ok(()),
        (Ask::Head { .. } | Ask::Data { .. }, kind::RECORDS) if body_bytes == 0 => {
            Err(bad("empty list of records"))
        }
        (Ask::Head { around_bytes, .. }, kind::RECORDS) if body_bytes > *around_bytes => {
            Err(bad("more records with a head than were allowed"))
        }
        (Ask::Head { .. } | Ask::Data { .. }, kind::RECORDS) => Ok(()),
        (Ask::Head { knows: false, .. }, kind::DONE) => Err(bad("unchanged, but no head is known")),
        (_, kind::DONE) if body_bytes == 0 => Ok(()),
        (_, kind::DONE) => Err(bad("bytes in an end of answer")),
        _ => Err(bad("not an answer to what was asked")),
    }
}

/// Whether this message ends an answer.
pub(super) fn is_last(message_kind: u8) -> bool {
    !matches!(message_kind, kind::RECORDS | kind::RANGE)
}

impl Collect {
    pub(super) fn new(ask: Ask) -> Collect {
        let (count, around_left_bytes) = match &ask {
            Ask::Data {
                want, around_bytes, ..
            } => (want.len(), *around_bytes),
            Ask::Head { around_bytes, .. } => (0, *around_bytes),
            Ask::Range { .. } => (0, 0),
        };
        Collect {
            ask,
            found: vec![false; count],
            cursor: 0,
            around_left_bytes,
            wanted: Vec::new(),
            others: Vec::new(),
            range: Gathered::default(),
        }
    }

    /// Takes the next message, whose type [`fits`]; returns the answer after the last one.
    pub(super) fn feed(&mut self, message_kind: u8, body: Body) -> Result<Option<Answer>, Reject> {
        match message_kind {
            kind::RECORDS => self.take_records(body.bytes).map(|()| None),
            kind::RANGE => {
                self.range.push(body);
                Ok(None)
            }
            kind::DONE if matches!(self.ask, Ask::Range { .. }) => {
                Ok(Some(Answer::Bytes(self.range.take())))
            }
            kind::DONE if matches!(self.ask, Ask::Head { .. }) => Ok(Some(Answer::Unchanged)),
            kind::DONE => {
                let mut records = std::mem::take(&mut self.wanted);
                records.append(&mut self.others);
                Ok(Some(Answer::Records(records)))
            }
            _ => {
                let records = std::mem::take(&mut self.others);
                Ok(Some(Answer::Head(body.into_own(), records)))
            }
        }
    }

    /// Takes a message of records that has come whole.
    fn take_records(&mut self, mut body: Bytes) -> Result<(), Reject> {
        let mut records = IncomingRecords::new(body.len());
        while let Some((handle, frame)) = records.next(&mut body)? {
            self.record(handle, frame)?;
        }
        Ok(())
    }

    /// Takes a record: its claimed handle, and its frame in memory of its own.
    pub(super) fn record(&mut self, handle: Handle, frame: Bytes) -> Result<(), Reject> {
        let len = RECORD_HEADER_BYTES.saturating_add(frame.len());
        let frame = match Frame::parse(frame) {
            Err(Reject::UnknownFrame(_)) => {
                // This is no fault. A wanted block counts as denied, so another replica is asked.
                if self.mark(&handle) != Place::Wanted {
                    self.pay(len)?;
                }
                return Ok(());
            }
            frame => frame?,
        };
        let record = Record { handle, frame };
        match self.mark(&handle) {
            Place::Wanted => self.wanted.push(record),
            Place::Repeated => self.pay(len)?,
            Place::Unasked => {
                self.pay(len)?;
                self.others.push(record);
            }
        }
        Ok(())
    }

    /// Takes an unasked record of so many bytes off the allowance.
    fn pay(&mut self, bytes: usize) -> Result<(), Reject> {
        let left = self.around_left_bytes.checked_sub(bytes);
        self.around_left_bytes = left.ok_or_else(|| bad("records that were not asked for"))?;
        Ok(())
    }

    /// Marks a wanted handle as found.
    fn mark(&mut self, handle: &Handle) -> Place {
        let Ask::Data { want, .. } = &self.ask else {
            return Place::Unasked;
        };
        let (before, after) = want.split_at(self.cursor.min(want.len()));
        let at = match after.iter().position(|h| h == handle) {
            Some(i) => Some(before.len() + i),
            None => before.iter().position(|h| h == handle),
        };
        let Some(at) = at else {
            return Place::Unasked;
        };
        self.cursor = at + 1;
        match self
            .found
            .get_mut(at)
            .map(|found| std::mem::replace(found, true))
        {
            Some(false) => Place::Wanted,
            _ => Place::Repeated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use sim::random::noise;
    use trust::Kind;
    use trust::frame::Packer;

    fn record(n: u8, len: usize) -> Record {
        let frame = Packer::new()
            .pack(Kind::Data, &noise(n.into(), len))
            .unwrap();
        Record {
            handle: Handle::from_bytes([n; 32]),
            frame,
        }
    }

    fn body(records: &[Record], shared: bool) -> Body {
        let mut out = BytesMut::new();
        records.iter().for_each(|r| r.put(&mut out));
        let bytes = out.freeze();
        Body { bytes, shared }
    }

    fn asked(want: &[u8], around_bytes: usize) -> Collect {
        let want: Vec<Handle> = want.iter().map(|n| Handle::from_bytes([*n; 32])).collect();
        Collect::new(Ask::Data {
            reserved_bytes: want.len() * MAX_RECORD_BYTES + around_bytes,
            want,
            around_bytes,
        })
    }

    fn done(c: &mut Collect) -> Vec<u8> {
        let empty = Body {
            bytes: Bytes::new(),
            shared: false,
        };
        match c.feed(kind::DONE, empty).unwrap() {
            Some(Answer::Records(r)) => r.iter().map(|r| r.handle.as_bytes()[0]).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn wanted_records_come_first_and_denied_ones_are_missing() {
        let mut c = asked(&[1, 2, 3], 1000);
        let records = [record(9, 100), record(3, 50), record(1, 50)];
        assert_eq!(c.feed(kind::RECORDS, body(&records, true)), Ok(None));
        assert_eq!(done(&mut c), [3, 1, 9]);
    }

    #[test]
    fn unasked_records_are_refused_beyond_the_allowance() {
        let len = record(9, 100).len();
        for (around, ok) in [(0, false), (len - 1, false), (len, true)] {
            let got = asked(&[1], around).feed(kind::RECORDS, body(&[record(9, 100)], true));
            assert_eq!(got.is_ok(), ok, "around {around}");
        }
    }

    #[test]
    fn a_wanted_record_that_comes_twice_is_refused() {
        let twice = [record(1, 10), record(1, 10)];
        assert!(
            asked(&[1], 0)
                .feed(kind::RECORDS, body(&twice, true))
                .is_err()
        );
    }

    #[test]
    fn a_wanted_record_that_comes_twice_is_given_once_and_its_copy_uses_up_the_allowance() {
        let len = record(1, 10).len();
        let twice = [record(1, 10), record(1, 10)];
        let mut c = asked(&[1], len);
        assert_eq!(c.feed(kind::RECORDS, body(&twice, true)), Ok(None));
        assert_eq!(done(&mut c), [1]);
        assert!(c.feed(kind::RECORDS, body(&twice[..1], true)).is_err());
    }

    #[test]
    fn a_cut_record_is_refused_wherever_it_is_cut() {
        let whole = body(&[record(1, 100)], false).bytes;
        for cut in 1..whole.len() {
            let bytes = whole.slice(..cut);
            let got = asked(&[1], 0).feed(
                kind::RECORDS,
                Body {
                    bytes,
                    shared: false,
                },
            );
            assert!(got.is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn small_records_do_not_pin_the_message() {
        let records: Vec<Record> = (0..20).map(|n| record(n, 1000)).collect();
        let b = body(&records, false);
        let span = b.bytes.as_ptr_range();
        let mut c = asked(&(0..20).collect::<Vec<u8>>(), 0);
        c.feed(kind::RECORDS, b).unwrap();
        assert!(
            c.wanted
                .iter()
                .all(|r| !span.contains(&r.frame.as_bytes().as_ptr()))
        );
    }

    /// The bytes of a record whose codec is of a later bulla.
    fn later(n: u8, len: usize) -> Bytes {
        let mut bytes = body(&[record(n, len)], false).bytes.to_vec();
        bytes[trust::record::RECORD_HEADER_BYTES + 1] = 9;
        bytes.into()
    }

    #[test]
    fn record_of_a_later_codec_is_skipped_and_counts() {
        let len = later(9, 100).len();
        for (want, around, ok) in [
            (1, 0, false),
            (1, len - 1, false),
            (1, len, true),
            (9, 0, true),
        ] {
            let mut c = asked(&[want, 2], around);
            let known = body(&[record(2, 50)], false).bytes;
            let bytes = Bytes::from([later(9, 100), known].concat());
            let fed = c.feed(
                kind::RECORDS,
                Body {
                    bytes,
                    shared: true,
                },
            );
            assert_eq!(fed.is_ok(), ok, "{want} {around}");
            if ok {
                assert_eq!(done(&mut c), [2]);
            }
        }
        // A wanted one that comes twice was not asked for twice.
        let bytes = Bytes::from([later(9, 100), later(9, 100)].concat());
        let twice = asked(&[9], 0).feed(
            kind::RECORDS,
            Body {
                bytes,
                shared: true,
            },
        );
        assert!(twice.is_err());
    }

    #[test]
    fn parts_of_a_range_are_joined_in_order() {
        for parts in [&[&b"all"[..]][..], &[b"a", b"l", b"l"], &[b"al", b"l"]] {
            let mut c = Collect::new(Ask::Range { len_bytes: 5 });
            for part in parts {
                let bytes = Bytes::copy_from_slice(part);
                let fed = c.feed(
                    kind::RANGE,
                    Body {
                        bytes,
                        shared: true,
                    },
                );
                assert_eq!(fed, Ok(None));
            }
            let empty = Body {
                bytes: Bytes::new(),
                shared: false,
            };
            let all = Answer::Bytes(Bytes::from_static(b"all"));
            assert_eq!(c.feed(kind::DONE, empty), Ok(Some(all)));
        }
    }

    #[test]
    fn each_request_accepts_only_its_own_answers() {
        let data = Ask::Data {
            want: vec![],
            around_bytes: 0,
            reserved_bytes: 0,
        };
        let range = Ask::Range { len_bytes: 5 };
        let head = |around_bytes| Ask::Head {
            around_bytes,
            knows: false,
        };
        for (ask, good) in [
            (&head(0), vec![(kind::HEAD, 7)]),
            (&head(50), vec![(kind::HEAD, 7), (kind::RECORDS, 50)]),
            (&data, vec![(kind::RECORDS, 50), (kind::DONE, 0)]),
            (&range, vec![(kind::RANGE, 5), (kind::DONE, 0)]),
        ] {
            for message_kind in 0..=255u8 {
                for len in [0, 5, 7, 50] {
                    let expected = good.iter().any(|(k, n)| {
                        *k == message_kind
                            && match *k {
                                kind::RECORDS | kind::RANGE => len > 0,
                                kind::DONE => len == *n,
                                _ => true,
                            }
                    });
                    assert_eq!(fits(ask, message_kind, len).is_ok(), expected);
                }
            }
        }
        assert_eq!(allowance_bytes(&range), 5);
    }
}
