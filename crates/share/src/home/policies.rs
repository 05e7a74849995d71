//! The file `policies` of a home: how many, and then each signed policy, from the genesis on.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::statement::signatures::Signatures;
use trust::statement::{Job, Signed};
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;

use super::HomeError;

/// Longest file, bytes.
pub const MAX_BYTES: u64 = 16 << 20;
/// Most policies of a volume.
const MAX_POLICIES: u64 = 1 << 12;
const WHAT: &str = "file of policies";

/// Policies that are those of the volume.
pub(super) fn verify(volume: VolumeId, policies: &[Signed]) -> Result<Policies, HomeError> {
    if policies.len() as u64 > MAX_POLICIES {
        return Err(Reject::Malformed {
            what: WHAT,
            why: "too many",
        }
        .into());
    }
    let mut signatures = Signatures::new(policies.len().saturating_mul(8));
    Ok(Policies::verify(volume, policies, &mut signatures)?)
}

/// Policies from the genesis on as a file: that of a home, and that for servers and other devices.
pub fn encode(policies: &[Signed]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.varint(policies.len() as u64);
    for policy in policies {
        policy.encode(&mut e);
    }
    e.finish()
}

/// Reads a file of [`encode`], or one with the genesis policy alone. Nothing is verified.
///
/// # Errors
/// [`Reject::Malformed`].
pub fn decode_rules(bytes: &[u8]) -> Result<Vec<Signed>, Reject> {
    match Signed::from_bytes_of(Job::Shared, bytes) {
        Ok(genesis) => Ok(vec![genesis]),
        Err(why) => decode(bytes).map_err(|_| why),
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<Signed>, Reject> {
    let mut d = Decoder::new(bytes, WHAT);
    let count = d.bounded(MAX_POLICIES, "too many")?;
    let mut policies = Vec::new();
    for _ in 0..count {
        policies.push(Signed::decode_of(Job::Shared, &mut d)?);
    }
    d.finish()?;
    Ok(policies)
}
