//! The second copies of interior pages, and the scrub that mends them.

use std::ops::Range;
use std::sync::Arc;

use sim::device::{Fault, Lie};

use super::super::layout::PageId;
use super::super::{Map, MapError, PageDefect, Repair, Value};
use super::{BLOCKS, CACHE, World, digest};

const TOP: PageId = PageId { level: 2, index: 0 };
const FIRST: PageId = PageId { level: 1, index: 0 };
const LAST: PageId = PageId { level: 1, index: 1 };
const LEAF: PageId = PageId {
    level: 0,
    index: 100,
};

/// A map with a digest for each block, and every seventh leaf in its second slot.
fn full() -> World {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(0..BLOCKS, digest(1)).unwrap();
    world.commit(&map).unwrap();
    for leaf in (0..BLOCKS / 256).step_by(7) {
        map.set(leaf * 256, digest(2)).unwrap();
    }
    world.commit(&map).unwrap();
    world
}

/// A whole scrub.
fn scrub(map: &Map) -> Vec<PageDefect> {
    let mut found = Vec::new();
    let mut from = Some(0);
    while let Some(leaf) = from {
        from = map
            .check(leaf, &mut || true, &mut |defect| found.push(defect))
            .next;
    }
    found
}

/// What a scrub tells of these copies of a page.
fn told(id: PageId, copies: &[u64], blocks: Range<u64>, repair: Repair) -> Vec<PageDefect> {
    let one = |offset: &u64| PageDefect {
        level: id.level,
        index: id.index,
        offset: *offset,
        blocks: blocks.clone(),
        repair,
    };
    copies.iter().map(one).collect()
}

#[test]
fn flipped_bit_in_one_copy_of_an_interior_page_costs_nothing() {
    let world = full();
    let before = world.values(&world.open());
    for id in [TOP, FIRST, LAST] {
        let copies = world.copies(id);
        assert_eq!(copies.len(), 2);
        for offset in &copies {
            world.damage(*offset);
            assert_eq!(world.values(&world.open()), before, "{id:?} at {offset}");
            world.damage(*offset);
        }
        copies.iter().for_each(|offset| world.damage(*offset));
        let lost = world.open().get_range(0..BLOCKS).unwrap_err();
        assert!(matches!(lost, MapError::Page { level, .. } if level == id.level));
        copies.iter().for_each(|offset| world.damage(*offset));
    }
}

#[test]
fn copy_that_cannot_be_read_costs_nothing_and_the_page_is_not_called_wrong() {
    let world = full();
    let before = world.values(&world.open());
    let copies = world.copies(FIRST);
    let fails = |offset: u64| Fault::always(Lie::ReadFails).at(offset..offset + 4096);
    for (unreadable, wrong) in [(copies[0], copies[1]), (copies[1], copies[0])] {
        let (map, other) = (world.open(), world.open());
        world.disk().inject(fails(unreadable));
        assert_eq!(world.values(&map), before);
        world.damage(wrong);
        let error = other.get(0).unwrap_err();
        assert!(matches!(error, MapError::Io { .. }), "{error}");
        world.disk().heal();
        world.damage(wrong);
    }
}

#[test]
fn scrub_of_a_sound_map_finds_nothing_and_reads_each_page() {
    let world = full();
    let map = world.open();
    let (mut bytes, mut from, mut steps) = (0, Some(0), 0);
    while let Some(leaf) = from {
        let checked = map.check(leaf, &mut || true, &mut |defect| panic!("{defect:?}"));
        assert!(!checked.has_written && !checked.is_superseded);
        (from, bytes, steps) = (checked.next, bytes + checked.bytes, steps + 1);
    }
    // The second step passes the top page again.
    let pages = world.named(world.durable()).len() as u64 + 1;
    assert_eq!(bytes, pages * 4096);
    assert_eq!(steps, 2, "one for each page of level 1");
    // Of a map without pages, and of one page.
    assert_eq!(scrub(&World::new(BLOCKS, CACHE).open()), []);
    let one = World::new(1, CACHE);
    let map = one.open();
    map.set(0, digest(1)).unwrap();
    one.commit(&map).unwrap();
    assert_eq!(scrub(&map), []);
}

#[test]
fn scrub_that_may_not_repair_calls_nothing_wrong() {
    let world = full();
    for id in [TOP, FIRST, LEAF] {
        let map = world.open();
        world.values(&map);
        let wrong = world.copies(id)[0];
        world.damage(wrong);
        let contents = world.disk().contents();
        let mut asked = 0;
        let mut may_not = || {
            asked += 1;
            false
        };
        let checked = map.check(0, &mut may_not, &mut |defect| panic!("{defect:?}"));
        assert!(checked.is_refused && !checked.has_written, "{id:?}");
        assert_eq!(asked, 1);
        assert!(world.disk().contents() == contents);
        world.damage(wrong);
    }
}

