//! The shape of map trees and the cost of one edit, for ordinary keys and for keys ground against the
//! boundary hash: the table of docs/decisions/0004.
//! `cargo bench -p bulla-bench --features micro --bench shapes`.

#![allow(clippy::expect_used, missing_docs)] // A benchmark may stop at the first surprise.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use trust::map::{Builder, MAX_NODE_BYTES, MapRoot, Nodes, Salt, TARGET_NODE_BYTES, edit};
use trust::{Block, Handle, Hasher, MapNode, Reject};

const ENTRIES: usize = 100_000;
const EDITS: usize = 200;
const VALUE: [u8; 60] = [7; 60];

#[derive(Default)]
struct Blocks {
    map: HashMap<Handle<MapNode>, Bytes>,
    loads: Cell<usize>,
}

fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

impl Nodes for Blocks {
    type Error = Reject;

    fn node(&self, handle: &Handle<MapNode>) -> Result<Block<MapNode>, Reject> {
        self.loads.set(self.loads.get() + 1);
        let bytes = self.map.get(handle).ok_or(Reject::WrongBlock)?;
        hasher().check(handle, bytes.clone())
    }
}

fn build(keys: &[Vec<u8>], salt: Salt) -> (MapRoot, Blocks) {
    let mut blocks = Blocks::default();
    let sink = |handle, bytes: &Bytes| {
        blocks.map.insert(handle, bytes.clone());
    };
    let mut builder = Builder::new(&hasher(), salt, sink);
    for key in keys {
        builder.push(key, &VALUE).expect("sorted");
    }
    let root = builder.finish().expect("small").expect("not empty");
    (root, blocks)
}

fn report(name: &str, keys: &[Vec<u8>], salt: Salt) {
    let started = Instant::now();
    let (root, blocks) = build(keys, salt);
    let rate = keys.len() as f64 / started.elapsed().as_secs_f64() / 1e6;
    let mut sizes: Vec<usize> = blocks
        .map
        .values()
        .filter(|bytes| bytes.get(1) == Some(&1))
        .map(Bytes::len)
        .collect();
    sizes.sort_unstable();
    let mean = sizes.iter().sum::<usize>() / sizes.len();
    let (mut written, mut most) = (0, 0);
    for i in 0..EDITS {
        let mut key = keys[i * keys.len() / EDITS].clone();
        key.push(b'+');
        let mut fresh = 0;
        let change = [(key, Some(VALUE))];
        edit(&hasher(), Some(&root), change, &blocks, |_, _| fresh += 1).expect("sound");
        written += fresh;
        most = most.max(fresh);
    }
    println!(
        "{name:32} {:6} {:7.1} {:7.1} {:7.1} {:6} {:8.2} {:8.1} {:6} {:8.1}",
        sizes.len(),
        sizes[0] as f64 / 1024.0,
        mean as f64 / 1024.0,
        sizes[sizes.len() - 1] as f64 / 1024.0,
        root.height,
        rate,
        written as f64 / EDITS as f64,
        most,
        blocks.loads.get() as f64 / EDITS as f64,
    );
    assert!(sizes[sizes.len() - 1] <= MAX_NODE_BYTES);
}

/// The boundary hash of leaves without a salt, as an attacker computes it.
fn boundary_hash(key: &[u8]) -> u64 {
    thread_local! {
        static KEY: [u8; 32] = blake3::derive_key("bulla 0 map boundary", &{
            let mut material = [0u8; 17];
            material[16] = 1;
            material
        });
    }
    let hash = KEY.with(|k| blake3::keyed_hash(k, key));
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
}

fn is_candidate(key: &[u8]) -> bool {
    let size = 1 + key.len() + 1 + VALUE.len();
    u128::from(boundary_hash(key)) * (TARGET_NODE_BYTES as u128) < (size as u128) << 64
}

/// Keys in order, the `i`-th with the first suffix that `wanted` takes.
fn ground(count: usize, wanted: impl Fn(usize, &[u8]) -> bool) -> Vec<Vec<u8>> {
    let find = |i: usize| {
        (0u32..)
            .map(|suffix| format!("{i:07}{suffix:07x}").into_bytes())
            .find(|key| wanted(i, key))
    };
    (0..count).filter_map(find).collect()
}

fn main() {
    println!(
        "{:32} {:>6} {:>7} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6} {:>8}",
        "100,000 keys, 76-byte entries",
        "leaves",
        "min KiB",
        "mean",
        "max",
        "height",
        "M/s",
        "written",
        "most",
        "loaded"
    );
    let plain = ground(ENTRIES, |_, _| true);
    report("as they come", &plain, Salt::default());
    let long = ground(1_000_000, |_, _| true);
    report("as they come, a million", &long, Salt::default());
    let none = ground(ENTRIES, |_, key| !is_candidate(key));
    report("ground: no candidate", &none, Salt::default());
    let all = ground(ENTRIES, |_, key| is_candidate(key));
    report("ground: all candidates", &all, Salt::default());
    report("  the same, with a salt", &all, [9; 16]);
    // The hash grows with the key, so that the lowest of a window is always near its beginning.
    // Each key costs the attacker hundreds of hashes here, thousands in a longer list.
    const COUNT: usize = 10_000;
    const STEP: u64 = 32;
    let rising = ground(COUNT, |i, key| {
        let share = u64::MAX / (COUNT as u64 / STEP + 16);
        let low = (i as u64 / STEP + 12) * share;
        (low..low + share).contains(&boundary_hash(key))
    });
    report("ground: 10,000, hashes rise", &rising, Salt::default());
    report("  the same, with a salt", &rising, [9; 16]);
}
