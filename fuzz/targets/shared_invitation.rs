//! Arbitrary text as an invitation, arbitrary bytes as the messages of an admission. They are refused, or they are the
//! canonical encoding; without the secret nothing is answered.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use trust::device::DeviceKey;
use trust::statement::VolumeId;
use trust::words::Words;
use trust_shared::entry::Prefix;
use trust_shared::invitation::{Challenge, Invitation, Joiner, Opening, Request, Secret};

fn invitation() -> Invitation {
    Invitation {
        volume: VolumeId::from_bytes([1; 32]),
        policy: [2; 32],
        epoch: 0,
        prefix: Prefix {
            size: 0,
            root: [3; 32],
        },
        server: "example".to_owned(),
        secret: Secret::from_bytes([0xee; 16]),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let of = |structure: &&str| shared_vectors(structure);
    let all = ["line", "request", "challenge", "opening"];
    let words = [b"zoo zoo zoo zoo zoo abandon".to_vec()];
    all.iter().flat_map(of).chain(words).collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Ok(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
        assert!(request.challenge(&invitation(), [1; 32]).is_err());
    }
    if let Ok(challenge) = Challenge::decode(data) {
        assert_eq!(challenge.encode(), data);
        let joiner = Joiner::new(invitation(), DeviceKey::from_bytes([4; 32]), [5; 32]);
        assert!(joiner.open(&challenge).is_err());
    }
    if let Ok(opening) = Opening::decode(data) {
        assert_eq!(opening.encode(), data);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(invitation) = Invitation::from_line(text) {
        assert_eq!(invitation.to_line().expect("a line").as_str(), text);
    }
    if let Ok(words) = text.parse::<Words>() {
        assert_eq!(words.to_string().parse(), Ok(words));
    }
});
