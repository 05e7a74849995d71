//! Signals that meet a mount at the wrong moment: none leaves a dead mount behind.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod support;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::{Home, Mounted, skipped};

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == directory.to_str())
}

#[test]
fn a_signal_as_soon_as_the_mount_stands_takes_it_away() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    if !Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let dir = home.path("mnt");
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.canonicalize().unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM] {
        let _mounted = Mounted {
            home: &home,
            dir: "mnt",
        };
        let mut child = home
            .command(&["mount", &source, "mnt", "--foreground"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The kernel has it before the first answer: nobody has been told yet that it stands.
        let begin = Instant::now();
        while !is_mounted(&dir) {
            assert!(begin.elapsed() < Duration::from_secs(20), "no mount");
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert!(!is_mounted(&dir), "{signal:?} left a dead mount");
        assert_eq!(status.code(), Some(0), "{signal:?}");
    }
}
