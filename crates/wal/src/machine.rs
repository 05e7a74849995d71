//! The state of a log that is open, without I/O: where frames go, which are not durable yet, what may be reused.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer::{PAGE, PAGE_BYTES};
use crate::error::{AppendError, LogError};
use crate::frame::{Draft, FrameKey, Sealed, padding};
use crate::layout::Layout;
use crate::position::{Lsn, Mark};
use crate::record::{Client, Record};
use crate::ring::Boundaries;

/// Where a frame went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// Where the frame begins.
    pub start: Lsn,
    /// Where it ends: flush up to here to make it durable.
    pub end: Lsn,
    /// The position of each record's first page.
    pub payloads: Vec<Lsn>,
}

/// A frame that is not durable yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub frame: Sealed,
    pub pages: Vec<Bytes>,
}

impl Pending {
    fn payload(&self) -> Lsn {
        Lsn(self.frame.start.0 + self.frame.header.len() as u64)
    }

    /// The page at this position.
    fn page(&self, lsn: Lsn) -> Option<Bytes> {
        let bytes = lsn.0.checked_sub(self.payload().0)?;
        self.pages.get((bytes / PAGE) as usize).cloned()
    }
}

/// How full the ring is, and who could free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// The client whose oldest position holds the tail.
    pub client: Client,
    /// That position. A checkpoint that moves it on frees space.
    pub oldest: Lsn,
    /// Bytes between the tail and the end.
    pub used: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes that `append` still takes.
    pub free: u64,
}

/// See the head of this file.
pub(crate) struct Machine {
    key: FrameKey,
    layout: Layout,
    epoch: u64,
    tail: Mark,
    durable: Mark,
    end: Mark,
    pending: VecDeque<Arc<Pending>>,
    boundaries: Boundaries,
    oldest: Vec<(Client, Lsn)>,
    failed: Option<LogError>,
}

impl Machine {
    /// A log that ends at `end`, all of it durable.
    pub fn new(
        key: FrameKey,
        layout: Layout,
        epoch: u64,
        end: Mark,
        boundaries: Boundaries,
        oldest: Vec<(Client, Lsn)>,
    ) -> Machine {
        let tail = boundaries.first();
        Machine {
            key,
            layout,
            epoch,
            tail,
            durable: end,
            end,
            pending: VecDeque::new(),
            boundaries,
            oldest,
            failed: None,
        }
    }

    pub fn durable(&self) -> Mark {
        self.durable
    }

    pub fn end(&self) -> Lsn {
        self.end.lsn
    }

    pub fn tail(&self) -> Lsn {
        self.tail.lsn
    }

    /// The end of the last frame that is not needed.
    pub fn tail_mark(&self) -> Mark {
        self.tail
    }

    pub fn failure(&self) -> Option<LogError> {
        self.failed.clone()
    }

    /// Nothing is accepted from now on. The first cause is kept.
    pub fn fail(&mut self, cause: LogError) {
        self.failed.get_or_insert(cause);
    }

    fn used(&self) -> u64 {
        self.end.lsn.0 - self.tail.lsn.0
    }

    /// Bytes that may be appended. `reserved`: including the reserve.
    pub fn free(&self, reserved: bool) -> u64 {
        let reserve = if reserved {
            0
        } else {
            self.layout.reserve_bytes()
        };
        (self.layout.ring_bytes - self.used()).saturating_sub(reserve)
    }

    pub fn pressure(&self) -> Pressure {
        let first = self.oldest.iter().min_by_key(|(_, oldest)| *oldest);
        let (client, oldest) = first.copied().unwrap_or((Client(0), self.tail.lsn));
        Pressure {
            client,
            oldest,
            used: self.used(),
            ring_bytes: self.layout.ring_bytes,
            free: self.free(false),
        }
    }

