//! Tests of evidence: what convicts, what does not, and changed files.

use super::super::entry::{Content, Entry, Ops, Prefix, body_hash};
use super::super::genesis::Policies;
use super::super::mark::{MarkTree, Nonce};
use super::super::samples::{
    Log, device, genesis_policy, key, next_policy, refuses_cuts, signed_policy,
};
use super::*;
use trust::device::Incarnation;
use trust::history::leaf_hash;
use trust::statement::signatures::Signatures;

mod devices;
mod honest;

const ORDERER: u8 = 2;
const AUTHOR: u8 = 3;

struct World {
    volume: VolumeId,
    policies: Vec<Signed>,
    /// Resume of the author, two entries of it, marks, a Resume of another device.
    log: Log,
}

impl World {
    fn new() -> World {
        let (volume, genesis) = genesis_policy();
        let mut world = World {
            volume,
            policies: vec![genesis],
            log: Log::default(),
        };
        world.resumes(AUTHOR, 1);
        world.writes(0, 1);
        world.writes(1, 2);
        let marks = MarkTree::new(vec![Nonce::from_bytes([1; 32])]).unwrap();
        world.log.push(marks.marks().encode().to_vec());
        world.resumes(5, 1);
        world
    }

    fn sign(&self, number: u8, entry: &Entry) -> SignedEntry {
        entry.sign(self.volume, &key(number)).unwrap()
    }

    fn resume(&self, number: u8, incarnation: u8) -> Entry {
        let seen = self.log.whole();
        Entry {
            epoch: 0,
            device: device(number),
            incarnation: Incarnation::from_bytes([incarnation; 16]),
            kept: seen.size,
            seen,
            content: Content::Resume,
        }
    }

    fn resumes(&mut self, number: u8, incarnation: u8) {
        let resume = self.sign(number, &self.resume(number, incarnation));
        self.log.push(resume.bytes().clone());
    }

    /// An entry of the author after the one at `previous`, in its first incarnation.
    fn write(&self, previous: usize, n: u64) -> Entry {
        let previous = SignedEntry::decode(self.log.leaves[previous].clone()).unwrap();
        let ops = Ops {
            n,
            previous: previous.hash(),
            outline: Bytes::from_static(b"outline"),
            body_hash: body_hash(&[n as u8]),
        };
        Entry {
            content: Content::Ops(ops),
            ..self.resume(AUTHOR, 1)
        }
    }

    fn writes(&mut self, previous: usize, n: u64) {
        let entry = self.sign(AUTHOR, &self.write(previous, n));
        self.log.push(entry.bytes().clone());
    }

    fn note(&self) -> SignedNote {
        self.log.note(self.volume, 0, ORDERER)
    }

    /// The last leaf.
    fn last(&self) -> Included {
        self.log.included(self.log.whole().size - 1)
    }

    fn evidence(&self, offence: Offence) -> Evidence {
        let policies = match offence {
            Offence::SignedTwice(_) => Vec::new(),
            _ => self.policies.clone(),
        };
        Evidence {
            volume: self.volume,
            epoch: 0,
            policies,
            offence,
        }
    }

    fn judge(&self, offence: Offence) -> Result<Verdict, Reject> {
        verify(&self.evidence(offence).encode().unwrap())
    }

    /// Another log with the same beginning.
    fn forked(&self, at: usize) -> World {
        let mut log = Log::default();
        for leaf in &self.log.leaves[..at] {
            log.push(leaf.clone());
        }
        let mut fork = World {
            volume: self.volume,
            policies: self.policies.clone(),
            log,
        };
        fork.resumes(7, 1);
        fork.resumes(8, 1);
        fork
    }
}

fn fork(first: SignedNote, second: SignedNote, proof: Vec<[u8; 32]>) -> Offence {
    Offence::Fork {
        first,
        second,
        proof,
    }
}

