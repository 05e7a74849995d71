//! The floor: what one reader has seen of one volume, so that no server can show it older statements later.
//! It is state, not a cache: its owner keeps it on disk, synced and locked, and stops when it is damaged.
//!
//! Pure functions: [`Floor::judge`] (in [`crate::published::judge`]) compares a head with the floor.
//! [`Floor::learn`], [`Floor::observe`] and [`Floor::adopt`] return the next floor, which the caller stores.

use crate::encode::{Decoder, Encoder, split_checksum};
use crate::error::{Reject, UNSETTLED};
use crate::handle::{Handle, InodeBlock};
use crate::history::LogPoint;
use crate::history::prefix::Prefix;
use crate::published::forks::{self, Agreed, Forks, PolicyFork, TWO_POLICIES, TWO_RECORDS};
use crate::published::head::Head;
use crate::published::offer::Offer;
use crate::published::standing::{check_counts, signed_record};
use crate::published::terms::Terms;
use crate::statement::chain::{Chain, Link, MAX_POLICIES, check_revoked};
use crate::statement::policy::Policy;
use crate::statement::signatures::Signatures;
use crate::statement::{MAX_SIGNED_BYTES, Signed, VolumeId};

/// Largest encoded floor, bytes.
pub const MAX_FLOOR_BYTES: usize = MAX_POLICIES * MAX_SIGNED_BYTES + 1024;
/// Policies after the newest known one that are looked at together. A chain keeps them beside the genesis and that
/// newest one.
const STEP: u64 = MAX_POLICIES as u64 - 2;

const FORMAT: u16 = 0;
const WHAT: &str = "floor";

/// The newest record that a reader adopted, or that a policy named as `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Its version.
    pub version: u64,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// Its root; `None` when the record is known only from a policy's `last`.
    pub root: Option<Handle<InodeBlock>>,
    /// The log with that record in it.
    pub log: LogPoint,
}

/// What a reader has seen of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    pub(crate) volume: VolumeId,
    pub(crate) policies: Vec<Signed>,
    pub(crate) adopted: Option<Adopted>,
    pub(crate) newest_start: u64,
    pub(crate) forks: Forks,
}

