//! Ranges of segments that wait for a request, and share it.
//!
//! Few requests may be under way at a time, so ranges wait for one, those of many calls together. Whoever may send a
//! request takes the waiting ranges along that fit into it: far away, the number of requests decides how long a walk
//! takes. Nobody waits to be joined by others.
//!
//! A caller may give up while its request brings the ranges of others. Then those wait again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use store::names::FileId;
use tokio::sync::oneshot;

use super::parts::{MAX_PARTS, Part};
use super::web::Fault;

/// Ranges are read as one part when at most this lies between them, bytes: about what another part costs.
pub(super) const CLOSE_BYTES: u64 = 256;
/// The same where a server sends one part at a time, so that another one costs a request.
pub(super) const NEAR_BYTES: u64 = 32 << 10;
/// Most bytes of a request with the ranges of others, at first.
const FIRST_SHARED_BYTES: u64 = 512 << 10;
const MIN_SHARED_BYTES: u64 = 32 << 10;
const MAX_SHARED_BYTES: u64 = 1 << 20;
/// A shared request that took less than this may be longer the next time,
const FAST: Duration = Duration::from_millis(500);
/// and after one that took longer than this the next is shorter.
const SLOW: Duration = Duration::from_secs(2);

/// What a range gets: its bytes, and the length of the answer whose memory they belong to.
pub(super) type Answer = Result<(Bytes, usize), Fault>;

/// A segment, where a range begins in it, and a number that tells equal ranges apart.
type Key = (FileId, u64, u64);

/// The ranges that wait.
#[derive(Default)]
pub(super) struct Waiting {
    ranges: Mutex<BTreeMap<Key, Range>>,
    numbers: AtomicU64,
    /// Most bytes of a shared request; 0 stands for [`FIRST_SHARED_BYTES`].
    most_bytes: AtomicU64,
}

struct Range {
    len_bytes: u64,
    answer: oneshot::Sender<Answer>,
}

/// A place among those that wait; given up when it is dropped.
pub(super) struct Ticket<'a> {
    waiting: &'a Waiting,
    key: Key,
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.waiting.ranges().remove(&self.key);
    }
}

/// Ranges that share a request.
pub(super) struct Shared {
    pub(super) segment: FileId,
    /// What to ask for: in order, and apart from each other.
    pub(super) parts: Vec<Part>,
    members: Vec<(u64, Range)>,
}

impl Waiting {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<Key, Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a range of a segment.
    pub(super) fn push(&self, segment: FileId, part: Part) -> Ticket<'_> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let key = (segment, part.offset, number);
        let (sender, answer) = oneshot::channel();
        let range = Range {
            len_bytes: part.len_bytes,
            answer: sender,
        };
        self.ranges().insert(key, range);
        Ticket {
            waiting: self,
            key,
            answer,
        }
    }

    /// Takes a range and others that fit into its request; `None` if another request has taken it.
    pub(super) fn take(&self, ticket: &Ticket<'_>, sends_parts: bool) -> Option<Shared> {
        let most_bytes = self.most_bytes();
        let mut ranges = self.ranges();
        let (segment, start, _) = ticket.key;
        let own = ranges.remove(&ticket.key)?;
        let mut end = start.saturating_add(own.len_bytes);
        let mut sum_bytes = own.len_bytes;
        let mut keys = Vec::new();
        let behind = ranges.range(ticket.key..=(segment, u64::MAX, u64::MAX));
        let before = ranges.range((segment, 0, 0)..ticket.key);
        // Without parts, only what lies behind it without a long gap.
        let before = before.filter(|_| sends_parts);
        for (key, range) in behind.chain(before) {
            let gap_bytes = key.1.saturating_sub(end);
            if !sends_parts && gap_bytes > NEAR_BYTES {
                break;
            }
            let more_bytes = match sends_parts {
                true => range.len_bytes,
                false => (key.1.saturating_add(range.len_bytes)).saturating_sub(end),
            };
            if sum_bytes.saturating_add(more_bytes) > most_bytes || keys.len() + 1 >= MAX_PARTS {
                break;
            }
            sum_bytes += more_bytes;
            end = end.max(key.1.saturating_add(range.len_bytes));
            keys.push(*key);
        }
        let taken = keys
            .iter()
            .filter_map(|key| Some((key.1, ranges.remove(key)?)));
        let mut members: Vec<(u64, Range)> = taken.collect();
        members.push((start, own));
        members.sort_by_key(|(start, _)| *start);
        let gap_bytes = if sends_parts { CLOSE_BYTES } else { NEAR_BYTES };
        Some(Shared {
            segment,
            parts: joined(&members, gap_bytes),
            members,
        })
    }

    fn most_bytes(&self) -> u64 {
        match self.most_bytes.load(Ordering::Relaxed) {
            0 => FIRST_SHARED_BYTES,
            most => most,
        }
    }

    /// A request with the ranges of others took so long.
    pub(super) fn took(&self, time: Duration) {
        let most = self.most_bytes();
        let next = match time {
            fast if fast < FAST => most * 2,
            slow if slow > SLOW => most / 2,
            _ => most,
        };
        let next = next.clamp(MIN_SHARED_BYTES, MAX_SHARED_BYTES);
        self.most_bytes.store(next, Ordering::Relaxed);
    }
}

/// Ranges in order of their starts, as parts with more than `gap_bytes` between them.
fn joined(members: &[(u64, Range)], gap_bytes: u64) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (start, range) in members {
        let end = start.saturating_add(range.len_bytes);
        match parts.last_mut() {
            Some(last) if *start <= (last.offset + last.len_bytes).saturating_add(gap_bytes) => {
                last.len_bytes = last.len_bytes.max(end - last.offset);
            }
            _ => parts.push(Part {
                offset: *start,
                len_bytes: range.len_bytes,
            }),
        }
    }
    parts
}

