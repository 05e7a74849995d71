//! A volume with more rotations than a head shows: newcomers, readers that know some policies, pinned readers, and
//! mirrors whose policies are missing, wrong, swapped, endless or slow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulla::Tree;
use bulla::verify::verify;
use bytes::Bytes;
use reader::Tally;
use sim::liar::{Lie, PolicyLie};
use sim::log::Log;
use store::Replica;
use tracing::Level;
use trust::error::Class;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::Freshness;
use volume::{Volume, VolumeError, VolumeOptions};

use crate::world::{World, read, tree};

/// A world with this many policies after the genesis; its last version is published under the newest.
fn rotated(count: usize) -> World {
    let mut world = World::new();
    for _ in 0..count {
        world.head = world.model.rotate(|_| {}).unwrap();
    }
    publish(&mut world);
    world
}

fn publish(world: &mut World) {
    let root = tree(&mut world.model);
    world.head = world
        .model
        .publish(&root, crate::world::now(), 3600)
        .unwrap();
}

fn patient(world: &World) -> VolumeOptions {
    VolumeOptions {
        deadline: Duration::from_secs(200),
        ..world.options()
    }
}

async fn open(world: &World, replicas: Vec<Arc<dyn Replica>>) -> Result<Arc<Volume>, VolumeError> {
    Volume::open(world.model.id(), replicas, patient(world)).await
}

fn liar(world: &World, lie: PolicyLie) -> Arc<dyn Replica> {
    world.liar(Lie::Policies(lie))
}

fn honest(world: &World) -> Arc<dyn Replica> {
    world.liar(Lie::None)
}

fn floor(world: &World) -> Floor {
    let volumes = world.state.path().join("volumes");
    let floor = volumes.join(world.model.id().to_string()).join("floor");
    Floor::decode(&std::fs::read(floor).unwrap()).unwrap()
}

fn accused(volume: &Volume) -> Vec<bool> {
    let status = volume.mirrors().status();
    status
        .into_iter()
        .map(|mirror| mirror.last_fault.is_some())
        .collect()
}

#[tokio::test]
async fn volume_with_300_policies_is_read_by_newcomers_and_by_readers_that_know_some() {
    let mut world = World::new();
    for _ in 0..5 {
        world.head = world.model.rotate(|_| {}).unwrap();
    }
    publish(&mut world);
    let volume = open(&world, vec![honest(&world)]).await.unwrap();
    assert_eq!(floor(&world).policy().unwrap().0, 5);
    for _ in 5..300 {
        world.head = world.model.rotate(|_| {}).unwrap();
    }
    publish(&mut world);
    drop(volume);
    let knows_some = open(&world, vec![honest(&world)]).await.unwrap();
    assert_eq!(knows_some.snapshot().record().version, 3);
    assert_eq!(floor(&world).policy().unwrap().0, 300);
    assert!(floor(&world).encode().len() < 5000);
    let newcomer = World {
        state: tempfile::tempdir().unwrap(),
        ..world
    };
    let volume = open(&newcomer, vec![honest(&newcomer)]).await.unwrap();
    assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
    assert_eq!(floor(&newcomer).policy().unwrap().0, 300);
    assert_eq!(accused(&volume), [false]);
}

#[tokio::test]
async fn pinned_reader_reads_under_300_policies_and_stores_nothing() {
    let world = rotated(300);
    let record = Head::decode(&world.head).unwrap().record;
    let options = VolumeOptions {
        freshness: Freshness::Pinned {
            version: 2,
            record_hash: record.hash(),
        },
        ..patient(&world)
    };
    let volume = Volume::open(world.model.id(), vec![honest(&world)], options).await;
    assert_eq!(read(&volume.unwrap(), "tiny").await.unwrap(), b"tiny");
    let volumes = world.state.path().join("volumes");
    let kept = volumes.join(world.model.id().to_string()).join("floor");
    assert!(!kept.exists());
}

