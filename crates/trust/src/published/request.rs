//! A signing request: a version on its way from the machine that has the tree to the one that has the key,
//! and back. A small file, unsigned on the way there and signed on the way back (docs/formats/statements.md,
//! *Request*).
//!
//! It contains everything that the signer needs to see what is being signed, and everything that the other
//! machine needs to make a head from it. Neither machine trusts it: [`Request::examine`] checks everything
//! but the signatures that are still missing, and before installing it the whole head is judged as a reader
//! would.

use bytes::Bytes;

use crate::encode::{Decoder, Encoder, split_checksum};
use crate::error::Reject;
use crate::history::prefix;
use crate::history::{Frontier, LogPoint};
use crate::key::{PublicKey, SecretKey};
use crate::published::floor::Floor;
use crate::published::head::{Head, MAX_HEAD_BYTES, first_log};
use crate::published::judge::{Freshness, Terms};
use crate::published::root::RootRecord;
use crate::statement::chain::Chain;
use crate::statement::policy::{Policy, Roles};
use crate::statement::signatures::Signatures;
use crate::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

/// Largest request, bytes.
pub const MAX_REQUEST_BYTES: usize = MAX_HEAD_BYTES + MAX_SIGNED_BYTES + 64;

const MAGIC: &[u8; 8] = b"bullareq";
const FORMAT: u16 = 0;
const WHAT: &str = "signing request";

/// The version that the new one builds on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// None: the volume begins with this genesis policy, which may still be unsigned.
    Genesis(Signed),
    /// The previous version.
    Head(Box<Head>),
}

/// A version to be signed, or already signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The version that it builds on.
    pub base: Base,
    /// The record, with the signatures that it has so far.
    pub record: Signed,
}

/// A request whose parts fit together. The signatures on the record are not checked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Examined {
    /// The volume.
    pub volume: VolumeId,
    /// Its name in the genesis policy, for people.
    pub name: String,
    /// The record that is to be signed.
    pub record: RootRecord,
    /// The previous record, and its hash.
    pub previous: Option<(RootRecord, [u8; 32])>,
    /// The keys that may sign, by the newest policy.
    pub roles: Roles,
    frontier: Frontier,
}

