//! Policies beyond the first: a source that hides some of them takes none away from a replica.

use std::sync::Arc;

use bytes::Bytes;
use replica::note::Scope;
use sim::liar::{Liar, Lie};
use sim::time::now;
use store::Replica;
use trust::head::Head;
use trust::key::SecretKey;
use trust::policy::{Last, Successor};
use trust::roles::{Roles, Threshold};
use trust::root::RootRecord;
use trust::timestamp::Timestamp;

use crate::world::{Follower, Publisher};

/// The key of the model that publishes here; it holds every role.
pub fn key() -> SecretKey {
    SecretKey::from_seed(&[7; 32])
}

pub fn record(publisher: &Publisher, head: &Head) -> RootRecord {
    let statement = head.record.statement();
    statement.read(publisher.model.id()).unwrap()
}

/// The successor of the newest policy of `head`; it names the record of `head` as the last one.
pub fn successor(publisher: &Publisher, head: &Head, roles: Roles) -> Successor {
    let record = record(publisher, head);
    let newest = head.policies.last().unwrap();
    Successor {
        number: head.policies.len() as u64,
        previous: newest.hash(),
        not_after: now() + 100_000,
        log_epoch: 0,
        roles,
        last: Some(Last {
            version: record.version,
            record_hash: head.record.hash(),
            log: head.next_log(publisher.model.id()).unwrap().0,
        }),
        lower: false,
        revoked: None,
        refused: Vec::new(),
    }
}

/// The same head with a policy more.
fn rotated(publisher: &Publisher, head: &Bytes) -> Bytes {
    let mut head = Head::decode(head).unwrap();
    let policy = successor(publisher, &head, Roles::single(key().public()));
    let policy = policy.statement(publisher.model.id()).sign(&[&key()]);
    head.policies.push(policy);
    head.encode().unwrap().into()
}

