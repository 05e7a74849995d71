//! A mount of any file system, from its beginning to its end.
//!
//! [`Connection::open`] mounts and does the handshake with the kernel; [`Connection::serve`] begins to
//! answer requests and returns when the mount answers. There is no fork: a command that goes on in the
//! background starts itself as a new process and waits until that reports success. A mount ends when it is
//! unmounted from outside, by [`Session::unmount`], or when [`Session`] is dropped; it never outlives
//! its process.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::attach::{Attached, Attachment};
use super::channel::Channel;
use super::dispatch::Dispatch;
use super::file_system::FileSystem;
use super::notify::Notifier;
use super::parked::Parking;
use super::reading::{self, Agreed};
use super::types::InitFlags;
use super::{table, unmount};
use crate::error::MountError;

/// How long a fresh mount may take to answer for its own root.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// More threads than this only contend for the kernel's queue.
const MAX_THREADS: usize = 8;

/// Options of a mount, for any file system.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// What the mount table shows as the source.
    pub source: String,
    /// The kernel itself refuses writes.
    pub read_only: bool,
    /// Other users may enter (for users other than root, /etc/fuse.conf must allow it).
    pub allow_other: bool,
    /// Set-user-id bits and device nodes work.
    pub honour_suid_and_devices: bool,
    /// Programs cannot be started from the mount.
    pub no_exec: bool,
    /// Threads that read the kernel's requests; 0 chooses by the machine.
    pub threads: usize,
    /// What the kernel reads ahead for sequential readers, bytes. More than 128 KiB takes effect
    /// only when root mounts.
    pub read_ahead_bytes: u32,
}

impl SessionOptions {
    /// A writable mount, for its owner only, without set-user-id bits and devices.
    pub fn new(source: impl Into<String>) -> SessionOptions {
        SessionOptions {
            source: source.into(),
            read_only: false,
            allow_other: false,
            honour_suid_and_devices: false,
            no_exec: false,
            threads: 0,
            read_ahead_bytes: 1 << 20,
        }
    }
}

/// A mount that the kernel knows and that does not answer requests yet.
pub struct Connection<F: FileSystem> {
    attached: Attached,
    dispatch: Arc<Dispatch<F>>,
    agreed: Agreed,
    notifier: Arc<Notifier>,
    parking: Parking,
    directory: PathBuf,
    options: SessionOptions,
}

impl<F: FileSystem> Connection<F> {
    /// Mounts `file_system` on `directory`. Must be called within a tokio runtime, which then serves the
    /// requests that are answered later.
    ///
    /// # Errors
    /// [`MountError::Directory`], [`MountError::Stale`], [`MountError::Busy`] if the directory cannot be
    /// used, [`MountError::Refused`] when the kernel or `fusermount3` refuses.
    pub async fn open(
        file_system: Arc<F>,
        directory: &Path,
        options: SessionOptions,
    ) -> Result<Connection<F>, MountError> {
        let directory = check_directory(directory)?;
        let parking = Parking::new(tokio::runtime::Handle::current());
        let (place, how) = (directory.clone(), attachment(&options));
        let served = file_system.clone();
        // The helper that mounts for users is a process to wait for.
        let opened = tokio::task::spawn_blocking(move || {
            let attached = Attached::new(&place, &how)?;
            let init = |granted| served.init(granted);
            let agreed = reading::shake_hands(&attached.channel, &served.features(), init)?;
            Ok((attached, agreed))
        });
        let refused = |source| MountError::Refused {
            directory: directory.clone(),
            source,
        };
        let opened = opened.await.unwrap_or_else(|e| Err(io::Error::other(e)));
        let (attached, agreed) = opened.map_err(refused)?;
        let channel = attached.channel.clone();
        let notifier = Arc::new(Notifier::new(channel.clone(), agreed.minor));
        let no_open = agreed.granted.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        let dispatch = Dispatch::new(file_system, channel, parking.clone(), no_open);
        Ok(Connection {
            attached,
            dispatch: Arc::new(dispatch),
            agreed,
            notifier,
            parking,
            directory,
            options,
        })
    }

    /// Sends notifications to the kernel.
    pub fn notifier(&self) -> Arc<Notifier> {
        self.notifier.clone()
    }

