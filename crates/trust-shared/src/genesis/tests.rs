//! Tests of policies and epochs.

use bytes::Bytes;

use super::super::samples::{
    Log, genesis_policy, key, next_policy, refuses_cuts, shared_roles, signed_policy,
};
use super::*;
use trust::statement::policy::Threshold;
use trust::statement::roles::Roles;
use trust::statement::{Job, Purpose};

fn begun() -> (VolumeId, Policies) {
    let (volume, genesis) = genesis_policy();
    let policies = Policies::begin(volume, &genesis, &mut Signatures::default());
    (volume, policies.unwrap())
}

fn extend(policies: &Policies, signed: &Signed) -> Result<Policies, Reject> {
    let mut policies = policies.clone();
    policies.extend(signed, &mut Signatures::default())?;
    Ok(policies)
}

fn start() -> Prefix {
    let mut log = Log::default();
    log.push("a").push("b").push("c");
    log.whole()
}

fn refusal(why: &'static str) -> Option<Reject> {
    Some(bad(why))
}

#[test]
fn genesis_names_orderer_and_founder() {
    let (_, policies) = begun();
    assert_eq!(policies.roles(), &shared_roles(2));
    assert_eq!(policies.founder().name, "ada");
    let epoch = policies.newest_epoch();
    assert_eq!((epoch.number, epoch.start.size), (0, 0));
    assert_eq!(epoch.orderer, key(2).public());
    assert_eq!(policies.epoch(1), None);
}

#[test]
fn shared_policy_with_any_length_changed_is_refused() {
    let (_, signed) = genesis_policy();
    refuses_cuts(&signed.to_bytes(), |bytes| {
        Signed::from_bytes_of(Job::Shared, bytes).map(drop)
    });
    refuses_cuts(signed.statement().bytes(), |bytes| {
        let bytes = Bytes::copy_from_slice(bytes);
        let statement = Statement::decode_of(Job::Shared, bytes)?;
        statement.read::<Policy>(VolumeId::UNBORN).map(drop)
    });
}

#[test]
fn policies_of_published_and_shared_volumes_are_not_taken_for_one_another() {
    let (_, shared) = genesis_policy();
    let as_published = Signed::from_bytes(&shared.to_bytes());
    assert!(
        matches!(as_published, Err(Reject::Unsupported { .. })),
        "{as_published:?}"
    );
    let roles = Roles::single(key(1).public());
    let published = Genesis::new("seed", [1; 32], [2; 32], roles).unwrap();
    let published = published.statement().sign(&[&key(1)]);
    let as_shared = Signed::from_bytes_of(Job::Shared, &published.to_bytes());
    assert!(matches!(as_shared, Err(Reject::Malformed { .. })));
    assert!(published.statement().shared_roles().is_err());
    assert_eq!(shared.statement().purpose(), Purpose::Policy);
}

/// The genesis policy with its extensions replaced.
fn with_extensions(extensions: &[(u64, &[u8])]) -> Result<SharedRoles, Reject> {
    let (_, signed) = genesis_policy();
    let good = signed.statement().bytes();
    let roles = signed.statement().shared_roles().unwrap();
    let (tail, count) = encoded(&roles);
    let mut bytes = good[..good.len() - tail.len()].to_vec();
    assert_eq!(good[bytes.len()], count);
    bytes.push(extensions.len() as u8);
    for (tag, value) in extensions {
        bytes.push(*tag as u8);
        bytes.push(value.len() as u8);
        bytes.extend_from_slice(value);
    }
    let statement = Statement::decode_of(Job::Shared, bytes.into())?;
    let read = statement.read::<Policy>(VolumeId::UNBORN).map(drop);
    let roles = statement.shared_roles();
    assert_eq!(read.err(), roles.as_ref().err().cloned());
    roles
}

fn encoded(roles: &SharedRoles) -> (Vec<u8>, u8) {
    let mut bytes = vec![0];
    let orderer = [&[1, 32][..], roles.orderer.as_bytes()].concat();
    let checkpointers: Vec<u8> = [2, 2]
        .into_iter()
        .chain(roles.checkpointers.keys().iter().flat_map(|key| {
            let key = key.as_bytes().iter().copied();
            [1, 32].into_iter().chain(key)
        }))
        .collect();
    let founder = roles.founder.as_ref().unwrap();
    let founder = [
        founder.user.as_slice(),
        &[3],
        b"ada",
        founder.device.as_bytes(),
    ]
    .concat();
    let silence = [0, 0x88, 0x13, 0, 0].to_vec();
    let values = [(1, orderer), (3, checkpointers), (7, silence), (9, founder)];
    for (tag, value) in &values {
        bytes.extend([*tag, value.len() as u8]);
        bytes.extend_from_slice(value);
    }
    bytes[0] = values.len() as u8;
    (bytes, values.len() as u8)
}

