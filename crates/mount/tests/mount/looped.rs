//! Loop devices for tests: skipped loudly where the machine has none, and none left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mount::loop_device::{self, Attached, LoopError, LoopOptions};
use sim::guarded::GuardedDir;

/// Whether this process may use loop devices; says so if not.
pub fn can_loop(what: &str) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "only root may attach loop devices"
    } else if !Path::new("/dev/loop-control").exists() {
        "this kernel has no loop devices"
    } else {
        return true;
    };
    eprintln!("SKIPPED {what}: {missing}");
    false
}

/// Whether `program` is there; says so if not.
pub fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "command -v \"$1\"", "sh", program])
        .env("PATH", path())
        .output();
    let found = found.unwrap().status.success();
    if !found {
        eprintln!("SKIPPED {program}: it is not installed; `make install-deps` does it");
    }
    found
}

fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap())
}

/// Where a device is shown as a file, and where a file system on it is mounted. When this is dropped, or the process
/// is killed, the guard of the directory removes what is attached, mounted or served there.
pub struct Places {
    directory: GuardedDir,
}

impl Places {
    pub fn new() -> Places {
        let directory = GuardedDir::new().unwrap();
        for name in ["served", "files"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Places { directory }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the file system is mounted.
    pub fn files(&self) -> String {
        self.at("files").to_str().unwrap().to_owned()
    }

    /// The name of the device's file: no other test has it, and the guard knows it.
    pub fn name(&self) -> String {
        let name = self.directory.path().file_name().unwrap();
        format!("disk-{}", name.to_str().unwrap())
    }

    /// The device's file.
    pub fn file(&self) -> PathBuf {
        self.at("served").join(self.name())
    }

    pub fn mount(&self, device: &Loop) -> Result<(), String> {
        sh(&format!("mount $1 {}", self.files()), &device.path()).map(drop)
    }

    pub fn unmount(&self) -> Result<(), String> {
        sh("umount $1", &self.files()).map(drop)
    }
}

/// An attached loop device, detached when this is dropped, also by a panic.
pub struct Loop {
    pub attached: Attached,
}

impl Loop {
    pub fn new(file: &Path, sector_bytes: u32) -> Loop {
        let options = LoopOptions {
            sector_bytes,
            read_only: false,
            max_request_bytes: 1 << 20,
        };
        Loop::with(file, options).unwrap()
    }

    pub fn with(file: &Path, options: LoopOptions) -> Result<Loop, LoopError> {
        let attached = loop_device::attach(file, options)?;
        Ok(Loop { attached })
    }

    /// The path of the device.
    pub fn path(&self) -> String {
        self.attached.device.to_str().unwrap().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = self.attached.detach();
        if !std::thread::panicking() {
            detached.unwrap();
        }
    }
}

/// Runs a shell script with `$1`; what it prints, if it succeeds.
pub fn sh(script: &str, first: &str) -> Result<String, String> {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script, "sh", first])
        .env("PATH", path())
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let complaints = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() {
        Ok(told)
    } else {
        Err(format!("{told}{complaints}"))
    }
}
