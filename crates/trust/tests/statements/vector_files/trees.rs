//! Records and nodes of both trees that are refused.

use bytes::Bytes;
use trust::array;
use trust::encode::Encoder;
use trust::handle::{ArrayNode, BlockKind, Data, Hasher, Kind, MapNode};
use trust::map::{self, ChildRef, Interval};
use trust::{Handle, Record, Reject};

use super::lines::hex;
use super::lines::{Lines, patch};

/// The iv under which the vectors of docs/formats/blocks.md stand.
pub const IV: [u8; 32] = {
    let mut iv = [0; 32];
    let mut at = 0;
    while at < 32 {
        iv[at] = at as u8;
        at += 1;
    }
    iv
};

pub fn add(lines: &mut Lines) {
    records(lines);
    array_nodes(lines);
    map_nodes(lines);
}

/// The plaintext of a wanted data block.
fn take(bytes: &[u8]) -> Result<Bytes, Reject> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let cut = Reject::BadFrame("cut");
    let record = Record::take(&mut rest)?.ok_or(cut.clone())?;
    if !rest.is_empty() {
        return Err(cut);
    }
    let wanted = Handle::<Data>::from_bytes(*record.handle.as_bytes());
    let block = Hasher::new(&IV).check(&wanted, record.frame.plaintext::<Data>()?)?;
    Ok(block.into_bytes())
}

fn records(lines: &mut Lines) {
    let name = |plain: &[u8]| *Hasher::new(&IV).name(Kind::Data, plain).as_bytes();
    let record = |plain: &[u8], frame: &[&[u8]]| {
        let frame = frame.concat();
        let len = (frame.len() as u32).to_le_bytes();
        [&name(plain)[..], &len, &frame].concat()
    };
    let mut add = |name: &str, expected: &str, bytes: Vec<u8>| {
        lines.add("record", name, expected, &bytes, take(&bytes));
    };
    let header = |kind: u8, codec: u8, len: usize| {
        [&[kind, codec][..], &(len as u32).to_le_bytes()].concat()
    };
    let plain = b"bulla";
    let raw = |kind, codec, len| record(plain, &[&header(kind, codec, len), plain]);
    add("raw", "good", raw(1, 0, 5));
    add("empty-block", "good", record(b"", &[&header(1, 0, 0)]));
    add("kind-map", "wrong-kind", raw(3, 0, 5));
    add("kind-0", "unknown-frame", raw(0, 0, 5));
    add("kind-255", "unknown-frame", raw(255, 0, 5));
    add("codec-2", "unknown-frame", raw(1, 2, 5));
    add("shorter-than-stated", "bad-frame", raw(1, 0, 6));
    add("longer-than-stated", "bad-frame", raw(1, 0, 4));
    add("raw-as-zstd", "bad-frame", raw(1, 1, 5));
    add(
        "another-block",
        "wrong-block",
        record(b"bullb", &[&header(1, 0, 5), plain]),
    );
    add("of-another-kind", "wrong-block", {
        let handle = Hasher::new(&IV).name(Kind::Map, plain);
        [handle.as_bytes(), &raw(1, 0, 5)[32..]].concat()
    });
    add(
        "frame-of-5-bytes",
        "bad-frame",
        record(plain, &[&[1, 0, 0, 0, 0]]),
    );
    let over = (1 << 20) + 1;
    add(
        "plaintext-over-1-mib",
        "bad-frame",
        record(plain, &[&header(1, 1, over), plain]),
    );
    let long = patch(&raw(1, 0, 5), 32, &(1_048_583u32).to_le_bytes());
    add("frame-over-its-limit", "bad-frame", long);
    zstd(&mut add, &record, &header);
}

