//! A server that removes what nobody needs: old versions go; every position of the window and each snapshot reads whole,
//! also on a device that has nothing in its cache; and what a device says of a server that has removed too much.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shared_lab::{Orderer, founded, joined};
use crate::support::{Home, noise};

/// A day lasts four of these: a quarter of a day for the server.
const QUARTER: &str = "6s";
const COLLECTING: [&str; 6] = ["--collect", "now", "--keep", "1d", "--quarter", QUARTER];
/// The retention of one day.
const RETENTION: Duration = Duration::from_secs(24);
/// The version with a snapshot.
const PINNED: u64 = 2;
/// Devices fold after 4,096 to 8,191 changes, and what nobody has folded is needed.
const FILES: u64 = 700;
/// Versions until there are two folds at least.
const VERSIONS: u64 = 22;

/// Writes a version of all files on this machine, and puts them.
fn rewrite(home: &Home, version: u64) {
    let dir = home.path("files");
    std::fs::create_dir_all(&dir).unwrap();
    for number in 0..FILES {
        let content = noise(version * 10_000 + number, 4000);
        std::fs::write(dir.join(number.to_string()), content).unwrap();
    }
    home.run(&["put", "-r", "files", "notes"]).ends(0);
}

/// All files as they were somewhere, into a directory.
fn is_version(home: &Home, at: &[&str], version: u64, out: &str) {
    let args = [&["extract", "notes", out], at].concat();
    home.run(&args).ends(0);
    for number in 0..FILES {
        let read = std::fs::read(home.path(&format!("{out}/files/{number}"))).unwrap();
        let expected = noise(version * 10_000 + number, 4000);
        assert!(read == expected, "file {number} of version {version}");
    }
    std::fs::remove_dir_all(home.path(out)).unwrap();
}

fn newest(home: &Home) -> String {
    let log = home.run(&["--json", "log", "notes", "--max", "1"]).ends(0);
    log.records("entry")[0]["entry"].to_string()
}

