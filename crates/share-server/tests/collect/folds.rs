//! Which folds count: those of members with effect. One with guards about files never has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use share_server::collect::needed::{Folds, Positions, Spans};
use sim::random::Random;
use trust::map::{self, Salt};
use trust::reach::{Found, Wanted};
use trust::tree::inode::FileKind;
use trust::{Kind, Reject};
use trust_shared::calls;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay};
use trust_shared::guard::Guard;
use trust_shared::itable::Fold;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{NoEffect, Outcome, Written};
use trust_shared::principal::{Device, Name, Target};

use super::tree::{self, Made, USER};

/// A fold of one version of a file, and another one up to a later position.
fn two_folds() -> (Body, Body, [u64; 2]) {
    let mut made = Made::new();
    let hasher = tree::hasher();
    let files = |number, made: &mut Made| {
        let (inode, _) = tree::version(&hasher, number, made);
        BTreeMap::from([(0, inode)])
    };
    let one = files(1, &mut made);
    let (first, _, body) = tree::folded(&hasher, None, &one, 1, &mut made);
    let two = files(2, &mut made);
    let (_, _, next) = tree::folded(&hasher, Some(first), &two, 3, &mut made);
    (body, next, [1, 3])
}

fn roots(folds: &Folds, begin: u64, end: u64) -> Vec<u64> {
    let pins = BTreeSet::new();
    let spans = Spans::new(folds, &Positions { begin, end, pins });
    spans.roots().iter().map(|(at, _)| *at).collect()
}

#[test]
fn fold_without_effect_is_nobodys_last_fold() {
    let (first, next, _) = two_folds();
    let members = tree::members();
    let mut folds = Folds::new(tree::volume());
    // The second one names the first one, which is not there yet.
    for (at, body) in [(4, &next), (5, &first), (6, &first), (7, &next)] {
        folds.entry(&tree::written(at), body, members).unwrap();
    }
    assert_eq!(folds.before(&USER, 5).map(|folded| folded.at), None);
    assert_eq!(folds.before(&USER, 7).map(|folded| folded.at), Some(5));
    assert_eq!(folds.before(&USER, 8).map(|folded| folded.at), Some(7));
    assert_eq!(roots(&folds, 6, 8), [5, 7]);
    assert_eq!(roots(&folds, 8, 8), [7]);
}

#[test]
fn fold_of_who_may_not_write_is_left_out() {
    let (first, ..) = two_folds();
    let mut folds = Folds::new(tree::volume());
    let stranger = Written {
        device: Device(7),
        ..tree::written(4)
    };
    folds.entry(&stranger, &first, tree::members()).unwrap();
    assert_eq!(folds.before(&USER, 9), None);
}

/// A table of the user with a directory that is an entry of itself, which no fold of an honest device has.
fn circle(made: &mut Made) -> Fold {
    let hasher = tree::hasher();
    let mut nodes = Vec::new();
    let mut names = map::Builder::new(&hasher, Salt::default(), |handle, bytes| {
        nodes.push((handle.any(), bytes.clone()));
    });
    let target = Target {
        file: tree::file(1),
        kind: FileKind::Directory,
    };
    names.push(b"x", &target.encode()).unwrap();
    let names = names.finish().unwrap().unwrap();
    for (handle, bytes) in nodes {
        made.insert(handle, (Kind::Map, bytes));
    }
    let files = BTreeMap::from([(1, Arc::new(tree::directory_of(&names)))]);
    let (root, _) = tree::table(0, &files, made);
    Fold {
        upto: 1,
        root: Some(root),
    }
}

/// Everything that a device may have.
struct Everything {
    made: Made,
    bodies: BTreeMap<u64, Arc<Body>>,
}

impl Blocks for Everything {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        tree::All(&tree::hasher(), &self.made).block(wanted)
    }
}

impl Bodies for Everything {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        Ok(self.bodies.get(&position).cloned())
    }
}