/// Frames around one zstd frame that was made by hand: 100 bytes `a`, as one block of a repeated byte.
fn zstd(
    add: &mut impl FnMut(&str, &str, Vec<u8>),
    record: &impl Fn(&[u8], &[&[u8]]) -> Vec<u8>,
    header: &impl Fn(u8, u8, usize) -> Vec<u8>,
) {
    let plain = [b'a'; 100];
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    // Block header: last, of type 1 (one byte repeated), size 100.
    let block = [0x23, 0x03, 0x00, b'a'];
    let frame = |descriptor: &[u8]| [&magic[..], descriptor, &block].concat();
    // One segment, with its content size in one byte.
    let good = frame(&[0x20, 100]);
    let mut with = |name: &str, expected: &str, len: usize, payload: &[u8]| {
        add(
            name,
            expected,
            record(&plain, &[&header(1, 1, len), payload]),
        );
    };
    with("zstd", "good", 100, &good);
    with("zstd-dictionary-0", "good", 100, &frame(&[0x21, 0, 100]));
    with(
        "zstd-dictionary-1",
        "bad-frame",
        100,
        &frame(&[0x21, 1, 100]),
    );
    with(
        "zstd-without-content-size",
        "bad-frame",
        100,
        &frame(&[0x00, 0x00]),
    );
    with(
        "zstd-another-content-size",
        "bad-frame",
        100,
        &frame(&[0x20, 99]),
    );
    with("zstd-stated-length-differs", "bad-frame", 101, &good);
    with(
        "zstd-byte-after-the-frame",
        "bad-frame",
        100,
        &[&good[..], &[0]].concat(),
    );
    with(
        "zstd-two-frames",
        "bad-frame",
        100,
        &[&good[..], &good].concat(),
    );
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    with(
        "zstd-skippable-first",
        "bad-frame",
        100,
        &[&skippable[..], &good].concat(),
    );
    with(
        "zstd-skippable-last",
        "bad-frame",
        100,
        &[&good[..], &skippable].concat(),
    );
    with("zstd-cut", "bad-frame", 100, &good[..good.len() - 1]);
    with(
        "zstd-as-long-as-its-plaintext",
        "bad-frame",
        good.len(),
        &good,
    );
    with(
        "zstd-of-another-block",
        "wrong-block",
        100,
        &patch(&good, 9, b"b"),
    );
}

fn sealed<K: BlockKind>(bytes: &[u8]) -> trust::Block<K> {
    let bytes = Bytes::copy_from_slice(bytes);
    Hasher::new(&IV).seal::<K>(bytes).1
}

fn array_nodes(lines: &mut Lines) {
    let mut add = |name: &str, expected: &str, bytes: &[u8], level: u8, len: u64| {
        let node = array::Node::decode(&sealed::<ArrayNode>(bytes));
        let result = node.and_then(|node| node.check(level, len));
        let context = format!("{level},{len}");
        lines.add_within("array", name, expected, bytes, &context, result);
    };
    let data = |len: u64| {
        let mut e = Encoder::new();
        e.varint(len << 1).raw(&[7; 32]);
        e.finish()
    };
    let hole = |len: u64| {
        let mut e = Encoder::new();
        e.varint(len << 1 | 1);
        e.finish()
    };
    let node = |level: u8, entries: &[Vec<u8>]| {
        let mut e = Encoder::new();
        e.u8(0).u8(level).varint(entries.len() as u64);
        [e.finish(), entries.concat()].concat()
    };
    let good = node(1, &[data(5), hole(65_536), data(4)]);
    add("node", "good", &good, 1, 65_545);
    add("of-another-level", "bad-tree", &good, 2, 65_545);
    add("of-another-length", "bad-tree", &good, 1, 65_546);
    add(
        "later-format",
        "unsupported",
        &patch(&good, 0, &[1]),
        1,
        65_545,
    );
    add("level-0", "bad-tree", &patch(&good, 1, &[0]), 0, 65_545);
    add("level-17", "bad-tree", &patch(&good, 1, &[17]), 17, 65_545);
    add(
        "hole-on-level-2",
        "bad-tree",
        &patch(&good, 1, &[2]),
        2,
        65_545,
    );
    add(
        "byte-too-many",
        "bad-tree",
        &[&good[..], &[0]].concat(),
        1,
        65_545,
    );
    add("cut", "bad-tree", &good[..good.len() - 1], 1, 65_545);
    add("no-entries", "bad-tree", &node(1, &[]), 1, 0);
    add("one-entry", "good", &node(1, &[data(5)]), 1, 5);
    add(
        "holes-in-a-row",
        "bad-tree",
        &node(1, &[hole(5), hole(5)]),
        1,
        10,
    );
    add(
        "empty-extent",
        "bad-tree",
        &node(1, &[data(5), data(0)]),
        1,
        5,
    );
    add(
        "empty-hole",
        "bad-tree",
        &node(1, &[data(5), hole(0)]),
        1,
        5,
    );
    let mib = 1 << 20;
    add("block-of-1-mib", "good", &node(1, &[data(mib)]), 1, mib);
    add(
        "block-over-1-mib",
        "bad-tree",
        &node(1, &[data(mib + 1)]),
        1,
        mib + 1,
    );
    add(
        "child-over-1-mib",
        "good",
        &node(2, &[data(mib + 1)]),
        2,
        mib + 1,
    );
    let most = i64::MAX as u64;
    add("longest-content", "good", &node(2, &[data(most)]), 2, most);
    add(
        "content-too-long",
        "bad-tree",
        &node(2, &[data(most), data(1)]),
        2,
        most + 1,
    );
    add("256-entries", "good", &node(1, &vec![data(1); 256]), 1, 256);
    add(
        "257-entries",
        "bad-tree",
        &node(1, &vec![data(1); 257]),
        1,
        257,
    );
}

