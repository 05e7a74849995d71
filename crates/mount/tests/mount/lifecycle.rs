//! Mounts begin, end and die, and leave nothing that hinders the next one.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mount::fuse::{Connection, SessionOptions};
use mount::{MountError, MountOptions};
use rustix::mount::MountFlags;
use sim::guarded::GuardedDir;
use sim::memfs::{MemFs, MemFsOptions};

use crate::fixture::{World, errno, is_mounted, quick, wait_until};

fn world() -> World {
    let mut world = World::new();
    let file = world.file(b"content");
    world.publish(vec![("f", file)], 3600);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mount_table_names_type_and_volume() {
    let m = world().mount().await;
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let directory = m.path("");
    let directory = directory.to_str().unwrap().trim_end_matches('/');
    let line = table.lines().find(|l| l.contains(directory)).unwrap();
    assert!(line.contains(" ro,nosuid,nodev"), "{line}");
    assert!(line.contains("- fuse.bulla bulla\\043vol1"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn suid_and_devices_work_only_on_request() {
    let options = MountOptions {
        honour_suid_and_devices: true,
        ..quick()
    };
    let m = crate::fixture::TestMount::new(world().open().await, options).await;
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let directory = m.path("");
    let directory = directory.to_str().unwrap().trim_end_matches('/');
    let line = table.lines().find(|l| l.contains(directory)).unwrap();
    assert!(
        !line.contains("nosuid") && !line.contains("nodev"),
        "{line}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unmounting_from_outside_ends_the_mount_and_a_second_time_is_an_error() {
    let mut m = world().mount().await;
    let directory = m.path("");
    mount::unmount(&directory).unwrap();
    let mut mounted = m.mounted.take().unwrap();
    tokio::time::timeout(Duration::from_secs(60), mounted.ended())
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(
        mount::unmount(&directory),
        Err(MountError::NotMounted { .. })
    ));
    mounted.unmount().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_that_is_never_served_is_removed() {
    let directory = GuardedDir::new().unwrap();
    let fs = Arc::new(MemFs::new(MemFsOptions::default()));
    let options = SessionOptions::new("memfs");
    let connection = Connection::open(fs, directory.path(), options).await;
    let connection = connection.unwrap();
    assert!(is_mounted(directory.path()));
    drop(connection);
    assert!(!is_mounted(directory.path()));
}

/// The kernel gives the number of a file system that has ended to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn mount_that_has_ended_unmounts_no_other_with_its_number() {
    let world = world();
    // Another test may take the number first.
    for _ in 0..50 {
        let mut m = world.mount().await;
        let number = number_of(&m.path(""));
        mount::unmount(&m.path("")).unwrap();
        m.mounted.as_mut().unwrap().ended().await.unwrap();
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(world.mount().await);
        }
        let mut same = others.iter().map(|other| other.path(""));
        let same = same.find(|other| number_of(other) == number);
        drop(m);
        if let Some(other) = same {
            let other = other.to_str().unwrap().trim_end_matches('/');
            let other = Path::new(other);
            assert!(is_mounted(other), "the mount of another was removed");
            return;
        }
    }
    panic!("no file system has the number of one that has ended");
}

/// An aborted connection has ended for the kernel, and its mounts are still there.
#[tokio::test(flavor = "multi_thread")]
async fn mount_whose_connection_was_aborted_is_removed_with_its_bind_mounts() {
    let m = world().mount().await;
    let minor = rustix::fs::minor(number_of(&m.path("")));
    let connections = GuardedDir::new().unwrap();
    let place = connections.path();
    if rustix::mount::mount("none", place, "fusectl", MountFlags::empty(), None).is_err() {
        eprintln!("SKIPPED an aborted connection: only root may abort it");
        return;
    }
    let abort = place.join(format!("{minor}/abort"));
    let elsewhere = GuardedDir::new().unwrap();
    rustix::mount::mount_bind(m.path(""), elsewhere.path()).unwrap();
    assert!(is_mounted(elsewhere.path()));
    fs::write(abort, "1").unwrap();
    let directory = m.mounted().directory().to_owned();
    drop(m);
    assert!(!is_mounted(&directory) && !is_mounted(elsewhere.path()));
}

fn number_of(directory: &Path) -> u64 {
    fs::metadata(directory).unwrap().dev()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_mount_is_unmounted_at_once_and_open_files_stay_readable() {
    let m = world().mount().await;
    let mut open = File::open(m.path("f")).unwrap();
    // As umount(8) with --lazy: it does not wait for programs that use the mount.
    m.mounted().unmount().unwrap();
    assert!(!is_mounted(&m.path("")));
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
}

#[tokio::test(flavor = "multi_thread")]
async fn mounting_on_a_file_is_refused() {
    let world = world();
    let file = tempfile::NamedTempFile::new().unwrap();
    for place in [Path::new("/no/such/place"), file.path()] {
        let error = mount::mount(world.open().await, place, quick())
            .await
            .unwrap_err();
        assert!(matches!(error, MountError::Directory { .. }), "{error}");
    }
    assert!(matches!(
        mount::unmount(file.path()),
        Err(MountError::NotMounted { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_directory_can_be_mounted_on() {
    let (real, links) = (GuardedDir::new().unwrap(), tempfile::tempdir().unwrap());
    let link = links.path().join("link");
    std::os::unix::fs::symlink(real.path(), &link).unwrap();
    let mounted = mount::mount(world().open().await, &link, quick())
        .await
        .unwrap();
    assert!(is_mounted(real.path()));
    assert_eq!(fs::read(link.join("f")).unwrap(), b"content");
    drop(mounted);
    assert!(!is_mounted(real.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn mounting_over_a_mount_is_refused() {
    let world = world();
    let m = world.mount().await;
    let again = mount::mount(world.open().await, &m.path(""), quick()).await;
    assert!(matches!(again, Err(MountError::Busy { .. })));
    assert_eq!(m.read("f"), b"content");
}

/// Not a test of its own: the process that the next two tests kill.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by other tests, as a process to kill"]
async fn serve_until_signalled() {
    let Some(directory) = std::env::var_os("BULLA_TEST_MOUNT") else {
        panic!("run by other tests only")
    };
    let world = world();
    let signals = mount::Signals::listen().unwrap();
    let mounted = mount::mount(world.open().await, Path::new(&directory), quick())
        .await
        .unwrap();
    mounted.until_signal(signals).await.unwrap();
}

/// A process that serves a mount; killed and cleared away when dropped, by the guard of its directory.
struct Server {
    child: Child,
    directory: GuardedDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the test has ended the process already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve() -> Server {
    let directory = GuardedDir::new().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifecycle::serve_until_signalled", "--ignored"])
        .env("BULLA_TEST_MOUNT", directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let server = Server { child, directory };
    let (place, f) = (server.directory.path(), server.directory.path().join("f"));
    wait_until("the child's mount", || is_mounted(place) && f.exists());
    // The mount answers before the signal handlers are installed.
    let status = format!("/proc/{}/status", server.child.id());
    wait_until("the child's signal handlers", || {
        let caught = fs::read_to_string(&status).unwrap();
        let caught = caught.lines().find_map(|l| l.strip_prefix("SigCgt:\t"));
        let caught = u64::from_str_radix(caught.unwrap(), 16).unwrap();
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let all = bit(libc::SIGTERM) | bit(libc::SIGINT) | bit(libc::SIGHUP);
        caught & all == all
    });
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_mount_is_reported_and_cleared() {
    let mut server = serve();
    let Server { child, directory } = &mut server;
    let mut open = File::open(directory.path().join("f")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(errno(open.read(&mut [0; 1])), libc::ENOTCONN, "open files");
    assert_eq!(errno(fs::read_dir(directory.path())), libc::ENOTCONN);
    mount::unmount(directory.path()).unwrap();
    assert!(!is_mounted(directory.path()) && fs::metadata(directory.path()).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_removes_a_dead_mount_of_its_user_and_no_living_one() {
    let mut server = serve();
    let again = mount::mount(world().open().await, server.directory.path(), quick()).await;
    assert!(matches!(again, Err(MountError::Busy { .. })));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let place = server.directory.path();
    let mounted = mount::mount(world().open().await, place, quick())
        .await
        .unwrap();
    assert!(mounted.cleared_dead());
    assert_eq!(fs::read(place.join("f")).unwrap(), b"content");
    drop(mounted);
    assert!(!is_mounted(place), "a second mount lay below");
    let mounted = mount::mount(world().open().await, place, quick())
        .await
        .unwrap();
    assert!(!mounted.cleared_dead());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_unmounts_and_is_no_error() {
    for signal in ["-TERM", "-INT", "-HUP"] {
        let mut server = serve();
        let Server { child, directory } = &mut server;
        let open = File::open(directory.path().join("f")).unwrap();
        let kill = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(kill.success());
        assert!(child.wait().unwrap().success(), "{signal}");
        assert!(!is_mounted(directory.path()));
        drop(open);
    }
}
