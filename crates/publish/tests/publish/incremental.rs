//! Publishing again: which files are taken from the stat cache, which are read anew, and that the root does
//! not depend on it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use publish::PublishOptions;
use trust::change::Difference::{Added, Changed, Removed};

use crate::place::{Place, key};

/// The file of the cache.
fn cache(place: &Place) -> PathBuf {
    let mut files = fs::read_dir(place.path("cache")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none(), "nothing temporary is left");
    file
}

/// Lets so much time pass that files count as unchanged since, also files that a busy machine wrote late.
fn pass_time(place: &Place) {
    place.clock.advance(Duration::from_secs(600));
}

/// A tree whose files are old enough to be remembered, published once.
fn settled() -> Place {
    let place = Place::new();
    for d in 0..5 {
        for f in 0..20 {
            place.write(
                &format!("d{d}/f{f}"),
                format!("content of {d} {f}").repeat(50).as_bytes(),
            );
        }
    }
    place.write("long", &vec![b'l'; 2_000_000]);
    std::os::unix::fs::symlink("long", place.tree().join("link")).unwrap();
    fs::hard_link(place.tree().join("d1/f1"), place.tree().join("d2/one")).unwrap();
    pass_time(&place);
    place.publish_with(&place.remembering());
    place
}

/// Which of the files the kernel saw opened while `publish` ran.
fn opened<'a>(place: &Place, paths: &[&'a str], options: &PublishOptions) -> Vec<&'a str> {
    use rustix::fs::inotify;
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let ids: Vec<i32> = paths
        .iter()
        .map(|p| {
            inotify::add_watch(&watch, place.tree().join(p), inotify::WatchFlags::OPEN).unwrap()
        })
        .collect();
    place.publish_with(options);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = std::collections::BTreeSet::new();
    while let Ok(event) = events.next() {
        seen.insert(ids.iter().position(|id| *id == event.wd()).unwrap());
    }
    seen.into_iter().map(|at| paths[at]).collect()
}

#[test]
fn unchanged_files_are_not_read_and_the_root_is_the_same() {
    let place = settled();
    let all = ["d0/f3", "d1/f1", "d4/f19", "long"];
    let before = place.read();
    assert_eq!(opened(&place, &all, &place.remembering()), [""; 0]);
    assert_eq!(place.read().offer.record.root, before.offer.record.root);

    place.write("d4/f19", b"other");
    File::options()
        .write(true)
        .open(place.tree().join("long"))
        .unwrap()
        .write_all_at(b"x", 77)
        .unwrap();
    let now = place.remembering();
    assert_eq!(opened(&place, &all, &now), ["d4/f19", "long"]);
    let incremental = place.read();
    assert_eq!(incremental.content("d4/f19"), b"other");
    assert_eq!(incremental.content("long")[77], b'x');

    let paranoid = PublishOptions {
        paranoid: true,
        ..place.remembering()
    };
    assert_eq!(opened(&place, &all, &paranoid), all);
    assert_eq!(
        place.read().offer.record.root,
        incremental.offer.record.root
    );
    let without = place.options();
    assert_eq!(opened(&place, &all, &without), all);
    assert_eq!(
        place.read().offer.record.root,
        incremental.offer.record.root
    );
    // One that leaves the cache of another tree behind: that must not be used.
    place.write("d0/f4", b"another");
    assert_eq!(opened(&place, &all, &without), all);
    assert_eq!(opened(&place, &all, &place.remembering()), all);
}

#[test]
fn file_changed_shortly_before_a_publication_is_read_again() {
    let place = Place::new();
    place.write("f", b"content");
    let opened = || opened(&place, &["f"], &place.remembering());
    assert_eq!(opened(), ["f"]);
    // A second change within the same step of the file system's clock would look like none.
    assert_eq!(opened(), ["f"]);
    pass_time(&place);
    assert_eq!(opened(), ["f"], "remembered now");
    assert_eq!(opened(), [""; 0]);
}

#[test]
fn a_renewed_version_is_the_same_tree() {
    let place = settled();
    let options = place.remembering();
    let renewed = publish::renewal::renew(&place.repo(), &key(), &options).unwrap();
    assert_eq!(renewed.version, 2);
    assert_eq!(opened(&place, &["d0/f3", "long"], &options), [""; 0]);
    assert_eq!(place.read().offer.record.version, 3);
}

