//! Links, pipes and devices that somebody planted in a repository. Nothing outside of the repository is read or
//! overwritten, and nothing waits. (`hostile.rs` damages the content of files.)

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::FutureExt;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use store::blocking::Blocking;
use store::conformance::record;
use store::notes::Note;
use store::{BlockStore, Objects, Repository, StoreError, Writer};
use trust::{Handle, Kind, Record};

const SECRET: &str = "the bytes of a private key";

struct World {
    _dir: tempfile::TempDir,
    repo: PathBuf,
    outside: PathBuf,
    secret: PathBuf,
}

fn records() -> Vec<Record> {
    (0..20).map(|i| record(Kind::Data, i, 200)).collect()
}

/// A repository with two leaves and a note, and a private file that is none of its business.
fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let (repo, outside) = (dir.path().join("repo"), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    let secret = outside.join("secret");
    fs::write(&secret, SECRET).unwrap();
    let repository = Repository::create(&repo).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    for record in records() {
        writer.append(&record).unwrap();
    }
    writer.put_log_leaf(0, 0, b"leaf").unwrap();
    writer.commit(b"statements").unwrap();
    writer.put_note(Note::Replica, b"note").unwrap();
    World {
        _dir: dir,
        repo,
        outside,
        secret,
    }
}

fn range(repository: &Repository, name: &str) -> Result<Option<Bytes>, StoreError> {
    let repository = repository.clone().with_blocking(Blocking::Inline);
    let name = name.parse().unwrap();
    repository.range(name, 0, 1000).now_or_never().unwrap()
}

/// Asks for everything. `Ok` only when all of it is there.
fn ask(repo: &Path) -> Result<(), StoreError> {
    let repository = Repository::open(repo)?.with_blocking(Blocking::Inline);
    let want: Vec<Handle> = records().iter().map(|r| r.handle).collect();
    let got = repository.get_many(&want, 0).now_or_never().unwrap()?;
    assert_eq!(got.len(), want.len());
    assert_eq!(repository.log_leaf(0, 0)?.unwrap(), &b"leaf"[..]);
    assert_eq!(repository.note(Note::Replica)?.unwrap(), &b"note"[..]);
    Ok(())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn planted_link_gives_no_file_away() {
    let world = world();
    let repository = Repository::open(&world.repo).unwrap();
    symlink(&world.secret, world.repo.join("log/0/7")).unwrap();
    fs::write(world.outside.join("1"), SECRET).unwrap();
    symlink(&world.outside, world.repo.join("log/9")).unwrap();
    for name in ["log/0/7", "log/9/1"] {
        let given = range(&repository, name);
        assert!(given.is_err(), "{name}: {given:?}");
    }
    assert!(repository.log_leaf(0, 7).is_err());
    assert!(repository.log_leaf(9, 1).is_err());
}

#[test]
fn links_in_place_of_files_and_directories_are_not_followed() {
    let world = world();
    ask(&world.repo).unwrap();
    let aside = world.outside.join("aside");
    let directories = ["index", "segments", "log", "log/0"];
    let directories = directories.map(|name| world.repo.join(name));
    for path in files(&world.repo).into_iter().chain(directories) {
        fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        let name = path.display();
        if path.ends_with("lock") {
            let repository = Repository::open(&world.repo).unwrap();
            assert!(Writer::begin(&repository).is_err(), "{name}");
        } else {
            assert!(ask(&world.repo).is_err(), "{name}");
        }
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    ask(&world.repo).unwrap();
}

#[test]
fn path_to_the_repository_may_lead_through_links() {
    let world = world();
    let link = world.outside.join("link");
    symlink(&world.repo, &link).unwrap();
    ask(&link).unwrap();
    let writer = Writer::begin(&Repository::open(&link).unwrap());
    writer.unwrap().commit(b"next").unwrap();
    let other = world.outside.join("other");
    fs::create_dir(&other).unwrap();
    symlink(&other, world.outside.join("new")).unwrap();
    Repository::create(world.outside.join("new/deep/repo")).unwrap();
    assert!(other.join("deep/repo/bulla").is_file());
}

#[test]
fn temporary_name_that_is_taken_is_replaced_and_its_target_stays() {
    let world = world();
    type Plant = fn(&Path, &Path);
    let plant: [(&str, Plant); 3] = [
        ("link", |target, at| symlink(target, at).unwrap()),
        ("hard link", |target, at| fs::hard_link(target, at).unwrap()),
        ("pipe", |_, at| pipe(at)),
    ];
    for (what, plant) in plant {
        let repository = Repository::open(&world.repo).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        // After the writer has removed what a crash left.
        for name in ["head.tmp", "replica.tmp", "log/0/1.tmp"] {
            plant(&world.secret, &world.repo.join(name));
        }
        writer.put_log_leaf(0, 1, b"another leaf").unwrap();
        writer.put_note(Note::Replica, b"note").unwrap();
        let committed = writer.commit(what.as_bytes());
        committed.unwrap();
        drop(writer);
        assert_eq!(fs::read_to_string(&world.secret).unwrap(), SECRET, "{what}");
        for name in ["head", "replica", "log/0/1"] {
            let placed = fs::symlink_metadata(world.repo.join(name)).unwrap();
            assert!(placed.is_file(), "{what}: {name}");
        }
        let repository = Repository::open(&world.repo).unwrap();
        assert_eq!(repository.statements(), what);
    }
    // The same before there is a repository.
    let new = world.outside.join("new");
    fs::create_dir(&new).unwrap();
    symlink(&world.secret, new.join("bulla.tmp")).unwrap();
    Repository::create(&new).unwrap();
    assert_eq!(fs::read_to_string(&world.secret).unwrap(), SECRET);
}

#[test]
fn pipe_as_lock_is_an_error_at_once() {
    let world = world();
    let lock = world.repo.join("lock");
    fs::remove_file(&lock).unwrap();
    pipe(&lock);
    let repository = Repository::open(&world.repo).unwrap();
    let refused = Writer::begin(&repository).err().unwrap();
    assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
}

#[test]
fn device_in_place_of_a_file_is_an_error_at_once() {
    let world = world();
    let zero = world.outside.join("zero");
    let mode = Mode::from_raw_mode(0o600);
    if let Err(errno) = mknodat(CWD, &zero, FileType::CharacterDevice, mode, makedev(1, 5)) {
        eprintln!("SKIPPED: cannot make a device ({errno}); run as root");
        return;
    }
    for path in files(&world.repo) {
        let aside = world.outside.join("aside");
        fs::rename(&path, &aside).unwrap();
        fs::rename(&zero, &path).unwrap();
        let repository = Repository::open(&world.repo);
        let writer = repository.and_then(|repository| Writer::begin(&repository));
        assert!(ask(&world.repo).is_err() || writer.is_err(), "{path:?}");
        fs::rename(&path, &zero).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    ask(&world.repo).unwrap();
}
