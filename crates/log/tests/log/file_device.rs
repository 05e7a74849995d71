//! Files, block devices and simulated devices as `Device`.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use log::{Buffer, Device, FileDevice, conformance};
use sim::device::Machine;

fn new_file(directory: &Path, bytes: u64) -> PathBuf {
    let path = directory.join("device");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn conforms(path: &Path) {
    conformance::suite(FileDevice::open(path).unwrap(), |device| {
        drop(device);
        FileDevice::open(path).unwrap()
    });
}

#[test]
fn file_conforms() {
    let directory = tempfile::tempdir().unwrap();
    conforms(&new_file(directory.path(), 2 << 20));
}

#[test]
fn file_whose_length_is_no_multiple_of_a_block_conforms() {
    let directory = tempfile::tempdir().unwrap();
    for rest in [1, 512, 4095] {
        conforms(&new_file(directory.path(), (2 << 20) + rest));
    }
}

#[test]
fn file_in_memory_conforms() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    conforms(&new_file(directory.path(), 2 << 20));
}

#[test]
fn simulated_device_conforms() {
    let machine = Machine::new(&[("L", 2 << 20)]);
    let device = (*machine.device("L")).clone();
    conformance::suite(device, |device| device);
}

/// A loop device, detached when it is dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Option<Loop> {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output();
        let made = made.ok().filter(|output| output.status.success())?;
        let path = String::from_utf8(made.stdout).unwrap();
        Some(Loop(PathBuf::from(path.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn block_device_conforms_and_is_exclusive() {
    let directory = tempfile::tempdir().unwrap();
    let file = new_file(directory.path(), 2 << 20);
    let Some(device) = Loop::new(&file) else {
        eprintln!("SKIPPED: no loop device can be made here");
        return;
    };
    conforms(&device.0);
    let open = FileDevice::open(&device.0).unwrap();
    assert_eq!(open.bytes(), 2 << 20);
    let second = FileDevice::open(&device.0).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::ResourceBusy, "{second}");
}

#[test]
fn file_is_exclusive_while_it_is_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = new_file(directory.path(), 2 << 20);
    let first = FileDevice::open(&path).unwrap();
    let second = FileDevice::open(&path).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::WouldBlock, "{second}");
    drop(first);
    FileDevice::open(&path).unwrap();
}

#[test]
fn directories_pipes_and_missing_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let missing = FileDevice::open(&directory.path().join("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let pipe = directory.path().join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    for other in [directory.path(), &pipe, Path::new("/dev/null")] {
        let refused = FileDevice::open(other).unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::InvalidInput,
            "{}",
            other.display()
        );
    }
}

#[test]
fn length_is_that_of_the_opening() {
    let directory = tempfile::tempdir().unwrap();
    let path = new_file(directory.path(), 2 << 20);
    let device = FileDevice::open(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    assert_eq!(device.bytes(), 2 << 20);
    let beyond = device.write(2 << 20, &Buffer::zeroed(4096)).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
    file.set_len(1 << 20).unwrap();
    let lost = device.read(1 << 20, &mut Buffer::zeroed(4096)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::UnexpectedEof);
}
