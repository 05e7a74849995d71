//! Runs `losetup` (util-linux), with a deadline: it opens and syncs the file, whose server may be dead.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::LoopOptions;
use super::error::LoopError;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// More of what it prints is not read.
const MAX_PRINTED: u64 = 64 << 10;

/// Attaches `file` and returns the device.
pub fn attach(file: &Path, options: LoopOptions) -> Result<PathBuf, LoopError> {
    check_control()?;
    let mut command = Command::new("losetup");
    command
        .args(["--find", "--show", "--direct-io=on"])
        .arg(format!("--sector-size={}", options.sector_bytes));
    if options.read_only {
        command.arg("--read-only");
    }
    command.arg("--").arg(file);
    let printed = run(&mut command)?;
    let device = PathBuf::from(printed.trim());
    if device.starts_with("/dev") {
        Ok(device)
    } else {
        Err(LoopError::Refused { cause: printed })
    }
}

/// Detaches `device`.
pub fn detach(device: &Path) -> Result<(), LoopError> {
    run(Command::new("losetup").arg("--detach").arg(device)).map(drop)
}

/// `losetup` tells a missing module and a missing permission alike.
fn check_control() -> Result<(), LoopError> {
    let control = Path::new("/dev/loop-control");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    match rustix::fs::open(control, flags, rustix::fs::Mode::empty()) {
        Ok(_) => Ok(()),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(LoopError::NoModule),
        Err(Errno::ACCESS | Errno::PERM) => Err(LoopError::NoPermission),
        Err(error) => Err(LoopError::Io {
            path: control.to_owned(),
            source: error.into(),
        }),
    }
}

/// What the program prints, if it succeeds.
fn run(command: &mut Command) -> Result<String, LoopError> {
    // The language of its messages; some distributions keep it where only root's path leads.
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("LC_ALL", "C")
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => LoopError::NoProgram,
        _ => LoopError::Refused {
            cause: error.to_string(),
        },
    })?;
    let status = wait(&mut child)?;
    let printed = read(child.stdout.take());
    let complaint = read(child.stderr.take());
    if status.success() {
        return Ok(printed);
    }
    let complaint = complaint.trim().trim_start_matches("losetup: ");
    Err(match complaint {
        told if told.contains("Permission denied") || told.contains("not permitted") => {
            LoopError::NoPermission
        }
        told => LoopError::Refused {
            cause: told.to_owned(),
        },
    })
}

fn wait(child: &mut Child) -> Result<ExitStatus, LoopError> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    loop {
        let ended = child.try_wait().map_err(|error| LoopError::Refused {
            cause: error.to_string(),
        })?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            // It may not end even so, as long as the kernel waits for the file's server.
            let _ = child.kill();
            return Err(LoopError::Silent {
                seconds: PATIENCE.as_secs(),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The little that a program that has ended left in a pipe.
fn read(pipe: Option<impl Read>) -> String {
    let mut printed = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(MAX_PRINTED).read_to_end(&mut printed);
    }
    String::from_utf8_lossy(&printed).into_owned()
}
