//! Arbitrary bytes as a message of a client of a shared volume: type, then body. They are refused, or they are the
//! message's one encoding, within the limit of its type.
#![no_main]

use bulla_fuzz::{key, plant, shared_vectors};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use trust::encode::Encoder;
use trust::volume_id::VolumeId;
use wire::frame::HEADER_BYTES;
use wire::session::{Claim, Exporter};
use wire::shared::enter::{Enter, MAX_ENTER_BYTES, SIGNING_DOMAIN};
use wire::shared::kind;
use wire::shared::request::{Request, max_body_bytes};

const VOLUME: VolumeId = VolumeId::from_bytes([1; 32]);

fn seeds() -> Vec<Vec<u8>> {
    let message = |kind: u8, body: &[u8]| [&[kind], body].concat();
    let mut seeds = vec![
        message(kind::RETRIEVE, &[1; 64]),
        message(kind::LEAVES, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]),
        message(kind::BODIES, &[1, 0, 0, 0, 0, 0, 0, 0]),
        message(kind::CHECKPOINT, &[1; 200]),
        message(kind::CHECKPOINTS, &[]),
        message(kind::POST, &[1; 40]),
        message(kind::TAKE, &[&[1; 17][..], &[0; 4]].concat()),
    ];
    for leaf in shared_vectors("leaf") {
        let mut e = Encoder::new();
        e.bytes(&leaf).raw(b"body");
        seeds.push(message(kind::ENTRY, &e.finish()));
    }
    for attest in shared_vectors("attest") {
        seeds.push(message(kind::ATTEST, &attest));
    }
    for note in shared_vectors("note") {
        seeds.push(message(kind::OPEN, &note));
    }
    let mut enter = BytesMut::new();
    let device = Some(Claim::new(
        SIGNING_DOMAIN,
        VOLUME,
        &key(2),
        &Exporter([3; 32]),
    ));
    Enter {
        volume: VOLUME,
        device,
    }
    .put(1, &mut enter);
    seeds.push(message(kind::ENTER, &enter[HEADER_BYTES..]));
    seeds
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let mut again = BytesMut::new();
    if let Ok(request) = Request::decode(*kind, body) {
        assert!(max_body_bytes(*kind).is_some_and(|most| body.len() <= most));
        assert_eq!(request.kind(), *kind);
        request.put(7, &mut again);
        assert_eq!(&again[HEADER_BYTES..], body);
    }
    if *kind == kind::ENTER && let Ok(enter) = Enter::decode(body) {
        assert!(body.len() <= MAX_ENTER_BYTES);
        enter.put(1, &mut again);
        assert_eq!(&again[HEADER_BYTES..], body);
        if let Some(claim) = enter.device {
            let _ = claim.verify(SIGNING_DOMAIN, VOLUME, &Exporter([3; 32]));
        }
    }
});
