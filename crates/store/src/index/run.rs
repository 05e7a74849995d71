//! Reading an index run. The file is hostile: every page is checked once, when it is first touched
//! (checksum, order, agreement with the fan-out), and kept.

use std::sync::{Arc, OnceLock};

use trust::Handle;

use super::{
    ENTRY_BYTES, Entry, FORMAT, Location, MAGIC, MAX_ENTRIES, MAX_SEGMENTS, PAGE_BODY_BYTES,
    PAGE_BYTES, PAGE_ENTRIES, TRAILER_BYTES, page_sum, pages,
};
use crate::disk::{Disk, DiskFile};
use crate::head::RunName;
use crate::names::FileId;
use crate::{Patience, StoreError, damaged, io_error};

type Page = Box<[u8; PAGE_BYTES]>;

/// An open index run.
pub struct Run {
    name: RunName,
    file: Arc<dyn DiskFile>,
    first: Vec<Handle>,
    segments: Vec<FileId>,
    pages: Vec<OnceLock<Page>>,
}

/// What a run knows of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Here it lies.
    At(Location),
    /// This run does not have it.
    Absent,
    /// Only the device can tell, and the caller would not wait.
    WouldWait,
}

impl Run {
    /// Opens the run that the head names: reads its trailer, fan-out and segment table.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is not what the head says; [`StoreError::Io`].
    pub fn open(disk: &dyn Disk, name: RunName) -> Result<Run, StoreError> {
        let path = name.id.index();
        let file = disk.open(&path).map_err(|e| io_error(disk, &path, e))?;
        let bad = |why: &str| damaged(disk, &path, why);
        let len = file.len_bytes().map_err(|e| io_error(disk, &path, e))?;
        if len != name.len_bytes {
            return Err(bad("not as long as the head says"));
        }
        if name.entries == 0 || name.entries > MAX_ENTRIES {
            return Err(bad("impossible number of entries"));
        }
        let page_count = pages(name.entries);
        let behind = page_count * PAGE_BYTES as u64;
        let trailer_at = len.checked_sub(TRAILER_BYTES as u64);
        let trailer_at = trailer_at.ok_or_else(|| bad("shorter than its trailer"))?;
        let read = |buf: &mut [u8], at: u64| match file.read_at(buf, at) {
            Ok(n) if n == buf.len() => Ok(()),
            Ok(_) => Err(bad("cut short")),
            Err(e) => Err(io_error(disk, &path, e)),
        };
        let mut trailer = [0; TRAILER_BYTES];
        read(&mut trailer, trailer_at)?;
        let trailer = Trailer::parse(&trailer).ok_or_else(|| bad("no trailer of an index run"))?;
        let meta = page_count * 32 + u64::from(trailer.segments) * 16;
        if trailer.entries != name.entries || behind + meta != trailer_at {
            return Err(bad("its parts do not add up"));
        }

        let mut sum = blake3::Hasher::new();
        let mut at = behind;
        let ascends = |rows: &[[u8; 32]]| {
            let order = rows.is_sorted_by(|a, b| a < b);
            order
                .then_some(())
                .ok_or_else(|| bad("fan-out is out of order"))
        };
        let first = read_table(page_count, &mut at, &mut sum, &read, ascends)?;
        let segments = u64::from(trailer.segments);
        let segments: Vec<[u8; 16]> = read_table(segments, &mut at, &mut sum, &read, |_| Ok(()))?;
        sum.update(&trailer.summed);
        if sum.finalize() != blake3::Hash::from_bytes(trailer.sum) {
            return Err(bad("checksum does not match"));
        }
        Ok(Run {
            name,
            file,
            pages: first.iter().map(|_| OnceLock::new()).collect(),
            first: first.into_iter().map(Handle::from_bytes).collect(),
            segments: segments.into_iter().map(FileId).collect(),
        })
    }

    /// The run's name in the head.
    pub fn name(&self) -> RunName {
        self.name
    }

    /// The segments that its entries point into.
    pub fn segments(&self) -> &[FileId] {
        &self.segments
    }

