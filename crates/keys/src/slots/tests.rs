//! Tests of key slots: what opens them, what does not, and hostile bytes.

use proptest::prelude::*;

use super::*;

const VOLUME: [u8; 16] = *b"a volume, 16 by.";
const KEY: [u8; 32] = [0x4b; 32];

fn file(byte: u8) -> [u8; 64] {
    [byte; 64]
}

/// Slots that the key file of ones, a recovery key of twos and a command's threes open.
fn three() -> KeySlots {
    let mut slots = KeySlots::create(VOLUME, &KEY, &Credential::KeyFile(&file(1))).unwrap();
    let recovery = RecoveryKey::new([2; 20]);
    let added = slots.add(&KEY, &Credential::Recovery(&recovery)).unwrap();
    assert_eq!(added, 1);
    let added = slots.add(&KEY, &Credential::Command(&file(3))).unwrap();
    assert_eq!(added, 2);
    slots
}

/// A region with one slot of this kind and body, with a right checksum.
fn region(slots: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"bulla key slots\n".to_vec();
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&VOLUME);
    bytes.push(slots.len() as u8);
    for (number, kind, body) in slots {
        bytes.extend_from_slice(&[*number, *kind]);
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    sum(bytes)
}

fn sum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = blake3::hash(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

/// The body of a passphrase slot with this cost.
fn costly(memory_kib: u32, passes: u32, lanes: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for number in [memory_kib, passes, lanes] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    body.resize(12 + 16 + 24 + 48, 9);
    body
}

#[test]
fn each_kind_of_credential_opens_its_own_slot() {
    let slots = three();
    let slots = KeySlots::decode(&slots.encode(), VOLUME).unwrap();
    let recovery = RecoveryKey::new([2; 20]);
    for (number, credential) in [
        (0, Credential::KeyFile(&file(1))),
        (1, Credential::Recovery(&recovery)),
        (2, Credential::Command(&file(3))),
    ] {
        let (opened, key) = slots.open(&credential, None).unwrap();
        assert_eq!((opened, *key), (number, KEY));
        assert!(slots.open(&credential, Some(number)).is_ok());
        assert!(slots.open(&credential, Some(number + 1)).is_err());
    }
    // The bytes of a key file are not a command's output.
    for wrong in [
        Credential::Command(&file(1)),
        Credential::KeyFile(&file(3)),
        Credential::KeyFile(&file(9)),
    ] {
        let kind = wrong.kind();
        assert_eq!(
            slots.open(&wrong, None).unwrap_err(),
            SlotError::WrongKey { kind }
        );
    }
    let passphrase = slots.open(&Credential::Passphrase(b"x"), None);
    let kind = SlotKind::Passphrase;
    let number = None;
    assert_eq!(
        passphrase.unwrap_err(),
        SlotError::NoSuchKind { kind, number }
    );
    let listed: Vec<String> = slots
        .list()
        .map(|(n, kind)| format!("{n} {kind}"))
        .collect();
    assert_eq!(listed, ["0 key-file", "1 recovery", "2 command"]);
}

#[test]
fn passphrase_opens_its_slot_and_another_one_is_a_wrong_key() {
    let right = Credential::Passphrase(b"correct horse");
    let slots = KeySlots::create(VOLUME, &KEY, &right).unwrap();
    let slots = KeySlots::decode(&slots.encode(), VOLUME).unwrap();
    assert_eq!(*slots.open(&right, None).unwrap().1, KEY);
    let wrong = slots.open(&Credential::Passphrase(b"correct house"), None);
    let kind = SlotKind::Passphrase;
    assert_eq!(wrong.unwrap_err(), SlotError::WrongKey { kind });
    let empty = KeySlots::create(VOLUME, &KEY, &Credential::Passphrase(b""));
    assert_eq!(empty.unwrap_err(), SlotError::Empty);
}

#[test]
fn slot_of_another_volume_or_number_opens_nothing() {
    let slots = three();
    let other = *b"another volume..";
    let bytes = slots.encode();
    assert_eq!(
        KeySlots::decode(&bytes, other).unwrap_err(),
        SlotError::OtherVolume
    );
    // The volume id is replaced, and the checksum with it.
    let mut moved = bytes[..bytes.len() - 32].to_vec();
    moved[24..40].copy_from_slice(&other);
    let moved = KeySlots::decode(&sum(moved), other).unwrap();
    let credential = Credential::KeyFile(&file(1));
    let kind = SlotKind::KeyFile;
    assert_eq!(
        moved.open(&credential, None).unwrap_err(),
        SlotError::WrongKey { kind }
    );
    let mut renumbered = slots;
    renumbered.slots[0].number = 5;
    assert!(renumbered.open(&credential, None).is_err());
}

#[test]
fn cost_that_a_slot_states_is_covered_by_its_seal() {
    let right = Credential::Passphrase(b"word");
    let mut slots = KeySlots::create(VOLUME, &KEY, &right).unwrap();
    let Body::Passphrase(cost, ..) = &mut slots.slots[0].body else {
        panic!("a passphrase slot");
    };
    // Cheap, so that a thief of this machine's guesses could try many.
    *cost = Cost {
        memory_kib: 64,
        passes: 1,
        lanes: 1,
    };
    assert!(slots.open(&right, None).is_err());
}

#[test]
fn last_slot_stays() {
    let mut slots = three();
    assert_eq!(
        slots.remove(7).unwrap_err(),
        SlotError::NoSlot { number: 7 }
    );
    slots.remove(1).unwrap();
    slots.remove(0).unwrap();
    let last = SlotError::LastSlot { number: 2 };
    assert_eq!(slots.remove(2).unwrap_err(), last);
    // A slot that opens nothing here does not count.
    slots.slots.push(Slot {
        number: 9,
        body: Body::Foreign(77, vec![1]),
    });
    assert_eq!(slots.remove(2).unwrap_err(), last);
    assert_eq!(slots.add(&KEY, &Credential::KeyFile(&file(4))).unwrap(), 0);
    slots.remove(2).unwrap();
    slots.remove(9).unwrap();
    assert!(slots.open(&Credential::KeyFile(&file(4)), None).is_ok());
}

#[test]
fn all_numbers_can_be_used_and_no_more() {
    let mut slots = three();
    for _ in 3..MAX_SLOTS {
        slots.add(&KEY, &Credential::KeyFile(&file(1))).unwrap();
    }
    let full = slots.add(&KEY, &Credential::KeyFile(&file(1)));
    assert_eq!(full.unwrap_err(), SlotError::Full);
    let bytes = slots.encode();
    assert!(bytes.len() <= MAX_REGION_BYTES);
    assert_eq!(KeySlots::decode(&bytes, VOLUME).unwrap(), slots);
}

#[test]
fn short_or_long_key_is_no_key() {
    for bytes in [0, MIN_KEY_BYTES - 1, MAX_KEY_BYTES + 1] {
        let material = vec![1; bytes];
        for credential in [
            Credential::KeyFile(&material),
            Credential::Command(&material),
        ] {
            let kind = credential.kind();
            let refused = KeySlots::create(VOLUME, &KEY, &credential).unwrap_err();
            assert_eq!(refused, SlotError::KeyLength { kind, bytes });
        }
    }
}

#[test]
fn slot_of_an_unknown_kind_is_kept_and_ignored() {
    let mut slots = three();
    slots.slots.push(Slot {
        number: 30,
        body: Body::Foreign(200, b"of a later version".to_vec()),
    });
    let bytes = slots.encode();
    let mut again = KeySlots::decode(&bytes, VOLUME).unwrap();
    assert_eq!(again.encode(), bytes);
    assert_eq!(again.list().last(), Some((30, SlotKind::Unknown(200))));
    assert!(again.open(&Credential::KeyFile(&file(1)), None).is_ok());
    again.add(&KEY, &Credential::KeyFile(&file(5))).unwrap();
    let bytes = again.encode();
    let found = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(found(b"of a later version"));
}

#[test]
fn slot_that_costs_too_much_is_never_tried() {
    let word = Credential::Passphrase(b"word");
    for body in [
        costly(u32::MAX, 1, 1),
        costly((1 << 20) + 1, 1, 1),
        costly(64, u32::MAX, 1),
        costly(64, 1, u32::MAX),
        costly(0, 0, 0),
    ] {
        let slots = KeySlots::decode(&region(&[(0, 1, body)]), VOLUME).unwrap();
        let kind = SlotKind::Passphrase;
        let number = None;
        assert_eq!(
            slots.open(&word, None).unwrap_err(),
            SlotError::NoSuchKind { kind, number }
        );
    }
}

#[test]
fn many_slots_cannot_cost_more_than_the_most_costly_one() {
    // Two of 1 GiB and 16 passes: the first alone would use all of the work. The second is not tried.
    let body = || costly(1 << 20, 16, 1);
    let slots = KeySlots::decode(&region(&[(0, 1, body()), (1, 1, body())]), VOLUME).unwrap();
    let work: u64 = slots
        .slots
        .iter()
        .filter_map(Slot::cost)
        .map(Cost::work_kib)
        .sum();
    assert_eq!(work, 2 * MAX_WORK_KIB);
    // Cheap ones before it use work too.
    let cheap = costly(8, 1, 1);
    let slots = [(0, 1, cheap.clone()), (1, 1, cheap), (2, 1, body())];
    let slots = KeySlots::decode(&region(&slots), VOLUME).unwrap();
    let refused = slots.open(&Credential::Passphrase(b"word"), None);
    assert_eq!(refused.unwrap_err(), SlotError::TooCostly { number: 2 });
}

#[test]
fn malformed_regions_are_refused() {
    let good = three().encode();
    for cut in 0..good.len() {
        assert!(KeySlots::decode(&good[..cut], VOLUME).is_err(), "{cut}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(KeySlots::decode(&bad, VOLUME).is_err(), "{at}");
    }
    let strong = || vec![5; 24 + 48];
    for (slots, why) in [
        (vec![], "the number of slots is not 1 to 32"),
        (
            vec![(1, 2, strong()), (0, 2, strong())],
            "the slots are not in order",
        ),
        (
            vec![(1, 2, strong()), (1, 2, strong())],
            "the slots are not in order",
        ),
        (vec![(32, 2, strong())], "the slots are not in order"),
        (vec![(0, 0, strong())], "a slot has no kind"),
        (
            vec![(0, 2, vec![5; 71])],
            "a slot has another length than its kind",
        ),
        (
            vec![(0, 4, vec![5; 73])],
            "a slot has another length than its kind",
        ),
        (
            vec![(0, 1, vec![5; 101])],
            "a slot has another length than its kind",
        ),
        (vec![(0, 200, vec![5; 1025])], "a slot is too long"),
    ] {
        let refused = KeySlots::decode(&region(&slots), VOLUME).unwrap_err();
        assert_eq!(refused, SlotError::Malformed { why });
    }
    let mut later = good.clone();
    later[16] = 1;
    let (format, flags) = (1, 0);
    assert_eq!(
        KeySlots::decode(&later, VOLUME).unwrap_err(),
        SlotError::Unsupported { format, flags }
    );
    let too_long = vec![0; MAX_REGION_BYTES + 1];
    assert!(KeySlots::decode(&too_long, VOLUME).is_err());
}

/// The example of docs/formats/key-slots.md.
#[test]
fn bytes_are_those_of_the_document() {
    let mut slots = KeySlots {
        volume: std::array::from_fn(|i| i as u8),
        slots: vec![],
    };
    let key = std::array::from_fn(|i| 0x80 + i as u8);
    let file: [u8; 32] = std::array::from_fn(|i| 0x40 + i as u8);
    let seal = || Seal {
        nonce: [0x24; NONCE_BYTES],
        sealed: [0; format::SEALED_BYTES],
    };
    let cost = Cost {
        memory_kib: 64,
        passes: 1,
        lanes: 1,
    };
    for (number, body, credential) in [
        (
            0,
            Body::Passphrase(cost, [0x5a; SALT_BYTES], seal()),
            Credential::Passphrase(b"bulla"),
        ),
        (
            3,
            Body::Strong(SlotKind::KeyFile, seal()),
            Credential::KeyFile(&file),
        ),
    ] {
        let mut slot = Slot { number, body };
        slots.seal(&mut slot, &key, &credential).unwrap();
        slots.slots.push(slot);
    }
    let hex: String = slots.encode().iter().map(|b| format!("{b:02x}")).collect();
    let document = include_str!("../../../../docs/formats/key-slots.md");
    for chunk in hex.as_bytes().chunks(64) {
        let line = std::str::from_utf8(chunk).unwrap();
        assert!(document.contains(line), "the document lacks {line}\n{hex}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_canonical(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut whole = b"bulla key slots\n".to_vec();
        whole.extend_from_slice(&[0; 8]);
        whole.extend_from_slice(&VOLUME);
        whole.append(&mut bytes);
        let whole = sum(whole);
        if let Ok(slots) = KeySlots::decode(&whole, VOLUME) {
            prop_assert_eq!(slots.encode(), whole);
        }
    }

    #[test]
    fn slots_behave_like_a_list_of_keys(steps in prop::collection::vec((0_u8..6, 0_u8..4), 1..30)) {
        let mut slots = KeySlots::create(VOLUME, &KEY, &Credential::KeyFile(&file(0))).unwrap();
        let mut model = vec![(0_u8, 0_u8)];
        for (remove, byte) in steps {
            if model.iter().any(|(number, _)| *number == remove) && byte == 0 {
                let removed = slots.remove(remove);
                prop_assert_eq!(removed.is_ok(), model.len() > 1);
                if model.len() > 1 {
                    model.retain(|(number, _)| *number != remove);
                }
            } else {
                let number = slots.add(&KEY, &Credential::KeyFile(&file(byte))).unwrap();
                prop_assert!(model.iter().all(|(other, _)| *other != number));
                model.push((number, byte));
            }
            slots = KeySlots::decode(&slots.encode(), VOLUME).unwrap();
            for byte in 0..4 {
                let opens = slots.open(&Credential::KeyFile(&file(byte)), None).is_ok();
                prop_assert_eq!(opens, model.iter().any(|(_, other)| *other == byte));
            }
        }
    }
}
