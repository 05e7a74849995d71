//! Arbitrary bytes as the body of each statement. They are refused, or they are the canonical encoding.
#![no_main]

use bulla_fuzz::{honest_head, key, plant};
use libfuzzer_sys::fuzz_target;
use trust::encode::{Decoder, Encoder};
use trust::history::LogPoint;
use trust::policy::{Last, Policy, Revocation, Roles, Successor};
use trust::root::RootRecord;
use trust::statement::Body;
use trust::timestamp::Timestamp;

fn seeds() -> Vec<Vec<u8>> {
    let (volume, head, _) = honest_head();
    let timestamp = head.timestamp.as_ref();
    let statements = head.policies.iter().chain([&head.record]).chain(timestamp);
    let mut all: Vec<Vec<u8>> = statements
        .map(|s| s.statement().bytes()[39..].to_vec())
        .collect();
    let successor = Successor {
        number: 1,
        previous: [1; 32],
        not_after: 9,
        log_epoch: 1,
        roles: Roles::single(key(1).public()),
        last: Some(Last {
            version: 3,
            record_hash: [2; 32],
            log: LogPoint {
                epoch: 0,
                size: 4,
                root: [3; 32],
            },
        }),
        lower: true,
        revoked: Some(Revocation {
            successor: Some(volume),
        }),
        refused: vec![[4; 32], [5; 32]],
    };
    all.push(successor.statement(volume).bytes()[39..].to_vec());
    all
}

fn same<B: Body>(data: &[u8]) -> Option<B> {
    let mut d = Decoder::new(data, "body");
    let body = B::decode(&mut d).ok()?;
    let mut again = Encoder::new();
    body.encode(&mut again);
    assert_eq!(again.finish(), data[..data.len() - d.remaining()]);
    Some(body)
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Some(policy) = same::<Policy>(data) {
        let roles = policy.roles();
        for role in [&roles.owners, &roles.publishers] {
            let keys = role.keys().len() + role.unknown().len();
            assert!((1..=keys).contains(&usize::from(role.needed())));
        }
        assert_eq!(roles.timestamps.is_empty(), roles.timestamp_max == 0);
    }
    if let Some(record) = same::<RootRecord>(data) {
        assert!(record.version > 0 && record.mirrors.len() <= 16);
        assert!(record.until() >= record.start);
        assert!(record.mirrors.iter().all(|m| m.bytes().all(|b| b.is_ascii_graphic())));
    }
    same::<Timestamp>(data);
});
