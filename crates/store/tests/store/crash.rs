//! Crashes and full disks at every operation of a small workload (docs/decisions/0008). Afterwards the
//! repository holds a complete version that was committed, and can be written again. Negative control: the
//! checker finds each sync that a faulty writer leaves out.

use std::sync::{Arc, LazyLock};

use futures_util::FutureExt;
use sim::disk::CrashDisk;
use store::blocking::Blocking;
use store::conformance::record;
use store::disk::Disk;
use store::{BlockStore, Replica, Repository, StoreError, Writer};
use trust::{Handle, Kind, Record};

/// The records that each version adds. Their sizes are such that the first segment takes several writes.
fn added(version: usize) -> &'static [Record] {
    static VERSIONS: LazyLock<Vec<Vec<Record>>> = LazyLock::new(|| {
        let sizes: [&[usize]; 3] = [&[700_000, 600_000, 50, 90_000], &[100, 3000], &[70]];
        let version = |(v, sizes): (usize, &&[usize])| {
            let one = |(i, len): (usize, &usize)| record(Kind::Data, (v * 100 + i) as u64, *len);
            sizes.iter().enumerate().map(one).collect()
        };
        sizes.iter().enumerate().map(version).collect()
    });
    &VERSIONS[version]
}

fn statement(version: usize) -> Vec<u8> {
    format!("statement of version {version}").into_bytes()
}

/// Progress of a run of the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Progress {
    created: bool,
    /// Versions whose commit returned.
    acknowledged: usize,
    /// Versions whose commit began.
    begun: usize,
}

fn commit(writer: &mut Writer, version: usize, records: &[Record]) -> Result<(), StoreError> {
    for record in records {
        writer.append(record)?;
    }
    writer.put_log_leaf(0, version as u64, &statement(version))?;
    writer.commit(&statement(version)).map(|_| ())
}

/// Creates a repository and publishes `versions` versions, each by a new writer.
fn workload(
    disk: &Arc<CrashDisk>,
    versions: usize,
    progress: &mut Progress,
) -> Result<(), StoreError> {
    let repo = Repository::create_on(disk.clone())?;
    progress.created = true;
    for version in 0..versions {
        let mut writer = Writer::begin(&repo)?;
        progress.begun = version + 1;
        commit(&mut writer, version, added(version))?;
        progress.acknowledged = version + 1;
    }
    Ok(())
}

fn check_whole(repo: &Repository, versions: usize) -> Result<(), String> {
    for version in 0..versions {
        let records = added(version);
        let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
        let got = repo
            .clone()
            .with_blocking(Blocking::Inline)
            .get_many(&want, 0)
            .now_or_never()
            .unwrap();
        let got = got.map_err(|e| format!("version {version}: {e}"))?;
        if !records.iter().all(|r| got.contains(r)) {
            return Err(format!("a block of version {version} is missing or wrong"));
        }
        let leaf = repo
            .log_leaf(0, version as u64)
            .map_err(|e| e.to_string())?;
        if leaf.as_deref() != Some(&statement(version)[..]) {
            return Err(format!("the log leaf of version {version} is {leaf:?}"));
        }
    }
    Ok(())
}

/// The rules that a disk must satisfy after a crash.
fn check(disk: Arc<CrashDisk>, progress: Progress) -> Result<(), String> {
    let repo = match Repository::open_on(disk.clone()) {
        Err(StoreError::NoRepository { .. }) if !progress.created => {
            Repository::create_on(disk.clone())
        }
        other => other,
    };
    let repo = repo.map_err(|e| format!("does not open: {e}"))?;
    let found = repo.statements();
    let version = (progress.acknowledged..=progress.begun)
        .find(|v| *found == v.checked_sub(1).map(statement).unwrap_or_default()[..])
        .ok_or_else(|| format!("stands at {found:?} after {progress:?}"))?;
    check_whole(&repo, version)?;

    let mut writer = Writer::begin(&repo).map_err(|e| format!("no writer: {e}"))?;
    let files = disk.files();
    if let Some(left) = files.iter().find(|n| n.ends_with(".tmp")) {
        return Err(format!("{left} was left behind"));
    }
    let of = |dir: &str| files.iter().filter(|n| n.starts_with(dir)).count();
    if of("segments/") != version {
        return Err(format!(
            "{} segments for {version} versions",
            of("segments/")
        ));
    }
    for next in version..3 {
        commit(&mut writer, next, added(next)).map_err(|e| format!("no commit: {e}"))?;
    }
    drop(writer);
    let again = Repository::open_on(disk).map_err(|e| format!("does not open again: {e}"))?;
    check_whole(&again, 3)
}

