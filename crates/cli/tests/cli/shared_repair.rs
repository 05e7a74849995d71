//! The directory of a shared volume's server with changed bytes: `verify` names them, `verify --repair` mends them or refuses
//! with nothing changed, and devices go on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sim::random::{Random, noise};

use crate::shared_forks::put;
use crate::shared_lab::{Orderer, found, founded, joined};
use crate::support::{Home, Ran, copy};

/// A server whose log and blocks are in files, and partly still in the temporary log. It is stopped.
pub fn served() -> (Orderer, Home) {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let ada = found(&mut orderer, &key, &[], &["--ring", "4MiB"]);
    std::fs::create_dir(ada.path("many")).unwrap();
    for number in 0..64 {
        let path = ada.path("many").join(format!("file{number}"));
        std::fs::write(path, noise(number + 1, 50_000)).unwrap();
    }
    ada.run(&["put", "-r", "many", "notes", "--deadline", "60s"])
        .ends(0);
    put(&ada, "last", "the last content\n");
    orderer.stop();
    (orderer, ada)
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => {
                    let bytes = std::fs::read(&path).unwrap();
                    all.insert(path, bytes);
                }
            }
        }
    }
    all
}

/// The files whose paths below the directory begin like this.
fn all(dir: &Path, beginning: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.strip_prefix(dir).unwrap().to_str().unwrap();
        name.starts_with(beginning) && !name.ends_with(".damaged")
    };
    files(dir).into_keys().filter(is_one).collect()
}

fn one(dir: &Path, beginning: &str) -> PathBuf {
    all(dir, beginning).remove(0)
}

/// Changes a byte of a file that is in use: the check fails then. Gives the file, and what the check says.
pub fn damage(orderer: &Orderer, kind: &str, at: impl Fn(usize) -> usize) -> (PathBuf, Ran) {
    for path in all(&orderer.home.path("repo"), kind) {
        let len = std::fs::metadata(&path).unwrap().len() as usize;
        flip(&path, at(len));
        let found = verify(orderer, &[]);
        if found.code == 20 {
            return (path, found);
        }
        // An index that was replaced stays for a while.
        assert_eq!((found.code, kind), (0, "blocks/index/"), "{}", found.err);
        flip(&path, at(len));
    }
    panic!("no {kind} is in use");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1 << (at % 8);
    std::fs::write(path, bytes).unwrap();
}

pub fn verify(orderer: &Orderer, args: &[&str]) -> Ran {
    orderer
        .home
        .run(&[&["--json", "verify", "repo"], args].concat())
}

/// The server starts, and a device reads everything and writes.
fn goes_on(orderer: &mut Orderer, ada: &Home, round: &str) {
    orderer.start();
    let read = ada.run(&["cat", "notes", "many/file7", "--deadline", "30s"]);
    assert_eq!(read.code, 0, "{round}: {}", read.err);
    put(ada, "last", &format!("{round}\n"));
    ada.run(&["verify", "notes", "--deadline", "30s"]).ends(0);
    orderer.stop();
}

#[test]
fn changed_bytes_of_each_kind_of_file_are_named_and_mended_from_an_old_backup() {
    let (mut orderer, ada) = served();
    let repo = orderer.home.path("repo");
    copy(&repo, &orderer.home.path("backup"));
    let whole = verify(&orderer, &[]).ends(0);
    // The others are in the temporary log still.
    assert!(whole.field("blocks").as_u64().unwrap() > 0);
    // What was written after the backup stays.
    goes_on(&mut orderer, &ada, "after the backup");
    let kinds = [
        "leaves/",
        "blocks/segments/",
        "blocks/index/",
        "blocks/head",
        "blocks/bulla",
        "snapshot",
        "policies/0",
        "bulla",
    ];
    for kind in kinds {
        for part in [1, 3] {
            if all(&repo, kind).is_empty() {
                // A snapshot was put aside; the server makes it again when leaves move.
                assert_eq!((kind, part), ("snapshot", 3));
                continue;
            }
            // The first half has what is in the backup. A byte in the first line of a format file.
            let (path, found) = damage(&orderer, kind, |len| match kind.ends_with("bulla") {
                true => 2 * part,
                false => len * part / 8,
            });
            let named = path.strip_prefix(&repo).unwrap().to_str().unwrap();
            assert!(found.out.contains(named), "{named}: {}", found.out);
            let mended = verify(&orderer, &["--repair", "--from", "backup"]);
            assert_eq!(mended.code, 0, "{named}: {}{}", mended.out, mended.err);
            assert!(mended.out.contains(named), "{}", mended.out);
            verify(&orderer, &[]).ends(0);
        }
        goes_on(&mut orderer, &ada, kind);
    }
    // A device that joins now reads the whole log.
    orderer.start();
    let laptop = joined(&ada, "ada");
    laptop
        .run(&["verify", "notes", "--deadline", "30s"])
        .ends(0);
}

