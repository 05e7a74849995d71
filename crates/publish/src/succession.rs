//! Determines the number of the next version and makes its head (trees.md, *Statements*). The first
//! publication makes the genesis policy; each later one continues a verified head. Signing comes after, here
//! or on another machine: a [`Request`] carries all that it needs.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use state::Clock;
use store::Repository;
use trust::floor::Floor;
use trust::handle::InodeBlock;
use trust::head::{Head, first_log};
use trust::history::LogPoint;
use trust::judge::{Freshness, Terms};
use trust::key::{PublicKey, SecretKey};
use trust::policy::{Genesis, Roles};
use trust::request::{Base, Request};
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::statement::VolumeId;
use trust::version_name::VersionName;
use trust::{Handle, Hasher, Reject};

use crate::memory::{Memory, NextHead};
use crate::publish_error::PublishError;

/// What the next version builds on.
pub(crate) struct Succession {
    pub volume: VolumeId,
    pub hasher: Hasher,
    /// Number of the version to be made.
    pub version: u64,
    /// The version before.
    pub previous: Option<RootRecord>,
    /// The keys that may sign it.
    roles: Roles,
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

/// The signing key, its clock, and this machine's memory of earlier signatures.
pub(crate) struct Signing<'a> {
    pub key: &'a SecretKey,
    /// Gives the start of the validity.
    pub clock: &'a Clock,
    /// Length of the validity.
    pub valid: Duration,
    /// Locked until the new version is shown.
    pub memory: &'a Memory,
    /// For messages.
    pub repository: &'a Path,
}

impl Succession {
    /// A new volume under a new genesis policy that gives all roles to `key` alone. Nothing is signed
    /// yet. Its records are valid for a year at most, or for `longest` seconds if that is more.
    pub(crate) fn begin(
        name: &str,
        key: PublicKey,
        longest: u64,
    ) -> Result<Succession, PublishError> {
        let (mut random, mut iv) = ([0; 32], [0; 32]);
        for bytes in [&mut random, &mut iv] {
            getrandom::fill(bytes).map_err(|e| PublishError::Random(e.to_string()))?;
        }
        let mut roles = Roles::single(key);
        roles.record_max = roles.record_max.max(longest);
        let genesis = Genesis::new(name, random, iv, roles)?;
        let unsigned = genesis.statement().sign(&[]);
        let (log, _) = first_log(&unsigned)?;
        Ok(Succession {
            volume: genesis.volume_id(),
            hasher: genesis.hasher(),
            version: 1,
            previous: None,
            roles: genesis.roles,
            policy: (0, unsigned.hash()),
            not_before: 0,
            name: None,
            earlier: Vec::new(),
            base: Base::Genesis(unsigned),
            log,
        })
    }

    /// The successor of the head of a repository.
    pub(crate) fn follow(head: &[u8], repository: &Repository) -> Result<Succession, PublishError> {
        let path = repository.disk_shared().path("");
        let known = |head: &Head| Ok(repository.floor(head, &mut Signatures::default())?);
        Succession::after(head, &path, known)
    }

    /// The successor of a head that this machine signed. Its policies were verified then.
    pub(crate) fn of_own(head: &[u8], path: &Path) -> Result<Succession, PublishError> {
        Succession::after(head, path, |head| Ok(Floor::trusting(head)?))
    }

    fn after(
        head: &[u8],
        path: &Path,
        known: impl FnOnce(&Head) -> Result<Floor, PublishError>,
    ) -> Result<Succession, PublishError> {
        let bad = |why| PublishError::BadHead {
            path: path.to_owned(),
            why,
        };
        let head = Head::decode(head).map_err(bad)?;
        let volume = match head.policies.first() {
            Some(genesis) => VolumeId::from_bytes(genesis.hash()),
            None => return Err(bad(Reject::NotSigned("there is no genesis policy"))),
        };
        // Judged whatever the time: an expired version is what most needs a successor.
        let claimed: RootRecord = head.record.statement().read(volume).map_err(bad)?;
        let terms = Terms {
            freshness: Freshness::Pinned {
                version: claimed.version,
                record_hash: head.record.hash(),
            },
            ..Terms::strict(claimed.start)
        };
        let offer = known(&head)?
            .judge(&head, &terms, &mut Signatures::default())
            .map_err(bad)?;
        let version = offer.record.version.checked_add(1);
        let (log, _) = head.next_log(volume).map_err(bad)?;
        Ok(Succession {
            volume,
            hasher: offer.chain.hasher(),
            version: version.ok_or(PublishError::Impossible("the version numbers are used up"))?,
            policy: (offer.chain.newest().number(), offer.chain.newest_hash()),
            not_before: offer.record.start,
            previous: Some(offer.record),
            roles: offer.chain.newest().roles().clone(),
            name: None,
            earlier: Vec::new(),
            base: Base::Head(Box::new(head)),
            log,
        })
    }

