//! Arbitrary bytes as the request of a timestamp. They are refused, or form a consistent request that a timestamp key can
//! sign and that decodes to itself. What a signer confirms continues what it confirmed before.
#![no_main]

use bulla_fuzz::{NOW, honest_head, key, plant, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::floor::Floor;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::timestamp_request::TimestampRequest;

fn seeds() -> Vec<Vec<u8>> {
    let (volume, head, _) = honest_head();
    let signatures = &mut Signatures::default();
    let chain = Floor::new(volume)
        .known_chain(&head, signatures)
        .expect("a chain");
    let policy = (chain.newest(), chain.newest_hash());
    let mut request = TimestampRequest::new(&head, policy, NOW, 60).expect("a request");
    let unsigned = request.encode().expect("a request");
    let examined = request.examine(signatures).expect("consistent");
    request.sign(&examined, &key(3)).expect("a timestamp key");
    vec![unsigned, request.encode().expect("a request")]
}

fuzz_target!(
    init: { plant(seeds()); },
    |data: &[u8]| {
        let _ = TimestampRequest::decode(data);
        let data = with_checksum(data);
        let Ok(mut request) = TimestampRequest::decode(&data) else {
            return;
        };
        assert!(TimestampRequest::is_claimed_by(&data));
        assert_eq!(request.encode().as_deref(), Ok(data.as_slice()));
        let mut signatures = Signatures::default();
        let Ok(examined) = request.examine(&mut signatures) else {
            return;
        };
        let (volume, last, _) = honest_head();
        if examined.volume == volume
            && request.follows(&examined, Some(&last), (NOW, false), &mut signatures).is_ok()
        {
            let confirmed: RootRecord = last.record.statement().read(volume).expect("a record");
            assert!(examined.record.version >= confirmed.version);
        }
        if request.sign(&examined, &key(3)).is_ok() {
            let examined = request.examine(&mut signatures).expect("still consistent");
            assert!(examined.keys.signed.contains(&key(3).public()));
        }
    }
);
