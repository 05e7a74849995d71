//! Replicas that lie, deny or stall under a mount: EIO at the deadline at the latest, never a wrong byte,
//! never ENOENT without proof, and the mount can always be unmounted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sim::liar::{Liar, Lie};
use store::memory::MemoryStore;
use trust::inode::Content;

use crate::fixture::{TestMount, World, errno, is_mounted, noise, quick, wait_until};

fn world() -> World {
    let mut world = World::new();
    let file = world.file(&noise(1, 200_000));
    let other = world.file(&noise(2, 200_000));
    // Large enough to be in several nodes, so that some names are not in memory after opening.
    let many: Vec<(String, _)> = (0..4000)
        .map(|i| (format!("n{i:05}"), file.clone()))
        .collect();
    let many = many.iter().map(|(n, i)| (n.as_str(), i.clone())).collect();
    let many = world.directory(many);
    world.publish(vec![("f", file), ("other", other), ("many", many)], 3600);
    world
}

/// A replica of `world` that is not local, and lies when told to.
fn liar(world: &World) -> Arc<Liar<MemoryStore>> {
    let honest = MemoryStore::new("far");
    for record in &world.model.records {
        honest.insert(record.clone());
    }
    Arc::new(Liar::new(honest, Lie::None))
}

async fn mounted_over_a_liar(world: &World) -> (TestMount, Arc<Liar<MemoryStore>>) {
    let liar = liar(world);
    let head = store::Replica::head(world.store.as_ref()).await.unwrap();
    liar.tell(Lie::Head(head));
    let volume = world.open_over(vec![liar.clone()]).await;
    (TestMount::new(volume, quick()).await, liar)
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_blocks_are_eio_and_an_honest_replica_masks_them() {
    for lie in [
        Lie::WrongPlaintext,
        Lie::AnotherBlock,
        Lie::FlipBit(77),
        Lie::DenyBlocks,
    ] {
        let world = world();
        let (m, liar) = mounted_over_a_liar(&world).await;
        liar.tell(lie.clone());
        assert_eq!(errno(fs::read(m.path("f"))), libc::EIO, "{lie:?}");
        assert_eq!(
            errno(fs::metadata(m.path("many/n00001"))),
            libc::EIO,
            "{lie:?}"
        );
        assert_eq!(
            errno(fs::metadata(m.path("many/nothing"))),
            libc::EIO,
            "{lie:?}"
        );
        liar.tell(Lie::None);
        assert_eq!(m.read("f"), noise(1, 200_000), "an error is not remembered");

        let masked = world
            .open_over(vec![self::liar(&world), world.store.clone()])
            .await;
        let m = TestMount::new(masked, quick()).await;
        assert_eq!(m.read("other"), noise(2, 200_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_replica_is_eio_at_the_deadline() {
    let world = world();
    let (m, liar) = mounted_over_a_liar(&world).await;
    let file = File::open(m.path("f")).unwrap();
    liar.tell(Lie::Stall);
    let begin = Instant::now();
    assert_eq!(errno(file.read_at(&mut [0; 10], 0)), libc::EIO);
    assert_eq!(errno(fs::metadata(m.path("many/n00001"))), libc::EIO);
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
    // Blocks in memory are served meanwhile.
    assert!(fs::metadata(m.path("other")).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn unmounting_does_not_wait_for_readers() {
    let world = world();
    let (mut m, liar) = mounted_over_a_liar(&world).await;
    liar.tell(Lie::Stall);
    let path = m.path("f");
    let asked = liar.asked();
    let reader = std::thread::spawn(move || fs::read(path));
    wait_until("the read waits for a block", || liar.asked() > asked);
    let begin = Instant::now();
    mount::unmount(&m.path("")).unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    assert!(!is_mounted(&m.path("")));
    assert!(reader.join().unwrap().is_err());
    drop(m.mounted.take());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_caller_does_not_wait_for_the_deadline() {
    let world = world();
    let (m, liar) = mounted_over_a_liar(&world).await;
    liar.tell(Lie::Stall);
    let asked = liar.asked();
    let mut cat = Command::new("cat")
        .arg(m.path("f"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the read waits for a block", || liar.asked() > asked);
    let begin = Instant::now();
    cat.kill().unwrap();
    cat.wait().unwrap();
    assert!(
        begin.elapsed() < Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_version_that_is_withheld_does_not_replace_the_old() {
    let mut world = world();
    let old = world.model.records.len();
    let (m, liar) = mounted_over_a_liar(&world).await;
    assert!(fs::metadata(m.path("many/n00001")).is_ok());
    // The liar announces a version whose directory it never had.
    let file = world.file(b"newer");
    let many = world.directory(vec![("other-name", file)]);
    let root = world.directory(vec![("many", many)]);
    let now = world.now();
    let head = world.model.publish(&root, now, 3600).unwrap();
    assert!(world.model.records.len() > old);
    liar.tell(Lie::Head(head));
    m.wait_for_refreshes(2);
    assert_eq!(m.mounted().version(), 1);
    assert!(fs::metadata(m.path("many/n00001")).is_ok());
}

/// A version with a directory in use that no replica gives is not adopted, however many other directories the kernel
/// knows, and however deep that one is.
#[tokio::test(flavor = "multi_thread")]
async fn version_that_lacks_a_deep_directory_in_use_is_not_adopted() {
    const DEEP: &str = "a/b/c/deep";
    const SHALLOW: usize = 100;
    for stays_open in [false, true] {
        let mut world = World::new();
        let tree = |world: &mut World, content: &[u8]| {
            let file = world.file(content);
            let deep = world.directory(vec![("f", file.clone()), ("only here", file.clone())]);
            let below = ["deep", "c", "b"].iter().fold(deep.clone(), |below, name| {
                world.directory(vec![(*name, below)])
            });
            let shallow = world.directory(vec![("f", file)]);
            let names: Vec<String> = (0..SHALLOW).map(|i| format!("s{i:03}")).collect();
            let mut entries: Vec<_> = names
                .iter()
                .map(|n| (n.as_str(), shallow.clone()))
                .collect();
            entries.push(("a", below));
            (world.directory(entries), deep)
        };
        let (root, _) = tree(&mut world, b"old");
        world.publish_root(&root, 3600);
        let m = world.mount().await;
        let look_around =
            || (0..SHALLOW).for_each(|i| assert_eq!(m.read(&format!("s{i:03}/f")), b"old"));
        let open = match stays_open {
            true => {
                let open = fs::read_dir(m.path(DEEP)).unwrap();
                look_around();
                Some(open)
            }
            false => {
                look_around();
                assert_eq!(m.read(&format!("{DEEP}/f")), b"old");
                None
            }
        };

        let sent = world.model.records.len();
        let (root, deep) = tree(&mut world, b"new");
        let head = world.model.publish(&root, world.now(), 3600).unwrap();
        let Content::Directory { map: Some(map), .. } = &deep.content else {
            panic!("the directory has no block of its own");
        };
        let withheld = map.handle.any();
        let new = &world.model.records[sent..];
        let (withheld, given): (Vec<_>, Vec<_>) = new.iter().partition(|r| r.handle == withheld);
        assert_eq!(withheld.len(), 1);
        for record in given {
            world.store.insert(record.clone());
        }
        world.store.set_head(head);
        m.wait_for_refreshes(2);
        assert_eq!(m.mounted().version(), 1, "open: {stays_open}");
        world.store.insert(withheld[0].clone());
        m.wait_for(2);
        drop(open);
    }
}
