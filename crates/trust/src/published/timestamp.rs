//! The timestamp: an online key states that a root record is still current. It can only shorten the record's
//! validity. It is required when the policy lists timestamp keys.

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::statement::{Body, Purpose, Statement, VolumeId};

/// The statement that a timestamp key signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timestamp {
    /// Hash of the record that it is about.
    pub record_hash: [u8; 32],
    /// Number of the newest policy when it was issued.
    pub policy_number: u64,
    /// Hash of that policy.
    pub policy_hash: [u8; 32],
    /// Time of issue, unix seconds.
    pub issued: u64,
    /// End of validity, unix seconds.
    pub until: u64,
}

impl Timestamp {
    /// The statement to sign.
    pub fn statement(&self, volume: VolumeId) -> Statement {
        Statement::new(volume, self)
    }
}

impl Body for Timestamp {
    const PURPOSE: Purpose = Purpose::Timestamp;

    fn encode(&self, out: &mut Encoder) {
        out.raw(&self.record_hash);
        out.u64(self.policy_number).raw(&self.policy_hash);
        out.u64(self.issued).u64(self.until);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(Timestamp {
            record_hash: d.array()?,
            policy_number: d.u64()?,
            policy_hash: d.array()?,
            issued: d.u64()?,
            until: d.u64()?,
        })
    }
}
