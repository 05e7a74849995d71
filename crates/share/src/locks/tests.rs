//! Locks against naive models: a map of bytes, and a log with another device.

use std::collections::BTreeMap;

use trust_shared::hold::{END, Family, Range, Ranges};
use trust_shared::principal::{Device, FileId, INumber, Principal};

use super::file::{Answer, Ask, Came, Denied, Granted, Request};
use super::table::covers;
use super::{Key, Known, LAPSES, Locks, Owned, Table};

const BYTES: u64 = 24;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn range(&mut self) -> Range {
        let start = self.below(BYTES);
        let end = start + 1 + self.below(BYTES - start);
        range(start, end, self.below(2) == 0)
    }
}

pub(super) fn range(start: u64, end: u64, exclusive: bool) -> Range {
    Range {
        start,
        end,
        exclusive,
    }
}

pub(super) fn owned(owner: u64, range: Range) -> Owned {
    Owned {
        owner,
        range,
        pid: owner as u32,
        handle: owner,
    }
}

pub(super) fn key(family: Family) -> Key {
    let principal = Principal::from_bytes([1; 32]);
    let number = INumber {
        device: Device(0),
        counter: 1,
    };
    (FileId { principal, number }, family)
}

#[test]
fn table_is_what_a_map_of_bytes_is() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut table = Table::default();
        let mut bytes: BTreeMap<(u64, u64), bool> = BTreeMap::new();
        for _ in 0..60 {
            let (owner, range) = (random.below(4), random.range());
            let others = |at: u64| {
                let mut others = bytes.iter();
                others.any(|((who, byte), exclusive)| {
                    *who != owner && *byte == at && (*exclusive || range.exclusive)
                })
            };
            let conflicts = (range.start..range.end).any(others);
            assert_eq!(table.conflict(owner, &range).is_some(), conflicts, "{seed}");
            if random.below(3) == 0 {
                table.clear(owner, &range);
                bytes.retain(|(who, at), _| *who != owner || *at < range.start || *at >= range.end);
            } else if !conflicts {
                table.set(owned(owner, range));
                let set = (range.start..range.end).map(|at| ((owner, at), range.exclusive));
                bytes.extend(set);
            }
            let mut seen = BTreeMap::new();
            for lock in table.iter() {
                for at in lock.range.start..lock.range.end {
                    let before = seen.insert((lock.owner, at), lock.range.exclusive);
                    assert_eq!(before, None, "{seed}: one over another");
                }
            }
            assert_eq!(seen, bytes, "{seed}");
            let mut union = BTreeMap::new();
            for ((_, at), exclusive) in &bytes {
                *union.entry(*at).or_insert(false) |= exclusive;
            }
            let ranges = table.union(None);
            let together = ranges
                .iter()
                .flat_map(|range| (range.start..range.end).map(|at| (at, range.exclusive)));
            assert_eq!(together.collect::<BTreeMap<_, _>>(), union, "{seed}");
            assert!(
                ranges.is_empty() || Ranges::new(ranges.clone()).is_ok(),
                "{seed}"
            );
            let meets = |pair: &[Range]| matches!(pair, [one, two] if one.end == two.start && one.exclusive == two.exclusive);
            assert!(!ranges.windows(2).any(meets), "{seed}: not joined");
        }
    }
}

#[test]
fn holder_of_more_need_not_ask() {
    let held = [range(0, 5, true), range(5, 9, false), range(12, END, true)];
    for (covered, wanted) in [
        (true, range(0, 9, false)),
        (false, range(0, 9, true)),
        (true, range(1, 5, true)),
        (false, range(4, 13, false)),
        (true, range(13, END, true)),
        (false, range(9, 10, false)),
    ] {
        assert_eq!(covers(&held, &[wanted]), covered, "{wanted:?}");
    }
    assert!(covers(&held, &[]) && covers(&held, &held) && !covers(&[], &held));
}

pub(super) type All = Locks<u64, &'static str>;

/// The log, another device, and what is on its way.
struct World {
    random: Random,
    locks: All,
    key: Key,
    position: u64,
    /// What this device holds in the log, and since when.
    own: Option<(Vec<Range>, u64)>,
    other: Vec<Range>,
    /// The call that is under way, and its effect if it had one.
    asked: Option<(Ask, Option<Came<&'static str>>)>,
    waiting: BTreeMap<u64, (u64, Request)>,
    /// This device's holds were taken over.
    is_robbed: bool,
    granted: usize,
    numbers: u64,
}

impl World {
    fn new(seed: u64, family: Family) -> World {
        World {
            random: Random(seed),
            locks: Locks::default(),
            key: key(family),
            position: 1,
            own: None,
            other: Vec::new(),
            asked: None,
            waiting: BTreeMap::new(),
            is_robbed: false,
            granted: 0,
            numbers: 0,
        }
    }

