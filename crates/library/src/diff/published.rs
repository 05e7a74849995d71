//! Compares two versions of a published volume, at the cost of the difference: directories with the same handle are
//! equal and are never fetched (`trust::map::Diff`). Directories that differ are fetched ahead ([`super::lead`]).

use bytes::Bytes;
use futures_util::future::{Either, select};
use trust::inode::{Content, Entry, Inode};
use trust::map::Diff;

use reader::{Expect, Fetch, ReadError};
use trust::change::{Change, Difference, alike};

use volume::Snapshot;

use super::lead::Lead;
use super::pair::{Pair, below, map_of, map_or_empty};
use crate::error::Error;
use crate::path::join;

/// Most directories that wait to be compared; only a tree made as an attack has more.
const MAX_WAITING: usize = 1 << 20;

pub(super) async fn difference<E: From<Error>>(
    old: &Snapshot,
    new: &Snapshot,
    how: impl Fn() -> Fetch,
    tell: impl FnMut(Change) -> Result<(), E>,
) -> Result<(), E> {
    let top = || Pair {
        path: Bytes::new(),
        old: map_of(old.root()),
        new: map_of(new.root()),
    };
    let lead = Lead::new(new.blocks());
    let ahead = std::pin::pin!(lead.run(top(), &how));
    let compare = std::pin::pin!(compare_all(old, new, top(), &how, &lead, tell));
    match select(compare, ahead).await {
        Either::Left((compared, _)) => compared,
        Either::Right(((), compare)) => compare.await,
    }
}

async fn compare_all<E: From<Error>>(
    old: &Snapshot,
    new: &Snapshot,
    top: Pair,
    how: impl Fn() -> Fetch,
    lead: &Lead<'_>,
    mut tell: impl FnMut(Change) -> Result<(), E>,
) -> Result<(), E> {
    if old.record().root == new.record().root {
        return Ok(());
    }
    if !alike(old.root(), new.root()) {
        tell(change(b"", Difference::Changed, true))?;
    }
    let mut waiting = vec![top];
    while let Some(pair) = waiting.pop() {
        lead.reached(&pair.path);
        let mut inside = Vec::new();
        let mut diff = Diff::new(pair.old.as_ref(), pair.new.as_ref());
        while !diff.is_done() {
            let wants = diff.wants();
            let nodes = new.blocks().get_many(&wants, how()).await;
            let nodes = nodes.map_err(Error::from)?;
            for (handle, node) in wants.iter().zip(nodes) {
                let supplied = diff.supply_node(handle, &node);
                supplied.map_err(|why| Error::from(ReadError::of_signed(why)))?;
            }
            while let Some(found) = diff.next_change() {
                let path = join(&pair.path, &found.key);
                let before = inode(new, found.old.as_ref(), how()).await;
                let after = inode(new, found.new.as_ref(), how()).await;
                let before = before.map_err(Error::from)?;
                let after = after.map_err(Error::from)?;
                if let Some(told) = compare(&path, before.as_ref(), after.as_ref()) {
                    tell(told)?;
                }
                inside.extend(below(path, before.as_ref(), after.as_ref()));
            }
        }
        inside.reverse();
        waiting.append(&mut inside);
        if waiting.len() > MAX_WAITING {
            let why = "more directories than can be compared";
            let what = "volume";
            let why = ReadError::Malformed(trust::Reject::BadTree { what, why });
            return Err(Error::from(why).into());
        }
    }
    Ok(())
}

async fn inode(
    snapshot: &Snapshot,
    value: Option<&Bytes>,
    how: Fetch,
) -> Result<Option<Inode>, ReadError> {
    let Some(value) = value else {
        return Ok(None);
    };
    match Entry::decode(value).map_err(ReadError::of_signed)? {
        Entry::Inode(inode) => Ok(Some(inode)),
        Entry::Block(handle) => {
            let inode = snapshot.blocks().get(&handle, Expect::Nothing, how).await?;
            Ok(Some(inode.as_ref().clone()))
        }
    }
}

/// The change of one name. A directory does not count as changed because its entries changed.
fn compare(path: &[u8], before: Option<&Inode>, after: Option<&Inode>) -> Option<Change> {
    let is_directory = |inode: &Inode| matches!(inode.content, Content::Directory { .. });
    match (before, after) {
        (None, Some(after)) => Some(change(path, Difference::Added, is_directory(after))),
        (Some(before), None) => Some(change(path, Difference::Removed, is_directory(before))),
        (Some(before), Some(after)) => {
            let listed = map_or_empty(before).is_some() && map_or_empty(after).is_some();
            let same = listed && alike(before, after);
            (!same).then(|| change(path, Difference::Changed, is_directory(after)))
        }
        (None, None) => None,
    }
}

fn change(path: &[u8], difference: Difference, is_directory: bool) -> Change {
    Change {
        path: trust::change::path(path),
        difference,
        is_directory,
    }
}