/// One of each kind, and what it says.
fn offences() -> Vec<(World, Offence, &'static str)> {
    let mut found = Vec::new();
    let world = World::new();
    let other = world.forked(2);
    let proof = world.log.proof(other.log.whole().size);
    let sizes = fork(other.note(), world.note(), proof);
    let forked = "signed two logs, neither of which continues the other";
    found.push((World::new(), sizes, forked));
    let (a, b) = (world.log.note_at(world.volume, 0, ORDERER, 4), other.note());
    let low_first = a.note().log.root < b.note().log.root;
    let (a, b) = if low_first { (a, b) } else { (b, a) };
    found.push((World::new(), fork(a, b, Vec::new()), forked));

    let mut bad = World::new();
    bad.log.push(vec![1, 2, 3]);
    let (note, leaf) = (bad.note(), bad.last());
    found.push((
        bad,
        Offence::BadLeaf { note, leaf },
        "accepted a malformed leaf",
    ));

    let mut elsewhere = World::new();
    let mut entry = elsewhere.write(2, 3);
    entry.seen.root = [1; 32];
    let entry = elsewhere.sign(AUTHOR, &entry);
    elsewhere.log.push(entry.bytes().clone());
    let (note, entry) = (elsewhere.note(), elsewhere.last());
    let proof = elsewhere.log.proof(5);
    let offence = Offence::SeenElsewhere { note, entry, proof };
    let what = "accepted an entry whose author has seen another log";
    found.push((elsewhere, offence, what));

    let mut early = World::new();
    let mut entry = early.write(2, 3);
    entry.seen = early.log.prefix(2);
    entry.kept = 2;
    let entry = early.sign(AUTHOR, &entry);
    early.log.push(entry.bytes().clone());
    let offence = Offence::SeenMissesOwn {
        note: early.note(),
        before: early.log.included(2),
        entry: early.last(),
    };
    let what = "accepted an entry whose author has not seen its own entry before";
    found.push((early, offence, what));

    let mut gap = World::new();
    gap.writes(2, 4);
    let offence = Offence::OtherPrevious {
        note: gap.note(),
        previous: gap.log.leaves[2].clone(),
        entry: gap.last(),
    };
    let what = "accepted an entry that does not follow its author's entry before";
    found.push((gap, offence, what));

    let mut over = World::new();
    over.writes(1, 2);
    let offence = Offence::PassesOver {
        note: over.note(),
        previous: over.log.included(1),
        passed: over.log.included(2),
        entry: over.last(),
    };
    let what = "accepted an entry that passes over its author's entry before";
    found.push((over, offence, what));
    found
}

fn twice(world: &World, change: fn(&mut Entry)) -> Offence {
    let one = world.write(2, 3);
    let mut other = one.clone();
    change(&mut other);
    Offence::signed_twice(world.sign(AUTHOR, &one), world.sign(AUTHOR, &other))
}

fn other_start() -> (World, Offence) {
    let mut world = World::new();
    let policies = Policies::verify(world.volume, &world.policies, &mut Signatures::default());
    let start = Prefix {
        size: 3,
        root: [9; 32],
    };
    let next = next_policy(&policies.unwrap(), Some(start));
    world
        .policies
        .push(signed_policy(world.volume, &next, ORDERER));
    let note = world.log.note(world.volume, 1, ORDERER);
    let proof = world.log.proof(3);
    (world, Offence::OtherStart { note, proof })
}

fn in_epoch_1(world: &World, offence: Offence) -> Evidence {
    Evidence {
        epoch: 1,
        ..world.evidence(offence)
    }
}

fn all_evidence() -> Vec<Evidence> {
    let offences = offences();
    let mut all: Vec<_> = offences
        .into_iter()
        .map(|(world, offence, _)| world.evidence(offence))
        .collect();
    let world = World::new();
    all.push(world.evidence(twice(&world, |entry| entry.kept = 0)));
    let (world, offence) = other_start();
    all.push(in_epoch_1(&world, offence));
    all
}

#[test]
fn evidence_convicts_the_orderer() {
    for (world, offence, what) in offences() {
        let verdict = world.judge(offence).unwrap();
        assert_eq!(verdict.what, what);
        let orderer = key(ORDERER).public();
        assert_eq!(verdict.convicted, Convicted::Orderer(orderer));
        assert_eq!((verdict.volume, verdict.epoch), (world.volume, 0));
        let text = verdict.to_string();
        assert!(text.starts_with("the orderer key1"), "{text}");
        assert!(text.ends_with(what), "{text}");
    }
}

