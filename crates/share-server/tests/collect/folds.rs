//! Which folds count: those of members with effect. One that cannot be judged from folds alone stops the collection.

use std::collections::{BTreeMap, BTreeSet};

use share_server::collect::needed::{Folds, Positions, Spans};
use sim::random::Random;
use trust_shared::calls;
use trust_shared::guard::Guard;
use trust_shared::itable::Fold;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::Written;
use trust_shared::principal::{Device, Name};

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

#[test]
fn fold_with_guards_about_files_stops_the_collection() {
    let (first, ..) = two_folds();
    let name = Name::new(b"x").unwrap();
    let linked = |directory, parent| Guard::Linked {
        directory: tree::file(directory),
        parent: tree::file(parent),
        name: name.clone(),
    };
    // Each of these two names the other one's directory.
    let op = first.ops()[0].clone();
    let guards = [op.guards, vec![linked(1, 2), linked(2, 1)]].concat();
    let body = Body::new(vec![Op::new(guards, op.changes)]).unwrap();
    let mut folds = Folds::new(tree::volume());
    let why = folds.entry(&tree::written(4), &body, tree::members());
    assert!(why.unwrap_err().to_string().contains("at 4"));
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
