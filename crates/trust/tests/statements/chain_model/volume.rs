//! A volume as its owners, its publisher and a thief make it: all policies and records that anybody has signed, beside
//! what is known of them without looking at a signature. So the checks do not rely on the code that they test.

use trust::handle::Handle;
use trust::head::Head;
use trust::history::{Frontier, LogPoint, leaf_hash};
use trust::policy::{Genesis, Last, Revocation, Roles, Successor, Threshold, VolumeId};
use trust::root::RootRecord;
use trust::statement::Signed;

use crate::world::{NOW, WEEK, key, sign, threshold, window};

/// How long a policy is valid.
pub const YEAR: u64 = 365 * 24 * 3600;
/// The owner key and the publisher key that stand for "the thief's own".
const OF_THE_THIEF: u8 = 66;

/// A log with all of its leaves.
#[derive(Clone)]
pub struct Log {
    pub epoch: u64,
    pub leaves: Vec<[u8; 32]>,
    pub frontier: Frontier,
}

impl Log {
    fn empty(epoch: u64) -> Log {
        Log {
            epoch,
            leaves: Vec::new(),
            frontier: Frontier::new(),
        }
    }

    fn with(&self, statement: &Signed) -> Log {
        let leaf = leaf_hash(statement.statement().bytes());
        let mut log = self.clone();
        log.leaves.push(leaf);
        log.frontier.push_hash(leaf).unwrap();
        log
    }

    fn point(&self) -> LogPoint {
        self.frontier.point(self.epoch)
    }
}

/// The keys of a role and how many of them must sign.
#[derive(Clone, PartialEq, Eq)]
pub struct Role {
    pub needed: usize,
    pub keys: Vec<u8>,
}

impl Role {
    fn of(needed: usize, keys: &[u8]) -> Role {
        let keys = keys.to_vec();
        Role { needed, keys }
    }

    fn threshold(&self) -> Threshold {
        threshold(self.needed as u8, &self.keys)
    }

    pub fn is_met_by(&self, signers: &[u8]) -> bool {
        let signed = self.keys.iter().filter(|key| signers.contains(key));
        signed.count() >= self.needed
    }

    fn without(&self, stolen: &[u8]) -> Vec<u8> {
        let own = self.keys.iter().filter(|key| !stolen.contains(key));
        own.copied().take(self.needed).collect()
    }
}

/// A policy that somebody signed, rightly or not.
#[derive(Clone)]
pub struct Policy {
    pub parent: Option<usize>,
    pub owners: Role,
    pub publishers: Role,
    pub signers: Vec<u8>,
    pub last: Option<[u8; 32]>,
    pub lower: bool,
    pub honest: bool,
    pub signed: Signed,
    not_after: u64,
    log: Log,
}

/// A record that somebody signed.
#[derive(Clone)]
pub struct Record {
    pub policy: usize,
    pub version: u64,
    pub signers: Vec<u8>,
    pub honest: bool,
    pub signed: Signed,
    /// The log with this record as its last leaf.
    pub log: Log,
    before: Frontier,
}

/// The version that a thief gives its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The one after the newest.
    Next,
    /// That of the newest.
    Same,
    /// One that the publisher will not reach.
    Far,
}

/// One step of somebody who can sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The publisher publishes the next version.
    Publish,
    /// The owners take another publisher key.
    RotatePublisher,
    /// The owners replace the last of their keys.
    ReplaceOwner,
    /// The owners replace all of their keys.
    ReplaceOwners,
    /// The owners set readers back to the newest version of the publisher, and take another publisher key.
    Lower,
    /// The owners end the volume.
    Revoke,
    /// By mistake the owners sign another successor of the policy before the newest one.
    Contradict,
    /// So many seconds pass.
    Wait(u64),
    /// A thief signs a record under this policy with all keys that it has.
    ForgeRecord(usize, Version),
    /// A thief signs a successor of this policy with all keys that it has. It names the thief's own keys.
    ForgePolicy(usize),
}

