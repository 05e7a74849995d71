//! Loop devices that are attached, as /sys/block shows them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::LoopError;
use super::fault::Fault;
use super::losetup;
use crate::fuse::table;

/// How long a device may take to be free after it was detached: udev may be looking at it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A loop device with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// Such as /dev/loop3.
    pub device: PathBuf,
    /// The file, as the kernel names it: below its mount's root if that mount is no longer in the tree.
    pub file: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// Requests do not go through the page cache of the file.
    pub direct_io: bool,
    /// The logical sector in bytes.
    pub sector_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// It is detached when the last program closes it.
    pub autoclear: bool,
    /// It shows only a part of the file.
    pub partial: bool,
    /// Largest request in bytes.
    pub max_request_bytes: u64,
}

/// Every loop device that has a file.
///
/// # Errors
/// When /sys cannot be read. No loop devices at all is not an error.
pub fn all() -> Result<Vec<Attached>, LoopError> {
    let blocks = Path::new("/sys/block");
    let entries = fs::read_dir(blocks).map_err(|source| LoopError::Io {
        path: blocks.to_owned(),
        source,
    })?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        if entry.file_name().as_bytes().starts_with(b"loop") {
            found.extend(read(&entry.file_name())?);
        }
    }
    found.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(found)
}

/// The loop devices on `file`, also those whose mount is no longer in the tree. A file name that is unique on the machine
/// keeps files of other mounts apart.
///
/// # Errors
/// When /sys cannot be read.
pub fn of(file: &Path) -> Result<Vec<Attached>, LoopError> {
    let all = all()?.into_iter();
    Ok(all.filter(|found| is_same(&found.file, file)).collect())
}

/// Whether the kernel's name `now` means `file`: when its mount has left the tree, the name begins at the mount's root.
fn is_same(now: &Path, file: &Path) -> bool {
    let outside = file.file_name().map(|name| Path::new("/").join(name));
    now == file || outside.is_some_and(|outside| now == outside)
}

/// What is attached to `device`, such as /dev/loop3.
///
/// # Errors
/// When /sys cannot be read.
pub fn on(device: &Path) -> Result<Option<Attached>, LoopError> {
    match device.file_name() {
        Some(name) if name.as_bytes().starts_with(b"loop") => read(name),
        _ => Ok(None),
    }
}

/// What /sys/block/`name` shows; nothing if no file is attached.
fn read(name: &OsStr) -> Result<Option<Attached>, LoopError> {
    let place = Path::new("/sys/block").join(name);
    let text = |setting: &str| match fs::read(place.join(setting)) {
        Ok(mut text) => {
            text.truncate(text.trim_ascii_end().len());
            Ok(Some(text))
        }
        // Files of a device that is detached meanwhile go away, or cannot be read.
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(LoopError::Io {
            path: place.join(setting),
            source,
        }),
    };
    let number = |setting: &str| -> Result<u64, LoopError> {
        let text = text(setting)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).parse().unwrap_or(0))
    };
    let Some(file) = text("loop/backing_file")? else {
        return Ok(None);
    };
    Ok(Some(Attached {
        device: Path::new("/dev").join(name),
        file: PathBuf::from(OsStr::from_bytes(&file)),
        bytes: number("size")?.saturating_mul(512),
        direct_io: number("loop/dio")? == 1,
        sector_bytes: number("queue/logical_block_size")? as u32,
        read_only: number("ro")? == 1,
        autoclear: number("loop/autoclear")? == 1,
        partial: number("loop/offset")? != 0 || number("loop/sizelimit")? != 0,
        max_request_bytes: number("queue/max_sectors_kb")?.saturating_mul(1024),
    }))
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO)
    )
}

impl Attached {
    /// What is wrong with its settings for a device of sectors of `sector_bytes`.
    pub fn faults(&self, sector_bytes: u32) -> Vec<Fault> {
        let sector = Fault::Sector {
            is: self.sector_bytes,
            should: sector_bytes,
        };
        let faults = [
            (!self.direct_io).then_some(Fault::PageCache),
            (self.sector_bytes != sector_bytes).then_some(sector),
            self.partial.then_some(Fault::Partial),
            self.autoclear.then_some(Fault::Autoclear),
        ];
        faults.into_iter().flatten().collect()
    }

