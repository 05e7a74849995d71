//! A timestamp on its way to the machines with the timestamp keys, and back (docs/formats/statements.md, *Request of a
//! timestamp*). Where several of them must sign, each signs the same statement, one after another or each a copy.
//!
//! The file contains the head that the timestamp is for, so a signer sees what it confirms. It judges the head as a
//! reader does that has adopted what this signer confirmed last ([`TimestampRequest::follows`]): an older version, and
//! another record of the same one, are not confirmed.

use crate::encode::FileForm;
use crate::error::Reject;
use crate::key::PublicKey;
use crate::published::floor::{Adopted, Floor};
use crate::published::head::{Head, MAX_HEAD_BYTES};
use crate::published::request::judged_base;
use crate::published::root::RootRecord;
use crate::published::terms::Terms;
use crate::published::timestamp::Timestamp;
use crate::signer::{SignError, Signer};
use crate::statement::policy::Policy;
use crate::statement::roles::Threshold;
use crate::statement::signatures::Signatures;
use crate::statement::tally::Tally;
use crate::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

/// Largest request of a timestamp, bytes.
pub const MAX_TIMESTAMP_REQUEST_BYTES: usize = MAX_HEAD_BYTES + MAX_SIGNED_BYTES + 64;

const WHAT: &str = "request of a timestamp";
const FORM: FileForm = FileForm {
    magic: b"bullatsr",
    format: 0,
    what: WHAT,
    most_bytes: MAX_TIMESTAMP_REQUEST_BYTES,
};
/// The role in tallies.
const KEYS: &str = "timestamp keys";

/// A timestamp to be signed, or already signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampRequest {
    /// The head that it is for, without a timestamp.
    pub head: Box<Head>,
    /// The timestamp, with the signatures that it has so far.
    pub timestamp: Signed,
}

/// A request whose parts fit together, with the signatures that it has, verified. Some may still be missing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExaminedTimestamp {
    /// The volume.
    pub volume: VolumeId,
    /// Its name in the genesis policy, for people.
    pub name: String,
    /// The record that is confirmed.
    pub record: RootRecord,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// What the timestamp says.
    pub timestamp: Timestamp,
    /// Which timestamp keys have signed.
    pub keys: Tally,
    role: Threshold,
}