/// See the head of this file.
#[derive(Clone)]
pub struct Volume {
    pub id: VolumeId,
    pub policies: Vec<Policy>,
    pub records: Vec<Record>,
    /// The newest policy of the honest owners.
    pub tip: usize,
    /// The newest record of the honest publisher.
    pub newest: usize,
    pub clock: u64,
    pub stolen: Vec<u8>,
    log: Log,
    next_key: u8,
}

/// What is new in a policy.
struct Change {
    parent: usize,
    owners: Role,
    publishers: Role,
    lower: bool,
    revoke: bool,
    refused: Vec<[u8; 32]>,
    honest: bool,
}

impl Volume {
    /// Two of the owners 1, 2 and 3 must sign, and the publisher is 11. One version is published. A thief has the keys
    /// `stolen`.
    pub fn new(stolen: &[u8]) -> Volume {
        let (owners, publishers) = (Role::of(2, &[1, 2, 3]), Role::of(1, &[11]));
        let roles = roles(&owners, &publishers);
        let mut genesis = Genesis::new("model", [7; 32], [9; 32], roles).unwrap();
        genesis.not_after = NOW + YEAR;
        let signed = sign(&genesis.statement(), &[1, 2]);
        let log = Log::empty(0).with(&signed);
        let first = Policy {
            parent: None,
            owners,
            publishers,
            signers: vec![1, 2],
            last: None,
            lower: false,
            honest: true,
            signed,
            not_after: genesis.not_after,
            log: log.clone(),
        };
        let mut volume = Volume {
            id: genesis.volume_id(),
            policies: vec![first],
            records: Vec::new(),
            tip: 0,
            newest: 0,
            clock: NOW,
            stolen: stolen.to_vec(),
            log,
            next_key: 12,
        };
        volume.publish();
        volume
    }

    /// What may happen next, except that time passes.
    pub fn acts(&self) -> Vec<Act> {
        if self.is_revoked() {
            return self.forgeries();
        }
        let mut acts = vec![
            Act::Publish,
            Act::RotatePublisher,
            Act::ReplaceOwner,
            Act::Lower,
        ];
        acts.extend(self.forgeries());
        acts
    }

    fn forgeries(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.stolen.is_empty() {
            return acts;
        }
        for policy in 0..self.policies.len() {
            acts.push(Act::ForgePolicy(policy));
            let versions = [Version::Next, Version::Same, Version::Far];
            acts.extend(versions.map(|version| Act::ForgeRecord(policy, version)));
        }
        acts
    }

    pub fn is_revoked(&self) -> bool {
        let policy = read(&self.policies[self.tip].signed, self.id);
        policy.is_some_and(|policy| policy.revoked.is_some())
    }

    pub fn act(&mut self, act: Act) {
        match act {
            Act::Publish => self.publish(),
            Act::RotatePublisher => {
                let publishers = Role::of(1, &[self.fresh_key()]);
                let change = Change {
                    publishers,
                    ..self.change()
                };
                self.rotate(change);
            }
            Act::ReplaceOwner => {
                let mut change = self.change();
                change.owners.keys.pop();
                change.owners.keys.push(self.fresh_key());
                self.rotate(change);
            }
            Act::ReplaceOwners => {
                let keys = [self.fresh_key(), self.fresh_key(), self.fresh_key()];
                let owners = Role::of(2, &keys);
                let change = Change {
                    owners,
                    ..self.change()
                };
                self.rotate(change);
            }
            Act::Lower => self.recover(true, Vec::new()),
            Act::Revoke => {
                let change = Change {
                    revoke: true,
                    ..self.change()
                };
                self.rotate(change);
            }
            Act::Contradict => self.contradict(),
            Act::Wait(seconds) => self.clock += seconds,
            Act::ForgeRecord(policy, version) => self.forge_record(policy, version),
            Act::ForgePolicy(parent) => self.forge_policy(parent),
        }
    }

    /// The owners' answer to a theft or a fork: another publisher key; they may set readers back, and refuse policies.
    pub fn recover(&mut self, lower: bool, refused: Vec<[u8; 32]>) {
        let publishers = Role::of(1, &[self.fresh_key()]);
        let change = Change {
            publishers,
            lower,
            refused,
            ..self.change()
        };
        self.rotate(change);
    }