impl Floor {
    /// The floor of a reader that has seen nothing of `volume`.
    pub fn new(volume: VolumeId) -> Self {
        Floor {
            volume,
            policies: Vec::new(),
            adopted: None,
            newest_start: 0,
            forks: Forks::default(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// The newest record that was adopted, or that a policy set.
    pub fn adopted(&self) -> Option<&Adopted> {
        self.adopted.as_ref()
    }

    /// The policies that it keeps: the genesis, and the newest ones that are known.
    pub fn policies(&self) -> &[Signed] {
        &self.policies
    }

    /// Number and hash of the newest policy known.
    pub fn policy(&self) -> Option<(u64, [u8; 32])> {
        let newest = Link::read(self.volume, self.policies.last()?).ok()?;
        Some((newest.policy.number(), newest.hash))
    }

    /// The floor of somebody who takes the policies of a head as known: because they were judged before, or because
    /// their roles are looked at instead.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a head without a policy.
    pub fn trusting(head: &Head) -> Result<Floor, Reject> {
        Ok(Floor {
            policies: head.policies.clone(),
            ..Floor::new(head.volume()?)
        })
    }

    /// The floor after one more policy: the genesis, or the one after the newest known one. For a reader that is
    /// shown one chain and no other, from its beginning.
    ///
    /// # Errors
    /// Those of [`Chain::extend`].
    pub fn after(&self, policy: &Signed, signatures: &mut Signatures) -> Result<Floor, Reject> {
        let chain = match self.chain(signatures)? {
            None => Chain::begin(self.volume, policy, signatures)?,
            Some(mut chain) => {
                chain.extend(policy, signatures)?;
                chain
            }
        };
        Ok(self.with_chain(&chain, None, u64::MAX))
    }

    /// The floor of a reader that knows this chain, and nothing else.
    pub(crate) fn of_chain(chain: &Chain) -> Floor {
        Floor::new(chain.volume()).with_chain(chain, None, u64::MAX)
    }

    /// Number of the first policy that the reader must see before it can judge `head`; `None` if the head shows
    /// all that it needs.
    pub fn lacks(&self, head: &Head) -> Option<u64> {
        let begins = head.begins();
        let known = self
            .policy()
            .map_or(1, |(number, _)| number.saturating_add(1));
        (begins > known).then_some(known)
    }

    /// The newest start of a record or issue of a timestamp that was verified, unix seconds, at most ten minutes
    /// after the wall clock at that moment. The reader's time is not earlier.
    pub fn newest_start(&self) -> u64 {
        self.newest_start
    }

    /// The forks that are not settled.
    pub fn forks(&self) -> &Forks {
        &self.forks
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u16(FORMAT).raw(self.volume.as_bytes());
        e.u64(self.newest_start);
        e.varint(self.policies.len() as u64);
        for policy in &self.policies {
            policy.encode(&mut e);
        }
        e.u8(u8::from(self.adopted.is_some()));
        if let Some(adopted) = &self.adopted {
            e.u64(adopted.version).raw(&adopted.record_hash);
            adopted.log.encode(&mut e);
            e.u8(u8::from(adopted.root.is_some()));
            if let Some(root) = &adopted.root {
                e.raw(root.as_bytes());
            }
        }
        self.forks.encode(&mut e);
        e.finish_with_checksum()
    }

    /// Reads a floor back.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a damaged floor. The caller must stop, and must not start with a new floor.
    pub fn decode(bytes: &[u8]) -> Result<Floor, Reject> {
        let bad = |why| Reject::Malformed { what: WHAT, why };
        if bytes.len() > MAX_FLOOR_BYTES {
            return Err(bad("too long"));
        }
        let (body, intact) = split_checksum(bytes).ok_or_else(|| bad("truncated"))?;
        let mut d = Decoder::new(body, WHAT);
        let format = d.u16()?;
        if format != FORMAT {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("format {format}"),
            });
        }
        if !intact {
            return Err(bad("damaged: the checksum does not match"));
        }
        let volume = VolumeId::from_bytes(d.array()?);
        let newest_start = d.u64()?;
        let count = d.bounded(MAX_POLICIES as u64, "too many policies")?;
        let mut policies = Vec::new();
        for _ in 0..count {
            policies.push(Signed::decode(&mut d)?);
        }
        let adopted = match d.flag()? {
            true => Some(decode_adopted(&mut d)?),
            false => None,
        };
        let forks = Forks::decode(&mut d)?;
        d.finish()?;
        if policies.is_empty() && adopted.is_some() {
            return Err(bad("a record that no policy allows"));
        }
        Ok(Floor {
            volume,
            policies,
            adopted,
            newest_start,
            forks,
        })
    }
}

impl Floor {
    /// The floor after learning the policies of `head`, whether or not its record is valid. `wall` is the wall
    /// clock, unix seconds. New policies raise the floor to their `last`; one with `lower` also lowers it (rule 4).
    ///
    /// # Errors
    /// Those of [`Chain::shown`], and for policies that the user refused.
    pub fn learn(
        &self,
        head: &Head,
        wall: u64,
        signatures: &mut Signatures,
    ) -> Result<Floor, Reject> {
        let known = self.chain(signatures)?;
        self.offered(&head.policies, known.as_ref(), signatures)?;
        let (floor, _) = self.learn_parts(&[&head.policies], wall, signatures);
        Ok(floor)
    }

    /// The floor after learning parts of the chain of policies, one part from each of several replicas. A part is
    /// the genesis and consecutive policies, of any number. It says nothing here unless they begin at the newest
    /// known one, at the one after it, or before. The order of the parts decides nothing.
    ///
    /// At most five policies after a fork decide it. So a part that goes on is at least eight policies long. Returns
    /// beside the floor what is wrong with each part.
    pub fn learn_parts(
        &self,
        parts: &[&[Signed]],
        wall: u64,
        signatures: &mut Signatures,
    ) -> (Floor, Vec<Option<Reject>>) {
        let latest_start = Terms::strict(wall).latest_start();
        let mut wrong: Vec<Option<Reject>> = parts.iter().map(|_| None).collect();
        let mut floor = self.clone();
        loop {
            let Ok(known) = floor.chain(signatures) else {
                return (floor, wrong);
            };
            let mut offered = Vec::new();
            for (part, wrong) in parts.iter().zip(&mut wrong) {
                if wrong.is_none() && !part.is_empty() {
                    let step = floor.step(part);
                    match floor.offered(&step, known.as_ref(), signatures) {
                        Ok(chain) => offered.push(chain),
                        Err(why) => *wrong = Some(why),
                    }
                }
            }
            let next = floor.with_chains(known.as_ref(), &offered, latest_start);
            if next.policies == floor.policies {
                return (next, wrong);
            }
            floor = next;
        }
    }

