//! Forks that this machine remembers, and their settlement by the user while readers run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sim::liar::Lie;
use state::VolumeState;
use store::Replica;
use trust::error::Class;
use trust::head::Head;
use volume::forks::{self, ForkError, Remembered};
use volume::{Refreshed, Volume, VolumeError};

use crate::world::{World, noise, now, read};

/// A world with version 1, and several records of version 2.
struct Forked {
    world: World,
    first: Bytes,
    seconds: Vec<Bytes>,
}

impl Forked {
    fn new() -> Forked {
        let mut world = World::new();
        let first = world.head.clone();
        let mut seconds = Vec::new();
        for seed in [60, 61, 62] {
            let file = world.model.file(&noise(seed, 5000), 4096).unwrap();
            let root = world
                .model
                .directory(vec![(b"new".to_vec(), file)])
                .unwrap();
            seconds.push(world.model.publish(&root, now(), 3600).unwrap());
            world.model.fork(Some(&first)).unwrap();
        }
        Forked {
            world,
            first,
            seconds,
        }
    }

    fn state(&self) -> VolumeState {
        VolumeState::at(self.world.state.path(), &self.world.model.id())
    }

    fn remembered(&self) -> Remembered {
        forks::remembered(&self.state(), soon()).unwrap()
    }

    /// A reader sees two of the records together.
    async fn see(&self, one: usize, other: usize) {
        let heads = [one, other].map(|at| self.seconds[at].clone());
        let replicas = heads.map(|head| self.world.liar(Lie::Head(head)) as Arc<dyn Replica>);
        let seen = self.world.open(replicas.to_vec()).await;
        assert_eq!(seen.unwrap_err().class(), Some(Class::Fork));
    }

    fn settle(&self, shown: &Remembered, keep: usize) -> Result<(), ForkError> {
        self.settle_until(shown, keep, soon())
    }

    fn settle_until(
        &self,
        shown: &Remembered,
        keep: usize,
        deadline: Instant,
    ) -> Result<(), ForkError> {
        let hash = record_hash(&self.seconds[keep]);
        forks::settle(&self.state(), &shown.forks[0], &hash, deadline).map(drop)
    }
}

fn record_hash(head: &Bytes) -> [u8; 32] {
    Head::decode(head).unwrap().record.hash()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

async fn new_file(volume: &Volume) -> Vec<u8> {
    read(volume, "new").await.unwrap()
}

#[tokio::test]
async fn settlement_is_taken_up_at_the_next_refresh() {
    let forked = Forked::new();
    let liar = forked.world.liar(Lie::Head(forked.first.clone()));
    let volume = forked.world.open(vec![liar.clone()]).await.unwrap();
    forked.see(0, 1).await;
    liar.tell(Lie::Head(forked.seconds[1].clone()));
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Fork));
    forked.settle(&forked.remembered(), 1).unwrap();
    let refreshed = volume.refresh().await.unwrap();
    assert!(matches!(refreshed, Refreshed::Adopted(_)));
    assert_eq!(new_file(&volume).await, noise(61, 5000));
}

/// The user may refuse the very version that a mount shows.
#[tokio::test]
async fn refused_version_in_use_ends_at_the_next_refresh() {
    let forked = Forked::new();
    let liar = forked.world.liar(Lie::Head(forked.seconds[0].clone()));
    let volume = forked.world.open(vec![liar.clone()]).await.unwrap();
    assert_eq!(new_file(&volume).await, noise(60, 5000));
    let other = forked.world.liar(Lie::Head(forked.seconds[1].clone()));
    let seen = forked.world.open(vec![other]).await.unwrap_err();
    assert_eq!(seen.class(), Some(Class::Fork));
    let shown = forked.remembered();
    let used = shown.forks[0].sides.iter().filter(|side| side.is_in_use);
    let used: Vec<[u8; 32]> = used.map(|side| side.hash).collect();
    assert_eq!(used, [record_hash(&forked.seconds[0])]);
    assert!(volume.refresh().await.is_ok() && volume.current().is_ok());
    forked.settle(&shown, 1).unwrap();
    let error = volume.refresh().await.unwrap_err();
    assert_eq!(error.class(), Some(Class::Unavailable), "{error}");
    assert!(matches!(volume.current(), Err(VolumeError::Expired { .. })));
    let status = volume.mirrors().status();
    assert_eq!(status[0].counts.wrong, 0, "it did not lie");
    liar.tell(Lie::Head(forked.seconds[1].clone()));
    volume.refresh().await.unwrap();
    assert_eq!(new_file(&volume).await, noise(61, 5000));
}