#[tokio::test]
async fn policy_that_one_mirror_lacks_comes_from_another() {
    let world = rotated(40);
    let sibling = world.model.policies[20].to_bytes();
    let cut = Bytes::from(sibling.clone()).slice(..50);
    for (lie, is_accused) in [
        (PolicyLie::Missing(7), false),
        (PolicyLie::Other(7, sibling.into()), true),
        (PolicyLie::Other(7, cut), true),
        (PolicyLie::Other(7, Bytes::new()), true),
        (PolicyLie::Swapped, true),
        (
            PolicyLie::Endless(world.model.policies[3].to_bytes().into()),
            true,
        ),
    ] {
        let state = tempfile::tempdir().unwrap();
        let options = || VolumeOptions {
            state_directory: state.path().to_owned(),
            ..patient(&world)
        };
        let id = world.model.id();
        let error = Volume::open(id, vec![liar(&world, lie.clone())], options()).await;
        assert_eq!(
            error.unwrap_err().class(),
            Some(Class::Unavailable),
            "{lie:?}"
        );
        for first in [true, false] {
            let mut mirrors = vec![liar(&world, lie.clone()), honest(&world)];
            if !first {
                mirrors.reverse();
            }
            let state = tempfile::tempdir().unwrap();
            let options = VolumeOptions {
                state_directory: state.path().to_owned(),
                ..patient(&world)
            };
            let volume = Volume::open(id, mirrors, options).await.unwrap();
            assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
            let expected = [is_accused && first, is_accused && !first];
            assert_eq!(accused(&volume), expected, "{lie:?}");
        }
    }
}

/// A policy of the model as a later bulla might write it: with another number of its format.
fn later(world: &World, number: usize) -> Bytes {
    let policy = &world.model.policies[number];
    let statement = policy.statement().bytes();
    let mut later = policy.to_bytes();
    let at = later.windows(statement.len()).position(|w| w == statement);
    later[at.unwrap()] += 1;
    later.into()
}

/// In one thread, so that every log line is captured.
#[tokio::test]
async fn policy_of_a_later_bulla_is_not_logged_as_an_attack() {
    let world = rotated(40);
    let log = Log::default();
    let listening = tracing::subscriber::set_default(log.clone());
    let lie = PolicyLie::Other(7, later(&world, 7));
    let mirrors = vec![liar(&world, lie), honest(&world)];
    let volume = open(&world, mirrors).await.unwrap();
    drop(listening);
    let noted = log.lines(Level::WARN);
    assert!(
        noted.iter().any(|line| line.contains("a later bulla")),
        "{noted:?}"
    );
    assert_eq!(log.lines(Level::ERROR), Vec::<String>::new());
    let status = volume.mirrors().status();
    assert_eq!(status[0].counts.wrong, 0);
    let fault = status[0].last_fault.as_ref().unwrap();
    assert!(fault.contains("needs a newer bulla"), "{fault}");
}

#[tokio::test]
async fn policy_of_a_later_bulla_is_the_reason_why_a_lone_mirror_is_refused() {
    let world = rotated(40);
    let newer = || liar(&world, PolicyLie::Other(7, later(&world, 7)));
    let missing = || liar(&world, PolicyLie::Missing(7));
    for mirrors in [
        vec![newer()],
        vec![missing(), newer()],
        vec![newer(), missing()],
    ] {
        let error = open(&world, mirrors).await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Unsupported), "{error}");
    }
}

/// A pinned reader stores no policies, so its history asks for them again.
#[tokio::test]
async fn policy_of_a_later_bulla_is_the_reason_why_a_history_is_refused() {
    let world = rotated(40);
    let record = Head::decode(&world.head).unwrap().record;
    let options = VolumeOptions {
        freshness: Freshness::Pinned {
            version: 2,
            record_hash: record.hash(),
        },
        ..patient(&world)
    };
    let mirror = world.liar(Lie::None);
    let volume = Volume::open(world.model.id(), vec![mirror.clone()], options).await;
    let volume = volume.unwrap();
    assert_eq!(volume.histories().await.unwrap().len(), 1);
    mirror.tell(Lie::Policies(PolicyLie::Other(7, later(&world, 7))));
    let error = volume.histories().await.map(drop).unwrap_err();
    assert_eq!(error.class(), Some(Class::Unsupported), "{error}");
}

#[tokio::test]
async fn mirrors_that_lack_different_policies_complete_each_other() {
    let world = rotated(200);
    let mirrors = vec![
        liar(&world, PolicyLie::Missing(3)),
        liar(&world, PolicyLie::Missing(150)),
    ];
    let volume = open(&world, mirrors).await.unwrap();
    assert_eq!(accused(&volume), [false, false]);
    assert_eq!(floor(&world).policy().unwrap().0, 200);
}

