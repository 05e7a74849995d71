//! Readers beside the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::device::{Fault, Lie};

use super::super::layout::PageId;
use super::super::tree::Found;
use super::super::{Map, Value};
use super::{BLOCKS, CACHE, World, digest};

/// The value of a block in a round. Its number says which round it was.
fn value(block: u64, round: u64) -> Value {
    digest(round << 32 | block)
}

fn round(block: u64, value: Value) -> u64 {
    let Value::Digest(digest) = value else {
        panic!("block {block}: {value:?}");
    };
    let number = u64::from_le_bytes(digest.0[8..].try_into().unwrap());
    assert_eq!(number & 0xffff_ffff, block, "a value of another block");
    number >> 32
}

#[test]
fn readers_beside_the_writer_see_each_block_go_forward_and_raise_no_alarm() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    // 64 leaves: four times the cache, so that leaves are written early and read again all the time.
    let blocks: Vec<u64> = (0..64).map(|n| n * 256 + n).collect();
    for block in &blocks {
        map.set(*block, value(*block, 0)).unwrap();
    }
    world.commit(&map).unwrap();
    let end = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (map, blocks, end, reads) = (&map, &blocks, &end, &reads);
            scope.spawn(move || {
                let mut seen = vec![0; blocks.len()];
                for n in (thread * 17..).step_by(7) {
                    let n = n % blocks.len();
                    let round = round(blocks[n], map.get(blocks[n]).unwrap());
                    assert!(round >= seen[n], "block {} went back", blocks[n]);
                    seen[n] = round;
                    reads.fetch_add(1, Ordering::Relaxed);
                    if end.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let start = Instant::now();
        for round in 1.. {
            for block in &blocks {
                map.set(*block, value(*block, round)).unwrap();
            }
            if round % 3 == 0 {
                world.commit(&map).unwrap();
            }
            let enough = round >= 30 && reads.load(Ordering::Relaxed) > 1000;
            if enough || start.elapsed() > Duration::from_secs(20) {
                break;
            }
        }
        end.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 1000);
}

/// A map whose leaf 3 has been written early, to a slot that no durable root names, and is not in memory.
fn leaf_in_a_free_slot() -> (World, Arc<Map>) {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    for leaf in [3, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31] {
        map.set(leaf * 256, digest(1)).unwrap();
    }
    for leaf in 20..60 {
        map.set(leaf * 256, digest(2)).unwrap();
        map.get(leaf * 256).unwrap();
    }
    (world, Arc::new(map))
}

/// Replaces leaf 3 and writes it to the device.
fn replace_leaf(map: &Arc<Map>) -> Box<dyn FnOnce() + Send> {
    let map = map.clone();
    Box::new(move || {
        map.set_range(3 * 256..4 * 256, digest(9)).unwrap();
        for leaf in 60..120 {
            map.set(leaf * 256, digest(2)).unwrap();
            map.get(leaf * 256).unwrap();
        }
    })
}

#[test]
fn leaf_that_is_replaced_before_it_is_read_raises_no_alarm() {
    let (world, map) = leaf_in_a_free_slot();
    let reads = world.reads();
    world.device.beside_read.lock().unwrap().0 = Some(replace_leaf(&map));
    assert_eq!(map.get(3 * 256).unwrap(), digest(9));
    assert_eq!(world.reads() - reads, 2, "the replaced leaf was read twice");
}

#[test]
fn leaf_that_is_replaced_after_it_was_read_is_not_kept() {
    let (world, map) = leaf_in_a_free_slot();
    world.device.beside_read.lock().unwrap().1 = Some(replace_leaf(&map));
    assert_eq!(map.get(3 * 256).unwrap(), digest(9));
    assert_eq!(map.get(3 * 256).unwrap(), digest(9));
}

#[test]
fn many_readers_of_one_cold_leaf_cause_one_read() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    map.get(0).unwrap();
    let reads = world.reads();
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (map, barrier) = (&map, &barrier);
            scope.spawn(move || {
                barrier.wait();
                assert_eq!(map.get(256 * 9 + n).unwrap(), digest(1));
            });
        }
    });
    assert_eq!(world.reads() - reads, 1);
}

#[test]
fn waiting_readers_of_a_leaf_that_cannot_be_read_all_get_the_error() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    world.disk().inject(Fault::always(Lie::ReadFails));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let map = &map;
            scope.spawn(move || assert!(map.get(256 * 9 + n).is_err()));
        }
    });
    world.disk().heal();
    map.get(256 * 9).unwrap();
}

/// Two threads miss the same page. The second one begins when the first one has read it.
#[test]
fn page_that_another_thread_has_read_is_not_read_again() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set(5, value(5, 1)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    let Found::Missing(page) = map.tree().find(PageId::leaf(0)) else {
        panic!("a page of a map that was just opened is in memory");
    };
    assert!(map.fetch(page).unwrap().is_some());
    let reads = world.reads();
    assert!(map.fetch(page).unwrap().is_none());
    assert_eq!(world.reads(), reads);
}
