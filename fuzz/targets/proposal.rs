//! Arbitrary bytes as the proposal of a policy. They are refused, or form a consistent proposal that an owner can sign and
//! that decodes to itself.
#![no_main]

use bulla_fuzz::{NOW, honest_head, key, plant, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::floor::Floor;
use trust::key::PublicKey;
use trust::policy::{Revocation, Roles, Threshold};
use trust::proposal::{Decided, Proposal, installed};
use trust::signatures::Signatures;

fn seeds() -> Vec<Vec<u8>> {
    let (_, head, _) = honest_head();
    let keys: Vec<PublicKey> = [1, 2].map(|number| key(number).public()).into();
    let decided = |lower, revoked| Decided {
        roles: Roles {
            owners: Threshold::new(2, keys.clone()).expect("a role"),
            ..Roles::single(key(1).public())
        },
        not_after: NOW + 1,
        lower,
        revoked,
        refused: vec![[1; 32]],
    };
    let all = [
        decided(false, None),
        decided(true, Some(Revocation { successor: None })),
    ];
    all.map(|decided| {
        let signatures = &mut Signatures::default();
        let mut proposal = Proposal::new(head.clone(), decided, signatures).expect("a proposal");
        let examined = proposal.examine(signatures).expect("consistent");
        proposal.sign(&examined, &key(1)).expect("an owner");
        proposal.encode().expect("a proposal")
    })
    .into()
}

fuzz_target!(
    init: { plant(seeds()); },
    |data: &[u8]| {
        let _ = Proposal::decode(data);
        let data = with_checksum(data);
        let Ok(mut proposal) = Proposal::decode(&data) else {
            return;
        };
        assert_eq!(proposal.encode().as_deref(), Ok(data.as_slice()));
        let mut signatures = Signatures::default();
        let Ok(examined) = proposal.examine(&mut signatures) else {
            return;
        };
        assert_eq!(examined.follows(&proposal.policy), Ok(()));
        if proposal.sign(&examined, &key(1)).is_ok() {
            let examined = proposal.examine(&mut signatures).expect("still consistent");
            let floor = Floor::new(examined.volume);
            let done = installed(&floor, &proposal.base, &proposal.policy, &mut signatures);
            // Only the owners have the keys.
            assert!(done.is_err() || examined.missing().is_empty());
        }
    }
);
