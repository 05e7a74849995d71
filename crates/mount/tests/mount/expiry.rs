//! A statement that expires under a mount: names fail, open files stay readable, a renewed statement makes
//! names work again.

use std::fs::{self, File};
use std::io::Error;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use mount::{MountOptions, NameCaching};

use crate::fixture::{TestMount, World, errno, noise, quick, wait_until};

/// How long after the end of a statement names may still be known: a second, and what a busy machine takes.
const LATEST: Duration = Duration::from_secs(30);

fn is_eio(error: Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

async fn expires_and_comes_back(caching: NameCaching) {
    let mut world = World::new();
    let content = noise(1, 400_000);
    let file = world.file(&content);
    let root = world.directory(vec![("f", file.clone()), ("g", file)]);
    world.publish_root(&root, 3);
    let options = MountOptions {
        name_caching: caching,
        ..quick()
    };
    let m = TestMount::new(world.open().await, options).await;
    let open = File::open(m.path("f")).unwrap();
    let mut first = [0; 10];
    open.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(errno(fs::metadata(m.path("nothing"))), libc::ENOENT);
    fs::metadata(m.path("g")).unwrap();

    world.clock.advance(Duration::from_secs(2));
    m.wait_for_refreshes(2);
    fs::metadata(m.path("g")).unwrap();
    world.clock.advance(Duration::from_secs(1));
    let expired = Instant::now();
    // Names may stay known for a second where the kernel cannot be told.
    let ends = |what: &str, path: &str| {
        wait_until(what, || fs::metadata(m.path(path)).is_err_and(is_eio));
    };
    ends("known names", "g");
    ends("known absence", "nothing");
    ends("the root itself", "");
    assert!(expired.elapsed() < LATEST, "{:?}", expired.elapsed());
    assert_eq!(errno(fs::read_dir(m.path(""))), libc::EIO);
    let mut whole = vec![0; content.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(whole, content);

    world.publish_root(&root, 3600);
    wait_until("the renewal", || fs::metadata(m.path("g")).is_ok());
    assert_eq!(errno(fs::metadata(m.path("nothing"))), libc::ENOENT);
    assert_eq!(m.read("g"), content);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_end_with_the_statement() {
    expires_and_comes_back(NameCaching::Automatic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_end_with_the_statement_without_the_epoch_call() {
    expires_and_comes_back(NameCaching::Short).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_is_renewed_in_time_causes_no_error() {
    let mut world = World::new();
    let file = world.file(b"x");
    let root = world.directory(vec![("f", file)]);
    world.publish_root(&root, 2);
    // The refresh interval is longer than the validity, so the expiry decides when to refresh.
    let options = MountOptions {
        refresh: Duration::from_secs(600),
        ..MountOptions::default()
    };
    let m = TestMount::new(world.open().await, options).await;
    fs::metadata(m.path("f")).unwrap();
    world.publish_root(&root, 3600);
    wait_until("a refresh", || m.mounted().version() == 2);
    // Now the first statement is over.
    world.clock.advance(Duration::from_secs(3));
    fs::metadata(m.path("f")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("nothing"))), libc::ENOENT);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_end_when_the_owners_revoke_the_volume() {
    let mut world = World::new();
    let content = noise(2, 100_000);
    let file = world.file(&content);
    let root = world.directory(vec![("f", file)]);
    let head = world.sign(&root, 3600);
    world.supply(head.clone());
    let m = world.mount().await;
    assert_eq!(m.read("f"), content);
    let open = File::open(m.path("f")).unwrap();
    let listing = fs::read_dir(m.path("")).unwrap();

    let revoked = world.model.succeed(&head, &head, true).unwrap();
    world.supply(revoked);
    wait_until("the end", || fs::metadata(m.path("f")).is_err());
    assert_eq!(errno(fs::metadata(m.path("f"))), libc::EIO);
    assert_eq!(errno(fs::read_dir(m.path(""))), libc::EIO);
    open.metadata().unwrap();
    let mut whole = vec![0; content.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert_eq!(whole, content);
    assert_eq!(listing.count(), 1);
    // A mirror that shows the old head again does not make names work again.
    world.supply(head);
    m.wait_for_refreshes(3);
    assert_eq!(errno(fs::metadata(m.path("f"))), libc::EIO);
}
