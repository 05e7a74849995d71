//! For the tests of mounts of shared volumes: mounts by the real binary, and signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::shared_lab::{Orderer, founded, joined};
use crate::support::{Home, skipped, wait_until};

pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skipped("mount", "no /dev/fuse");
    }
    can
}

/// `bulla mount notes`, which is unmounted on drop.
pub struct Mount<'a> {
    home: &'a Home,
    directory: &'a str,
    process: Child,
}

impl Mount<'_> {
    pub fn of<'a>(home: &'a Home, flags: &[&str]) -> Mount<'a> {
        Mount::on(home, "mnt", flags)
    }

    /// The same on another directory of the home.
    pub fn on<'a>(home: &'a Home, directory: &'a str, flags: &[&str]) -> Mount<'a> {
        if !home.path(directory).exists() {
            fs::create_dir(home.path(directory)).unwrap();
        }
        let args = ["mount", "notes", directory, "--foreground"];
        let log = fs::File::create(home.path(&format!("{directory}.log"))).unwrap();
        let mut command = home.command(&[&args, flags].concat());
        let process = command.stderr(log).stdout(Stdio::null()).spawn().unwrap();
        let mut mount = Mount {
            home,
            directory,
            process,
        };
        wait_until("the mount", || {
            let ended = mount.process.try_wait().unwrap();
            assert_eq!(ended, None, "{}", mount.log());
            is_mounted(&mount.path(""))
        });
        mount
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(self.directory).join(name)
    }

    /// Its process stands still until the value is dropped.
    pub fn stopped(&self) -> Stopped {
        signal(self.process.id(), Signal::STOP);
        Stopped(self.process.id())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path(&format!("{}.log", self.directory))).unwrap()
    }

    /// What `bulla status` says of it.
    pub fn status(&self) -> serde_json::Value {
        let ran = self.home.run(&["--json", "status", self.directory]).ends(0);
        ran.records("mount").remove(0)
    }

    /// kill -9, and the dead mount goes.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Unmounts, and waits for its process.
    pub fn end(self) {
        self.home.run(&["umount", self.directory]).ends(0);
        self.has_ended();
    }

    /// Ends its process by a signal.
    pub fn end_by(self, by: Signal) {
        signal(self.process.id(), by);
        self.has_ended();
    }

    fn has_ended(mut self) {
        let begin = Instant::now();
        while self.process.try_wait().unwrap().is_none() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the mount goes on"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that stands still.
pub struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Sends a signal, without a process that would inherit what is open.
pub fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.cast_signed()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if is_mounted(&self.path("")) {
            self.home.run(&["umount", self.directory]);
        }
        let begin = Instant::now();
        while self.process.try_wait().is_ok_and(|ended| ended.is_none()) {
            if begin.elapsed() > Duration::from_secs(60) {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn is_mounted(directory: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let directory = directory.display().to_string();
    let directory = directory.trim_end_matches('/');
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(directory))
}

/// A volume `notes`, its server, and two devices of ada.
pub fn two_devices() -> (Orderer, Home, Home) {
    let (orderer, ada) = founded(&[]);
    let ben = joined(&ada, "ada");
    (orderer, ada, ben)
}
