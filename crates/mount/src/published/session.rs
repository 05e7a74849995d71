//! A mount from its beginning to its end.
//!
//! [`mount`] comes back when the mount answers; there is no fork: a command that wants to go on in
//! the background starts itself anew and waits for word that this returned. A mount ends when it is
//! unmounted from outside, by [`Mounted::unmount`], or when [`Mounted`] is dropped; it never outlives
//! its process.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use fuser::{Config, MountOption, Session, SessionACL};
use publish::Volume;
use rustix::io::Errno;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::published::attributes::Owners;
use crate::published::bridge::Bridge;
use crate::error::MountError;
use crate::published::freshness::Keeper;
use crate::fuse::names::KernelNames;
use crate::published::operations::Core;
use crate::published::options::{MountOptions, NameCaching};
use crate::published::report::Reporter;
use crate::fuse::{table, unmount};

/// How long a fresh mount may take to answer for its own root.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// More threads than this only contend for the kernel's queue.
const MAX_THREADS: usize = 8;

/// A mount that answers.
#[derive(Debug)]
pub struct Mounted {
    directory: PathBuf,
    core: Arc<Core>,
    /// Which file system it is in the mount table, so that no other is taken away in its place.
    device: Option<String>,
    keeper: JoinHandle<()>,
    ended: oneshot::Receiver<io::Result<()>>,
}

/// Mounts `volume` on `directory` and comes back when the mount answers. Must be called within a
/// tokio runtime, which then serves what has to wait for a network.
///
/// # Errors
/// [`MountError::Directory`], [`MountError::Stale`] for the directory's fault,
/// [`MountError::Refused`] when the kernel or `fusermount3` does not let us.
pub async fn mount(
    volume: Arc<Volume>,
    directory: &Path,
    options: MountOptions,
) -> Result<Mounted, MountError> {
    let directory = check_directory(directory)?;
    let core = Arc::new(Core::new(volume, Owners::new(options.ownership)));
    let runtime = tokio::runtime::Handle::current();
    let bridge = Bridge::new(core.clone(), runtime, options.read_ahead_bytes);
    let config = config(&core, &options);
    let place = directory.clone();
    // The helper that mounts for users is a process to wait for.
    let started = tokio::task::spawn_blocking(move || Session::new(bridge, place, &config)).await;
    let refused = |source| MountError::Refused {
        directory: directory.clone(),
        source,
    };
    let session = started
        .map_err(|e| refused(io::Error::other(e)))?
        .map_err(refused)?;

    let device = session.as_fd().try_clone_to_owned().map_err(refused)?;
    let names = Arc::new(KernelNames::new(device, session.notifier()));
    // A kernel that does not know the call says so, and one that does has nothing to forget yet.
    let can_recall = options.name_caching == NameCaching::Automatic && names.make_stale().is_ok();
    if can_recall {
        core.names_can_be_recalled();
    }
    let device = table::find(&directory)
        .map_err(refused)?
        .map(|line| line.device);
    if let Some(device) = &device {
        widen_read_ahead(device, options.read_ahead_bytes);
    }

    let (end, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("bulla-mount".to_owned())
        .spawn(move || {
            let result = session.run();
            // Nobody may be waiting for the end.
            let _ = end.send(result);
        })
        .map_err(refused)?;
    let keeper = Keeper::new(core.clone(), names, can_recall, options.refresh);
    let keeper = tokio::spawn(keeper.run());
    let mounted = Mounted {
        directory,
        core,
        device,
        keeper,
        ended,
    };
    mounted.wait_for_first_answer().await?;
    tracing::info!(
        volume = %mounted.core.volume.id(),
        directory = %mounted.directory.display(),
        can_recall,
        "mounted"
    );
    Ok(mounted)
}

impl Mounted {
    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The version that programs see now.
    pub fn version(&self) -> u64 {
        self.core.view().snapshot.record().version
    }

    /// What tells how the mount does, as long as it is mounted.
    pub fn reporter(&self) -> Reporter {
        Reporter::new(self.core.clone(), self.directory.clone())
    }

    /// How many files and directories the kernel holds; for metrics and tests.
    pub fn known_files(&self) -> usize {
        self.core.nodes.len()
    }

    /// Takes the mount away at once, also while programs use it; they keep what they have open until
    /// this process ends. Doing it twice, or after someone else did, is no error.
    ///
    /// # Errors
    /// [`MountError::Unmount`] when the system refuses.
    pub fn unmount(&self) -> Result<(), MountError> {
        let failed = |cause: String| MountError::Unmount {
            directory: self.directory.clone(),
            cause,
        };
        let top = table::find(&self.directory).map_err(|error| failed(error.to_string()))?;
        match top {
            Some(line) if Some(&line.device) == self.device.as_ref() => {
                unmount::detach(&self.directory).map_err(failed)
            }
            _ => Ok(()),
        }
    }

    /// Waits until the mount has ended, however that came.
    ///
    /// # Errors
    /// [`MountError::Ended`] when it ended by an error.
    pub async fn ended(&mut self) -> Result<(), MountError> {
        let result = match (&mut self.ended).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("the thread that served it is gone")),
        };
        result.map_err(|source| MountError::Ended {
            directory: self.directory.clone(),
            source,
        })
    }

    /// Serves until the mount has ended or the process is told to go, be it before this was called:
    /// then it is unmounted first.
    ///
    /// # Errors
    /// As [`Mounted::ended`] and [`Mounted::unmount`].
    pub async fn until_signal(mut self, mut signals: Signals) -> Result<(), MountError> {
        tokio::select! {
            result = self.ended() => return result,
            () = signals.told_to_go() => {}
        }
        self.unmount()
    }

    async fn wait_for_first_answer(&self) -> Result<(), MountError> {
        let directory = self.directory.clone();
        let stat = tokio::task::spawn_blocking(move || fs::symlink_metadata(directory));
        let answer = match tokio::time::timeout(FIRST_ANSWER, stat).await {
            Ok(Ok(answer)) => answer.map(drop),
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        answer.map_err(|source| MountError::Silent {
            directory: self.directory.clone(),
            source,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "left mounted");
        }
    }
}

