//! Signals at the wrong moment: none leaves a dead mount, and files that are left are reported.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
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
            assert!(begin.elapsed() < Duration::from_secs(60), "no mount");
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert!(!is_mounted(&dir), "{signal:?} left a dead mount");
        assert_eq!(status.code(), Some(0), "{signal:?}");
    }
}

/// A way to a server that passes this many bytes of its answers, and then no more.
fn dries_up(server: &str, mut left: usize) -> String {
    let server = server.trim_start_matches("bulla://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("bulla://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        let mut server = TcpStream::connect(server).unwrap();
        let (mut asks, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut asks, &mut to_server));
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            let most = left.min(buffer.len());
            let read = server.read(&mut buffer[..most]).unwrap();
            // The client may have gone.
            if read == 0 || client.write_all(&buffer[..read]).is_err() {
                return;
            }
            left -= read;
        }
        // The connections stay open until the tests end.
        std::mem::forget((client, server, listener));
    });
    place
}

#[test]
fn an_interrupted_extraction_says_what_to_do_and_goes_on() {
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
    // The last blocks cannot be fetched.
    let place = dries_up(server.location(), 40 << 20);
    let source = format!("{}@{place}", published.as_str().unwrap());
    let extract = home
        .command(&["extract", &source, "out", "--deadline", "600s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = home.path("out");
    support::wait_until("the first file", || {
        out.join("0")
            .metadata()
            .is_ok_and(|file| file.len() == 1 << 20)
    });
    kill_process(Pid::from_child(&extract), Signal::INT).unwrap();
    let ran = Ran::of(extract.wait_with_output().unwrap()).ends(130);
    assert!(
        ran.err
            .contains("are in out; run the same command again to go on there"),
        "{}",
        ran.err
    );
    let source = home.source(published.as_str().unwrap(), "repo");
    // What a program changes meanwhile and hides is not taken for verified.
    let changed = out.join("0");
    if let Ok(mut content) = std::fs::read(&changed) {
        let time = changed.metadata().unwrap().modified().unwrap();
        content[1000] ^= 1;
        std::fs::write(&changed, content).unwrap();
        let file = std::fs::File::options().write(true).open(&changed).unwrap();
        file.set_modified(time).unwrap();
    }
    // As the hint says.
    let ran = home.run(&["extract", &source, "out", "--json"]).ends(0);
    assert_eq!(ran.field("went_on"), true);
    assert!(ran.field("kept").as_u64().unwrap() > 0);
    for n in 0..64 {
        let content = std::fs::read(out.join(n.to_string())).unwrap();
        assert!(content == support::noise(n, 1 << 20), "{n}");
    }
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 64);
    // It is finished.
    home.run(&["extract", &source, "out"]).ends(1);
}
