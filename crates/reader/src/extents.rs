//! Walks array trees: which extents of a content overlap a range, and in which requests their data
//! blocks are fetched. Relies on [`crate::blocks`] for the nodes.

use std::ops::Range;

use trust::array::{ArrayRoot, Child, Extent};
use trust::{Data, Handle};

use crate::blocks::{Blocks, Fetch};
use crate::error::ReadError;
use crate::read_around::Expect;

/// Plaintext that one request fetches, bytes.
const BATCH_BYTES: u64 = 4 << 20;
/// Data blocks that one request fetches. A publisher may cut a file into blocks of a few bytes, and
/// the work and memory of a request grow with their number.
pub(crate) const BATCH_BLOCKS: usize = 1024;

/// An extent and its place in the content.
#[derive(Debug, Clone)]
pub(crate) struct PlacedExtent {
    /// Where the extent begins, bytes.
    pub(crate) start: u64,
    pub(crate) extent: Extent,
}

/// The extents that overlap `[offset, until)`, in order.
pub(crate) async fn extents(
    blocks: &Blocks,
    root: &ArrayRoot,
    offset: u64,
    until: u64,
    how: Fetch,
) -> Result<Vec<PlacedExtent>, ReadError> {
    let all = extents_up_to(blocks, root, offset..until, usize::MAX, how).await?;
    Ok(all.unwrap_or_default())
}

/// The same; `None` when there are more than `most` extents.
async fn extents_up_to(
    blocks: &Blocks,
    root: &ArrayRoot,
    Range {
        start: offset,
        end: until,
    }: Range<u64>,
    most: usize,
    how: Fetch,
) -> Result<Option<Vec<PlacedExtent>>, ReadError> {
    let mut extents = Vec::new();
    let mut stack = vec![(0u64, root.top())];
    while let Some((start, child)) = stack.pop() {
        let (handle, len, level) = match child {
            Child::Extent(extent) => {
                extents.push(PlacedExtent { start, extent });
                continue;
            }
            Child::Node { handle, len, level } => (handle, len, level),
        };
        let node = blocks.get(&handle, Expect::Nothing, how).await?;
        node.check(level, len).map_err(ReadError::of_signed)?;
        let from = offset.saturating_sub(start);
        let Some((first, at)) = node.seek(from) else {
            continue;
        };
        let mut at = start.saturating_add(at);
        let mut below = Vec::new();
        for child in (first..).map_while(|i| node.child(i)) {
            if at >= until {
                break;
            }
            below.push((at, child));
            at = at.saturating_add(child.len());
            // Each child is at least one extent.
            if extents.len() + stack.len() + below.len() > most {
                return Ok(None);
            }
        }
        below.reverse();
        stack.append(&mut below);
    }
    Ok(Some(extents))
}

/// The data blocks of a whole content; `None` when it has more than `most` extents.
pub(crate) async fn data_handles(
    blocks: &Blocks,
    root: &ArrayRoot,
    most: usize,
    how: Fetch,
) -> Result<Option<Vec<Handle<Data>>>, ReadError> {
    let Some(extents) = extents_up_to(blocks, root, 0..root.len, most, how).await? else {
        return Ok(None);
    };
    let data = |extent: &PlacedExtent| match extent.extent {
        Extent::Data { handle, .. } => Some(handle),
        Extent::Hole { .. } => None,
    };
    Ok(Some(extents.iter().filter_map(data).collect()))
}

/// Data blocks that one request fetches, and their lengths in bytes.
#[derive(Debug, Default)]
pub(crate) struct DataBatch {
    pub(crate) handles: Vec<Handle<Data>>,
    pub(crate) lens: Vec<u32>,
}

/// How many of `extents` the next request covers, and their data blocks.
pub(crate) fn next_batch(extents: &[PlacedExtent]) -> (usize, DataBatch) {
    let mut bytes = 0u64;
    let mut batch = DataBatch::default();
    for (i, extent) in extents.iter().enumerate() {
        if let Extent::Data { handle, len } = &extent.extent {
            bytes += u64::from(*len);
            let full = bytes > BATCH_BYTES || batch.handles.len() >= BATCH_BLOCKS;
            if full && !batch.handles.is_empty() {
                return (i, batch);
            }
            batch.handles.push(*handle);
            batch.lens.push(*len);
        }
    }
    (extents.len(), batch)
}
