//! A signing request: a version on its way from the machine that has the tree to the one that has the key,
//! and back. A small file, unsigned on the way there and signed on the way back (docs/formats/statements.md,
//! *Request*).
//!
//! Several keys may have to sign: the owners of a new volume its genesis policy, the publishers the record. They
//! sign one after another, or each a copy, and the copies are merged ([`Request::merge`]).
//!
//! It contains everything that the signer needs to see what is being signed, and everything that the other
//! machine needs to make a head from it. Neither machine trusts it: [`Request::examine`] checks everything
//! but the signatures that are still missing, and before installing it the whole head is judged as a reader
//! would.

use bytes::Bytes;

use crate::encode::FileForm;
use crate::error::Reject;
use crate::history::prefix;
use crate::history::{Frontier, LogPoint};
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::{Head, MAX_HEAD_BYTES, first_log};
use crate::published::judge::{Freshness, Offer, Terms};
use crate::published::root::RootRecord;
use crate::signer::{SignError, Signer};
use crate::statement::chain::Chain;
use crate::statement::policy::{Policy, Roles};
use crate::statement::signatures::Signatures;
use crate::statement::tally::Tally;
use crate::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

/// Largest request, bytes.
pub const MAX_REQUEST_BYTES: usize = MAX_HEAD_BYTES + MAX_SIGNED_BYTES + 64;

const WHAT: &str = "signing request";
const FORM: FileForm = FileForm {
    magic: b"bullareq",
    format: 0,
    what: WHAT,
    most_bytes: MAX_REQUEST_BYTES,
};
/// The roles in tallies.
const OWNERS: &str = "owners";
const PUBLISHERS: &str = "publishers";

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

/// A request whose parts fit together, with the signatures that it has, verified. Some may still be missing.
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
    /// The end of the newest policy, unix seconds.
    pub not_after: u64,
    /// Which owners have signed the genesis policy; `None` for a later version, which owners do not sign.
    pub owners: Option<Tally>,
    /// Which publishers have signed the record.
    pub publishers: Tally,
    frontier: Frontier,
}