    /// Policies that are not on the honest owners' line: what they refuse when they settle a fork.
    pub fn rivals(&self) -> Vec<[u8; 32]> {
        let line = self.line(self.tip);
        let others = (0..self.policies.len()).filter(|number| !line.contains(number));
        let mut hashes: Vec<_> = others
            .map(|number| self.policies[number].signed.hash())
            .collect();
        hashes.sort();
        hashes
    }

    /// The policies from the genesis to this one.
    pub fn line(&self, tip: usize) -> Vec<usize> {
        let parent = |number: &usize| self.policies[*number].parent;
        let mut line: Vec<usize> = std::iter::successors(Some(tip), parent).collect();
        line.reverse();
        line
    }

    /// Heads that a mirror can show: each record with each line of policies that has the record's policy.
    pub fn heads(&self) -> Vec<(usize, usize)> {
        let mut heads = Vec::new();
        for tip in 0..self.policies.len() {
            let line = self.line(tip);
            let records = self.records.iter().enumerate();
            let fitting = records.filter(|(_, record)| line.contains(&record.policy));
            heads.extend(fitting.map(|(record, _)| (tip, record)));
        }
        heads
    }

    /// The head with the policies up to `tip` and this record.
    pub fn head(&self, (tip, record): (usize, usize)) -> Head {
        let line = self.line(tip).into_iter();
        let policies: Vec<Signed> = line
            .map(|number| self.policies[number].signed.clone())
            .collect();
        let record = &self.records[record];
        Head {
            policies: window(&policies),
            record: record.signed.clone(),
            timestamp: None,
            checkpoint: None,
            frontier: record.before.clone(),
            later_log: None,
        }
    }

    /// The head that an honest mirror shows.
    pub fn honest_head(&self) -> (usize, usize) {
        (self.tip, self.newest)
    }

    /// What tells this volume from others of one exploration.
    pub fn print(&self, into: &mut blake3::Hasher) {
        for policy in &self.policies {
            into.update(&policy.signed.hash());
        }
        for record in &self.records {
            into.update(&record.signed.hash());
        }
        for number in [self.tip as u64, self.newest as u64, self.clock] {
            into.update(&number.to_le_bytes());
        }
    }

    /// The newest record of the honest publisher gets a successor.
    pub fn publish(&mut self) {
        let version = self
            .records
            .get(self.newest)
            .map_or(1, |record| record.version + 1);
        let publishers = &self.policies[self.tip].publishers;
        let signers = publishers.keys.clone();
        let record = self.record(self.tip, version, self.clock, self.log.clone(), 0);
        self.log = record.log.clone();
        self.newest = self.records.len();
        self.records.push(Record {
            signers: signers.clone(),
            signed: sign(record.signed.statement(), &signers),
            honest: true,
            ..record
        });
    }

    fn record(&self, policy: usize, version: u64, start: u64, log: Log, root: u8) -> Record {
        let under = &self.policies[policy];
        let record = RootRecord {
            version,
            start,
            duration: WEEK,
            root: Handle::from_bytes([root.wrapping_add(version as u8); 32]),
            totals: Default::default(),
            policy_number: self.line(policy).len() as u64 - 1,
            policy_hash: under.signed.hash(),
            log: log.point(),
            mirrors: vec![],
        };
        let signed = record.statement(self.id).sign(&[]);
        Record {
            policy,
            version,
            signers: Vec::new(),
            honest: false,
            log: log.with(&signed),
            before: log.frontier,
            signed,
        }
    }

    fn fresh_key(&mut self) -> u8 {
        self.next_key += 1;
        self.next_key
    }

    fn change(&self) -> Change {
        let tip = &self.policies[self.tip];
        Change {
            parent: self.tip,
            owners: tip.owners.clone(),
            publishers: tip.publishers.clone(),
            lower: false,
            revoke: false,
            refused: Vec::new(),
            honest: true,
        }
    }

    fn rotate(&mut self, change: Change) {
        let signers = self.quorum(&change);
        let (log, last) = (self.log.clone(), self.newest);
        self.tip = self.sign_policy(change, signers, log, last);
        self.log = self.policies[self.tip].log.clone();
    }

