//! Mounting a shared volume, and the end of a mount: what is local goes into the log, or is kept.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulla::members::MemberError;
use bulla::shared::SharedVolume;
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinHandle;
use trust::device::DeviceKey;

use super::core::{Core, Shows, place_of};
use super::file_system::Shared;
use super::held_before::HeldBefore;
use super::kept::Kept;
use super::kernel::Keeper;
use super::lock_room::LockRoom;
use super::report::Reporter;
use super::spool::Spools;
use crate::error::MountError;
use crate::fuse::unmount::clear_dead;
use crate::fuse::{Connection, Session, SessionOptions, Signals};

/// The directory of local bytes in the home.
const DIRTY: &str = "dirty";
/// The file in the home that says what is held in the log for programs.
const LOCKS: &str = "locks";
/// The file in the home that a mount locks.
const LOCK: &str = "mount.lock";
/// How often who waits for the end of a mount looks.
const LOOK: Duration = Duration::from_millis(10);

/// How a shared volume is mounted.
#[derive(Debug, Clone)]
pub struct SharedMountOptions {
    /// Which state programs see.
    pub shows: Shows,
    /// How long a program waits for the server.
    pub deadline: Duration,
    /// How old names, attributes and absences may be that a look-up shows. Opens are never old.
    pub attr: Duration,
    /// Locks of programs stay on this machine: the kernel keeps them.
    pub local_locks: bool,
    /// The kernel itself refuses changes.
    pub read_only: bool,
    /// Other users may enter (for users other than root, /etc/fuse.conf must allow it).
    pub allow_other: bool,
    /// Programs cannot be started from the mount.
    pub no_exec: bool,
    /// What the kernel reads ahead for sequential readers, bytes.
    pub read_ahead_bytes: u32,
}

/// A mounted shared volume. Dropping it unmounts, and loses what is not in the log yet: end it by
/// [`SharedMounted::finish`].
pub struct SharedMounted {
    session: Session,
    core: Arc<Core>,
    cleared_dead: bool,
    /// Tells the kernel what changes, if programs see the newest state.
    keeping: Option<JoinHandle<()>>,
    /// Keeps other mounts away that write.
    _lock: Option<File>,
}

/// Mounts a volume that is open on a directory, and returns when the mount answers. Must be called within a runtime of
/// tokio, which then serves the requests.
///
/// # Errors
/// [`MountError`]: the directory cannot be used, the volume is mounted already, or its root cannot be read.
pub async fn mount_shared(
    volume: SharedVolume,
    directory: &Path,
    options: SharedMountOptions,
) -> Result<SharedMounted, MountError> {
    raise_limit();
    let home = volume.home().directory().to_owned();
    refuse_below(&home, directory)?;
    let cannot_use = |why| unusable(&home, why);
    let (lock, spools, held_before) = match options.shows {
        Shows::Newest => {
            let lock = lock(&home, volume.home().name())?;
            let spools = Spools::in_directory(home.join(DIRTY)).map_err(cannot_use)?;
            let held_before = HeldBefore::open(&home.join(LOCKS)).map_err(cannot_use)?;
            (Some(lock), spools, Some(held_before))
        }
        Shows::After(_) => (None, Spools::nowhere(), None),
    };
    let (prefix, state) = match options.shows {
        Shows::Newest => (None, String::new()),
        Shows::After(entry) => (Some(entry.saturating_add(1)), format!("@{entry}")),
    };
    let root = place_of(volume.client().root());
    let root = volume.find_at(prefix, &root, false).await?;
    let own = DeviceKey::from(volume.home().device());
    let own = volume.known_members().await?.with_key(&own);
    let own = own.ok_or(bulla::Error::Member(MemberError::NotMember))?;
    let source = format!("bulla#{}{state}", volume.client().volume());
    let core = Core::new(
        (volume, options.shows),
        root,
        own.device,
        (spools, LockRoom::new(held_before)),
        (options.deadline, options.attr),
    );
    let core = Arc::new(core);
    let session = SessionOptions {
        read_only: options.read_only || options.shows != Shows::Newest,
        allow_other: options.allow_other,
        no_exec: options.no_exec,
        read_ahead_bytes: options.read_ahead_bytes,
        ..SessionOptions::new(source)
    };
    let cleared_dead = clear_dead(directory)?;
    let shared = Arc::new(Shared {
        core: core.clone(),
        locks_for_all: !options.local_locks && options.shows == Shows::Newest,
    });
    let connection = Connection::open(shared, directory, session).await?;
    // The first one.
    let _ = core.notifier.set(connection.notifier());
    let session = connection.serve().await?;
    core.give_up_held_before();
    let keeping = match options.shows {
        Shows::Newest => Some(tokio::spawn(Keeper::new(core.clone()).run())),
        Shows::After(_) => None,
    };
    tracing::info!(volume = %core.volume.client().volume(), directory = %directory.display(), "mounted");
    Ok(SharedMounted {
        session,
        core,
        cleared_dead,
        keeping,
        _lock: lock,
    })
}

