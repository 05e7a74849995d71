//! Where the log of each epoch lies in a server's directory: that of epoch 0 in the directory itself, that of a later one
//! in a directory below it (decision 0052).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use store::disk::{Disk, DiskFile, Lock, Space};

/// The part of a server's directory that has the log of an epoch.
pub(super) fn disk(root: &Arc<dyn Disk>, epoch: u64) -> Arc<dyn Disk> {
    match epoch {
        0 => Arc::clone(root),
        _ => Arc::new(Below {
            root: Arc::clone(root),
            prefix: format!("epoch-{epoch}"),
        }),
    }
}

/// A directory of a disk, as a disk.
struct Below {
    root: Arc<dyn Disk>,
    prefix: String,
}

impl Below {
    fn name(&self, name: &str) -> String {
        match name {
            "" => self.prefix.clone(),
            _ => format!("{}/{name}", self.prefix),
        }
    }
}

impl Disk for Below {
    fn place(&self) -> &str {
        self.root.place()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path(&self.name(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.root.create(&self.name(name))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.root.open(&self.name(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.root.rename(&self.name(from), &self.name(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.root.remove(&self.name(name))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.root.make_dir(&self.name(name))
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        self.root.sync_dir(&self.name(name))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.root.list(&self.name(dir))
    }

    fn space(&self) -> io::Result<Space> {
        self.root.space()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        self.root.lock(&self.name(name))
    }
}
