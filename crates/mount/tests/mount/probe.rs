//! Memory maps and file handles, by a small program in C: in Rust they need `unsafe`, which the tests do not
//! use.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{World, noise};

/// The probe, built into a directory of its own.
pub struct Probe {
    directory: tempfile::TempDir,
}

impl Probe {
    pub fn build() -> Probe {
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/probe.c");
        let built = Command::new("gcc")
            .args(["-Wall", "-Werror", "-O1", "-o"])
            .arg(directory.path().join("probe"))
            .arg(source)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(built.status.success(), "{told}");
        Probe { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self) -> Command {
        Command::new(self.path("probe"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapped_file_keeps_its_bytes_and_cannot_be_written_through() {
    let mut world = World::new();
    let (old, new) = (noise(31, 700_001), noise(32, 700_001));
    let file = world.file(&old);
    world.publish(vec![("mapped", file)], 3600);
    let m = world.mount().await;
    let probe = Probe::build();
    fs::write(probe.path("expected"), &old).unwrap();
    let mut mmap = probe
        .command()
        .arg("map")
        .args([m.path("mapped"), probe.path("expected")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(mmap.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "shared ok");
    assert_eq!(next(), "private ok");
    assert_eq!(next(), "shared-writable EACCES");
    assert_eq!(next(), "protect EACCES");
    assert_eq!(next(), "written apart");

    let file = world.file(&new);
    world.publish(vec![("mapped", file)], 3600);
    m.wait_for(2);
    crate::fixture::wait_until("the new content", || m.read("mapped") == new);
    mmap.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert_eq!(next(), "shared-after same");
    assert_eq!(next(), "private-after same");
    assert_eq!(next(), "mapped-anew differs");
    assert!(mmap.wait().unwrap().success());
    assert_eq!(m.read("mapped"), new, "a private write is not stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_inode_number_is_estale() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED file handles: only root may open by them");
        return;
    }
    let mut world = World::new();
    let file = world.file(b"content");
    world.publish(vec![("f", file)], 3600);
    let m = world.mount().await;
    let told = Probe::build()
        .command()
        .arg("handle")
        .arg(m.path("f"))
        .output()
        .unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert_eq!(told, "name ok\nknown ok\nunknown ESTALE\n");
}
