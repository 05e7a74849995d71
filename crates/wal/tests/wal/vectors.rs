//! The machine-readable vectors in docs/formats/vectors/log.txt (docs/formats/log.md, *Vectors*). They are made here and
//! compared byte by byte with the file. After a change of format:
//!
//! ```text
//! cargo test -p bulla-wal --test wal write_vector_file -- --ignored
//! ```

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use sim::device::Machine;
use wal::{Key, LogError, inspect};

use crate::volume::{
    ONE, PAGE, TWO, VOLUME, device, digests, geometry, key, machine, noise, open_at, put, record,
    ring_start,
};

const HEAD: &str = "\
# The log (docs/formats/log.md). Bytes are hexadecimal digits and runs HH*N (N bytes HH), joined by +.
# WHAT VERDICT NAME BYTES [VALUE], all under the key and for the volume below.
# digest      a page of payload and its digest.
# superblock  a page: good, not-a-log, unsupported, wrong-key or damaged.
# slots       one copy of the region for key slots, the other being zeros: good with its slots, or refused.
# frame       a header part: good, or refused.
";

/// A run of one byte that is at least this long is written as `HH*N`.
const RUN_BYTES: usize = 64;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/vectors/log.txt")
}

#[test]
fn vector_file_is_that_of_this_build() {
    let (made, kept) = (text(), fs::read_to_string(path()).unwrap());
    let mut lines = made.lines().zip(kept.lines());
    let differs = lines.position(|(made, kept)| made != kept);
    assert!(made == kept, "log.txt differs from line {differs:?} on");
}

#[test]
#[ignore = "writes docs/formats/vectors: run it after a change of format"]
fn write_vector_file() {
    fs::write(path(), text()).unwrap();
}

fn text() -> String {
    let mut out = HEAD.to_owned();
    let mut line = |parts: &[&str]| writeln!(out, "{}", parts.join(" ")).unwrap();
    line(&["key", &hex(key().expose())]);
    line(&["volume", &hex(&VOLUME.0)]);
    for (name, page) in [("zeros", vec![0; 4096]), ("noise", noise(1).to_vec())] {
        let digest = digests().digest(&page);
        line(&["digest", "good", name, &hex(&page), &hex(&digest.0)]);
    }
    let (machine, places) = written();
    let bytes = device(&machine).contents();
    for (name, page) in superblocks(&bytes) {
        line(&["superblock", superblock_verdict(&page), name, &hex(&page)]);
    }
    for (name, copy) in slots(&bytes) {
        match read_slots(&copy) {
            Ok(slots) => line(&["slots", "good", name, &hex(&copy), &hex(&slots)]),
            Err(_) => line(&["slots", "refused", name, &hex(&copy)]),
        }
    }
    for (name, header) in frames(&bytes, &places) {
        let good = inspect::frame(&header, &key(), VOLUME).is_some();
        assert_eq!(good, name.starts_with("good-"), "{name}");
        let verdict = if good { "good" } else { "refused" };
        line(&[
            "frame",
            verdict,
            name.trim_start_matches("good-"),
            &hex(&header),
        ]);
    }
    out
}

/// Bytes as in the file.
fn hex(bytes: &[u8]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut plain = String::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        if run.len() < RUN_BYTES {
            run.iter().for_each(|b| write!(plain, "{b:02x}").unwrap());
            continue;
        }
        if !plain.is_empty() {
            parts.push(std::mem::take(&mut plain));
        }
        parts.push(format!("{:02x}*{}", run[0], run.len()));
    }
    parts.extend((!plain.is_empty()).then_some(plain));
    parts.join("+")
}

/// A log with frames of one and of two clients and with padding, and where they begin.
fn written() -> (Machine, [u64; 2]) {
    let machine = machine(16);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    put(&log, ONE, record(1, 1));
    let two = log
        .append(&[(ONE, record(2, 0)), (TWO, record(3, 1))])
        .unwrap();
    log.flush(two.end).wait().unwrap();
    for client in [ONE, TWO] {
        log.checkpoint(client, two.start, b"cookie").unwrap();
    }
    while log.end().0 < 15 * PAGE {
        let (start, _) = put(&log, ONE, record(4, 1));
        log.checkpoint(ONE, start, b"").unwrap();
        log.checkpoint(TWO, start, b"").unwrap();
    }
    assert_eq!(log.end().0, 15 * PAGE);
    put(&log, ONE, record(5, 1));
    (machine, [two.start.0, 15 * PAGE])
}

fn superblock_verdict(page: &[u8]) -> &'static str {
    match inspect::superblock(page, &key()) {
        Ok(_) => "good",
        Err(LogError::NotALog) => "not-a-log",
        Err(LogError::Unsupported { .. }) => "unsupported",
        Err(LogError::WrongKey { .. }) => "wrong-key",
        Err(_) => "damaged",
    }
}

/// Gaps, in pages from the tail on.
fn gaps(tail: u64, pages: &[(u64, u64)]) -> Vec<inspect::Gap> {
    let gap = |(at, to): &(u64, u64)| inspect::Gap {
        at: wal::Mark {
            epoch: 1,
            lsn: wal::Lsn(tail + at * PAGE),
            tag: [3; 32],
        },
        to: wal::Lsn(tail + to * PAGE),
    };
    pages.iter().map(gap).collect()
}

