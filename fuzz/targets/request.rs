//! Arbitrary bytes as a signing request. They are refused, or form a consistent request that can be signed
//! and decodes to itself.
#![no_main]

use bulla_fuzz::{NOW, honest_head, key, plant, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::policy::{Genesis, Roles};
use trust::request::{Base, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;

fn seeds() -> Vec<Vec<u8>> {
    let (volume, head, log) = honest_head();
    let record: RootRecord = head.record.statement().read(volume).expect("a record");
    let next = RootRecord {
        version: record.version + 1,
        log,
        ..record.clone()
    };
    let later = Request {
        base: Base::Head(Box::new(head)),
        record: next.statement(volume).sign(&[&key(2)]),
    };
    let roles = Roles::single(key(1).public());
    let genesis = Genesis::new("seed", [1; 32], [2; 32], roles).expect("a policy");
    let policy = genesis.statement().sign(&[]);
    let (log, _) = trust::head::first_log(&policy).expect("a log");
    let first = RootRecord {
        version: 1,
        policy_hash: policy.hash(),
        log,
        ..record
    };
    let first = Request {
        record: first.statement(genesis.volume_id()).sign(&[]),
        base: Base::Genesis(policy),
    };
    [later, first]
        .map(|r| r.encode().expect("a request"))
        .into()
}

fuzz_target!(
    init: { plant(seeds()); },
    |data: &[u8]| {
        let _ = Request::decode(data);
        let data = with_checksum(data);
        let Ok(mut request) = Request::decode(&data) else {
            return;
        };
        assert_eq!(request.encode().as_deref(), Ok(data.as_slice()));
        let mut signatures = Signatures::default();
        let Ok(examined) = request.examine(&mut signatures) else {
            return;
        };
        let head = request.head(&examined);
        assert!(head.next_log(examined.volume).is_ok());
        let _ = examined.follows(&request.base, &head);
        if request.sign(&examined, NOW, 60, &key(1)).is_ok() {
            let before = examined.previous.as_ref().map_or(0, |(record, _)| record.start);
            assert!(request.examine(&mut signatures).is_ok() || NOW < before);
        }
    }
);
