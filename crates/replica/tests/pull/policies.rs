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
        revoked: None,
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
