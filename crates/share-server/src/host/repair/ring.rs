//! A new temporary log in the place of one with destroyed frames. Its leaves and blocks are in files and segments before.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use store::Repository;
use store::disk::io_error;
use store::mend::kept_name;
use trust::history::leaf_hash;
use wal::Device as LogDevice;

use super::super::directory::{RING, log_id, open_ring, ring_key};
use super::super::leaves::Leaves;
use super::super::moving::Released;
use super::super::{HostError, HostOptions};
use super::leaves::Plan;
use super::{Repair, unmended};
use crate::blocks::Storage;
use crate::blocks::peek::Peeked;
use ordering::prefixes::PAGE;

const NEW: &str = "log.tmp";

impl Repair<'_> {
    /// Moves the leaves to files, and makes the new log. Gives it.
    pub(super) fn ring(
        &mut self,
        peeked: &Peeked,
        plan: &Plan,
    ) -> Result<Arc<dyn LogDevice>, HostError> {
        let epoch = self.policies.newest_epoch().number;
        let mut tree = plan.tree.clone();
        let mut roots = Vec::new();
        for stored in &plan.tail {
            let pushed = tree.push_hash(leaf_hash(&stored.leaf));
            pushed.map_err(HostError::Policy)?;
            if tree.size().is_multiple_of(PAGE) {
                roots.push(tree.root());
            }
        }
        if !plan.tail.is_empty() {
            let (files, _) = Leaves::open(self.parts.disk(epoch))?;
            files.append(&plan.tail, &plan.tree, &roots)?;
        }
        let released = Released::of(&tree, epoch);
        let path = self.path()?.to_owned();
        let disk = &*self.parts.root;
        let failed = |error: io::Error| HostError::from(io_error(disk, RING, error));
        let new = path.with_file_name(NEW);
        let len = std::fs::metadata(&path).map_err(failed)?.len();
        let file = File::create(&new).map_err(failed)?;
        file.set_len(len)
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        drop(file);
        let ring: Arc<dyn LogDevice> = Arc::new(open_ring(&new).map_err(failed)?);
        let volume = self.policies.chain().volume();
        let key = ring_key(volume);
        Storage::format(&*ring, &key, log_id(volume), peeked.ring_bytes)?;
        let storage = Storage::open(
            Arc::clone(&ring),
            &key,
            Repository::open_on(Arc::clone(&self.parts.blocks))?,
            self.hasher.clone(),
            Arc::new(|| Duration::ZERO),
            HostOptions::default().blocks,
            &mut |_| {},
        )?;
        storage.release_entries(storage.log().durable().lsn, &released.encode())?;
        drop(storage);
        let kept = path.with_file_name(kept_name(disk, RING)?);
        replace(&path, &new, &kept).map_err(failed)?;
        disk.sync_dir("").map_err(failed)?;
        self.kept.push(kept);
        let how = "made anew; its leaves and blocks are in their files";
        self.mended.push((path, how.to_owned()));
        Ok(ring)
    }

    /// The file of the temporary log.
    pub(super) fn path(&self) -> Result<&Path, HostError> {
        let path = self.parts.ring_path.as_deref();
        path.ok_or_else(|| unmended("the temporary log is no file".to_owned()))
    }
}

/// Puts a file in the place of another one, which is kept.
fn replace(path: &Path, new: &Path, kept: &Path) -> io::Result<()> {
    std::fs::hard_link(path, kept)?;
    std::fs::rename(new, path)
}
