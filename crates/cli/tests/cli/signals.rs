//! Signals at the wrong moment: none leaves a dead mount, and files that are left are reported.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{self, Home, Mounted, Ran, skipped};
use rustix::process::{Pid, Signal, kill_process};

fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == directory.to_str())
}

#[test]
fn signal_right_after_mounting_unmounts() {
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
        // The kernel lists the mount before its first answer, so the mount has not reported yet that it is
        // ready.
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

#[test]
fn an_interrupted_extraction_says_what_to_do() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    std::fs::create_dir(home.path("tree")).unwrap();
    for n in 0..64 {
        let file = home.path(&format!("tree/{n}"));
        std::fs::write(file, support::noise(n, 1 << 20)).unwrap();
    }
    let published = home.publish().ends(0).field("volume");
    let server = home.serve("repo");
    let extract = home
        .command(&["extract", &server.source, "out"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = home.path("out");
    support::wait_until("the first file", || {
        std::fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some())
    });
    // The blocks that are missing cannot be fetched for now.
    server.stall();
    kill_process(Pid::from_child(&extract), Signal::INT).unwrap();
    let ran = Ran::of(extract.wait_with_output().unwrap()).ends(130);
    assert!(
        ran.err
            .contains("are in out; remove this directory and run"),
        "{}",
        ran.err
    );
    let source = home.source(published.as_str().unwrap(), "repo");
    // As the hint says, repeating the command alone does not work.
    home.run(&["extract", &source, "out"]).ends(1);
    std::fs::remove_dir_all(&out).unwrap();
    home.run(&["extract", &source, "out"]).ends(0);
}
