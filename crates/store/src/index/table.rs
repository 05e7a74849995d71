//! Parses and checks an index run: the table that follows its pages (fan-out, segment ids, trailer)
//! and the pages. Sans-I/O, so that the same rules hold for a run on a disk and a run behind a web
//! server.

use trust::Handle;

pub use super::Broken;
use super::{
    ENTRY_BYTES, Entry, Location, MAX_ENTRIES, PAGE_BODY_BYTES, PAGE_BYTES, PAGE_ENTRIES,
    TRAILER_BYTES, Trailer, page_sum, pages,
};
use crate::head::RunName;
use crate::names::FileId;

/// The part of a run that follows its pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    entries: u64,
    first: Vec<Handle>,
    segments: Vec<FileId>,
}

/// Offset at which a run's pages end and its table begins, from the numbers in the head.
///
/// # Errors
/// When the numbers are impossible.
pub fn behind_pages(name: &RunName) -> Result<u64, Broken> {
    if name.entries == 0 || name.entries > MAX_ENTRIES {
        return Err("impossible number of entries".into());
    }
    let behind = pages(name.entries).saturating_mul(PAGE_BYTES as u64);
    let least = behind.saturating_add(TRAILER_BYTES as u64);
    if name.len_bytes < least {
        return Err("shorter than its trailer".into());
    }
    Ok(behind)
}

