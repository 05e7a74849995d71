//! A volume for tests: keys by number, and short functions for records and policies. So the text of each
//! attack contains only what is wrong with it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use trust::chain::{Chain, MAX_POLICIES};
use trust::floor::Floor;
use trust::handle::Handle;
use trust::head::{Head, first_log};
use trust::history::{Frontier, LogPoint, leaf_hash};
use trust::judge::{Freshness, Offer, Terms};
use trust::key::{PublicKey, SIGNATURE_BYTES, SecretKey};
use trust::policy::{Genesis, Last, NO_END, Policy, Roles, Successor, Threshold, VolumeId};
use trust::root::{RootRecord, Totals};
use trust::signatures::Signatures;
use trust::signer::{SignError, Signer};
use trust::statement::{Signed, Statement};
use trust::timestamp::Timestamp;
use trust::{Reject, checkpoint};

/// The time of all tests, unix seconds.
pub const NOW: u64 = 1_800_000_000;
/// How long records are valid, seconds.
pub const WEEK: u64 = 7 * 24 * 3600;

pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

pub fn threshold(needed: u8, numbers: &[u8]) -> Threshold {
    let keys = numbers.iter().map(|n| key(*n).public()).collect();
    Threshold::new(needed, keys).unwrap()
}

pub fn sign(statement: &Statement, numbers: &[u8]) -> Signed {
    let keys: Vec<SecretKey> = numbers.iter().map(|n| key(*n)).collect();
    statement.sign(&keys.iter().collect::<Vec<_>>())
}

/// Whether the key has no right to sign.
pub fn is_refused(error: SignError) -> bool {
    matches!(error, SignError::Refused(Reject::NotSigned(_)))
}

/// A token that signs a number of times, and then no more.
#[derive(Debug)]
pub struct Tired {
    left: AtomicUsize,
    key: SecretKey,
}

impl Tired {
    pub fn after(signatures: usize, key: SecretKey) -> Tired {
        let left = AtomicUsize::new(signatures);
        Tired { left, key }
    }
}

impl Signer for Tired {
    fn public(&self) -> PublicKey {
        self.key.public()
    }

    fn name(&self) -> String {
        "the tired token".to_owned()
    }

    fn ask(
        &self,
        message: &[u8],
    ) -> Result<[u8; SIGNATURE_BYTES], Box<dyn Error + Send + Sync + 'static>> {
        let left = self.left.load(Ordering::Relaxed).checked_sub(1);
        self.left.store(left.ok_or("tired")?, Ordering::Relaxed);
        Ok(self.key.sign(message))
    }
}

/// Owner 1, publisher 2.
pub fn roles() -> Roles {
    Roles {
        owners: threshold(1, &[1]),
        publishers: threshold(1, &[2]),
        ..Roles::single(key(1).public())
    }
}

#[derive(Clone)]
pub struct World {
    pub volume: VolumeId,
    pub policies: Vec<Signed>,
    pub log: LogPoint,
    pub frontier: Frontier,
    /// Hashes of the leaves of each log, by epoch.
    pub leaves: BTreeMap<u64, Vec<[u8; 32]>>,
}

impl World {
    pub fn new() -> World {
        World::with_genesis(roles(), NO_END, &[1])
    }

    pub fn with_genesis(roles: Roles, not_after: u64, signers: &[u8]) -> World {
        let mut genesis = Genesis::new("world", [7; 32], [9; 32], roles).unwrap();
        genesis.not_after = not_after;
        let signed = sign(&genesis.statement(), signers);
        let (log, frontier) = first_log(&signed).unwrap();
        World {
            volume: genesis.volume_id(),
            leaves: BTreeMap::from([(0, vec![leaf_hash(signed.statement().bytes())])]),
            policies: vec![signed],
            log,
            frontier,
        }
    }

    pub fn newest(&self) -> (u64, [u8; 32]) {
        let newest = self.policies.last().unwrap();
        (self.policies.len() as u64 - 1, newest.hash())
    }

    /// A record of this version under the newest policy, in the world's log.
    pub fn record(&self, version: u64) -> RootRecord {
        let (policy_number, policy_hash) = self.newest();
        RootRecord {
            version,
            start: NOW,
            duration: WEEK,
            root: Handle::from_bytes([version as u8; 32]),
            totals: Totals {
                files: 2,
                directories: 3,
                other: 4,
                bytes: 5,
            },
            policy_number,
            policy_hash,
            log: self.log,
            mirrors: vec![],
        }
    }

    /// A head with `record`, signed by these keys.
    pub fn head_of(&self, record: &RootRecord, signers: &[u8]) -> Head {
        Head {
            policies: window(&self.policies),
            record: sign(&record.statement(self.volume), signers),
            timestamp: None,
            checkpoint: None,
            frontier: self.frontier.clone(),
            later_log: None,
        }
    }

    /// A valid head of this version. The world's log grows.
    pub fn publish(&mut self, version: u64) -> Head {
        let head = self.head_of(&self.record(version), &[2]);
        self.advance(&head);
        head
    }

    /// Makes the log after this head the world's log.
    pub fn advance(&mut self, head: &Head) {
        let leaves = self.leaves.entry(self.log.epoch).or_default();
        leaves.push(leaf_hash(head.record.statement().bytes()));
        (self.log, self.frontier) = head.next_log(self.volume).unwrap();
    }

    /// Proves that the log of `offer` only grew, with the one tile that a short log has.
    pub fn show_growth(&self, floor: &Floor, offer: &mut Offer) -> Result<(), Reject> {
        let Some(mut prefix) = floor.unproved(offer)? else {
            return Ok(());
        };
        prefix.supply(&self.leaves[&prefix.epoch()].concat())?;
        offer.prove(prefix)
    }