/// What tells a process to go: SIGTERM, SIGINT, SIGHUP. From [`Signals::listen`] on none of them ends
/// the process by itself, and none is missed.
///
/// A process that serves a mount listens *before* it mounts: a signal that meets it in between would
/// end it with the mount in place, and a mount that nobody serves hangs over its directory.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Begins to listen. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn told_to_go(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// The directory, absolute; refuses what is none, and what bears a mount of ours already.
fn check_directory(directory: &Path) -> Result<PathBuf, MountError> {
    let fault = |source| MountError::Directory {
        directory: directory.to_owned(),
        source,
    };
    let place = table::absolute(directory).map_err(fault)?;
    if table::find(&place)
        .map_err(fault)?
        .is_some_and(|line| line.is_ours())
    {
        // Unlike attributes, this is never answered from the kernel's memory.
        return Err(match rustix::fs::statfs(&place) {
            Err(Errno::NOTCONN) => MountError::Stale {
                directory: directory.to_owned(),
            },
            _ => MountError::Busy {
                directory: directory.to_owned(),
            },
        });
    }
    if !fs::metadata(&place).map_err(fault)?.is_dir() {
        return Err(fault(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    // The last component may itself be a link, which the mount table does not show.
    fs::canonicalize(place).map_err(fault)
}

fn config(core: &Core, options: &MountOptions) -> Config {
    let mut config = Config::default();
    let source = format!("bulla#{}", core.volume.id());
    config.mount_options = vec![
        MountOption::RO,
        MountOption::DefaultPermissions,
        MountOption::FSName(source),
        // As a kernel option, so that it is shown whoever mounts.
        MountOption::CUSTOM(format!("subtype={}", table::SUBTYPE)),
    ];
    config
        .mount_options
        .extend(if options.honour_suid_and_devices {
            [MountOption::Suid, MountOption::Dev]
        } else {
            [MountOption::NoSuid, MountOption::NoDev]
        });
    if options.no_exec {
        config.mount_options.push(MountOption::NoExec);
    }
    config.acl = if options.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = if options.threads == 0 {
        // Two also on one core, where it costs nothing that can be measured: reading a local
        // repository waits for the disk.
        cores.max(2)
    } else {
        options.threads
    };
    config.n_threads = Some(threads.min(MAX_THREADS));
    config
}

/// The kernel gives a mount 128 KiB of read-ahead; root may widen it.
fn widen_read_ahead(device: &str, bytes: u32) {
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = fs::write(&setting, (bytes >> 10).to_string()) {
        tracing::debug!(%setting, %error, "read-ahead stays as the kernel has it");
    }
}
