//! Tiles of the history log: commits extend them, compute lost or damaged ones again, and keep them complete
//! after a crash at any operation of a commit (docs/decisions/0015).

use std::sync::Arc;

use sim::disk::CrashDisk;
use store::disk::Disk;
use store::{Repository, StoreError, Writer};
use trust::handle::Handle;
use trust::history::{Frontier, LogPoint, leaf_hash};
use trust::root::{RootRecord, Totals};
use trust::statement::{Signed, VolumeId};
use trust::tiles::{Edge, TileName};

/// The statement that is leaf `index` of the log `epoch`.
fn leaf(epoch: u64, index: u64) -> Signed {
    let record = RootRecord {
        version: index + 1,
        start: 0,
        duration: 1,
        root: Handle::from_bytes([epoch as u8; 32]),
        totals: Totals::default(),
        policy_number: 0,
        policy_hash: [0; 32],
        log: point(epoch, 0),
        mirrors: Vec::new(),
    };
    record.statement(VolumeId::from_bytes([7; 32])).sign(&[])
}

fn frontier(epoch: u64, size: u64) -> Frontier {
    let mut frontier = Frontier::new();
    for index in 0..size {
        frontier
            .push(leaf(epoch, index).statement().bytes())
            .unwrap();
    }
    frontier
}

fn point(epoch: u64, size: u64) -> LogPoint {
    frontier(epoch, size).point(epoch)
}

/// Commits the leaves `from..to`; the statements contain their number.
fn commit(repo: &Repository, epoch: u64, from: u64, to: u64) -> Result<bool, StoreError> {
    let mut writer = Writer::begin(repo)?;
    for index in from..to {
        writer.put_log_leaf(epoch, index, &leaf(epoch, index).to_bytes())?;
    }
    let made = writer.tile_log(&point(epoch, to));
    writer.commit(to.to_string().as_bytes())?;
    Ok(made)
}

/// Whether the tiles are those of the log at `size`.
fn check(repo: &Repository, epoch: u64, size: u64) -> Result<(), String> {
    let (mut edge, mut tiles) = (Edge::new(), Vec::new());
    for index in 0..size {
        let hash = leaf_hash(leaf(epoch, index).statement().bytes());
        edge.push(hash, &mut tiles).unwrap();
    }
    for (name, right) in tiles.into_iter().chain(edge.tiles()) {
        let read = |name: TileName| repo.log_tile(epoch, name).map_err(|e| e.to_string());
        // A reader that does not find the partial tile takes the full one.
        let found = match read(name)? {
            Some(found) => found,
            None => read(name.full())?.ok_or(format!("{name} is not there"))?,
        };
        if found.get(..right.len()) != Some(&right[..]) {
            return Err(format!("{name} is not right"));
        }
    }
    Ok(())
}

fn names(disk: &CrashDisk) -> Vec<String> {
    let files = disk.files().into_iter();
    files.filter(|name| name.contains("/tiles/")).collect()
}

#[test]
fn tiles_are_written_as_the_log_grows() {
    let disk = CrashDisk::new();
    let repo = Repository::create_on(disk.clone()).unwrap();
    let mut size = 0;
    for step in [1, 1, 252, 1, 1, 1, 254, 3, 300] {
        assert!(commit(&repo, 0, size, size + step).unwrap());
        size += step;
        check(&repo, 0, size).unwrap();
    }
    // Another log beside it.
    assert!(commit(&repo, 1, 0, 2).unwrap());
    check(&repo, 1, 2).unwrap();
    check(&repo, 0, size).unwrap();
    drop(Writer::begin(&repo).unwrap());
    let mut left = names(&disk);
    left.sort();
    let expected = [
        "log/0/tiles/0.0",
        "log/0/tiles/0.1",
        "log/0/tiles/0.2",
        "log/0/tiles/0.3.46",
        "log/0/tiles/1.0.1",
        "log/0/tiles/1.0.2",
        "log/0/tiles/1.0.3",
        "log/1/tiles/0.0.2",
    ];
    assert_eq!(left, expected, "the beginnings of full tiles are gone");
    check(&repo, 0, size).unwrap();
}

#[test]
fn lost_and_damaged_tiles_are_computed_from_the_leaves() {
    let disk = CrashDisk::new();
    let repo = Repository::create_on(disk.clone()).unwrap();
    commit(&repo, 0, 0, 300).unwrap();
    for name in names(&disk) {
        disk.remove(&name).unwrap();
    }
    assert!(commit(&repo, 0, 300, 301).unwrap());
    check(&repo, 0, 301).unwrap();
    let file = disk.open("log/0/tiles/0.1.45").unwrap();
    file.write_at(&[0xff], 5).unwrap();
    assert!(commit(&repo, 0, 301, 302).unwrap());
    check(&repo, 0, 302).unwrap();
}

#[test]
fn no_tile_is_written_for_an_incomplete_or_unsigned_log() {
    let disk = CrashDisk::new();
    let repo = Repository::create_on(disk.clone()).unwrap();
    assert!(!commit(&repo, 0, 1, 5).unwrap(), "leaf 0 is missing");
    let mut writer = Writer::begin(&repo).unwrap();
    writer.put_log_leaf(0, 0, &leaf(0, 0).to_bytes()).unwrap();
    assert!(!writer.tile_log(&point(0, 6)), "leaf 5 is missing");
    let mut other = point(0, 5);
    other.root[0] ^= 1;
    assert!(!writer.tile_log(&other));
    writer.put_log_leaf(0, 5, b"no statement").unwrap();
    assert!(!writer.tile_log(&point(0, 6)));
    writer.commit(b"").unwrap();
    drop(writer);
    assert_eq!(names(&disk), Vec::<String>::new());
    // When the missing leaf is added, the tiles are written too.
    assert!(commit(&repo, 0, 5, 6).unwrap());
    check(&repo, 0, 6).unwrap();
}

/// A log of 254 leaves, and then commits of which the second fills its first tile.
fn workload(disk: &Arc<CrashDisk>) -> Result<(), StoreError> {
    let repo = Repository::open_on(disk.clone())?;
    for (from, to) in [(254, 255), (255, 256), (256, 258)] {
        commit(&repo, 0, from, to)?;
    }
    Ok(())
}

#[test]
fn crash_leaves_the_tiles_of_the_committed_version() {
    let begun = CrashDisk::new();
    let repo = Repository::create_on(begun.clone()).unwrap();
    commit(&repo, 0, 0, 254).unwrap();
    let synced = begun.outcomes(1);
    let fresh = || begun.reborn(&synced[0]);
    let disk = fresh();
    workload(&disk).unwrap();
    let (operations, mut checked) = (disk.operations(), 0);
    for operation in 0..=operations {
        let disk = fresh();
        disk.crash_at(operation);
        let result = workload(&disk);
        assert!(result.is_ok() || disk.crashed(), "fails only by crashing");
        for outcome in disk.outcomes(16) {
            let reborn = disk.reborn(&outcome);
            let repo = Repository::open_on(reborn.clone()).unwrap();
            let told = String::from_utf8(repo.statements().to_vec()).unwrap();
            let size: u64 = told.parse().unwrap();
            let context = format!("operation {operation}, {outcome:?}, {size} leaves");
            check(&repo, 0, size).unwrap_or_else(|why| panic!("{context}: {why}"));
            // The log can be extended after the crash.
            assert!(commit(&repo, 0, size, size + 1).unwrap(), "{context}");
            check(&repo, 0, size + 1).unwrap_or_else(|why| panic!("{context}: {why}"));
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} disks");
}
