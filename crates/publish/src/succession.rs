//! Determines the number of the next version and makes its head (trees.md, *Statements*). The first
//! publication makes the genesis policy; each later one continues a verified head. Signing comes after, here
//! or on another machine: a [`Request`] carries all that it needs.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use state::Clock;
use store::Repository;
use trust::chain::Chain;
use trust::floor::Floor;
use trust::handle::InodeBlock;
use trust::head::{Head, first_log};
use trust::history::LogPoint;
use trust::judge::{Freshness, Terms};
use trust::key::PublicKey;
use trust::policy::{Genesis, Policy, Roles, Threshold};
use trust::request::{Base, Request};
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::VolumeId;
use trust::tally::Tally;
use trust::version_name::VersionName;
use trust::{Handle, Hasher, Reject};

use crate::confirming::{self, Confirming};
use crate::cosigning::{self, Cosigning};
use crate::new_volume::NewVolume;
use crate::publish_error::{Missing, PublishError};
use crate::signing_memory::{self, Memory, NextHead};

/// The refusal of a checkpoint in a file where a version is signed.
pub(crate) fn only_installed() -> PublishError {
    PublishError::Impossible(
        "a checkpoint is written to a file where a signed version or policy is installed, and nowhere else",
    )
}

const USED_UP: Reject = Reject::Malformed {
    what: "root record",
    why: "the version numbers are used up",
};

/// What the next version builds on.
pub(crate) struct NextVersion {
    pub volume: VolumeId,
    pub hasher: Hasher,
    /// Number of the version to be made.
    pub version: u64,
    /// The version before.
    pub previous: Option<RootRecord>,
    /// The keys that may sign it.
    roles: Roles,
    /// The newest policy.
    newest: Policy,
    /// All policies; a new volume has no chain yet.
    chain: Option<Chain>,
    base: Base,
    policy: (u64, [u8; 32]),
    log: LogPoint,
    /// The name of the version to be made.
    name: Option<VersionName>,
    /// Begin of validity of the newest version signed, unix seconds.
    not_before: u64,
    /// Leaves that may not be in the repository's log yet: epoch, index, signed statement.
    earlier: Vec<(u64, u64, Bytes)>,
}

/// The signing keys, their clock, and this machine's memory of earlier signatures.
pub(crate) struct Signing<'a> {
    pub keys: &'a [&'a dyn Signer],
    /// Gives the start of the validity.
    pub clock: &'a Clock,
    /// Whether the clock may be behind the last version.
    pub accept_clock: bool,
    /// Length of the validity.
    pub valid: Duration,
    /// Locked until the new version is shown.
    pub memory: &'a Memory,
    /// How the new version gets cosignatures.
    pub cosigning: &'a Cosigning,
    /// For messages.
    pub repository: &'a Path,
}

impl NextVersion {
    /// A new volume under a new genesis policy with these roles. Nothing is signed yet.
    pub(crate) fn begin(name: &str, new: &NewVolume) -> Result<NextVersion, PublishError> {
        let (mut random, mut iv) = ([0; 32], [0; 32]);
        for bytes in [&mut random, &mut iv] {
            getrandom::fill(bytes).map_err(|e| PublishError::Random(e.to_string()))?;
        }
        let mut genesis = Genesis::new(name, random, iv, new.roles.clone())?;
        genesis.not_after = new.not_after;
        let unsigned = genesis.statement().sign(&[]);
        let (log, _) = first_log(&unsigned)?;
        Ok(NextVersion {
            volume: genesis.volume_id(),
            hasher: genesis.hasher(),
            version: 1,
            previous: None,
            roles: genesis.roles.clone(),
            policy: (0, unsigned.hash()),
            newest: Policy::Genesis(genesis),
            chain: None,
            not_before: 0,
            name: None,
            earlier: Vec::new(),
            base: Base::Genesis(unsigned),
            log,
        })
    }

    /// The successor of the head of a repository.
    pub(crate) fn follow(
        head: &[u8],
        repository: &Repository,
    ) -> Result<NextVersion, PublishError> {
        let bad = |why| PublishError::BadHead {
            path: repository.disk_shared().path(""),
            why,
        };
        let head = Head::decode(head).map_err(bad)?;
        let volume = head.volume().map_err(bad)?;
        let floor = repository.floor(&head, &mut Signatures::default())?;
        NextVersion::after(head, volume, &floor).map_err(bad)
    }

