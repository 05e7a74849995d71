//! Fetches records by handle: looks them up, gathers neighbours into ranges, reads all ranges at once. A walk wants more
//! ranges than requests can be under way, so those that wait share requests ([`super::shared`]).

use std::collections::HashSet;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::read::MAX_AROUND_BYTES;
use store::read_plan::{Group, Near, Pieces, Plan, Wanted};
use trust::{Frame, Handle, Record, Reject};

use super::index::View;
use super::parts::Part;
use super::shared::{CLOSE_BYTES, NEAR_BYTES, Shared, Ticket};
use super::web::{Fault, Got, Slot};
use super::{HttpStore, join};

/// Records are fetched in one request when at most 32 KiB lie between them (over any network with a notable
/// round trip, a request costs more than that many bytes), up to 1 MiB together.
const NEAR: Near = Near {
    gap_bytes: NEAR_BYTES,
    read_bytes: 1 << 20,
    around_bytes: MAX_AROUND_BYTES,
};
/// The same if the server sends several parts in one answer.
const CLOSE: Near = Near {
    gap_bytes: CLOSE_BYTES,
    read_bytes: 1 << 20,
    around_bytes: 0,
};
/// Who wants more blocks than this asks whether the server sends several parts in one answer.
const MANY_BLOCKS: usize = 16;

impl HttpStore {
    /// The records of these handles, then those behind the first one. If files that the known head names
    /// are gone, looks for a newer head, once.
    pub(super) async fn get(&self, want: &[Handle], around: usize) -> Result<Vec<Record>, Fault> {
        let view = self.view().await?;
        match self.get_in(&view, want, around).await {
            Err(Fault::Gone(what)) => match self.view_after(&view).await? {
                Some(newer) => self.get_in(&newer, want, around).await,
                None => Err(Fault::Gone(what)),
            },
            got => got,
        }
    }

    async fn get_in(
        &self,
        view: &View,
        want: &[Handle],
        around: usize,
    ) -> Result<Vec<Record>, Fault> {
        let places = view.locate(&self.web, &self.pages, want).await?;
        let wanted = want.iter().zip(places);
        let wanted = wanted.filter_map(|(handle, at)| {
            Some(Wanted {
                at: at?,
                handle: *handle,
            })
        });
        let plan = Plan::new(wanted.collect());
        let Some(any) = plan.groups(NEAR, 0).next() else {
            return Ok(Vec::new());
        };
        let sends_parts = match around == 0 && want.len() > MANY_BLOCKS {
            true => self.sends_parts(view, &any).await?,
            false => self.web.is_known_to_send_parts(),
        };
        self.web.begin_wave();
        let read = if around > 0 {
            // Nobody knows how much of what lies behind the records is there, so such a request is not shared.
            let groups: Vec<Group<'_>> = plan.groups(NEAR, around).collect();
            let reads = groups.iter().map(|group| self.read(view, group, &plan));
            try_join_all(reads).await?
        } else {
            let near = if sends_parts { CLOSE } else { NEAR };
            let groups: Vec<Group<'_>> = plan.groups(near, 0).collect();
            // All wait before the first one takes others along.
            let tickets: Vec<Option<Ticket<'_>>> =
                groups.iter().map(|group| self.wait(group)).collect();
            let reads = groups.iter().zip(tickets);
            let reads = reads.map(|(group, ticket)| self.read_shared(view, group, (ticket, &plan)));
            try_join_all(reads).await?
        };
        let (mut records, mut behind) = (Vec::with_capacity(want.len()), Vec::new());
        for (wanted, extra) in read {
            records.extend(wanted);
            behind.extend(extra);
        }
        // A repository may have a block twice; the answer has it once.
        let mut seen: HashSet<Handle> = HashSet::with_capacity(records.len() + behind.len());
        records.retain(|record: &Record| seen.insert(record.handle));
        records.extend(
            behind
                .into_iter()
                .filter(|r: &Record| seen.insert(r.handle)),
        );
        Ok(records)
    }

    async fn sends_parts(&self, view: &View, group: &Group<'_>) -> Result<bool, Fault> {
        let Some(wanted) = group.wanted.first() else {
            return Ok(false);
        };
        let url = join(&view.base, &wanted.at.segment.segment())?;
        Ok(self.web.sends_parts(&url).await)
    }

