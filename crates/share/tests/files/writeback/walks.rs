//! Random walks. The seed of a walk that fails is in its message; `BULLA_WALK=SEED` takes it again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use share::files::Answer;
use trust_shared::principal::FileId;

use super::layer::bytes_of;
use super::program::program;
use super::truth::Tally;
use super::world::{Weather, World};

/// Two devices with two programs each, or three with one.
fn walk(seed: u64, weather: Weather) -> Tally {
    let devices = 2 + (seed % 2) as usize;
    let world = World::new(devices, seed, weather);
    let name = format!("file {}", world.number());
    world.begin(0, {
        let (world, name) = (world.clone(), name.clone());
        async move {
            let made = world.create(0, &name).await.unwrap();
            made.close().await.unwrap();
        }
    });
    let calm = std::mem::take(&mut world.state().weather);
    while world.step() {}
    world.state().weather = calm;
    world.state().net.refuses = calm.refusals;
    let programs = if devices == 2 { 2 } else { 1 };
    for at in 0..devices {
        for _ in 0..programs {
            world.begin(at, program(world.clone(), at, name.clone(), 2));
        }
    }
    for _ in 0..3000 {
        if !world.step() {
            break;
        }
    }
    world.heal();
    ends_well(&world)
}

/// The files by name, and the conflict copies.
fn ends_well(world: &World) -> Tally {
    let mut state = world.state();
    for layer in &state.layers {
        assert_eq!(layer.dirty, 0, "something is local at the end");
    }
    let names = state.net.names(0, "");
    let mut files: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
    let mut copies = Vec::new();
    for name in names {
        let lookup = state.net.lookup(&name, false);
        let Answer::Found(found) = state.net.call(0, lookup) else {
            panic!("{name} is gone");
        };
        let bytes = bytes_of(&state.net, &found.inode.content);
        match name.contains("(conflict") {
            true => copies.push(bytes),
            false => drop(files.insert(found.id, bytes)),
        }
    }
    state.truth.ended(&files, &copies);
    let refused = state.layers.iter().map(|layer| layer.refused).sum();
    let unstored = state.net.unstored as usize;
    (state.truth.tally.refused, state.truth.tally.unstored) = (refused, unstored);
    state.truth.tally
}

fn walks(seeds: std::ops::Range<u64>, weather: Weather) -> Tally {
    let mut tally = Tally::default();
    if let Ok(seed) = std::env::var("BULLA_WALK") {
        walk(seed.parse().unwrap(), weather);
    }
    let times = if std::env::var_os("BULLA_LONG").is_some() {
        50
    } else {
        1
    };
    for seed in seeds.start..seeds.start + times * (seeds.end - seeds.start) {
        let walked = catch_unwind(AssertUnwindSafe(|| walk(seed, weather)));
        match walked {
            Ok(walked) => tally.add(&walked),
            Err(_) => panic!("walk {seed} failed"),
        }
    }
    println!("{tally:?}");
    tally
}

#[test]
fn calm_walks_end_well() {
    let tally = walks(0..300, Weather::default());
    assert!(
        tally.kept > 500 && tally.reads > 500 && tally.stale > 10,
        "{tally:?}"
    );
    assert_eq!((tally.lost, tally.killed, tally.copies), (0, 0, 0));
}

#[test]
fn walks_with_outages_and_deadlines_end_well() {
    let weather = Weather {
        outages: 60,
        failures: 10,
        deadlines: 100,
        cuts: 60,
        ..Weather::default()
    };
    let tally = walks(1_000_000..1_000_900, weather);
    assert!(
        tally.kept > 500 && tally.lost > 100 && tally.copies > 20,
        "{tally:?}"
    );
}

#[test]
fn walks_with_kills_end_well() {
    let weather = Weather {
        outages: 20,
        deadlines: 30,
        cuts: 60,
        kills: 20,
        restarts: 30,
        ..Weather::default()
    };
    let tally = walks(2_000_000..2_000_800, weather);
    assert!(tally.kept > 500 && tally.killed > 100, "{tally:?}");
}

/// Blocks travel with the entries that name them, and the server refuses some of them.
#[test]
fn walks_with_refused_blocks_end_well() {
    let weather = Weather {
        failures: 10,
        cuts: 60,
        kills: 10,
        restarts: 30,
        refusals: 150,
        ..Weather::default()
    };
    let tally = walks(3_000_000..3_000_300, weather);
    assert!(
        tally.kept > 250 && tally.refused > 20 && tally.unstored > 50,
        "{tally:?}"
    );
}