    /// The successor of a head that this machine signed, whose policies were verified then. `None` if other keys have not
    /// signed it as far as this machine knows, so that nothing can be built on it.
    pub(crate) fn of_own(head: Head) -> Result<Option<NextVersion>, PublishError> {
        let volume = head.volume().map_err(PublishError::Memory)?;
        let floor = Floor::trusting(&head).map_err(PublishError::Memory)?;
        match NextVersion::after(head, volume, &floor) {
            Ok(succession) => Ok(Some(succession)),
            Err(Reject::NotSigned(_)) => Ok(None),
            Err(why) => Err(PublishError::Memory(why)),
        }
    }

    fn after(head: Head, volume: VolumeId, known: &Floor) -> Result<NextVersion, Reject> {
        // Judged whatever the time: an expired version is what most needs a successor.
        let claimed: RootRecord = head.record.statement().read(volume)?;
        let terms = Terms {
            freshness: Freshness::Pinned {
                version: claimed.version,
                record_hash: head.record.hash(),
            },
            ..Terms::strict(claimed.start)
        };
        let offer = known.judge(&head, &terms, &mut Signatures::default())?;
        let version = offer.record.version.checked_add(1);
        let (log, _) = head.next_log(volume)?;
        Ok(NextVersion {
            volume,
            hasher: offer.chain.hasher(),
            version: version.ok_or(USED_UP)?,
            policy: (offer.chain.newest().number(), offer.chain.newest_hash()),
            not_before: offer.record.start,
            previous: Some(offer.record),
            roles: offer.chain.newest().roles().clone(),
            name: None,
            newest: offer.chain.newest().clone(),
            chain: Some(offer.chain),
            earlier: Vec::new(),
            base: Base::Head(Box::new(head)),
            log,
        })
    }

    /// The same with a name for the version to be made.
    pub(crate) fn named(self, name: Option<VersionName>) -> NextVersion {
        NextVersion { name, ..self }
    }

    /// The keys that may sign the next version.
    pub(crate) fn roles(&self) -> &Roles {
        &self.roles
    }

    /// Hash of the record that is succeeded.
    pub(crate) fn base_hash(&self) -> Option<[u8; 32]> {
        match &self.base {
            Base::Genesis(_) => None,
            Base::Head(head) => Some(head.record.hash()),
        }
    }

    /// Whether these keys suffice to sign and show the next version. The timestamp of a new volume, which nobody reads
    /// yet, can come later.
    ///
    /// # Errors
    /// [`PublishError::WrongKey`] for a key without a role here; [`PublishError::TooFewKeys`],
    /// [`PublishError::NoTimestamp`] when more keys must sign.
    pub(crate) fn check_signers(&self, keys: &[PublicKey]) -> Result<(), PublishError> {
        let Roles {
            owners,
            publishers,
            timestamps,
            log,
            ..
        } = &self.roles;
        let is_new = self.previous.is_none();
        let has_role = |key: &PublicKey| {
            publishers.keys().contains(key)
                || timestamps.keys().contains(key)
                || log.keys().contains(key)
                || is_new && owners.keys().contains(key)
        };
        if !keys.iter().all(has_role) {
            return Err(PublishError::WrongKey {
                volume: self.volume.to_string(),
            });
        }
        let tally = |role, threshold: &Threshold| {
            let all = threshold.keys().iter();
            let (signed, waiting) = all.partition(|key| keys.contains(key));
            Tally {
                role,
                needed: threshold.needed(),
                signed,
                waiting,
            }
        };
        let mut missing = vec![tally("publishers", publishers)];
        if is_new {
            missing.insert(0, tally("owners", owners));
        }
        missing.retain(|tally| !tally.is_enough());
        if !missing.is_empty() {
            return Err(self.too_few(missing));
        }
        match is_new {
            true => Ok(()),
            false => confirming::check_keys(&self.roles, keys, self.version),
        }
    }

    /// Whether the next version can be cosigned, before it is signed.
    ///
    /// # Errors
    /// Those of [`cosigning::check`].
    pub(crate) fn check_cosigning(
        &self,
        keys: &[PublicKey],
        cosigning: &Cosigning,
    ) -> Result<(), PublishError> {
        if cosigning.checkpoint_out.is_some() {
            return Err(only_installed());
        }
        cosigning::check(&self.roles, keys, cosigning, self.version)
    }