#[test]
fn start_makes_a_damaged_index_again_from_whole_segments() {
    let (mut orderer, ada) = served();
    let repo = orderer.home.path("repo");
    for kind in ["blocks/index/", "blocks/head"] {
        damage(&orderer, kind, |len| len - 5);
        goes_on(&mut orderer, &ada, kind);
        verify(&orderer, &[]).ends(0);
    }
    // Without a head, the next writer would remove all segments.
    std::fs::remove_file(repo.join("blocks/head")).unwrap();
    verify(&orderer, &[]).ends(20);
    goes_on(&mut orderer, &ada, "no head");
    verify(&orderer, &[]).ends(0);
}

#[test]
fn damage_that_nothing_mends_is_refused_and_changes_nothing() {
    let (orderer, _ada) = served();
    let repo = orderer.home.path("repo");
    let (other, _) = founded(&[]);
    let mut other = other;
    other.kill();
    let stranger = other.home.path("repo");
    let stranger = stranger.to_str().unwrap();
    // How long the file is depends on how many files the device has put into an entry.
    let leaves = one(&repo, "leaves/");
    let len = std::fs::metadata(&leaves).unwrap().len() as usize;
    let places = (len / 3..len / 2)
        .step_by((len / 72).max(1))
        .map(|at| (leaves.clone(), at));
    let mut refused = 0;
    for (path, at) in places.take(12).chain([(repo.join("policies/0"), 60)]) {
        let whole = std::fs::read(&path).unwrap();
        flip(&path, at);
        let before = files(&repo);
        let told = verify(&orderer, &["--repair"]);
        if told.code == 0 {
            // A check or a length, which follows from the rest.
            assert!(std::fs::read(&path).unwrap() == whole);
            continue;
        }
        let told = told.ends(20);
        refused += 1;
        let error = told.field("error");
        assert!(error["hint"].as_str().unwrap().contains("--from"));
        let told = verify(&orderer, &["--repair", "--from", stranger]);
        assert!(matches!(told.code, 2 | 20), "{}", told.out);
        assert!(before == files(&repo), "something changed");
        std::fs::write(&path, whole).unwrap();
    }
    assert!(refused > 5, "{refused} of {len} bytes");
    verify(&orderer, &[]).ends(0);
    let whole = verify(&orderer, &["--repair", "--from", stranger]).ends(2);
    assert!(
        whole.field("error")["message"]
            .as_str()
            .unwrap()
            .contains("another volume")
    );
    orderer.home.run(&["verify", "repo", "--from", "x"]).ends(2);
    let nothing = verify(&orderer, &["--repair"]).ends(0);
    assert_eq!(nothing.field("mended"), 0);
}

#[test]
fn lost_block_is_named_and_comes_back_from_a_backup_or_a_device() {
    let (mut orderer, ada) = served();
    let repo = orderer.home.path("repo");
    copy(&repo, &orderer.home.path("backup"));
    let (segment, found) = damage(&orderer, "blocks/segments/", |len| len / 2);
    assert!(found.out.contains("\"block\":\""), "{}", found.out);
    assert!(found.out.contains("offset"), "{}", found.out);
    // The log is whole, and so is what a check without blocks reads.
    verify(&orderer, &["--skip-blocks"]).ends(0);
    let told = verify(&orderer, &["--repair"]).ends(3);
    assert_eq!(told.field("lost_blocks"), 1);
    assert!(segment.with_extension("seg.damaged").exists());
    verify(&orderer, &[]).ends(0);
    // The same content again.
    orderer.start();
    ada.run(&["rm", "-r", "notes", "many"]).ends(0);
    ada.run(&["put", "-r", "many", "notes", "--deadline", "60s"])
        .ends(0);
    let laptop = joined(&ada, "ada");
    laptop
        .run(&["verify", "notes", "--deadline", "30s"])
        .ends(0);
    orderer.stop();
    verify(&orderer, &["--repair", "--from", "backup"]).ends(0);
}

