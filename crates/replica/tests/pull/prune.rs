//! Collection: kept versions stay whole, blocks that only other versions reach are removed, readers are not
//! disturbed, and a crash at any step loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use replica::prune::{PruneError, PruneOptions, Pruned, prune};
use sim::disk::CrashDisk;
use sim::random::noise;
use sim::time::now;
use store::disk::Disk;
use store::{Repository, StoreError, Writer};
use trust::InodeBlock;
use trust::head::Head;
use trust::history::Frontier;
use trust::inode::Entry;
use trust::roles::Roles;
use trust::root::RootRecord;
use trust::statement::Signed;

use crate::policies::{key, record, rotated_often, successor};
use crate::world::{Follower, Publisher, prove, proved};

fn options(keep: u64) -> PruneOptions {
    PruneOptions {
        keep,
        grace: Duration::ZERO,
        ..PruneOptions::default()
    }
}

/// `versions` of a changing tree, each expired when the next came; the last is valid.
fn history(seed: u64, versions: u64) -> Publisher {
    let mut publisher = Publisher::new(seed);
    for version in 2..=versions {
        for _ in 0..15 {
            publisher.edit();
        }
        match version {
            last if last == versions => publisher.publish(),
            _ => publisher.publish_until(now() - 5000 + version, 10),
        }
    }
    publisher
}

fn collect(disk: &Arc<CrashDisk>, options: &PruneOptions) -> Result<Pruned, PruneError> {
    prune(disk.clone(), options)
}

async fn whole(publisher: &Publisher, disk: &Arc<CrashDisk>, head: &Bytes) -> bool {
    let repository = Repository::open_on(disk.clone()).unwrap();
    prove(publisher, repository, head.clone(), "")
        .await
        .is_some()
}

