//! Crashes at every operation, with what they may leave, and a second crash while the log is opened again.

use std::ops::Range;

use sim::device::{Machine, Stop};
use wal::{Lsn, Recovery};

use crate::volume::{ONE, PAGE, TWO, device, machine, noise, open_at, record, seeds};

/// The work below meets the ring's end where a frame does not fit.
const RING_PAGES: u64 = 34;

/// What a workload did, with the number of the machine's operations at that time.
#[derive(Default)]
struct History {
    /// Seeds up to this one were durable when so many operations had returned.
    durable: Vec<(u64, u64)>,
    /// The first client needs nothing before this seed: begun, returned.
    oldest: Vec<(u64, u64, u64)>,
}

impl History {
    /// Seeds that a crash in operation `at` may leave: at least the first range.
    fn must_have(&self, at: u64) -> u64 {
        let durable = self.durable.iter().filter(|(when, _)| *when < at);
        durable.map(|(_, seed)| *seed).max().unwrap_or(0)
    }

    fn may_begin(&self, at: u64) -> Range<u64> {
        let returned = self.oldest.iter().filter(|(_, returned, _)| *returned < at);
        let begun = self.oldest.iter().filter(|(begun, _, _)| *begun < at);
        let seed = |(_, _, seed): &(u64, u64, u64)| *seed;
        returned.map(seed).max().unwrap_or(1)..begun.map(seed).max().unwrap_or(1) + 1
    }
}

/// Frames of several lengths with padding at the ring's end, batches, checkpoints, two openings.
fn work(machine: &Machine, rounds: u64) -> History {
    let mut history = History::default();
    let mut next = 1;
    for opening in 0..2 {
        let log = open_at(machine).unwrap().finish(&[]).unwrap();
        let mut starts: Vec<(u64, Lsn)> = Vec::new();
        for round in 0..rounds {
            let batch = 1 + (round + opening) % 2;
            for _ in 0..batch {
                let pages = [1, 0, 3, 2][next as usize % 4];
                let records = [(ONE, record(next, pages)), (TWO, record(next, 0))];
                let appended = log.append(&records).unwrap();
                starts.push((next, appended.start));
                next += 1;
            }
            log.flush(log.end()).wait().unwrap();
            history.durable.push((machine.operations(), next - 1));
            let (seed, start) = starts[starts.len() - 1];
            let begun = machine.operations();
            log.checkpoint(TWO, log.end(), b"").unwrap();
            let page = wal::Buffer::copy(&noise(seed));
            let slot = history.oldest.len() as u64 % 2;
            let place = log.area(ONE).start + slot * PAGE;
            log.device().write(place, &page).unwrap();
            let cookie = [seed, slot].map(u64::to_le_bytes).concat();
            log.checkpoint(ONE, start, &cookie).unwrap();
            history.oldest.push((begun, machine.operations(), seed));
        }
    }
    history
}

/// Compares what is found with what may be found after a crash in operation `at`.
fn check(recovery: &Recovery, history: &History, at: u64) -> Vec<u64> {
    assert_eq!(recovery.wrong_pages(), [], "a torn page is not a wrong one");
    let found = seeds(recovery, ONE);
    if let (Some(first), Some(last)) = (found.first(), found.last()) {
        assert_eq!(found, (*first..=*last).collect::<Vec<_>>());
        assert!(history.may_begin(at).contains(first), "begins with {first}");
        if recovery.cookie(ONE) != b"first cookie" {
            let (numbers, _) = recovery.cookie(ONE).as_chunks::<8>();
            let [seed, slot] = [0, 1].map(|n| u64::from_le_bytes(numbers[n]));
            assert_eq!(seed, *first);
            let mut page = wal::Buffer::zeroed(PAGE as usize);
            let at = recovery.area(ONE).start + slot * PAGE;
            recovery.device().read(at, &mut page).unwrap();
            assert!(
                page[..] == noise(*first)[..],
                "the area is not the cookie's"
            );
        }
    }
    let last = found.last().copied().unwrap_or(0);
    assert!(last >= history.must_have(at), "ends with {last}");
    found
}