/// The publisher's blocks under this head.
fn telling(publisher: &Publisher, head: &Bytes) -> Arc<dyn Replica> {
    let lie = Lie::Head(head.clone());
    Arc::new(Liar::new(publisher.repository.clone(), lie))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_lags_takes_no_policy_away() {
    let publisher = Publisher::new(80);
    let lagging = publisher.head.clone();
    let newest = rotated(&publisher, &lagging);
    let follower = Follower::new();
    // Of two sources, the one with more policies counts, in any order.
    let places = [telling(&publisher, &lagging), telling(&publisher, &newest)];
    follower.pull(&publisher, &places).await.unwrap();
    assert_eq!(follower.repository().statements(), newest);
    let forgetful = Follower {
        disk: follower.disk.clone(),
        ..Follower::new()
    };
    let mut paranoid = follower.reborn(follower.disk.clone());
    paranoid.options.paranoid = true;
    let mut partial = follower.reborn(follower.disk.clone());
    partial.options.scope = Scope::new([b"a".to_vec()]);
    for (follower, what) in [
        (&follower, "the same again"),
        (&forgetful, "the state is lost"),
        (&paranoid, "everything is walked"),
        (&partial, "another scope"),
        (&follower, "everything again"),
    ] {
        let place = [telling(&publisher, &lagging)];
        let pulled = follower.pull(&publisher, &place).await.unwrap();
        assert_eq!(pulled.version, 1, "{what}");
        assert_eq!(follower.repository().statements(), newest, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_hides_policies_gives_a_new_version_and_takes_none_away() {
    let mut publisher = Publisher::new(81);
    let first = rotated(&publisher, &publisher.head.clone());
    let follower = Follower::new();
    let place = [telling(&publisher, &first)];
    follower.pull(&publisher, &place).await.unwrap();
    let head = Head::decode(&first).unwrap();
    let volume = publisher.model.id();
    let (log, frontier) = head.next_log(volume).unwrap();
    publisher.edit();
    let second = RootRecord {
        version: 2,
        policy_number: 1,
        policy_hash: head.policies[1].hash(),
        log,
        ..record(&publisher, &head)
    };
    let hiding = Head {
        policies: vec![head.policies[0].clone()],
        record: second.statement(volume).sign(&[&key()]),
        frontier,
        ..head
    };
    let hiding: Bytes = hiding.encode().unwrap().into();
    let place = [telling(&publisher, &hiding)];
    let pulled = follower.pull(&publisher, &place).await.unwrap();
    assert_eq!(pulled.version, 2);
    // A new replica can follow this one.
    let newcomer = Follower::new();
    let source: [Arc<dyn Replica>; 1] = [Arc::new(follower.repository())];
    let pulled = newcomer.pull(&publisher, &source).await.unwrap();
    assert_eq!(pulled.version, 2);
    let told = Head::decode(&newcomer.repository().statements()).unwrap();
    assert_eq!(told.policies.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_timestamp_does_not_replace_a_longer_one() {
    let publisher = Publisher::new(82);
    let volume = publisher.model.id();
    let mut head = Head::decode(&publisher.head).unwrap();
    let roles = Roles {
        timestamps: Threshold::single(key().public()),
        timestamp_max: 10_000,
        ..Roles::single(key().public())
    };
    let policy = successor(&publisher, &head, roles);
    let policy = policy.statement(volume).sign(&[&key()]);
    head.policies.push(policy.clone());
    let began = now();
    let until = |seconds: u64| {
        let timestamp = Timestamp {
            record_hash: head.record.hash(),
            policy_number: 1,
            policy_hash: policy.hash(),
            issued: began,
            until: began + seconds,
        };
        let mut head = head.clone();
        head.timestamp = Some(timestamp.statement(volume).sign(&[&key()]));
        Bytes::from(head.encode().unwrap())
    };
    let (short, long, longest) = (until(1000), until(2000), until(3000));
    let mut follower = Follower::new();
    for paranoid in [false, true] {
        follower.options.paranoid = paranoid;
        for (told, stands, seconds) in [(&long, &long, 2000), (&short, &long, 2000)] {
            let place = [telling(&publisher, told)];
            let pulled = follower.pull(&publisher, &place).await.unwrap();
            assert_eq!(follower.repository().statements(), *stands);
            assert_eq!(pulled.valid_until, began + seconds);
        }
    }
    let place = [telling(&publisher, &longest)];
    let pulled = follower.pull(&publisher, &place).await.unwrap();
    assert_eq!(follower.repository().statements(), longest);
    assert_eq!(pulled.valid_until, began + 3000);
}

/// The publisher after this many rotations, and a version under the newest policy.
pub fn rotated_often(seed: u64, count: usize) -> Publisher {
    let mut publisher = Publisher::new(seed);
    for _ in 0..count {
        publisher.head = publisher.model.rotate(|_| {}).unwrap();
    }
    publisher.edit();
    publisher.publish();
    publisher
}

/// A replica that has time to verify hundreds of policies in a debug build.
fn patient() -> Follower {
    let mut follower = Follower::new();
    follower.options.deadline = std::time::Duration::from_secs(60);
    follower
}

fn policies_of(repository: &store::Repository) -> Vec<Option<Bytes>> {
    let newest = Head::decode(&repository.statements())
        .unwrap()
        .newest_policy();
    (0..=newest)
        .map(|number| repository.policy(number).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_of_a_volume_with_300_policies_has_all_of_them_and_serves_newcomers() {
    let mut publisher = rotated_often(83, 300);
    let follower = patient();
    let pulled = follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!((pulled.version, pulled.log_whole), (2, true));
    let all = policies_of(&publisher.repository);
    assert_eq!(all.len(), 301);
    assert!(all.iter().all(Option::is_some));
    assert_eq!(policies_of(&follower.repository()), all);
    // It goes on, and a newcomer follows it.
    for _ in 0..20 {
        publisher.head = publisher.model.rotate(|_| {}).unwrap();
    }
    publisher.edit();
    publisher.publish();
    follower
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    assert_eq!(policies_of(&follower.repository()).len(), 321);
    let newcomer = patient();
    let source: [Arc<dyn Replica>; 1] = [Arc::new(follower.repository())];
    assert_eq!(newcomer.pull(&publisher, &source).await.unwrap().version, 3);
    assert_eq!(
        policies_of(&newcomer.repository()),
        policies_of(&publisher.repository)
    );
    // Pruning keeps them.
    let options = replica::prune::PruneOptions::default();
    replica::prune::prune(newcomer.disk.clone(), &options).unwrap();
    assert_eq!(
        policies_of(&newcomer.repository()),
        policies_of(&publisher.repository)
    );
    assert_eq!(newcomer.proved(&publisher, "").await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_does_not_move_its_head_without_the_policies_below_it() {
    use sim::liar::PolicyLie;
    let publisher = rotated_often(84, 30);
    // Its reader knows all policies from elsewhere, so that only copying fails.
    let knowing = patient();
    knowing
        .pull(&publisher, &[publisher.source()])
        .await
        .unwrap();
    let follower = knowing.reborn(sim::disk::CrashDisk::new());
    let other = publisher.repository.policy(9).unwrap().unwrap();
    let lying = |lie| -> Arc<dyn Replica> {
        Arc::new(Liar::new(publisher.repository.clone(), Lie::Policies(lie)))
    };
    let lies = || {
        [
            PolicyLie::Missing(4),
            PolicyLie::Other(4, other.clone()),
            PolicyLie::Other(4, Bytes::from_static(b"no policy")),
            PolicyLie::Swapped,
        ]
        .map(lying)
    };
    for liar in lies() {
        let refused = follower.pull(&publisher, &[liar]).await;
        assert!(refused.is_err());
        assert!(follower.repository().statements().is_empty());
    }
    // An honest source beside them suffices.
    let sources = [lies().to_vec(), vec![publisher.source()]].concat();
    follower.pull(&publisher, &sources).await.unwrap();
    let all = policies_of(&publisher.repository);
    assert_eq!(policies_of(&follower.repository()), all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_read_under_policies_that_no_head_carries() {
    use sim::liar::PolicyLie;
    use volume::history::{Kept, Standing};
    let mut publisher = rotated_often(85, 10);
    for _ in 0..20 {
        publisher.head = publisher.model.rotate(|_| {}).unwrap();
    }
    publisher.publish();
    let liar = Liar::new(publisher.repository.clone(), Lie::None);
    let liar = Arc::new(liar);
    let state = tempfile::tempdir().unwrap();
    let options = volume::VolumeOptions {
        state_directory: state.path().to_owned(),
        ..volume::VolumeOptions::default()
    };
    let replicas: Vec<Arc<dyn Replica>> = vec![liar.clone()];
    let volume = volume::Volume::open(publisher.model.id(), replicas, options);
    let volume = volume.await.unwrap();
    liar.tell(Lie::Policies(PolicyLie::Missing(u64::MAX)));
    let histories = volume.histories().await.unwrap();
    let [history] = &histories[..] else {
        panic!("one replica");
    };
    // Version 2 is under policy 10, version 1 under the genesis; the head shows policies 24 to 30.
    for (version, number) in [(2, 10), (1, 0)] {
        let signed = history.find(version).await.unwrap().unwrap();
        let record: RootRecord = signed.statement().read(publisher.model.id()).unwrap();
        assert_eq!((record.version, record.policy_number), (version, number));
    }
    let entries = history.list(100, volume.deadline()).await.unwrap();
    assert_eq!(entries.len(), 1 + 30 + 3);
    for entry in &entries {
        assert!(matches!(entry.kept, Kept::Leaf(_)), "{entry:?}");
        assert_eq!(entry.standing, Standing::Proved);
    }
    // A policy in the place of another is not believed, and a missing one is an outage.
    let other = publisher.repository.policy(9).unwrap().unwrap();
    for (lie, class) in [
        (PolicyLie::Missing(15), trust::error::Class::Unavailable),
        (PolicyLie::Other(15, other), trust::error::Class::Integrity),
    ] {
        liar.tell(Lie::Policies(lie));
        let histories = volume.histories().await.unwrap();
        let found = histories[0].find(2).await.unwrap_err();
        assert_eq!(found.class(), Some(class), "{found}");
    }
}