    fn told(&mut self, answers: Vec<Answer<u64, &'static str>>) {
        for (number, told) in answers {
            let (_, request) = self.waiting.remove(&number).expect("answered once");
            match told {
                Ok(_) => self.granted += 1,
                Err(Denied::Locked) => assert!(!request.waits),
                Err(other) => assert_eq!(other, Denied::Failed("away")),
            }
        }
    }

    /// The log takes the call that is under way.
    fn order(&mut self) {
        let Some((ask, came @ None)) = &mut self.asked else {
            return;
        };
        let clash = |ranges: &[Range]| {
            let other = Ranges::new(self.other.clone());
            let own = Ranges::new(ranges.to_vec());
            matches!((other, own), (Ok(other), Ok(own)) if other.clash(&own))
        };
        match ask {
            Ask::Hold { ranges, waits, .. } => {
                let ranges: Vec<Range> = ranges.iter().copied().collect();
                if !clash(&ranges) {
                    let since = self.own.as_ref().map_or(self.position, |own| own.1);
                    self.own = Some((ranges, since));
                    *came = Some(Came::Held(since));
                } else if !*waits {
                    *came = Some(Came::Locked);
                }
            }
            Ask::Release => {
                self.own = None;
                *came = Some(Came::Nothing);
            }
        }
        self.position += 1;
    }

    fn ask(&mut self) {
        if self.asked.is_none()
            && let Some(Some(ask)) = self.locks.next(self.key)
        {
            self.asked = Some((ask, None));
        } else if self.locks.is_outdated(self.key) {
            self.locks.given_up(self.key);
            self.asked = None;
        }
    }

    fn deliver(&mut self, fails: bool) {
        match self.asked.take() {
            Some((_, Some(came))) => {
                let came = if fails { Came::Failed("away") } else { came };
                let answers = self.locks.came(self.key, came);
                self.told(answers);
            }
            asked => self.asked = asked,
        }
    }

    fn step(&mut self, robs: bool) {
        let (key, owner) = (self.key, self.random.below(4));
        match self.random.below(16) {
            0..=4 => {
                let range = match key.1 {
                    Family::Flock => range(0, END, self.random.below(2) == 0),
                    Family::Fcntl => self.random.range(),
                };
                let waits = self.random.below(2) == 0;
                let lock = owned(owner, range);
                let request = Request { lock, waits };
                // A program does one thing at a time.
                if self
                    .waiting
                    .values()
                    .any(|(_, other)| other.lock.owner == owner)
                {
                    return;
                }
                self.numbers += 1;
                let number = self.numbers;
                self.waiting.insert(number, (0, request));
                let (ticket, answers) = self.locks.lock(key, request, number);
                if let Some(waiting) = self.waiting.get_mut(&number) {
                    waiting.0 = ticket;
                }
                let denied = answers
                    .iter()
                    .any(|(_, told)| *told == Err(Denied::Deadlock));
                match denied {
                    true => drop(self.waiting.remove(&number)),
                    false => self.told(answers),
                }
            }
            5 | 6 => {
                let range = self.random.range();
                let answers = self.locks.unlock(key, owner, &range);
                self.told(answers);
            }
            7 => {
                let answers = self.locks.closed(key, owner);
                self.told(answers);
            }
            8 => {
                let first = self
                    .waiting
                    .iter()
                    .next()
                    .map(|(number, (ticket, _))| (*number, *ticket));
                if let Some((number, ticket)) = first {
                    assert!(self.locks.leave(key, ticket));
                    self.waiting.remove(&number);
                }
            }
            9 => self.order(),
            10 => self.deliver(false),
            11 if self.random.below(4) == 0 => self.deliver(true),
            12 => self.locks.renew(key),
            13 => {
                // The other device takes what it can, or all if this one's time is over.
                let mut wants = self.random.range();
                wants.end += self.random.below(2);
                let wants = vec![wants];
                let own = self.own.as_ref().map(|own| Ranges::new(own.0.clone()));
                let clashes = match (own, Ranges::new(wants.clone())) {
                    (Some(Ok(own)), Ok(wants)) => own.clash(&wants),
                    _ => false,
                };
                if !clashes {
                    self.other = wants;
                } else if robs {
                    (self.own, self.other, self.is_robbed) = (None, wants, true);
                }
                self.position += 1;
            }
            14 => self.other = Vec::new(),
            _ => self.locks.try_others(key),
        }
        self.ask();
        self.check();
    }

