//! How an attached device is shown: a loop device over a FUSE file, the FUSE file alone, or NBD.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::mount::device::{DeviceOptions, Served};
use ::mount::loop_device::{self, Attached, LoopError, LoopOptions};
use ::protect::Block;
use ::protect::nbd::{Address, Limits, ListenError, Server, Stopped};
use tokio::runtime::Handle;
use wal::VolumeId;

use crate::failure::{Failure, Kind, Outcome};
use crate::units;

/// How long requests that have arrived may take at the end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the file of `attach --file`.
const FILE_NAME: &str = "device";

/// How the names of files under loop devices begin.
const FILE_PREFIX: &str = "bulla-";

/// How the device is to be shown.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A loop device, over a FUSE file in this directory of our own.
    Loop(PathBuf),
    /// The file `device` in this directory.
    File(PathBuf),
    /// An NBD server.
    Nbd(Address),
}

/// A device that is shown.
pub enum Front {
    /// A loop device.
    Loop {
        /// Such as `/dev/loop0`.
        attached: Attached,
        /// What lies under it.
        served: Served,
    },
    /// A file.
    File(Served),
    /// An NBD server.
    Nbd(Server),
}

/// The name of a volume's file under a loop device. The kernel shows it for a loop device whose process has died.
fn file_name(volume: VolumeId) -> String {
    format!("{FILE_PREFIX}{volume}")
}

impl Front {
    /// Shows `block`; a loop device with at most so many requests at once. Must be called outside of the runtime.
    pub fn open(
        wanted: &Wanted,
        block: Arc<dyn Block>,
        volume: VolumeId,
        requests: u16,
        runtime: &Handle,
    ) -> Outcome<Front> {
        let sector_bytes = block.sector_bytes();
        let source = format!("{}{volume}", ::mount::table::DEVICE_SOURCE);
        match wanted {
            Wanted::File(directory) => {
                clear_dead_mount(directory, &source)?;
                let options = DeviceOptions::new(FILE_NAME, source);
                let served = ::mount::device::serve(block, directory, options);
                Ok(Front::File(runtime.block_on(served)?))
            }
            Wanted::Loop(directory) => {
                prepare(directory, &source)?;
                let options = DeviceOptions {
                    max_background: requests,
                    ..DeviceOptions::new(file_name(volume), source)
                };
                let max_request_bytes = options.max_request_bytes;
                let served = runtime.block_on(::mount::device::serve(block, directory, options))?;
                let options = LoopOptions {
                    sector_bytes,
                    read_only: false,
                    max_request_bytes,
                };
                let attached = loop_device::attach(served.file(), options)?;
                Ok(Front::Loop { attached, served })
            }
            Wanted::Nbd(address) => {
                let server = Server::start(address, block, "", Limits::default());
                Ok(Front::Nbd(server.map_err(|e| not_listening(&e))?))
            }
        }
    }

    /// `loop`, `file` or `nbd`.
    pub fn kind(&self) -> &'static str {
        match self {
            Front::Loop { .. } => "loop",
            Front::File(_) => "file",
            Front::Nbd(_) => "nbd",
        }
    }

    /// What programs use instead of the device.
    pub fn place(&self) -> String {
        match self {
            Front::Loop { attached, .. } => attached.device.display().to_string(),
            Front::File(served) => served.file().display().to_string(),
            Front::Nbd(server) => server.address().to_string(),
        }
    }

    /// The user of the device, if there is one.
    pub fn user(&self) -> Option<String> {
        match self {
            Front::Loop { attached, .. } => loop_user(attached),
            Front::File(served) => file_user(served.directory()),
            Front::Nbd(server) => match server.totals().clients {
                0 => None,
                n => Some(units::count(
                    n as u64,
                    "client is connected",
                    "clients are connected",
                )),
            },
        }
    }

    /// Waits until it has ended without being asked to: somebody unmounted it.
    pub async fn ended(&mut self) {
        match self {
            Front::Loop { served, .. } | Front::File(served) => {
                if let Err(error) = served.ended().await {
                    tracing::error!(%error, "the mount of the device ended");
                }
            }
            Front::Nbd(_) => std::future::pending().await,
        }
    }

    /// Lets go of what the kernel has put on top, and fails if programs still use it. With `force` they get errors.
    pub fn release(&mut self, force: bool) -> Outcome<()> {
        match self {
            Front::Loop { attached, .. } => match attached.detach() {
                Ok(()) | Err(LoopError::Vanished { .. }) => Ok(()),
                Err(error) if force => {
                    tracing::warn!(%error, "the loop device is cut off");
                    Ok(())
                }
                Err(error) => Err(error.into()),
            },
            Front::File(_) | Front::Nbd(_) => Ok(()),
        }
    }

    /// Ends it, after [`Front::release`]. All requests that have arrived are done when this returns without an error.
    pub fn close(self, runtime: &Handle) -> Outcome<()> {
        let served = match self {
            Front::Loop { served, .. } | Front::File(served) => served,
            Front::Nbd(server) => {
                if let Stopped::CutOff(clients) = server.stop() {
                    tracing::warn!(clients, "NBD clients were cut off");
                }
                return Ok(());
            }
        };
        let own = served.directory().to_owned();
        let is_ours = served.file().file_name() != Some(FILE_NAME.as_ref());
        runtime.block_on(served.finish(PATIENCE))?;
        if is_ours {
            // Empty; made again at the next attachment.
            let _ = fs::remove_dir(own);
        }
        Ok(())
    }
}