/// Who changes a file does not accuse somebody else with it, even if he corrects the checksum.
#[test]
fn evidence_with_any_byte_changed_is_refused() {
    for evidence in all_evidence() {
        let bytes = evidence.encode().unwrap();
        refuses_cuts(&bytes, |bytes| verify(bytes).map(drop));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            // Also one in the number of the format: no later format has this checksum.
            let found = verify(&changed);
            assert!(matches!(found, Err(Reject::Malformed { .. })), "byte {at}");
            let body = &changed[..bytes.len() - 32];
            let corrected = [body, blake3::hash(body).as_bytes()].concat();
            if at < body.len() {
                let found = verify(&corrected);
                assert!(found.is_err(), "byte {at}: {found:?}");
            }
        }
    }
}

#[test]
fn evidence_has_one_encoding() {
    for evidence in all_evidence() {
        let bytes = evidence.encode().unwrap();
        assert_eq!(Evidence::decode(&bytes), Ok(evidence));
    }
    let mut long = World::new().evidence(offences().remove(2).1);
    let Offence::BadLeaf { leaf, .. } = &mut long.offence else {
        unreachable!()
    };
    leaf.leaf = vec![0; MAX_EVIDENCE_BYTES].into();
    assert!(long.encode().is_err());
    assert!(verify(&vec![0; MAX_EVIDENCE_BYTES + 1]).is_err());
}

#[test]
fn evidence_of_a_later_format_or_kind_is_unsupported() {
    let bytes = all_evidence()[0].encode().unwrap();
    let with = |at: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[at] = value;
        let body = &changed[..bytes.len() - 32];
        verify(&[body, blake3::hash(body).as_bytes()].concat())
    };
    for (at, value) in [(8, 1), (10, 1)] {
        let found = with(at, value);
        assert!(
            matches!(found, Err(Reject::Unsupported { .. })),
            "{found:?}"
        );
    }
    let kind = 8 + 4 + 32 + 8 + 1 + World::new().policies[0].to_bytes().len();
    assert_eq!(bytes[kind], 1);
    let found = with(kind, 9);
    assert!(
        matches!(found, Err(Reject::Unsupported { .. })),
        "{found:?}"
    );
}

#[test]
fn log_that_grew_is_no_fork() {
    let world = World::new();
    for size in 0..5 {
        let first = world.log.note_at(world.volume, 0, ORDERER, size);
        let refused = world.judge(fork(first, world.note(), world.log.proof(size)));
        let agree = Reject::BadHistory("the logs of the two notes agree");
        assert_eq!(refused.err(), Some(agree), "{size}");
    }
    let same = world.judge(fork(world.note(), world.note(), Vec::new()));
    assert!(same.is_err());
    // A proof of nothing, and one of another log.
    let first = world.log.note_at(world.volume, 0, ORDERER, 2);
    assert!(world.judge(fork(first, world.note(), Vec::new())).is_err());
    let foreign = world.forked(1).log.proof(2);
    assert!(world.judge(fork(first, world.note(), foreign)).is_err());
}

#[test]
fn note_that_the_orderer_did_not_sign_convicts_nobody() {
    let (world, other) = (World::new(), World::new().forked(2));
    let proof = world.log.proof(other.log.whole().size);
    let by_another = other.log.note(world.volume, 0, 9);
    let refused = world.judge(fork(by_another, world.note(), proof.clone()));
    assert!(matches!(refused, Err(Reject::NotSigned(_))), "{refused:?}");
    let other_epoch = other.log.note(world.volume, 1, ORDERER);
    let refused = world.judge(fork(other_epoch, world.note(), proof.clone()));
    assert!(
        matches!(refused, Err(Reject::Malformed { .. })),
        "{refused:?}"
    );
    // The larger log first: one fork has one file.
    let reversed = world.judge(fork(world.note(), other.note(), proof));
    assert!(matches!(reversed, Err(Reject::Malformed { .. })));
}