    /// Where a file system on it is mounted, as far as this process sees.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn mounted_on(&self) -> Result<Option<PathBuf>, LoopError> {
        let lines = table::all().map_err(|source| LoopError::Io {
            path: "/proc/self/mountinfo".into(),
            source,
        })?;
        // By its source: btrfs shows a device number of its own.
        let line = lines
            .into_iter()
            .rfind(|line| Path::new(&line.source) == self.device);
        Ok(line.map(|line| line.directory))
    }

    /// Whether it is mounted, in any namespace, or part of another device. A program that merely has it open does not
    /// count.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn is_held(&self) -> Result<bool, LoopError> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::open(&self.device, flags, Mode::empty()) {
            Ok(_) => Ok(false),
            Err(Errno::BUSY) => Ok(true),
            Err(Errno::NXIO | Errno::NODEV) => Ok(false),
            Err(error) => Err(LoopError::Io {
                path: self.device.clone(),
                source: error.into(),
            }),
        }
    }

    /// Detaches it, after the kernel has written what it holds back.
    ///
    /// # Errors
    /// [`LoopError::Busy`] when it is mounted or stays open; then it is still attached, or is detached by the last program
    /// that closes it. [`LoopError::Vanished`] when it belongs to another file by now.
    pub fn detach(&self) -> Result<(), LoopError> {
        match on(&self.device)? {
            None => return Ok(()),
            Some(now) if !is_same(&now.file, &self.file) => {
                return Err(LoopError::Vanished {
                    device: self.device.clone(),
                });
            }
            Some(_) => {}
        }
        if self.is_held()? {
            return Err(self.busy());
        }
        let detached = losetup::detach(&self.device);
        let deadline = Instant::now() + PATIENCE;
        while on(&self.device)?.is_some_and(|now| is_same(&now.file, &self.file)) {
            // The first error tells more than that it is still there.
            if Instant::now() >= deadline {
                return Err(detached.err().unwrap_or_else(|| self.busy()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Has the last program that closes it detach it.
    pub(super) fn detach_when_closed(&self) -> Result<(), LoopError> {
        losetup::detach(&self.device)
    }

    fn busy(&self) -> LoopError {
        LoopError::Busy {
            device: self.device.clone(),
            mounted_on: self.mounted_on().ok().flatten(),
        }
    }
}

/// Keeps the kernel from making requests that the file takes only in parts. The device works without.
pub fn limit_requests(device: &Path, bytes: u32) {
    let name = device.file_name().unwrap_or_default();
    let setting = Path::new("/sys/block")
        .join(name)
        .join("queue/max_sectors_kb");
    if let Err(error) = fs::write(&setting, (bytes >> 10).to_string()) {
        tracing::debug!(setting = %setting.display(), %error, "stays as the kernel has it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> Attached {
        Attached {
            device: "/dev/loop3".into(),
            file: "/run/x/volume".into(),
            bytes: 1 << 20,
            direct_io: true,
            sector_bytes: 512,
            read_only: false,
            autoclear: false,
            partial: false,
            max_request_bytes: 256 << 10,
        }
    }

    #[test]
    fn wrong_settings_are_named() {
        assert_eq!(right().faults(512), []);
        let wrong = Attached {
            direct_io: false,
            autoclear: true,
            partial: true,
            ..right()
        };
        let told: Vec<String> = wrong.faults(4096).iter().map(Fault::to_string).collect();
        let expected = [
            "direct I/O is off",
            "the logical sector is 512 bytes instead of 4096",
            "it shows only a part of the file",
            "it is detached when the last program closes it",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn file_is_recognized_when_its_mount_has_left_the_tree() {
        let file = Path::new("/run/x/volume");
        assert!(is_same(file, file));
        assert!(is_same(Path::new("/volume"), file));
        assert!(!is_same(Path::new("/run/y/volume"), file));
        assert!(!is_same(Path::new("/other"), file));
        // A name without a directory is no other's.
        assert!(!is_same(file, Path::new("/volume")));
    }

    #[test]
    fn devices_that_are_no_loop_devices_have_no_file() {
        assert_eq!(on(Path::new("/dev/null")).unwrap(), None);
        assert_eq!(on(Path::new("/dev/loop-control")).unwrap(), None);
        assert_eq!(on(Path::new("/")).unwrap(), None);
    }
}
