//! docs/semantics.md, *When things change*: the effect of each event on names, open files and open
//! directories. `updates` has newer versions, `expiry` the end of a statement.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags};
use sim::liar::{Liar, Lie};
use store::memory::MemoryStore;

use crate::fixture::{TestMount, World, errno, noise, quick, wait_until};

/// Names that fill several nodes of a directory's tree.
const MANY: usize = 4000;

fn many(world: &mut World) -> trust::inode::Inode {
    let file = world.file(b"x");
    let names: Vec<String> = (0..MANY).map(|i| format!("n{i:05}")).collect();
    let entries = names.iter().map(|n| (n.as_str(), file.clone())).collect();
    world.directory(entries)
}

fn opendir(m: &TestMount, name: &str) -> Dir {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    Dir::new(rustix::fs::open(m.path(name), flags, Mode::empty()).unwrap()).unwrap()
}

fn read_some(dir: &mut Dir, count: usize) -> usize {
    (0..count).map_while(|_| dir.read()).flatten().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_statement_changes_nothing() {
    let mut world = World::new();
    let content = noise(50, 300_000);
    let (file, many) = (world.file(&content), many(&mut world));
    let root = world.directory(vec![("f", file), ("many", many)]);
    world.publish_root(&root, 3600);
    let m = world.mount().await;
    let open = File::open(m.path("f")).unwrap();
    let mut dir = opendir(&m, "many");
    assert_eq!(read_some(&mut dir, 10), 10);
    let numbers = || ["f", "many"].map(|name| fs::metadata(m.path(name)).unwrap().ino());
    let before = numbers();
    assert_eq!(errno(fs::metadata(m.path("absent"))), libc::ENOENT);

    world.publish_root(&root, 7200);
    m.wait_for(2);
    assert_eq!(numbers(), before, "names");
    assert_eq!(errno(fs::metadata(m.path("absent"))), libc::ENOENT);
    let mut whole = vec![0; content.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == content, "open files");
    assert_eq!(
        read_some(&mut dir, 2 * MANY),
        MANY + 2 - 10,
        "open directories"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn open_files_and_directories_outlive_their_statement() {
    let mut world = World::new();
    let content = noise(51, 300_000);
    let (file, many) = (world.file(&content), many(&mut world));
    let root = world.directory(vec![("f", file), ("many", many)]);
    world.publish_root(&root, 2);
    let m = world.mount().await;
    let open = File::open(m.path("f")).unwrap();
    let before = open.metadata().unwrap();
    let mut dir = opendir(&m, "many");
    world.clock.advance(Duration::from_secs(2));
    wait_until("the end", || fs::metadata(m.path("f")).is_err());

    assert_eq!(errno(fs::metadata(m.path("f"))), libc::EIO, "names");
    assert_eq!(errno(File::open(m.path("many/n00001"))), libc::EIO);
    let mut whole = vec![0; content.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == content, "open files read on");
    let fstat = open.metadata().unwrap();
    assert_eq!((fstat.ino(), fstat.len()), (before.ino(), before.len()));
    assert_eq!(
        read_some(&mut dir, 2 * MANY),
        MANY + 2,
        "open directories list on"
    );
    dir.rewind();
    assert_eq!(read_some(&mut dir, 2 * MANY), MANY + 2, "and again");
}

/// A mount over one replica that can be told to stall, with its head fixed.
async fn over_a_liar(world: &World) -> (TestMount, Arc<Liar<MemoryStore>>) {
    let liar = Arc::new(Liar::new(world.copy().await, Lie::None));
    let volume = world.open_over(vec![liar.clone()]).await;
    (TestMount::new(volume, quick()).await, liar)
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_files_are_served_while_every_replica_stalls() {
    let mut world = World::new();
    let (file, other) = (
        world.file(&noise(52, 200_000)),
        world.file(&noise(53, 200_000)),
    );
    let unknown_dir = {
        let file = world.file(b"another");
        let names: Vec<String> = (0..MANY).map(|i| format!("u{i:05}")).collect();
        let entries = names.iter().map(|n| (n.as_str(), file.clone())).collect();
        world.directory(entries)
    };
    // Enough data between them that no read-around brings both.
    world.file(&noise(55, 8 << 20));
    let known_dir = many(&mut world);
    let entries = vec![
        ("f", file),
        ("known", known_dir),
        ("other", other),
        ("unknown", unknown_dir),
    ];
    world.publish(entries, 3600);
    let (m, liar) = over_a_liar(&world).await;
    assert_eq!(m.read("f"), noise(52, 200_000));
    let mut dir = opendir(&m, "known");
    assert_eq!(read_some(&mut dir, 2 * MANY), MANY + 2);
    let other = File::open(m.path("other")).unwrap();

    liar.tell(Lie::Stall);
    let begin = Instant::now();
    for _ in 0..3 {
        assert!(fs::metadata(m.path("f")).is_ok(), "known names");
        assert!(fs::metadata(m.path("known/n03999")).is_ok());
        assert_eq!(errno(fs::metadata(m.path("known/absent"))), libc::ENOENT);
        assert_eq!(m.read("f"), noise(52, 200_000), "known pages");
        dir.rewind();
        assert_eq!(read_some(&mut dir, 2 * MANY), MANY + 2, "cached parts");
    }
    let served = begin.elapsed();
    assert!(served < Duration::from_secs(4), "{served:?}");
    for refused in [
        errno(fs::metadata(m.path("unknown/u03999"))),
        errno(other.read_at(&mut [0; 10], 0)),
        errno(fs::read_dir(m.path("unknown")).and_then(|mut dir| dir.next().unwrap())),
    ] {
        assert_eq!(refused, libc::EIO);
    }
    // Each waited until its deadline (5 s here) and no longer.
    let waited = begin.elapsed() - served;
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    liar.tell(Lie::None);
    assert_eq!(m.read("other"), noise(53, 200_000), "nothing is remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withheld_version_does_not_affect_open_files() {
    let mut world = World::new();
    let content = noise(54, 300_000);
    let (file, many) = (world.file(&content), many(&mut world));
    world.publish(vec![("f", file), ("many", many)], 3600);
    let (m, liar) = over_a_liar(&world).await;
    let open = File::open(m.path("f")).unwrap();
    let mut dir = opendir(&m, "many");
    assert_eq!(read_some(&mut dir, 10), 10);
    // It is announced, and the replica never gets it.
    let file = world.file(b"newer");
    let root = world.directory(vec![("f", file)]);
    let now = world.now();
    let head = world.model.publish(&root, now, 3600).unwrap();
    liar.tell(Lie::Head(head));
    m.wait_for_refreshes(2);
    assert_eq!(m.mounted().version(), 1);
    let mut whole = vec![0; content.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == content, "open files");
    assert_eq!(
        read_some(&mut dir, 2 * MANY),
        MANY + 2 - 10,
        "open directories"
    );
    assert_eq!(m.read("f"), content, "names");
}
