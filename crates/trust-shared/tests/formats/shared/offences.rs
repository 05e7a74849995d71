//! Evidence that convicts, and evidence that proves nothing.

use bytes::Bytes;
use trust::history::leaf_hash;
use trust::history::proof::Roots;
use trust_shared::entry::{Content, Entry};
use trust_shared::evidence::{self, Evidence, Offence};

use super::Shared;
use crate::key;
use crate::lines::Lines;
use crate::lines::hex;

pub fn add(lines: &mut Lines, shared: &Shared) {
    let mut add = |name: &str, verdict: &str, evidence: &Evidence| {
        let bytes = evidence.encode().unwrap();
        let judged = evidence::verify(&bytes);
        let accused = match (&judged, &evidence.offence) {
            (Err(_), _) => String::new(),
            (Ok(_), Offence::SignedTwice(_)) => hex(key(3).public().as_bytes()),
            (Ok(_), _) => hex(key(2).public().as_bytes()),
        };
        lines.add_within("evidence", name, verdict, &bytes, &accused, judged);
    };
    let mut fork = Shared::new();
    fork.leaves.truncate(2);
    fork.roots = Roots::new();
    fork.leaves.iter().for_each(|leaf| {
        fork.roots.push(leaf_hash(leaf));
    });
    let agree = Offence::Fork {
        first: fork.note(),
        second: shared.note(),
        proof: shared.roots.prefix(2, 3, |_| None).unwrap(),
    };
    add(
        "log-that-grew",
        "bad-history",
        &shared.evidence(true, agree),
    );
    let fork = fork.with(Bytes::from_static(&[3; 33]));
    let longer = shared.with(fork.leaves[2].clone());
    let forked = Offence::Fork {
        first: fork.note(),
        second: longer.note(),
        proof: longer.roots.prefix(3, 4, |_| None).unwrap(),
    };
    add("fork", "good", &shared.evidence(true, forked.clone()));
    let without = shared.evidence(false, forked);
    add("fork-without-policies", "malformed", &without);

    let malformed = shared.with(Bytes::from_static(&[1]));
    let leaf = Offence::BadLeaf {
        note: malformed.note(),
        leaf: malformed.included(3),
    };
    add("malformed-leaf", "good", &shared.evidence(true, leaf));
    let later = shared.with(Bytes::from_static(&[9]));
    let leaf = Offence::BadLeaf {
        note: later.note(),
        leaf: later.included(3),
    };
    add(
        "leaf-of-a-later-kind",
        "unsupported",
        &shared.evidence(true, leaf),
    );
    let leaf = Offence::BadLeaf {
        note: shared.note(),
        leaf: shared.included(1),
    };
    add("good-leaf", "bad-history", &shared.evidence(true, leaf));

    let mut entry = shared.entry(3);
    entry.seen.root = [1; 32];
    let elsewhere = shared.with(shared.sign(&entry).bytes().clone());
    let seen = Offence::SeenElsewhere {
        note: elsewhere.note(),
        entry: elsewhere.included(3),
        proof: elsewhere.roots.prefix(3, 4, |_| None).unwrap(),
    };
    add("seen-elsewhere", "good", &shared.evidence(true, seen));

    let again = shared.with(shared.leaves[2].clone());
    let replayed = Offence::SeenMissesOwn {
        note: again.note(),
        before: again.included(2),
        entry: again.included(3),
    };
    add("entry-twice", "good", &shared.evidence(true, replayed));
    let other = Offence::OtherPrevious {
        note: shared.note(),
        previous: shared.leaves[1].clone(),
        entry: shared.included(2),
    };
    add(
        "entry-that-follows",
        "bad-history",
        &shared.evidence(true, other),
    );

    let mut gap = shared.entry(3);
    if let Content::Ops(ops) = &mut gap.content {
        ops.n = 4;
    }
    let gap = shared.with(shared.sign(&gap).bytes().clone());
    let other = Offence::OtherPrevious {
        note: gap.note(),
        previous: gap.leaves[2].clone(),
        entry: gap.included(3),
    };
    add("number-left-out", "good", &shared.evidence(true, other));

    let over = shared.with(shared.sign(&shared.entry(2)).bytes().clone());
    let passes = Offence::PassesOver {
        note: over.note(),
        previous: over.included(1),
        passed: over.included(2),
        entry: over.included(3),
    };
    add("passed-over", "good", &shared.evidence(true, passes));

    let one = shared.entry(3);
    let other = Entry {
        kept: 0,
        ..one.clone()
    };
    let twice = Offence::signed_twice(shared.sign(&one), shared.sign(&other));
    add("signed-twice", "good", &shared.evidence(false, twice));
}
