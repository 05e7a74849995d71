//! The signed totals of a tree equal a count on disk, whichever way the publisher gathers them.

// Helper functions of tests may panic, too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use publish::progress::{Published, Silent};
use publish::{PublishOptions, publish};
use support::Read;
use trust::key::SecretKey;
use trust::root::Totals;

struct Place(tempfile::TempDir);

impl Place {
    /// Files of every size, a link within the tree and one out of it, a symbolic link, a socket.
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        let tree = place.tree();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(tree.join("empty")).unwrap();
        for (name, len) in [("zero", 0), ("a/tiny", 5), ("a/b/some", 70_000)] {
            fs::write(tree.join(name), vec![7; len]).unwrap();
        }
        let sparse = fs::File::create(tree.join("sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        fs::hard_link(tree.join("a/b/some"), tree.join("z")).unwrap();
        fs::hard_link(tree.join("a/tiny"), place.0.path().join("outside")).unwrap();
        symlink("a", tree.join("link")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap());
        // Files that were changed a moment ago are not remembered.
        std::thread::sleep(Duration::from_millis(2100));
        place
    }

    fn tree(&self) -> PathBuf {
        self.0.path().join("tree")
    }

    fn publish(&self, paranoid: bool) -> Published {
        let options = PublishOptions {
            cache_dir: Some(self.0.path().join("cache")),
            paranoid,
            ..PublishOptions::default()
        };
        let key = SecretKey::from_seed(&[7; 32]);
        let repository = self.0.path().join("repo");
        publish(&self.tree(), &repository, &key, &options, &Silent).unwrap()
    }

    /// The reported totals, after comparing them with the signed ones.
    fn totals(&self, paranoid: bool) -> Totals {
        let published = self.publish(paranoid);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let read = Read::newest(&self.0.path().join("repo"), now.as_secs());
        assert_eq!(read.offer.record.totals, published.totals);
        published.totals
    }
}

fn walked(top: &Path) -> Totals {
    fn walk(path: &Path, totals: &mut Totals, known: &mut HashSet<u64>) {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            totals.directories += 1;
            for entry in fs::read_dir(path).unwrap() {
                walk(&entry.unwrap().path(), totals, known);
            }
        } else if metadata.is_file() {
            totals.files += 1;
            if known.insert(metadata.ino()) {
                totals.bytes += metadata.len();
            }
        } else {
            totals.other += 1;
        }
    }
    let mut totals = Totals::default();
    walk(top, &mut totals, &mut HashSet::new());
    totals
}

#[test]
fn all_ways_of_publishing_sign_what_a_walk_counts() {
    let place = Place::new();
    let expected = walked(&place.tree());
    assert_eq!((expected.files, expected.directories), (5, 4));
    assert_eq!(expected.other, 2);
    assert_eq!(place.totals(false), expected, "the first time");
    assert_eq!(place.totals(false), expected, "from memory");
    assert_eq!(place.totals(true), expected, "every file read again");
    // The first of two names goes: its content counts with the other.
    fs::remove_file(place.tree().join("a/b/some")).unwrap();
    fs::remove_file(place.tree().join("link")).unwrap();
    fs::write(place.tree().join("empty/new"), b"new").unwrap();
    let expected = walked(&place.tree());
    assert_eq!((expected.files, expected.other), (5, 1));
    assert_eq!(place.totals(false), expected, "after changes");
    assert_eq!(place.totals(true), expected, "after changes, read again");
}