    fn too_few(&self, missing: Vec<Tally>) -> PublishError {
        PublishError::TooFewKeys {
            version: self.version,
            volume: self.volume.to_string(),
            missing: Missing(missing),
        }
    }

    /// Refuses a description of a new volume where a volume is. Only the name of a publisher's key is no description.
    pub(crate) fn check_described(&self, new: &NewVolume, path: &Path) -> Result<(), PublishError> {
        if self.previous.is_none() {
            return Ok(());
        }
        if !new.is_plain {
            return Err(PublishError::HasRoles {
                path: path.to_owned(),
            });
        }
        let named = new.roles.publishers.keys();
        match (named.iter()).all(|key| self.roles.publishers.keys().contains(key)) {
            true => Ok(()),
            false => Err(PublishError::WrongKey {
                volume: self.volume.to_string(),
            }),
        }
    }

    /// Continues from the head that this machine signed last, if the repository shows an older one: because
    /// it was restored from a backup, lost its last rename in a power cut, or is dishonest, or because another
    /// process has signed since. A second record of the same version would be a fork for all readers of the
    /// first.
    ///
    /// The tree is still compared with the version in the repository, because the blocks of the lost
    /// version may be lost too. The leaves that the log lacks come from the memory of this machine.
    ///
    /// # Errors
    /// [`PublishError::Forked`] when the repository shows another record of a version that was signed here.
    pub(crate) fn go_on_from(
        self,
        memory: &Memory,
        path: &Path,
    ) -> Result<NextVersion, PublishError> {
        let Some(head) = memory.last()? else {
            return Ok(self);
        };
        if self.takes_back(&head)? {
            return Ok(self);
        }
        let Some(last) = NextVersion::of_own(head.clone())? else {
            return Ok(self);
        };
        if last.policy.0 < self.policy.0 && last.version > self.version {
            return Err(PublishError::SetBack {
                path: path.to_owned(),
                shows: self.version.saturating_sub(1),
                signed: last.version.saturating_sub(1),
            });
        }
        if last.volume != self.volume || last.version < self.version {
            return Ok(self);
        }
        if last.version == self.version {
            if last.base_hash() != self.base_hash() {
                return Err(PublishError::Forked {
                    path: path.to_owned(),
                    version: self.version.saturating_sub(1),
                });
            }
            if last.policy.0 <= self.policy.0 {
                return Ok(self);
            }
            // Policies were installed on that version, and the repository has lost them.
        }
        self.check_uncontradicted(memory, path)?;
        tracing::warn!(
            repository = %path.display(),
            shows = self.version.saturating_sub(1),
            signed = last.version.saturating_sub(1),
            "the repository shows an older version than this machine has signed"
        );
        let record: RootRecord = head.record.statement().read(self.volume)?;
        let own = (record.log.epoch, record.log.size);
        let (epoch, size) = (last.log.epoch, last.log.size);
        let from = if epoch == self.log.epoch {
            self.log.size
        } else {
            0
        };
        let kept = memory.leaves(epoch, from, size).into_iter();
        let kept = kept.map(|(index, leaf)| (epoch, index, leaf));
        let kept = kept.filter(|(epoch, index, _)| (*epoch, *index) != own);
        let own = (own.0, own.1, head.record.to_bytes().into());
        Ok(NextVersion {
            previous: self.previous,
            name: self.name,
            earlier: self.earlier.into_iter().chain(kept).chain([own]).collect(),
            ..last
        })
    }