    /// Owners whose keys no thief has, as many as the old and the new policy need.
    fn quorum(&self, change: &Change) -> Vec<u8> {
        let old = &self.policies[change.parent].owners;
        let mut signers = old.without(&self.stolen);
        signers.extend(change.owners.without(&self.stolen));
        signers.sort();
        signers.dedup();
        assert!(old.is_met_by(&signers) && change.owners.is_met_by(&signers));
        signers
    }

    fn contradict(&mut self) {
        let Some(parent) = self.policies[self.tip].parent else {
            return;
        };
        let publishers = Role::of(1, &[self.fresh_key()]);
        let change = Change {
            parent,
            publishers,
            owners: self.policies[parent].owners.clone(),
            ..self.change()
        };
        let (signers, log) = (self.quorum(&change), self.policies[parent].log.clone());
        self.sign_policy(change, signers, log, 0);
    }

    fn forge_record(&mut self, policy: usize, version: Version) {
        let newest = self.records[self.newest].version;
        let version = match version {
            Version::Next => newest + 1,
            Version::Same => newest,
            Version::Far => 1000,
        };
        // In the log in which a reader expects it.
        let log = match self.policies[policy].log.epoch == self.log.epoch {
            true => self.log.clone(),
            false => self.policies[policy].log.clone(),
        };
        let record = self.record(policy, version, self.clock + 600, log, 0x80);
        let known = |old: &Record| old.signed.hash() == record.signed.hash();
        if !self.records.iter().any(known) {
            let (signers, signed) = (self.stolen.clone(), record.signed.statement());
            self.records.push(Record {
                signed: sign(signed, &signers),
                signers,
                ..record
            });
        }
    }

    fn forge_policy(&mut self, parent: usize) {
        let own = Role::of(1, &[OF_THE_THIEF]);
        let change = Change {
            parent,
            owners: own.clone(),
            publishers: own,
            honest: false,
            ..self.change()
        };
        let signers = [self.stolen.as_slice(), &[OF_THE_THIEF]].concat();
        let log = self.policies[parent].log.clone();
        if !self.stolen.contains(&OF_THE_THIEF) {
            self.stolen.push(OF_THE_THIEF);
        }
        self.sign_policy(change, signers, log, 0);
    }

    fn sign_policy(&mut self, change: Change, signers: Vec<u8>, log: Log, last: usize) -> usize {
        let parent = &self.policies[change.parent];
        let record = &self.records[last];
        let last = Last {
            version: record.version,
            record_hash: record.signed.hash(),
            log: log.point(),
        };
        let epoch = parent.log.epoch + u64::from(change.lower);
        let not_after = self.clock + YEAR;
        let policy = Successor {
            number: self.line(change.parent).len() as u64,
            previous: parent.signed.hash(),
            not_after,
            log_epoch: epoch,
            roles: roles(&change.owners, &change.publishers),
            last: Some(last),
            lower: change.lower,
            revoked: change.revoke.then_some(Revocation { successor: None }),
            refused: change.refused,
        };
        let signed = sign(&policy.statement(self.id), &signers);
        let before = match change.lower {
            true => Log::empty(epoch),
            false => log,
        };
        self.policies.push(Policy {
            parent: Some(change.parent),
            owners: change.owners,
            publishers: change.publishers,
            signers,
            last: Some(record.signed.hash()),
            lower: change.lower,
            honest: change.honest,
            not_after,
            log: before.with(&signed),
            signed,
        });
        self.policies.len() - 1
    }

    /// Whether the newest policy of the owners has ended.
    pub fn is_over(&self) -> bool {
        self.clock >= self.policies[self.tip].not_after
    }
}

fn roles(owners: &Role, publishers: &Role) -> Roles {
    Roles {
        owners: owners.threshold(),
        publishers: publishers.threshold(),
        ..Roles::single(key(1).public())
    }
}

fn read(signed: &Signed, volume: VolumeId) -> Option<Successor> {
    match signed.statement().read(volume) {
        Ok(trust::policy::Policy::Successor(policy)) => Some(policy),
        _ => None,
    }
}
