//! Files, block devices and simulated devices as `Device`.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use sim::device::Machine;
use sim::guarded::GuardedDir;
use sim::time::wait_until;
use wal::{Buffer, Device, FileDevice, conformance};

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

/// A loop device over a file of a guarded directory, whose guard detaches it.
fn looped(file: &Path, sector_bytes: u32) -> Option<PathBuf> {
    let made = Command::new("losetup")
        .args(["--find", "--show", "--direct-io=on"])
        .arg(format!("--sector-size={sector_bytes}"))
        .arg(file)
        .output();
    let made = made.ok().filter(|output| output.status.success());
    let Some(made) = made else {
        eprintln!("SKIPPED: no loop device can be made here");
        return None;
    };
    let path = String::from_utf8(made.stdout).unwrap();
    Some(PathBuf::from(path.trim()))
}

/// Opens a device that was just closed: a process that another test starts has a copy of the descriptor until it runs its
/// program.
fn opened(device: &Path) -> FileDevice {
    let mut open = FileDevice::open(device);
    wait_until("nobody else has the device", || {
        let is_busy = |error: &std::io::Error| error.kind() == ErrorKind::ResourceBusy;
        let waits = open.as_ref().err().is_some_and(is_busy);
        if waits {
            open = FileDevice::open(device);
        }
        !waits
    });
    open.unwrap()
}

#[test]
fn block_device_conforms_and_is_exclusive() {
    for sector_bytes in [512, 4096] {
        let directory = GuardedDir::new().unwrap();
        let file = new_file(directory.path(), 2 << 20);
        let Some(device) = looped(&file, sector_bytes) else {
            return;
        };
        conforms(&device);
        let open = opened(&device);
        assert_eq!(open.bytes(), 2 << 20);
        let second = FileDevice::open(&device).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::ResourceBusy, "{second}");
    }
}

/// Sectors of 512 bytes, but not a whole number of blocks.
#[test]
fn block_device_whose_length_is_no_multiple_of_a_block_conforms() {
    let directory = GuardedDir::new().unwrap();
    let file = new_file(directory.path(), (2 << 20) + 1536);
    let Some(device) = looped(&file, 512) else {
        return;
    };
    conforms(&device);
    assert_eq!(opened(&device).bytes(), (2 << 20) + 1536);
}

/// O_DIRECT takes whole sectors of 4096 bytes only, and the file ends within one.
#[test]
fn file_of_any_length_on_a_disk_with_4096_byte_sectors_conforms() {
    for kind in ["ext4", "xfs"] {
        let directory = GuardedDir::new().unwrap();
        let disk = directory.path().join("disk");
        File::create(&disk).unwrap().set_len(400 << 20).unwrap();
        let Some(device) = looped(&disk, 4096) else {
            return;
        };
        let place = directory.path().join("place");
        std::fs::create_dir(&place).unwrap();
        let script =
            "PATH=$PATH:/usr/sbin:/sbin; command -v mkfs.$1 && mkfs.$1 -q $2 && mount $2 $3";
        let mounted = Command::new("sh")
            .args(["-c", script, "sh", kind])
            .args([&device, &place])
            .output()
            .unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr);
            eprintln!("SKIPPED {kind} on 4096-byte sectors: {why}");
            continue;
        }
        for rest in [0, 1, 511, 512, 513, 2048, 4095] {
            let path = new_file(&place, (2 << 20) + rest);
            assert!(FileDevice::open(&path).unwrap().is_direct(), "{kind}");
            conforms(&path);
            std::fs::remove_file(path).unwrap();
        }
    }
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
