//! Loop devices over a device's file: attached, checked, detached, cleared when their server is dead, with ext4 on top.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mount::device::{DeviceOptions, Served, serve};
use mount::loop_device::{self, Fault, LoopError, LoopOptions};
use protect::{Block, BlockError};
use rustix::fs::FallocateFlags;
use sim::fsx::{self, FsxOptions};

use crate::fixture::{Watchdog, wait_until};
use crate::looped::{GIT, GIT_AGAIN, Loop, Places, can_loop, has, sh};

const BYTES: u64 = 128 << 20;

/// A block device in a file.
struct FileBlock(File);

impl FileBlock {
    fn open(path: &Path) -> Arc<FileBlock> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Arc::new(FileBlock(file.unwrap()))
    }
}

fn failed(source: io::Error) -> BlockError {
    let device = "the test's file";
    BlockError::Io { device, source }
}

impl Block for FileBlock {
    fn bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn sector_bytes(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.0.read_exact_at(into, offset).map_err(failed)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.0.write_all_at(from, offset).map_err(failed)
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = rustix::fs::fallocate(&self.0, punch, offset, bytes);
        done.map_err(|error| failed(error.into()))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.0.sync_data().map_err(failed)
    }
}

fn places() -> Places {
    let places = Places::new();
    let data = File::create(places.at("data")).unwrap();
    data.set_len(BYTES).unwrap();
    places
}

async fn serve_at(places: &Places) -> Served {
    let options = DeviceOptions::new(places.name(), "bulla#test");
    let block = FileBlock::open(&places.at("data"));
    serve(block, &places.at("served"), options).await.unwrap()
}

