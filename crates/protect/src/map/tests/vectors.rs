//! The vectors of `docs/formats/protect.md`.

use wal::{Key, VolumeId};

use super::super::layout::{Layout, PageId, Slot};
use super::super::page::{Entry, Mac, Page};
use super::super::value::Fill;
use super::super::{Map, Root};
use super::{CACHE, World, digest};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key 00 01 .. 1f and the volume 20 21 .. 2f.
fn map_key() -> (Key, VolumeId) {
    let key = Key::new(std::array::from_fn(|n| n as u8));
    (key, VolumeId(std::array::from_fn(|n| 0x20 + n as u8)))
}

fn document() -> &'static str {
    include_str!("../../../../../docs/formats/protect.md")
}

fn check(rows: Vec<String>) {
    let missing: Vec<String> = rows
        .into_iter()
        .filter(|row| !document().contains(row))
        .collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn macs_and_entries_are_those_of_the_document() {
    let (key, volume) = map_key();
    let key = key.derive("protect map", volume);
    let mut rows = vec![format!("| key of the map | `{}` |", hex(&*key))];
    let mut leaf = Page::filled(Fill::Zero.encode());
    leaf.cells_mut()[1] = Fill::Unseen.encode();
    leaf.cells_mut()[2] = Fill::Bad.encode();
    leaf.cells_mut()[255] = [0xab; 16];
    let at = |level, index| PageId { level, index };
    let entry = |slot, id, page: &Page| Entry::Page(slot, Mac::new(&key, id, page)).encode();
    let first = entry(Slot::First, at(0, 0), &leaf);
    rows.push(format!("| leaf 0, first slot | `{}` |", hex(&first)));
    let second = entry(Slot::Second, at(0, 0), &leaf);
    rows.push(format!("| leaf 0, second slot | `{}` |", hex(&second)));
    let other = entry(Slot::First, at(0, 258), &leaf);
    rows.push(format!(
        "| the same bytes as leaf 258 | `{}` |",
        hex(&other)
    ));
    let above = entry(Slot::First, at(1, 0), &leaf);
    rows.push(format!(
        "| the same bytes as page 0 of level 1 | `{}` |",
        hex(&above)
    ));
    let mut top = Page::filled(Fill::Zero.encode());
    top.cells_mut()[0] = second;
    top.cells_mut()[1] = Fill::Bad.encode();
    let root = entry(Slot::First, at(1, 0), &top);
    rows.push(format!("| root | `{}` |", hex(&root)));
    check(rows);
}

#[test]
fn places_are_those_of_the_document() {
    let blocks = 70_000;
    let layout = Layout::new(blocks, 0).unwrap();
    assert_eq!(layout.bytes(), 2_293_760);
    let mut rows = vec!["70,000 blocks need 2,293,760 bytes.".to_owned()];
    for (level, index) in [(2, 0), (1, 0), (1, 1), (0, 0), (0, 273)] {
        let places = [Slot::First, Slot::Second].map(|slot| {
            let copies = layout.copies(PageId { level, index }, slot);
            let copies: Vec<String> = copies.map(|offset| offset.to_string()).collect();
            copies.join(" and ")
        });
        let [first, second] = places;
        rows.push(format!(
            "| page {index} of level {level} | {first} | {second} |"
        ));
    }
    check(rows);
    assert_eq!(Map::area_bytes(blocks), Some(layout.bytes()));
    assert_eq!(Map::area_bytes(0), None);
}

#[test]
fn every_entry_is_decoded_to_what_it_was() {
    let mac = |low: u8| {
        let page = Page::filled([low; 16]);
        Mac::new(&[low; 32], PageId::leaf(0), &page)
    };
    for n in 0..64 {
        for entry in [
            Entry::Page(Slot::First, mac(n)),
            Entry::Page(Slot::Second, mac(n)),
        ] {
            assert_eq!(Entry::decode(entry.encode()), entry);
        }
    }
    for fill in [Fill::Zero, Fill::Unseen, Fill::Bad] {
        assert_eq!(
            Entry::decode(Entry::Filled(fill).encode()),
            Entry::Filled(fill)
        );
    }
    // Numbers that mean nothing are Bad, also with the slot's bit.
    for number in [3, u128::from(u64::MAX), 1 << 127, 1 << 127 | 1] {
        assert_eq!(
            Entry::decode(u128::to_be_bytes(number)),
            Entry::Filled(Fill::Bad)
        );
    }
}

/// The first root of a map whose only block has a digest: a change of the format is seen here.
#[test]
fn root_of_one_block_stays_the_same() {
    let world = World::new(1, CACHE);
    let map = world.open();
    map.set(0, digest(1)).unwrap();
    let root = map.write_back().unwrap();
    assert_ne!(root, Root::ZERO);
    let page = {
        let mut page = Page::filled(Fill::Zero.encode());
        page.cells_mut()[0] = super::Value::encode(digest(1)).unwrap();
        page
    };
    let key = super::key().derive("protect map", super::VOLUME);
    let mut keyed = blake3::Hasher::new_keyed(&key);
    keyed.update(page.as_bytes()).update(&[0; 9]);
    let mut expected = [0; 16];
    expected.copy_from_slice(&keyed.finalize().as_bytes()[..16]);
    expected[0] &= 0x7f;
    assert_eq!(root.to_bytes(), expected);
}