impl Shared {
    /// Whether it brings more than one range.
    pub(super) fn is_shared(&self) -> bool {
        self.members.len() > 1
    }

    /// Gives each range its bytes of the answer's parts.
    pub(super) fn give(self, answer: Result<Vec<Bytes>, Fault>) {
        let read = match answer {
            Ok(read) => read,
            Err(fault) => {
                for (_, range) in self.members {
                    let _ = range.answer.send(Err(fault.clone()));
                }
                return;
            }
        };
        let whole = read.iter().map(Bytes::len).sum();
        for (start, range) in self.members {
            let holds = |part: &Part| part.offset <= start;
            let at = self.parts.partition_point(holds).saturating_sub(1);
            let bytes = self
                .parts
                .get(at)
                .zip(read.get(at))
                .and_then(|(part, bytes)| {
                    let from = start.checked_sub(part.offset)?;
                    let to = from.checked_add(range.len_bytes)?;
                    (to <= bytes.len() as u64).then(|| bytes.slice(from as usize..to as usize))
                });
            let answer = match bytes {
                Some(bytes) => Ok((bytes, whole)),
                None => Err(Fault::Gone("a segment is cut short".to_owned())),
            };
            let _ = range.answer.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: FileId = FileId([1; 16]);
    const OTHER: FileId = FileId([2; 16]);

    fn part(offset: u64, len_bytes: u64) -> Part {
        Part { offset, len_bytes }
    }

    /// Bytes that tell where they are from.
    fn bytes_of(part: &Part) -> Bytes {
        (part.offset..part.offset + part.len_bytes)
            .map(|at| at as u8)
            .collect()
    }

    #[test]
    fn ranges_of_one_segment_share_a_request_and_each_gets_its_own_bytes() {
        let waiting = Waiting::default();
        let asked = [
            part(5000, 7),
            part(100, 50),
            part(120, 10),
            part(200, 9),
            part(9000, 1),
        ];
        let mut tickets: Vec<_> = asked.iter().map(|p| waiting.push(SEGMENT, *p)).collect();
        let other = waiting.push(OTHER, part(0, 10));
        let shared = waiting.take(&tickets[0], true).unwrap();
        assert_eq!(shared.parts, [part(100, 109), part(5000, 7), part(9000, 1)]);
        for ticket in &tickets {
            assert!(waiting.take(ticket, true).is_none(), "it is taken");
        }
        let read = shared.parts.iter().map(bytes_of).collect();
        shared.give(Ok(read));
        for (ticket, part) in tickets.iter_mut().zip(&asked) {
            let answer = ticket.answer.try_recv().unwrap();
            assert_eq!(answer, Ok((bytes_of(part), 117)));
        }
        let alone = waiting.take(&other, true).unwrap();
        assert!(!alone.is_shared());
    }

    #[test]
    fn without_parts_only_near_ranges_behind_it_share_a_request() {
        let waiting = Waiting::default();
        let far = 200 + NEAR_BYTES + 1;
        let before = waiting.push(SEGMENT, part(0, 10));
        let own = waiting.push(SEGMENT, part(100, 10));
        let near = waiting.push(SEGMENT, part(150, 50));
        let behind = waiting.push(SEGMENT, part(far, 10));
        let shared = waiting.take(&own, false).unwrap();
        assert_eq!(shared.parts, [part(100, 100)]);
        assert!(waiting.take(&near, false).is_none());
        assert!(waiting.take(&before, false).is_some());
        assert!(waiting.take(&behind, false).is_some());
    }

    #[test]
    fn a_shared_request_is_bounded_and_its_bound_follows_the_line() {
        let waiting = Waiting::default();
        let push = |n: u64| waiting.push(SEGMENT, part(n << 20, 32 << 10));
        let bytes = |shared: Option<Shared>| -> u64 {
            shared
                .unwrap()
                .parts
                .iter()
                .map(|part| part.len_bytes)
                .sum()
        };
        let tickets: Vec<_> = (0..200).map(push).collect();
        assert_eq!(bytes(waiting.take(&tickets[100], true)), FIRST_SHARED_BYTES);
        for _ in 0..9 {
            waiting.took(SLOW * 2);
        }
        assert_eq!(bytes(waiting.take(&tickets[50], true)), MIN_SHARED_BYTES);
        for _ in 0..9 {
            waiting.took(FAST / 2);
        }
        assert_eq!(bytes(waiting.take(&tickets[0], true)), MAX_SHARED_BYTES);
        let short: Vec<_> = (0..200)
            .map(|n| waiting.push(OTHER, part(n << 10, 1)))
            .collect();
        assert_eq!(
            waiting.take(&short[199], true).unwrap().parts.len(),
            MAX_PARTS
        );
    }

    #[test]
    fn who_gives_up_waits_no_more_and_others_learn_that_their_request_ended() {
        let waiting = Waiting::default();
        let one = waiting.push(SEGMENT, part(0, 1));
        let mut two = waiting.push(SEGMENT, part(1, 1));
        drop(waiting.take(&one, true));
        assert!(matches!(
            two.answer.try_recv(),
            Err(oneshot::error::TryRecvError::Closed)
        ));
        drop((one, two));
        drop(waiting.push(SEGMENT, part(2, 1)));
        assert!(waiting.ranges().is_empty());
    }

    #[test]
    fn short_answers_are_refused() {
        let waiting = Waiting::default();
        let mut ticket = waiting.push(SEGMENT, part(10, 5));
        let shared = waiting.take(&ticket, true).unwrap();
        shared.give(Ok(vec![Bytes::from_static(b"1234")]));
        assert!(matches!(ticket.answer.try_recv(), Ok(Err(Fault::Gone(_)))));
    }
}
