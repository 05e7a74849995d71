//! Arbitrary bytes as policies of a shared volume. They are refused, or their roles are within bounds; no published
//! volume has them.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use trust::encode::Decoder;
use trust::policy::Policy;
use trust::signatures::Signatures;
use trust::statement::{Job, Purpose, Signed, VolumeId};
use trust_shared::genesis::{MAX_PATIENCE_MS, Policies};

fn check(signed: &Signed) {
    let statement = signed.statement();
    let Ok(roles) = statement.shared_roles() else {
        return;
    };
    assert_eq!(statement.purpose(), Purpose::Policy);
    let policy: Policy = statement.read(statement.volume()).expect("a policy");
    assert!((1..=MAX_PATIENCE_MS).contains(&roles.patience_ms));
    let keys = roles.checkpointers.keys().len() + roles.checkpointers.unknown().len();
    assert_eq!(keys == 0, roles.checkpointers.needed() == 0);
    assert_eq!(
        roles.founder.is_some(),
        statement.volume() == VolumeId::UNBORN
    );
    // The same policy and roles are the same statement, but for extensions that a reader ignores.
    let again = trust::statement::Statement::shared_policy(statement.volume(), &policy, &roles);
    assert!(again.bytes().len() <= statement.bytes().len());
    assert!(Signed::from_bytes(&signed.to_bytes()).is_err());
}

fuzz_target!(init: plant(shared_vectors("policies")), |data: &[u8]| {
    let mut d = Decoder::new(data, "policies");
    let mut policies = Vec::new();
    while d.remaining() > 0 && policies.len() < 16 {
        let Ok(signed) = Signed::decode_of(Job::Shared, &mut d) else {
            break;
        };
        check(&signed);
        policies.push(signed);
    }
    let Some(first) = policies.first() else {
        return;
    };
    let volume = VolumeId::from_bytes(first.hash());
    if let Ok(verified) = Policies::verify(volume, &policies, &mut Signatures::default()) {
        assert_eq!(verified.chain().len(), policies.len() as u64);
        let newest = verified.newest_epoch();
        assert_eq!(newest.orderer, verified.roles().orderer);
        assert_eq!(verified.epoch(newest.number), Some(newest));
    }
});
