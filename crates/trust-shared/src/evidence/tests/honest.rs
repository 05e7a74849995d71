//! No log that the rules of form accept convicts its orderer, however its members lie.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::super::super::entry::{Author, Standing};
use super::super::super::form::faults;
use super::*;
use trust::device::DeviceKey;

/// What a member tries: each number chooses among what fits and what does not.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    author: u8,
    resume: bool,
    incarnation: u8,
    number: u8,
    previous: u8,
    seen: u8,
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let parts = (0u8..2, 0u8..4, 0u8..8, 0u8..8, any::<u8>(), any::<u8>());
    parts.prop_map(
        |(author, resume, incarnation, number, previous, seen)| Attempt {
            author: [AUTHOR, 5][usize::from(author)],
            resume: resume == 0,
            incarnation,
            number,
            previous,
            seen,
        },
    )
}

/// The entry that the member signs, given what the log says about it.
fn entry(world: &World, attempt: Attempt, author: Option<&Author>) -> Entry {
    let size = world.log.leaves.len() as u64;
    let seen = match attempt.seen {
        seen @ 0..120 => world.log.prefix(size.saturating_sub(u64::from(seen % 4))),
        120..140 => Prefix {
            root: [1; 32],
            ..world.log.whole()
        },
        _ => world.log.whole(),
    };
    let current = author.map(|author| author.incarnation);
    let incarnation = match (attempt.incarnation, current) {
        (4.., Some(current)) if !attempt.resume => current,
        (other, _) => Incarnation::from_bytes([other % 3; 16]),
    };
    let next = author.map_or(1, |author| author.n + 1);
    let previous = match (attempt.previous, author) {
        (leaf @ 0..60, _) if size > 0 => {
            leaf_hash(&world.log.leaves[usize::from(leaf) % size as usize])
        }
        (_, Some(author)) => author.last,
        _ => [0; 32],
    };
    let ops = Ops {
        n: match attempt.number {
            number @ 0..2 => u64::from(number) + 1,
            _ => next,
        },
        previous,
        outline: Bytes::new(),
        body_hash: [0; 32],
    };
    Entry {
        epoch: 0,
        device: device(attempt.author),
        incarnation,
        kept: seen.size,
        seen,
        content: match attempt.resume {
            true => Content::Resume,
            false => Content::Ops(ops),
        },
    }
}

/// The log of an honest orderer to whom the members send these.
fn ordered(attempts: &[Attempt]) -> World {
    let mut world = World::new();
    world.log = Log::default();
    let mut authors: HashMap<DeviceKey, Author> = HashMap::new();
    for attempt in attempts {
        let key = device(attempt.author);
        let signed = world.sign(attempt.author, &entry(&world, *attempt, authors.get(&key)));
        let at = world.log.leaves.len() as u64;
        let heading = signed.entry().heading();
        let standing = Standing {
            author: authors.get(&key),
            active: true,
            admitted: 0,
        };
        let root = |size| (size <= at).then(|| world.log.prefix(size).root);
        if faults(&standing, &heading, root).is_empty() {
            let after = Author::after(authors.get(&key), &heading, signed.hash(), at);
            authors.insert(key, after);
            world.log.push(signed.bytes().clone());
        }
    }
    world
}

/// Everything that could be said against the orderer of this log.
fn accusations(world: &World) -> Vec<Offence> {
    let (note, size) = (world.note(), world.log.leaves.len() as u64);
    let included = |index| world.log.included(index);
    let mut all = Vec::new();
    for index in 0..size {
        let leaf = included(index);
        let signed = SignedEntry::decode(leaf.leaf.clone()).unwrap();
        let proof = world.log.proof(signed.entry().seen.size);
        let entry = leaf.clone();
        all.push(Offence::BadLeaf { note, leaf });
        all.push(Offence::SeenElsewhere { note, entry, proof });
        let first = world.log.note_at(world.volume, 0, ORDERER, index);
        all.push(fork(first, note, world.log.proof(index)));
        for earlier in 0..size {
            all.push(Offence::SeenMissesOwn {
                note,
                before: included(earlier),
                entry: included(index),
            });
            all.push(Offence::OtherPrevious {
                note,
                previous: included(earlier).leaf,
                entry: included(index),
            });
            all.extend((earlier..index).map(|passed| Offence::PassesOver {
                note,
                previous: included(earlier),
                passed: included(passed),
                entry: included(index),
            }));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn log_of_an_honest_orderer_convicts_nobody(attempts in prop::collection::vec(attempt(), 12..30)) {
        let world = ordered(&attempts);
        for accusation in accusations(&world) {
            let verdict = world.evidence(accusation).judge();
            prop_assert!(verdict.is_err(), "{verdict:?}");
        }
    }
}

/// The logs above are not empty, and members did lie in them.
#[test]
fn lying_members_get_entries_into_the_log() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut leaves, mut again) = (0, 0);
    for _ in 0..20 {
        let attempts = prop::collection::vec(attempt(), 12..30);
        let attempts = attempts.new_tree(&mut runner).unwrap().current();
        let world = ordered(&attempts);
        leaves += world.log.leaves.len();
        let entries = world.log.leaves.iter().cloned();
        let runs: Vec<_> = entries
            .map(|leaf| SignedEntry::decode(leaf).unwrap())
            .filter(|signed| signed.entry().is_resume())
            .map(|signed| (signed.entry().device, signed.entry().incarnation))
            .collect();
        let distinct: std::collections::HashSet<_> = runs.iter().collect();
        again += runs.len() - distinct.len();
    }
    assert!(leaves > 100, "{leaves} leaves");
    assert!(again >= 5, "{again} incarnations begun again");
}
