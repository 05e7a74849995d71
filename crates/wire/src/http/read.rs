//! Fetches records by handle: looks them up, gathers neighbours into ranges, reads all ranges at once.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::future::try_join_all;
use store::read::MAX_AROUND_BYTES;
use store::read_plan::{Group, Near, Pieces, Plan, Wanted};
use trust::{Frame, Handle, Record, Reject};

use super::index::View;
use super::web::{Fault, Got};
use super::{HttpStore, join};

/// Records are fetched in one request when at most 32 KiB lie between them (over any network with a notable
/// round trip, a request costs more than that many bytes), up to 1 MiB together.
const NEAR: Near = Near {
    gap_bytes: 32 << 10,
    read_bytes: 1 << 20,
    around_bytes: MAX_AROUND_BYTES,
};

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
        self.web.begin_wave();
        let reads = groups.iter().map(|group| self.read(view, group, &plan));
        let read = try_join_all(reads).await?;
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
            Got::Body(..) | Got::PastEnd => {
                return Err(Fault::Gone(format!("{file} is cut short")));
            }
            Got::Missing | Got::NotModified => {
                return Err(Fault::Gone(format!("{file} is not there")));
            }
        };
        let Pieces { wanted, behind } = group.split(&bytes, plan).map_err(|_| {
            Fault::Bad(Reject::Malformed {
                what: "segment",
                why: "another record than the index names",
            })
        })?;
        let whole = bytes.len();
        let take = |regions: Vec<store::read::Region>| {
            let records = regions.into_iter().map(|region| region.bytes);
            records.flat_map(move |bytes| Records { bytes, whole })
        };
        Ok((take(wanted).collect(), take(behind).collect()))
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
