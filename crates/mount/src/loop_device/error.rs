//! What can go wrong with a loop device.

use std::io;
use std::path::PathBuf;

use super::fault::Fault;

/// Why a loop device could not be attached, read or detached.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The kernel has no loop devices.
    #[error("this kernel has no loop devices: /dev/loop-control is missing")]
    NoModule,
    /// Only root may.
    #[error("no permission to attach loop devices")]
    NoPermission,
    /// `losetup` is not installed.
    #[error("the program losetup is missing")]
    NoProgram,
    /// `losetup` did not end in time.
    #[error("losetup did not end within {seconds} seconds")]
    Silent {
        /// The deadline.
        seconds: u64,
    },
    /// `losetup` refused.
    #[error("losetup: {cause}")]
    Refused {
        /// The text that `losetup` printed.
        cause: String,
    },
    /// It is mounted, or another program holds it.
    #[error("{} is in use{}", device.display(), at(mounted_on))]
    Busy {
        /// The loop device.
        device: PathBuf,
        /// Where it is mounted, if this process sees that.
        mounted_on: Option<PathBuf>,
    },
    /// It is gone, or belongs to another file by now.
    #[error("{} was detached by another program", device.display())]
    Vanished {
        /// The loop device.
        device: PathBuf,
    },
    /// The kernel did not take a setting.
    #[error("{}: {fault}", device.display())]
    Setting {
        /// The loop device.
        device: PathBuf,
        /// The setting.
        fault: Fault,
    },
    /// /sys or the device cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl LoopError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            LoopError::NoModule => {
                "load the module with `modprobe loop`; in a container, the host must do it and pass /dev/loop-control"
            }
            LoopError::NoPermission => {
                "run as root, or use a front end that needs no loop device, such as NBD"
            }
            LoopError::NoProgram => "install util-linux, which has losetup",
            LoopError::Silent { .. } => {
                "the file's server does not answer; see its log, and `dmesg` for the kernel's view"
            }
            LoopError::Refused { .. } => {
                "see `losetup --list` for what is attached, and `dmesg` for the kernel's reason"
            }
            LoopError::Busy { .. } => {
                "unmount the file system on it, and end programs that use the device (`fuser -v DEVICE`), then try again"
            }
            LoopError::Vanished { .. } => {
                "see `losetup --list` for what is attached, then try again"
            }
            LoopError::Setting { .. } => {
                "a kernel from 5.8 on and a recent util-linux have these settings; see `losetup --version`"
            }
            LoopError::Io { .. } => "see `dmesg` for the kernel's reason",
        }
    }
}

fn at(directory: &Option<PathBuf>) -> String {
    let told = directory.as_ref();
    told.map_or_else(String::new, |place| {
        format!(": mounted on {}", place.display())
    })
}