    /// Appends a frame that was drafted from these records.
    pub fn append(
        &mut self,
        draft: Draft,
        records: &[(Client, Record)],
        reserved: bool,
    ) -> Result<Appended, AppendError> {
        if let Some(error) = &self.failed {
            return Err(AppendError::Log(error.clone()));
        }
        if records
            .iter()
            .any(|(client, _)| !self.layout.knows(*client))
        {
            let why = "a record belongs to a client that the log does not have";
            return Err(AppendError::Invalid { why });
        }
        let bytes = draft.bytes();
        if bytes > self.layout.max_frame_bytes() {
            let why = "a frame is longer than an eighth of the ring or 9 MiB";
            return Err(AppendError::Invalid { why });
        }
        let rest = self.layout.rest_of_lap(self.end.lsn);
        let pad = if bytes > rest { rest } else { 0 };
        self.check_room(pad + bytes, reserved)?;
        if pad > 0 {
            let frame = padding(pad, &self.key, self.epoch, &self.end, self.durable.lsn);
            self.push(frame, Vec::new());
        }
        let header_bytes = draft.header_bytes();
        let frame = draft.seal(&self.key, self.epoch, &self.end, self.durable.lsn);
        let (start, end) = (frame.start, frame.mark.lsn);
        let pages = records.iter().flat_map(|(_, record)| &record.payload);
        self.push(frame, pages.map(|piece| piece.page.clone()).collect());
        Ok(Appended {
            start,
            end,
            payloads: positions(Lsn(start.0 + header_bytes), records),
        })
    }

    fn check_room(&self, needed: u64, reserved: bool) -> Result<(), AppendError> {
        let free = self.free(reserved);
        if needed > free {
            return Err(AppendError::Full { needed, free });
        }
        let unsynced = self.end.lsn.0 - self.durable.lsn.0;
        if unsynced > 0 && unsynced + needed > self.layout.window_bytes() {
            return Err(AppendError::Unsynced { needed, unsynced });
        }
        Ok(())
    }

    fn push(&mut self, frame: Sealed, pages: Vec<Bytes>) {
        self.end = frame.mark;
        self.boundaries.push(frame.mark);
        self.pending.push_back(Arc::new(Pending { frame, pages }));
    }

    /// All frames that are not durable, to be written and synced.
    pub fn batch(&self) -> Vec<Arc<Pending>> {
        self.pending.iter().cloned().collect()
    }

    /// The log is durable up to `mark`.
    pub fn stored(&mut self, mark: Mark) {
        while self
            .pending
            .front()
            .is_some_and(|p| p.frame.mark.lsn <= mark.lsn)
        {
            self.pending.pop_front();
        }
        self.durable = mark;
    }

    /// The page of payload at this position, if its frame is not durable yet.
    pub fn pending_page(&self, lsn: Lsn) -> Option<Bytes> {
        let after = self.pending.partition_point(|p| p.frame.start <= lsn);
        self.pending.get(after.checked_sub(1)?)?.page(lsn)
    }

    /// Whether a page at this position can be read.
    pub fn holds(&self, lsn: Lsn) -> bool {
        self.tail.lsn <= lsn
            && lsn.0.is_multiple_of(PAGE)
            && lsn
                .0
                .checked_add(PAGE_BYTES as u64)
                .is_some_and(|end| end <= self.end.lsn.0)
    }

    /// The tail if `client` needs nothing before `oldest`.
    pub fn tail_with(&self, client: Client, oldest: Lsn) -> Mark {
        let others = self.oldest.iter().filter(|(of, _)| *of != client);
        let oldest = others.map(|(_, oldest)| *oldest).fold(oldest, Lsn::min);
        if oldest >= self.durable.lsn {
            return self.durable;
        }
        self.boundaries.before(oldest).unwrap_or(self.tail)
    }

    /// A durable superblock says that `client` needs nothing before `oldest`, and where the tail is.
    pub fn released(&mut self, client: Client, oldest: Lsn, tail: Mark) {
        for (of, at) in &mut self.oldest {
            if *of == client {
                *at = oldest;
            }
        }
        self.tail = tail;
        self.boundaries.release(tail);
    }

    /// A client's oldest position.
    pub fn oldest(&self, client: Client) -> Option<Lsn> {
        let mut all = self.oldest.iter();
        all.find(|(of, _)| *of == client).map(|(_, oldest)| *oldest)
    }
}

/// The position of each record's first page, where pages begin at `at`.
fn positions(mut at: Lsn, records: &[(Client, Record)]) -> Vec<Lsn> {
    let position = |(_, record): &(Client, Record)| {
        let first = at;
        at.0 += record.payload.len() as u64 * PAGE;
        first
    };
    records.iter().map(position).collect()
}