impl TimestampRequest {
    /// The unsigned timestamp of `head` under its newest policy: from `issued` on, unix seconds, for `seconds`, or for as
    /// long as the policy allows.
    ///
    /// # Errors
    /// Those of [`Head::volume`].
    pub fn new(
        head: &Head,
        (policy, policy_hash): (&Policy, [u8; 32]),
        issued: u64,
        seconds: u64,
    ) -> Result<TimestampRequest, Reject> {
        let seconds = seconds.min(policy.roles().timestamp_max);
        let timestamp = Timestamp {
            record_hash: head.record.hash(),
            policy_number: policy.number(),
            policy_hash,
            issued,
            until: issued.saturating_add(seconds),
        };
        let head = Head {
            timestamp: None,
            ..head.clone()
        };
        Ok(TimestampRequest {
            timestamp: timestamp.statement(head.volume()?).sign(&[]),
            head: Box::new(head),
        })
    }

    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = FORM.begin();
        e.bytes(&self.head.encode()?);
        self.timestamp.encode(&mut e);
        FORM.finish(e)
    }

    /// Whether these bytes claim to be a request of a timestamp, and not another file that is signed.
    pub fn is_claimed_by(bytes: &[u8]) -> bool {
        bytes.starts_with(FORM.magic)
    }

    /// Takes bytes that claim to be a request of a timestamp.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one encoding.
    pub fn decode(bytes: &[u8]) -> Result<TimestampRequest, Reject> {
        let mut d = FORM.open(bytes)?;
        let head = Box::new(Head::decode(d.bytes(MAX_HEAD_BYTES)?)?);
        let timestamp = Signed::decode(&mut d)?;
        d.finish()?;
        Ok(TimestampRequest { head, timestamp })
    }

    /// Checks that the head is signed, that the timestamp is for it under its newest policy and for no longer than that
    /// allows, and the signatures that the timestamp has. The time is not checked.
    ///
    /// # Errors
    /// The rule that is broken: [`Reject::NotSigned`], [`Reject::Malformed`], [`Reject::Revoked`].
    pub fn examine(&self, signatures: &mut Signatures) -> Result<ExaminedTimestamp, Reject> {
        if self.head.timestamp.is_some() {
            return Err(bad("the head has a timestamp already"));
        }
        let (volume, offer) = judged_base(&self.head, signatures)?;
        let timestamp: Timestamp = self.timestamp.statement().read(volume)?;
        let newest = offer.chain.newest();
        let role = newest.roles().timestamps.clone();
        if role.is_empty() {
            return Err(bad("the policy has no timestamp keys"));
        }
        if timestamp.record_hash != offer.record_hash {
            return Err(bad("a timestamp of another record"));
        }
        let policy = (timestamp.policy_number, timestamp.policy_hash);
        if policy != (newest.number(), offer.chain.newest_hash()) {
            return Err(bad("a timestamp under another policy"));
        }
        match timestamp.until.checked_sub(timestamp.issued) {
            Some(validity) if validity > 0 && validity <= newest.roles().timestamp_max => {}
            _ => return Err(bad("a timestamp for longer than the policy allows")),
        }
        Ok(ExaminedTimestamp {
            volume,
            name: offer.chain.genesis().name.clone(),
            keys: signatures.tally(&self.timestamp, &role, KEYS)?,
            record: offer.record,
            record_hash: offer.record_hash,
            timestamp,
            role,
        })
    }

    /// Whether a reader that has adopted `last` would believe this head now, with this timestamp. `last` is the head that
    /// the signer confirmed last, if there is one. `wall` is its clock, unix seconds. With `accepts_early`, the version may begin
    /// in the future: nobody believes it until then, but another one can follow it.
    ///
    /// # Errors
    /// [`Reject::Rollback`] for an older version, [`Reject::Fork`] for another record of the same version and for
    /// policies that contradict those of `last`; [`Reject::Unproved`] when nothing here shows that the log continues that
    /// of `last`; [`Reject::NotYetValid`], [`Reject::Expired`]; others of [`Floor::judge`].
    pub fn follows(
        &self,
        examined: &ExaminedTimestamp,
        last: Option<&Head>,
        (wall, accepts_early): (u64, bool),
        signatures: &mut Signatures,
    ) -> Result<(), Reject> {
        let known = match last {
            Some(last) => having(last)?,
            None if self.head.begins() > 1 => Floor::trusting(&self.head)?,
            None => Floor::new(examined.volume),
        };
        let proof = known.confirms(
            &self.head,
            (&examined.timestamp, accepts_early),
            &Terms::strict(wall),
            signatures,
        )?;
        match proof {
            None => Ok(()),
            Some(_missing) => Err(Reject::Unproved),
        }
    }

    /// The timestamp with the signatures of only the timestamp keys.
    pub fn reduced(&self, examined: &ExaminedTimestamp) -> Signed {
        self.timestamp.reduced_to(&[&examined.role])
    }

    /// Signs with a timestamp key.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for any other key; [`SignError::NoSignature`] for one that does not sign. The request is
    /// unchanged then.
    pub fn sign(
        &mut self,
        examined: &ExaminedTimestamp,
        key: &dyn Signer,
    ) -> Result<(), SignError> {
        if !examined.keys.has(&key.public()) {
            return Err(SignError::Refused(Reject::NotSigned(
                "the key is not a timestamp key",
            )));
        }
        let mut timestamp = self.reduced(examined);
        timestamp.add_by(key)?;
        self.timestamp = timestamp;
        Ok(())
    }

    /// Takes over the signatures of another copy of the same request.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another timestamp.
    pub fn merge(&mut self, other: &TimestampRequest) -> Result<(), Reject> {
        if self.timestamp.hash() != other.timestamp.hash() {
            return Err(bad("a copy with another timestamp"));
        }
        self.timestamp.merge(&other.timestamp);
        Ok(())
    }
}

impl ExaminedTimestamp {
    /// Whether this is a timestamp key.
    pub fn may_sign(&self, key: &PublicKey) -> bool {
        self.keys.has(key)
    }

    /// The role, if more of its keys must sign.
    pub fn missing(&self) -> Vec<Tally> {
        let tally = Some(self.keys.clone()).filter(|tally| !tally.is_enough());
        tally.into_iter().collect()
    }
}

/// The floor of somebody who has adopted this head, which was judged then.
fn having(head: &Head) -> Result<Floor, Reject> {
    let volume = head.volume()?;
    let record: RootRecord = head.record.statement().read(volume)?;
    let log = head.after_record(&record)?.point(record.log.epoch);
    Ok(Floor {
        adopted: Some(Adopted {
            version: record.version,
            record_hash: head.record.hash(),
            root: Some(record.root),
            log,
        }),
        ..Floor::trusting(head)?
    })
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