impl Request {
    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they would be too many.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = FORM.begin();
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
        FORM.finish(e)
    }

    /// Takes bytes that claim to be a request.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one
    /// encoding of a request.
    pub fn decode(bytes: &[u8]) -> Result<Request, Reject> {
        let mut d = FORM.open(bytes)?;
        let base = match d.u8()? {
            0 => Base::Genesis(Signed::decode(&mut d)?),
            1 => Base::Head(Box::new(Head::decode(d.bytes(MAX_HEAD_BYTES)?)?)),
            _ => return Err(d.bad("neither a first version nor a later one")),
        };
        let record = Signed::decode(&mut d)?;
        d.finish()?;
        Ok(Request { base, record })
    }

    /// Checks that the record is the next version after its base, and that the base is signed. The record, and the
    /// genesis policy of a new volume, may still lack signatures; those that they have must be good.
    ///
    /// # Errors
    /// The rule that is broken: [`Reject::NotSigned`], [`Reject::Malformed`], [`Reject::BadHistory`],
    /// [`Reject::Revoked`].
    pub fn examine(&self, signatures: &mut Signatures) -> Result<Examined, Reject> {
        let examined = match &self.base {
            Base::Genesis(genesis) => self.first_version(genesis, signatures)?,
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
        Ok(examined)
    }

    fn first_version(
        &self,
        genesis: &Signed,
        signatures: &mut Signatures,
    ) -> Result<Examined, Reject> {
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
            owners: Some(signatures.tally(genesis, &policy.roles.owners, OWNERS)?),
            publishers: signatures.tally(&self.record, &policy.roles.publishers, PUBLISHERS)?,
            not_after: policy.not_after,
            roles: policy.roles,
            frontier,
        })
    }

    fn later_version(&self, head: &Head, signatures: &mut Signatures) -> Result<Examined, Reject> {
        let (volume, offer) = judged_base(head, signatures)?;
        let record: RootRecord = self.record.statement().read(volume)?;
        let (log, frontier) = head.next_log(volume)?;
        let newest = offer.chain.newest();
        check_policy(&record, newest.number(), offer.chain.newest_hash(), log)?;
        Ok(Examined {
            volume,
            name: offer.chain.genesis().name.clone(),
            record,
            owners: None,
            publishers: signatures.tally(&self.record, &newest.roles().publishers, PUBLISHERS)?,
            not_after: newest.not_after(),
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

    /// Signs with `key` the parts that it may sign: an owner the genesis policy of a new volume, a publisher the
    /// record. Where one publisher suffices, the first one sets the validity: from `start` for `duration` seconds.
    /// Where several must sign, they sign the validity that the request asks for: otherwise each would sign another
    /// record.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for a key that may sign neither; [`SignError::NoSignature`] for one that does not. The
    /// request is unchanged then.
    pub fn sign(
        &mut self,
        examined: &Examined,
        start: u64,
        duration: u64,
        key: &dyn Signer,
    ) -> Result<(), SignError> {
        let public = key.public();
        let Roles {
            owners, publishers, ..
        } = &examined.roles;
        let signs_record = examined.publishers.has(&public);
        // Before anything is signed: a refusal leaves no signature behind.
        if !signs_record && !examined.signs_genesis(&public) {
            return Err(SignError::Refused(Reject::NotSigned(
                "the key is neither a publisher's nor an owner's of a new volume",
            )));
        }
        let genesis = match &self.base {
            Base::Genesis(genesis) if examined.signs_genesis(&public) => {
                let mut genesis = genesis.reduced_to(&[owners]);
                genesis.add_by(key)?;
                Some(Base::Genesis(genesis))
            }
            _ => None,
        };
        if signs_record {
            let mut record = self.record.clone();
            if examined.sets_validity() {
                let asked = RootRecord {
                    start,
                    duration,
                    ..examined.record.clone()
                };
                let name = record.statement().version_name();
                let statement = asked.named_statement(examined.volume, name.as_ref());
                record = statement.sign(&[]);
            }
            record = record.reduced_to(&[publishers]);
            record.add_by(key)?;
            self.record = record;
        }
        if let Some(genesis) = genesis {
            self.base = genesis;
        }
        Ok(())
    }

    /// Takes over the signatures of another copy of the same request, which was examined as `theirs`.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`]; [`Reject::Malformed`] for a request of another version;
    /// [`Reject::Fork`] when both have a record that a publisher signed, and these differ.
    pub fn merge(
        &mut self,
        examined: &Examined,
        other: &Request,
        theirs: &Examined,
    ) -> Result<(), Reject> {
        if examined.volume != theirs.volume {
            return Err(Reject::WrongVolume);
        }
        match (&mut self.base, &other.base) {
            (Base::Genesis(own), Base::Genesis(their)) => own.merge(their),
            (Base::Head(own), Base::Head(their)) if own == their => {}
            _ => return Err(bad("a copy that builds on another version")),
        }
        let (own, their) = (&examined.record, &theirs.record);
        if (own.version, own.root, own.log) != (their.version, their.root, their.log) {
            return Err(bad("a copy with another version or another tree"));
        }
        let name = |request: &Request| request.record.statement().version_name();
        if name(self) != name(other) {
            return Err(bad("a copy with another name of the version"));
        }
        if self.record.hash() == other.record.hash() {
            self.record.merge(&other.record);
        } else if examined.publishers.signed.is_empty() {
            self.record = other.record.clone();
        } else if !theirs.publishers.signed.is_empty() {
            return Err(Reject::Fork("two signed records of one version"));
        }
        Ok(())
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
    /// Whether an owner's key can sign the genesis policy.
    fn signs_genesis(&self, key: &PublicKey) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.has(key))
    }

    /// Whether this key can sign a part of the request.
    pub fn may_sign(&self, key: &PublicKey) -> bool {
        self.publishers.has(key) || self.signs_genesis(key)
    }

    /// Whether the publisher who signs next sets the validity of the record.
    pub fn sets_validity(&self) -> bool {
        self.publishers.needed == 1 && self.publishers.signed.is_empty()
    }

    /// The roles of which more keys must sign. Empty when the request is signed.
    pub fn missing(&self) -> Vec<Tally> {
        let all = self.owners.iter().chain([&self.publishers]);
        all.filter(|tally| !tally.is_enough()).cloned().collect()
    }

    /// Whether the record can follow `last`, a head that this signer has signed before. Any record follows a version
    /// from which a later policy has taken readers back (rule 4).
    ///
    /// # Errors
    /// [`Reject::Rollback`] for a lower version than `last`, [`Reject::Fork`] for another record of the same
    /// version, for other policies, or for a log without `last`; [`Reject::Unproved`] when versions lie between
    /// them, and the request does not show that their log contains `last`.
    pub fn follows(&self, base: &Base, last: &Head) -> Result<(), Reject> {
        let signed: RootRecord = last.record.statement().read(self.volume)?;
        if let Base::Head(head) = base
            && let Ok((known, shown)) = self.policies_after(head, last)
            && shown.takes_back(known.newest().number(), signed.version)
        {
            return Ok(());
        }
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
        self.policies_after(head, last)?;
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

    /// The policies of `last`, and those of `head`, which continue them.
    fn policies_after(&self, head: &Head, last: &Head) -> Result<(Chain, Chain), Reject> {
        let mut signatures = Signatures::default();
        let known = match (last.policies.as_slice(), head.policies.first()) {
            // The signer may have kept the genesis before the other owners signed it. The volume id names it.
            ([_], Some(genesis)) => Chain::begin(self.volume, genesis, &mut signatures)?,
            _ => Chain::kept(self.volume, &last.policies, &mut signatures)?,
        };
        match Chain::shown(self.volume, &head.policies, Some(&known), &mut signatures) {
            Ok(shown) if shown.begins_with(&known) => Ok((known, shown)),
            Err(Reject::PoliciesMissing { .. }) => Err(Reject::Unproved),
            _ => Err(Reject::Fork(
                "its policies differ from those of the version signed before",
            )),
        }
    }
}

/// The head that something to be signed builds on. Judged without regard to time, because an expired version needs a
/// successor most.
///
/// # Errors
/// Those of [`Floor::judge`].
pub(crate) fn judged_base(
    head: &Head,
    signatures: &mut Signatures,
) -> Result<(VolumeId, Offer), Reject> {
    let volume = head.volume()?;
    let claimed: RootRecord = head.record.statement().read(volume)?;
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
    Ok((volume, offer))
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