    /// Refuses to go on where the repository shows another record than this machine has kept in the same place of the log.
    ///
    /// # Errors
    /// [`PublishError::Forked`].
    pub(crate) fn check_uncontradicted(
        &self,
        memory: &Memory,
        path: &Path,
    ) -> Result<(), PublishError> {
        match (&self.base, &self.previous) {
            (Base::Head(shown), Some(record)) if memory.contradicts(shown, record) => {
                Err(PublishError::Forked {
                    path: path.to_owned(),
                    version: record.version,
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether a policy since takes readers back from the version of the head that this machine signed last.
    pub(crate) fn takes_back(&self, last: &Head) -> Result<bool, PublishError> {
        match &self.chain {
            Some(chain) if last.volume()? == self.volume => {
                signing_memory::is_taken_back(last, chain)
            }
            _ => Ok(false),
        }
    }

    /// Refuses a clock that is behind the previous version, unless the caller accepts that, and a policy that has ended.
    /// Readers compare the start of a version only with their own clocks, so this is for the publisher's sake: a clock that
    /// is behind makes versions that have ended.
    pub(crate) fn check_clock(&self, now: u64, accept_clock: bool) -> Result<(), PublishError> {
        if now < self.not_before && !accept_clock {
            return Err(PublishError::ClockBehind {
                now,
                previous: self.not_before,
            });
        }
        let not_after = self.newest.not_after();
        if now >= not_after {
            return Err(PublishError::PolicyOver { not_after });
        }
        Ok(())
    }

    /// The next version, unsigned.
    pub(crate) fn propose(
        &self,
        root: Handle<InodeBlock>,
        totals: Totals,
        start: u64,
        duration: u64,
    ) -> Request {
        let record = RootRecord {
            version: self.version,
            start,
            duration,
            root,
            totals,
            policy_number: self.policy.0,
            policy_hash: self.policy.1,
            log: self.log,
            mirrors: Vec::new(),
        };
        Request {
            base: self.base.clone(),
            record: record
                .named_statement(self.volume, self.name.as_ref())
                .sign(&[]),
        }
    }

    /// Compares with what this machine signed last, and signs the next version.
    ///
    /// # Errors
    /// As [`NextVersion::go_on_from`], [`NextVersion::check_signers`], [`NextVersion::check_clock`];
    /// [`PublishError::Contradiction`] if this machine has signed another record of the version, together with others
    /// who have not signed it yet; [`PublishError::NoSignature`].
    pub(crate) fn sign(
        self,
        root: Handle<InodeBlock>,
        totals: Totals,
        signing: &Signing<'_>,
    ) -> Result<NextHead, PublishError> {
        let next = self.go_on_from(signing.memory, signing.repository)?;
        let public: Vec<PublicKey> = signing.keys.iter().map(|key| key.public()).collect();
        next.check_signers(&public)?;
        next.check_cosigning(&public, signing.cosigning)?;
        let start = signing.clock.now();
        next.check_clock(start, signing.accept_clock)?;
        let duration = signing.valid.as_secs();
        check_validity(&next.roles, duration)?;
        next.check_unfinished(signing)?;
        let mut request = next.propose(root, totals, start, duration);
        for key in signing.keys.iter().copied() {
            let examined = request.examine(&mut Signatures::default())?;
            if examined.may_sign(&key.public()) {
                request.sign(&examined, start, duration, key)?;
            }
        }
        let missing = request.examine(&mut Signatures::default())?.missing();
        if !missing.is_empty() {
            return Err(next.too_few(missing));
        }
        let mut head = NextHead::of(&request)?;
        let is_new = next.previous.is_none();
        if !is_new || confirming::check_keys(&next.roles, &public, next.version).is_ok() {
            let confirming = Confirming {
                keys: signing.keys,
                now: start,
                valid: signing.valid,
                gathered: None,
            };
            let policy = (&next.newest, next.policy.1);
            let until = confirming::confirm(&mut head.head, next.volume, policy, &confirming)?;
            head.valid_until = head.valid_until.min(until);
        } else {
            head.waits_for_timestamp = true;
        }
        head.leaves.extend(next.earlier);
        Ok(head)
    }

    /// Refuses to sign a version of which this machine has signed another record that is not complete yet.
    fn check_unfinished(&self, signing: &Signing<'_>) -> Result<(), PublishError> {
        let before = self.version.saturating_sub(1);
        let is_later = (self.chain.as_ref()).map(|chain| signing.memory.is_later(chain, before));
        match is_later.transpose()? == Some(true) {
            true => Err(PublishError::Contradiction {
                version: self.version,
                why: Reject::Fork("two records of one version"),
            }),
            false => Ok(()),
        }
    }
}

/// Refuses a validity longer than the policy allows, which no reader would believe.
pub(crate) fn check_validity(roles: &Roles, seconds: u64) -> Result<(), PublishError> {
    if seconds > roles.record_max {
        return Err(PublishError::Impossible(
            "the validity is longer than the policy of this volume allows",
        ));
    }
    Ok(())
}
