//! Crashes at every write: the map is the one of the root that the superblock names.

use std::collections::HashMap;
use std::io;

use sim::device::{Fault, Lie, Stop};
use sim::random::Random;
use wal::Device;

use super::super::{MapError, Root, Value};
use super::{BLOCKS, CACHE, World, digest};

/// Changes with many early evictions, trims of subtrees that hold durable pages, and new values in their place.
fn work(world: &World, seed: u64) -> HashMap<[u8; 16], Vec<Value>> {
    let mut random = Random::new(seed);
    let mut now = vec![Value::Zero; BLOCKS as usize];
    let mut known = HashMap::from([(Root::ZERO.to_bytes(), now.clone())]);
    let mut map = world.open();
    for round in 0..4 {
        for _ in 0..24 {
            let block = random.below(BLOCKS / 8) * 8;
            let value = digest(random.number());
            map.set(block, value).unwrap();
            now[block as usize] = value;
        }
        if round > 0 {
            let ranges = [0..65_536, 65_536..BLOCKS, 512..10_000, 0..BLOCKS];
            let range = ranges[random.below(4) as usize].clone();
            map.set_range(range.clone(), Value::Zero).unwrap();
            now[range.start as usize..range.end as usize].fill(Value::Zero);
            for _ in 0..20 {
                let block = random.below(BLOCKS);
                map.set(block, digest(block)).unwrap();
                now[block as usize] = digest(block);
            }
        }
        let root = world.commit(&map).unwrap();
        known.insert(root.to_bytes(), now.clone());
        if round == 1 {
            map = world.open();
        }
    }
    known
}

#[test]
fn power_cut_at_any_write_leaves_the_map_of_the_durable_root() {
    for seed in 0..3 {
        let world = World::new(BLOCKS, CACHE);
        world.machine.record();
        let known = work(&world, seed);
        let stops = world.machine.recorded();
        assert!(stops.len() > 60, "{} operations", stops.len());
        for (number, stop) in (0..).zip(&stops) {
            for outcome in stop.outcomes(Stop::Power, usize::MAX, 4, number) {
                let machine = stop.restart(Stop::Power, usize::MAX, &outcome);
                let found = World::on(machine, BLOCKS, CACHE);
                let expected = &known[&found.durable().to_bytes()];
                let values = found.open().get_range(0..BLOCKS);
                assert!(
                    values.is_ok_and(|values| values == *expected),
                    "seed {seed}, operation {number}, outcome {outcome}"
                );
            }
        }
    }
}

#[test]
fn crash_then_more_work_then_crash_keeps_the_durable_root() {
    let world = World::new(BLOCKS, CACHE);
    world.machine.record();
    work(&world, 11);
    for (number, stop) in (0..).zip(world.machine.recorded()).step_by(7) {
        for outcome in stop.outcomes(Stop::Power, usize::MAX, 3, number) {
            let again = World::on(
                stop.restart(Stop::Power, usize::MAX, &outcome),
                BLOCKS,
                CACHE,
            );
            let mut expected = again.values(&again.open());
            let map = again.open();
            // `Watched` refuses what the durable root names.
            for block in (0..BLOCKS).step_by(1111) {
                map.set(block, digest(number)).unwrap();
                expected[block as usize] = digest(number);
            }
            again.commit(&map).unwrap();
            assert_eq!(again.values(&again.open()), expected);
        }
    }
}

#[test]
fn values_below_a_trim_do_not_go_to_durable_pages() {
    for range in [0..BLOCKS, 0..65_536, 256..512] {
        let world = World::new(BLOCKS, CACHE);
        let map = world.open();
        map.set_range(0..BLOCKS, digest(1)).unwrap();
        world.commit(&map).unwrap();
        let map = world.open();
        map.set_range(range.clone(), Value::Zero).unwrap();
        // `Watched` refuses what the durable root names.
        map.set_range(range, digest(2)).unwrap();
        world.commit(&map).unwrap();
    }
}

#[test]
fn failed_write_back_can_be_repeated() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let durable = world.durable();
    for after in 0..3 {
        map.set_range(100..900, digest(after)).unwrap();
        world
            .disk()
            .inject(Fault::once(Lie::WriteFails { written: 3 }).after(after));
        assert!(matches!(
            map.write_back(),
            Err(MapError::Io {
                what: "written",
                ..
            })
        ));
        assert_eq!(
            world.values(&world.open_root(durable)),
            vec![digest(1); BLOCKS as usize]
        );
        assert_eq!(map.get(500).unwrap(), digest(after));
    }
    world.commit(&map).unwrap();
    let mut expected = vec![digest(1); BLOCKS as usize];
    expected[100..900].fill(digest(2));
    assert_eq!(world.values(&world.open()), expected);
}

#[test]
fn failed_read_is_no_integrity_error_and_can_be_repeated() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    for _ in 0..3 {
        // Of the top page there is another copy.
        world.disk().inject(Fault::always(Lie::ReadFails));
        let error = map.get(70).unwrap_err();
        world.disk().heal();
        assert!(
            matches!(error, MapError::Io { what: "read", .. }),
            "{error}"
        );
    }
    assert_eq!(map.get(70).unwrap(), digest(1));
    world.disk().inject(Fault::once(Lie::ReadFails));
    assert!(matches!(
        map.set(30_000, digest(2)),
        Err(MapError::Io { .. })
    ));
    map.set(30_000, digest(2)).unwrap();
}

#[test]
fn second_root_is_refused_before_the_first_is_committed() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set(0, digest(1)).unwrap();
    let root = map.write_back().unwrap();
    // There is a free slot for every page, but nobody would know which of three roots is durable.
    map.set(0, digest(2)).unwrap();
    assert!(matches!(map.write_back(), Err(MapError::Uncommitted)));
    map.committed(root);
    let second = map.write_back().unwrap();
    assert_eq!(world.open_root(second).get(0).unwrap(), digest(2));
    assert_eq!(world.open_root(root).get(0).unwrap(), digest(1));
}

#[test]
fn changes_before_the_root_is_committed_are_kept_in_memory_or_refused() -> io::Result<()> {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map)?;
    map.set_range(0..40 * 256, digest(2)).unwrap();
    let root = map.write_back().unwrap();
    assert_eq!(map.write_back().unwrap(), root, "nothing has changed");
    let refused = (0..40).find_map(|leaf| map.set(leaf * 256, digest(3)).err());
    assert!(
        matches!(refused, Some(MapError::Uncommitted)),
        "{refused:?}"
    );
    assert!(matches!(map.write_back(), Err(MapError::Uncommitted)));
    map.committed(Root::from_bytes([3; 16]));
    assert!(
        matches!(map.write_back(), Err(MapError::Uncommitted)),
        "another root"
    );
    assert_eq!(map.get(0).unwrap(), digest(3));
    assert_eq!(map.get(20 * 256).unwrap(), digest(2));
    world.device.sync()?;
    assert_eq!(
        world.values(&world.open_root(root))[..40 * 256],
        vec![digest(2); 40 * 256]
    );
    *world.device.forbidden.lock().unwrap() = world.named(root).into_iter().collect();
    map.committed(root);
    map.set_range(0..BLOCKS, digest(4)).unwrap();
    let root = map.write_back().unwrap();
    assert_eq!(
        world.values(&world.open_root(root)),
        vec![digest(4); BLOCKS as usize]
    );
    Ok(())
}