#[tokio::test]
async fn only_the_fork_that_was_shown_is_settled() {
    let mut forked = Forked::new();
    forked.see(0, 1).await;
    let shown = forked.remembered();
    let unknown = forked.settle(&shown, 2).unwrap_err();
    assert!(matches!(unknown, ForkError::Unknown), "{unknown}");
    // Another process settled it, and then a third record came: the user has not decided about that one.
    let elsewhere = tempfile::tempdir().unwrap();
    let here = std::mem::replace(&mut forked.world.state, elsewhere);
    forked.see(0, 2).await;
    let floor = forked.state().lock(soon()).unwrap().load().unwrap();
    forked.world.state = here;
    forked.state().lock(soon()).unwrap().store(&floor).unwrap();
    let changed = forked.settle(&shown, 0).unwrap_err();
    assert!(matches!(changed, ForkError::Changed), "{changed}");
    assert_eq!(forked.state().lock(soon()).unwrap().load().unwrap(), floor);
}

#[tokio::test]
async fn settling_waits_for_the_lock_until_its_deadline() {
    let forked = Forked::new();
    forked.see(0, 1).await;
    let shown = forked.remembered();
    let state = forked.state();
    let held = state.lock(soon()).unwrap();
    let floor = held.load().unwrap();
    let until = Instant::now() + Duration::from_millis(400);
    let locked = forked.settle_until(&shown, 0, until).unwrap_err();
    let is_locked = matches!(&locked, ForkError::State(error) if error.is_locked());
    assert!(is_locked, "{locked}");
    assert!(until.elapsed() < Duration::from_secs(30));
    drop(held);
    assert_eq!(state.lock(soon()).unwrap().load().unwrap(), floor);
    forked.settle(&shown, 0).unwrap();
}

/// A file among the evidence that shows a statement without its signatures tells nothing.
#[tokio::test]
async fn unsigned_evidence_is_not_believed() {
    let forked = Forked::new();
    forked.see(0, 1).await;
    let honest = forked.remembered();
    let mut sides = honest.forks[0].sides.iter();
    assert!(sides.all(|side| side.shown.is_some() && side.evidence.len() == 1));
    for entry in std::fs::read_dir(&honest.evidence).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let head = Head::decode(&bytes).unwrap();
        let signature = head.record.signatures()[0].signature;
        let at = bytes
            .windows(signature.len())
            .position(|it| it == signature);
        bytes[at.unwrap()] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let forged = forked.remembered();
    assert_eq!(forged.pieces, honest.pieces);
    let mut sides = forged.forks[0].sides.iter();
    assert!(sides.all(|side| side.shown.is_none() && side.evidence.is_empty()));
}

/// Evidence of policies is the policies themselves, without the heads that showed them.
#[tokio::test]
async fn both_policies_of_a_fork_are_shown_from_evidence() {
    let forked = Forked::new();
    let model = &forked.world.model;
    let succeed = |last: &Bytes| model.succeed(last, last, false).unwrap();
    let heads = [succeed(&forked.first), succeed(&forked.seconds[0])];
    let policy = |head: &Bytes| Head::decode(head).unwrap().policies[1].hash();
    let hashes = heads.each_ref().map(policy);
    let replicas = heads.map(|head| forked.world.liar(Lie::Head(head)) as Arc<dyn Replica>);
    let seen = forked.world.open(replicas.to_vec()).await;
    assert_eq!(seen.unwrap_err().class(), Some(Class::Fork));
    let remembered = forked.remembered();
    assert_eq!(remembered.forks[0].number, 1);
    for side in &remembered.forks[0].sides {
        assert!(hashes.contains(&side.hash));
        assert_eq!(side.evidence.len(), 1);
        assert_eq!(side.shown.as_ref().unwrap().signers.len(), 1);
        // Without a signature it shows nothing.
        let mut bytes = std::fs::read(&side.evidence[0]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&side.evidence[0], bytes).unwrap();
    }
    let forged = forked.remembered();
    let mut sides = forged.forks[0].sides.iter();
    assert!(sides.all(|side| side.shown.is_none() && side.evidence.is_empty()));
}