#[test]
fn malformed_extensions_of_a_shared_policy_are_refused() {
    let orderer = [&[1, 32][..], key(2).public().as_bytes()].concat();
    let device = *key(3).public().as_bytes();
    let founder = |name: &[u8]| [&[6; 32][..], &[name.len() as u8], name, &device].concat();
    let (terms, ada) = ([0, 1, 0, 0, 0], founder(b"ada"));
    let good: [(u64, &[u8]); 3] = [(1, &orderer), (7, &terms), (9, &ada)];
    let roles = with_extensions(&good).unwrap();
    assert_eq!(roles.checkpointers, Threshold::none());
    // Each is missing once, or has another value.
    for gone in 0..good.len() {
        let mut fewer = good.to_vec();
        fewer.remove(gone);
        assert!(with_extensions(&fewer).is_err(), "without {gone}");
    }
    let long = founder(&[b'a'; 65]);
    let control = founder(b"a\n");
    let orderer_of_another_length = &orderer[..33];
    let longer = [orderer.as_slice(), &[0]].concat();
    let nobody_signs = [0, 0];
    let cases: [(u64, &[u8]); 12] = [
        (1, orderer_of_another_length),
        (1, &longer),
        (1, &[]),
        (3, &nobody_signs),
        (7, &[0, 0, 0, 0, 0]),
        (7, &[0, 0x81, 0xee, 0x36, 0]),
        (7, &[0, 1, 0, 0]),
        (9, &long),
        (9, &control),
        (9, &founder(b"")),
        (9, &founder(&[0xff])),
        (9, &ada[..67]),
    ];
    let with = |tag: u64, value: &[u8]| {
        let mut changed = good.to_vec();
        changed.retain(|(known, _)| *known != tag);
        changed.push((tag, value));
        changed.sort_by_key(|(tag, _)| *tag);
        with_extensions(&changed)
    };
    for (tag, value) in cases {
        let found = with(tag, value);
        assert!(
            matches!(found, Err(Reject::Malformed { .. })),
            "{tag} {value:?}: {found:?}"
        );
    }
    // What a later bulla may mean is unsupported.
    let later_key = [&[2, 32][..], &[1; 32]].concat();
    for (tag, value) in [(1, later_key.as_slice()), (5, &[]), (7, &[2, 1, 0, 0, 0])] {
        let found = with(tag, value);
        assert!(
            matches!(found, Err(Reject::Unsupported { .. })),
            "{found:?}"
        );
    }
}

#[test]
fn orderer_changes_only_with_a_new_epoch() {
    let (volume, policies) = begun();
    let same = next_policy(&policies, None);
    let renewed = extend(&policies, &signed_policy(volume, &same, 2)).unwrap();
    assert_eq!(renewed.newest_epoch(), policies.newest_epoch());
    let other = extend(&policies, &signed_policy(volume, &same, 7)).err();
    assert_eq!(other, refusal("another orderer in the same epoch"));
    let next = next_policy(&policies, Some(start()));
    let moved = extend(&policies, &signed_policy(volume, &next, 7)).unwrap();
    let epoch = moved.newest_epoch();
    assert_eq!((epoch.number, epoch.start), (1, start()));
    assert_eq!(epoch.orderer, key(7).public());
    assert_eq!(moved.epoch(0), Some(policies.newest_epoch()));
    assert_eq!(moved.epoch(1), Some(epoch));
    assert!(moved.roles().founder.is_none());
    assert_eq!(moved.founder(), policies.founder());
}

#[test]
fn epoch_begins_with_a_prefix_of_the_one_before() {
    let (volume, policies) = begun();
    let next = next_policy(&policies, Some(start()));
    let refused = |change: &dyn Fn(&mut Successor)| {
        let mut changed = next.clone();
        change(&mut changed);
        extend(&policies, &signed_policy(volume, &changed, 2)).err()
    };
    assert_eq!(refused(&|_| ()), None);
    let no_start = refused(&|next| next.last = None);
    assert_eq!(no_start, refusal("an epoch without a start"));
    let elsewhere = "an epoch that does not begin with the one before";
    let with_last = |change: fn(&mut Last)| {
        refused(&|next: &mut Successor| change(next.last.as_mut().unwrap()))
    };
    assert_eq!(with_last(|last| last.log.epoch = 1), refusal(elsewhere));
    assert_eq!(with_last(|last| last.version = 1), refusal(elsewhere));
    let hash = with_last(|last| last.record_hash = [1; 32]);
    assert_eq!(hash, refusal(elsewhere));
    assert!(refused(&|next| next.log_epoch = 2).is_some());
    // The same epoch keeps its start, and a later one does not begin before it.
    let moved = extend(&policies, &signed_policy(volume, &next, 2)).unwrap();
    let mut other_start = next_policy(&moved, None);
    other_start.last.as_mut().unwrap().log.size = 2;
    let other_start = extend(&moved, &signed_policy(volume, &other_start, 2)).err();
    assert_eq!(other_start, refusal("another start of the same epoch"));
    let mut log = Log::default();
    log.push("a");
    let before = next_policy(&moved, Some(log.whole()));
    let before = extend(&moved, &signed_policy(volume, &before, 2)).err();
    assert_eq!(
        before,
        refusal("an epoch that begins before the one before")
    );
}

#[test]
fn policy_that_no_owner_signed_begins_no_epoch() {
    let (volume, policies) = begun();
    let next = next_policy(&policies, Some(start()));
    let roles = SharedRoles {
        founder: None,
        ..shared_roles(2)
    };
    let signed = successor(volume, &next, &roles).sign(&[&key(2)]);
    assert!(matches!(
        extend(&policies, &signed).err(),
        Some(Reject::NotSigned(_))
    ));
    let again = successor(volume, &next, &shared_roles(2)).sign(&[&key(1)]);
    let founder = extend(&policies, &again).err();
    assert_eq!(
        founder,
        refusal("a founder belongs to the genesis policy alone")
    );
}

#[test]
fn device_gives_up_its_own_leaves_only_if_the_policy_lowers() {
    let (_, policies) = begun();
    let epoch = Epoch {
        start: start(),
        ..*policies.newest_epoch()
    };
    assert!(epoch.takes_over(3) && !epoch.takes_over(4));
    let lowers = Epoch {
        lowers: true,
        ..epoch
    };
    assert!(lowers.takes_over(4));
}
