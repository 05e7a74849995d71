//! How a collection works and rests, and what it does about time meanwhile.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Core;
use super::super::options::CollectionOptions;
use super::super::pace::Watch;
use super::volume::{BEFORE, QUARTER, options, written};
use super::world::World;

/// More than all parts of all rests.
const MOST: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Rested(Duration),
    Counted,
}

/// A clock that goes on each time that it is asked, now and then by much.
struct Counting {
    core: Arc<Core>,
    begin: Instant,
    passed: Cell<Duration>,
    asked: Cell<u32>,
    did: RefCell<Vec<Did>>,
}

impl Counting {
    fn pass(&self, time: Duration) -> Instant {
        self.passed.set(self.passed.get() + time);
        self.begin + self.passed.get()
    }
}

impl Watch for Counting {
    fn now(&self) -> Instant {
        self.asked.set(self.asked.get() + 1);
        let is_long = self.asked.get().is_multiple_of(3);
        let seconds = Duration::from_secs(if is_long { 20 } else { 0 });
        self.pass(seconds + Duration::from_millis(1))
    }

    fn rest(&self, how_long: Duration) -> bool {
        let mut did = self.did.borrow_mut();
        assert!(did.len() < MOST, "it rests for ever");
        did.push(Did::Rested(how_long));
        drop(did);
        self.pass(how_long);
        true
    }

    fn count_time(&self) {
        self.did.borrow_mut().push(Did::Counted);
        self.core.count_time();
    }
}

#[test]
fn collection_rests_five_times_as_long_as_it_works_and_time_is_counted_meanwhile() {
    let world = World::new();
    let (core, device, mut writer) = written(&world, 12).unwrap();
    for _ in 0..8 {
        writer.quarter(&core, &world).unwrap();
    }
    drop((core, device));
    let slow = CollectionOptions {
        rest: 5,
        ..options(BEFORE).collection
    };
    let core = world.open_with(super::super::HostOptions {
        collection: slow,
        ..options(BEFORE)
    });
    let core = core.unwrap();
    let watch = Counting {
        core: Arc::clone(&core),
        begin: Instant::now(),
        passed: Cell::default(),
        asked: Cell::default(),
        did: RefCell::default(),
    };
    let collected = core.collect_by(&watch);
    assert!(collected.hindered.is_none(), "{:?}", collected.hindered);
    assert!(collected.removed_blocks > 0);
    let did = watch.did.borrow();
    let rests = did.iter().filter_map(|did| match did {
        Did::Rested(how_long) => Some(*how_long),
        Did::Counted => None,
    });
    let rests: Vec<Duration> = rests.collect();
    let rested: Duration = rests.iter().sum();
    let worked = watch.passed.get() - rested;
    assert!(rested <= worked * 5, "{rested:?} for {worked:?}");
    let pause = QUARTER / 8;
    assert_eq!(rests.iter().max(), Some(&pause));
    let long = |did: &Did| *did == Did::Rested(pause);
    let unseen = did.windows(2).filter(|two| two.iter().all(long));
    assert_eq!(unseen.count(), 0, "time is counted after each long part");
    assert_eq!(writer.gone(&core), []);
}