fn segments(disk: &CrashDisk) -> usize {
    let files = disk.files();
    files
        .iter()
        .filter(|name| name.starts_with("segments/"))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_versions_stay_whole_and_the_rest_is_removed() {
    for (seed, keep) in [(1, 1), (2, 3), (3, 2)] {
        // The first version is valid for an hour like the last, so it is kept in any case.
        let publisher = history(seed, 9);
        let disk = &publisher.disk;
        let before = publisher.repository.index_entries();
        let would = collect(
            disk,
            &PruneOptions {
                dry_run: true,
                ..options(keep)
            },
        )
        .unwrap();
        publisher.repository.refresh().unwrap();
        assert_eq!(
            publisher.repository.index_entries(),
            before,
            "a rehearsal changes nothing"
        );
        let pruned = collect(disk, &options(keep)).unwrap();
        let mut kept: Vec<u64> = (0..keep).map(|back| 9 - back).collect();
        kept.push(1);
        assert_eq!(pruned.kept, kept);
        assert_eq!(pruned, would);
        assert!(pruned.collected.freed_bytes > 0, "{pruned:?}");
        for (version, head) in (1..).zip(&publisher.heads) {
            let expected = kept.contains(&version);
            assert_eq!(
                whole(&publisher, disk, head).await,
                expected,
                "version {version}"
            );
        }
        publisher.repository.refresh().unwrap();
        assert_eq!(
            publisher.repository.index_entries(),
            pruned.collected.live_blocks
        );
        // A grace of zero has ended for the next writer: only live segments are left.
        drop(Writer::begin(&publisher.repository).unwrap());
        let left = segments(disk) as u64;
        let again = collect(disk, &options(keep)).unwrap();
        assert_eq!(again.collected.segments, left);
        assert_eq!(again.collected.freed_bytes, 0, "{again:?}");
        assert_eq!((again.kept, again.dropped), (kept, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_version_is_never_collected_and_publishing_goes_on() {
    let mut publisher = Publisher::new(4);
    for _ in 0..5 {
        publisher.edit();
        publisher.publish();
    }
    let pruned = collect(&publisher.disk.clone(), &options(1)).unwrap();
    assert_eq!(pruned.kept, [6, 5, 4, 3, 2, 1]);
    let later = PruneOptions {
        clock: state::Clock::fixed(now() + 4000),
        ..options(2)
    };
    let pruned = collect(&publisher.disk.clone(), &later).unwrap();
    assert_eq!((pruned.kept, pruned.dropped), (vec![6, 5], 4));
    publisher.edit();
    publisher.publish();
    assert_eq!(
        proved(&publisher, publisher.repository.clone(), "").await,
        7
    );
    let also = PruneOptions {
        also: vec![trust::Handle::from_bytes([9; 32])],
        ..options(1)
    };
    let error = collect(&publisher.disk, &also).unwrap_err();
    assert!(matches!(error, PruneError::Unsure { .. }), "{error}");
}

/// The signed record of a tree with one file, changed by `spoil` before signing. No head names it.
fn signed(
    publisher: &mut Publisher,
    seed: u64,
    before: &RootRecord,
    spoil: impl FnOnce(&mut RootRecord),
) -> RootRecord {
    let content = noise(seed, 20_000);
    let file = publisher.model.file(&content, 8192).unwrap();
    let top = publisher.model.directory(vec![(b"file".to_vec(), file)]);
    let top = top.unwrap();
    let totals = publisher.model.totals(&top);
    let root = publisher.model.block::<InodeBlock>(&top.encode()).unwrap();
    let mut record = RootRecord {
        root,
        totals,
        ..before.clone()
    };
    spoil(&mut record);
    record
}

/// Owners withdrew versions that a stolen key had signed. Whatever numbers the thief chose, the current
/// version is collected last, and valid ones not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_a_stolen_key_displace_no_others() {
    let mut publisher = Publisher::new(11);
    let volume = publisher.model.id();
    let first = Head::decode(&publisher.head).unwrap();
    let mut thief = Vec::new();
    for (seed, version) in [(1, 2), (2, 9)] {
        let before = record(&publisher, &first);
        let told = signed(&mut publisher, seed, &before, |_| ());
        let spoil = |record: &mut RootRecord| record.version = version;
        let model = &mut publisher.model;
        let head = model.publish_handle(told.root, now() - 5000, 10, spoil);
        publisher.head = head.unwrap();
        publisher.commit();
        thief.push(publisher.head.clone());
    }
    let mut policy = successor(&publisher, &first, Roles::single(key().public()));
    policy.log_epoch = 1;
    let policy = policy.statement(volume).sign(&[&key()]);
    let mut writer = Writer::begin(&publisher.repository).unwrap();
    writer.put_log_leaf(1, 0, &policy.to_bytes()).unwrap();
    writer.commit(&publisher.head).unwrap();
    drop(writer);
    let mut frontier = Frontier::new();
    frontier.push(policy.statement().bytes()).unwrap();
    let mut honest = Vec::new();
    // The second version is valid for an hour; the third, which is the head's, has expired.
    for (version, start, duration) in [(2, now(), 3600), (3, now() - 5000, 10)] {
        let before = record(&publisher, &first);
        let record = signed(&mut publisher, 10 + version, &before, |record| {
            record.version = version;
            (record.start, record.duration) = (start, duration);
            (record.policy_number, record.policy_hash) = (1, policy.hash());
            record.log = frontier.point(1);
        });
        let head = Head {
            policies: vec![first.policies[0].clone(), policy.clone()],
            record: record.statement(volume).sign(&[&key()]),
            frontier: frontier.clone(),
            later_log: None,
            ..first.clone()
        };
        frontier.push(head.record.statement().bytes()).unwrap();
        publisher.head = head.encode().unwrap().into();
        publisher.commit();
        honest.push(publisher.head.clone());
    }
    let disk = publisher.disk.clone();
    let pruned = collect(&disk, &options(1)).unwrap();
    // The first version is valid for an hour, too.
    assert_eq!((pruned.kept, pruned.dropped), (vec![3, 2, 1], 2));
    assert!(pruned.collected.freed_bytes > 0);
    for head in &honest {
        assert!(whole(&publisher, &disk, head).await);
    }
    for head in &thief {
        assert!(!whole(&publisher, &disk, head).await);
    }
    // The same if all have expired and several are to be kept.
    let later = PruneOptions {
        clock: state::Clock::fixed(now() + 10_000),
        ..options(3)
    };
    let pruned = collect(&disk, &later).unwrap();
    assert_eq!((pruned.kept, pruned.dropped), (vec![3, 2, 1], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_in_a_collection_leaves_kept_versions_whole() {
    let publisher = history(5, 9);
    let whole_disk = publisher.disk.outcomes(1).into_iter().next().unwrap();
    let copy = || publisher.disk.reborn(&whole_disk);
    let kept = [&publisher.heads[0], &publisher.heads[8]];
    let collected = copy();
    let pruned = collect(&collected, &options(1)).unwrap().collected;
    assert!(pruned.dropped + pruned.rewritten > 0, "{pruned:?}");
    let entries = pruned.live_blocks;
    let mut crashes = 0;
    for operation in 0.. {
        let disk = copy();
        disk.crash_at(operation);
        let ended = collect(&disk, &options(1));
        if !disk.crashed() {
            assert!(ended.is_ok());
            break;
        }
        for outcome in disk.outcomes(6) {
            let reborn = disk.reborn(&outcome);
            for head in kept {
                assert!(
                    whole(&publisher, &reborn, head).await,
                    "operation {operation}"
                );
            }
            collect(&reborn, &options(1)).unwrap();
            let repository = Repository::open_on(reborn.clone()).unwrap();
            assert_eq!(repository.index_entries(), entries, "operation {operation}");
            assert!(whole(&publisher, &reborn, kept[1]).await);
            crashes += 1;
        }
    }
    assert!(crashes > 20, "{crashes}");
    // A full disk: collecting needs space, and a failure gives it back.
    for operation in 0.. {
        let disk = copy();
        disk.full_from(operation);
        let ended = collect(&disk, &options(1));
        disk.free_space();
        for head in kept {
            assert!(
                whole(&publisher, &disk, head).await,
                "operation {operation}"
            );
        }
        if ended.is_ok() {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_the_previous_index_have_a_grace() {
    let mut publisher = history(6, 5);
    let old = Repository::open_on(publisher.disk.clone()).unwrap();
    let third = publisher.heads[2].clone();
    let grace = PruneOptions {
        grace: Duration::from_secs(1000),
        ..options(1)
    };
    let pruned = collect(&publisher.disk, &grace).unwrap();
    assert!(pruned.collected.dropped + pruned.collected.rewritten > 0);
    for _ in 0..3 {
        publisher.edit();
        publisher.publish();
    }
    // The third version is collected; a reader that opened the repository before still reads it.
    assert!(
        prove(&publisher, old.clone(), third.clone(), "")
            .await
            .is_some()
    );
    assert!(!whole(&publisher, &publisher.disk, &third).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_continue_during_publications_and_collections() {
    let mut publisher = Publisher::new(7);
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    let reader = {
        let (stop, disk) = (stop.clone(), publisher.disk.clone());
        let reads = reads.clone();
        let id = publisher.model.id();
        tokio::spawn(async move {
            let repository = Repository::open_on(disk).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let state = tempfile::tempdir().unwrap();
                let options = volume::VolumeOptions {
                    state_directory: state.path().to_owned(),
                    ..volume::VolumeOptions::default()
                };
                let place: Arc<dyn store::Replica> = Arc::new(repository.clone());
                let volume = volume::Volume::open(id, vec![place], options)
                    .await
                    .unwrap();
                let snapshot = volume.current().unwrap();
                let tree = bulla::Tree::published(&volume, snapshot);
                let (top, tally) = (tree.root().await.unwrap(), Arc::default());
                let report = bulla::verify::verify(&tree, &top, &tally);
                assert_eq!(report.await.unwrap().damage_count, 0);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let grace = PruneOptions {
        grace: Duration::from_secs(60),
        // Only the newest counts as valid, so a version that a reader has just opened is collected.
        clock: state::Clock::fixed(now() + 10_000),
        ..options(1)
    };
    let mut versions = 0;
    while versions < 40 || reads.load(Ordering::Relaxed) < 6 {
        versions += 1;
        assert!(versions < 2000 && !reader.is_finished(), "hardly any reads");
        for _ in 0..5 {
            publisher.edit();
        }
        publisher.publish();
        collect(&publisher.disk, &grace).unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::Relaxed);
    reader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_that_cannot_be_read_for_certain_is_not_collected() {
    let publisher = history(8, 4);
    let whole_disk = publisher.disk.outcomes(1).into_iter().next().unwrap();
    let segment_names: Vec<String> = publisher
        .disk
        .files()
        .into_iter()
        .filter(|name| name.starts_with("segments/"))
        .collect();
    // Stripes that cover every byte, because the position of nodes depends on the order of threads.
    const STRIPE_BYTES: usize = 4096;
    let (mut refused, mut collected) = (0, 0);
    for name in &segment_names {
        let len_bytes = publisher.disk.open(name).unwrap().len_bytes().unwrap();
        for at in (0..len_bytes).step_by(STRIPE_BYTES) {
            let disk = publisher.disk.reborn(&whole_disk);
            let damage = [0x5a; STRIPE_BYTES];
            let damaged_bytes = STRIPE_BYTES.min((len_bytes - at) as usize);
            disk.open(name)
                .unwrap()
                .write_at(&damage[..damaged_bytes], at)
                .unwrap();
            let entries = Repository::open_on(disk.clone()).unwrap().index_entries();
            match collect(&disk, &options(9)) {
                Err(_) => {
                    refused += 1;
                    let repository = Repository::open_on(disk).unwrap();
                    assert_eq!(repository.index_entries(), entries);
                }
                // Data blocks are not read, so a damaged one is kept.
                Ok(pruned) => {
                    collected += 1;
                    assert!(pruned.kept.contains(&4));
                }
            }
        }
    }
    assert!(refused > 0 && collected > 0, "{refused} {collected}");
    // A leaf of the log that is not the signed one.
    let disk = publisher.disk.reborn(&whole_disk);
    let leaf = disk.open("log/0/2").unwrap();
    // In the middle of the record, which the log's root covers.
    leaf.write_at(&[1; 2], 100).unwrap();
    let error = collect(&disk, &options(1)).unwrap_err();
    assert!(matches!(error, PruneError::Unsure { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_keeps_the_configured_number_of_versions() {
    let mut publisher = Publisher::new(10);
    let mut follower = Follower::new();
    follower.options.keep = Some(2);
    // All pulled versions have expired when the next one comes.
    follower.options.clock = state::Clock::fixed(now() + 1);
    for version in 2..7 {
        for _ in 0..10 {
            publisher.edit();
        }
        publisher.publish_until(now(), 3600);
        let pulled = follower
            .pull(&publisher, &[publisher.source()])
            .await
            .unwrap();
        let pruned = pulled.pruned.unwrap();
        assert_eq!(pruned.kept.first(), Some(&version));
        assert_eq!(follower.proved(&publisher, "").await, version);
    }
    let disk = follower.disk.clone();
    let later = PruneOptions {
        clock: state::Clock::fixed(now() + 10_000),
        ..options(2)
    };
    let pruned = collect(&disk, &later).unwrap();
    assert_eq!(pruned.kept, [6, 5]);
    assert_eq!(follower.proved(&publisher, "").await, 6);
    assert!(whole(&publisher, &disk, &publisher.heads[4]).await);
    // The blocks of an interrupted pull are dead until a version reaches them.
    let mut partial = Follower::new();
    partial.options.scope = replica::note::Scope::new([b"a".to_vec()]);
    partial
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let pruned = collect(&partial.disk, &options(1)).unwrap();
    assert_eq!(pruned.kept, [6]);
    assert_eq!(partial.proved(&publisher, "a").await, 6);
}

/// The newest version has an entry of a later form: what it reaches is not known.
#[test]
fn version_of_a_later_bulla_is_not_called_damaged_and_nothing_is_collected() {
    let mut publisher = history(9, 4);
    let mut critical = publisher.model.file(b"x", 8192).unwrap().encode();
    critical.push(0x7f);
    let apart = publisher.model.block::<InodeBlock>(&critical).unwrap();
    for later in [critical, Entry::Block(apart).encode(), vec![0xf0; 46]] {
        let entries: [(&[u8], Vec<u8>); 1] = [(b"later", later)];
        let root = publisher.model.directory_of_values(&entries).unwrap();
        publisher.head = publisher.model.publish(&root, now(), 3600).unwrap();
        publisher.commit();
        let before = publisher.disk.files();
        let refused = collect(&publisher.disk, &options(1)).unwrap_err();
        let newer = matches!(&refused, PruneError::Store(StoreError::Unsupported { .. }));
        assert!(newer, "{refused}");
        assert_eq!(publisher.disk.files(), before);
    }
}

/// The head, a leaf of the log or a policy below the head has a later form: what must be kept is not known.
#[test]
fn statement_of_a_later_bulla_is_not_called_damaged_and_nothing_is_collected() {
    let publisher = rotated_often(84, 12);
    let repository = &publisher.repository;
    let whole_disk = publisher.disk.outcomes(1).into_iter().next().unwrap();
    let head = |disk: Arc<CrashDisk>| {
        let mut later = publisher.head.to_vec();
        later[0] += 1;
        let mut writer = Writer::begin(&Repository::open_on(disk).unwrap()).unwrap();
        writer.commit(&later).unwrap();
    };
    let statement = |disk: Arc<CrashDisk>, name: &str, bytes: Option<Bytes>| {
        let bytes = bytes.unwrap();
        let signed = Signed::from_bytes(&bytes).unwrap();
        let statement = signed.statement().bytes();
        let at = bytes.windows(statement.len()).position(|w| w == statement);
        let file = disk.open(name).unwrap();
        file.write_at(&[9], at.unwrap() as u64).unwrap();
    };
    let leaf = |disk| statement(disk, "log/0/1", repository.log_leaf(0, 1).unwrap());
    let policy = |disk| statement(disk, "policies/3", repository.policy(3).unwrap());
    let spoils: [&dyn Fn(Arc<CrashDisk>); 3] = [&head, &leaf, &policy];
    for (number, spoil) in spoils.into_iter().enumerate() {
        let disk = publisher.disk.reborn(&whole_disk);
        collect(&disk, &options(1)).unwrap();
        spoil(disk.clone());
        let before = disk.files();
        let refused = collect(&disk, &options(1)).unwrap_err();
        let newer = matches!(&refused, PruneError::Store(StoreError::Unsupported { .. }));
        assert!(newer, "{number}: {refused}");
        assert_eq!(disk.files(), before);
    }
}
