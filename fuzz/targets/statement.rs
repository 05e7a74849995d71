//! Arbitrary bytes as a signed statement. They are refused, or they are the canonical encoding; so is a body
//! of a known purpose.
#![no_main]

use bulla_fuzz::{honest_head, plant};
use libfuzzer_sys::fuzz_target;
use trust::policy::Policy;
use trust::root::RootRecord;
use trust::statement::{Body, Signed, Statement};
use trust::timestamp::Timestamp;

fn seeds() -> Vec<Vec<u8>> {
    let (_, head, _) = honest_head();
    let mut all: Vec<Vec<u8>> = head.policies.iter().map(Signed::to_bytes).collect();
    all.push(head.record.to_bytes());
    all.extend(head.timestamp.map(|t| t.to_bytes()));
    all
}

fn same<B: Body>(statement: &Statement) {
    if let Ok(body) = statement.read::<B>(statement.volume()) {
        let again = Statement::new(statement.volume(), &body);
        // Flags that may be ignored are not written again.
        assert_eq!(again.bytes()[..3], statement.bytes()[..3]);
        assert_eq!(again.bytes()[5..], statement.bytes()[5..]);
        assert_eq!(again.purpose(), statement.purpose());
    }
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Ok(signed) = Signed::from_bytes(data) else {
        return;
    };
    assert_eq!(signed.to_bytes(), data);
    assert!(signed.signatures().is_sorted_by(|a, b| a.key < b.key));
    same::<Policy>(signed.statement());
    same::<RootRecord>(signed.statement());
    same::<Timestamp>(signed.statement());
});