    /// The same with a name for the version to be made.
    pub(crate) fn named(self, name: Option<VersionName>) -> Succession {
        Succession { name, ..self }
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

    /// Whether `key` alone can sign the next version.
    pub(crate) fn check_signer(&self, key: &PublicKey) -> Result<(), PublishError> {
        if !self.roles.publishers.keys().contains(key) {
            return Err(PublishError::WrongKey {
                volume: self.volume.to_string(),
            });
        }
        if self.roles.publishers.needed() > 1 || !self.roles.timestamps.is_empty() {
            return Err(PublishError::Impossible(
                "the policy of this volume asks for more signatures than one key's",
            ));
        }
        Ok(())
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
    /// [`PublishError::Forked`] when the repository shows another record of the version that was signed last.
    pub(crate) fn go_on_from(
        self,
        memory: &Memory,
        path: &Path,
    ) -> Result<Succession, PublishError> {
        let Some(signed) = memory.last()? else {
            return Ok(self);
        };
        let signed = &signed;
        let last = Succession::of_own(signed, path)?;
        if last.volume != self.volume || last.version < self.version {
            return Ok(self);
        }
        if last.version == self.version {
            return match last.base_hash() == self.base_hash() {
                true => Ok(self),
                false => Err(PublishError::Forked {
                    path: path.to_owned(),
                    version: self.version.saturating_sub(1),
                }),
            };
        }
        tracing::warn!(
            repository = %path.display(),
            shows = self.version.saturating_sub(1),
            signed = last.version.saturating_sub(1),
            "the repository shows an older version than this machine has signed"
        );
        let head = Head::decode(signed)?;
        let record: RootRecord = head.record.statement().read(self.volume)?;
        let (epoch, own) = (record.log.epoch, record.log.size);
        let same_log = epoch == self.log.epoch;
        let kept = memory.leaves(epoch, if same_log { self.log.size } else { 0 }, own);
        let kept = kept.into_iter().map(|(index, leaf)| (epoch, index, leaf));
        let own = (epoch, own, head.record.to_bytes().into());
        Ok(Succession {
            previous: self.previous,
            name: self.name,
            earlier: self.earlier.into_iter().chain(kept).chain([own]).collect(),
            ..last
        })
    }

    /// Refuses a clock that is behind the previous version.
    pub(crate) fn check_clock(&self, now: u64) -> Result<(), PublishError> {
        if now < self.not_before {
            return Err(PublishError::ClockBehind {
                now,
                previous: self.not_before,
            });
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
    /// As [`Succession::go_on_from`], [`Succession::check_signer`], [`Succession::check_clock`].
    pub(crate) fn sign(
        self,
        root: Handle<InodeBlock>,
        totals: Totals,
        signing: &Signing<'_>,
    ) -> Result<NextHead, PublishError> {
        let next = self.go_on_from(signing.memory, signing.repository)?;
        next.check_signer(&signing.key.public())?;
        let start = signing.clock.now();
        next.check_clock(start)?;
        let duration = signing.valid.as_secs();
        check_validity(&next.roles, duration)?;
        let mut request = next.propose(root, totals, start, duration);
        let examined = request.examine(&mut Signatures::default())?;
        request.sign(&examined, start, duration, signing.key)?;
        let mut head = NextHead::of(&request)?;
        head.leaves.extend(next.earlier);
        Ok(head)
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