#[tokio::test]
async fn head_with_an_impossible_number_costs_little_and_hinders_nobody() {
    let world = rotated(20);
    for number in [1 << 60, u64::MAX] {
        let far = World::new().model.rotate(|policy| policy.number = number);
        let far = Head::decode(&far.unwrap()).unwrap();
        let mut lie = Head::decode(&world.head).unwrap();
        lie.policies.truncate(1);
        lie.policies.push(far.policies[1].clone());
        let head = Bytes::from(lie.encode().unwrap());
        let began = Instant::now();
        let liar = || liar(&world, PolicyLie::NoneUnder(head.clone()));
        let error = open(&world, vec![liar()]).await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
        let volume = open(&world, vec![liar(), honest(&world)]).await.unwrap();
        assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

#[tokio::test]
async fn slow_mirror_does_not_keep_a_reader_from_learning() {
    let world = rotated(30);
    let slow = liar(&world, PolicyLie::Slow(Duration::from_secs(600)));
    let began = Instant::now();
    let volume = open(&world, vec![slow.clone(), honest(&world)])
        .await
        .unwrap();
    assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    // Alone it is an outage, before the deadline.
    let newcomer = tempfile::tempdir().unwrap();
    let options = VolumeOptions {
        state_directory: newcomer.path().to_owned(),
        deadline: Duration::from_secs(2),
        ..world.options()
    };
    let error = Volume::open(world.model.id(), vec![slow], options).await;
    assert_eq!(error.unwrap_err().class(), Some(Class::Unavailable));
}

#[tokio::test]
async fn fast_liar_does_not_cut_off_a_slow_honest_mirror() {
    let world = rotated(20);
    let slow = liar(&world, PolicyLie::Slow(Duration::from_millis(1500)));
    let garbage = world.model.policies[19].to_bytes();
    let fast = liar(&world, PolicyLie::Endless(garbage.into()));
    let volume = open(&world, vec![fast, slow]).await.unwrap();
    assert_eq!(read(&volume, "tiny").await.unwrap(), b"tiny");
    assert_eq!(accused(&volume), [true, false]);
}

/// Two mirrors show heads whose chains part below both heads. Neither branch is learned, in any order.
#[tokio::test]
async fn fork_below_both_heads_is_seen_whichever_mirror_answers_first() {
    let mut trunk = rotated(5);
    let before = trunk.head.clone();
    let mut mirrors: Vec<Arc<dyn Replica>> = Vec::new();
    for end in [u64::MAX - 1, u64::MAX - 2] {
        trunk.model.fork(Some(&before)).unwrap();
        for _ in 0..20 {
            trunk.head = trunk.model.rotate(|policy| policy.not_after = end).unwrap();
        }
        mirrors.push(honest(&trunk));
    }
    for turned in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let mut mirrors = mirrors.clone();
        if turned {
            mirrors.reverse();
        }
        let options = VolumeOptions {
            state_directory: state.path().to_owned(),
            ..patient(&trunk)
        };
        let error = Volume::open(trunk.model.id(), mirrors, options)
            .await
            .unwrap_err();
        let kept = state
            .path()
            .join("volumes")
            .join(trunk.model.id().to_string());
        let floor = Floor::decode(&std::fs::read(kept.join("floor")).unwrap()).unwrap();
        assert_eq!(floor.policy().unwrap().0, 5, "{error}");
        assert!(floor.forks().policies().is_some());
    }
}

#[tokio::test]
async fn verify_finds_missing_and_wrong_policies() {
    let world = rotated(30);
    let damages = async |lie: Option<PolicyLie>| {
        let mirror = match lie {
            Some(lie) => liar(&world, lie),
            None => honest(&world),
        };
        // This reader knows all policies already.
        drop(open(&world, vec![honest(&world)]).await.unwrap());
        let volume = open(&world, vec![mirror]).await.unwrap();
        let snapshot = volume.snapshot();
        let tree = Tree::published(&volume, snapshot);
        let tally = Arc::<Tally>::default();
        let report = verify(&tree, &tree.root().await.unwrap(), &tally)
            .await
            .unwrap();
        report.gravest().map(|damage| damage.why.class())
    };
    assert_eq!(damages(None).await, None);
    let other = world.model.policies[4].to_bytes();
    for (lie, class) in [
        (PolicyLie::Missing(3), Class::Unavailable),
        (PolicyLie::Other(3, other.into()), Class::Integrity),
        (PolicyLie::Swapped, Class::Integrity),
    ] {
        assert_eq!(damages(Some(lie)).await, Some(Some(class)));
    }
}
