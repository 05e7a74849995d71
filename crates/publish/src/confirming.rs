//! Timestamps: where the policy lists timestamp keys, no reader believes a head without a fresh statement by them that
//! its record is current. So a new head of a volume that has readers is shown together with its timestamp.

use std::time::Duration;

use bytes::Bytes;
use trust::head::Head;
use trust::key::PublicKey;
use trust::policy::{Policy, Roles};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::{Signed, VolumeId};
use trust::tally::Tally;
use trust::timestamp::Timestamp;

use crate::publish_error::{Missing, PublishError};

/// What a timestamp is made with.
pub(crate) struct Confirming<'a> {
    /// Keys of any roles; those of the timestamp role sign.
    pub keys: &'a [&'a dyn Signer],
    /// Time of issue, unix seconds.
    pub now: u64,
    /// The longest validity; the policy may allow less.
    pub valid: Duration,
    /// A timestamp that keys on other machines have signed. The keys here sign the same.
    pub gathered: Option<&'a Signed>,
}

/// A timestamp that keys on other machines have signed.
pub(crate) struct Stamped {
    pub timestamp: Signed,
    /// The cosigned checkpoint of the head that they confirmed, if it has one.
    pub checkpoint: Option<Bytes>,
}

/// The role in tallies.
const KEYS: &str = "timestamp keys";

/// Whether enough of these keys are timestamp keys. True also if the policy demands no timestamp.
///
/// # Errors
/// [`PublishError::NoTimestamp`] about `version`.
pub(crate) fn check_keys(
    roles: &Roles,
    keys: &[PublicKey],
    version: u64,
) -> Result<(), PublishError> {
    let (signed, waiting): (Vec<PublicKey>, _) =
        (roles.timestamps.keys().iter()).partition(|key| keys.contains(key));
    let tally = Tally {
        role: KEYS,
        needed: roles.timestamps.needed(),
        signed,
        waiting,
    };
    match tally.is_enough() {
        true => Ok(()),
        false => Err(PublishError::NoTimestamp {
            version,
            missing: Missing(vec![tally]),
        }),
    }
}

/// A timestamp for the head's record under `policy`, with the signatures that were gathered elsewhere. The keys that are here
/// make them enough. `None` without timestamp keys in the policy.
///
/// # Errors
/// [`PublishError::NoTimestamp`]; [`PublishError::RecordOver`] for a record that has ended;
/// [`PublishError::OtherTimestamp`] for a gathered one of another head.
pub(crate) fn prepared(
    head: &Head,
    volume: VolumeId,
    (policy, policy_hash): (&Policy, [u8; 32]),
    confirming: &Confirming<'_>,
) -> Result<Option<Signed>, PublishError> {
    let roles = policy.roles();
    if roles.timestamps.is_empty() {
        return Ok(None);
    }
    let record: RootRecord = head.record.statement().read(volume)?;
    let Confirming {
        keys,
        now,
        valid,
        gathered,
    } = confirming;
    if *now >= record.until() {
        return Err(PublishError::RecordOver {
            version: record.version,
            until: record.until(),
        });
    }
    let signed = match gathered {
        Some(signed) => (*signed).clone(),
        None => {
            let timestamp = Timestamp {
                record_hash: head.record.hash(),
                policy_number: policy.number(),
                policy_hash,
                issued: *now,
                until: now.saturating_add(valid.as_secs().min(roles.timestamp_max)),
            };
            timestamp.statement(volume).sign(&[])
        }
    };
    let timestamp: Timestamp = signed.statement().read(volume)?;
    let about = (timestamp.record_hash, timestamp.policy_hash);
    if about != (head.record.hash(), policy_hash) {
        return Err(PublishError::OtherTimestamp {
            version: record.version,
        });
    }
    let others = signers(&signed, roles)?.into_iter();
    let own = keys.iter().map(|key| key.public());
    let all: Vec<PublicKey> = own.chain(others).collect();
    check_keys(roles, &all, record.version)?;
    Ok(Some(signed))
}

/// The timestamp keys that have signed.
fn signers(signed: &Signed, roles: &Roles) -> Result<Vec<PublicKey>, PublishError> {
    let tally = Signatures::default().tally(signed, &roles.timestamps, KEYS)?;
    Ok(tally.signed)
}

/// Puts a timestamp for its record under `policy` into the head. Without timestamp keys in the policy, the head has none
/// afterwards. Gives the end of the timestamp, unix seconds; without one, 2⁶⁴ − 1.
///
/// # Errors
/// Those of [`prepared`]; [`PublishError::NoSignature`].
pub(crate) fn confirm(
    head: &mut Head,
    volume: VolumeId,
    policy: (&Policy, [u8; 32]),
    confirming: &Confirming<'_>,
) -> Result<u64, PublishError> {
    let Some(mut signed) = prepared(head, volume, policy, confirming)? else {
        head.timestamp = None;
        return Ok(u64::MAX);
    };
    let roles = policy.0.roles();
    let others = signers(&signed, roles)?;
    for key in confirming.keys.iter().copied() {
        let public = key.public();
        if roles.timestamps.keys().contains(&public) && !others.contains(&public) {
            signed.add_by(key)?;
        }
    }
    Signatures::default().require(&signed, &roles.timestamps, "timestamp")?;
    let timestamp: Timestamp = signed.statement().read(volume)?;
    head.timestamp = Some(signed);
    Ok(timestamp.until)
}
