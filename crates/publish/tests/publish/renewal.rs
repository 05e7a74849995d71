//! Renewal in a volume whose policy requires timestamps: the key decides whether a record or a timestamp is
//! signed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use publish::pipeline::PublishOptions;
use publish::publish_error::PublishError;
use publish::renewal::{What, renew};
use sim::time::now;
use store::cache::{CacheLimits, DiskCache};
use store::repository::Repository;
use store::writer::Writer;
use store::{BlockStore, MemoryStore, Replica};
use trust::floor::Floor;
use trust::frame::Packer;
use trust::handle::InodeBlock;
use trust::head::{Head, first_log};
use trust::inode::{Content, Inode, Time};
use trust::judge::{Offer, Terms};
use trust::key::SecretKey;
use trust::policy::{Genesis, Roles, Threshold, VolumeId};
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::{Kind, Record, Reject};
use volume::{Volume, VolumeOptions};

const NOW: u64 = 1_800_000_000;
const HOUR: u64 = 3600;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

/// A volume of publisher 1 whose versions need a stamp of key 2, for an hour at most; its head has
/// none yet.
fn volume(repo: &Path, versions: u64) -> VolumeId {
    volume_from(repo, versions, NOW)
}

fn volume_from(repo: &Path, versions: u64, start: u64) -> VolumeId {
    let roles = Roles {
        timestamps: Threshold::single(key(2).public()),
        timestamp_max: HOUR,
        ..Roles::single(key(1).public())
    };
    let genesis = Genesis::new("stamped", [1; 32], [2; 32], roles).unwrap();
    let policy = genesis.statement().sign(&[&key(1)]);
    let empty = Content::Directory {
        map: None,
        opaque: false,
    };
    let inode = Inode::new(0o755, Time::default(), empty).encode();
    let root = genesis.hasher().handle::<InodeBlock>(&inode);
    let repository = Repository::create(repo).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    let frame = Packer::new().pack(Kind::Inode, &inode).unwrap();
    let handle = root.any();
    writer.append(&Record { handle, frame }).unwrap();
    let (mut log, mut frontier) = first_log(&policy).unwrap();
    for version in 1..=versions {
        let record = RootRecord {
            version,
            start,
            duration: 24 * HOUR,
            root,
            totals: Totals {
                directories: 1,
                ..Totals::default()
            },
            policy_number: 0,
            policy_hash: policy.hash(),
            log,
            mirrors: Vec::new(),
        };
        let head = Head {
            policies: vec![policy.clone()],
            record: record.statement(genesis.volume_id()).sign(&[&key(1)]),
            timestamp: None,
            checkpoint: None,
            frontier: frontier.clone(),
            later_log: None,
        };
        writer.commit(&head.encode().unwrap()).unwrap();
        (log, frontier) = head.next_log(genesis.volume_id()).unwrap();
    }
    genesis.volume_id()
}

fn judged(repo: &Path, volume: VolumeId, now: u64) -> Result<Offer, Reject> {
    let head = Head::decode(&Repository::open(repo).unwrap().statements()).unwrap();
    Floor::new(volume).judge(&head, &Terms::strict(now), &mut Signatures::default())
}

fn options(state: &Path) -> PublishOptions {
    PublishOptions {
        state_dir: Some(state.to_owned()),
        clock: state::Clock::fixed(NOW + 10),
        ..PublishOptions::default()
    }
}

