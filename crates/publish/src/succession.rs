//! Which version is next, and the head that makes it stand (trees.md, *Statements*): the first publication
//! makes the genesis policy, each later one builds on a head that verifies and whose publisher it is.

use std::path::Path;

use bytes::Bytes;
use trust::floor::Floor;
use trust::handle::InodeBlock;
use trust::head::{Head, first_log};
use trust::history::{Frontier, LogPoint};
use trust::judge::{Freshness, Terms};
use trust::key::SecretKey;
use trust::policy::{Genesis, Roles};
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::statement::{Signed, VolumeId};
use trust::{Handle, Hasher, Reject};

use crate::publish_error::PublishError;

/// What the next version builds on.
pub(crate) struct Succession {
    pub volume: VolumeId,
    pub hasher: Hasher,
    /// Number of the version to be made.
    pub version: u64,
    /// The version before.
    pub previous: Option<RootRecord>,
    /// Its hash.
    pub previous_hash: Option<[u8; 32]>,
    policies: Vec<Signed>,
    policy: (u64, [u8; 32]),
    log: LogPoint,
    frontier: Frontier,
    /// Begin of validity of the newest version signed, unix seconds.
    not_before: u64,
    /// Statements that may not be in the log yet: epoch, index, leaf.
    earlier: Vec<(u64, u64, Bytes)>,
}

/// A head to be committed, and the leaves of the log that come with it.
pub(crate) struct NextHead {
    pub bytes: Vec<u8>,
    pub record_hash: [u8; 32],
    pub valid_until: u64,
    /// Epoch, index, leaf.
    pub leaves: Vec<(u64, u64, Bytes)>,
}

impl Succession {
    /// A new volume under a new genesis policy, all roles of which `key` has alone.
    pub(crate) fn begin(name: &str, key: &SecretKey) -> Result<Succession, PublishError> {
        let (mut random, mut iv) = ([0; 32], [0; 32]);
        for bytes in [&mut random, &mut iv] {
            getrandom::fill(bytes).map_err(|e| PublishError::Random(e.to_string()))?;
        }
        let genesis = Genesis::new(name, random, iv, Roles::single(key.public()))?;
        let signed = genesis.statement().sign(&[key]);
        let (log, frontier) = first_log(&signed)?;
        Ok(Succession {
            volume: genesis.volume_id(),
            hasher: genesis.hasher(),
            version: 1,
            previous: None,
            previous_hash: None,
            policy: (0, signed.hash()),
            not_before: 0,
            earlier: vec![(0, 0, signed.statement().bytes().clone())],
            policies: vec![signed],
            log,
            frontier,
        })
    }

    /// The successor of the head of the repository at `path`.
    pub(crate) fn follow(
        head: &[u8],
        key: &SecretKey,
        path: &Path,
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
            now: claimed.start,
            freshness: Freshness::Pinned {
                version: claimed.version,
                record_hash: head.record.hash(),
            },
            policy_pin: None,
        };
        let offer = Floor::new(volume)
            .judge(&head, &terms, &mut Signatures::default())
            .map_err(bad)?;
        let roles = offer.chain.newest().roles();
        if !roles.publishers.keys().contains(&key.public()) {
            return Err(PublishError::WrongKey {
                volume: volume.to_string(),
            });
        }
        if roles.publishers.needed() > 1 || !roles.timestamps.is_empty() {
            return Err(PublishError::Impossible(
                "the policy of this volume asks for more signatures than one key's",
            ));
        }
        let version = offer.record.version.checked_add(1);
        let (log, frontier) = head.next_log(volume).map_err(bad)?;
        Ok(Succession {
            volume,
            hasher: offer.chain.hasher(),
            version: version.ok_or(PublishError::Impossible("the version numbers are used up"))?,
            policy: (offer.chain.newest().number(), offer.chain.newest_hash()),
            not_before: offer.record.start,
            previous: Some(offer.record),
            previous_hash: Some(offer.record_hash),
            earlier: Vec::new(),
            policies: head.policies,
            log,
            frontier,
        })
    }

    /// Goes on from `signed`, the head that this machine signed last, where the repository shows an
    /// older one: it was restored from a backup, lost its last rename in a power cut, or lies. A
    /// second record of the same version would be a fork for whoever has read the first.
    ///
    /// What the repository holds stays what is compared with: the blocks of the lost version may be
    /// lost too.
    pub(crate) fn go_on_from(
        self,
        signed: &[u8],
        key: &SecretKey,
        path: &Path,
    ) -> Result<Succession, PublishError> {
        let last = Succession::follow(signed, key, path)?;
        if last.volume != self.volume || last.version <= self.version {
            return Ok(self);
        }
        tracing::warn!(
            repository = %path.display(),
            shows = self.version.saturating_sub(1),
            signed = last.version.saturating_sub(1),
            "the repository shows an older version than this machine has signed"
        );
        let head = Head::decode(signed)?;
        let record: RootRecord = head.record.statement().read(self.volume)?;
        let leaf = head.record.statement().bytes().clone();
        Ok(Succession {
            previous: self.previous,
            previous_hash: self.previous_hash,
            earlier: vec![(record.log.epoch, record.log.size, leaf)],
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

    /// Signs the next version.
    pub(crate) fn sign(
        self,
        root: Handle<InodeBlock>,
        totals: Totals,
        start: u64,
        duration: u64,
        key: &SecretKey,
    ) -> Result<NextHead, PublishError> {
        self.check_clock(start)?;
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
        let signed = record.statement(self.volume).sign(&[key]);
        let leaf = signed.statement().bytes().clone();
        let mut leaves = vec![(self.log.epoch, self.log.size, leaf)];
        leaves.extend(self.earlier);
        let head = Head {
            policies: self.policies,
            timestamp: None,
            checkpoint: None,
            frontier: self.frontier,
            record: signed,
        };
        Ok(NextHead {
            bytes: head.encode()?,
            record_hash: head.record.hash(),
            valid_until: record.until(),
            leaves,
        })
    }
}
