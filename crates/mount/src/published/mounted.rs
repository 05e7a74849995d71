//! Mounting a published volume, and the mount that results: a [`Session`] that shows the volume, and
//! a task that keeps it fresh.

use std::path::Path;
use std::sync::Arc;

use reader::Ahead;
use tokio::task::JoinHandle;
use volume::profile::Profile;
use volume::{Fetch, Volume};

use crate::error::MountError;
use crate::fuse::unmount::clear_dead;
use crate::fuse::{Connection, Session, SessionOptions, Signals};
use crate::published::file_system::Published;
use crate::published::freshness::Keeper;
use crate::published::operations::Core;
use crate::published::options::{FetchFirst, MountOptions, NameCaching};
use crate::published::recording::Recorder;
use crate::published::report::Reporter;

/// A mounted volume. Dropping it unmounts.
#[derive(Debug)]
pub struct Mounted {
    session: Session,
    cleared_dead: bool,
    core: Arc<Core>,
    keeper: JoinHandle<()>,
    /// Gives what is being fetched first; dropping that ends it.
    fetching: JoinHandle<Option<Ahead>>,
}

/// Mounts `volume` on `directory` and returns when the mount answers. Dead mounts of volumes of this user are
/// removed from it before. Must be called within a tokio
/// runtime, which then serves requests that need a network.
///
/// # Errors
/// [`MountError::Directory`], [`MountError::Stale`], [`MountError::Busy`] if the directory cannot be used,
/// [`MountError::Refused`] when the kernel or `fusermount3` refuses.
pub async fn mount(
    volume: Arc<Volume>,
    directory: &Path,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    let recorder = options.record.then(Arc::default);
    let core = Arc::new(Core::new(volume, options.ownership.owners(), recorder));
    let published = Published::new(core.clone(), options.read_ahead_bytes);
    let session_options = SessionOptions {
        source: format!("bulla#{}", core.volume.id()),
        read_only: true,
        allow_other: options.allow_other,
        honour_suid_and_devices: options.honour_suid_and_devices,
        no_exec: options.no_exec,
        threads: options.threads,
        read_ahead_bytes: options.read_ahead_bytes,
    };
    let cleared_dead = clear_dead(directory)?;
    let connection = Connection::open(Arc::new(published), directory, session_options).await?;
    let notifier = connection.notifier();
    // A test whether the kernel knows the call. It has no cached names yet.
    let can_recall =
        options.name_caching == NameCaching::Automatic && notifier.increment_epoch().is_ok();
    if can_recall {
        core.names_can_be_recalled();
    }
    let session = connection.serve().await?;
    let keeper = Keeper::new(core.clone(), notifier, can_recall, options.refresh);
    let mounted = Mounted {
        session,
        cleared_dead,
        keeper: tokio::spawn(keeper.run()),
        fetching: tokio::spawn(fetch_first(core.clone(), options.fetch_first)),
        core,
    };
    tracing::info!(
        volume = %mounted.core.volume.id(),
        directory = %mounted.directory().display(),
        can_recall,
        "mounted"
    );
    Ok(mounted)
}

/// Begins to fetch what programs are likely to want.
async fn fetch_first(core: Arc<Core>, what: FetchFirst) -> Option<Ahead> {
    let view = core.view();
    let tree = view.snapshot.tree();
    if tree.blocks().is_local() {
        return None;
    }
    let profile = match what {
        FetchFirst::Nothing => return None,
        FetchFirst::Given(profile) => profile,
        FetchFirst::Attached => {
            match Profile::attached(tree, Fetch::Until(core.volume.deadline())).await {
                Ok(profile) => profile?,
                Err(error) => {
                    tracing::warn!(%error, "the profile of the volume is not used");
                    return None;
                }
            }
        }
    };
    tracing::info!(paths = profile.len(), "fetching what the profile names");
    Some(tree.parts_ahead(profile.selection()))
}

impl Mounted {
    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.session.directory()
    }

    /// Whether a dead mount was removed from the directory.
    pub fn cleared_dead(&self) -> bool {
        self.cleared_dead
    }

    /// The version that programs see now.
    pub fn version(&self) -> u64 {
        self.core.view().snapshot.record().version
    }

    /// Makes reports about the mount, as long as it is mounted.
    pub fn reporter(&self) -> Reporter {
        let device = self.session.device().map(str::to_owned);
        Reporter::new(self.core.clone(), self.directory().to_owned(), device)
    }

    /// What programs read, if [`MountOptions::record`] asked for it.
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.core.recorder.clone()
    }

    /// As [`Session::unmount`].
    ///
    /// # Errors
    /// [`MountError::Unmount`] when the system refuses.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.session.unmount()
    }

    /// As [`Session::ended`].
    ///
    /// # Errors
    /// [`MountError::Ended`] when it ended by an error.
    pub async fn ended(&mut self) -> Result<(), MountError> {
        self.session.ended().await
    }

    /// As [`Session::until_signal`].
    ///
    /// # Errors
    /// As [`Mounted::ended`] and [`Mounted::unmount`].
    pub async fn until_signal(mut self, signals: Signals) -> Result<(), MountError> {
        self.session.until_signal(signals).await
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.keeper.abort();
        self.fetching.abort();
    }
}
