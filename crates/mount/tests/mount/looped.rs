//! Loop devices for tests: skipped loudly where the machine has none, and none left behind.

use std::path::Path;
use std::process::Command;

use mount::loop_device::{self, Attached, LoopError, LoopOptions};

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