#[test]
fn scrub_mends_one_copy_of_an_interior_page_from_the_other() {
    let world = full();
    let before = world.values(&world.open());
    for id in [TOP, FIRST, LAST] {
        let copies = world.copies(id);
        for (wrong, other) in [(copies[0], copies[1]), (copies[1], copies[0])] {
            world.damage(wrong);
            let map = world.open();
            let expected = told(id, &[wrong], world.layout().blocks_of(id), Repair::Mended);
            assert_eq!(scrub(&map), expected);
            assert_eq!(scrub(&map), []);
            // The mended one bears the other's loss.
            world.damage(other);
            assert_eq!(world.values(&world.open()), before, "{id:?}");
            world.damage(other);
        }
    }
}

#[test]
fn scrub_mends_a_page_of_which_no_copy_is_right_from_memory() {
    let world = full();
    let before = world.values(&world.open());
    for id in [TOP, FIRST, LEAF] {
        let map = world.open();
        map.get(LEAF.index * 256).unwrap();
        let copies = world.copies(id);
        copies.iter().for_each(|offset| world.damage(*offset));
        let blocks = world.layout().blocks_of(id);
        assert_eq!(scrub(&map), told(id, &copies, blocks, Repair::Mended));
        assert_eq!(world.values(&world.open()), before, "{id:?}");
    }
}

#[test]
fn scrub_tells_the_blocks_of_a_page_that_nobody_has_and_goes_on() {
    let world = full();
    let last = PageId::leaf(257);
    for id in [LEAF, FIRST] {
        let copies = world.copies(id);
        for offset in copies.iter().copied().chain(world.copies(last)) {
            world.damage(offset);
        }
        let contents = world.disk().contents();
        let layout = world.layout();
        let mut expected = told(id, &copies, layout.blocks_of(id), Repair::Lost);
        let blocks = layout.blocks_of(last);
        expected.extend(told(last, &world.copies(last), blocks, Repair::Lost));
        assert_eq!(scrub(&world.open()), expected);
        assert!(world.disk().contents() == contents, "nothing is made up");
        for offset in copies.into_iter().chain(world.copies(last)) {
            world.damage(offset);
        }
    }
}

#[test]
fn page_that_memory_has_in_a_newer_version_is_replaced_by_the_next_checkpoint() {
    let world = full();
    for id in [LEAF, FIRST, TOP] {
        let map = world.open();
        map.set(LEAF.index * 256 + 9, digest(id.level.into()))
            .unwrap();
        if id != LEAF {
            // The leaf is written early, so that the pages above it differ from the durable ones.
            for leaf in 0..40 {
                map.set(leaf * 256 + 1, digest(9)).unwrap();
            }
        }
        let copies = world.copies(id);
        copies.iter().for_each(|offset| world.damage(*offset));
        let contents = world.disk().contents();
        let blocks = world.layout().blocks_of(id);
        let superseded = told(id, &copies, blocks.clone(), Repair::Superseded);
        // The page above the leaves changes when one of them is written; the top page when that one is.
        let mended = told(id, &copies, blocks, Repair::Mended);
        let found = scrub(&map);
        match id == TOP {
            true => assert_eq!(found, mended),
            false => {
                assert_eq!(found, superseded);
                assert!(world.disk().contents() == contents);
            }
        }
        let after = world.values(&map);
        world.commit(&map).unwrap();
        assert_eq!(scrub(&map), []);
        assert_eq!(world.values(&world.open()), after);
    }
}

/// Between two reads the leaf is written twice, each time with a checkpoint, so that its old slot has another page.
#[test]
fn commits_beside_a_scrub_raise_no_alarm() {
    for checkpoints in 1..4 {
        let world = Arc::new(full());
        let map = Arc::new(world.open());
        let (own, other) = (world.clone(), map.clone());
        let work = Box::new(move || {
            for number in 0..checkpoints {
                for leaf in 0..30 {
                    other.set(leaf * 256, digest(100 + number)).unwrap();
                }
                own.commit(&other).unwrap();
            }
        });
        // The first read is the top page's; the pages below it are read after.
        world.device.beside_read.lock().unwrap().1 = Some(work);
        assert_eq!(scrub(&map), [], "{checkpoints} checkpoints");
        assert_eq!(map.get(29 * 256).unwrap(), digest(99 + checkpoints));
        assert_eq!(scrub(&map), []);
    }
}

#[test]
fn copy_that_cannot_be_written_is_told_and_costs_nothing_more() {
    let world = full();
    let before: Vec<Value> = world.values(&world.open());
    let copies = world.copies(FIRST);
    world.damage(copies[0]);
    let place = copies[0]..copies[0] + 4096;
    for lie in [Lie::WriteFails { written: 0 }, Lie::WriteDropped] {
        world.disk().inject(Fault::always(lie).at(place.clone()));
        let map = world.open();
        let blocks = world.layout().blocks_of(FIRST);
        assert_eq!(
            scrub(&map),
            told(FIRST, &copies[..1], blocks, Repair::Stays)
        );
        assert_eq!(world.values(&map), before);
        world.disk().heal();
        world.device.damaged.lock().unwrap().insert(copies[0]);
    }
}