    /// Looks a handle up.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn lookup(
        &self,
        disk: &dyn Disk,
        handle: &Handle,
        patience: Patience,
    ) -> Result<Lookup, StoreError> {
        let Some(number) = self.first.partition_point(|f| f <= handle).checked_sub(1) else {
            return Ok(Lookup::Absent);
        };
        let Some(page) = self.page(disk, number, patience)? else {
            return Ok(Lookup::WouldWait);
        };
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
                    return self.resolve(disk, bytes).map(Lookup::At);
                }
            }
        }
        Ok(Lookup::Absent)
    }

    /// All entries in order of their handles, reading pages that were not touched without keeping
    /// them: merging a run must not fill memory with it.
    pub fn entries<'a>(
        &'a self,
        disk: &'a dyn Disk,
    ) -> impl Iterator<Item = Result<(Handle, Location), StoreError>> + 'a {
        let mut number = 0;
        let mut page: Option<Arc<[u8]>> = None;
        let mut next = 0;
        std::iter::from_fn(move || {
            loop {
                if page.is_none() {
                    if number >= self.pages.len() {
                        return None;
                    }
                    match self.page_unkept(disk, number) {
                        Ok(p) => page = Some(p),
                        Err(e) => {
                            number = self.pages.len();
                            return Some(Err(e));
                        }
                    }
                    next = 0;
                }
                if next < self.entries_in(number) {
                    let bytes = page.as_deref().and_then(|p| entry_bytes(p, next));
                    next += 1;
                    return Some(self.resolve_named(disk, bytes.unwrap_or_default()));
                }
                page = None;
                number += 1;
            }
        })
    }

    fn entries_in(&self, page: usize) -> usize {
        let before = page as u64 * PAGE_ENTRIES as u64;
        let left = self.name.entries.saturating_sub(before);
        left.min(PAGE_ENTRIES as u64) as usize
    }

    fn resolve(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<Location, StoreError> {
        self.resolve_named(disk, bytes).map(|(_, at)| at)
    }

    fn resolve_named(
        &self,
        disk: &dyn Disk,
        bytes: &[u8],
    ) -> Result<(Handle, Location), StoreError> {
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
        resolve().ok_or_else(|| self.bad(disk, "an entry points nowhere"))
    }

    /// A page, from memory or from the file; `None` when that would mean to wait.
    fn page(
        &self,
        disk: &dyn Disk,
        number: usize,
        patience: Patience,
    ) -> Result<Option<&[u8]>, StoreError> {
        let Some(slot) = self.pages.get(number) else {
            return Err(self.bad(disk, "no such page"));
        };
        if let Some(page) = slot.get() {
            return Ok(Some(&page[..]));
        }
        let mut page: Page = Box::new([0; PAGE_BYTES]);
        let at = number as u64 * PAGE_BYTES as u64;
        let read = match patience {
            Patience::Wait => self.file.read_at(&mut page[..], at).map(Some),
            Patience::Never => self.file.read_at_if_cached(&mut page[..], at),
        };
        match read.map_err(|e| io_error(disk, &self.name.id.index(), e))? {
            None => return Ok(None),
            Some(PAGE_BYTES) => self.check(disk, number, &page[..])?,
            Some(_) => return Err(self.bad(disk, "cut short")),
        }
        Ok(Some(&slot.get_or_init(|| page)[..]))
    }

    fn page_unkept(&self, disk: &dyn Disk, number: usize) -> Result<Arc<[u8]>, StoreError> {
        if let Some(page) = self.pages.get(number).and_then(OnceLock::get) {
            return Ok(Arc::from(&page[..]));
        }
        let mut page = vec![0; PAGE_BYTES];
        let at = number as u64 * PAGE_BYTES as u64;
        let read = self.file.read_at(&mut page, at);
        if read.map_err(|e| io_error(disk, &self.name.id.index(), e))? != PAGE_BYTES {
            return Err(self.bad(disk, "cut short"));
        }
        self.check(disk, number, &page)?;
        Ok(page.into())
    }

    /// The rules of a page: its checksum, its first handle as the fan-out has it, strict order, and
    /// nothing that belongs into the next page.
    fn check(&self, disk: &dyn Disk, number: usize, page: &[u8]) -> Result<(), StoreError> {
        let (body, sum) = page.split_at(PAGE_BODY_BYTES.min(page.len()));
        if page_sum(body) != sum {
            return Err(self.bad(disk, "a page's checksum does not match"));
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
            Err(self.bad(disk, "a page's handles are out of order"))
        }
    }

    fn bad(&self, disk: &dyn Disk, why: &str) -> StoreError {
        damaged(disk, &self.name.id.index(), why)
    }
}

fn entry_bytes(page: &[u8], index: usize) -> Option<&[u8]> {
    page.get(index * ENTRY_BYTES..(index + 1) * ENTRY_BYTES)
}

/// Reads `count` rows of a table in pieces and judges each with the row before it, so that memory
/// grows with what the file really holds: a sparse file is long and cheap.
fn read_table<const N: usize>(
    count: u64,
    at: &mut u64,
    sum: &mut blake3::Hasher,
    read: &impl Fn(&mut [u8], u64) -> Result<(), StoreError>,
    judge: impl Fn(&[[u8; N]]) -> Result<(), StoreError>,
) -> Result<Vec<[u8; N]>, StoreError> {
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

struct Trailer {
    segments: u32,
    entries: u64,
    summed: [u8; 24],
    sum: [u8; 32],
}

impl Trailer {
    fn parse(bytes: &[u8; TRAILER_BYTES]) -> Option<Trailer> {
        let summed = *bytes.first_chunk::<24>()?;
        let (magic, rest) = summed.split_first_chunk::<8>()?;
        let (format, rest) = rest.split_first_chunk::<4>()?;
        let (segments, entries) = rest.split_first_chunk::<4>()?;
        let trailer = Trailer {
            segments: u32::from_le_bytes(*segments),
            entries: u64::from_le_bytes(entries.try_into().ok()?),
            summed,
            sum: *bytes.last_chunk::<32>()?,
        };
        let known = magic == MAGIC
            && u32::from_le_bytes(*format) == FORMAT
            && trailer.segments <= MAX_SEGMENTS;
        known.then_some(trailer)
    }
}
