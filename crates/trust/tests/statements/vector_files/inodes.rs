//! Roots of trees, inodes, attributes and names in text that are refused.

use bech32::{Bech32, Bech32m, Hrp};
use bytes::Bytes;
use trust::Reject;
use trust::array::ArrayRoot;
use trust::encode::{Decoder, Encoder};
use trust::inode::{Content, Entry, Inode, Time, decode_xattrs};
use trust::map::MapRoot;
use trust::text::{self, Noun};

use super::lines::{Lines, patch};
use crate::world::key;

pub fn add(lines: &mut Lines) {
    roots(lines);
    inodes(lines);
    names(lines);
}

fn whole<T>(
    bytes: &[u8],
    decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, Reject>,
) -> Result<T, Reject> {
    let mut d = Decoder::new(bytes, "root");
    let value = decode(&mut d)?;
    d.finish()?;
    Ok(value)
}

fn roots(lines: &mut Lines) {
    let mut add = |name: &str, expected: &str, len: u64, rest: &[u8]| {
        let mut e = Encoder::new();
        e.varint(len).raw(rest);
        let bytes = e.finish();
        let result = whole(&bytes, ArrayRoot::decode);
        lines.add("array-root", name, expected, &bytes, result);
    };
    let at = |height: u8| [&[height][..], &[7; 32]].concat();
    add("one-block", "good", 1 << 20, &at(0));
    add("one-block-over-1-mib", "malformed", (1 << 20) + 1, &at(0));
    add("height-16", "good", 1 << 40, &at(16));
    add("height-17", "malformed", 1 << 40, &at(17));
    add("hole", "good", i64::MAX as u64, &[255]);
    add("hole-with-a-handle", "malformed", 5, &at(255));
    add("empty", "malformed", 0, &at(0));
    add("too-long", "malformed", 1 << 63, &at(16));
    let mut add = |name: &str, expected: &str, rest: &[u8]| {
        let bytes = [&[7; 32], rest].concat();
        let result = whole(&bytes, MapRoot::decode);
        lines.add("map-root", name, expected, &bytes, result);
    };
    add("root", "good", &[16, 5]);
    add("height-0", "malformed", &[0, 5]);
    add("height-17", "malformed", &[17, 5]);
    add("no-entries", "malformed", &[1, 0]);
    let salted = |salt: u8| [&[0x81, 5][..], &[salt; 16]].concat();
    add("salt", "good", &salted(1));
    add("salt-of-zeros", "malformed", &salted(0));
    add("salt-cut", "malformed", &salted(1)[..17]);
}

fn inodes(lines: &mut Lines) {
    let plain = Inode::new(0o644, Time::default(), Content::Fifo).encode();
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("inode", name, expected, bytes, Inode::decode(bytes));
    };
    add("fifo", "good", &plain);
    add("cut", "malformed", &plain[..3]);
    add("later-format", "unsupported", &patch(&plain, 0, &[1]));
    add("kind-15", "unsupported", &patch(&plain, 1, &[15]));
    add("mode-010000", "malformed", &patch(&plain, 2, &[0, 0x10]));
    let target = |target: &[u8]| {
        let content = Content::Symlink(Bytes::copy_from_slice(target));
        Inode::new(0o777, Time::default(), content).encode()
    };
    add("link", "good", &target(b"bulla"));
    add("link-to-nothing", "malformed", &target(b""));
    add("link-with-nul", "malformed", &target(b"a\0"));
    add("link-of-4095", "good", &target(&[b'a'; 4095]));
    add("link-of-4096", "malformed", &target(&[b'a'; 4096]));
    let nanos = |nanos: u32| {
        let mtime = Time { seconds: -1, nanos };
        Inode::new(0o644, mtime, Content::Fifo).encode()
    };
    add("999999999-nanoseconds", "good", &nanos(999_999_999));
    add("1000000000-nanoseconds", "malformed", &nanos(1_000_000_000));
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("entry", name, expected, bytes, Entry::decode(bytes));
    };
    add("inode", "good", &plain);
    add("block", "good", &[&[0xff][..], &[7; 32]].concat());
    add("block-cut", "malformed", &[&[0xff][..], &[7; 31]].concat());
    add("empty", "malformed", &[]);
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("xattrs", name, expected, bytes, decode_xattrs(bytes));
    };
    let list = |names: &[&str]| {
        let mut e = Encoder::new();
        e.varint(names.len() as u64);
        names.iter().for_each(|name| {
            e.bytes(name.as_bytes()).bytes(b"1");
        });
        e.finish()
    };
    add("list", "good", &list(&["user.a", "user.b"]));
    add("empty", "malformed", &[0]);
    add("not-sorted", "malformed", &list(&["user.b", "user.a"]));
    add("twice", "malformed", &list(&["user.a", "user.a"]));
    add("without-a-name", "malformed", &list(&[""]));
    add("reserved", "malformed", &list(&["user.bulla.x"]));
    add("name-of-256", "malformed", &list(&[&"u".repeat(256)]));
}

fn names(lines: &mut Lines) {
    let key = *key(1).public().as_bytes();
    let good = text::write(Noun::Key, &key);
    let mut add = |name: &str, expected: &str, text: &str| {
        let malformed = |_| Reject::Malformed {
            what: "text",
            why: "",
        };
        let result = text::read(Noun::Key, text).map_err(malformed);
        lines.add_within("text", name, expected, text.as_bytes(), "key", result);
    };
    add("key", "good", &good);
    add("upper-case", "malformed", &good.to_uppercase());
    add(
        "another-prefix",
        "malformed",
        &text::write(Noun::Block, &key),
    );
    add("mistyped", "malformed", &good.replacen('q', "p", 1));
    add("cut", "malformed", &good[..good.len() - 1]);
    add("empty", "malformed", "");
    let hrp = Hrp::parse("key").unwrap();
    let bip_173 = bech32::encode::<Bech32>(hrp, &key).unwrap();
    add("checksum-of-bip-173", "malformed", &bip_173);
    let of = |bytes: &[u8]| bech32::encode::<Bech32m>(hrp, bytes).unwrap();
    add("31-bytes", "malformed", &of(&key[..31]));
    add("33-bytes", "malformed", &of(&[&key[..], &[0]].concat()));
}