#[test]
fn fold_with_guards_about_files_has_no_effect_and_stops_nothing() {
    let mut made = Made::new();
    let forged = circle(&mut made);
    let (file, name) = (tree::file(1), Name::new(b"x").unwrap());
    // The last one is a circle that concerns itself, and holds in the forged table.
    let stray = [
        Guard::HashIs { file, is: None },
        Guard::Unlocked { file },
        Guard::Empty { directory: file },
        Guard::EntryIs {
            directory: file,
            name: name.clone(),
            is: None,
        },
        Guard::Linked {
            directory: file,
            parent: file,
            name,
        },
    ];
    let next = |upto| Fold { upto, root: None };
    let mut all = vec![(4, calls::fold(USER, None, forged))];
    for (at, guard) in (5..).zip(stray) {
        let op = calls::fold(USER, Some(forged), next(2));
        let guards = [op.guards, vec![guard]].concat();
        all.push((at, Op::new(guards, op.changes)));
    }
    all.push((20, calls::fold(USER, Some(forged), next(3))));
    let (members, mut replay) = (tree::members(), Replay::new(tree::volume()));
    let mut folds = Folds::new(tree::volume());
    let mut stored = Everything {
        made,
        bodies: BTreeMap::new(),
    };
    for (at, op) in all {
        let (written, body) = (tree::written(at), Body::new(vec![op]).unwrap());
        folds.entry(&written, &body, members).unwrap();
        replay.push(&written, &body.outline(), members).unwrap();
        stored.bodies.insert(at, Arc::new(body));
        let from = Sources {
            members,
            stored: &stored,
        };
        let expected = match at {
            4 | 20 => Outcome::Effect,
            _ => Outcome::None(NoEffect::Misformed),
        };
        assert_eq!(replay.outcome(at, 0, from).unwrap(), expected, "{at}");
    }
    assert_eq!(folds.before(&USER, 20).map(|folded| folded.at), Some(4));
    assert_eq!(folds.before(&USER, 21).map(|folded| folded.at), Some(20));
}

#[test]
fn many_folds_are_judged_with_few_of_them_in_memory() {
    let members = tree::members();
    let mut folds = Folds::new(tree::volume());
    let mut before = None;
    for at in 1..2000 {
        let fold = Fold {
            upto: at,
            root: None,
        };
        let body = Body::new(vec![calls::fold(USER, before, fold)]).unwrap();
        folds.entry(&tree::written(at), &body, members).unwrap();
        before = Some(fold);
    }
    assert_eq!(
        folds.before(&USER, 2000).map(|folded| folded.at),
        Some(1999)
    );
}

#[test]
fn two_folds_in_one_entry_are_taken_in_their_order() {
    let (first, next, _) = two_folds();
    let both = [first.ops().to_vec(), next.ops().to_vec()].concat();
    let mut folds = Folds::new(tree::volume());
    let body = Body::new(both).unwrap();
    folds
        .entry(&tree::written(4), &body, tree::members())
        .unwrap();
    let last = folds.before(&USER, 5).unwrap();
    assert_eq!((last.at, last.fold.upto), (4, 3));
    let pins = BTreeSet::from([3, 6]);
    let positions = Positions {
        begin: 7,
        end: 8,
        pins,
    };
    let spans = Spans::new(&folds, &positions);
    assert_eq!(spans.roots(), [(4, last.fold.root.unwrap())]);
    let needed: Vec<u64> = (0..9).filter(|at| spans.has(&USER, *at)).collect();
    assert_eq!(needed, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn what_is_needed_between_pins_is_what_each_of_them_needs() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut folds = Folds::new(tree::volume());
        let (mut at, mut before) = (1, None);
        for _ in 0..random.below(6) {
            at += 1 + random.below(6);
            let since = before.map_or(0, |fold: Fold| fold.upto);
            let upto = since + 1 + random.below(at - since);
            let fold = Fold { upto, root: None };
            let body = Body::new(vec![calls::fold(USER, before, fold)]).unwrap();
            let written = tree::written(at);
            folds.entry(&written, &body, tree::members()).unwrap();
            before = folds.before(&USER, at + 1).map(|folded| folded.fold);
        }
        let end = at + random.below(9);
        let begin = random.below(end + 1);
        let pins: BTreeSet<u64> = (0..random.below(6))
            .map(|_| random.below(end + 1))
            .collect();
        let all = pins.iter().copied().chain(begin..=end);
        let spans: Vec<(u64, u64)> = all
            .map(|to| {
                let last = folds.before(&USER, to);
                (last.map_or(0, |folded| folded.fold.upto), to)
            })
            .collect();
        let positions = Positions { begin, end, pins };
        let found = Spans::new(&folds, &positions);
        if before.is_some() {
            for at in 0..end + 3 {
                let is_needed = spans.iter().any(|(from, to)| (*from..*to).contains(&at));
                assert_eq!(found.has(&USER, at), is_needed, "seed {seed}, {at}");
            }
        }
    }
}