    /// The genesis, and the policies of a part from the newest known one on that are looked at together.
    fn step(&self, part: &[Signed]) -> Vec<Signed> {
        let newest = self.policy().map_or(0, |(number, _)| number);
        let seen = newest..=newest.saturating_add(STEP);
        let is_elsewhere = |signed: &Signed| {
            let link = Link::read(self.volume, signed);
            // What cannot be read is refused later.
            link.is_ok_and(|link| !seen.contains(&link.policy.number()))
        };
        let (genesis, later) = part.split_at(part.len().min(1));
        let later = later.iter().filter(|signed| !is_elsewhere(signed));
        genesis.iter().chain(later).cloned().collect()
    }

    /// The floor after seeing `offer` without adopting it. Its policies and its start are known from now on.
    /// The adopted version stays (unless a new policy moves it).
    ///
    /// # Errors
    /// [`Reject::Fork`] when this floor has since learned something that contradicts the offer.
    pub fn observe(&self, offer: &Offer) -> Result<Floor, Reject> {
        if !offer.moves_floor {
            return Ok(self.clone());
        }
        let mut floor = self.merged(offer)?;
        floor.newest_start = floor.newest_start.max(offer.newest_start);
        Ok(floor)
    }

    /// Whether a record that was adopted before may still be shown under the policies known now.
    ///
    /// # Errors
    /// [`Reject::Revoked`]; [`Reject::Refused`]; [`Reject::NotSigned`] for a record that the newest policy does not
    /// let count (rule 3), or whose policy was given up when the user settled a fork.
    pub fn still_allows(&self, signed: &Signed, signatures: &mut Signatures) -> Result<(), Reject> {
        self.check_refused(&signed.hash())?;
        let chain = Chain::kept(self.volume, &self.policies, signatures)?;
        check_revoked(&chain)?;
        let record = signed_record(signed, &chain, signatures)?;
        check_counts(&chain, chain.newest(), &record, signed, signatures)
    }

    /// The proof that is needed before `offer` can be adopted: that its log contains this floor's record.
    /// `None` when the head alone shows it, or when no proof is needed.
    ///
    /// # Errors
    /// Those of [`Floor::adopt`].
    pub fn unproved(&self, offer: &Offer) -> Result<Option<Prefix>, Reject> {
        if !offer.moves_floor {
            return Ok(None);
        }
        self.merged(offer)?;
        match self.admit(offer)? {
            Some(prefix) if offer.proved != Some(prefix.old()) => Ok(Some(prefix)),
            _ => Ok(None),
        }
    }

    /// The floor after adopting `offer`. A pinned offer does not change it.
    ///
    /// # Errors
    /// The floor's rules are applied again, because this floor may have changed since the judgement:
    /// [`Reject::Rollback`], [`Reject::Fork`], [`Reject::NotSigned`]. [`Reject::Unproved`] unless
    /// [`Floor::unproved`] gives `None`.
    pub fn adopt(&self, offer: &Offer) -> Result<Floor, Reject> {
        if !offer.moves_floor {
            return Ok(self.clone());
        }
        let mut floor = self.observe(offer)?;
        floor.check_forks(&offer.record_hash)?;
        if self.unproved(offer)?.is_some() {
            return Err(Reject::Unproved);
        }
        floor.adopted = Some(Adopted {
            version: offer.record.version,
            record_hash: offer.record_hash,
            root: Some(offer.record.root),
            log: offer.log_after,
        });
        Ok(floor)
    }

    /// The chain that counts: the head's or the known one, whichever is longer (rule 3).
    ///
    /// # Errors
    /// Those of [`Chain::shown`] and [`Chain::newer_of`], and for policies that the user refused.
    pub fn known_chain(&self, head: &Head, signatures: &mut Signatures) -> Result<Chain, Reject> {
        let known = self.chain(signatures)?;
        let offered = self.offered(&head.policies, known.as_ref(), signatures)?;
        match known {
            None => Ok(offered),
            Some(known) => known.newer_of(offered),
        }
    }