    /// What programs have, the device holds.
    fn check(&self) {
        let rows = self.locks.rows();
        let locks = rows.iter().flat_map(|row| &row.locks);
        let mut together = Table::default();
        locks.for_each(|lock| together.set(*lock));
        let held = self.own.as_ref().map_or(&[][..], |own| &own.0);
        let union = together.union(None);
        // Who was robbed may not know it yet.
        let since = rows.iter().find_map(|row| row.since);
        let is_robbed = self.is_robbed && since != self.own.as_ref().map(|own| own.1);
        assert!(is_robbed || covers(held, &union), "{union:?} {held:?}");
    }

    /// The other device gives up, and all that waits is answered. Then all is given up.
    fn end(&mut self) {
        self.other = Vec::new();
        for round in 0..200 {
            self.order();
            self.deliver(false);
            self.locks.renew(self.key);
            self.ask();
            if round % 10 == 0 {
                let answers = self.locks.closed(self.key, round / 10 % 4);
                self.told(answers);
            }
        }
        assert_eq!(self.waiting.len(), 0, "somebody waits for ever");
        assert_eq!(self.own, None, "something is held for nobody");
        assert_eq!(self.locks.next(self.key), None);
        assert_eq!(self.locks.rows(), []);
    }
}

#[test]
fn programs_have_only_what_the_device_holds_and_all_are_answered() {
    for (robs, family) in [
        (false, Family::Fcntl),
        (false, Family::Flock),
        (true, Family::Fcntl),
        (true, Family::Flock),
    ] {
        let mut granted = 0;
        for seed in 0..400 {
            let mut world = World::new(seed, family);
            for _ in 0..120 {
                world.step(robs);
            }
            world.end();
            granted += world.granted;
        }
        assert!(granted > 1000, "{granted}");
    }
}

/// Two programs on one device, of one file.
pub(super) fn begun(family: Family) -> (All, Key) {
    (Locks::default(), key(family))
}

pub(super) fn ask(
    locks: &mut All,
    key: Key,
    owner: u64,
    range: Range,
    waits: bool,
) -> Vec<Answer<u64, &'static str>> {
    let lock = owned(owner, range);
    locks.lock(key, Request { lock, waits }, owner).1
}

/// A program writes under the locks that it has.
pub(super) fn writes(locks: &mut All, key: Key, handle: u64) {
    let guards = locks.guards(key.0, handle).expect("no lock is lost");
    locks.wrote(key.0, guards);
}

pub(super) const GRANTED: Result<Granted, Denied<&str>> = Ok(Granted {
    shows: None,
    had: Vec::new(),
});

#[test]
fn what_the_device_holds_is_given_without_asking_and_only_new_ranges_show_the_newest() {
    let (mut locks, key) = begun(Family::Fcntl);
    assert_eq!(ask(&mut locks, key, 1, range(0, 10, true), false), []);
    let hold = |ranges, ticket| {
        Some(Some(Ask::Hold {
            ranges: Ranges::new(ranges).unwrap(),
            waits: false,
            ticket,
        }))
    };
    assert_eq!(locks.next(key), hold(vec![range(0, 10, true)], Some(1)));
    let shows = Ok(Granted {
        shows: Some(1),
        had: vec![],
    });
    assert_eq!(locks.came(key, Came::Held(7)), [(1, shows)]);
    // Before the kernel has dropped its pages, another program must not read them either.
    locks.unlock(key, 1, &range(0, 5, true));
    let shows = Ok(Granted {
        shows: Some(1),
        had: vec![],
    });
    assert_eq!(
        ask(&mut locks, key, 2, range(0, 5, false), false),
        [(2, shows)]
    );
    locks.shown(key, 1);
    locks.unlock(key, 2, &range(0, 5, true));
    assert_eq!(
        ask(&mut locks, key, 2, range(0, 5, false), false),
        [(2, GRANTED)]
    );
    // Now less is wanted than is held. Until that is known, it is not given to anybody.
    let less = vec![range(0, 5, false), range(5, 10, true)];
    assert_eq!(locks.next(key), hold(less, None));
    assert_eq!(ask(&mut locks, key, 2, range(0, 5, true), false), []);
    locks.came(key, Came::Held(7));
    let more = vec![range(0, 10, true)];
    assert_eq!(locks.next(key), hold(more, Some(4)));
    let shows = Ok(Granted {
        shows: Some(2),
        had: vec![owned(2, range(0, 5, false))],
    });
    assert_eq!(locks.came(key, Came::Held(7)), [(2, shows)]);
}

