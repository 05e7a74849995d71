//! A newer version under a mount that is in use (decision 0010).

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mount::{MountOptions, NameCaching};
use rustix::fs::{Dir, Mode, OFlags};

use crate::fixture::{TestMount, World, errno, noise, quick, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn open_files_keep_their_bytes_and_new_opens_see_the_new() {
    let mut world = World::new();
    let (old, keep) = (noise(1, 300_000), noise(2, 9000));
    let (changing, kept, gone) = (world.file(&old), world.file(&keep), world.file(b"gone"));
    let sub = world.directory(vec![("changing", changing.clone()), ("gone", gone)]);
    world.publish(vec![("sub", sub), ("kept", kept.clone())], 3600);
    let m = world.mount().await;

    let open = File::open(m.path("sub/changing")).unwrap();
    let mut page = [0; 100];
    open.read_exact_at(&mut page, 0).unwrap();
    let before = |name: &str| fs::metadata(m.path(name)).unwrap().ino();
    let (changing_number, kept_number, sub_number) =
        (before("sub/changing"), before("kept"), before("sub"));
    assert_eq!(errno(fs::metadata(m.path("sub/new"))), libc::ENOENT);
    assert_eq!(m.read("sub/gone"), b"gone");

    let newer = noise(3, 300_000);
    let (changing, new) = (world.file(&newer), world.file(b"new"));
    let sub = world.directory(vec![("changing", changing), ("new", new)]);
    world.publish(vec![("sub", sub), ("kept", kept)], 3600);
    m.wait_for(2);

    wait_until("the new name", || fs::metadata(m.path("sub/new")).is_ok());
    assert_eq!(m.read("sub/changing"), newer);
    assert_eq!(errno(fs::metadata(m.path("sub/gone"))), libc::ENOENT);
    let mut whole = vec![0; old.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(whole, old, "read after the update, without cached pages");
    let after = |name: &str| fs::metadata(m.path(name)).unwrap().ino();
    assert_ne!(after("sub/changing"), changing_number);
    assert_eq!(open.metadata().unwrap().ino(), changing_number);
    assert_eq!((after("kept"), after("sub")), (kept_number, sub_number));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_and_working_directories_work_across_an_update() {
    let mut world = World::new();
    let file = world.file(b"1");
    let dir = world.directory(vec![("a", file.clone()), ("b", file.clone())]);
    let doomed = world.directory(vec![("x", file.clone())]);
    world.publish(vec![("dir", dir), ("doomed", doomed)], 3600);
    let m = world.mount().await;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let at = rustix::fs::open(m.path("dir"), flags, Mode::empty()).unwrap();
    let doomed = rustix::fs::open(m.path("doomed"), flags, Mode::empty()).unwrap();
    let listing = rustix::fs::openat(at.as_fd(), ".", flags, Mode::empty()).unwrap();
    let mut listing = Dir::new(listing).unwrap();

    let mut dir = world.directory(vec![("a", file.clone()), ("c", file.clone())]);
    dir.mode = 0o700;
    world.publish(vec![("dir", dir)], 3600);
    m.wait_for(2);

    // The open listing is of the version in which it was opened; a new listing is of the new version.
    let mut names = Vec::new();
    while let Some(entry) = listing.read() {
        names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
    }
    assert_eq!(names, [".", "..", "a", "b"]);
    let new: Vec<_> = fs::read_dir(m.path("dir"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(new, ["a", "c"]);
    // Names from the old listing are not used as names of the new version.
    assert_eq!(errno(fs::metadata(m.path("dir/b"))), libc::ENOENT);

    let open_at = |fd: &rustix::fd::OwnedFd, name: &str| {
        rustix::fs::openat(fd, name, OFlags::RDONLY, Mode::empty())
    };
    assert!(open_at(&at, "c").is_ok());
    assert_eq!(open_at(&at, "b").unwrap_err(), rustix::io::Errno::NOENT);
    wait_until("attributes of an open directory", || {
        rustix::fs::fstat(&at).unwrap().st_mode & 0o777 == 0o700
    });
    assert_eq!(open_at(&doomed, "x").unwrap_err(), rustix::io::Errno::NOENT);
}

/// Each version holds two files that contain its number. A reader must find each file whole.
#[tokio::test(flavor = "multi_thread")]
async fn readers_see_whole_files_through_many_updates_and_memory_is_bounded() {
    let mut world = World::new();
    let put = |world: &mut World, version: u8| {
        let body = vec![version; 200_000];
        let entries: Vec<(String, _)> = (0..50)
            .map(|i| (format!("f{i}"), world.file(&body)))
            .collect();
        let entries = entries
            .iter()
            .map(|(n, i)| (n.as_str(), i.clone()))
            .collect();
        world.publish(entries, 3600);
    };
    put(&mut world, 1);
    let m = world.mount().await;
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|r| {
            let (stop, path) = (stop.clone(), m.path(""));
            std::thread::spawn(move || {
                let (mut reads, mut newest) = (0u64, 0);
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("f{}", (reads * 7 + r) % 50);
                    let content = fs::read(path.join(name)).unwrap();
                    let first = content[0];
                    assert_eq!(content.len(), 200_000);
                    assert!(content.iter().all(|b| *b == first), "bytes of two versions");
                    assert!(first >= newest || newest - first <= 1, "the version fell");
                    newest = newest.max(first);
                    reads += 1;
                }
                reads
            })
        })
        .collect();
    for version in 2..=12 {
        put(&mut world, version);
        m.wait_for(u64::from(version));
    }
    wait_until("the last version", || m.read("f7")[0] == 12);
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().unwrap() > 10);
    }
    for i in 0..50 {
        m.read(&format!("f{i}"));
    }
    wait_until("the files of old versions are forgotten", || {
        m.mounted().reporter().report().known_files <= 200
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_epoch_call_names_are_stale_for_a_second_at_most() {
    let mut world = World::new();
    let (old, new) = (world.file(b"old"), world.file(b"new"));
    world.publish(vec![("f", old)], 3600);
    let options = MountOptions {
        name_caching: NameCaching::Short,
        ..quick()
    };
    let m = TestMount::new(world.open().await, options).await;
    assert_eq!(m.read("f"), b"old");
    world.publish(vec![("f", new)], 3600);
    m.wait_for(2);
    let adopted = Instant::now();
    wait_until("the new content", || m.read("f") == b"new");
    assert!(adopted.elapsed() < Duration::from_secs(30));
}
