//! Takes the writer's lock, and removes the files that a crashed writer left.

use crate::collect::CollectedNote;
use crate::disk::{Disk, Lock, io_error};
use crate::error::StoreError;
use crate::names::{self, FileId};
use crate::view::View;
use crate::{format, history_log};

/// Takes the writer's lock, if this build may write the repository.
pub(crate) fn lock_for_writing(disk: &dyn Disk) -> Result<Lock, StoreError> {
    if !format::read(disk)?.write {
        return Err(StoreError::Format {
            path: disk.path(""),
            found: "features that this build can read but not write".to_owned(),
        });
    }
    disk.lock(names::LOCK_FILE)
        .map_err(|e| io_error(disk, names::LOCK_FILE, e))?
        .ok_or_else(|| StoreError::Locked {
            path: disk.path(""),
        })
}

/// Removes temporary files, and segments and index runs that the head does not name. The caller holds
/// the writer's lock, and `view` is complete.
pub(crate) fn clear_leftovers(disk: &dyn Disk, view: &View) -> Result<usize, StoreError> {
    let mut doomed: Vec<String> = Vec::new();
    let list = |dir: &str| match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other.map_err(|e| io_error(disk, dir, e)),
    };
    let temporary = |name: &String| name.ends_with(names::TEMPORARY);
    doomed.extend(list("")?.into_iter().filter(temporary));
    for name in list(names::POLICY_DIR)?.into_iter().filter(temporary) {
        doomed.push(format!("{}/{name}", names::POLICY_DIR));
    }
    for epoch in list(names::LOG_DIR)? {
        doomed.extend(history_log::leftovers(&epoch, list)?);
    }
    let segments = view.segments();
    let protected = CollectedNote::load(disk)?.protected_now();
    let kept = |id: FileId| segments.contains(&id) || protected.contains(&id);
    for name in list(names::SEGMENT_DIR)? {
        let id = FileId::parse(&name, names::SEGMENT_ENDING);
        if temporary(&name) || id.is_some_and(|id| !kept(id)) {
            doomed.push(format!("{}/{name}", names::SEGMENT_DIR));
        }
    }
    let named =
        |id: FileId| view.head.retired.contains(&id) || view.head.runs.iter().any(|r| r.id == id);
    for name in list(names::INDEX_DIR)? {
        let id = FileId::parse(&name, names::INDEX_ENDING);
        if temporary(&name) || id.is_some_and(|id| !named(id)) {
            doomed.push(format!("{}/{name}", names::INDEX_DIR));
        }
    }
    for name in &doomed {
        disk.remove(name).map_err(|e| io_error(disk, name, e))?;
    }
    Ok(doomed.len())
}
