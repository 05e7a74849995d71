//! Loop devices for tests: skipped loudly where the machine has none, and none left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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

    /// Programs that were told to end may have files open for a moment.
    pub fn unmount(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match sh("umount $1", &self.files()) {
                Err(told) if told.contains("busy") && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                done => return done.map(drop),
            }
        }
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
        let mut detached = self.attached.detach();
        // A process that another test starts has a copy of the descriptor until it runs its program.
        for _ in 0..200 {
            if !matches!(&detached, Err(LoopError::Busy { .. })) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            detached = self.attached.detach();
        }
        match detached {
            // The test has cleared it, and another test uses the same number.
            Ok(()) | Err(LoopError::Vanished { .. }) => {}
            Err(error) if std::thread::panicking() => eprintln!("{error}"),
            Err(error) => panic!("{error}"),
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

/// A file system, and how to make and check it.
pub struct Kind {
    pub name: &'static str,
    pub make: &'static str,
    pub check: &'static str,
}

impl Kind {
    /// Makes it on a device.
    pub fn make_on(&self, device: &str) -> Result<String, String> {
        let mut made = sh(self.make, device);
        // mkfs.btrfs looks at all loop devices, and servers of other tests end meanwhile.
        for _ in 0..20 {
            if !matches!(&made, Err(why) if why.contains("cannot check mount status")) {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
            made = sh(self.make, device);
        }
        made
    }
}

pub const EXT4: Kind = Kind {
    name: "ext4",
    make: "mkfs.ext4 -q -F -E nodiscard $1",
    check: "fsck.ext4 -f -n $1",
};
pub const XFS: Kind = Kind {
    name: "xfs",
    make: "mkfs.xfs -q -f -K $1",
    check: "xfs_repair -n $1",
};
pub const BTRFS: Kind = Kind {
    name: "btrfs",
    make: "mkfs.btrfs -q -f -K $1",
    check: "btrfs check --readonly $1",
};

/// Makes a repository of git in `$1/r` and checks it; prints what is wrong.
pub const GIT: &str = "cd $1 && export HOME=$1 && git init -q -b main r && cd r && git config user.name n && \
    git config user.email e@example.org && for i in $(seq 20); do mkdir -p d$((i % 5)); \
    seq $((i * 500)) > d$((i % 5))/f$i; git add -A; git commit -qm $i; done; \
    git repack -q -a -d; git fsck --strict --no-progress; git status --porcelain";
/// Checks it again.
pub const GIT_AGAIN: &str =
    "cd $1/r && export HOME=$1 && git fsck --strict --no-progress && git status --porcelain";