fn segment_bytes(orderer: &Orderer) -> u64 {
    let dir = orderer.home.path("repo/blocks/segments");
    let all = std::fs::read_dir(dir).unwrap().map_while(Result::ok);
    all.filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// Files of a version whose content lies in the segments, which have it as it is: it cannot be compressed.
fn stored(orderer: &Orderer, version: u64) -> usize {
    let begin = |number| {
        let content = noise(version * 10_000 + number, 4000);
        content.first_chunk().copied().map(u64::from_le_bytes)
    };
    let begins: HashSet<u64> = (0..FILES).filter_map(begin).collect();
    let dir = orderer.home.path("repo/blocks/segments");
    let mut found = HashSet::new();
    for file in std::fs::read_dir(dir).unwrap().map_while(Result::ok) {
        // One that is removed meanwhile has nothing.
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let words = bytes.windows(8).filter_map(<[u8]>::first_chunk);
        let words = words.copied().map(u64::from_le_bytes);
        found.extend(words.filter(|word| begins.contains(word)));
    }
    found.len()
}

/// Waits until the segments have less than so many bytes. The server is killed some times before.
fn until_smaller(orderer: &mut Orderer, bytes: u64) {
    for pause_ms in [1300, 4100, 6200, 9700] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        orderer.kill();
        orderer.start_with(&COLLECTING);
    }
    let until = Instant::now() + Duration::from_secs(300);
    while segment_bytes(orderer) >= bytes {
        let left = segment_bytes(orderer);
        assert!(Instant::now() < until, "{left} of {bytes} bytes");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A state that was replaced a moment ago reads whole although the server collects. On a machine on which all this takes
/// longer than the retention it is tried again.
fn state_of_the_window_reads_whole(orderer: &mut Orderer, ada: &Home, bob: &Home) {
    for round in 0..20_u64 {
        let put = |version| {
            let content = noise(round * 10 + version, 100_000);
            std::fs::write(ada.path("one"), &content).unwrap();
            ada.run(&["put", "one", "notes"]).ends(0);
            content
        };
        let before = put(1);
        let at = newest(ada);
        // Time in which the server does not run does not count, so what is kept is kept at least for so long.
        let replaced = Instant::now();
        put(2);
        orderer.kill();
        orderer.start_with(&COLLECTING);
        std::thread::sleep(Duration::from_secs(2));
        let out = format!("at{round}");
        let read = bob.run(&["extract", "notes", &out, "--at", &at]);
        if replaced.elapsed() < RETENTION {
            read.ends(0);
            let read = std::fs::read(bob.path(&format!("{out}/one"))).unwrap();
            assert!(read == before, "round {round}");
            return;
        }
    }
    panic!("this machine is too slow");
}

/// Five minutes, because devices fold after thousands of changes only: with BULLA_LONG.
#[test]
fn old_versions_go_and_the_window_and_snapshots_read_whole_also_after_kills() {
    if std::env::var_os("BULLA_LONG").is_none() {
        return;
    }
    let (mut orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    orderer.stop();
    orderer.start_with(&COLLECTING);
    for version in 0..VERSIONS {
        rewrite(&ada, version);
        if version == PINNED {
            ada.run(&["share", "snapshot", "notes", "kept"]).ends(0);
        }
        if version % 4 == 0 {
            orderer.kill();
            orderer.start_with(&COLLECTING);
        }
    }
    // At most 8,191 changes are not folded: eleven versions and a part of one.
    until_smaller(&mut orderer, 15 * FILES * 4000);
    // Without its name, the state of the snapshot would be gone as the next one is.
    let until = Instant::now() + Duration::from_secs(120);
    while stored(&orderer, PINNED + 1) > 0 {
        assert!(
            Instant::now() < until,
            "the version after it is still there"
        );
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_eq!(stored(&orderer, PINNED), FILES as usize);
    let bob = joined(&ada, "bob");
    state_of_the_window_reads_whole(&mut orderer, &ada, &bob);
    rewrite(&ada, VERSIONS);
    is_version(&bob, &[], VERSIONS, "now");
    assert_eq!(stored(&orderer, PINNED), FILES as usize);
    bob.run(&["verify", "notes"]).ends(0);
}

/// Takes all blocks away, as a collection with a mistake could.
fn lose_blocks(dir: &Path) {
    let blocks = dir.join("blocks");
    std::fs::remove_file(blocks.join("head")).unwrap();
    for dir in ["segments", "index"] {
        for entry in std::fs::read_dir(blocks.join(dir)).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

#[test]
fn server_that_has_lost_a_needed_block_costs_that_file_and_is_named() {
    let (mut orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    std::fs::write(ada.path("small"), b"still here\n").unwrap();
    ada.run(&["put", "small", "notes"]).ends(0);
    std::fs::write(ada.path("big"), noise(1, 3_000_000)).unwrap();
    ada.run(&["put", "big", "notes"]).ends(0);
    orderer.stop();
    lose_blocks(&orderer.home.path("repo"));
    orderer.start();
    let bob = joined(&ada, "bob");
    assert_eq!(
        bob.run(&["cat", "notes", "small"]).ends(0).out,
        "still here\n"
    );
    let lost = bob.run(&["--json", "cat", "notes", "big"]);
    assert_eq!(lost.code, 30, "{} {}", lost.out, lost.err);
    assert!(lost.out.contains("does not have"), "{}", lost.out);
    // Another version of the file is whole.
    std::fs::write(ada.path("big"), noise(2, 2_000_000)).unwrap();
    ada.run(&["put", "big", "notes"]).ends(0);
    bob.run(&["extract", "notes", "copy"]).ends(0);
    assert_eq!(
        std::fs::read(bob.path("copy/big")).unwrap(),
        noise(2, 2_000_000)
    );
}

#[test]
fn retention_is_shown_and_set_by_an_administrator() {
    let (_orderer, ada) = founded(&[]);
    ada.run(&["share", "user", "add", "notes", "bob"]).ends(0);
    let bob = joined(&ada, "bob");
    let shown = |home: &Home| {
        let shown = home.run(&["--json", "share", "retain", "notes"]).ends(0);
        shown.field("seconds").clone()
    };
    assert_eq!(shown(&bob), Value::Null);
    let short = ada.run(&["share", "retain", "notes", "23h"]).ends(2);
    assert!(short.err.contains("at least 1d"), "{}", short.err);
    bob.run(&["share", "retain", "notes", "60d"]).ends(23);
    ada.run(&["share", "retain", "notes", "60d"]).ends(0);
    assert_eq!(shown(&bob), 60 * 24 * 3600);
    let told = ada.run(&["share", "retain", "notes"]).ends(0).out;
    assert_eq!(told, "the server keeps what was replaced for 60 days\n");
}