impl Request {
    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.raw(MAGIC).u16(FORMAT);
        // Incompatible flags: none in this format.
        e.u16(0);
        match &self.base {
            Base::Genesis(genesis) => {
                e.u8(0);
                genesis.encode(&mut e);
            }
            Base::Head(head) => {
                e.u8(1).bytes(&head.encode()?);
            }
        }
        self.record.encode(&mut e);
        let bytes = e.finish_with_checksum();
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(bad("too long"));
        }
        Ok(bytes)
    }

    /// Takes bytes that claim to be a request.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one
    /// encoding of a request.
    pub fn decode(bytes: &[u8]) -> Result<Request, Reject> {
        if bytes.len() > MAX_REQUEST_BYTES {
            return Err(bad("too long"));
        }
        let (body, intact) = split_checksum(bytes).ok_or_else(|| bad("truncated"))?;
        let mut d = Decoder::new(body, WHAT);
        if d.raw(MAGIC.len())? != MAGIC {
            return Err(d.bad("another kind of file"));
        }
        let (format, incompatible) = (d.u16()?, d.u16()?);
        if format != FORMAT || incompatible != 0 {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("format {format}, flags {incompatible:#06x}"),
            });
        }
        // The checksum detects damage on the way. Security comes from the signatures.
        if !intact {
            return Err(d.bad("damaged: the checksum does not match"));
        }
        let base = match d.u8()? {
            0 => Base::Genesis(Signed::decode(&mut d)?),
            1 => Base::Head(Box::new(Head::decode(d.bytes(MAX_HEAD_BYTES)?)?)),
            _ => return Err(d.bad("neither a first version nor a later one")),
        };
        let record = Signed::decode(&mut d)?;
        d.finish()?;
        Ok(Request { base, record })
    }

    /// Checks that the record is the next version after its base, and that the base is signed. (A genesis
    /// policy may be unsigned: the same person may sign it now.)
    ///
    /// # Errors
    /// The rule that is broken: [`Reject::NotSigned`], [`Reject::Malformed`], [`Reject::BadHistory`],
    /// [`Reject::Revoked`].
    pub fn examine(&self, signatures: &mut Signatures) -> Result<Examined, Reject> {
        let examined = match &self.base {
            Base::Genesis(genesis) => self.first_version(genesis)?,
            Base::Head(head) => self.later_version(head, signatures)?,
        };
        let expected = examined
            .previous
            .as_ref()
            .map_or(0, |(record, _)| record.version);
        if examined.record.version.checked_sub(1) != Some(expected) {
            return Err(bad("the version is not the next one"));
        }
        if examined.record.log != examined.frontier.point(examined.record.log.epoch) {
            return Err(Reject::BadHistory(
                "the record does not continue the log of the version before",
            ));
        }
        let previous_start = examined
            .previous
            .as_ref()
            .map_or(0, |(record, _)| record.start);
        if examined.record.start < previous_start {
            return Err(bad("it begins before the version before it"));
        }
        Ok(examined)
    }

    fn first_version(&self, genesis: &Signed) -> Result<Examined, Reject> {
        let volume = VolumeId::from_bytes(genesis.hash());
        let Policy::Genesis(policy) = genesis.statement().read(VolumeId::UNBORN)? else {
            return Err(bad("the first policy is not a genesis policy"));
        };
        let record: RootRecord = self.record.statement().read(volume)?;
        let (log, frontier) = first_log(genesis)?;
        check_policy(&record, 0, genesis.hash(), log)?;
        Ok(Examined {
            volume,
            name: policy.name,
            record,
            previous: None,
            roles: policy.roles,
            frontier,
        })
    }

    fn later_version(&self, head: &Head, signatures: &mut Signatures) -> Result<Examined, Reject> {
        let genesis = head.policies.first().ok_or(bad("no policy"))?;
        let volume = VolumeId::from_bytes(genesis.hash());
        let claimed: RootRecord = head.record.statement().read(volume)?;
        // Judged without regard to time, because an expired version needs a successor most.
        let terms = Terms {
            freshness: Freshness::Pinned {
                version: claimed.version,
                record_hash: head.record.hash(),
            },
            ..Terms::strict(claimed.start)
        };
        // A head carries only its newest policies. Before the caller signs, it compares them with those under which
        // it signed before, and shows their roles.
        let known = match head.begins() {
            0 | 1 => Floor::new(volume),
            _ => Floor::trusting(head)?,
        };
        let offer = known.judge(head, &terms, signatures)?;
        let record: RootRecord = self.record.statement().read(volume)?;
        let (log, frontier) = head.next_log(volume)?;
        let newest = offer.chain.newest();
        check_policy(&record, newest.number(), offer.chain.newest_hash(), log)?;
        Ok(Examined {
            volume,
            name: offer.chain.genesis().name.clone(),
            record,
            roles: newest.roles().clone(),
            previous: Some((offer.record, offer.record_hash)),
            frontier,
        })
    }

    /// The head for this version. Signatures are not checked: judge the head.
    pub fn head(&self, examined: &Examined) -> Head {
        let policies = match &self.base {
            Base::Genesis(genesis) => vec![genesis.clone()],
            Base::Head(head) => head.policies.clone(),
        };
        Head {
            policies,
            record: self.record.clone(),
            timestamp: None,
            checkpoint: None,
            frontier: examined.frontier.clone(),
            later_log: None,
        }
    }

    /// Signs with `key` the parts that it may sign. The first signer sets the validity: from `start` for
    /// `duration` seconds. Later signers leave the record unchanged.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a key that is not one of the publishers; the request is unchanged then.
    pub fn sign(
        &mut self,
        examined: &Examined,
        start: u64,
        duration: u64,
        key: &SecretKey,
    ) -> Result<(), Reject> {
        let public = key.public();
        // Before anything is signed: a refusal leaves no signature behind.
        if !examined.roles.publishers.keys().contains(&public) {
            return Err(Reject::NotSigned("the key is not one of the publishers"));
        }
        if let Base::Genesis(genesis) = &mut self.base
            && examined.roles.owners.keys().contains(&public)
        {
            genesis.add(key);
        }
        if self.record.signatures().is_empty() {
            let record = RootRecord {
                start,
                duration,
                ..examined.record.clone()
            };
            let name = self.record.statement().version_name();
            let statement = record.named_statement(examined.volume, name.as_ref());
            self.record = statement.sign(&[]);
        }
        self.record.add(key);
        Ok(())
    }

    /// The publishers that have signed the record.
    pub fn signers(&self, examined: &Examined) -> Vec<PublicKey> {
        let keys = examined.roles.publishers.keys().iter();
        keys.filter(|key| self.record.by(key).is_some())
            .copied()
            .collect()
    }

    /// The leaves that the version adds to the log: epoch, index, bytes of the signed statement.
    pub fn leaves(&self, examined: &Examined) -> Vec<(u64, u64, Bytes)> {
        let log = examined.record.log;
        let mut leaves = vec![(log.epoch, log.size, self.record.to_bytes().into())];
        if let Base::Genesis(genesis) = &self.base {
            leaves.push((0, 0, genesis.to_bytes().into()));
        }
        leaves
    }
}

