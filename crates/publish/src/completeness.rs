//! Checks whether a repository has every block of a version. Relies on [`trust::reach`], which walks the
//! difference from a version that is known to be complete. Directories and the trees of long files are read
//! and checked; data blocks are looked up in the index.

use std::collections::HashSet;

use store::StoreError;
use store::repository::Repository;
use trust::handle::InodeBlock;
use trust::inode::Inode;
use trust::reach::{Need, Reach, Refused, Wanted};
use trust::{Handle, Hasher};

use crate::publish_error::PublishError;

/// Counts the blocks of the version under `root` that the repository lacks. Blocks below a missing
/// directory or node are not counted. The version under `base` is known to be complete.
///
/// # Errors
/// [`PublishError`] when the repository cannot be read, or the tree is malformed.
pub(crate) fn missing(
    repository: &Repository,
    hasher: &Hasher,
    base: Option<&Handle<InodeBlock>>,
    root: &Handle<InodeBlock>,
) -> Result<u64, PublishError> {
    if base == Some(root) {
        return Ok(0);
    }
    let base = match base.map(|base| repository.read_verified(base, hasher)) {
        None | Some(Err(StoreError::NoBlock { .. })) => None,
        Some(block) => Some(Inode::from_block(&block?)?),
    };
    let mut reach = Reach::default();
    reach.root(*root, base.as_ref());
    let mut seen = HashSet::new();
    let mut missing = HashSet::new();
    while let Some(need) = reach.needs(1).map_err(malformed)?.pop() {
        let handle = need.handle();
        if is_known(&need, &mut seen) {
            reach.skip(need);
        } else if !repository.contains(&handle)? {
            missing.insert(handle);
            reach.lack(need);
        } else if matches!(need.wanted(), Wanted::Data { .. }) {
            reach.skip(need);
        } else {
            let found = repository.read_wanted(need.wanted(), hasher)?;
            reach.supply(need, found).map_err(malformed)?;
        }
    }
    Ok(missing.len() as u64)
}

/// Whether everything below a node was walked before. Data blocks have nothing below, so they take
/// no room in `seen`.
fn is_known(need: &Need, seen: &mut HashSet<[u8; 32]>) -> bool {
    let is_data = matches!(need.wanted(), Wanted::Data { .. });
    !is_data && need.key().is_some_and(|key| !seen.insert(key))
}

fn malformed(refused: Refused) -> PublishError {
    PublishError::Tree(refused.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::model::Model;
    use sim::random::noise;
    use store::Writer;
    use trust::head::Head;
    use trust::root::RootRecord;

    /// Two versions: their roots, and how many records the first one has.
    fn versions(model: &mut Model) -> (Handle<InodeBlock>, Handle<InodeBlock>, usize) {
        let long = model.file(&noise(1, 100_000), 8192).unwrap();
        let kept = model
            .directory(vec![(b"long".to_vec(), long.clone())])
            .unwrap();
        let top = |model: &mut Model, more: Vec<(Vec<u8>, Inode)>| {
            let mut entries = vec![(b"kept".to_vec(), kept.clone())];
            entries.extend(more);
            let top = model.directory(entries).unwrap();
            let head = Head::decode(&model.publish(&top, 1, 3600).unwrap()).unwrap();
            let record: RootRecord = head.record.statement().read(model.id()).unwrap();
            record.root
        };
        let old = top(model, Vec::new());
        let first = model.records.len();
        let long = model.file(&noise(2, 100_000), 8192).unwrap();
        let twice = vec![(b"a".to_vec(), long.clone()), (b"b".to_vec(), long)];
        let more = model.directory(twice).unwrap();
        let new = top(model, vec![(b"more".to_vec(), more)]);
        (old, new, first)
    }

    #[test]
    fn each_missing_block_is_counted_once() {
        let mut model = Model::new(1).unwrap();
        let (old, new, first) = versions(&mut model);
        let hasher = model.hasher().clone();
        let without = |lacking: Option<usize>, base: Option<&Handle<InodeBlock>>| {
            let dir = tempfile::tempdir().unwrap();
            let repository = Repository::create(dir.path()).unwrap();
            let mut writer = Writer::begin(&repository).unwrap();
            let records = model.records.iter().enumerate();
            for (_, record) in records.filter(|(at, _)| Some(*at) != lacking) {
                writer.append(record).unwrap();
            }
            writer.commit(b"statements").unwrap();
            missing(&repository, &hasher, base, &new).unwrap()
        };
        assert!(model.records.len() > first + 10);
        assert_eq!((without(None, None), without(None, Some(&old))), (0, 0));
        for lacking in first..model.records.len() {
            assert_eq!(without(Some(lacking), Some(&old)), 1, "{lacking}");
            assert_eq!(without(Some(lacking), None), 1, "{lacking}");
        }
        assert_eq!(without(Some(0), Some(&old)), 0, "the base is not walked");
        assert_eq!(without(Some(0), None), 1);
        assert_eq!(without(Some(0), Some(&new)), 0);
    }
}