#[test]
fn leaves_of_an_honest_log_convict_nobody() {
    let mut world = World::new();
    world.writes(2, 3);
    let note = world.note();
    for index in 0..6 {
        let leaf = world.log.included(index);
        let refused = world.judge(Offence::BadLeaf {
            note,
            leaf: leaf.clone(),
        });
        assert!(matches!(refused, Err(Reject::BadHistory(_))), "{refused:?}");
        if let Ok(signed) = SignedEntry::decode(leaf.leaf.clone()) {
            let proof = world.log.proof(signed.entry().seen.size);
            let offence = Offence::SeenElsewhere {
                note,
                entry: leaf.clone(),
                proof,
            };
            assert!(world.judge(offence).is_err());
        }
        for other in 0..6 {
            let offence = Offence::SeenMissesOwn {
                note,
                before: world.log.included(other),
                entry: leaf.clone(),
            };
            assert!(world.judge(offence).is_err(), "{other} {index}");
            let offence = Offence::OtherPrevious {
                note,
                previous: world.log.leaves[other as usize].clone(),
                entry: leaf.clone(),
            };
            assert!(world.judge(offence).is_err(), "{other} {index}");
            for passed in 0..6 {
                let offence = Offence::PassesOver {
                    note,
                    previous: world.log.included(other),
                    passed: world.log.included(passed),
                    entry: leaf.clone(),
                };
                assert!(world.judge(offence).is_err(), "{other} {passed} {index}");
            }
        }
    }
}

/// Kill -9 after the second entry was sent: the Resume covers the Resume before, and that is enough.
#[test]
fn resume_that_does_not_cover_the_last_entry_convicts_nobody() {
    let mut world = World::new();
    let mut resume = world.resume(AUTHOR, 2);
    resume.seen = world.log.prefix(1);
    resume.kept = 1;
    let resume = world.sign(AUTHOR, &resume);
    world.log.push(resume.bytes().clone());
    let judge = |before: u64| {
        world.judge(Offence::SeenMissesOwn {
            note: world.note(),
            before: world.log.included(before),
            entry: world.last(),
        })
    };
    assert!(judge(2).is_err());
    assert!(judge(0).is_err());
}

#[test]
fn resume_that_does_not_cover_the_last_resume_convicts() {
    let mut world = World::new();
    let mut resume = world.resume(AUTHOR, 2);
    resume.seen = world.log.prefix(0);
    resume.kept = 0;
    let resume = world.sign(AUTHOR, &resume);
    world.log.push(resume.bytes().clone());
    let verdict = world.judge(Offence::SeenMissesOwn {
        note: world.note(),
        before: world.log.included(0),
        entry: world.last(),
    });
    assert!(verdict.is_ok(), "{verdict:?}");
}

#[test]
fn every_fault_of_a_leaf_alone_convicts() {
    let convicts = |change: &dyn Fn(&World) -> Bytes| {
        let mut world = World::new();
        let leaf = change(&world);
        world.log.push(leaf);
        let (note, leaf) = (world.note(), world.last());
        world.judge(Offence::BadLeaf { note, leaf }).map(|v| v.what)
    };
    let epoch = convicts(&|world| {
        let mut entry = world.write(2, 3);
        entry.epoch = 1;
        world.sign(AUTHOR, &entry).bytes().clone()
    });
    assert_eq!(epoch, Ok("accepted an entry of another epoch"));
    let forged = convicts(&|world| {
        let mut forged = world.sign(AUTHOR, &world.write(2, 3)).bytes().to_vec();
        forged[60] ^= 1;
        forged.into()
    });
    assert_eq!(forged, Ok("accepted an entry that its author did not sign"));
    let beyond = convicts(&|world| {
        let mut entry = world.write(2, 3);
        entry.seen.size = 6;
        world.sign(AUTHOR, &entry).bytes().clone()
    });
    assert_eq!(
        beyond,
        Ok("accepted an entry whose author has seen more than there was")
    );
    let empty = convicts(&|_| Bytes::new());
    assert_eq!(empty, Ok("accepted a malformed leaf"));
    let later = convicts(&|_| Bytes::from_static(&[9; 40]));
    assert!(matches!(later, Err(Reject::Unsupported { .. })));
}

#[test]
fn leaf_that_is_not_in_the_log_convicts_nobody() {
    let mut bad = World::new();
    bad.log.push(vec![1, 2, 3]);
    let note = bad.note();
    let judge = |change: fn(&mut Included)| {
        let mut leaf = bad.last();
        change(&mut leaf);
        bad.judge(Offence::BadLeaf { note, leaf })
    };
    assert!(judge(|_| ()).is_ok());
    assert!(judge(|leaf| leaf.index = 4).is_err());
    assert!(judge(|leaf| leaf.leaf = Bytes::from_static(&[1, 2])).is_err());
    assert!(judge(|leaf| leaf.path[0] = [0; 32]).is_err());
    let shorter = bad.log.note_at(bad.volume, 0, ORDERER, 5);
    let leaf = bad.last();
    assert!(
        bad.judge(Offence::BadLeaf {
            note: shorter,
            leaf
        })
        .is_err()
    );
}