    /// The policies that this floor knows, if it knows any.
    ///
    /// # Errors
    /// Those of [`Chain::verify`], for a floor that somebody changed.
    pub fn chain(&self, signatures: &mut Signatures) -> Result<Option<Chain>, Reject> {
        if self.policies.is_empty() {
            return Ok(None);
        }
        Chain::kept(self.volume, &self.policies, signatures).map(Some)
    }

    /// The policies of a head or of a part, verified.
    fn offered(
        &self,
        policies: &[Signed],
        known: Option<&Chain>,
        signatures: &mut Signatures,
    ) -> Result<Chain, Reject> {
        let chain = Chain::shown(self.volume, policies, known, signatures)?;
        let mut hashes = policies.iter().map(Signed::hash);
        if hashes.any(|hash| self.forks.is_refused(&hash)) {
            return Err(Reject::Refused("a policy that the user refused"));
        }
        Ok(chain)
    }

    /// Refuses a record that the user refused.
    pub(crate) fn check_refused(&self, record_hash: &[u8; 32]) -> Result<(), Reject> {
        match self.forks.is_refused(record_hash) {
            true => Err(Reject::Refused("a record that the user refused")),
            false => Ok(()),
        }
    }

    /// Refuses anything but the adopted record while a fork stands, and what the user refused.
    pub(crate) fn check_forks(&self, record_hash: &[u8; 32]) -> Result<(), Reject> {
        self.check_refused(record_hash)?;
        let adopted = self.adopted.as_ref();
        if self.forks.stand() && adopted.is_none_or(|a| a.record_hash != *record_hash) {
            return Err(Reject::Fork(UNSETTLED));
        }
        Ok(())
    }

    /// This floor after it has seen these chains together, in any order. Only what they agree on is known from now
    /// on; a fork after that is remembered.
    pub(crate) fn with_chains(
        &self,
        known: Option<&Chain>,
        offered: &[Chain],
        latest_start: u64,
    ) -> Floor {
        match forks::agreed(known, offered, self.forks.policies()) {
            Some(Agreed { chain, fork }) => self.with_chain(&chain, fork, latest_start),
            None => self.clone(),
        }
    }

    /// The floor after the user has settled a fork in favour of the policy or record with the hash `keep`. The
    /// other one is refused from now on. This may give up the known policy, or the adopted record.
    ///
    /// # Errors
    /// [`Reject::NotPinned`] when no fork contains `keep`; [`Reject::Malformed`] after too many refusals.
    pub fn settle(&self, keep: &[u8; 32]) -> Result<Floor, Reject> {
        let rival = self.forks.rival(keep);
        let rival = rival.ok_or(Reject::NotPinned("no fork has it"))?;
        let mut floor = self.clone();
        floor.forks.refuse(rival)?;
        let is_side = |fork: &PolicyFork| fork.other(keep).is_some();
        if floor.forks.policies.take_if(|fork| is_side(fork)).is_some() {
            floor.policies.retain(|policy| policy.hash() != rival);
            return Ok(floor);
        }
        let fork = floor.forks.records.take();
        let log = fork.as_ref().and_then(|fork| fork.log_of(keep));
        if let (Some(fork), Some(log), Some(adopted)) = (&fork, log, &floor.adopted)
            && adopted.record_hash == rival
        {
            floor.adopted = Some(Adopted {
                version: fork.version,
                record_hash: *keep,
                root: None,
                log,
            });
        }
        Ok(floor)
    }

    /// This floor with the policies of the offer, unless it knows newer ones by now.
    fn merged(&self, offer: &Offer) -> Result<Floor, Reject> {
        let chain = &offer.chain;
        if chain.volume() != self.volume {
            return Err(Reject::WrongVolume);
        }
        // Signatures may differ: more owners may have signed the same policy later.
        let known = self
            .policies
            .iter()
            .map(|signed| Link::read(self.volume, signed));
        let mut common = known.flatten().filter_map(|link| {
            let (_, hash) = chain.get(link.policy.number())?;
            Some(hash == link.hash)
        });
        if !common.all(|same| same) {
            return Err(Reject::Fork(TWO_POLICIES));
        }
        let Some((newest, _)) = self.policy() else {
            return self.with_offered(None, chain, offer.latest_start);
        };
        if newest > chain.newest().number() {
            return Err(Reject::NotSigned("judged under a policy since superseded"));
        }
        let known = match chain.beginning(newest.saturating_add(1)) {
            Some(known) => known,
            None => Chain::kept(self.volume, &self.policies, &mut Signatures::default())?,
        };
        self.with_offered(Some(&known), chain, offer.latest_start)
    }