/// A leaf's entry.
fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.bytes(key.as_bytes()).bytes(value);
    e.finish()
}

/// An interior node's entry.
fn child(key: &str, below: u64) -> Vec<u8> {
    let mut e = Encoder::new();
    e.bytes(key.as_bytes()).raw(&[7; 32]).varint(below);
    e.finish()
}

fn map_node(level: u8, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u8(0).u8(level).varint(entries.len() as u64);
    [e.finish(), entries.concat()].concat()
}

fn map_nodes(lines: &mut Lines) {
    type Bounds<'a> = (Option<&'a str>, Option<&'a str>);
    const ROOT: Bounds = (None, None);
    let mut add =
        |name: &str, expected: &str, bytes: &[u8], level: u8, entries: u64, bounds: Bounds| {
            let bound = |key: Option<&str>| key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
            let promised = ChildRef {
                handle: Handle::from_bytes([7; 32]),
                level,
                entries,
                interval: Interval {
                    lower: bound(bounds.0),
                    upper: bound(bounds.1),
                },
            };
            let node = map::Node::decode(&sealed::<MapNode>(bytes));
            let result = node.and_then(|node| node.check(&promised));
            let bound = |key: Option<&str>| key.map_or("-".to_owned(), |key| hex(key.as_bytes()));
            let (lower, upper) = (bound(bounds.0), bound(bounds.1));
            let context = format!("{level},{entries},{lower},{upper}");
            lines.add_within("map", name, expected, bytes, &context, result);
        };
    let keys = ["b", "d", "f", "h"];
    let leaf = map_node(1, &keys.map(|key| pair(key, b"v")));
    let within = (Some("b"), Some("i"));
    add("leaf", "good", &leaf, 1, 4, within);
    add(
        "leaf-without-upper-bound",
        "good",
        &leaf,
        1,
        4,
        (Some("b"), None),
    );
    add("root-leaf", "good", &leaf, 1, 4, ROOT);
    add(
        "separator-before-first-key",
        "bad-tree",
        &leaf,
        1,
        4,
        (Some("a"), Some("i")),
    );
    add(
        "separator-after-first-key",
        "bad-tree",
        &leaf,
        1,
        4,
        (Some("c"), Some("i")),
    );
    add(
        "key-at-the-upper-bound",
        "bad-tree",
        &leaf,
        1,
        4,
        (Some("b"), Some("h")),
    );
    add(
        "key-beyond-the-upper-bound",
        "bad-tree",
        &leaf,
        1,
        4,
        (Some("b"), Some("g")),
    );
    add("of-another-level", "bad-tree", &leaf, 2, 4, within);
    add("of-another-number", "bad-tree", &leaf, 1, 5, within);
    add(
        "later-format",
        "unsupported",
        &patch(&leaf, 0, &[1]),
        1,
        4,
        within,
    );
    add("level-0", "bad-tree", &patch(&leaf, 1, &[0]), 0, 4, within);
    add(
        "level-17",
        "bad-tree",
        &patch(&leaf, 1, &[17]),
        17,
        4,
        within,
    );
    add(
        "byte-too-many",
        "bad-tree",
        &[&leaf[..], &[0]].concat(),
        1,
        4,
        within,
    );
    add("cut", "bad-tree", &leaf[..leaf.len() - 1], 1, 4, within);
    let three = map_node(1, &["b", "d", "f"].map(|key| pair(key, b"v")));
    add("leaf-of-3", "bad-tree", &three, 1, 3, within);
    add("root-leaf-of-3", "good", &three, 1, 3, ROOT);
    let one = map_node(1, &[pair("b", b"v")]);
    add("root-leaf-of-1", "good", &one, 1, 1, ROOT);
    add("root-leaf-of-0", "bad-tree", &map_node(1, &[]), 1, 0, ROOT);
    let swapped = map_node(1, &["b", "f", "d", "h"].map(|key| pair(key, b"v")));
    add("keys-not-sorted", "bad-tree", &swapped, 1, 4, within);
    let twice = map_node(1, &["b", "d", "d", "h"].map(|key| pair(key, b"v")));
    add("key-twice", "bad-tree", &twice, 1, 4, within);
    let interior = |below: [u64; 4]| {
        let entries = keys.iter().zip(below).map(|(key, below)| child(key, below));
        map_node(2, &entries.collect::<Vec<_>>())
    };
    add("interior", "good", &interior([4, 5, 6, 7]), 2, 22, within);
    add(
        "interior-of-another-number",
        "bad-tree",
        &interior([4, 5, 6, 7]),
        2,
        23,
        within,
    );
    add(
        "child-without-entries",
        "bad-tree",
        &interior([4, 0, 6, 7]),
        2,
        17,
        within,
    );
    add(
        "sum-overflows",
        "bad-tree",
        &interior([u64::MAX, 1, 1, 1]),
        2,
        2,
        within,
    );
    let two = map_node(2, &[child("b", 4), child("d", 4)]);
    add("root-of-2", "good", &two, 2, 8, ROOT);
    add(
        "root-of-1",
        "bad-tree",
        &map_node(2, &[child("b", 4)]),
        2,
        4,
        ROOT,
    );
    add("interior-of-2", "bad-tree", &two, 2, 8, within);
    let long_key = "k".repeat(1025);
    let root = |entry: Vec<u8>| map_node(1, &[entry]);
    add(
        "key-of-1024-bytes",
        "good",
        &root(pair(&long_key[..1024], b"")),
        1,
        1,
        ROOT,
    );
    add(
        "key-of-1025-bytes",
        "bad-tree",
        &root(pair(&long_key, b"")),
        1,
        1,
        ROOT,
    );
    // One byte for the key's length, the key, two bytes for the value's length.
    let value = vec![0; 4093];
    add(
        "entry-of-4096-bytes",
        "good",
        &root(pair("k", &value[..4092])),
        1,
        1,
        ROOT,
    );
    add(
        "entry-of-4097-bytes",
        "bad-tree",
        &root(pair("k", &value)),
        1,
        1,
        ROOT,
    );
    let filled = |last: usize| {
        let mut entries: Vec<_> = (0..16)
            .map(|n| pair(&format!("k{n:02}"), &value[..4000]))
            .collect();
        entries.push(pair("k16", &value[..last]));
        map_node(1, &entries)
    };
    let room = (64 << 10) - filled(1000).len() + 1000;
    add("node-of-65536-bytes", "good", &filled(room), 1, 17, ROOT);
    add(
        "node-of-65537-bytes",
        "bad-tree",
        &filled(room + 1),
        1,
        17,
        ROOT,
    );
}
