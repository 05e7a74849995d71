//! The segment table of a remote index run, from the bytes that follow its pages. A replica uses it as
//! a hint of which segments exist, so nothing is checked beyond what keeps the parser safe.

use super::{MAX_ENTRIES, PAGE_BYTES, TRAILER_BYTES, Trailer, pages};
use crate::head::RunName;
use crate::names::FileId;

/// Offset at which the pages of a run end, and how many bytes follow; `None` when the head's numbers
/// are impossible.
pub fn behind_pages(run: &RunName) -> Option<(u64, u64)> {
    if run.entries == 0 || run.entries > MAX_ENTRIES {
        return None;
    }
    let start = pages(run.entries) * PAGE_BYTES as u64;
    Some((start, run.len_bytes.checked_sub(start)?))
}

/// The segments that a run names, from the bytes that follow its pages; `None` when those do not fit
/// the head.
pub fn segments(run: &RunName, behind: &[u8]) -> Option<Vec<FileId>> {
    let (before, trailer) = behind.split_last_chunk::<TRAILER_BYTES>()?;
    let trailer = Trailer::parse(trailer).ok()?;
    let fan_out_bytes = usize::try_from(pages(run.entries)).ok()?.checked_mul(32)?;
    let ids = before.get(fan_out_bytes..)?;
    if trailer.entries != run.entries || ids.len() != trailer.segments as usize * 16 {
        return None;
    }
    let ids = ids.chunks_exact(16).filter_map(|id| id.first_chunk::<16>());
    Some(ids.map(|id| FileId(*id)).collect())
}