    /// Begins to answer requests and returns when the mount answers.
    ///
    /// # Errors
    /// [`MountError::Refused`] when the system refuses a thread; [`MountError::Silent`] when the
    /// root's attributes do not come.
    pub async fn serve(self) -> Result<Session, MountError> {
        let refused = |source| MountError::Refused {
            directory: self.directory.clone(),
            source,
        };
        let device = table::find(&self.directory)
            .map_err(refused)?
            .map(|line| line.device);
        if let Some(device) = &device {
            widen_read_ahead(device, self.options.read_ahead_bytes);
        }
        let (end, ended) = oneshot::channel();
        let (attached, dispatch) = (self.attached, self.dispatch);
        let channel = attached.channel.clone();
        let (threads, bytes) = (threads(&self.options), self.agreed.buffer_bytes);
        std::thread::Builder::new()
            .name("bulla-mount".to_owned())
            .spawn(move || {
                let result = reading::serve(&attached.channel, &dispatch, threads, bytes);
                drop(attached);
                // There may be no receiver any more.
                let _ = end.send(result);
            })
            .map_err(refused)?;
        let session = Session {
            directory: self.directory,
            device,
            channel,
            parking: self.parking,
            ended,
        };
        session.wait_for_first_answer().await?;
        Ok(session)
    }
}

/// A mount that answers. Dropping it unmounts.
#[derive(Debug)]
pub struct Session {
    directory: PathBuf,
    /// Its device in the mount table, so that no other mount is unmounted by mistake.
    device: Option<String>,
    /// Tells whether the file system has ended.
    channel: Arc<Channel>,
    parking: Parking,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Session {
    /// Mounts `file_system` on `directory` and returns when it answers: [`Connection::open`] and
    /// [`Connection::serve`] in one.
    ///
    /// # Errors
    /// Those of both.
    pub async fn mount<F: FileSystem>(
        file_system: Arc<F>,
        directory: &Path,
        options: SessionOptions,
    ) -> Result<Session, MountError> {
        Connection::open(file_system, directory, options)
            .await?
            .serve()
            .await
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the table shows it, as `major:minor`.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Unmounts at once, wherever it is shown now, and even while programs use the mount. They keep their open files until this process
    /// ends, but their waits for locks end. It is not an error if the mount has been unmounted before.
    ///
    /// # Errors
    /// [`MountError::Unmount`] when the system refuses.
    pub fn unmount(&self) -> Result<(), MountError> {
        let failed = |cause: String| MountError::Unmount {
            directory: self.directory.clone(),
            cause,
        };
        if let Some(device) = &self.device {
            unmount::detach_all(device, self.channel.as_fd()).map_err(failed)?;
        }
        self.parking.interrupt_all();
        Ok(())
    }

    /// Waits until the mount has ended, for whatever reason.
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

    /// Serves until the mount has ended. Unmounts it when one of `signals` arrives, or has arrived before
    /// this call.
    ///
    /// # Errors
    /// As [`Session::ended`] and [`Session::unmount`].
    pub async fn until_signal(&mut self, mut signals: Signals) -> Result<(), MountError> {
        tokio::select! {
            result = self.ended() => return result,
            () = signals.arrived() => {}
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

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "left mounted");
        }
    }
}

/// Signals that ask a process to end: SIGTERM, SIGINT, SIGHUP. From [`Signals::listen`] on none of
/// them ends the process by itself, and none is missed.
///
/// A process that serves a mount listens *before* it mounts. A signal in between would end the process and
/// leave a dead mount on the directory.
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

    /// Waits for the next one.
    pub async fn arrived(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// The absolute path of the directory. Refuses a path that is not a directory, and one that already has a
/// mount of ours.
fn check_directory(directory: &Path) -> Result<PathBuf, MountError> {
    let fault = |source| MountError::Directory {
        directory: directory.to_owned(),
        source,
    };
    let mounted = table::named(directory).map_err(fault)?;
    if let Some(line) = mounted.filter(table::Line::is_ours) {
        let directory = directory.to_owned();
        return Err(match line.life(FIRST_ANSWER) {
            table::Life::Dead => MountError::Stale { directory },
            _ => MountError::Busy { directory },
        });
    }
    // The last component may itself be a link, which the mount table does not show.
    let place = fs::canonicalize(directory).map_err(fault)?;
    if !fs::metadata(&place).map_err(fault)?.is_dir() {
        return Err(fault(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    Ok(place)
}

fn attachment(options: &SessionOptions) -> Attachment {
    Attachment {
        source: options.source.clone(),
        read_only: options.read_only,
        allow_other: options.allow_other,
        honour_suid_and_devices: options.honour_suid_and_devices,
        no_exec: options.no_exec,
    }
}

fn threads(options: &SessionOptions) -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    match options.threads {
        // At least two, even on one core, because reading a local repository waits for the disk. The
        // cost of the second is not measurable.
        0 => cores.clamp(2, MAX_THREADS),
        chosen => chosen,
    }
}

/// The kernel gives a mount 128 KiB of read-ahead; root may widen it.
fn widen_read_ahead(device: &str, bytes: u32) {
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = fs::write(&setting, (bytes >> 10).to_string()) {
        tracing::debug!(%setting, %error, "read-ahead stays as the kernel has it");
    }
}
