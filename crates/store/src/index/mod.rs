//! Index runs: immutable files that map handles to the locations of their records
//! (docs/decisions/0007).
//!
//! ```text
//! pages      4 KiB each: 93 entries of 44 bytes (the last page fewer, then zeros), then the first 4
//!            bytes of the BLAKE3 of the 4092 before them
//! fan-out    per page its first handle [32]
//! segments   ids [16], in the order of their ordinals
//! trailer    magic "bullaidx" | format u32 = 0 | incompatible flags u32 | compatible flags u32 |
//!            segment count u32 | entries u64 | BLAKE3 [32] of fan-out, segments and the trailer's
//!            bytes before it
//! entry      handle [32] | segment ordinal u32 | offset u32 | record length u32, bytes
//! ```
//!
//! Entries ascend strictly by handle. A reader keeps the fan-out and the pages that it has read: 45 bytes a
//! block at most. A remote reader needs one range for the table after the pages, and one page for each
//! look-up.

pub mod build;
pub mod pending;
pub mod run;
pub mod table;
pub mod tail;

use trust::Handle;
use trust::frame::HEADER_BYTES;
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};

use crate::names::FileId;

/// Length of a page, bytes.
pub const PAGE_BYTES: usize = 4096;
/// Length of an entry, bytes.
pub const ENTRY_BYTES: usize = 44;
/// Entries in a full page.
pub const PAGE_ENTRIES: usize = 93;
/// Length of the trailer, bytes.
pub const TRAILER_BYTES: usize = 64;
/// Maximum number of entries in one run. It bounds what a hostile file makes a reader allocate.
pub const MAX_ENTRIES: u64 = 1 << 31;
/// Maximum number of segments that one run names.
pub const MAX_SEGMENTS: u32 = 1 << 22;

const MAGIC: &[u8; 8] = b"bullaidx";
const FORMAT: u32 = 0;
const PAGE_BODY_BYTES: usize = PAGE_ENTRIES * ENTRY_BYTES;

/// Why a run cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// It breaks this rule.
    Rule(&'static str),
    /// A later bulla wrote it: it has a format or incompatible flags that this build does not know.
    Newer(String),
}

impl From<&'static str> for Broken {
    fn from(rule: &'static str) -> Broken {
        Broken::Rule(rule)
    }
}

/// The fixed part at the end of a run.
struct Trailer {
    segments: u32,
    entries: u64,
    /// The bytes under the checksum.
    summed: [u8; 32],
    sum: [u8; 32],
}

impl Trailer {
    fn put(segments: u32, entries: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        // Format, incompatible flags, compatible flags.
        for field in [FORMAT, 0, 0, segments] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&entries.to_le_bytes());
    }

    fn parse(bytes: &[u8; TRAILER_BYTES]) -> Result<Trailer, Broken> {
        let (summed, sum) = bytes.split_at(32);
        let parse = || {
            let rest = summed.strip_prefix(&MAGIC[..])?;
            let mut fields = rest
                .chunks_exact(4)
                .filter_map(|field| field.try_into().ok().map(u32::from_le_bytes));
            let mut field = || fields.next();
            let (format, incompatible, _compatible) = (field()?, field()?, field()?);
            let segments = field()?;
            let (low, high) = (field()?, field()?);
            let trailer = Trailer {
                segments,
                entries: u64::from(low) | u64::from(high) << 32,
                summed: summed.try_into().ok()?,
                sum: sum.try_into().ok()?,
            };
            Some((format, incompatible, trailer))
        };
        let (format, incompatible, trailer) = parse().ok_or("has no index run's trailer")?;
        if format != FORMAT || incompatible != 0 {
            let found = format!("format {format}, flags {incompatible:#x}");
            return Err(Broken::Newer(found));
        }
        if trailer.segments > MAX_SEGMENTS {
            return Err("names too many segments".into());
        }
        Ok(trailer)
    }
}

/// An entry of a run: the location of a record, with the segment as an ordinal in that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The record's handle.
    pub handle: Handle,
    /// Which of the run's segments.
    pub segment: u32,
    /// Offset in the segment, bytes.
    pub offset: u32,
    /// Length of the record, bytes.
    pub len: u32,
}

/// Location of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The segment.
    pub segment: FileId,
    /// Offset in it, bytes.
    pub offset: u32,
    /// Length of the record, bytes.
    pub len: u32,
}

impl Entry {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.handle.as_bytes());
        for field in [self.segment, self.offset, self.len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// Parses an entry's 44 bytes; `None` when a field is impossible.
    fn parse(bytes: &[u8], segments: u32) -> Option<Entry> {
        let (handle, rest) = bytes.split_first_chunk::<32>()?;
        let field = |i: usize| {
            let field = rest.get(i * 4..i * 4 + 4)?;
            Some(u32::from_le_bytes(field.try_into().ok()?))
        };
        let entry = Entry {
            handle: Handle::from_bytes(*handle),
            segment: field(0)?,
            offset: field(1)?,
            len: field(2)?,
        };
        let len = entry.len as usize;
        let fits = entry.segment < segments
            && (RECORD_HEADER_BYTES + HEADER_BYTES..=MAX_RECORD_BYTES).contains(&len)
            && entry.offset.checked_add(entry.len).is_some();
        fits.then_some(entry)
    }
}

/// Number of pages for this many entries.
pub fn pages(entries: u64) -> u64 {
    entries.div_ceil(PAGE_ENTRIES as u64)
}

fn page_sum(body: &[u8]) -> [u8; 4] {
    let sum = *blake3::hash(body).as_bytes();
    [sum[0], sum[1], sum[2], sum[3]]
}