#[test]
fn log_is_mended_from_the_directory_of_a_device() {
    let (mut orderer, ada) = served();
    let repo = orderer.home.path("repo");
    let shared = ada.path(".local/state/bulla/shared");
    let entries = std::fs::read_dir(&shared).unwrap();
    let homes = entries.map(|entry| entry.unwrap().path());
    let home = homes
        .into_iter()
        .find(|path| path.join("device.key").exists())
        .unwrap();
    let home = home.to_str().unwrap();
    let leaves = one(&repo, "leaves/");
    let whole = std::fs::read(&leaves).unwrap();
    let mut taken = 0;
    for part in 1..8 {
        flip(&leaves, whole.len() * part / 8);
        verify(&orderer, &[]).ends(20);
        let told = verify(&orderer, &["--repair", "--from", home]);
        if told.code == 0 {
            taken += told.field("taken_leaves").as_u64().unwrap();
            assert!(std::fs::read(&leaves).unwrap() == whole);
        } else {
            // A long body, which the device did not keep.
            assert_eq!(told.code, 20, "{}", told.out);
            std::fs::write(&leaves, &whole).unwrap();
        }
    }
    assert!(taken > 0);
    goes_on(&mut orderer, &ada, "from a device");
    // Now the device has seen more than this old directory.
    let old = orderer.home.path("old");
    copy(&repo, &old);
    goes_on(&mut orderer, &ada, "later");
    std::fs::remove_dir_all(&repo).unwrap();
    copy(&old, &repo);
    verify(&orderer, &["--repair", "--from", home]).ends(21);
}

/// Each frame of the temporary log with a changed byte: the check says that nothing is missing, or the repair mends it, or it
/// refuses and changes nothing.
#[test]
fn damaged_frame_of_the_temporary_log_is_mended_where_nothing_can_be_missing() {
    let (mut orderer, ada) = served();
    for round in 0..4 {
        orderer.start();
        for number in 0..3 {
            put(&ada, "last", &format!("{round} {number}\n"));
        }
        orderer.stop();
    }
    let repo = orderer.home.path("repo");
    let ring = repo.join("log");
    let bytes = std::fs::read(&ring).unwrap();
    let pages = (1 << 20..bytes.len()).step_by(4096);
    let frames: Vec<usize> = pages
        .filter(|at| bytes[*at..].starts_with(b"bullafrm"))
        .collect();
    copy(&repo, &orderer.home.path("whole"));
    let (mut mended, mut refused, mut destroyed) = (0, 0, 0);
    for at in frames.iter().rev().take(24) {
        let at = at + 150;
        std::fs::remove_dir_all(&repo).unwrap();
        copy(&orderer.home.path("whole"), &repo);
        flip(&ring, at);
        if verify(&orderer, &["--skip-blocks"]).code == 0 {
            continue;
        }
        let before = files(&repo);
        let told = verify(&orderer, &["--repair"]);
        match told.code {
            0 | 3 => {
                mended += 1;
                // Nobody knows which blocks a destroyed frame had.
                let lost = told.field("destroyed_bytes").as_u64().unwrap();
                assert_eq!(told.code == 3, lost > 0, "{}", told.out);
                destroyed += u64::from(lost > 0);
                assert!(repo.join("log.damaged").exists());
                verify(&orderer, &[]).ends(0);
                orderer.start();
                ada.run(&["verify", "notes", "--deadline", "30s"]).ends(0);
                orderer.stop();
            }
            20 => {
                refused += 1;
                assert!(
                    told.out.contains("would sign a fork") || told.out.contains("leaf "),
                    "{}",
                    told.out
                );
                assert!(before == files(&repo), "something changed");
            }
            code => panic!("{code}: {}", told.out),
        }
    }
    println!(
        "{} frames, {mended} mended, {refused} refused",
        frames.len()
    );
    assert!(mended > 0 && destroyed > 0, "{refused} refused");
}

#[test]
fn repair_that_is_killed_is_done_by_the_next_one() {
    let (mut orderer, ada) = served();
    let repo = orderer.home.path("repo");
    copy(&repo, &orderer.home.path("backup"));
    for kind in ["leaves/", "blocks/segments/", "blocks/head", "snapshot"] {
        damage(&orderer, kind, |len| len / 3);
    }
    let rounds = if std::env::var_os("BULLA_LONG").is_some() {
        60
    } else {
        12
    };
    let mut random = Random::new(rounds);
    for _ in 0..rounds {
        let args = ["verify", "repo", "--repair", "--from", "backup"];
        let mut command = orderer.home.command(&args);
        let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = silent.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(60)));
        // It may have ended.
        let _ = process.kill();
        process.wait().unwrap();
    }
    verify(&orderer, &["--repair", "--from", "backup"]).ends(0);
    verify(&orderer, &[]).ends(0);
    goes_on(&mut orderer, &ada, "after kills");
}

#[test]
fn running_server_is_neither_checked_nor_mended() {
    let (orderer, _ada) = founded(&[]);
    verify(&orderer, &[]).ends(11);
    verify(&orderer, &["--repair"]).ends(11);
}
