//! Random walks. The seed of a walk that fails is in its message; `BULLA_WALK=SEED` takes it again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use share::files::Answer;
use trust_shared::principal::FileId;

use super::layer::bytes_of;
use super::program::program;
use super::world::{Weather, World};

/// Two devices with two programs each, or three with one.
fn walk(seed: u64, weather: Weather) {
    let devices = 2 + (seed % 2) as usize;
    let world = World::new(devices, seed, weather);
    walk_in(&world, devices);
}

fn walk_in(world: &World, devices: usize) {
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
    ends_well(world);
}

/// The files by name, and the conflict copies.
fn ends_well(world: &World) {
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
        let bytes = bytes_of(&found.inode.content).to_vec();
        match name.contains("(conflict") {
            true => copies.push(bytes),
            false => drop(files.insert(found.id, bytes)),
        }
    }
    state.truth.ended(&files, &copies);
}

fn walks(seeds: std::ops::Range<u64>, weather: Weather) {
    if let Ok(seed) = std::env::var("BULLA_WALK") {
        return walk(seed.parse().unwrap(), weather);
    }
    for seed in seeds {
        let walked = catch_unwind(AssertUnwindSafe(|| walk(seed, weather)));
        assert!(walked.is_ok(), "walk {seed} failed");
    }
}

#[test]
fn calm_walks_end_well() {
    walks(0..600, Weather::default());
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
    walks(1000..1700, weather);
}

#[test]
fn walks_with_kills_end_well() {
    let weather = Weather {
        outages: 20,
        deadlines: 30,
        cuts: 60,
        kills: 60,
        restarts: 40,
        ..Weather::default()
    };
    walks(3000..3700, weather);
}
