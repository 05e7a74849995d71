//! A mount notes what programs read, and another one fetches that first.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use mount::{FetchFirst, MountOptions};
use sim::liar::{Liar, Lie};
use trust::inode::Inode;
use volume::profile::Profile;
use volume::{Fetch, Volume};

use crate::fixture::{TestMount, World, noise, quick};

/// Length of a file, bytes: with a block, a mirror sends some of those that follow, and they would be a whole small file.
const LEN: usize = 2 << 20;

/// A volume with files; `attached` is its profile.
fn world(attached: Option<&str>) -> World {
    let mut world = World::new();
    let large = world.file(&noise(1, 8 << 20));
    let files = |world: &mut World, seed| -> Vec<(&str, Inode)> {
        let (a, b) = (noise(seed, LEN), noise(seed + 1, LEN));
        vec![("a", world.file(&a)), ("b", world.file(&b))]
    };
    let (one, two) = (files(&mut world, 2), files(&mut world, 4));
    let (one, two) = (world.directory(one), world.directory(two));
    let mut top = vec![("large", large), ("one", one), ("two", two)];
    if let Some(profile) = attached {
        let file = world.file(profile.as_bytes());
        top.insert(0, (".bulla", world.directory(vec![("profile", file)])));
    }
    world.publish(top, 3600);
    world
}

async fn is_held(volume: &Volume, path: &str) -> bool {
    let (snapshot, how) = (volume.snapshot(), Fetch::Cached);
    match snapshot.follow(path.as_bytes(), how).await {
        Ok(Some(inode)) => snapshot.read(&inode, 0, LEN, how).await.is_ok(),
        _ => false,
    }
}

/// Waits until a file is in memory, although nobody reads it.
async fn comes(volume: &Volume, path: &str) {
    for _ in 0..500 {
        if is_held(volume, path).await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} does not come");
}

async fn mounted(world: &World, fetch_first: FetchFirst) -> (Arc<Volume>, TestMount) {
    // Nothing can be read without waiting for it.
    let slow = Liar::new(world.copy().await, Lie::Slow(Duration::from_millis(5)));
    let volume = world.open_over(vec![Arc::new(slow)]).await;
    let options = MountOptions {
        fetch_first,
        ..quick()
    };
    let mount = TestMount::new(Arc::clone(&volume), options).await;
    (volume, mount)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_programs_read_is_noted() {
    let world = world(None);
    let options = MountOptions {
        record: true,
        ..quick()
    };
    let mount = TestMount::new(world.open().await, options).await;
    assert_eq!(mount.read("one/a"), noise(2, LEN));
    let large = File::open(mount.path("large")).unwrap();
    large.read_exact_at(&mut [0; 10], 4 << 20).unwrap();
    assert_eq!(fs::read_dir(mount.path("two")).unwrap().count(), 2);
    assert!(fs::metadata(mount.path("missing")).is_err());
    let recorder = mount.mounted().recorder().unwrap();
    let text = String::from_utf8(recorder.profile().to_text()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (range, others): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.starts_with("large\t"));
    assert_eq!(others, ["one\t-", "one/a", "two"], "{text}");
    // The kernel reads ahead.
    let (first, last) = range[0]["large\t".len()..].split_once('-').unwrap();
    assert!(first.parse::<u64>().unwrap() <= 4 << 20, "{text}");
    assert!(
        (4 << 20..7 << 20).contains(&last.parse::<u64>().unwrap()),
        "{text}"
    );
    assert!(
        mounted(&world, FetchFirst::Nothing)
            .await
            .1
            .mounted()
            .recorder()
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_profile_names_comes_without_a_reader() {
    let world = world(None);
    let profile = Profile::parse(b"one/a\nnot/here\n").unwrap();
    let (volume, _mount) = mounted(&world, FetchFirst::Given(profile)).await;
    comes(&volume, "one/a").await;
    assert!(!is_held(&volume, "one/b").await && !is_held(&volume, "two/a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn profile_in_the_volume_is_used_unless_the_user_does_not_want_it() {
    let world = world(Some("two/b\n"));
    let (volume, _mount) = mounted(&world, FetchFirst::Attached).await;
    comes(&volume, "two/b").await;
    assert!(!is_held(&volume, "one/a").await);
    let (volume, mount) = mounted(&world, FetchFirst::Nothing).await;
    assert_eq!(mount.read("one/a"), noise(2, LEN));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!is_held(&volume, "two/b").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn profile_in_the_volume_that_is_none_harms_nobody() {
    let world = world(Some("../../etc/passwd\n"));
    let (_volume, mount) = mounted(&world, FetchFirst::Attached).await;
    assert_eq!(mount.read("one/a"), noise(2, LEN));
}
