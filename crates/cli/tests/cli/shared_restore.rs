//! `bulla restore`: what a shared volume had comes back, as new versions of its files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::shared_history::newest;
use crate::shared_lab::{founded, joined};
use crate::shared_repair::{damage, served, verify};
use crate::support::{Home, Ran, noise};

/// A directory with files of each kind, of which some are arrays of blocks.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("sub/deep")).unwrap();
    fs::write(at.join("large"), noise(1, 300_000)).unwrap();
    fs::write(at.join("small"), "small\n").unwrap();
    fs::write(at.join("sub/deep/file"), noise(2, 90_000)).unwrap();
    fs::hard_link(at.join("small"), at.join("sub/other name")).unwrap();
    symlink("../large", at.join("sub/link")).unwrap();
    fs::set_permissions(at.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at.join("sub/deep"), fs::Permissions::from_mode(0o750)).unwrap();
}

/// Paths, modes, lengths, times, targets and content below a directory of this machine.
fn shown(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(at) = dirs.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let content = match meta.file_type() {
                kind if kind.is_dir() => {
                    dirs.push(path.clone());
                    String::new()
                }
                kind if kind.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
                _ => sum(&fs::read(&path).unwrap()),
            };
            let (mode, time) = (meta.mode(), (meta.mtime(), meta.mtime_nsec()));
            let path = path.strip_prefix(dir).unwrap();
            all.push(format!("{} {mode:o} {time:?} {content}", path.display()));
        }
    }
    all.sort();
    all
}

fn sum(content: &[u8]) -> String {
    let hasher = trust::Hasher::new(&[0; 32]);
    hasher.handle::<trust::Data>(content).to_string()
}

fn extracted(home: &Home, path: &str, to: &str) -> Vec<String> {
    home.run(&["extract", "notes", to]).ends(0);
    shown(&home.path(to).join(path))
}

fn restore(home: &Home, args: &[&str]) -> Ran {
    home.run(&[&["--json", "restore", "notes"], args].concat())
}

#[test]
fn directory_is_again_what_it_was_and_what_is_new_stays() {
    let (_orderer, ada) = founded(&[]);
    tree(&ada.path("d"));
    ada.run(&["put", "-r", "d", "notes"]).ends(0);
    let was = extracted(&ada, "d", "before");
    ada.run(&["share", "snapshot", "notes", "before"]).ends(0);
    let number = |home: &Home| {
        let stat = home.run(&["--json", "stat", "notes", "d/large"]).ends(0);
        stat.field("inode")
    };
    let large = number(&ada);

    let ben = joined(&ada, "ada");
    fs::write(ben.path("large"), noise(3, 200_000)).unwrap();
    ben.run(&["put", "large", "notes", "d"]).ends(0);
    ben.run(&["rm", "-r", "notes", "d/sub"]).ends(0);
    ben.run(&["rm", "notes", "d/small"]).ends(0);
    ben.run(&["put", "large", "notes", "d/newer"]).ends(0);
    let (newer, replaced) = (newest(&ben), number(&ben));

    let restored = restore(&ben, &["d", "--at", "before"]).ends(0);
    assert_eq!(restored.field("files"), 4, "{}", restored.out);
    assert_eq!(restored.field("other"), 1);
    assert_eq!(restored.field("directories"), 2);
    assert_eq!(restored.field("unchanged"), 1);
    assert_eq!(restored.field("bytes"), 300_000 + 90_000 + 2 * 6);
    // The file keeps the number that it has now.
    assert_eq!(number(&ada), replaced);
    assert!(large.is_null() || large != replaced);
    let mut is = extracted(&ada, "d", "after");
    is.retain(|line| !line.starts_with("newer "));
    assert_eq!(is, was);
    let links = ada.run(&["--json", "stat", "notes", "d/sub/other name"]);
    assert_eq!(links.ends(0).field("links"), 2);
    // Nothing is lost: the log has what was replaced.
    let entry = newer.to_string();
    ada.run(&["cat", "notes", "d/large", "--at", &entry])
        .ends(0);

    // Again: there is nothing to do, and nothing is written.
    let before = newest(&ada);
    let again = restore(&ben, &["d", "--at", "before"]).ends(0);
    assert_eq!(again.field("unchanged"), 8, "{}", again.out);
    assert_eq!(
        (again.field("files"), again.field("directories")),
        (0.into(), 0.into())
    );
    assert_eq!(newest(&ada), before);
}

