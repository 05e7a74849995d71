//! Rule 3 of design `trees.md`: whether a root record counts under the newest policy that the reader knows.
//! Relies on a verified chain. The floor and the time are judged elsewhere.

use crate::error::Reject;
use crate::published::head::Head;
use crate::published::root::RootRecord;
use crate::statement::Signed;
use crate::statement::chain::{Chain, Link};
use crate::statement::policy::Policy;
use crate::statement::signatures::Signatures;

/// The record, if it is signed by the publishers of the policy that it names. Of a policy that the chain does not
/// keep, only the record counts that the newest policy names.
pub(crate) fn signed_record(
    signed: &Signed,
    chain: &Chain,
    signatures: &mut Signatures,
) -> Result<RootRecord, Reject> {
    let record: RootRecord = signed.statement().read(chain.volume())?;
    // Not the genesis, if policies after it are not kept: they might refuse the record.
    let kept = record.policy_number >= chain.oldest();
    match chain.link(record.policy_number).filter(|_| kept) {
        Some(link) => record_under(signed, record, link, signatures),
        // The owners vouch for the record that the newest policy names, whoever signed it.
        None if is_last(chain.newest(), signed) => Ok(record),
        None if !kept => Err(Reject::Superseded(
            "a root record under a policy older than the newest seven",
        )),
        None => Err(Reject::NotSigned("root record, under an unknown policy")),
    }
}

fn is_last(newest: &Policy, signed: &Signed) -> bool {
    let last = newest.last();
    last.is_some_and(|last| last.record_hash == signed.hash())
}

/// The record, if it is under this policy and its publishers signed it.
pub(crate) fn record_under(
    signed: &Signed,
    record: RootRecord,
    link: &Link,
    signatures: &mut Signatures,
) -> Result<RootRecord, Reject> {
    let Link { policy, hash, .. } = link;
    if *hash != record.policy_hash {
        return Err(Reject::NotSigned("root record, under another policy"));
    }
    if policy.log_epoch() != record.log.epoch {
        return Err(Reject::NotSigned("root record, in another log"));
    }
    signatures.require(signed, &policy.roles().publishers, "root record")?;
    if record.duration > policy.roles().record_max {
        return Err(Reject::NotSigned(
            "root record, valid for longer than the policy allows",
        ));
    }
    Ok(record)
}

/// Refuses a record that the newest policy does not let count. Where the head shows fewer policies than the
/// reader knows and its record counts under those, it is old and nobody lied.
pub(crate) fn superseded(
    chain: &Chain,
    head: &Head,
    record: &RootRecord,
    signatures: &mut Signatures,
) -> Result<(), Reject> {
    let counts = |newest: &Policy, signatures: &mut Signatures| {
        check_counts(chain, newest, record, &head.record, signatures)
    };
    let Err(why) = counts(chain.newest(), signatures) else {
        return Ok(());
    };
    match shown_newest(chain, head) {
        Some((shown, _)) if counts(shown, signatures).is_ok() => Err(Reject::Superseded(
            "a root record under a policy that has a successor",
        )),
        _ => Err(why),
    }
}

/// Rule 3: whether a record, signed as its own policy demands, counts where `newest` is the newest policy.
pub(crate) fn check_counts(
    chain: &Chain,
    newest: &Policy,
    record: &RootRecord,
    signed: &Signed,
    signatures: &mut Signatures,
) -> Result<(), Reject> {
    if record.policy_number == newest.number() {
        return Ok(());
    }
    if is_last(newest, signed) {
        return Ok(());
    }
    let hash = signed.hash();
    // What a policy lowers the floor past stays refused, although its signers may be publishers still. So does
    // another record of the version that a policy names as `last`: that settles a fork of records.
    let mut later = chain
        .since(record.policy_number.saturating_add(1))
        .take_while(|policy| policy.number() <= newest.number());
    let passed = later.any(|policy| {
        let last = policy.last().filter(|last| last.record_hash != hash);
        last.is_some_and(|last| policy.lowers() || last.version == record.version)
    });
    let publishers = &newest.roles().publishers;
    if passed || signatures.require(signed, publishers, "").is_err() {
        return Err(Reject::NotSigned(
            "root record, under a superseded policy whose successor does not let it count",
        ));
    }
    Ok(())
}

/// The newest policy that a head shows, and its hash, if the reader knows a later one.
pub(crate) fn shown_newest<'a>(chain: &'a Chain, head: &Head) -> Option<(&'a Policy, [u8; 32])> {
    let shown = head.newest_policy();
    if shown >= chain.newest().number() {
        return None;
    }
    chain.get(shown)
}