fn attach(places: &Places) -> Loop {
    Loop::new(&places.file(), 512)
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_device_has_the_settings_and_is_found_by_its_file() {
    if !can_loop("attaching devices") {
        return;
    }
    let places = places();
    let served = serve_at(&places).await;
    for sector_bytes in [512, 4096] {
        let options = LoopOptions {
            sector_bytes,
            read_only: sector_bytes == 4096,
            max_request_bytes: 128 << 10,
        };
        let device = Loop::with(&places.file(), options).unwrap();
        let found = loop_device::of(&places.file()).unwrap();
        assert_eq!(found, std::slice::from_ref(&device.attached));
        let found = &found[0];
        assert_eq!(found.faults(sector_bytes), []);
        assert_eq!(found.file, places.file());
        assert_eq!(
            (found.bytes, found.read_only),
            (BYTES, sector_bytes == 4096)
        );
        assert_eq!(found.max_request_bytes, 128 << 10);
        assert_eq!(found.mounted_on().unwrap(), None);
        let other = if sector_bytes == 512 { 4096 } else { 512 };
        let fault = Fault::Sector {
            is: sector_bytes,
            should: other,
        };
        assert_eq!(found.faults(other), [fault]);
        device.attached.detach().unwrap();
        assert_eq!(loop_device::of(&places.file()).unwrap(), []);
        // Again: it is detached already, and another test may have the device by now.
        let again = device.attached.detach();
        assert!(matches!(again, Ok(()) | Err(LoopError::Vanished { .. })));
    }
    served.finish(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_settings_are_found() {
    if !can_loop("settings of devices") {
        return;
    }
    let places = places();
    let served = serve_at(&places).await;
    let file = places.file().to_str().unwrap().to_owned();
    let device = sh("losetup --find --show --offset 4096 \"$1\"", &file).unwrap();
    let found = loop_device::on(Path::new(&device)).unwrap().unwrap();
    let device = Loop { attached: found };
    let faults = device.attached.faults(512);
    assert_eq!(faults, [Fault::PageCache, Fault::Partial]);
    drop((device, served));
}

#[tokio::test(flavor = "multi_thread")]
async fn mounted_device_is_not_detached() {
    if !can_loop("detaching mounted devices") {
        return;
    }
    let places = places();
    let _served = serve_at(&places).await;
    let device = attach(&places);
    sh("mkfs.ext4 -q -F $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    let refused = device.attached.detach();
    let on = device.attached.mounted_on().unwrap();
    let cleared = loop_device::clear_stale(&places.file());
    let written = fs::write(places.at("files/f"), b"still attached");
    places.unmount().unwrap();
    assert_eq!(on, Some(places.at("files")));
    let told = refused.unwrap_err().to_string();
    let expected = format!("{} is in use: mounted on {}", device.path(), places.files());
    assert_eq!(told, expected);
    assert!(matches!(cleared, Err(LoopError::Busy { .. })));
    written.unwrap();
}

#[test]
fn device_that_stays_open_is_told() {
    if !can_loop("detaching open devices") {
        return;
    }
    let places = places();
    let device = Loop::new(&places.at("data"), 512);
    let open = File::open(device.path()).unwrap();
    let refused = device.attached.detach();
    assert!(
        matches!(refused, Err(LoopError::Busy { .. })),
        "{refused:?}"
    );
    drop(open);
    wait_until("the device to be free", || {
        loop_device::of(&places.at("data")).unwrap().is_empty()
    });
}

#[test]
fn errors_name_their_cause() {
    if !can_loop("errors of attaching") {
        return;
    }
    let options = LoopOptions {
        sector_bytes: 512,
        read_only: false,
        max_request_bytes: 128 << 10,
    };
    let places = places();
    let missing = loop_device::attach(&places.at("nothing"), options).unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let odd = LoopOptions {
        sector_bytes: 1000,
        ..options
    };
    let refused = loop_device::attach(&places.at("data"), odd).unwrap_err();
    assert!(matches!(refused, LoopError::Refused { .. }), "{refused:?}");
    wait_until("no device is left", || {
        loop_device::of(&places.at("data")).unwrap().is_empty()
    });
}

/// Run by [`process_without_root_is_told_that_it_needs_it`] as another user.
#[test]
#[ignore = "run by another test, as another user"]
fn attach_as_another_user() {
    let options = LoopOptions {
        sector_bytes: 512,
        read_only: false,
        max_request_bytes: 128 << 10,
    };
    let refused = loop_device::attach(Path::new("/etc/hostname"), options).unwrap_err();
    assert!(matches!(refused, LoopError::NoPermission), "{refused:?}");
}

#[test]
fn process_without_root_is_told_that_it_needs_it() {
    if !can_loop("permissions of loop devices") || !has("setpriv") {
        return;
    }
    let program = std::env::current_exe().unwrap();
    // Elsewhere, so that another user can read it.
    let copy = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempfile()
        .unwrap();
    fs::copy(program, copy.path()).unwrap();
    let path = copy.into_temp_path();
    let run = "setpriv --reuid=65534 --regid=65534 --clear-groups \"$1\" --exact loops::attach_as_another_user --ignored";
    let mut told = Ok(String::new());
    wait_until("nobody writes to the program", || {
        // A process that another test starts has a copy of the descriptor that wrote it, until it runs its program.
        told = sh(run, path.to_str().unwrap());
        !matches!(&told, Err(why) if why.contains("Text file busy"))
    });
    let told = told.unwrap();
    assert!(told.contains("1 passed"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_work_on_ext4_over_the_device() {
    if !can_loop("programs on ext4 over a device") {
        return;
    }
    let places = places();
    let served = serve_at(&places).await;
    let device = attach(&places);
    sh("mkfs.ext4 -q -F -b 4096 $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    let _watchdog = Watchdog::start(&places.at("served"), Duration::from_secs(100));
    let git = sh(GIT, &places.files());
    let exercised = fsx::run(&places.at("files/fsx"), &FsxOptions::new(11, 1000), |_| {});
    let trimmed = sh("fstrim $1", &places.files());
    places.unmount().unwrap();
    assert_eq!(git.unwrap(), "");
    exercised.unwrap();
    trimmed.unwrap();
    sh("fsck.ext4 -f -n $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    let checked = sh(GIT_AGAIN, &places.files());
    places.unmount().unwrap();
    assert_eq!(checked.unwrap(), "");
    drop(device);
    assert_eq!(served.faults().count, 0);
    served.finish(Duration::from_secs(60)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fstrim_frees_small_holes() {
    if !can_loop("small holes") {
        return;
    }
    let places = places();
    let served = serve_at(&places).await;
    let best = sh("stat -c %o $1", places.file().to_str().unwrap()).unwrap();
    assert_eq!(best, "131072");
    let device = attach(&places);
    sh("mkfs.ext4 -q -F -b 4096 $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    // Every other file of 8 KiB goes, so holes are smaller than what programs read at a time.
    let filled = sh(
        "cd $1 && fstrim . && for n in $(seq 200); do head -c 8192 /dev/urandom >f$n; done && sync -f .",
        &places.files(),
    );
    let used = || fs::metadata(places.at("data")).unwrap().blocks() * 512;
    let before = used();
    let emptied = sh(
        "cd $1 && for n in $(seq 1 2 200); do rm f$n; done && sync -f . && fstrim .",
        &places.files(),
    );
    let after = used();
    places.unmount().unwrap();
    filled.and(emptied).unwrap();
    assert!(before - after >= 60 * 8192, "{before} bytes, then {after}");
    drop(device);
    served.finish(Duration::from_secs(60)).await.unwrap();
}

/// Serves a device until it is killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by another test, as a process that it kills"]
async fn serve_until_killed() {
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let name = std::env::var("BULLA_TEST_NAME").unwrap();
    let options = DeviceOptions::new(name, "bulla#test");
    let block = FileBlock::open(&variable("BULLA_TEST_DATA"));
    let directory = variable("BULLA_TEST_MOUNT");
    let mut served = serve(block, &directory, options).await.unwrap();
    served.ended().await.unwrap();
}

fn serve_elsewhere(places: &Places) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "loops::serve_until_killed", "--ignored"])
        .env("BULLA_TEST_MOUNT", places.at("served"))
        .env("BULLA_TEST_DATA", places.at("data"))
        .env("BULLA_TEST_NAME", places.name())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the other process's mount", || places.file().exists());
    child
}

/// Whether the dead mount has left the tree before the next attach.
async fn attach_after_a_kill(unmounted: bool) {
    let places = places();
    let mut server = serve_elsewhere(&places);
    let device = attach(&places);
    sh("mkfs.ext4 -q -F $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    let synced = sh(
        "seq 100000 > $1/f && sync $1/f && seq 9 > $1/unsynced",
        &places.files(),
    );
    server.kill().unwrap();
    server.wait().unwrap();
    synced.unwrap();
    // The file system notices, and is unmounted.
    let lost = sh("seq 10 > $1/g && sync $1/g", &places.files());
    places.unmount().unwrap();
    lost.unwrap_err();
    assert_eq!(loop_device::of(&places.file()).unwrap().len(), 1);
    if unmounted {
        mount::unmount(&places.at("served")).unwrap();
    }
    let cleared = loop_device::clear_stale(&places.file()).unwrap();
    let detached: Vec<_> = cleared.detached.iter().map(|it| &it.device).collect();
    assert_eq!(detached, [&device.attached.device]);
    assert_eq!(cleared.left, []);
    assert_eq!(loop_device::of(&places.file()).unwrap(), []);
    if !unmounted {
        mount::unmount(&places.at("served")).unwrap();
    }
    let served = serve_at(&places).await;
    let device = attach(&places);
    // It recovers the journal (1: something was mended), and then nothing is wrong.
    sh("fsck.ext4 -p $1 || [ $? = 1 ]", &device.path()).unwrap();
    sh("fsck.ext4 -f -n $1", &device.path()).unwrap();
    places.mount(&device).unwrap();
    let kept = sh("seq 100000 | cmp - $1/f", &places.files());
    places.unmount().unwrap();
    kept.unwrap();
    drop((device, served));
}

#[tokio::test(flavor = "multi_thread")]
async fn device_of_a_killed_server_is_cleared_and_what_was_synced_is_there() {
    if !can_loop("devices of killed servers") {
        return;
    }
    attach_after_a_kill(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn device_is_cleared_when_its_dead_mount_has_left_the_tree() {
    if !can_loop("devices of killed servers") {
        return;
    }
    attach_after_a_kill(true).await;
}
