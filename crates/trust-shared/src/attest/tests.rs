//! Tests of attests.

use proptest::prelude::*;

use super::super::samples::{VOLUME, device, key, refuses_cuts, refuses_flips};
use super::*;

fn attest(size: u64) -> Attest {
    Attest {
        epoch: 2,
        device: device(1),
        seen: Prefix {
            size,
            root: [9; 32],
        },
    }
}

fn decode(bytes: &[u8]) -> Result<SignedAttest, Reject> {
    SignedAttest::decode(Bytes::copy_from_slice(bytes))
}

#[test]
fn attest_with_any_bit_or_length_changed_is_refused() {
    let signed = attest(300).sign(VOLUME, &key(1)).unwrap();
    refuses_cuts(signed.bytes(), |bytes| decode(bytes).map(drop));
    refuses_flips(signed.bytes(), |bytes| {
        decode(bytes)?.verify(VOLUME).map(drop)
    });
}

#[test]
fn attest_holds_for_one_volume_and_one_use() {
    let signed = attest(300).sign(VOLUME, &key(1)).unwrap();
    assert_eq!(signed.verify(VOLUME).unwrap().attest(), &attest(300));
    assert!(signed.verify(VolumeId::from_bytes([8; 32])).is_err());
    assert!(attest(300).sign(VOLUME, &key(2)).is_err());
    let part = signed.bytes()[..signed.bytes().len() - SIGNATURE_BYTES].to_vec();
    let other = device::sign(b"bulla entry signature 0\n", VOLUME, part, &key(1));
    assert!(decode(&other).unwrap().verify(VOLUME).is_err());
}

#[test]
fn known_device_verifies_only_what_names_it() {
    let signed = attest(300).sign(VOLUME, &key(1)).unwrap();
    let known = |number| KnownDevice::new(device(number)).unwrap();
    assert!(signed.verify_by(VOLUME, &known(1)).is_ok());
    let other = VolumeId::from_bytes([8; 32]);
    assert!(signed.verify_by(other, &known(1)).is_err());
    // It names device 1, and device 2 has signed it.
    let part = signed.bytes()[..signed.bytes().len() - SIGNATURE_BYTES].to_vec();
    let forged = device::sign(SIGNING_DOMAIN, VOLUME, part, &key(2));
    let forged = decode(&forged).unwrap();
    assert!(forged.verify_by(VOLUME, &known(1)).is_err());
    assert!(forged.verify_by(VOLUME, &known(2)).is_err());
}

proptest! {
    #[test]
    fn attests_have_one_encoding(epoch: u64, size: u64, root: [u8; 32]) {
        let made = Attest { epoch, device: device(1), seen: Prefix { size, root } };
        let signed = made.sign(VOLUME, &key(1)).unwrap();
        prop_assert_eq!(signed.attest(), &made);
        prop_assert_eq!(decode(signed.bytes()).unwrap(), signed);
    }
}
