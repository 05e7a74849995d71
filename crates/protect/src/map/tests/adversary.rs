//! A device that changes pages: the error names the page, other pages can be read, and nothing bad becomes good.

use sim::device::{Fault, Lie};
use wal::Key;

use super::super::layout::{PageId, Slot};
use super::super::{Map, MapError, Root, Value};
use super::{BLOCKS, CACHE, VOLUME, World, digest, key};

/// A map with a digest for each block, and some leaves in second slots.
fn full() -> World {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    for leaf in 0..BLOCKS.div_ceil(256) {
        let range = leaf * 256..BLOCKS.min((leaf + 1) * 256);
        map.set_range(range, digest(leaf)).unwrap();
    }
    world.commit(&map).unwrap();
    for leaf in (0..BLOCKS.div_ceil(256)).step_by(50) {
        map.set(leaf * 256, digest(leaf + 1000)).unwrap();
    }
    world.commit(&map).unwrap();
    world
}

fn place(world: &World, id: PageId) -> (Slot, u64) {
    let pages = world.pages(world.durable());
    let page = pages.into_iter().find(|page| page.0 == id).unwrap();
    (page.1, page.2)
}

/// Flips a bit of a page in all its copies.
fn flip(world: &World, id: PageId, bit: u64) {
    for offset in world.copies(id) {
        world.disk().flip(offset * 8 + bit);
    }
}

/// Blocks below the page cannot be read, and the error names it; all others are as before.
fn check_lost(world: &World, id: PageId, before: &[Value]) {
    let map = world.open();
    let (_, place) = place(world, id);
    let lost = world.layout().blocks_of(id);
    for block in (0..BLOCKS).step_by(37) {
        let got = map.get(block);
        if !lost.contains(&block) {
            assert_eq!(got.unwrap(), before[block as usize], "block {block}");
            continue;
        }
        let Err(MapError::Page {
            level,
            index,
            offset,
            blocks,
        }) = got
        else {
            panic!("block {block}: {got:?}");
        };
        assert_eq!((level, index, offset), (id.level, id.index, place));
        assert_eq!(blocks, lost);
    }
}

const LEAF: PageId = PageId {
    level: 0,
    index: 100,
};
const INTERIOR: PageId = PageId { level: 1, index: 0 };
const LAST: PageId = PageId { level: 1, index: 1 };
const TOP: PageId = PageId { level: 2, index: 0 };

#[test]
fn flipped_bit_is_found_in_every_page() {
    let world = full();
    let before = world.values(&world.open());
    for (number, id) in (0..).zip([LEAF, INTERIOR, LAST, TOP, PageId::leaf(257)]) {
        let bit = (number * 7919) % (4096 * 8);
        flip(&world, id, bit);
        check_lost(&world, id, &before);
        flip(&world, id, bit);
    }
    assert_eq!(world.values(&world.open()), before);
}

#[test]
fn every_bit_of_a_page_counts() {
    let world = full();
    let (_, offset) = place(&world, LEAF);
    let map = world.open();
    map.get(0).unwrap();
    for bit in (0..4096 * 8).step_by(61).chain([4096 * 8 - 1]) {
        world.disk().flip(offset * 8 + bit);
        assert!(map.get(LEAF.index * 256).is_err(), "bit {bit}");
        world.disk().flip(offset * 8 + bit);
    }
    map.get(LEAF.index * 256).unwrap();
}

#[test]
fn old_content_of_a_slot_is_found() {
    let world = full();
    let before = world.values(&world.open());
    for id in [LEAF, INTERIOR, TOP] {
        let world = World::on(world.machine.fork(), BLOCKS, CACHE);
        let (_, offset) = place(&world, id);
        let copies = world.copies(id);
        let map = world.open();
        let instant = world.machine.operations();
        for number in [1, 2] {
            map.set(LEAF.index * 256 + 3, digest(number)).unwrap();
            world.commit(&map).unwrap();
        }
        assert_eq!(place(&world, id).1, offset, "two commits return to a slot");
        for copy in copies {
            world.disk().put_back(copy..copy + 4096, instant);
        }
        let mut now = before.clone();
        now[LEAF.index as usize * 256 + 3] = digest(2);
        check_lost(&world, id, &now);
    }
}

#[test]
fn other_slot_of_a_page_is_not_taken() {
    let world = full();
    let before = world.values(&world.open());
    // Leaf 50 has an older version in its other slot.
    let id = PageId::leaf(50);
    let (slot, offset) = place(&world, id);
    let other = world.layout().offset(id, slot.other());
    world.disk().transplant(other, offset, 4096);
    check_lost(&world, id, &before);
}

#[test]
fn page_from_elsewhere_is_found() {
    let world = full();
    let before = world.values(&world.open());
    for (from, to) in [
        (PageId::leaf(101), LEAF),
        (LAST, INTERIOR),
        (TOP, LEAF),
        (LEAF, TOP),
    ] {
        let world = World::on(world.machine.fork(), BLOCKS, CACHE);
        let (_, source) = place(&world, from);
        for copy in world.copies(to) {
            world.disk().transplant(source, copy, 4096);
        }
        if to == TOP {
            assert!(world.open().get(0).is_err());
            continue;
        }
        check_lost(&world, to, &before);
    }
}

