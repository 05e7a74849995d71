//! Foreign files in the directory of a cache are left alone, and pipes and links do no harm.

use std::os::unix::fs::symlink;
use std::sync::mpsc::channel;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

fn old(path: &Path) {
    let week_ago = SystemTime::now() - Duration::from_secs(7 * 86_400);
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(week_ago).unwrap();
}

fn walked(files: &Files) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    files.walk(|entry| paths.push(entry.path));
    paths
}

#[test]
fn directory_with_foreign_files_is_refused_and_left_alone() {
    for there in ["a-file", "00/0123456789abcdef", "pack/x", ".hidden"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(there);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"dear").unwrap();
        let error = Files::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("name an empty one"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{there}");
        assert_eq!(fs::read(&path).unwrap(), b"dear");
    }
}

#[test]
fn existing_partial_and_empty_directories_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    Files::open(dir.path()).unwrap();
    Files::open(dir.path()).unwrap();
    let half = tempfile::tempdir().unwrap();
    for part in ["new", "00", "01"] {
        fs::create_dir(half.path().join(part)).unwrap();
    }
    Files::open(half.path()).unwrap();
    let fresh = tempfile::tempdir().unwrap();
    fs::create_dir(fresh.path().join("lost+found")).unwrap();
    Files::open(fresh.path()).unwrap();
    Files::open(&fresh.path().join("lost+found/below/it")).unwrap();
}

#[test]
fn symbolic_link_instead_of_a_directory_is_refused_and_not_followed() {
    for part in ["new", "5a"] {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = Files::open(dir.path()).unwrap();
        let dear = other.path().join("5a".repeat(32));
        fs::write(&dear, b"dear").unwrap();
        fs::remove_dir(dir.path().join(part)).unwrap();
        symlink(other.path(), dir.path().join(part)).unwrap();
        assert_eq!(walked(&files), [] as [PathBuf; 0]);
        assert!(Files::open(dir.path()).is_err(), "{part}");
        assert_eq!(fs::read(&dear).unwrap(), b"dear");
    }
}

#[test]
fn files_without_a_block_name_are_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let block = dir.path().join("ab").join("ab".repeat(32));
    fs::write(&block, b"block").unwrap();
    // An object of git, of another part, in capitals, too long; then a link and a directory.
    for name in [
        "ab".repeat(19),
        "cd".repeat(32),
        "aB".repeat(32),
        "ab".repeat(33),
    ] {
        fs::write(dir.path().join("ab").join(name), b"dear").unwrap();
    }
    symlink(&block, dir.path().join("cd").join("cd".repeat(32))).unwrap();
    fs::create_dir(dir.path().join("ef").join("ef".repeat(32))).unwrap();
    assert_eq!(walked(&files), [block]);
}

#[test]
fn files_that_are_not_leftovers_are_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let ours = files.temporary();
    let theirs = ["1753000000.M7P3.host", "note", "7.x", ".8", "9.", "7.0.8"];
    let theirs = theirs.map(|name| dir.path().join("new").join(name));
    for path in theirs.iter().chain([&ours]) {
        fs::write(path, b"dear").unwrap();
        old(path);
    }
    let young = files.temporary();
    fs::write(&young, b"").unwrap();
    files.clear_leftovers();
    assert!(!ours.exists());
    assert!(young.exists());
    assert!(theirs.iter().all(|path| path.exists()));
}

#[test]
fn processes_with_the_same_id_do_not_collide() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = [(); 2].map(|()| Files::open(dir.path()).unwrap());
    for _ in 0..3 {
        fs::write(one.temporary(), b"being written").unwrap();
        assert!(!other.temporary().exists());
    }
}

#[test]
fn file_that_another_process_writes_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let last = files.temporary().to_str().unwrap().to_owned();
    let (rest, number) = last.rsplit_once('.').unwrap();
    let next = format!("{rest}.{}", number.parse::<u64>().unwrap() + 1);
    fs::write(&next, b"being written").unwrap();
    let frame = trust::frame::Packer::new().pack(trust::Kind::Data, b"block");
    let record = Record {
        handle: Handle::from_bytes([7; 32]),
        frame: frame.unwrap(),
    };
    assert!(files.write(&record).is_err());
    assert_eq!(fs::read(&next).unwrap(), b"being written");
    assert!(files.write(&record).unwrap());
}

#[test]
fn opening_does_not_write_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let dear = dir.path().join("dear");
    fs::write(&dear, b"dear").unwrap();
    let cache = dir.path().join("cache");
    fs::create_dir_all(cache.join("new")).unwrap();
    let first = format!("{}.0", std::process::id());
    symlink(&dear, cache.join("new").join(first)).unwrap();
    Files::open(&cache).unwrap();
    assert_eq!(fs::read(&dear).unwrap(), b"dear");
}

#[test]
fn pipe_instead_of_the_lock_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    mknodat(CWD, dir.path().join("lock"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (end, ended) = channel();
    std::thread::spawn(move || end.send(files.lock().is_err()));
    let refused = ended.recv_timeout(Duration::from_secs(10));
    assert_eq!(refused, Ok(true));
}