#[test]
fn lost_lock_takes_the_locks_of_all_programs_and_marks_their_open_files() {
    for came in [Came::Held(9), Came::Locked] {
        let (mut locks, key) = begun(Family::Flock);
        let whole = range(0, END, true);
        ask(&mut locks, key, 1, whole, false);
        locks.next(key);
        locks.came(key, Came::Held(7));
        writes(&mut locks, key, 1);
        assert_eq!(locks.under(key.0), [(Family::Flock, 7)]);
        assert!(!locks.is_lost(key.0, 1));
        locks.renew(key);
        assert!(matches!(locks.next(key), Some(Some(Ask::Hold { .. }))));
        locks.came(key, came);
        assert!(locks.is_lost(key.0, 1) && !locks.is_lost(key.0, 2));
        assert_eq!(locks.under(key.0), [(Family::Flock, 7)]);
        // The device holds nothing for nobody.
        assert_eq!(locks.next(key), Some(Some(Ask::Release)));
        locks.came(key, Came::Nothing);
        // The program begins anew.
        locks.unlock(key, 1, &whole);
        assert!(!locks.is_lost(key.0, 1));
        locks.clean(key.0);
        assert_eq!(locks.under(key.0), []);
    }
}

#[test]
fn call_of_which_nobody_knows_is_followed_by_one_that_says_all() {
    let (mut locks, key) = begun(Family::Flock);
    let whole = range(0, END, true);
    assert_eq!(ask(&mut locks, key, 1, whole, false), []);
    locks.next(key);
    let failed = Err(Denied::Failed("away"));
    assert_eq!(locks.came(key, Came::Failed("away")), [(1, failed)]);
    // It may be held for nobody.
    assert_eq!(locks.next(key), Some(Some(Ask::Release)));
    locks.came(key, Came::Nothing);
    assert_eq!(locks.next(key), None);
    // A program waits for another device, and is interrupted.
    let lock = owned(1, whole);
    let (ticket, _) = locks.lock(key, Request { lock, waits: true }, 1);
    locks.next(key);
    assert_eq!(locks.came(key, Came::Locked), []);
    let waits = locks.next(key);
    assert!(matches!(waits, Some(Some(Ask::Hold { waits: true, .. }))));
    assert!(!locks.is_outdated(key));
    assert!(locks.leave(key, ticket) && !locks.leave(key, ticket));
    assert!(locks.is_outdated(key));
    locks.given_up(key);
    assert_eq!(locks.next(key), Some(Some(Ask::Release)));
    locks.came(key, Came::Nothing);
    assert_eq!(locks.next(key), None);
}

#[test]
fn more_ranges_than_a_hold_has_are_refused() {
    let (mut locks, key) = begun(Family::Fcntl);
    for at in 0..33 {
        let answers = ask(&mut locks, key, 1, range(2 * at, 2 * at + 1, true), false);
        if at == 32 {
            assert_eq!(answers, [(1, Err(Denied::TooMany))]);
            continue;
        }
        locks.next(key);
        assert_eq!(locks.came(key, Came::Held(7)).len(), 1);
    }
    // Who may lock it for nobody else has no such limit.
    locks.unlock(key, 1, &range(0, END, true));
    locks.next(key);
    locks.came(key, Came::Local);
    for at in 0..33 {
        let answers = ask(&mut locks, key, 1, range(2 * at, 2 * at + 1, true), false);
        assert_eq!(answers, [(1, GRANTED)]);
    }
    assert_eq!(locks.next(key), Some(None));
}

#[test]
fn programs_that_would_wait_for_each_other_are_told() {
    let (mut locks, key) = begun(Family::Fcntl);
    ask(&mut locks, key, 1, range(0, 1, true), false);
    locks.next(key);
    locks.came(key, Came::Local);
    for owner in 2..4 {
        let own = range(owner - 1, owner, true);
        assert_eq!(ask(&mut locks, key, owner, own, false), [(owner, GRANTED)]);
    }
    assert_eq!(ask(&mut locks, key, 1, range(1, 2, false), true), []);
    assert_eq!(ask(&mut locks, key, 2, range(2, 3, false), true), []);
    let deadlock = Err(Denied::Deadlock);
    assert_eq!(
        ask(&mut locks, key, 3, range(0, 1, false), true),
        [(3, deadlock)]
    );
    // Who does not wait is not in anybody's way.
    assert_eq!(
        ask(&mut locks, key, 3, range(0, 1, false), false),
        [(3, Err(Denied::Locked))]
    );
}

#[test]
fn prefix_is_old_after_the_time_to_live() {
    let mut known = Known::default();
    let lapses = LAPSES.as_millis() as u64;
    assert_eq!(known.lapsed(u64::MAX), 0);
    known.note(1000, 5);
    for at in 0..100_000 {
        known.note(1500 + at, 9);
    }
    assert_eq!(known.lapsed(1000 + lapses - 1), 0);
    let mut known = Known::default();
    known.note(1000, 5);
    known.note(20_000, 9);
    assert_eq!(known.lapsed(1000 + lapses - 1), 0);
    assert_eq!(known.lapsed(1000 + lapses), 5);
    assert_eq!(known.lapsed(20_000 + lapses), 9);
}