/// Two leaves with the same bytes are still different pages, and so are a leaf and an interior page.
#[test]
fn leaf_of_another_index_with_the_same_bytes_has_another_mac() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..512, digest(1)).unwrap();
    let root = world.commit(&map).unwrap();
    let (slot, offset) = place(&world, INTERIOR);
    assert_eq!(slot, Slot::First);
    let mut bytes = vec![0; 4096];
    wal::Device::read(world.disk(), offset, &mut bytes).unwrap();
    assert_ne!(bytes[..16], bytes[16..32], "entries of leaf 0 and leaf 1");
    assert_ne!(root.to_bytes()[..], bytes[..16]);
}

#[test]
fn area_that_was_put_back_is_found() {
    let world = full();
    let old = world.machine.operations();
    let map = world.open();
    for leaf in 0..200 {
        map.set(leaf * 256, digest(leaf)).unwrap();
    }
    world.commit(&map).unwrap();
    map.set(0, digest(77)).unwrap();
    world.commit(&map).unwrap();
    world.disk().put_back_all(old);
    let error = world.open().get(0).unwrap_err();
    assert!(
        matches!(
            error,
            MapError::Page {
                level: 2,
                index: 0,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn other_key_volume_or_root_reads_nothing() {
    let world = full();
    let open = |key: Key, volume, root| {
        let area = 8192..wal::Device::bytes(&*world.device);
        let device = world.device.clone();
        Map::open(device, area, &key, volume, BLOCKS, root, CACHE).unwrap()
    };
    let root = world.durable();
    open(key(), VOLUME, root).get(0).unwrap();
    assert!(open(Key::new([8; 32]), VOLUME, root).get(0).is_err());
    assert!(open(key(), wal::VolumeId([1; 16]), root).get(0).is_err());
    let mut bytes = root.to_bytes();
    bytes[15] ^= 1;
    assert!(open(key(), VOLUME, Root::from_bytes(bytes)).get(0).is_err());
}

#[test]
fn bad_leaf_is_not_laundered_by_writes() {
    let world = full();
    let before = world.values(&world.open());
    world.disk().flip(place(&world, LEAF).1 * 8);
    let map = world.open();
    let blocks = world.layout().blocks_of(LEAF);
    for range in [
        blocks.start..blocks.start + 1,
        blocks.start..blocks.end - 1,
        0..blocks.end - 1,
    ] {
        for value in [digest(4), Value::Zero] {
            let set = map.set_range(range.clone(), value);
            assert!(
                matches!(
                    set,
                    Err(MapError::Page {
                        level: 0,
                        index: 100,
                        ..
                    })
                ),
                "{set:?}"
            );
        }
    }
    map.set(5, before[5]).unwrap();
    world.commit(&map).unwrap();
    assert!(map.get(blocks.start).is_err() && map.get(blocks.end - 1).is_err());
    let map = world.open();
    assert!(map.get(blocks.start).is_err());
    map.set_range(blocks.clone(), digest(8)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    assert_eq!(map.get_range(blocks).unwrap(), vec![digest(8); 256]);
    assert_eq!(map.get(60_000).unwrap(), before[60_000]);
}

#[test]
fn bad_interior_page_is_replaced_only_as_a_whole() {
    let world = full();
    let before = world.values(&world.open());
    flip(&world, INTERIOR, 9);
    let map = world.open();
    for range in [0..1, 0..65_535, 1..BLOCKS, 256..512] {
        let set = map.set_range(range.clone(), Value::Zero);
        assert!(
            matches!(
                set,
                Err(MapError::Page {
                    level: 1,
                    index: 0,
                    ..
                })
            ),
            "{range:?}"
        );
    }
    // `1..BLOCKS` may have set a part before or after the bad page; the rest of the device is as it was.
    map.set(BLOCKS - 1, before[BLOCKS as usize - 1]).unwrap();
    world.commit(&map).unwrap();
    assert!(world.open().get(70).is_err());
    map.set_range(0..65_536, Value::Bad).unwrap();
    map.set(70, digest(9)).unwrap();
    world.commit(&map).unwrap();
    let map = world.open();
    assert_eq!(map.get(69).unwrap(), Value::Bad);
    assert_eq!(map.get(70).unwrap(), digest(9));
    assert_eq!(map.get(BLOCKS - 1).unwrap(), before[BLOCKS as usize - 1]);
}

#[test]
fn lost_write_of_a_page_is_found() {
    let world = full();
    let map = world.open();
    map.set(LEAF.index * 256, digest(1)).unwrap();
    let (slot, _) = place(&world, LEAF);
    let target = world.layout().offset(LEAF, slot.other());
    let dropped = Fault::once(Lie::WriteDropped).at(target..target + 4096);
    world.disk().inject(dropped);
    world.commit(&map).unwrap();
    assert_eq!(
        map.get(LEAF.index * 256).unwrap(),
        digest(1),
        "still in memory"
    );
    let error = world.open().get(LEAF.index * 256).unwrap_err();
    assert!(
        matches!(
            error,
            MapError::Page {
                level: 0,
                index: 100,
                ..
            }
        ),
        "{error}"
    );
}
