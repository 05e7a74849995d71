//! Costs on large devices, counted in pages and bytes of memory.

use super::super::{Root, Value};
use super::{World, digest};

const TIB: u64 = 1 << 28;

#[test]
fn device_of_1_tib_stays_within_its_memory_and_is_trimmed_without_reading_leaves() {
    let cache = 1 << 20;
    let world = World::new(TIB, cache);
    let map = world.open();
    for block in (0..TIB).step_by(65_536) {
        map.set(block + block / 65_536, digest(block)).unwrap();
    }
    world.commit(&map).unwrap();
    // 4096 interior pages above leaves, 16 above them, the top, and the root.
    let interior = (4096 + 16 + 2) * 4400;
    let memory = map.memory_bytes();
    assert!(
        memory > 4096 * 4096 && memory < interior + cache + (cache >> 4),
        "{memory}"
    );
    for block in (0..TIB).step_by(65_536) {
        assert_eq!(map.get(block + block / 65_536).unwrap(), digest(block));
    }
    assert!(map.memory_bytes() <= interior + cache + (cache >> 4));

    let map = world.open();
    let (reads, written) = (world.reads(), world.pages_written());
    map.set_range(0..TIB, Value::Zero).unwrap();
    assert_eq!(world.commit(&map).unwrap(), Root::ZERO);
    assert_eq!(world.reads() - reads, 4096 + 16 + 1, "interior pages only");
    assert_eq!(world.pages_written() - written, 0);
    assert_eq!(map.get(TIB - 1).unwrap(), Value::Zero);
    assert_eq!(world.open().get(0).unwrap(), Value::Zero);
}

#[test]
fn trim_of_zeros_and_equal_values_write_nothing() {
    let world = World::new(TIB, 1 << 20);
    let map = world.open();
    map.set(TIB / 2, digest(1)).unwrap();
    let root = world.commit(&map).unwrap();
    let written = world.pages_written();
    map.set_range(0..TIB / 2, Value::Zero).unwrap();
    map.set_range(TIB / 2 + 1..TIB, Value::Zero).unwrap();
    map.set(TIB / 2, digest(1)).unwrap();
    assert_eq!(map.write_back().unwrap(), root);
    assert_eq!(world.pages_written(), written);
}

#[test]
fn write_back_writes_changed_pages_and_those_above_them_only() {
    let world = World::new(TIB, 1 << 20);
    let map = world.open();
    map.set_range(0..1 << 20, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let written = world.pages_written();
    map.set(0, digest(2)).unwrap();
    map.set(1, digest(2)).unwrap();
    world.commit(&map).unwrap();
    assert_eq!(
        world.pages_written() - written,
        7,
        "a leaf, and two copies of three above it"
    );
}

#[test]
fn cold_read_costs_one_page_when_the_pages_above_are_known() {
    let world = World::new(TIB, 1 << 20);
    let map = world.open();
    map.set_range(0..1 << 18, digest(1)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    map.get(0).unwrap();
    let reads = world.reads();
    map.get(65_535).unwrap();
    map.get_range(65_280..65_536).unwrap();
    assert_eq!(world.reads() - reads, 1);
}