#[test]
fn log_with_another_start_than_the_owners_say_convicts() {
    let (world, offence) = other_start();
    let verdict = in_epoch_1(&world, offence.clone()).judge().unwrap();
    let what = "signed a log that does not begin with what the owners say";
    assert_eq!((verdict.what, verdict.epoch), (what, 1));
    // A shorter log, without a proof that the owners' prefix begins otherwise.
    let note = world.log.note_at(world.volume, 1, ORDERER, 2);
    let short = Offence::OtherStart {
        note,
        proof: Vec::new(),
    };
    assert!(in_epoch_1(&world, short).judge().is_err());
    // The file is about another epoch than its policies.
    let other = world.evidence(offence.clone()).judge();
    assert!(matches!(other, Err(Reject::Malformed { .. })), "{other:?}");
    // The policy that begins the epoch is missing, or another follows it.
    let without = Evidence {
        policies: world.policies[..1].to_vec(),
        ..in_epoch_1(&world, offence.clone())
    };
    assert!(without.judge().is_err());
    let mut longer = in_epoch_1(&world, offence);
    let policies = Policies::verify(world.volume, &world.policies, &mut Signatures::default());
    let next = next_policy(&policies.unwrap(), None);
    longer
        .policies
        .push(signed_policy(world.volume, &next, ORDERER));
    assert!(longer.judge().is_err());
}

/// A device that catches up from the first leaf on is sent notes at the ends of pages.
#[test]
fn note_of_a_beginning_of_the_start_convicts_only_if_it_is_another() {
    let judge = |forked: bool| {
        let mut world = World::new();
        let policies = Policies::verify(world.volume, &world.policies, &mut Signatures::default());
        let start = world.log.whole();
        let next = next_policy(&policies.unwrap(), Some(start));
        world.policies.push(signed_policy(world.volume, &next, 9));
        let proof = world.log.proof(2);
        let mut other = Log::default();
        other.push("a").push("b");
        let shown = if forked { &other } else { &world.log };
        let note = shown.note_at(world.volume, 1, 9, 2);
        in_epoch_1(&world, Offence::OtherStart { note, proof }).judge()
    };
    assert!(judge(false).is_err());
    let convicted = judge(true).unwrap().convicted;
    assert_eq!(convicted, Convicted::Orderer(key(9).public()));
}

/// The new orderer keeps what the epoch before has left, whoever accepted it.
#[test]
fn leaf_of_an_earlier_epoch_convicts_no_later_orderer() {
    let mut world = World::new();
    world.log.push(vec![1, 2, 3]);
    let policies = Policies::verify(world.volume, &world.policies, &mut Signatures::default());
    let next = next_policy(&policies.unwrap(), Some(world.log.whole()));
    world.policies.push(signed_policy(world.volume, &next, 9));
    let note = world.log.note(world.volume, 1, 9);
    let leaf = world.last();
    let refused = in_epoch_1(&world, Offence::BadLeaf { note, leaf }).judge();
    assert_eq!(refused.err(), Some(bad("a leaf of an earlier epoch")));
    let start = Offence::OtherStart {
        note,
        proof: world.log.proof(6),
    };
    assert!(in_epoch_1(&world, start).judge().is_err());
    // The first leaf that the new orderer accepts is its own.
    world.log.push(vec![1, 2, 3]);
    let (note, leaf) = (world.log.note(world.volume, 1, 9), world.last());
    let verdict = in_epoch_1(&world, Offence::BadLeaf { note, leaf }).judge();
    assert_eq!(
        verdict.unwrap().convicted,
        Convicted::Orderer(key(9).public())
    );
}

#[test]
fn policies_carry_no_signatures_of_others() {
    let (world, offence, _) = offences().remove(0);
    let mut evidence = world.evidence(offence);
    evidence.policies[0].add(&key(9));
    assert_eq!(
        evidence.judge().err(),
        Some(bad("signatures of others under a policy"))
    );
    let mut accused = world.evidence(twice(&world, |entry| entry.kept = 0));
    accused.policies = world.policies.clone();
    assert!(accused.judge().is_err());
}