/// Crashes a workload at every operation with every outcome (up to `most`). Returns the number of disks
/// checked, or the first failure.
fn sweep(make: impl Fn() -> Arc<CrashDisk>, versions: usize, most: usize) -> Result<u64, String> {
    let disk = make();
    workload(&disk, versions, &mut Progress::default()).unwrap();
    let mut checked = 0;
    for operation in 0..=disk.operations() {
        let disk = make();
        disk.crash_at(operation);
        let mut progress = Progress::default();
        let result = workload(&disk, versions, &mut progress);
        assert!(result.is_ok() || disk.crashed(), "fails only by crashing");
        assert!(result.is_err() || progress.acknowledged == versions);
        for outcome in disk.outcomes(most) {
            check(disk.reborn(&outcome), progress).map_err(|why| {
                format!("operation {operation}, {outcome:?}, {progress:?}: {why}")
            })?;
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn every_crash_leaves_a_whole_version() {
    // No operation has so many unsynced writes that outcomes would have to be left out.
    for operation in 0.. {
        let disk = CrashDisk::new();
        disk.crash_at(operation);
        let _ = workload(&disk, 3, &mut Progress::default());
        assert!(disk.combinations() <= 512, "at operation {operation}");
        if !disk.crashed() {
            break;
        }
    }
    let checked = sweep(CrashDisk::new, 3, 512).unwrap();
    assert!(checked > 300, "only {checked} disks");
}

#[test]
fn checker_finds_every_missing_sync() {
    type Ignored = fn(&str) -> bool;
    let faults: [(&str, Ignored); 9] = [
        ("segment", |n| n.starts_with("segments/")),
        ("segment directory", |n| n == "segments"),
        ("index run", |n| n.starts_with("index/")),
        ("index directory", |n| n == "index"),
        ("log leaf", |n| n.starts_with("log/") && n.ends_with(".tmp")),
        ("log directory", |n| n == "log/0"),
        ("head", |n| n == "head.tmp"),
        ("format file", |n| n == "bulla.tmp"),
        ("repository directory", |n| n.is_empty()),
    ];
    for (what, ignored) in faults {
        let found = sweep(|| CrashDisk::ignoring_syncs(ignored), 2, 64);
        assert!(
            found.is_err(),
            "the checker does not miss the sync of the {what}"
        );
    }
}

#[test]
fn full_disk_loses_nothing_and_its_space_is_freed() {
    let disk = CrashDisk::new();
    workload(&disk, 3, &mut Progress::default()).unwrap();
    for operation in 0..disk.operations() {
        let disk = CrashDisk::new();
        disk.full_from(operation);
        let mut progress = Progress::default();
        match workload(&disk, 3, &mut progress) {
            Ok(()) => assert_eq!(progress.acknowledged, 3, "only removals were left"),
            Err(StoreError::Io { source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
            }
            Err(e) => panic!("operation {operation}: {e}"),
        }
        if progress.created {
            let repo = Repository::open_on(disk.clone()).unwrap();
            check_whole(&repo, progress.acknowledged).unwrap();
            let head = repo
                .clone()
                .with_blocking(Blocking::Inline)
                .head()
                .now_or_never()
                .unwrap();
            assert_eq!(head.is_ok(), progress.acknowledged > 0);
            // The dropped writer has given its space back, except what a failed rename hides.
            let left = disk.files().into_iter().find(|n| n.ends_with(".tmp"));
            assert_eq!(left, None, "operation {operation}");
        }
        disk.free_space();
        progress.begun = progress.acknowledged;
        check(disk, progress).unwrap_or_else(|why| panic!("operation {operation}: {why}"));
    }
}

#[test]
fn crash_while_leftovers_are_removed_leaves_a_whole_version() {
    let first = CrashDisk::new();
    workload(&first, 1, &mut Progress::default()).unwrap();
    let crash = first.operations() + 9;
    let first = CrashDisk::new();
    first.crash_at(crash);
    let mut progress = Progress::default();
    workload(&first, 2, &mut progress).unwrap_err();
    for outcome in first.outcomes(8) {
        for operation in 0.. {
            let second = first.reborn(&outcome);
            second.crash_at(operation);
            let repo = Repository::open_on(second.clone() as Arc<dyn Disk>).unwrap();
            let cleared = Writer::begin(&repo);
            for next in second.outcomes(8) {
                check(second.reborn(&next), progress).unwrap();
            }
            if cleared.is_ok() {
                break;
            }
        }
    }
}
