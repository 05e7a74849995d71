//! A mount of the file system in memory, for the tests that write.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mount::fuse::{Session, SessionOptions};
use sim::guarded::GuardedDir;
use sim::memfs::{MemFs, MemFsOptions};

use crate::fixture::{Watchdog, assert_unmounted};

/// A mounted [`MemFs`], which is unmounted when this is dropped, also by a panic.
pub struct WritableMount {
    pub fs: Arc<MemFs>,
    pub session: Option<Session>,
    directory: GuardedDir,
    _watchdog: Watchdog,
}

impl WritableMount {
    pub async fn new(options: MemFsOptions) -> WritableMount {
        let directory = GuardedDir::new().unwrap();
        let fs = Arc::new(MemFs::new(options));
        let is_root = rustix::process::geteuid().is_root();
        let session_options = SessionOptions {
            // Only root may let others in without asking fuse.conf.
            allow_other: is_root,
            honour_suid_and_devices: is_root,
            ..SessionOptions::new("memfs")
        };
        let session = Session::mount(fs.clone(), directory.path(), session_options)
            .await
            .unwrap();
        let watchdog = Watchdog::start(session.directory(), Duration::from_secs(300));
        WritableMount {
            fs,
            session: Some(session),
            directory,
            _watchdog: watchdog,
        }
    }

    pub async fn plain() -> WritableMount {
        WritableMount::new(MemFsOptions::default()).await
    }

    /// Both ways in which the kernel may send writes.
    pub async fn both() -> [WritableMount; 2] {
        let through = WritableMount::new(with_writeback(false)).await;
        [through, WritableMount::new(with_writeback(true)).await]
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }
}

fn with_writeback(writeback_cache: bool) -> MemFsOptions {
    MemFsOptions {
        writeback_cache,
        ..MemFsOptions::default()
    }
}

impl Drop for WritableMount {
    fn drop(&mut self) {
        drop(self.session.take());
        assert_unmounted(self.directory.path());
    }
}