fn not_listening(error: &ListenError) -> Failure {
    let failure = Failure::from_error(Kind::Listen, error);
    failure.with_hint(
        "name another socket (a path) or address (IP:PORT) with --nbd; port 0 takes any free one",
    )
}

/// Removes the mount of this volume that a killed process left behind. The log's lock shows that the process is gone.
fn clear_dead_mount(directory: &Path, source: &str) -> Outcome<()> {
    let dead = ::mount::table::find(directory);
    let dead = dead.map_err(|e| Failure::io("cannot read the mount table", &e))?;
    if dead.is_some_and(|line| line.is_ours() && line.source == source) {
        ::mount::unmount(directory)?;
    }
    Ok(())
}

/// Makes the directory for the file under a loop device, after what a killed process left there is cleared.
fn prepare(directory: &Path, source: &str) -> Outcome<()> {
    clear_dead_mount(directory, source)?;
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|e| Failure::io(format!("cannot create {}", directory.display()), &e))
}

/// Removes the loop device of a process that was killed, and says so. The log's lock shows that the process is gone.
pub fn clear_stale_loop(directory: &Path, volume: VolumeId) -> Outcome<Vec<String>> {
    let cleared = loop_device::clear_stale(&directory.join(file_name(volume)));
    let cleared = cleared.map_err(|error| {
        let failure = Failure::from(error);
        let hint = "it is left of a process that was killed. Its file system can only be unmounted now (`umount`, with \
                    -l if programs use it); then attach again. What was flushed is not lost";
        match failure.kind {
            Kind::DeviceInUse => failure.with_hint(hint),
            _ => failure,
        }
    })?;
    let told = |loops: &[Attached], what: &str| {
        let tell = |it: &Attached| {
            format!(
                "{}, which a killed process left behind, {what}",
                it.device.display()
            )
        };
        loops.iter().map(tell).collect::<Vec<_>>()
    };
    let left = "goes when the last program closes its files there; these are lost to that program";
    Ok([
        told(&cleared.detached, "was removed"),
        told(&cleared.left, left),
    ]
    .concat())
}

/// The loop devices over files of ours below `directory` whose process was killed: their volumes are not `live`.
pub fn stale_loops(directory: &Path, live: &BTreeSet<String>) -> Outcome<Vec<Attached>> {
    let volume = |attached: &Attached| {
        let file = attached.file.file_name()?.to_str()?;
        let is_below = attached.file.starts_with(directory);
        file.strip_prefix(FILE_PREFIX)
            .filter(|_| is_below)
            .map(str::to_owned)
    };
    let mut loops = loop_device::all()?;
    loops.retain(|attached| volume(attached).is_some_and(|volume| !live.contains(&volume)));
    Ok(loops)
}

/// The message about a loop device that a killed process left.
pub fn stale_loop(attached: &Attached) -> String {
    format!(
        "{} is left of a process that was killed",
        attached.device.display()
    )
}

/// The hint: how to remove it.
pub fn stale_loop_hint(attached: &Attached) -> String {
    let removed = "`bulla doctor --fix` or attaching the device again removes it";
    match attached.mounted_on() {
        Ok(Some(on)) => format!(
            "`umount {}` (with -l if programs use it); what was flushed is not lost. Then {removed}",
            on.display()
        ),
        _ => removed.to_owned(),
    }
}

/// The user of a loop device: a mount, or another block device.
fn loop_user(attached: &Attached) -> Option<String> {
    let device = attached.device.display();
    if let Ok(Some(place)) = attached.mounted_on() {
        return Some(format!("{device} is mounted on {}", place.display()));
    }
    let is_held = attached.is_held().unwrap_or(false);
    is_held.then(|| format!("{device} is in use (a file system, swap or another block device)"))
}

/// A process of this machine that has a file below `directory` open, or a loop device on it.
fn file_user(directory: &Path) -> Option<String> {
    let loops = loop_device::all().unwrap_or_default();
    if let Some(over) = loops.iter().find(|it| it.file.starts_with(directory)) {
        return Some(format!("{} is attached to it", over.device.display()));
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let name = process.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        // Processes of others cannot be looked at, and cannot have opened it either.
        let files = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        for file in files.flatten() {
            if fs::read_link(file.path()).is_ok_and(|path| path.starts_with(directory)) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(format!("process {pid} ({}) has it open", name.trim()));
            }
        }
    }
    None
}
