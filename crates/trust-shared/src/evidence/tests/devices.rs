//! Evidence against devices.

use super::*;

#[test]
fn device_that_signed_twice_is_convicted_without_the_orderer() {
    let world = World::new();
    let verdict = world.judge(twice(&world, |entry| entry.kept = 0)).unwrap();
    assert_eq!(verdict.convicted, Convicted::Device(device(AUTHOR)));
    assert!(verdict.to_string().starts_with("the device key1"));
    let two_resumes = {
        let one = world.resume(AUTHOR, 9);
        let other = Entry {
            kept: 0,
            ..one.clone()
        };
        let [one, other] = [one, other].map(|entry| world.sign(AUTHOR, &entry));
        world.judge(Offence::signed_twice(one, other))
    };
    assert!(two_resumes.is_ok());
}

#[test]
fn entries_with_different_numbers_convict_no_device() {
    let world = World::new();
    let other_number = |change: fn(&mut Entry)| world.judge(twice(&world, change)).err();
    let different = Some(Reject::BadHistory("entries with different numbers"));
    let next = |entry: &mut Entry| {
        let Content::Ops(ops) = &mut entry.content else {
            unreachable!()
        };
        ops.n += 1;
    };
    assert_eq!(other_number(next), different);
    let run = |entry: &mut Entry| entry.incarnation = Incarnation::from_bytes([2; 16]);
    assert_eq!(other_number(run), different);
    assert_eq!(other_number(|entry| entry.epoch = 1), different);
    let same = world.sign(AUTHOR, &world.write(2, 3));
    let same = Offence::signed_twice(same.clone(), same);
    assert!(world.judge(same).is_err());
}

/// A signature by the same key over the same words: the signer did nothing wrong, and anybody can spoil a signature.
#[test]
fn second_signature_of_one_entry_convicts_no_device() {
    let world = World::new();
    let entry = world.sign(AUTHOR, &world.write(2, 3));
    let mut spoilt = entry.bytes().to_vec();
    *spoilt.last_mut().unwrap() ^= 1;
    let spoilt = SignedEntry::decode(spoilt.into()).unwrap();
    let refused = world.judge(Offence::signed_twice(entry, spoilt));
    assert_eq!(
        refused.err(),
        Some(Reject::BadHistory("the same entry, signed twice"))
    );
}

#[test]
fn entry_that_the_device_did_not_sign_does_not_convict_it() {
    let world = World::new();
    let Offence::SignedTwice(both) = twice(&world, |entry| entry.kept = 0) else {
        unreachable!()
    };
    let [first, second] = *both;
    let forge = |entry: &SignedEntry| {
        let mut forged = entry.bytes().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        SignedEntry::decode(forged.into()).unwrap()
    };
    let judge = |first: &SignedEntry, second: &SignedEntry| {
        let both = [first.clone(), second.clone()];
        world.judge(Offence::SignedTwice(Box::new(both)))
    };
    assert!(judge(&first, &second).is_ok());
    for refused in [
        judge(&forge(&first), &second),
        judge(&first, &forge(&second)),
    ] {
        assert!(matches!(refused, Err(Reject::NotSigned(_))), "{refused:?}");
    }
    // One offence has one file.
    let reversed = judge(&second, &first);
    assert!(
        matches!(reversed, Err(Reject::Malformed { .. })),
        "{reversed:?}"
    );
}