#[test]
fn a_timestamp_key_renews_the_newest_version() {
    let dir = tempfile::tempdir().unwrap();
    let (repo, state) = (dir.path().join("repo"), dir.path().join("state"));
    let volume = volume(&repo, 2);
    assert!(matches!(
        judged(&repo, volume, NOW),
        Err(Reject::NotSigned(_))
    ));
    let renewed = renew(&repo, &key(2), &options(&state)).unwrap();
    assert_eq!((renewed.what, renewed.version), (What::Timestamp, 2));
    // The request was for a week; the policy allows an hour.
    assert_eq!(renewed.valid_until, NOW + 10 + HOUR);
    let offer = judged(&repo, volume, NOW + HOUR).unwrap();
    assert_eq!(offer.record.version, 2);
    assert!(judged(&repo, volume, NOW + HOUR + 10).is_err());
    let shorter = PublishOptions {
        valid: Duration::from_secs(60),
        clock: state::Clock::fixed(NOW + HOUR),
        ..options(&state)
    };
    let renewed = renew(&repo, &key(2), &shorter).unwrap();
    assert_eq!(renewed.valid_until, NOW + HOUR + 60);
    // The publisher's key alone cannot make a head that readers would accept.
    let alone = renew(&repo, &key(1), &options(&state));
    assert!(
        matches!(alone, Err(PublishError::NoTimestamp { .. })),
        "{alone:?}"
    );
    let stranger = renew(&repo, &key(3), &options(&state));
    assert!(matches!(stranger, Err(PublishError::WrongKey { .. })));
    // A timestamp cannot extend the record's own validity.
    let late = PublishOptions {
        clock: state::Clock::fixed(NOW + 24 * HOUR),
        ..options(&state)
    };
    let refused = renew(&repo, &key(2), &late);
    assert!(matches!(
        refused,
        Err(PublishError::RecordOver { version: 2, .. })
    ));
}

#[test]
fn an_older_version_is_not_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    assert_eq!(volume(&old, 1), volume(&new, 2));
    let state = dir.path().join("state");
    renew(&new, &key(2), &options(&state)).unwrap();
    let id = volume(&dir.path().join("third"), 1);
    let refused = renew(&old, &key(2), &options(&state));
    assert!(judged(&old, id, NOW).is_err(), "{refused:?}");
    assert!(matches!(
        refused,
        Err(PublishError::SetBack {
            shows: 1,
            signed: 2,
            ..
        })
    ));
    assert!(matches!(
        renew(&dir.path().join("none"), &key(2), &options(&state)),
        Err(PublishError::Store(_))
    ));
}

/// A reader that continues also remembers the newest timestamp of its version.
#[tokio::test]
async fn a_renewed_validity_is_kept_for_an_offline_start() {
    let dir = tempfile::tempdir().unwrap();
    let (repo, state) = (dir.path().join("repo"), dir.path().join("state"));
    let volume = volume_from(&repo, 1, now() - 10);
    let stamp = |seconds: u64| {
        let options = PublishOptions {
            state_dir: Some(state.clone()),
            valid: Duration::from_secs(seconds),
            ..PublishOptions::default()
        };
        renew(&repo, &key(2), &options).unwrap().valid_until
    };
    let open = async |replica: Arc<dyn Replica>| {
        let options = VolumeOptions {
            state_directory: dir.path().join("reader"),
            disk_cache: Some(
                DiskCache::open(&dir.path().join("cache"), CacheLimits::default()).unwrap(),
            ),
            ..VolumeOptions::default()
        };
        Volume::open(volume, vec![replica], options).await.unwrap()
    };
    let first = stamp(60);
    let repository = Repository::open(&repo).unwrap();
    let reader = open(Arc::new(repository.clone())).await;
    assert_eq!(reader.snapshot().valid_until(), first);
    let second = stamp(600);
    repository.refresh().unwrap();
    reader.refresh().await.unwrap();
    assert_eq!(reader.snapshot().valid_until(), second);
    let root = reader.snapshot().record().root.any();
    drop(reader);

    // A replica with the one block and without a head.
    let headless = MemoryStore::new("headless");
    for record in repository.get_many(&[root], 0).await.unwrap() {
        headless.insert(record);
    }
    let reader = open(Arc::new(headless)).await;
    assert!(reader.is_offline());
    assert_eq!(reader.snapshot().valid_until(), second);
}
