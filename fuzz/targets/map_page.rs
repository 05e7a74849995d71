//! Arbitrary bytes as the top page of a map, under their own MAC; the next bytes change the map. Nothing panics,
//! values that were set are read again, and nothing else than what the page names is read.
#![no_main]

use std::io;
use std::sync::{Arc, Mutex};

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use protect::map::{Map, MapError, Root, Value};
use wal::{Device, Digest, Key, VolumeId};

/// Levels 0, 1 and 2, the last leaf short.
const BLOCKS: u64 = 2 * 65_536 + 300;
const PAGE: usize = 4096;

struct Memory(Mutex<Vec<u8>>);

impl Device for Memory {
    fn bytes(&self) -> u64 {
        self.0.lock().expect("no panic before").len() as u64
    }

    fn align(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let memory = self.0.lock().expect("no panic before");
        let from = memory.get(offset as usize..offset as usize + into.len());
        into.copy_from_slice(from.expect("a range inside the device"));
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut memory = self.0.lock().expect("no panic before");
        let into = memory.get_mut(offset as usize..offset as usize + from.len());
        into.expect("a range inside the device")
            .copy_from_slice(from);
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a map writes whole pages")
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut some = vec![0; PAGE + 64];
    for (n, byte) in some.iter_mut().enumerate() {
        *byte = match n / 16 % 5 {
            0 => 0,
            1 => u8::from(n % 16 == 15),
            _ => (n * 31) as u8,
        };
    }
    vec![vec![0; PAGE + 8], some]
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Some((page, changes)) = data.split_at_checked(PAGE) else {
        return;
    };
    let (key, volume) = (Key::new([1; 32]), VolumeId([2; 16]));
    let mut hasher = blake3::Hasher::new_keyed(&key.derive("protect map", volume));
    let place = [2, 0, 0, 0, 0, 0, 0, 0, 0];
    let mac = hasher.update(page).update(&place).finalize();
    let mut root = [0; 16];
    root.copy_from_slice(&mac.as_bytes()[..16]);
    root[0] &= 0x7f;

    let area = 0..Map::area_bytes(BLOCKS).expect("a number of blocks");
    let mut memory = vec![0; area.end as usize];
    memory[..PAGE].copy_from_slice(page);
    let device: Arc<dyn Device> = Arc::new(Memory(Mutex::new(memory)));
    let open = |root| Map::open(device.clone(), area.clone(), &key, volume, BLOCKS, root, 0);
    let map = open(Root::from_bytes(root)).expect("a map");
    let readable = |block: u64| match map.get(block) {
        Ok(value) => value != Value::Zero || page[block as usize / 65_536 * 16..][..16] == [0; 16],
        Err(MapError::Page { level, blocks, .. }) => level == 1 && blocks.contains(&block),
        Err(error) => panic!("block {block}: {error}"),
    };
    assert!([0, 65_535, 65_536, BLOCKS - 1].into_iter().all(readable));

    let mut last = None;
    for change in changes.chunks_exact(8).take(64) {
        let number = |n: usize| u64::from(change[n]) << 16 | u64::from(change[n + 1]) << 8 | 0x7f;
        let range = number(0) % BLOCKS..(number(0) + number(3)).clamp(1, BLOCKS);
        let value = match change[6] % 4 {
            0 => Value::Zero,
            1 => Value::Unseen,
            2 => Value::Bad,
            _ => Value::Digest(Digest([change[7] | 1; 16])),
        };
        if range.is_empty() || map.set_range(range.clone(), value).is_err() {
            last = None;
            continue;
        }
        last = Some((range, value));
    }
    let root = map.write_back().expect("a device that works");
    let again = open(root).expect("a map");
    if let Some((range, value)) = last {
        for block in [range.start, range.end - 1] {
            assert_eq!(map.get(block).expect("a block that was set"), value);
            assert_eq!(again.get(block).expect("a block that was set"), value);
        }
    }
});