#[test]
fn one_file_comes_back_where_it_was_or_beside() {
    let (_orderer, ada) = founded(&[]);
    tree(&ada.path("d"));
    ada.run(&["put", "-r", "d", "notes"]).ends(0);
    let was = extracted(&ada, "d/sub/deep", "before");
    let entry = newest(&ada).to_string();
    ada.run(&["rm", "-r", "notes", "d"]).ends(0);

    // Its directories come back too.
    restore(&ada, &["d/sub/deep/file", "--at", &entry]).ends(0);
    assert_eq!(extracted(&ada, "d/sub/deep", "after"), was);
    let mode = ada.run(&["--json", "stat", "notes", "d/sub/deep"]).ends(0);
    assert_eq!(mode.field("mode"), "0750");
    let names = ada.run(&["ls", "-R", "notes"]).ends(0);
    assert!(!names.out.contains("large"), "{}", names.out);

    restore(&ada, &["d/large", "--at", &entry, "--to", "old"]).ends(0);
    ada.run(&["extract", "notes", "beside"]).ends(0);
    let content = fs::read(ada.path("beside/old")).unwrap();
    assert_eq!(content, noise(1, 300_000));
    restore(&ada, &["d/large", "--at", &entry, "--to", "nowhere/old"]).ends(10);
    restore(&ada, &["d/never", "--at", &entry]).ends(10);
    restore(&ada, &["d", "--at", "nosuch"]).ends(10);
}

#[test]
fn what_has_another_kind_now_is_left_and_named() {
    let (_orderer, ada) = founded(&[]);
    tree(&ada.path("d"));
    ada.run(&["put", "-r", "d", "notes"]).ends(0);
    let entry = newest(&ada).to_string();
    ada.run(&["rm", "notes", "d/small"]).ends(0);
    ada.run(&["mkdir", "notes", "d/small"]).ends(0);
    ada.run(&["rm", "notes", "d/sub/other name"]).ends(0);
    ada.run(&["rm", "-r", "notes", "d/sub/deep"]).ends(0);
    fs::write(ada.path("deep"), "a file now\n").unwrap();
    ada.run(&["put", "deep", "notes", "d/sub"]).ends(0);
    let restored = restore(&ada, &["d", "--at", &entry]).ends(3);
    let skipped: Vec<String> = restored
        .records("skipped")
        .iter()
        .map(|one| one["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(skipped, ["d/small", "d/sub/deep"], "{}", restored.out);
    let still = ada.run(&["cat", "notes", "d/sub/deep"]).ends(0);
    assert_eq!(still.out, "a file now\n");
    // A file whose first name is taken comes back under its other one.
    let other = ada.run(&["cat", "notes", "d/sub/other name"]).ends(0);
    assert_eq!(other.out, "small\n");
}

#[test]
fn file_whose_old_content_the_server_has_lost_is_left_and_named() {
    let (mut orderer, ada) = served();
    let entry = newest_of_stopped(&mut orderer, &ada);
    damage(&orderer, "blocks/segments/", |len| len / 2);
    verify(&orderer, &["--repair"]).ends(3);
    orderer.start();
    ada.run(&["rm", "-r", "notes", "many"]).ends(0);
    let ben = joined(&ada, "ada");
    let restored = restore(&ben, &["many", "--at", &entry, "--deadline", "60s"]).ends(3);
    assert_eq!(restored.field("skipped"), 1, "{}", restored.out);
    assert_eq!(restored.field("files"), 63);
    // What was restored can be read.
    ben.run(&["verify", "notes", "--deadline", "60s"]).ends(0);
}

fn newest_of_stopped(orderer: &mut crate::shared_lab::Orderer, home: &Home) -> String {
    orderer.start();
    let entry = newest(home).to_string();
    orderer.stop();
    entry
}