    fn with_offered(
        &self,
        known: Option<&Chain>,
        chain: &Chain,
        latest_start: u64,
    ) -> Result<Floor, Reject> {
        let offered = std::slice::from_ref(chain);
        match forks::agreed(known, offered, self.forks.policies()) {
            Some(agreed) if agreed.chain.len() == chain.len() => {
                Ok(self.with_chain(chain, agreed.fork, latest_start))
            }
            _ => Err(Reject::Fork(UNSETTLED)),
        }
    }

    /// This floor under `chain`, which is the known chain or continues it, and whose tip may be forked.
    fn with_chain(&self, chain: &Chain, tip: Option<PolicyFork>, latest_start: u64) -> Floor {
        Floor {
            adopted: self.adopted_under(chain),
            forks: self.forks.under(chain, self.known(), tip),
            newest_start: self.newest_start_under(chain, latest_start),
            policies: chain.signed(),
            ..self.clone()
        }
    }

    /// Number of policies that the reader knows, kept or not.
    fn known(&self) -> u64 {
        self.policy()
            .map_or(0, |(number, _)| number.saturating_add(1))
    }

    /// Rule 4, for the policies that are new to this reader, one after another: the floor is the later of the
    /// adopted version and the policy's `last`. A policy with `lower` sets it to `last` in any case.
    fn adopted_under(&self, chain: &Chain) -> Option<Adopted> {
        let mut adopted = self.adopted.clone();
        for policy in chain.since(self.known()) {
            let Some(last) = policy.last() else {
                continue;
            };
            let is_behind = |a: &Adopted| last.version < a.version && !policy.lowers();
            if adopted.as_ref().is_some_and(is_behind) {
                continue;
            }
            let same = |a: &&Adopted| a.record_hash == last.record_hash;
            adopted = Some(Adopted {
                version: last.version,
                record_hash: last.record_hash,
                root: self.adopted.as_ref().filter(same).and_then(|a| a.root),
                log: last.log,
            });
        }
        adopted
    }

    /// The newest start under `chain`. Only a new policy with `lower` caps it, to the latest start that the wall
    /// clock allows: a cap by any policy would revive expired statements after the clock was set back.
    pub(crate) fn newest_start_under(&self, chain: &Chain, latest_start: u64) -> u64 {
        match chain.since(self.known()).any(Policy::lowers) {
            true => self.newest_start.min(latest_start),
            false => self.newest_start,
        }
    }

    /// The rules that need neither signatures nor the time: rollback, rule 3, fork, log. Returns the proof
    /// about the log that is still needed.
    pub(crate) fn admit(&self, offer: &Offer) -> Result<Option<Prefix>, Reject> {
        let record = &offer.record;
        let floor = self.adopted_under(&offer.chain);
        let floor_version = floor.as_ref().map_or(0, |f| f.version);
        if record.version < floor_version {
            return Err(Reject::Rollback {
                offered: record.version,
                floor: floor_version,
            });
        }
        if let Some(why) = &offer.superseded {
            return Err(why.clone());
        }
        let Some(floor) = floor else {
            return Ok(None);
        };
        if record.version == floor.version {
            if offer.record_hash != floor.record_hash {
                return Err(Reject::Fork(TWO_RECORDS));
            }
            return Ok(None);
        }
        offer.grows_from(&floor.log)
    }
}

fn decode_adopted(d: &mut Decoder<'_>) -> Result<Adopted, Reject> {
    let (version, record_hash) = (d.u64()?, d.array()?);
    let log = LogPoint::decode(d)?;
    let root = match d.flag()? {
        true => Some(Handle::from_bytes(d.array()?)),
        false => None,
    };
    Ok(Adopted {
        version,
        record_hash,
        root,
        log,
    })
}
