//! The repository behaves as a map under any sequence of commits, abandoned writers and reopenings. Readers continue while a writer commits and merges.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use proptest::prelude::*;
use store::blocking::Blocking;
use store::conformance::record;
use store::{BlockStore, Repository, Writer};
use trust::{Handle, Kind, Record};

#[derive(Debug, Clone)]
enum Step {
    Commit(Vec<u8>),
    Abandon(Vec<u8>),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let seeds = || proptest::collection::vec(any::<u8>(), 0..40);
    let step = prop_oneof![
        6 => seeds().prop_map(Step::Commit),
        2 => seeds().prop_map(Step::Abandon),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..30)
}

fn of(seed: u8) -> Record {
    record(Kind::Data, u64::from(seed), 20 + 11 * usize::from(seed))
}

fn append(repo: &Repository, seeds: &[u8]) -> Writer {
    let mut writer = Writer::begin(repo).unwrap();
    for seed in seeds {
        let known = writer.contains(&of(*seed).handle).unwrap();
        assert_eq!(writer.append(&of(*seed)).unwrap(), !known);
    }
    writer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 8))]
    #[test]
    fn repository_behaves_as_a_map(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let mut repo = Repository::create(dir.path()).unwrap();
        let mut model: BTreeMap<Handle, Record> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Commit(seeds) => {
                    append(&repo, seeds).commit(&[number as u8]).unwrap();
                    model.extend(seeds.iter().map(|s| (of(*s).handle, of(*s))));
                }
                Step::Abandon(seeds) => drop(append(&repo, seeds)),
                Step::Reopen => repo = Repository::open(dir.path()).unwrap(),
            }
            let want: Vec<Handle> = (0..=255).map(|s| of(s).handle).collect();
            let answer = repo.clone().with_blocking(Blocking::Inline).get_many(&want, 0).now_or_never().unwrap().unwrap();
            let got: BTreeMap<Handle, Record> =
                answer.into_iter().map(|r| (r.handle, r)).collect();
            prop_assert!(got == model, "after {number}: {} of {}", got.len(), model.len());
            prop_assert_eq!(repo.index_entries(), model.len() as u64);
        }
    }
}

#[test]
fn readers_go_on_while_a_writer_commits() {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    let (committed, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (committed, done) = (&committed, &done);
            // One reader shares the writer's repository; the others open their own, as other processes do.
            let repo = match reader {
                0 => repo.clone(),
                _ => Repository::open(dir.path()).unwrap(),
            };
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let known = committed.load(Ordering::Acquire);
                    repo.refresh().unwrap();
                    for seed in 0..known {
                        let r = of(seed as u8);
                        let got = repo
                            .clone()
                            .with_blocking(Blocking::Inline)
                            .get_many(&[r.handle], 5000)
                            .now_or_never()
                            .unwrap();
                        assert_eq!(got.unwrap().first(), Some(&r), "block {seed} of {known}");
                    }
                    Repository::open(repo.place()).unwrap();
                }
            });
        }
        for seed in 0..=255 {
            append(&repo, &[seed]).commit(&[seed]).unwrap();
            committed.store(usize::from(seed) + 1, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
}
