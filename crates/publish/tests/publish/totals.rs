//! The signed totals of a tree equal a count on disk, whichever way the publisher gathers them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use publish::PublishOptions;
use trust::root::Totals;

use crate::place::Place;

/// Files of every size, a link within the tree and one out of it, a symbolic link, a socket.
fn place() -> Place {
    let place = Place::new();
    let tree = place.tree();
    for (name, len) in [("zero", 0), ("a/tiny", 5), ("a/b/some", 70_000)] {
        place.write(name, &vec![7; len]);
    }
    fs::create_dir(tree.join("empty")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    fs::hard_link(tree.join("a/b/some"), tree.join("z")).unwrap();
    fs::hard_link(tree.join("a/tiny"), place.path("outside")).unwrap();
    symlink("a", tree.join("link")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap());
    // Files that were changed a moment ago are not remembered.
    place.clock.advance(Duration::from_secs(600));
    place
}

/// The reported totals, after comparing them with the signed ones.
fn totals(place: &Place, paranoid: bool) -> Totals {
    let published = place.publish_with(&PublishOptions {
        paranoid,
        ..place.remembering()
    });
    assert_eq!(place.read().offer.record.totals, published.totals);
    published.totals
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
    let place = place();
    let expected = walked(&place.tree());
    assert_eq!((expected.files, expected.directories), (5, 4));
    assert_eq!(expected.other, 2);
    assert_eq!(totals(&place, false), expected, "the first time");
    assert_eq!(totals(&place, false), expected, "from memory");
    assert_eq!(totals(&place, true), expected, "every file read again");
    // The first of two names goes: its content counts with the other.
    fs::remove_file(place.tree().join("a/b/some")).unwrap();
    fs::remove_file(place.tree().join("link")).unwrap();
    fs::write(place.tree().join("empty/new"), b"new").unwrap();
    let expected = walked(&place.tree());
    assert_eq!((expected.files, expected.other), (5, 1));
    assert_eq!(totals(&place, false), expected, "after changes");
    assert_eq!(totals(&place, true), expected, "after changes, read again");
}
