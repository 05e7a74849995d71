//! Arbitrary bytes as the key slots of a device, with a right checksum so that the decoder is reached. They are refused, or
//! they are the canonical encoding; whatever they are, a key file that is not theirs opens nothing.
#![no_main]

use bulla_fuzz::plant;
use keys::slots::{Credential, KeySlots, MAX_REGION_BYTES, RecoveryKey};
use libfuzzer_sys::fuzz_target;

const VOLUME: [u8; 16] = [7; 16];

fn seed() -> Vec<u8> {
    let key = [1; 32];
    let recovery = RecoveryKey::new([3; 20]);
    let mut slots = KeySlots::create(VOLUME, &key, &Credential::KeyFile(&[2; 64])).expect("a slot");
    for credential in [
        Credential::Recovery(&recovery),
        Credential::Passphrase(b"word"),
        Credential::Command(&[4; 32]),
    ] {
        slots.add(&key, &credential).expect("a slot");
    }
    let bytes = slots.encode();
    bytes[..bytes.len() - 32].to_vec()
}

fuzz_target!(init: plant([seed()]), |data: &[u8]| {
    let _ = KeySlots::decode(data, VOLUME);
    let mut bytes = data.to_vec();
    bytes.extend_from_slice(blake3::hash(data).as_bytes());
    let Ok(mut slots) = KeySlots::decode(&bytes, VOLUME) else {
        return;
    };
    assert!(bytes.len() <= MAX_REGION_BYTES);
    assert_eq!(slots.encode(), bytes);
    assert!(slots.open(&Credential::KeyFile(&[9; 64]), None).is_err());
    for number in 0..4 {
        let before = slots.list().count();
        let removed = slots.remove(number).is_ok();
        assert_eq!(slots.list().count(), before - usize::from(removed));
    }
    assert!(slots.list().next().is_some());
});