impl Examined {
    /// Whether the record can follow `last`, a head that this signer has signed before.
    ///
    /// # Errors
    /// [`Reject::Rollback`] for a lower version than `last`, [`Reject::Fork`] for another record of the same
    /// version, for other policies, or for a log without `last`; [`Reject::Unproved`] when versions lie between
    /// them, and the request does not show that their log contains `last`.
    pub fn follows(&self, base: &Base, last: &Head) -> Result<(), Reject> {
        let signed: RootRecord = last.record.statement().read(self.volume)?;
        if self.record.version < signed.version {
            return Err(Reject::Rollback {
                offered: self.record.version,
                floor: signed.version,
            });
        }
        if self.record.version == signed.version {
            return Err(Reject::Fork("two records of one version"));
        }
        let Base::Head(head) = base else {
            return Err(Reject::Fork("a second first version of the volume"));
        };
        self.continues_policies(head, last)?;
        if head.record.hash() == last.record.hash() {
            // Only policies lie between, if anything does.
            return Ok(());
        }
        let after = last.after_record(&signed)?;
        let (_, before) = head.next_log(self.volume)?;
        let after = after.point(signed.log.epoch);
        match prefix::grown(&after, &self.record.log, &before)? {
            None => Ok(()),
            Some(_unfinished) => Err(Reject::Unproved),
        }
    }

    fn continues_policies(&self, head: &Head, last: &Head) -> Result<(), Reject> {
        let mut signatures = Signatures::default();
        let known = Chain::kept(self.volume, &last.policies, &mut signatures)?;
        match Chain::shown(self.volume, &head.policies, Some(&known), &mut signatures) {
            Ok(shown) if shown.begins_with(&known) => Ok(()),
            Err(Reject::PoliciesMissing { .. }) => Err(Reject::Unproved),
            _ => Err(Reject::Fork(
                "its policies differ from those of the version signed before",
            )),
        }
    }
}

fn check_policy(
    record: &RootRecord,
    number: u64,
    hash: [u8; 32],
    log: LogPoint,
) -> Result<(), Reject> {
    if record.policy_number != number || record.policy_hash != hash {
        return Err(bad("it is not under the newest policy"));
    }
    if record.log.epoch != log.epoch {
        return Err(bad("it is in another log than its policy's"));
    }
    Ok(())
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
