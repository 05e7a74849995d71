//! Random histories of three users, of whom one names what belongs to the others, and of sessions that store, touch, retrieve and give blocks up, order versions and folds; of time, pins,
//! moves, crashes; and of collections in stages between all of these. The rules are the real ones, and so are ops and
//! trees; log, segments and sweeps are lists. After each action nothing that [`super::spec`] needs is gone.
//!
//! Each rule that is left out is found: the controls below for the rules of the callers, rows `collect-*` of
//! `mutations.toml` for those of the code.

use super::world::{Without, World};

/// So long that what was written is folded and replaced, and gets old.
const STEPS: usize = 300;

/// Histories of so many steps. Gives the first that loses something, and how many blocks were removed.
fn explore(histories: u64, steps: usize, without: Without) -> Result<u64, String> {
    let mut removed = 0;
    for seed in 0..histories {
        let mut world = World::new(seed, without);
        let mut told = Vec::new();
        for _ in 0..steps {
            let before = world.blocks();
            let what = world.step();
            if !what.is_empty() {
                told.push(what);
            }
            if what == "condemned blocks go" {
                let after = world.blocks();
                removed += (before - after) as u64;
            }
            world
                .check()
                .map_err(|why| format!("{why}, seed {seed}, after {told:?}"))?;
        }
    }
    Ok(removed)
}

fn histories() -> u64 {
    match std::env::var_os("BULLA_LONG") {
        Some(_) => 5_000,
        None => 500,
    }
}

#[test]
fn no_history_loses_what_a_position_of_the_window_a_pin_or_a_session_needs() {
    let removed = explore(histories(), STEPS, Without::Nothing);
    let removed = removed.unwrap_or_else(|why| panic!("{why}"));
    println!("{removed} blocks removed");
    assert!(removed > 1000, "only {removed} blocks were removed");
}

#[test]
fn every_rule_of_the_callers_that_is_left_out_is_found() {
    for without in [
        Without::Condemning,
        Without::LookingAgain,
        Without::Renewal,
        Without::Staleness,
        Without::SegmentsFirst,
        Without::Journal,
        Without::Forgetting,
        Without::Pins,
        Without::KnownWindow,
        Without::Window,
    ] {
        let why = explore(10_000, STEPS, without).expect_err("the rule is needed");
        println!("{without:?}: {why}");
    }
}