/// The superblock of a log that was just formatted, one of a log in use, and changed ones.
fn superblocks(used: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let page = |bytes: &[u8]| bytes[..PAGE as usize].to_vec();
    let formatted = page(&device(&machine(16)).contents());
    let mut used = inspect::superblock(&page(used), &key()).unwrap();
    used.session = [0x55; 16]; // random
    let encode =
        |superblock: &inspect::Superblock| inspect::encode_superblock(superblock, &key()).to_vec();
    let changed = |change: &dyn Fn(&mut inspect::Superblock)| {
        let mut superblock = used.clone();
        change(&mut superblock);
        encode(&superblock)
    };
    let with_byte = |at: usize, value: u8| {
        let mut page = formatted.clone();
        page[at] = value;
        page
    };
    let resealed = |at: usize, value: u8| {
        let mut page = with_byte(at, value);
        let tag = blake3::keyed_hash(&key().derive("log superblock", VOLUME), &page[..4064]);
        page[4064..].copy_from_slice(tag.as_bytes());
        page
    };
    vec![
        ("formatted", formatted.clone()),
        ("in-use", encode(&used)),
        ("zeros", vec![0; 4096]),
        ("later-format", with_byte(8, 1)),
        ("flag", with_byte(12, 1)),
        (
            "of-another-key",
            inspect::encode_superblock(&used, &Key::new([1; 32])).to_vec(),
        ),
        ("changed-generation", with_byte(48, 2)),
        ("byte-after-the-clients", resealed(300, 1)),
        (
            "mark-before-the-tail",
            changed(&|s| s.mark.lsn.0 = s.tail.lsn.0 - PAGE),
        ),
        ("gap", changed(&|s| s.gaps = gaps(s.tail.lsn.0, &[(1, 4)]))),
        (
            "gaps-without-order",
            changed(&|s| s.gaps = gaps(s.tail.lsn.0, &[(1, 4), (3, 5)])),
        ),
        (
            "gap-that-goes-back",
            changed(&|s| s.gaps = gaps(s.tail.lsn.0, &[(2, 1)])),
        ),
        (
            "too-many-gaps",
            changed(&|s| {
                let many = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)];
                s.gaps = gaps(s.tail.lsn.0, &many);
            }),
        ),
        (
            "oldest-before-the-tail",
            changed(&|s| s.clients[0].oldest.0 = s.tail.lsn.0 - PAGE),
        ),
        ("client-twice", changed(&|s| s.clients[1].client = ONE)),
        ("ring-too-short", changed(&|s| s.ring_bytes = 15 * PAGE)),
        (
            "seven-clients",
            changed(&|s| {
                let state = s.clients[0].clone();
                s.clients = (0..7)
                    .map(|n| inspect::ClientState {
                        client: wal::Client(n),
                        ..state.clone()
                    })
                    .collect();
            }),
        ),
    ]
}

fn slots(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let good = bytes[256 << 10..384 << 10].to_vec();
    let resealed = |at: usize, value: u8| {
        let mut copy = good.clone();
        copy[at] = value;
        let sum = blake3::hash(&copy[..(128 << 10) - 32]);
        copy[(128 << 10) - 32..].copy_from_slice(sum.as_bytes());
        copy
    };
    let mut changed = good.clone();
    changed[33] ^= 1;
    vec![
        ("five-bytes", good.clone()),
        ("changed", changed),
        ("other-magic", resealed(0, b'B')),
        ("byte-after-the-slots", resealed(100, 1)),
    ]
}

fn read_slots(copy: &[u8]) -> Result<Vec<u8>, LogError> {
    let machine = Machine::new(&[("L", 1 << 20)]);
    device(&machine).plant(256 << 10, copy);
    wal::key_slots(&*device(&machine)).map(|(_, slots)| slots)
}

/// Frames as they were written, and changed ones with a right tag.
fn frames(bytes: &[u8], places: &[u64; 2]) -> Vec<(&'static str, Vec<u8>)> {
    let ring = ring_start(&geometry(16));
    let at = |lsn: u64| {
        let start = (ring + lsn % (16 * PAGE)) as usize;
        bytes[start..start + PAGE as usize].to_vec()
    };
    let (two, padding) = (at(places[0]), at(places[1]));
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut header = two.clone();
        change(&mut header);
        let key = key().derive("log frame", VOLUME);
        let tag = blake3::keyed_hash(&key, &header[..4064]);
        header[4064..].copy_from_slice(tag.as_bytes());
        header
    };
    let set = |at: usize, value: u8| changed(&|header: &mut Vec<u8>| header[at] = value);
    let mut flipped = two.clone();
    flipped[4095] ^= 1;
    vec![
        ("good-two-clients", two.clone()),
        ("good-padding", padding),
        ("changed-tag", flipped),
        ("of-an-unknown-kind", set(8, 2)),
        ("of-another-volume", set(12, 8)),
        ("position-within-a-page", set(36, 1)),
        ("longer-than-its-records", set(45, 0x30)),
        (
            "padding-with-records",
            changed(&|header| {
                (header[8], header[92], header[96], header[100]) = (1, 116, 1, 0);
                header[116..144].fill(0);
            }),
        ),
        ("used-bytes-below-the-fixed-ones", set(92, 103)),
        ("record-too-many", set(96, 3)),
        (
            "record-too-few",
            changed(&|header| {
                (header[45], header[96], header[100]) = (0x10, 1, 0);
            }),
        ),
        (
            "page-too-many",
            changed(&|header| {
                header[100] = 2;
                header[45] = 0x30;
            }),
        ),
        ("byte-after-the-records", set(200, 1)),
        (
            "overlong-length-of-a-body",
            changed(&|header| {
                header[106] = 0x88;
                header.insert(107, 0);
                header.remove(4063);
                header[92] += 1;
            }),
        ),
    ]
}