impl Table {
    /// Parses the table from all bytes that follow the pages.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn parse(name: &RunName, bytes: &[u8]) -> Result<Table, Broken> {
        let behind = behind_pages(name)?;
        if bytes.len() as u64 != name.len_bytes - behind {
            return Err("not as long as the head says".into());
        }
        let read = |buf: &mut [u8], at: u64| {
            let from = usize::try_from(at.saturating_sub(behind)).unwrap_or(usize::MAX);
            let end = from.saturating_add(buf.len());
            buf.copy_from_slice(bytes.get(from..end).ok_or(Broken::Rule("cut short"))?);
            Ok(())
        };
        Table::read(name, read, |why| why)
    }

    /// Like [`Table::parse`], with a function that reads at an offset of the file. Memory grows with
    /// what the file really holds.
    ///
    /// # Errors
    /// Those of `read`, and `bad` for the rule that is broken.
    pub fn read<E>(
        name: &RunName,
        read: impl Fn(&mut [u8], u64) -> Result<(), E>,
        bad: impl Fn(Broken) -> E,
    ) -> Result<Table, E> {
        let behind = behind_pages(name).map_err(&bad)?;
        let trailer_at = name.len_bytes - TRAILER_BYTES as u64;
        let mut trailer = [0; TRAILER_BYTES];
        read(&mut trailer, trailer_at)?;
        let trailer = Trailer::parse(&trailer).map_err(&bad)?;
        let page_count = pages(name.entries);
        let meta = page_count * 32 + u64::from(trailer.segments) * 16;
        if trailer.entries != name.entries || behind + meta != trailer_at {
            return Err(bad("the lengths of its parts do not add up".into()));
        }

        let mut sum = blake3::Hasher::new();
        let mut at = behind;
        let ascends = |rows: &[[u8; 32]]| {
            let order = rows.is_sorted_by(|a, b| a < b);
            order
                .then_some(())
                .ok_or_else(|| bad("fan-out is out of order".into()))
        };
        let first = read_rows(page_count, &mut at, &mut sum, &read, ascends)?;
        let segments = u64::from(trailer.segments);
        let segments: Vec<[u8; 16]> = read_rows(segments, &mut at, &mut sum, &read, |_| Ok(()))?;
        sum.update(&trailer.summed);
        if sum.finalize() != blake3::Hash::from_bytes(trailer.sum) {
            return Err(bad("checksum does not match".into()));
        }
        Ok(Table {
            entries: name.entries,
            first: first.into_iter().map(Handle::from_bytes).collect(),
            segments: segments.into_iter().map(FileId).collect(),
        })
    }

    /// The segments that the run names.
    pub fn segments(&self) -> &[FileId] {
        &self.segments
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.first.len()
    }

    /// The page that has the handle's entry if the run has one.
    pub fn page_of(&self, handle: &Handle) -> Option<usize> {
        self.first.partition_point(|f| f <= handle).checked_sub(1)
    }

    /// Number of entries on a page.
    pub fn entries_in(&self, page: usize) -> usize {
        let before = page as u64 * PAGE_ENTRIES as u64;
        let left = self.entries.saturating_sub(before);
        left.min(PAGE_ENTRIES as u64) as usize
    }

    /// Checks a page: its length, its checksum, its first handle against the fan-out, strict order,
    /// and that no handle belongs on the next page.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check_page(&self, number: usize, page: &[u8]) -> Result<(), Broken> {
        if page.len() != PAGE_BYTES || number >= self.first.len() {
            return Err("no such page".into());
        }
        let (body, sum) = page.split_at(PAGE_BODY_BYTES.min(page.len()));
        if page_sum(body) != sum {
            return Err("a page's checksum does not match".into());
        }
        let mut handles = body
            .chunks_exact(ENTRY_BYTES)
            .take(self.entries_in(number))
            .map(|e| e.first_chunk::<32>());
        let ordered = handles.clone().is_sorted_by(|a, b| a < b);
        let first = handles.clone().next().flatten();
        let last = handles.next_back().flatten();
        let next = self.first.get(number + 1).map(|h| h.as_bytes());
        let fits = first == self.first.get(number).map(|h| h.as_bytes())
            && next.is_none_or(|next| last < Some(next));
        if ordered && fits {
            Ok(())
        } else {
            Err("a page's handles are out of order".into())
        }
    }

    /// Looks a handle up on a checked page.
    ///
    /// # Errors
    /// When its entry is impossible.
    pub fn find(
        &self,
        number: usize,
        page: &[u8],
        handle: &Handle,
    ) -> Result<Option<Location>, Broken> {
        let (mut low, mut high) = (0, self.entries_in(number));
        while low < high {
            let middle = low.midpoint(high);
            let Some(bytes) = entry_bytes(page, middle) else {
                break;
            };
            match bytes.first_chunk::<32>().cmp(&Some(handle.as_bytes())) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    return self.resolve(bytes).map(|(_, at)| Some(at));
                }
            }
        }
        Ok(None)
    }

    /// An entry of a checked page.
    ///
    /// # Errors
    /// When it is impossible.
    pub fn entry(&self, page: &[u8], index: usize) -> Result<(Handle, Location), Broken> {
        self.resolve(entry_bytes(page, index).unwrap_or_default())
    }

    fn resolve(&self, bytes: &[u8]) -> Result<(Handle, Location), Broken> {
        let resolve = || {
            let entry = Entry::parse(bytes, self.segments.len() as u32)?;
            let segment = *self.segments.get(entry.segment as usize)?;
            let location = Location {
                segment,
                offset: entry.offset,
                len: entry.len,
            };
            Some((entry.handle, location))
        };
        resolve().ok_or(Broken::Rule("an entry has an impossible location"))
    }
}

fn entry_bytes(page: &[u8], index: usize) -> Option<&[u8]> {
    page.get(index * ENTRY_BYTES..(index + 1) * ENTRY_BYTES)
}

/// Reads `count` rows in pieces and checks each piece before it reads the next, so that memory grows
/// with what the file really holds. (A hostile sparse file is long and cheap.)
fn read_rows<const N: usize, E>(
    count: u64,
    at: &mut u64,
    sum: &mut blake3::Hasher,
    read: &impl Fn(&mut [u8], u64) -> Result<(), E>,
    judge: impl Fn(&[[u8; N]]) -> Result<(), E>,
) -> Result<Vec<[u8; N]>, E> {
    const PIECE_ROWS: u64 = 1 << 15;
    let mut rows: Vec<[u8; N]> = Vec::new();
    let mut left = count;
    while left > 0 {
        let now = left.min(PIECE_ROWS);
        let mut piece = vec![0; now as usize * N];
        read(&mut piece, *at)?;
        sum.update(&piece);
        let judged = rows.len().saturating_sub(1);
        rows.extend(piece.chunks_exact(N).filter_map(|c| c.first_chunk::<N>()));
        judge(rows.get(judged..).unwrap_or_default())?;
        *at += piece.len() as u64;
        left -= now;
    }
    Ok(rows)
}
