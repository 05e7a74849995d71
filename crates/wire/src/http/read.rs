//! Fetches records by handle: looks them up, gathers neighbours into ranges, reads all ranges at once. A walk wants more
//! ranges than requests can be under way, and reads many of them by one request, if the server sends several parts
//! ([`super::parts`]).

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::read::MAX_AROUND_BYTES;
use store::read_plan::{Group, Near, Pieces, Plan, Wanted};
use trust::{Frame, Handle, Record, Reject};

use super::index::View;
use super::parts::{MAX_PARTS, Part};
use super::web::{Fault, Got};
use super::{HttpStore, join};

/// Records are fetched in one request when at most 32 KiB lie between them (over any network with a notable
/// round trip, a request costs more than that many bytes), up to 1 MiB together.
const NEAR: Near = Near {
    gap_bytes: 32 << 10,
    read_bytes: 1 << 20,
    around_bytes: MAX_AROUND_BYTES,
};

/// Who wants more blocks than this may have several reads by one request: if there are more reads than this, or if they
/// would bring twice as much as is wanted.
const MANY_READS: usize = 16;
/// Records that share a request are read as one part when at most this lies between them: about what another part costs.
const CLOSE: Near = Near {
    gap_bytes: 256,
    read_bytes: 1 << 20,
    around_bytes: 0,
};
/// Most bytes of the parts of one request.
const SHARED_BYTES: u64 = 512 << 10;

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
        let groups: Vec<Group<'_>> = plan.groups(NEAR, around).collect();
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let read_bytes: usize = groups.iter().map(Group::needed_bytes).sum();
        let is_wasteful = read_bytes / 2 > plan.wanted_bytes();
        let shares = around == 0
            && want.len() > MANY_READS
            && (groups.len() > MANY_READS || is_wasteful)
            && self.sends_parts(view, &groups).await?;
        self.web.begin_wave();
        let read = if shares {
            let close: Vec<Group<'_>> = plan.groups(CLOSE, 0).collect();
            let sets = sets(&close).into_iter();
            let reads = sets.map(|set| self.read_set(view, set, &plan));
            let read = try_join_all(reads).await?;
            read.into_iter().flatten().collect()
        } else {
            let reads = groups.iter().map(|group| self.read(view, group, &plan));
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

    async fn sends_parts(&self, view: &View, groups: &[Group<'_>]) -> Result<bool, Fault> {
        let Some(wanted) = groups.first().and_then(|group| group.wanted.first()) else {
            return Ok(false);
        };
        let url = join(&view.base, &wanted.at.segment.segment())?;
        Ok(self.web.sends_parts(&url).await)
    }

    /// Reads groups of one segment by one request.
    async fn read_set(
        &self,
        view: &View,
        set: &[Group<'_>],
        plan: &Plan,
    ) -> Result<Vec<(Vec<Record>, Vec<Record>)>, Fault> {
        if let ([_, _, ..], Some(wanted)) = (set, set.first().and_then(|g| g.wanted.first())) {
            let url = join(&view.base, &wanted.at.segment.segment())?;
            let parts: Vec<Part> = set.iter().map(part).collect();
            if let Some(read) = self.web.parts(&url, &parts).await? {
                // The parts share the memory of the answer.
                let whole = read.iter().map(Bytes::len).sum();
                let read = set.iter().zip(read);
                let cut = read.map(|(group, bytes)| cut(group, (&bytes, whole), plan));
                return cut.collect();
            }
            self.web.parts_failed();
        }
        try_join_all(set.iter().map(|group| self.read(view, group, plan))).await
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
        let bytes = match self.web.range(&url, group.start, len_bytes).await? {
            Got::Body(bytes, _) if bytes.len() >= group.needed_bytes() => bytes,
            Got::Body(..) | Got::PastEnd | Got::NoParts => {
                return Err(Fault::Gone(format!("{file} is cut short")));
            }
            Got::Missing | Got::NotModified => {
                return Err(Fault::Gone(format!("{file} is not there")));
            }
        };
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

fn part(group: &Group<'_>) -> Part {
    Part {
        offset: group.start,
        len_bytes: group.needed_bytes() as u64,
    }
}

/// Groups, which are in order of their places, as sets that share a request.
fn sets<'a, 'b>(groups: &'a [Group<'b>]) -> Vec<&'a [Group<'b>]> {
    let mut sets = Vec::new();
    let mut rest = groups;
    while let Some(first) = rest.first() {
        let mut bytes = 0;
        let segment = |group: &Group<'_>| group.wanted.first().map(|wanted| wanted.at.segment);
        let joins = |group: &&Group<'_>| {
            bytes += group.needed_bytes() as u64;
            segment(group) == segment(first) && bytes <= SHARED_BYTES
        };
        let joining = rest.iter().take(MAX_PARTS).take_while(joins).count();
        let (set, after) = rest.split_at(joining.max(1));
        sets.push(set);
        rest = after;
    }
    sets
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