/// Waits until the mount of a home has ended its work, at most so long. Gives whether it has.
///
/// # Errors
/// The system's.
pub fn wait_for_end(home: &Path, patience: Duration) -> std::io::Result<bool> {
    let file = match File::open(home.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) if begin.elapsed() < patience => {
                std::thread::sleep(LOOK);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Each file with local changes takes a descriptor.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// One mount of a volume for each device.
fn lock(home: &Path, name: &str) -> Result<File, MountError> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true);
    let file = options.open(home.join(LOCK));
    let file = file.map_err(|why| unusable(home, why))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(MountError::InUse {
            name: name.to_owned(),
        }),
        Err(errno) => Err(unusable(home, errno.into())),
    }
}

fn unusable(home: &Path, source: std::io::Error) -> MountError {
    let directory = home.to_owned();
    MountError::Home { directory, source }
}

/// The mount would need itself to answer.
fn refuse_below(home: &Path, directory: &Path) -> Result<(), MountError> {
    let there = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (home_there, there) = (there(home), there(directory));
    if home_there.starts_with(&there) || there.starts_with(&home_there) {
        let why = std::io::Error::other("the directory to mount on is above it or in it");
        return Err(unusable(home, why));
    }
    Ok(())
}

impl SharedMounted {
    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.session.directory()
    }

    /// Whether a dead mount was removed from the directory.
    pub fn cleared_dead(&self) -> bool {
        self.cleared_dead
    }

    /// Makes reports about the mount.
    pub fn reporter(&self) -> Reporter {
        let device = self.session.device().map(str::to_owned);
        Reporter::new(self.core.clone(), self.directory().to_owned(), device)
    }

    /// Serves until the mount has ended. Unmounts it when one of `signals` arrives.
    ///
    /// # Errors
    /// [`MountError::Ended`], [`MountError::Unmount`].
    pub async fn until_signal(&mut self, signals: Signals) -> Result<(), MountError> {
        self.session.until_signal(signals).await
    }

    /// Ends the mount's work: what is local goes into the log. What the log does not take by the deadline is kept on this
    /// machine; it is given back, with what went wrong when the volume was closed.
    pub async fn finish(self) -> (Vec<Kept>, Result<(), MountError>) {
        let core = &self.core;
        core.ends();
        if let Some(keeping) = &self.keeping {
            keeping.abort();
        }
        let mut kept = Vec::new();
        let changed = core.nodes.changed();
        let committing = changed.iter().map(|node| core.committed(node, None));
        let committed = futures_util::future::join_all(committing).await;
        for (node, committed) in changed.iter().zip(committed) {
            if committed.is_ok() {
                continue;
            }
            match core.keep(node).await {
                Ok(Some(found)) => {
                    tracing::warn!(
                        path = found.path,
                        at = %found.at.display(),
                        lacks = found.lacks,
                        "what was written here is not in the volume, and is kept on this machine"
                    );
                    kept.push(found);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(path = node.shown(), %error, "what was written is lost");
                }
            }
        }
        if core.shows == Shows::Newest {
            core.give_up_locks().await;
            // Others wait for this device until it has confirmed what it wrote.
            core.volume.has_changed();
        }
        let closed = match core.volume.close().await {
            Err(error) if core.stopped().is_none() => Err(error.into()),
            _ => Ok(()),
        };
        (kept, closed)
    }
}
