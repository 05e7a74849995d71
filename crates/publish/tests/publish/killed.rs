//! A publisher that is killed at any moment leaves the whole last version or the whole new one, and the next
//! publisher works as usual.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use publish::progress::Silent;
use publish::{PublishOptions, publish};
use sim::random::noise;
use sim::time::now;
use trust::key::SecretKey;

use crate::support::Read;

const PLACE: &str = "BULLA_TEST_KILLED_PLACE";
const FILES: usize = 150;

fn publish_once(place: &Path) {
    let options = PublishOptions {
        cache_dir: Some(place.join("cache")),
        ..PublishOptions::default()
    };
    let key = SecretKey::from_seed(&[7; 32]);
    publish(
        &place.join("tree"),
        &place.join("repo"),
        &key,
        &options,
        &Silent,
    )
    .unwrap();
}

/// Not a test by itself: the work of the process that is killed.
#[test]
fn child() {
    if let Some(place) = std::env::var_os(PLACE) {
        publish_once(Path::new(&place));
    }
}

/// Content of a file in a turn: long enough that a publication takes a while, no two alike.
fn content(turn: u64, file: usize) -> Vec<u8> {
    noise(turn * 1000 + file as u64 + 1, 20_000)
}

fn write_turn(tree: &Path, turn: u64) {
    for file in 0..FILES {
        let dir = tree.join(format!("d{}", file % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{file}")), content(turn, file)).unwrap();
    }
}

/// Which turn the newest version holds; it must hold all of it.
fn turn_of(repo: &Path, turns: u64) -> (u64, u64) {
    let read = Read::newest(repo, now());
    let first = read.content("d0/f0");
    let turn = (0..=turns).find(|turn| content(*turn, 0) == first);
    let turn = turn.expect("the content is of no turn");
    for file in 0..FILES {
        let path = format!("d{}/f{file}", file % 7);
        assert!(
            read.content(&path) == content(turn, file),
            "{path} in turn {turn}"
        );
    }
    (turn, read.offer.record.version)
}

#[test]
fn a_publisher_killed_at_any_moment_leaves_a_whole_version() {
    const TURNS: u64 = 24;
    let dir = tempfile::tempdir().unwrap();
    let (tree, repo) = (dir.path().join("tree"), dir.path().join("repo"));
    write_turn(&tree, 0);
    let begun = Instant::now();
    publish_once(dir.path());
    let whole = begun.elapsed().max(Duration::from_millis(20));
    let (mut stood, mut versions) = (0, 1);
    for turn in 1..=TURNS {
        write_turn(&tree, turn);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child"])
            .env(PLACE, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From the first moment to a little after the last.
        std::thread::sleep(whole * turn as u32 * 3 / (TURNS as u32 * 2));
        let _ = child.kill();
        child.wait().unwrap();
        let (now, version) = turn_of(&repo, turn);
        assert!(
            now == turn || now == stood,
            "turn {now} after {stood} and {turn}"
        );
        let published = u64::from(now == turn);
        assert_eq!(version, versions + published);
        (stood, versions) = (now, version);
    }
    assert!(
        versions < TURNS,
        "no publication was cut off: the test tests nothing"
    );
    publish_once(dir.path());
    assert_eq!(turn_of(&repo, TURNS), (TURNS, versions + 1));
}
