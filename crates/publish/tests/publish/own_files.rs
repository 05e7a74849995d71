//! Key files, and what a machine keeps of its volumes, are not published unless that is asked for.

use std::fs;
use std::io::{Cursor, Read};
use std::path::Path;
use std::process::Command;

use publish::PublishOptions;
use publish::exclude::Exclude;
use publish::pipeline::Input;
use publish::publish_error::PublishError;

use crate::place::{Place, key};
use crate::tar::{file, pax, record};

fn refused(made: Result<publish::progress::Published, PublishError>, at: &str) -> bool {
    matches!(made, Err(PublishError::OwnFile { path, .. }) if path == Path::new(at))
}

fn publishing(place: &Place) -> PublishOptions {
    PublishOptions {
        publish_keys: true,
        ..place.options()
    }
}

#[test]
fn key_file_in_the_tree_is_refused_by_its_content() {
    let place = Place::new();
    place.write("a", b"content");
    let file = place.tree().join("d/innocent.txt");
    fs::create_dir(place.tree().join("d")).unwrap();
    keys::keyfile::write(&file, &key(), None).unwrap();
    fs::hard_link(&file, place.tree().join("z")).unwrap();
    assert!(refused(
        place.try_publish(&place.options()),
        "d/innocent.txt"
    ));
    let skipping = PublishOptions {
        skip_unreadable: true,
        ..place.options()
    };
    let skipped = place.try_publish(&skipping);
    assert!(refused(skipped, "d/innocent.txt"), "--skip-unreadable");
    let unsigned = publish::pipeline::publish_unsigned(
        &place.tree(),
        &place.repo(),
        &PublishOptions {
            new_volume: Some(publish::NewVolume::single(
                key_public(),
                place.options().valid,
            )),
            ..place.options()
        },
        &publish::progress::Silent,
    );
    assert!(unsigned.is_err(), "--unsigned");
    assert!(!place.repo().exists(), "something was published");
    // Left out, by both of its names.
    let without = PublishOptions {
        exclude: Exclude::new(&["innocent.txt", "z"]).unwrap(),
        ..place.options()
    };
    assert_eq!(place.publish_with(&without).totals.files, 1);
    assert_eq!(place.publish_with(&publishing(&place)).totals.files, 3);
}

fn key_public() -> trust::key::PublicKey {
    trust::signer::Signer::public(&key())
}

#[test]
fn long_file_that_begins_as_state_is_refused() {
    let place = Place::new();
    let mut journal = b"bulla-journal-1\n".to_vec();
    journal.resize(3 << 20, 7);
    place.write("journal", &journal);
    assert!(refused(place.try_publish(&place.options()), "journal"));
}

#[test]
fn remembered_key_is_refused_without_the_flag() {
    let place = Place::new();
    fs::create_dir_all(place.tree()).unwrap();
    keys::keyfile::write(&place.tree().join("k"), &key(), None).unwrap();
    // Old enough to be remembered.
    place.clock.advance(std::time::Duration::from_secs(60));
    let meaning_it = PublishOptions {
        publish_keys: true,
        ..place.remembering()
    };
    place.publish_with(&meaning_it);
    place.publish_with(&meaning_it);
    assert!(refused(place.try_publish(&place.remembering()), "k"));
}

#[test]
fn directory_of_the_own_state_is_refused() {
    let place = Place::new();
    place.write("f", b"content");
    place.write("home/state/bulla/volumes/x/floor", b"\0\0");
    let inside = PublishOptions {
        state_dir: Some(place.tree().join("home/state/bulla")),
        ..place.options()
    };
    assert!(refused(place.try_publish(&inside), "home/state/bulla"));
    let without = PublishOptions {
        exclude: Exclude::new(&["/home/state/"]).unwrap(),
        ..inside
    };
    assert_eq!(place.publish_with(&without).totals.files, 1);
}

fn copy_tree(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}

#[test]
fn copy_of_the_own_state_is_refused() {
    let place = Place::new();
    place.write("f", b"content");
    let state = place.path("state");
    let options = PublishOptions {
        state_dir: Some(state.clone()),
        ..place.options()
    };
    place.publish_with(&options);
    let copy = place.tree().join("copy");
    copy_tree(&state, &copy);
    let refused = || match place.try_publish(&options) {
        Err(PublishError::OwnFile { path, .. }) => path.ends_with("signing.lock"),
        _ => false,
    };
    assert!(refused());
    // Of an earlier version: the lock of a state that was used since has the line.
    for volume in fs::read_dir(state.join("volumes")).unwrap() {
        fs::write(volume.unwrap().path().join("signing.lock"), b"").unwrap();
    }
    fs::remove_dir_all(&copy).unwrap();
    place.publish_with(&options);
    copy_tree(&state, &copy);
    assert!(refused());
}

#[test]
fn key_file_in_an_archive_is_refused_by_its_content() {
    let place = Place::new();
    fs::create_dir_all(place.tree().join("d")).unwrap();
    keys::keyfile::write(&place.tree().join("d/k"), &key(), None).unwrap();
    let mut journal = b"bulla-journal-1\n".to_vec();
    journal.resize(3 << 20, 7);
    // Its first line lies in two stretches of a sparse file.
    let records = [
        record("GNU.sparse.major=1"),
        record("GNU.sparse.name=d/sparse"),
        record(&format!("GNU.sparse.realsize={}", journal.len() + 7)),
    ];
    let mut stretches = format!("2\n0\n4\n4\n{}\n", journal.len() - 4).into_bytes();
    stretches.resize(512, 0);
    stretches.extend_from_slice(&journal);
    let sparse = [pax(&records.concat()), file("x", &stretches)].concat();
    let key_file = fs::read(place.tree().join("d/k")).unwrap();
    for (mut bytes, at) in [
        (file("d/k", &key_file), "d/k"),
        (file("d/journal", &journal), "d/journal"),
        (sparse, "d/sparse"),
    ] {
        bytes.resize(bytes.len() + 1024, 0);
        let open = || -> Box<dyn Read> { Box::new(Cursor::new(bytes.clone())) };
        let input = Input::Tar(&open);
        assert!(refused(place.publish_input(input, &place.options()), at));
        assert!(!place.repo().exists(), "{at}: something was published");
        let made = place.publish_input(input, &publishing(&place)).unwrap();
        assert_eq!(made.totals.files, 1, "{at}");
        fs::remove_dir_all(place.repo()).unwrap();
    }
}
