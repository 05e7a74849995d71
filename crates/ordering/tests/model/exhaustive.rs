//! All states of two devices, and of three; with BULLA_LONG, of more calls and by seed.

use std::time::{Duration, Instant};

use crate::explorer::{Failure, Limit, System, Tried, depth, walk};
use crate::judged::Judged;
use crate::mutants::any_moment;
use crate::protocol::Call::{
    self, Accept, Admit, Append, Close, Create, Fold, Lock, Move, Put, PutLocked, Read, Remove,
    Unlock,
};
use crate::world::Scope;

/// States at most, so that memory is bounded: some 2 GiB.
pub const LIMIT: u64 = 60_000_000;

pub const FILE: &[Call] = &[Append(0), Read(0)];
pub const BLIND: &[Call] = &[Put(0), Read(0)];
pub const NAMES: &[Call] = &[Create(0), Append(0)];

/// Visits all states, none of which may be broken.
pub fn holds(name: &str, start: &impl System) -> Tried {
    let began = Instant::now();
    let tried =
        depth(start, Limit::states(LIMIT)).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    println!(
        "{name}: {tried:?} in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    assert!(!tried.cut, "{name}: more states than {LIMIT}");
    tried
}

pub fn long() -> bool {
    std::env::var_os("BULLA_LONG").is_some()
}

#[test]
fn server_without_crashes_of_devices_breaks_nothing() {
    holds(
        "blind writes",
        &Scope::new(&[(BLIND, 2), (BLIND, 1)]).impatient().world(),
    );
    let moves: &[Call] = &[Move(1, 2), Move(2, 1), Move(1, 0)];
    holds("moves", &Scope::new(&[(moves, 2), (moves, 1)]).world());
    holds(
        "fold",
        &Scope::new(&[(&[Fold, Read(0)], 2), (&[Append(0)], 1)]).world(),
    );
}

#[test]
fn crashes_of_devices_break_nothing() {
    holds(
        "kill",
        &Scope::new(&[(FILE, 1), (FILE, 1)])
            .kills(1)
            .impatient()
            .world(),
    );
    holds(
        "power",
        &Scope::new(&[(FILE, 1), (FILE, 1)])
            .powers(1)
            .impatient()
            .world(),
    );
}

/// A device takes pages without a look at signatures. Whatever it does next, it looks first.
#[test]
fn entry_that_its_author_did_not_sign_is_never_used() {
    let once = Scope::new(&[(FILE, 1), (FILE, 1)]).forging();
    holds("forger", &once.clone().kills(1).world());
    if long() {
        holds("forger, power", &once.powers(1).world());
        let more = Scope::new(&[(FILE, 2), (FILE, 1)]).forging();
        holds("forger, 2+1", &more.impatient().world());
    }
}

/// A device that starts again with a snapshot knows what the one that ended knew, and which entries nobody has verified.
#[test]
fn snapshot_of_the_floor_breaks_nothing() {
    let once = Scope::new(&[(FILE, 1), (FILE, 1)]).snapshots();
    holds("snapshot, kill", &once.clone().kills(1).impatient().world());
    holds(
        "snapshot, power",
        &once.clone().powers(1).impatient().world(),
    );
    let forger = Scope::new(&[(FILE, 1), (&[Read(0)], 1)]).snapshots();
    holds("snapshot, forger", &forger.forging().kills(1).world());
    holds("snapshot, forger, any moment", &any_moment(6).world());
    if long() {
        let both = once.clone().kills(1).powers(1);
        holds("snapshot, kill, power", &both.impatient().world());
        holds("snapshot, forger, 1+1", &once.forging().kills(1).world());
    }
}

/// What a killed process wrote may not be on the disk. It is there when the next one reads it, and gone after a power
/// cut.
#[test]
fn journal_that_a_killed_process_did_not_sync_attests_nothing() {
    let (append, read): (&[Call], &[Call]) = (&[Append(0)], &[Read(0)]);
    let alone = Scope {
        reduced: false,
        ..Scope::new(&[(append, 1), (&[], 0)])
    };
    holds("alone, kill, power", &alone.kills(1).powers(1).world());
    if long() {
        let both = Scope::new(&[(append, 1), (read, 1)]);
        holds("1+1, kill, power", &both.kills(1).powers(1).world());
    }
}

/// A device that is told so begins another incarnation, and its calls go on.
#[test]
fn entry_that_is_refused_and_ordered_all_the_same_breaks_nothing() {
    let once = Scope::new(&[(FILE, 1), (FILE, 1)]).refusals(1).impatient();
    holds("refusal", &once.world());
    let twice = Scope::new(&[(&[Append(0)], 2), (&[], 0)]).refusals(2);
    holds("refusal, refusal", &twice.world());
    if long() {
        let kill = Scope::new(&[(&[Append(0)], 1), (&[Read(0)], 1)]).refusals(1);
        holds("refusal, kill", &kill.kills(1).world());
    }
}

#[test]
fn second_crash_or_power_cut_of_the_administrator_breaks_nothing() {
    let append: &[Call] = &[Append(0)];
    let alone = Scope::new(&[(append, 1), (&[], 0)]).kills(2);
    holds("kill, kill", &alone.world());
    let admit = Scope::new(&[(&[Admit(1)], 1), (append, 1)]).members(1);
    holds("admit, power", &admit.powers(1).world());
    let remove: &[Call] = &[Remove(1), Append(0)];
    let remove = Scope::new(&[(remove, 1), (append, 1)]).impatient();
    holds("remove, power", &remove.powers(1).world());
    if long() {
        let both = Scope::new(&[(append, 1), (append, 1)]).kills(2);
        holds("1+1, kill, kill", &both.world());
        let accept = Scope::new(&[(&[Accept(1), Read(0)], 2), (append, 1)]).impatient();
        holds("accept, power", &accept.powers(1).world());
    }
}

#[test]
fn relaxed_policy_lets_one_marked_entry_of_a_device_cross() {
    holds(
        "relaxed",
        &Scope::new(&[(FILE, 2), (FILE, 1)]).relaxed().world(),
    );
    holds(
        "relaxed, kill",
        &Scope::new(&[(FILE, 1), (FILE, 1)])
            .relaxed()
            .kills(1)
            .world(),
    );
}

#[test]
fn membership_and_accept_break_nothing() {
    holds(
        "accept",
        &Scope::new(&[(&[Accept(1), Read(0)], 2), (&[Append(0)], 1)])
            .impatient()
            .world(),
    );
    holds(
        "admit",
        &Scope::new(&[(&[Admit(1)], 1), (&[Append(0)], 1)])
            .members(1)
            .world(),
    );
    holds(
        "remove",
        &Scope::new(&[(&[Remove(1), Append(0)], 1), (&[Append(0)], 2)])
            .impatient()
            .world(),
    );
    holds(
        "close",
        &Scope::new(&[(&[Close(0), Read(0)], 2), (&[Append(0)], 1)])
            .impatient()
            .world(),
    );
}

/// The checks and the search judge each state.
#[test]
fn server_breaks_nothing_and_the_search_without_positions_agrees() {
    let judged = Judged::new(
        Scope::new(&[(FILE, 2), (FILE, 1)]).impatient().world(),
        true,
    );
    let tried = holds("files, searched", &judged);
    assert!(tried.states > 10_000, "{tried:?}");
    assert!(judged.right.borrow().len() > 100);
    let names = Judged::new(
        Scope::new(&[(NAMES, 2), (NAMES, 1)]).impatient().world(),
        true,
    );
    holds("names, searched", &names);
}

/// Locks of programs: taken, renewed, written under, given up, and taken over when their time to live has passed.
#[test]
fn locks_that_lapse_break_nothing() {
    let holder: &[Call] = &[Lock(0), PutLocked(0)];
    let append: &[Call] = &[Append(0)];
    let base = Scope::new(&[(holder, 2), (append, 1)]).lapses(1);
    holds("locks", &base.clone().impatient().world());
    holds("locks, relaxed", &base.clone().relaxed().world());
    if long() {
        holds("locks, kill", &base.kills(1).world());
        let three: &[Call] = &[Lock(0), PutLocked(0), Unlock(0)];
        let three = Scope::new(&[(three, 3), (append, 1)]);
        holds("locks, 3+1", &three.lapses(2).impatient().world());
        let both = Scope::new(&[(holder, 2), (holder, 2)]).lapses(2);
        holds("locks, 2+2", &both.impatient().world());
    }
}

/// Writes that wait for a lock, and get it in the order of the log: also beside a server that lies, crashes, and locks
/// that lapse.
#[test]
fn locks_that_are_passed_on_break_nothing() {
    let (holder, append): (&[Call], &[Call]) = (&[Lock(0), Append(0)], &[Append(0)]);
    let base = Scope::new(&[(holder, 2), (append, 1)]);
    holds("passed", &base.clone().impatient().world());
    let lapses = base.clone().lapses(3);
    holds("passed, honest", &lapses.clone().honest(0).quick());
    let turns = Scope::new(&[(append, 2), (append, 1)]);
    holds("turns", &turns.clone().impatient().world());
    holds("turns, honest", &turns.in_turn().honest(0).quick());
    if long() {
        holds("passed, honest, all", &lapses.clone().honest(0));
        holds("passed, lapse", &lapses.clone().impatient().world());
        let dies = lapses.clone().deaths(1).impatient();
        holds("passed, death", &dies.honest(0));
        holds("passed, kill", &base.kills(1).lapses(1).world());
        holds("passed, relaxed", &lapses.relaxed().world());
        let three = Scope::new(&[(holder, 2), (append, 1), (append, 1)]);
        holds("passed, three", &three.lapses(2).honest(0).quick());
    }
}

/// A device that holds a lock stops for ever: the others wait for the lock's time to live, and no longer.
#[test]
fn holder_that_dies_blocks_nobody_for_ever() {
    let (lock, append): (&[Call], &[Call]) = (&[Lock(0)], &[Append(0)]);
    let dies = Scope::new(&[(lock, 1), (append, 1)]).lapses(2).deaths(1);
    holds("death", &dies.clone().impatient().honest(0));
    holds("death, relaxed", &dies.relaxed().honest(0));
    if long() {
        let (two, appends): (&[Call], &[Call]) = (&[Lock(0), Lock(1)], &[Append(0), Append(1)]);
        let many = Scope::new(&[(two, 2), (appends, 2)]).lapses(4).programs(2);
        holds("two locks", &many.honest(0).quick());
    }
}

#[test]
fn honest_server_raises_no_alarm_and_ends_every_call() {
    holds("honest", &Scope::new(&[(FILE, 1), (FILE, 1)]).honest(0));
    if long() {
        holds(
            "honest, files",
            &Scope::new(&[(FILE, 2), (FILE, 1)]).honest(0),
        );
    }
    holds(
        "honest, kill",
        &Scope::new(&[(&[Append(0)], 1), (&[Read(0)], 1)])
            .kills(1)
            .honest(0),
    );
    holds(
        "honest, server stops",
        &Scope::new(&[(&[Append(0)], 1), (&[Read(0)], 1)]).honest(1),
    );
}

/// Messages that come while the server syncs are one commit; what it has not synced is lost when it stops.
#[test]
fn group_commits_lose_nothing_that_was_answered() {
    let calls: &[(&[Call], u8)] = &[(&[Append(0)], 1), (&[Read(0)], 1)];
    holds("group commits", &Scope::new(calls).honest(0).patiently());
    if long() {
        let stops = Scope::new(calls).honest(1).patiently();
        holds("group commits, server stops", &stops);
    }
}

/// A device begins with what another one makes of its log, at any time.
#[test]
fn device_that_begins_with_a_checkpoint_breaks_nothing() {
    let once = Scope::new(&[(FILE, 1), (FILE, 1)]).begins(1);
    holds("checkpoint", &once.clone().impatient().world());
    let power: &[Call] = &[Append(0)];
    let power = Scope::new(&[(power, 1), (&[Read(0)], 1)]).begins(1);
    holds("checkpoint, power", &power.powers(1).world());
    let admit = Scope::new(&[(&[Admit(1)], 1), (&[Append(0)], 1)]);
    holds("checkpoint, admit", &admit.members(1).begins(1).world());
    let relaxed = Scope::new(&[(&[Append(0)], 1), (FILE, 1)]).begins(1);
    holds("checkpoint, relaxed", &relaxed.relaxed().world());
    if long() {
        holds("checkpoint, kill", &once.kills(1).world());
        let three: &[Call] = &[Append(0)];
        let three = Scope::new(&[(three, 1), (three, 1), (&[Read(0)], 1)]);
        holds("checkpoint, three devices", &three.begins(1).world());
    }
}

#[test]
fn no_writer_starves() {
    holds(
        "starvation",
        &Scope::new(&[(&[Append(0)], 1), (&[Put(0)], 5)])
            .in_turn()
            .honest(0)
            .quick(),
    );
    if long() {
        let three = Scope::new(&[(&[Append(0)], 1), (&[Put(0)], 3), (&[Put(0)], 3)]);
        holds(
            "starvation, three devices",
            &three.in_turn().honest(0).quick(),
        );
    }
}

#[test]
fn more_calls_and_devices_break_nothing() {
    if !long() {
        return;
    }
    holds(
        "2+2",
        &Scope::new(&[(FILE, 2), (FILE, 2)]).impatient().world(),
    );
    holds(
        "3+1",
        &Scope::new(&[(FILE, 3), (FILE, 1)]).impatient().world(),
    );
    holds(
        "2+1, kill",
        &Scope::new(&[(FILE, 2), (FILE, 1)]).kills(1).world(),
    );
    holds(
        "2+1, power",
        &Scope::new(&[(FILE, 2), (FILE, 1)]).powers(1).world(),
    );
}

/// Scopes with more states than anybody can wait for: as far as 15 minutes go, or `BULLA_MINUTES`.
#[test]
fn large_scopes_break_nothing_as_far_as_time_allows() {
    if !long() {
        return;
    }
    let minutes = std::env::var("BULLA_MINUTES").ok();
    let minutes = minutes.map_or(15, |minutes| minutes.parse().expect("minutes"));
    let two = Scope::new(&[(FILE, 4), (FILE, 3)]);
    let three = Scope::new(&[(FILE, 2), (FILE, 2), (FILE, 2)]);
    for (name, scope) in [("4+3", two), ("2+2+2", three)] {
        let began = Instant::now();
        let limit = Limit {
            states: LIMIT,
            until: Some(began + Duration::from_secs(60 * minutes) / 2),
        };
        let tried = depth(&scope.impatient().world(), limit);
        let tried = tried.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        let seconds = began.elapsed().as_secs_f64();
        println!("{name}: {tried:?} in {seconds:.0} s");
    }
}

/// Walks by seed, which leave out nothing. None may be broken.
pub fn walks(seeds: u64, scope: impl Fn(u64) -> Scope) {
    let began = Instant::now();
    let mut steps = 0;
    for seed in 0..seeds {
        match wander(scope(seed), seed) {
            Ok(tried) => steps += tried.steps,
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{seeds} seeds: {steps} steps in {seconds:.1} s");
}

/// One walk.
pub fn wander(scope: Scope, seed: u64) -> Result<Tried, Box<Failure>> {
    let scope = Scope {
        reduced: false,
        ..scope
    };
    walk(&scope.world(), seed, 60)
}

#[test]
fn long_ways_by_seed_break_nothing() {
    let seeds = if long() { 200_000 } else { 300 };
    walks(seeds, |seed| match seed % 4 {
        0 => Scope::new(&[(FILE, 4), (FILE, 4), (FILE, 4)]).impatient(),
        1 => Scope::new(&[(FILE, 4), (FILE, 4), (FILE, 4)])
            .powers(2)
            .impatient(),
        2 => Scope::new(&[(NAMES, 4), (BLIND, 4), (FILE, 4)])
            .kills(2)
            .impatient(),
        _ => Scope::new(&[(FILE, 4), (FILE, 4), (NAMES, 4)])
            .kills(1)
            .powers(1)
            .relaxed(),
    });
}