#[test]
fn every_crash_point_keeps_what_was_durable() {
    let mut crashes = 0;
    for (stop, pieces) in [(Stop::Power, 2), (Stop::Power, 8), (Stop::Kill, 2)] {
        let machine = machine(RING_PAGES);
        machine.record();
        let history = work(&machine, 7);
        for copy in machine.recorded() {
            let at = copy.operations();
            for outcome in copy.outcomes(stop, pieces, 12, at) {
                let restarted = copy.restart(stop, pieces, &outcome);
                let recovery = open_at(&restarted)
                    .unwrap_or_else(|e| panic!("operation {at}, {stop:?} {outcome}: {e}"));
                check(&recovery, &history, at);
                crashes += 1;
            }
        }
    }
    assert!(crashes > 1000, "{crashes} crashes");
}

#[test]
fn second_crash_while_opening_keeps_what_the_first_opening_found() {
    let machine = machine(RING_PAGES);
    machine.record();
    let history = work(&machine, 3);
    let mut crashes = 0;
    for copy in machine.recorded() {
        let at = copy.operations();
        for stop in [Stop::Power, Stop::Kill] {
            for outcome in copy.outcomes(stop, 2, 4, at) {
                let restarted = copy.restart(stop, 2, &outcome);
                restarted.record();
                let recovery = open_at(&restarted).unwrap();
                let found = check(&recovery, &history, at);
                let seen = restarted.operations();
                let log = recovery.finish(&[(TWO, record(9999, 1))]).unwrap();
                drop(log);
                for second in restarted.recorded() {
                    for outcome in second.outcomes(Stop::Power, 2, 6, at) {
                        let again = second.restart(Stop::Power, 2, &outcome);
                        let recovery = open_at(&again).unwrap();
                        if second.operations() > seen {
                            assert_eq!(seeds(&recovery, ONE), found);
                        } else {
                            check(&recovery, &history, at);
                        }
                        crashes += 1;
                    }
                }
            }
        }
    }
    assert!(crashes > 1000, "{crashes} crashes");
}

/// A negative control: on a device that ignores syncs, the same workload loses what was durable.
#[test]
fn ignored_syncs_are_noticed_by_the_crash_test() {
    use sim::device::{Fault, Lie};
    let machine = machine(RING_PAGES);
    machine.record();
    device(&machine).inject(Fault::always(Lie::SyncIgnored));
    let history = work(&machine, 3);
    let mut lost = 0;
    for copy in machine.recorded() {
        let at = copy.operations();
        for outcome in copy.outcomes(Stop::Power, 2, 8, at) {
            let restarted = copy.restart(Stop::Power, 2, &outcome);
            device(&restarted).heal();
            let found = open_at(&restarted).ok();
            let whole = found.filter(|recovery| recovery.wrong_pages().is_empty());
            let seeds = whole.map_or_else(Vec::new, |recovery| seeds(&recovery, ONE));
            let last = seeds.last().copied().unwrap_or(0);
            lost += u64::from(last < history.must_have(at));
        }
    }
    assert!(lost > 10, "{lost} losses");
}

#[test]
fn crash_while_a_log_is_formatted_leaves_no_older_log() {
    let machine = machine(16);
    let log = open_at(&machine)
        .unwrap()
        .finish(&[(ONE, record(1, 0))])
        .unwrap();
    drop(log);
    machine.record();
    crate::volume::format(&*device(&machine), &crate::volume::geometry(16));
    let (mut old, mut none, mut new) = (0, 0, 0);
    for (number, copy) in machine.recorded().into_iter().enumerate() {
        for outcome in copy.outcomes(Stop::Power, 8, 16, 3) {
            match open_at(&copy.restart(Stop::Power, 8, &outcome)) {
                Ok(recovery) if recovery.epoch() > 1 => {
                    // Only the first write of zeros, over the superblocks, can leave it whole.
                    assert!(number < 2, "the older log opens after operation {number}");
                    assert_eq!(seeds(&recovery, ONE), [1]);
                    old += 1;
                }
                Ok(recovery) => {
                    assert!(seeds(&recovery, ONE).is_empty());
                    new += 1;
                }
                Err(_) => none += 1,
            }
        }
    }
    assert!(
        old > 0 && none > 0 && new > 0,
        "{old} old, {none} none, {new} new"
    );
}
