//! Costs of `trust` per block and per entry: hashing, building and searching the map tree,
//! packing frames. `cargo bench -p bulla-bench --features micro --bench trees`.

#![allow(clippy::expect_used, missing_docs)] // A benchmark may stop at the first surprise.

use std::collections::HashMap;
use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use trust::frame::Packer;
use trust::map::{self, Find, MapRoot, Node, Salt};
use trust::{Data, Frame, Handle, Hasher, Kind, MapNode, array};

fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

fn hash(c: &mut Criterion) {
    let hasher = hasher();
    let mut group = c.benchmark_group("hash");
    for size in [256, 8 << 10, 64 << 10, 1 << 20] {
        let block = vec![7u8; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(size.to_string(), |b| {
            b.iter(|| hasher.handle::<Data>(black_box(&block)));
        });
    }
}

fn entries(count: u32) -> Vec<(Vec<u8>, [u8; 60])> {
    let name = |i: u32| format!("{:08x}-name", i.wrapping_mul(2_654_435_761)).into_bytes();
    let mut list: Vec<_> = (0..count).map(|i| (name(i), [i as u8; 60])).collect();
    list.sort();
    list
}

fn build(list: &[(Vec<u8>, [u8; 60])]) -> (MapRoot, HashMap<Handle<MapNode>, Bytes>) {
    let mut blocks = HashMap::new();
    let sink = |handle, bytes: &Bytes| {
        blocks.insert(handle, bytes.clone());
    };
    let mut builder = map::Builder::new(&hasher(), Salt::default(), sink);
    for (key, value) in list {
        builder.push(key, value).expect("sorted");
    }
    let root = builder.finish().expect("small").expect("not empty");
    (root, blocks)
}

fn map_tree(c: &mut Criterion) {
    let list = entries(100_000);
    let mut group = c.benchmark_group("map");
    group.throughput(Throughput::Elements(list.len() as u64));
    group.sample_size(20);
    group.bench_function("build 100k", |b| b.iter(|| build(black_box(&list))));
    group.throughput(Throughput::Elements(1));
    let few = &list[..20];
    group.bench_function("build a directory of 20", |b| {
        b.iter(|| build(black_box(few)))
    });

    let (root, blocks) = build(&list);
    let hasher = hasher();
    let open = |handle: &Handle<MapNode>| {
        let block = hasher.check(handle, blocks[handle].clone()).expect("ours");
        Node::decode(&block).expect("ours")
    };
    group.bench_function("open a leaf", |b| {
        let leaf = blocks.iter().max_by_key(|(_, bytes)| bytes.len());
        let (handle, _) = leaf.expect("not empty");
        b.iter(|| open(black_box(handle)));
    });
    let nodes: HashMap<_, _> = blocks.keys().map(|h| (*h, open(h))).collect();
    group.bench_function("find, nodes decoded", |b| {
        let mut at = 0;
        b.iter(|| {
            at = (at + 7919) % list.len();
            let mut child = root.child_ref();
            loop {
                let node = &nodes[&child.handle];
                node.check(&child).expect("ours");
                match node.find(&list[at].0, &child.interval) {
                    Find::Child(next) => child = next,
                    found => break found,
                }
            }
        });
    });
}

fn array_tree(c: &mut Criterion) {
    let handle = hasher().handle::<Data>(b"x");
    let mut group = c.benchmark_group("array");
    group.throughput(Throughput::Elements(65_536));
    group.bench_function("build 65,536 extents", |b| {
        b.iter(|| {
            let mut builder = array::Builder::new(&hasher(), |_, _: &Bytes| {});
            for _ in 0..65_536 {
                let extent = array::Extent::Data {
                    handle,
                    len: 65_536,
                };
                builder.push(extent).expect("short");
            }
            builder.finish()
        });
    });
}

fn frame(c: &mut Criterion) {
    let text: Vec<u8> = (0..64u32 << 10)
        .map(|i| b"the quick brown fox jumps\n"[((i * i / 7) % 26) as usize])
        .collect();
    let mut group = c.benchmark_group("frame, 64 KiB");
    group.throughput(Throughput::Bytes(text.len() as u64));
    let mut packer = Packer::new();
    group.bench_function("pack", |b| {
        b.iter(|| packer.pack(Kind::Data, black_box(&text)));
    });
    let frame = packer.pack(Kind::Data, &text).expect("small");
    group.bench_function("parse and unpack", |b| {
        b.iter_batched(
            || frame.as_bytes().clone(),
            |bytes| Frame::parse(bytes).and_then(|f| f.plaintext::<Data>()),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, hash, map_tree, array_tree, frame);
criterion_main!(benches);
