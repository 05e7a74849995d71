//! Opening devices and logs, and finding out who else uses them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use ::mount::loop_device::{self, Attached};
use ::mount::table;
use keys::slots::KeySlots;
use rustix::fs::OFlags;
use rustix::io::Errno;
use wal::{Device, FileDevice, VolumeId};

use crate::failure::{Failure, Kind, Outcome};

/// How long a device may still be locked by a process that has just ended: its locks go when the kernel closes its
/// files, which is after `kill` has returned.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to look meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Tries again for a short time while `is_locked` says that another process is in the way.
pub fn patiently<T, E>(
    is_locked: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let until = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if is_locked(&error) && Instant::now() < until => std::thread::sleep(LOOK),
            opened => return opened,
        }
    }
}

/// Opens a device so that nobody else can use it. `what` names it in messages: `device`, `log`. A lock is waited for
/// a short time.
pub fn exclusive(path: &Path, what: &str) -> Outcome<FileDevice> {
    if let Some(user) = loop_user(path) {
        let shown = path.display();
        let failure = Failure::new(Kind::DeviceInUse, format!("the {what} {shown} is in use"));
        return Err(with_cause(failure, format!("{user} is attached to it")));
    }
    let is_locked = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    let opened = patiently(is_locked, || FileDevice::open(path));
    opened.map_err(|e| not_opened(path, what, &e))
}

fn not_opened(path: &Path, what: &str, error: &io::Error) -> Failure {
    let shown = path.display();
    let in_use = format!("the {what} {shown} is in use");
    match error.kind() {
        // The lock of a file, or of a block device that is not mounted.
        io::ErrorKind::WouldBlock => {
            let failure = Failure::new(Kind::Attached, in_use);
            with_cause(
                failure,
                "another bulla, or another program, has locked it".to_owned(),
            )
        }
        io::ErrorKind::ResourceBusy => match mounted(path) {
            Some(place) => {
                let failure = Failure::new(Kind::DeviceInUse, in_use);
                with_cause(failure, format!("it is mounted on {place}"))
            }
            None => Failure::of(Kind::DeviceInUse, in_use, error),
        },
        io::ErrorKind::InvalidInput => {
            let what = format!("cannot use {shown} as a {what}");
            let hint = "name a block device or a regular file";
            Failure::of(Kind::Usage, what, error).with_hint(hint)
        }
        _ => Failure::io(format!("cannot open the {what} {shown}"), error),
    }
}

fn with_cause(mut failure: Failure, cause: String) -> Failure {
    failure.push_cause(cause);
    failure
}

/// The loop device that uses a file, if any. The kernel does not lock the file for it. Files of other file systems are
/// not asked what they are: one of these file systems may hang.
fn loop_user(path: &Path) -> Option<String> {
    let wanted = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mount = table::of(&fs::canonicalize(path).ok()?).ok()??;
    let is_on_it = |attached: &Attached| {
        let place = table::of(&attached.file).ok().flatten();
        place.is_some_and(|place| place.device == mount.device)
            && fs::metadata(&attached.file)
                .is_ok_and(|it| it.dev() == wanted.dev() && it.ino() == wanted.ino())
    };
    let found = loop_device::all().ok()?.into_iter().find(is_on_it)?;
    Some(found.device.display().to_string())
}

/// Where a block device is mounted.
fn mounted(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let device = metadata.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let wanted = format!("{major}:{minor}");
    let line = table::all()
        .ok()?
        .into_iter()
        .find(|line| line.device == wanted)?;
    Some(line.directory.display().to_string())
}

/// The logical sector of a device in bytes; 512 for a file.
pub fn sector_bytes(path: &Path) -> Outcome<u32> {
    let failed = |e: io::Error| Failure::io(format!("cannot open {}", path.display()), &e);
    let file = File::open(path).map_err(failed)?;
    if !file
        .metadata()
        .map_err(failed)?
        .file_type()
        .is_block_device()
    {
        return Ok(512);
    }
    match rustix::fs::ioctl_blksszget(&file) {
        Ok(bytes @ (512 | 4096)) => Ok(bytes),
        Ok(bytes) => {
            let what = format!("{} has sectors of {bytes} bytes", path.display());
            let hint = "devices with sectors of 512 or 4096 bytes can be protected";
            Err(Failure::new(Kind::Usage, what).with_hint(hint))
        }
        Err(e) => Err(failed(e.into())),
    }
}

/// The volume and the key slots of a log, also while it is attached. Nothing of this is proved.
pub fn slots(path: &Path) -> Outcome<(VolumeId, KeySlots)> {
    let failed = |e: io::Error| Failure::io(format!("cannot read the log {}", path.display()), &e);
    // Past the page cache: pages that are being read into it can make a sync of the process that uses the log fail.
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
    };
    let direct = open(OFlags::DIRECT | OFlags::NONBLOCK);
    let file = direct.or_else(|e| match e.raw_os_error() {
        // A file system without direct I/O.
        Some(errno) if errno == Errno::INVAL.raw_os_error() => open(OFlags::NONBLOCK),
        _ => Err(e),
    });
    let file = file.map_err(failed)?;
    let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(failed)?;
    slots_on(&Look { file, bytes }, path)
}

/// The volume and the key slots of an open log.
pub fn slots_on(device: &dyn Device, path: &Path) -> Outcome<(VolumeId, KeySlots)> {
    let read = wal::key_slots(device).map_err(|error| of_log(error, path));
    let (volume, bytes) = read?;
    Ok((volume, KeySlots::decode(&bytes, volume.0)?))
}

/// The failure for an error of the log at `path`.
pub fn of_log(error: wal::LogError, path: &Path) -> Failure {
    let mut failure = Failure::from(error);
    if !failure.error.contains(&*path.to_string_lossy()) {
        failure.error = format!("the log {}: {}", path.display(), failure.error);
    }
    failure
}

/// A device that is only looked at, beside a process that uses it.
struct Look {
    file: File,
    bytes: u64,
}

impl Device for Look {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn align(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