    /// The next policy, with the same roles; it names `last`.
    pub fn successor(&self, last: Option<&Head>) -> Successor {
        let (number, previous) = self.newest();
        Successor {
            number: number + 1,
            previous,
            not_after: NO_END,
            log_epoch: 0,
            roles: roles(),
            last: last.map(|head| self.last(head)),
            lower: false,
            revoked: None,
            refused: vec![],
        }
    }

    pub fn last(&self, head: &Head) -> Last {
        let record: RootRecord = head.record.statement().read(self.volume).unwrap();
        Last {
            version: record.version,
            record_hash: head.record.hash(),
            log: head.next_log(self.volume).unwrap().0,
        }
    }

    /// Adds a policy to the world and its log.
    pub fn rotate(&mut self, successor: &Successor, signers: &[u8]) {
        let signed = sign(&successor.statement(self.volume), signers);
        if successor.log_epoch != self.log.epoch {
            self.frontier = Frontier::new();
        }
        self.frontier.push(signed.statement().bytes()).unwrap();
        self.log = self.frontier.point(successor.log_epoch);
        let leaves = self.leaves.entry(self.log.epoch).or_default();
        leaves.push(leaf_hash(signed.statement().bytes()));
        self.policies.push(signed);
    }

    pub fn timestamp(&self, head: &Head) -> Timestamp {
        let (policy_number, policy_hash) = self.newest();
        Timestamp {
            record_hash: head.record.hash(),
            policy_number,
            policy_hash,
            issued: NOW,
            until: NOW + 3600,
        }
    }

    pub fn chain(&self) -> Result<Chain, Reject> {
        Chain::verify(self.volume, &self.policies, &mut Signatures::default())
    }

    pub fn floor(&self) -> Floor {
        Floor::new(self.volume)
    }

    /// A checkpoint of the log just after the head's record, cosigned by these witnesses.
    pub fn checkpoint(&self, head: &Head, witnesses: &[u8]) -> Bytes {
        let mut frontier = head.frontier.clone();
        frontier.push(head.record.statement().bytes()).unwrap();
        let record: RootRecord = head.record.statement().read(self.volume).unwrap();
        let text = checkpoint::text(self.volume, &frontier.point(record.log.epoch));
        let mut note = format!("{text}\n");
        for number in witnesses {
            let message = checkpoint::cosigned_message(&text, NOW);
            let signature = key(*number).sign(message.as_bytes());
            let name = format!("witness.example/{number}");
            let public = key(*number).public();
            note += &checkpoint::cosignature_line(&name, &public, NOW, &signature);
        }
        note.into()
    }
}

pub fn judge(floor: &Floor, head: &Head) -> Result<Offer, Reject> {
    judge_at(floor, head, NOW)
}

pub fn judge_at(floor: &Floor, head: &Head, now: u64) -> Result<Offer, Reject> {
    floor.judge(head, &Terms::strict(now), &mut Signatures::default())
}

/// The floor of a reader that adopted these heads one after another.
pub fn adopted(floor: &Floor, heads: &[&Head]) -> Floor {
    let mut floor = floor.clone();
    for head in heads {
        floor = floor.adopt(&judge(&floor, head).unwrap()).unwrap();
    }
    floor
}

/// The floor after learning the policies of a head.
pub fn learned(floor: &Floor, head: &Head) -> Floor {
    floor.learn(head, NOW, &mut Signatures::default()).unwrap()
}

/// A policy as decoded, for tests that look at its fields.
pub fn read_policy(signed: &Signed, volume: VolumeId) -> Policy {
    signed.statement().read(volume).unwrap()
}

/// Asserts that the refusal's message contains `expected`.
pub fn refused_as<T: std::fmt::Debug>(result: Result<T, Reject>, expected: &str) {
    let got = result.unwrap_err().to_string();
    assert!(got.contains(expected), "expected `{expected}`, got `{got}`");
}

/// Judges on terms other than the strict ones.
pub fn judge_with(floor: &Floor, head: &Head, terms: Terms) -> Result<Offer, Reject> {
    floor.judge(head, &terms, &mut Signatures::default())
}

/// Terms that accept only this version of this record.
pub fn pin(head: &Head, version: u64) -> Terms {
    Terms {
        freshness: Freshness::Pinned {
            version,
            record_hash: head.record.hash(),
        },
        ..Terms::strict(NOW + 100 * WEEK)
    }
}

/// The policies that a head carries of these: the genesis and the newest ones.
pub fn window(policies: &[Signed]) -> Vec<Signed> {
    let first = policies.len().saturating_sub(MAX_POLICIES - 1).max(1);
    let later = policies.iter().skip(first);
    policies.iter().take(1).chain(later).cloned().collect()
}

/// A head with the newest policies of the world.
pub fn with_policies(world: &World, head: &Head) -> Head {
    Head {
        policies: window(&world.policies),
        ..head.clone()
    }
}

/// A world with one record and a rotation from publisher 2 to publisher 5.
pub fn rotated() -> (World, Head) {
    let mut world = World::new();
    let last = world.publish(1);
    let policy = Successor {
        roles: Roles {
            publishers: threshold(1, &[5]),
            ..roles()
        },
        ..world.successor(Some(&last))
    };
    world.rotate(&policy, &[1]);
    let last = Head {
        policies: world.policies.clone(),
        ..last
    };
    (world, last)
}

/// A file with its correct checksum.
pub fn with_checksum(mut body: Vec<u8>) -> Vec<u8> {
    let checksum = blake3::hash(&body);
    body.extend_from_slice(checksum.as_bytes());
    body
}
