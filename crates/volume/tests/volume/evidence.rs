//! Evidence of lies: one file for each, whatever a mirror without keys adds to it.

use bytes::Bytes;
use sim::liar::Lie;
use trust::error::Class;
use trust::head::Head;
use trust::key::SecretKey;
use trust::root::RootRecord;
use trust::statement::Signed;

use crate::freshness::{kept, next};
use crate::world::World;

/// The names and contents of the kept evidence.
pub fn evidence(world: &World) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(kept(world).join("evidence")).unwrap();
    let mut files: Vec<_> = files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, std::fs::read(file.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The head as a mirror can vary it without a key.
fn variant(head: &Bytes, number: u8) -> Bytes {
    let stranger = SecretKey::from_seed(&[number; 32]);
    let mut head = Head::decode(head).unwrap();
    head.record.add(&stranger);
    head.policies[0].add(&stranger);
    let mut timestamp = head.record.clone();
    timestamp.add(&SecretKey::from_seed(&[99; 32]));
    head.timestamp = Some(timestamp);
    head.checkpoint = Some(vec![number; 1000].into());
    head.encode().unwrap().into()
}

/// A mirror without keys shows one old head in a hundred variants. Evidence of a later fork still finds room.
#[tokio::test]
async fn variants_of_one_lie_are_one_piece_of_evidence() {
    let mut world = World::new();
    let first = world.head.clone();
    let second = next(&mut world, 61);
    let liar = world.liar(Lie::Head(second.clone()));
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    for number in 0..100 {
        liar.tell(Lie::Head(variant(&first, number)));
        let error = volume.refresh().await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Rollback), "{error}");
    }
    let rollbacks = evidence(&world);
    let (names, heads): (Vec<_>, Vec<_>) = rollbacks.iter().cloned().unzip();
    assert!(
        names.iter().all(|name| name.starts_with("rollback-rec1")),
        "{names:?}"
    );
    assert_eq!(heads.len(), 2);
    assert!(heads.contains(&first.to_vec()) && heads.contains(&second.to_vec()));

    world.model.fork(Some(&first)).unwrap();
    let other = next(&mut world, 62);
    for number in 0..100 {
        liar.tell(Lie::Head(variant(&other, number)));
        let error = volume.refresh().await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Fork), "{error}");
    }
    let mut all = evidence(&world);
    all.retain(|piece| !rollbacks.contains(piece));
    assert!(
        all.iter().all(|(name, _)| name.starts_with("fork-rec1")),
        "{all:?}"
    );
    let heads: Vec<_> = all.into_iter().map(|(_, head)| head).collect();
    assert_eq!(heads.len(), 2);
    assert!(heads.contains(&second.to_vec()) && heads.contains(&other.to_vec()));
}

/// Beside two contradicting policies, a mirror can show any record.
#[tokio::test]
async fn fork_of_policies_is_evidence_once_whatever_record_is_shown() {
    let mut world = World::new();
    let first = world.head.clone();
    let second = next(&mut world, 63);
    let succeed = |head: &Bytes| world.model.succeed(head, head, false).unwrap();
    let (one, other) = (succeed(&first), succeed(&second));
    let volume = world
        .open(vec![world.liar(Lie::Head(one.clone()))])
        .await
        .unwrap();
    let policy = |head: &Bytes| Head::decode(head).unwrap().policies[1].clone();
    let mut head = Head::decode(&other).unwrap();
    let liar = world.liar(Lie::None);
    for number in 0..100u8 {
        let mut record: RootRecord = head.record.statement().read(world.model.id()).unwrap();
        record.start = number.into();
        head.record = record.statement(world.model.id()).sign(&[]);
        let head = variant(&head.encode().unwrap().into(), number);
        liar.tell(Lie::Head(head));
        let error = world.open(vec![liar.clone()]).await.unwrap_err();
        assert_eq!(error.class(), Some(Class::Fork), "{error}");
    }
    drop(volume);
    let kept = evidence(&world);
    let named = |policy: &Signed| {
        let name = trust::text::write(trust::text::Noun::Policy, &policy.hash());
        (format!("fork-{name}"), policy.to_bytes())
    };
    for policy in [policy(&one), policy(&other)] {
        assert!(kept.contains(&named(&policy)), "{kept:?}");
    }
    // With the head that was adopted.
    assert_eq!(kept.len(), 3);
}