    /// Adds a group to the ranges that wait for a request.
    fn wait(&self, group: &Group<'_>) -> Option<Ticket<'_>> {
        let first = group.wanted.first()?;
        let part = Part {
            offset: group.start,
            len_bytes: group.needed_bytes() as u64,
        };
        Some(self.waiting.push(first.at.segment, part))
    }

    /// Reads a group that waits for a request: its own, or one of another range.
    async fn read_shared(
        &self,
        view: &View,
        group: &Group<'_>,
        (mut ticket, plan): (Option<Ticket<'_>>, &Plan),
    ) -> Result<(Vec<Record>, Vec<Record>), Fault> {
        while let Some(waits) = &mut ticket {
            let answer = tokio::select! {
                biased;
                answer = &mut waits.answer => answer,
                slot = self.web.slot() => {
                    let slot = slot?;
                    let sends_parts = self.web.is_known_to_send_parts();
                    match self.waiting.take(waits, sends_parts) {
                        Some(shared) => self.request(view, slot, shared).await?,
                        None => drop(slot),
                    }
                    (&mut waits.answer).await
                }
            };
            match answer {
                Ok(answer) => {
                    let (bytes, whole) = answer?;
                    return cut(group, (&bytes, whole), plan);
                }
                // The request of another range that was to bring it has ended without an answer.
                Err(_) => ticket = self.wait(group),
            }
        }
        Ok((Vec::new(), Vec::new()))
    }

    /// Reads ranges by one request. They get no answer when the server has sent other parts: then it is asked for one part
    /// at a time from now on.
    async fn request(&self, view: &View, slot: Slot<'_>, shared: Shared) -> Result<(), Fault> {
        let url = join(&view.base, &shared.segment.segment())?;
        let began = Instant::now();
        let answer = match &*shared.parts {
            [part] => {
                let range = (part.offset, part.len_bytes);
                let got = self.web.range_in(slot, &url, range).await;
                got.and_then(|got| whole(got, range.1, &shared.segment.segment()))
                    .map(|bytes| vec![bytes])
            }
            parts => match self.web.parts_in(slot, &url, parts).await {
                Ok(Some(read)) => Ok(read),
                Ok(None) => {
                    self.web.parts_failed();
                    return Ok(());
                }
                Err(fault) => Err(fault),
            },
        };
        if answer.is_ok() && shared.is_shared() {
            self.waiting.took(began.elapsed());
        }
        shared.give(answer);
        Ok(())
    }

    /// Reads a group: its wanted records, and those behind them.
    async fn read(
        &self,
        view: &View,
        group: &Group<'_>,
        plan: &Plan,
    ) -> Result<(Vec<Record>, Vec<Record>), Fault> {
        let Some(first) = group.wanted.first() else {
            return Ok((Vec::new(), Vec::new()));
        };
        let file = first.at.segment.segment();
        let url = join(&view.base, &file)?;
        let len_bytes = group.needed_bytes().saturating_add(group.around) as u64;
        let got = self.web.range(&url, group.start, len_bytes).await?;
        let bytes = whole(got, group.needed_bytes() as u64, &file)?;
        cut(group, (&bytes, bytes.len()), plan)
    }
}

/// The records in the bytes of a group, which belong to `whole` bytes of memory: those that are wanted, and those behind
/// them.
fn cut(
    group: &Group<'_>,
    (bytes, whole): (&Bytes, usize),
    plan: &Plan,
) -> Result<(Vec<Record>, Vec<Record>), Fault> {
    let Pieces { wanted, behind } = group.split(bytes, plan).map_err(|_| {
        Fault::Bad(Reject::Malformed {
            what: "segment",
            why: "another record than the index names",
        })
    })?;
    let take = |regions: Vec<store::read::Region>| {
        let records = regions.into_iter().map(|region| region.bytes);
        records.flat_map(move |bytes| Records { bytes, whole })
    };
    Ok((take(wanted).collect(), take(behind).collect()))
}

/// The bytes of an answer that has at least `len_bytes`.
fn whole(got: Got, len_bytes: u64, file: &str) -> Result<Bytes, Fault> {
    match got {
        Got::Body(bytes, _) if bytes.len() as u64 >= len_bytes => Ok(bytes),
        Got::Body(..) | Got::PastEnd | Got::NoParts => {
            Err(Fault::Gone(format!("{file} is cut short")))
        }
        Got::Missing | Got::NotModified => Err(Fault::Gone(format!("{file} is not there"))),
    }
}

/// Splits records that are back to back. Copies each unless it is most of the bytes: a cache that
/// keeps one must not keep the memory of all.
struct Records {
    bytes: Bytes,
    whole: usize,
}

impl Iterator for Records {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let record = Record::take(&mut self.bytes).ok()??;
        if record.len().saturating_mul(2) >= self.whole {
            return Some(record);
        }
        let frame = Frame::parse(Bytes::copy_from_slice(record.frame.as_bytes())).ok()?;
        Some(Record { frame, ..record })
    }
}
