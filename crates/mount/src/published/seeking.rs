//! `lseek` to the next data or the next hole (docs/semantics.md), by `Snapshot::data_runs`.

use trust::inode::Content;
use volume::Fetch;

use crate::fuse::Error;
use crate::fuse::request::Seek;
use crate::published::failure::Failure;
use crate::published::operations::Core;

/// Bytes of a file that one step examines: as many as one read. So a file of extents of one byte each, which
/// a publisher may sign, takes no more memory than in a read.
const STEP_BYTES: u64 = 1 << 20;
/// Steps between two looks at the deadline.
const STEPS_AT_ONCE: u32 = 16;

/// LSEEK: the first data or hole at or after `offset`; ENXIO if there is none.
pub async fn seek(
    core: &Core,
    number: u64,
    offset: i64,
    what: Seek,
    how: Fetch,
) -> Result<i64, Failure> {
    let node = core.node(number)?;
    let inode = node.file().ok_or(Failure::Plain(Error::IsADirectory))?;
    if !matches!(inode.content, Content::Regular(_)) {
        return Err(Error::InvalidArgument.into());
    }
    let snapshot = core.view().snapshot.clone();
    let end = inode.content.size();
    // lseek(2) answers a negative offset with ENXIO.
    let mut at = u64::try_from(offset).map_err(|_| Failure::Plain(Error::NoSuchOffset))?;
    let mut steps = 0;
    while at < end {
        steps += 1;
        if steps % STEPS_AT_ONCE == 0 {
            // A long file that is all in memory must neither keep a thread busy nor miss the deadline.
            tokio::task::yield_now().await;
        }
        let until = at.saturating_add(STEP_BYTES).min(end);
        let runs = snapshot.data_runs(&inode, at, until, how).await?;
        let first = runs.data.first();
        match (what, first) {
            (Seek::Data, Some(run)) => return position(run.start),
            (Seek::Data, None) => at = runs.until.max(until),
            (Seek::Hole, Some(run)) if run.start == at => {
                at = run.end;
                if at < until {
                    return position(at);
                }
            }
            (Seek::Hole, _) => return position(at),
        }
    }
    match what {
        // The end of a file counts as a hole, if the search began before it.
        Seek::Hole if steps > 0 => position(end),
        _ => Err(Error::NoSuchOffset.into()),
    }
}

fn position(at: u64) -> Result<i64, Failure> {
    i64::try_from(at).map_err(|_| Failure::Plain(Error::Overflow))
}