#[test]
fn added_and_removed_names_are_published() {
    let place = settled();
    let tree = place.tree();
    let same_as_anew = || {
        place.publish_with(&place.remembering());
        let incremental = place.read();
        place.publish_with(&PublishOptions {
            paranoid: true,
            ..place.remembering()
        });
        assert_eq!(
            incremental.offer.record.root,
            place.read().offer.record.root
        );
        incremental
    };
    fs::remove_dir_all(tree.join("d0")).unwrap();
    fs::rename(tree.join("d3"), tree.join("e3")).unwrap();
    place.write("d2/sub/new", b"new");
    let read = same_as_anew();
    assert!(!read.inodes.contains_key(&b"d0/f1"[..]));
    assert!(read.content("e3/f7") == fs::read(tree.join("e3/f7")).unwrap());
    // The first of two names goes; the other is the only one now, and then one of two others.
    fs::remove_file(tree.join("d1/f1")).unwrap();
    let read = same_as_anew();
    assert_eq!(
        (read.at("d2/one").links, read.at("d2/one").link_group),
        (1, None)
    );
    fs::hard_link(tree.join("d2/one"), tree.join("a")).unwrap();
    let read = same_as_anew();
    assert_eq!(read.at("a"), read.at("d2/one"));
    assert_eq!(read.at("a").links, 2);
    fs::set_permissions(
        tree.join("long"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    assert_eq!(same_as_anew().at("long").mode, 0o600);
}

#[test]
fn a_damaged_or_lost_cache_costs_time_only() {
    let place = settled();
    let root = place.read().offer.record.root;
    let all = ["d0/f3", "long"];
    let good = fs::read(cache(&place)).unwrap();
    for damage in [
        |_: &Path| {},
        |path: &Path| fs::remove_file(path).unwrap(),
        |path: &Path| fs::write(path, b"").unwrap(),
        |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[300] ^= 1;
            fs::write(path, bytes).unwrap();
        },
    ] {
        damage(&cache(&place));
        opened(&place, &all, &place.remembering());
        assert_eq!(place.read().offer.record.root, root);
    }
    // A cache of an older tree does not count, however whole it is.
    place.write("d0/f4", b"another");
    place.publish_with(&place.remembering());
    fs::write(cache(&place), good).unwrap();
    assert_eq!(opened(&place, &all, &place.remembering()), all);
}

#[test]
fn names_outside_of_the_tree_do_not_make_it_read_twice() {
    let place = settled();
    fs::hard_link(place.tree().join("d1/f1"), place.path("outside")).unwrap();
    place.publish_with(&place.remembering());
    pass_time(&place);
    place.publish_with(&place.remembering());
    assert_eq!(
        opened(&place, &["d1/f1", "d0/f3", "long"], &place.remembering()),
        [""; 0]
    );
    assert_eq!(place.read().at("d1/f1").links, 2);
}

#[test]
fn a_dry_run_tells_the_difference() {
    let place = settled();
    let tree = place.tree();
    let difference = || {
        let dry = PublishOptions {
            dry_run: true,
            ..place.remembering()
        };
        let mut changes = place.publish_with(&dry).changes;
        changes.sort();
        let path = |p: PathBuf| p.to_str().unwrap().to_owned();
        let row = |c: trust::change::Change| (path(c.path), c.difference, c.is_directory);
        changes.into_iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(difference(), []);
    fs::remove_dir_all(tree.join("d0")).unwrap();
    fs::rename(tree.join("d4/f3"), tree.join("d4/sub")).unwrap();
    place.write("d3/new/file", b"new");
    place.write("d2/f9", b"other");
    fs::set_permissions(
        tree.join("d1"),
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    fs::remove_file(tree.join("long")).unwrap();
    fs::create_dir(tree.join("long")).unwrap();
    let row = |path: &str, difference, is_directory| (path.to_owned(), difference, is_directory);
    let expected = [
        row(".", Changed, true),
        row("d0", Removed, true),
        row("d1", Changed, true),
        row("d2/f9", Changed, false),
        row("d3", Changed, true),
        row("d3/new", Added, true),
        row("d3/new/file", Added, false),
        row("d4", Changed, true),
        row("d4/f3", Removed, false),
        row("d4/sub", Added, false),
        row("long", Changed, true),
    ];
    assert_eq!(difference(), expected);
    // With names elsewhere the tree is walked twice; each change is reported once.
    fs::hard_link(tree.join("link"), place.path("outside")).unwrap();
    assert_eq!(difference(), expected);
    place.publish_with(&place.remembering());
    assert_eq!(difference(), []);
}
