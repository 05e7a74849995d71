//! Arbitrary text as a volume id, a key or a handle. It is refused, or it is the canonical text of the value.
#![no_main]

use bulla_fuzz::{honest_head, key, plant};
use libfuzzer_sys::fuzz_target;
use trust::key::PublicKey;
use trust::statement::VolumeId;

fuzz_target!(
    init: plant([
        honest_head().0.to_string().into_bytes(),
        key(1).public().to_string().into_bytes(),
    ]),
    |data: &[u8]| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        if let Ok(volume) = text.parse::<VolumeId>() {
            assert_eq!(volume.to_string(), text);
        }
        if let Ok(key) = text.parse::<PublicKey>() {
            assert_eq!(key.to_string(), text);
            assert!(PublicKey::from_bytes(*key.as_bytes()).is_ok());
        }
    }
);
