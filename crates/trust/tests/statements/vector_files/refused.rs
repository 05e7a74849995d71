//! Statements, envelopes, requests, checkpoints and tiles that are refused, each beside a good one. `trees` and
//! `heads` have the rest of the file.

use trust::checkpoint;
use trust::history::LogPoint;
use trust::judge::Terms;
use trust::policy::{NO_END, Policy, Revocation, Roles, Successor, VolumeId};
use trust::request::{Base, Request};
use trust::root::RootRecord;
use trust::statement::{Purpose, Signed, Statement};
use trust::timestamp::Timestamp;
use trust::{Reject, signatures::Signatures};

use super::lines::{Lines, hex, patch};
use super::{heads, inodes, trees};
use crate::world::*;

const HEADER: &str = "\
# Bytes and the verdict that they get (docs/formats/verification.md).
# STRUCTURE VERDICT NAME BYTES [CONTEXT]
# Bytes are hexadecimal digits and runs HH*N (N bytes HH), joined by +; - stands for none.
# statement   a statement without signatures. Decode it, and its body by its purpose. Its volume must be the one
#             below, but for a policy with number 0: there it must be zeros.
# signed      a signed statement; only its form.
# head, floor, request    only their form.
# record      a record as in segments, wanted by its claimed handle as a data block, under the iv below.
# array       an array node whose hash is right. Context: LEVEL,LENGTH as its parent says.
# map         a map node whose hash is right. Context: LEVEL,ENTRIES,LOWER,UPPER; a bound - is none; no LOWER: the root.
# array-root, map-root, inode, entry, xattrs    as in a verified block.
# path-proof  a proof for a path. Context: PATH (hexadecimal), of the volume below at the time below.
# checkpoint  a note. Context: SIZE,ROOT,QUORUM of the log below and the witnesses below.
# tile        the tile of level 0 that the proof of log growth wants. Context: SIZE,ROOT of the older log and the
#             FRONTIER of the newer one.
# text        text (as bytes) that names 32 bytes. Context: the prefix wanted.
";

pub fn text() -> String {
    let mut lines = Lines::new(HEADER);
    let world = World::new();
    lines.context("volume", world.volume.as_bytes());
    lines.context("iv-of-the-volume", &[9; 32]);
    lines.context("iv-of-blocks", &trees::IV);
    lines.text += &format!("time {NOW}\n");
    for number in [20, 21] {
        lines.context("witness", key(number).public().as_bytes());
    }
    statements(&mut lines);
    policies(&mut lines);
    signed(&mut lines);
    requests(&mut lines);
    checkpoints(&mut lines);
    tiles(&mut lines);
    heads::add(&mut lines);
    trees::add(&mut lines);
    inodes::add(&mut lines);
    lines.finish()
}

/// Reads a statement and its body.
pub fn read(bytes: &[u8]) -> Result<(), Reject> {
    let volume = World::new().volume;
    let statement = Statement::decode(bytes.to_vec().into())?;
    match statement.purpose() {
        Purpose::Policy => {
            let number = bytes.get(39..47).unwrap_or(&[1]);
            let unborn = number.iter().all(|b| *b == 0);
            let volume = if unborn { VolumeId::UNBORN } else { volume };
            statement.read::<Policy>(volume).map(drop)
        }
        Purpose::Root => statement.read::<RootRecord>(volume).map(drop),
        Purpose::Timestamp => statement.read::<Timestamp>(volume).map(drop),
        Purpose::Checkpoint => unreachable!("no purpose of a published volume"),
    }
}

fn statements(lines: &mut Lines) {
    let mut world = World::new();
    let record = world.record(1).statement(world.volume).bytes().to_vec();
    let mut with_mirror = world.record(1);
    with_mirror.mirrors = vec!["bulla://a.example".to_owned()];
    let with_mirror = with_mirror.statement(world.volume).bytes().to_vec();
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("statement", name, expected, bytes, read(bytes));
    };
    let extended = |extensions: &[u8]| {
        let body = &record[..record.len() - 1];
        [body, extensions].concat()
    };
    add("record", "good", &record);
    add("record-with-a-mirror", "good", &with_mirror);
    add("empty", "malformed", &[]);
    add("cut", "malformed", &record[..record.len() - 1]);
    add("byte-too-many", "malformed", &[&record[..], &[0]].concat());
    add("later-format", "unsupported", &patch(&record, 0, &[1]));
    add("purpose-0", "unsupported", &patch(&record, 2, &[0]));
    for purpose in [4, 31, 32, 255] {
        let name = format!("purpose-{purpose}");
        add(&name, "unsupported", &patch(&record, 2, &[purpose]));
    }
    add(
        "purpose-of-a-timestamp",
        "malformed",
        &patch(&record, 2, &[3]),
    );
    add(
        "compatible-flags",
        "good",
        &patch(&record, 3, &[0xff, 0xff]),
    );
    add("incompatible-flag", "unsupported", &patch(&record, 5, &[1]));
    add(
        "last-incompatible-flag",
        "unsupported",
        &patch(&record, 6, &[0x80]),
    );
    add("another-volume", "wrong-volume", &patch(&record, 7, &[0]));
    add("version-0", "malformed", &patch(&record, 39, &[0]));
    add("even-extension", "good", &extended(&[1, 2, 3, 7, 7, 7]));
    add("odd-extension", "unsupported", &extended(&[1, 3, 0]));
    add("extensions-in-order", "good", &extended(&[2, 2, 0, 4, 0]));
    add(
        "extensions-not-sorted",
        "malformed",
        &extended(&[2, 4, 0, 2, 0]),
    );
    add("extension-twice", "malformed", &extended(&[2, 2, 0, 2, 0]));
    add("varint-not-canonical", "malformed", &extended(&[0x80, 0]));
    let mut many = vec![65];
    (0..64u8).for_each(|n| many.extend([2 * n, 0]));
    many.extend([0x80, 1, 0]);
    add("65-extensions", "malformed", &extended(&many));
    let mut mirror = |name: &str, with: &[u8]| {
        let body = &record[..record.len() - 2];
        add(name, "malformed", &[body, with, &[0]].concat());
    };
    mirror("mirror-empty", &[1, 0]);
    mirror("mirror-with-a-space", &[1, 3, b'a', b' ', b'b']);
    mirror("mirror-not-ascii", &[1, 2, 0xc3, 0xa9]);
    mirror("17-mirrors", &[&[17][..], &[1, b'a'].repeat(17)].concat());
    let head = world.publish(1);
    let timestamp = world.timestamp(&head).statement(world.volume);
    let timestamp = timestamp.bytes();
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("statement", name, expected, bytes, read(bytes));
    };
    add("timestamp", "good", timestamp);
    add(
        "timestamp-cut",
        "malformed",
        &timestamp[..timestamp.len() - 2],
    );
    let long = vec![0; 131_073];
    add("too-long", "malformed", &long);
}

fn policies(lines: &mut Lines) {
    let mut world = World::new();
    let genesis = world.policies[0].statement().bytes().to_vec();
    let head = world.publish(1);
    let successor = |change: &dyn Fn(&mut Successor)| {
        let mut policy = world.successor(Some(&head));
        change(&mut policy);
        policy.statement(world.volume).bytes().to_vec()
    };
    let with_roles = |change: &dyn Fn(&mut Roles)| successor(&|policy| change(&mut policy.roles));
    let plain = successor(&|_| ());
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("statement", name, expected, bytes, read(bytes));
    };
    add("genesis", "good", &genesis);
    for (flag, name) in [
        (1, "shared"),
        (2, "sealed"),
        (4, "guarded"),
        (8, "of-flag-8"),
    ] {
        let name = format!("genesis-{name}");
        add(&name, "unsupported", &patch(&genesis, 5, &[flag]));
    }
    add(
        "genesis-with-a-volume",
        "wrong-volume",
        &patch(&genesis, 7, &[1]),
    );
    let algorithm = genesis.len() - 34;
    add(
        "hash-algorithm-2",
        "unsupported",
        &patch(&genesis, algorithm, &[2]),
    );
    let name = genesis.len() - 1 - 32 - 1 - 32 - 5;
    add(
        "name-with-control",
        "malformed",
        &patch(&genesis, name, &[0x1b]),
    );
    add(
        "name-not-utf8",
        "malformed",
        &patch(&genesis, name, &[0xff]),
    );
    add("successor", "good", &plain);
    for (tag, name) in [(1, "orderer"), (3, "checkpointers"), (5, "authority")] {
        let extended = [&plain[..plain.len() - 1], &[1, tag, 1, 0]].concat();
        add(&format!("policy-with-{name}"), "unsupported", &extended);
    }
    let parts = plain.len() - 1 - 88 - 1;
    add("part-32", "unsupported", &patch(&plain, parts, &[33]));
    add(
        "revoked-with-another-volume",
        "good",
        &successor(&|p| {
            let successor = Some(VolumeId::from_bytes([5; 32]));
            p.revoked = Some(Revocation { successor });
        }),
    );
    add(
        "lower-without-last",
        "malformed",
        &successor(&|p| (p.last, p.lower) = (None, true)),
    );
    add(
        "another-volume-without-revocation",
        "malformed",
        &patch(&plain, parts, &[5]),
    );
    add(
        "refuses-one",
        "good",
        &successor(&|p| p.refused = vec![[1; 32]]),
    );
    add(
        "refuses-twice",
        "malformed",
        &successor(&|p| p.refused = vec![[1; 32]; 2]),
    );
    add(
        "refuses-17",
        "malformed",
        &successor(&|p| {
            p.refused = (0..17).map(|n| [n; 32]).collect();
        }),
    );
    add(
        "record-maximum-0",
        "malformed",
        &with_roles(&|r| r.record_max = 0),
    );
    add(
        "owners-0-of-1",
        "malformed",
        &with_roles(&|r| r.owners = threshold(0, &[1])),
    );
    add(
        "publishers-0-of-1",
        "malformed",
        &with_roles(&|r| r.publishers = threshold(0, &[2])),
    );
    add(
        "log-0-of-1",
        "malformed",
        &with_roles(&|r| r.log = threshold(0, &[3])),
    );
    add(
        "log-key",
        "good",
        &with_roles(&|r| r.log = threshold(1, &[3])),
    );
    add(
        "witnesses-0-of-1",
        "good",
        &with_roles(&|r| r.witnesses = threshold(0, &[3])),
    );
    add(
        "timestamp-keys-without-maximum",
        "malformed",
        &with_roles(&|r| {
            r.timestamps = threshold(1, &[3]);
        }),
    );
    add(
        "timestamp-maximum-without-keys",
        "malformed",
        &with_roles(&|r| r.timestamp_max = 1),
    );
    role_keys(&mut add, &genesis);
}

/// The first role of the genesis (owners) with other bytes.
fn role_keys(add: &mut impl FnMut(&str, &str, &[u8]), genesis: &[u8]) {
    let at = 39 + 16;
    let owner = &genesis[at + 2..at + 36];
    let rest = &genesis[at + 36..];
    let mut role = |name: &str, expected: &str, role: &[u8]| {
        add(name, expected, &[&genesis[..at], role, rest].concat());
    };
    let other = [&[1, 32][..], key(200).public().as_bytes()].concat();
    let (low, high) = (owner.min(&other), owner.max(&other));
    role("owners-2", "good", &[&[1, 2], low, high].concat());
    role(
        "owners-not-sorted",
        "malformed",
        &[&[1, 2], high, low].concat(),
    );
    role(
        "owner-twice",
        "malformed",
        &[&[1, 2], owner, owner].concat(),
    );
    role("owners-2-of-1", "malformed", &[&[2, 1], owner].concat());
    let many: Vec<u8> = (1..34u8).flat_map(|n| [2, 1, n]).collect();
    role("owners-33", "malformed", &[&[1, 33][..], &many].concat());
    role("owner-of-algorithm-0", "malformed", &[1, 1, 0, 1, 7]);
    role("owner-of-algorithm-2", "good", &[1, 1, 2, 1, 7]);
    role(
        "owner-of-31-bytes",
        "malformed",
        &[&[1, 1, 1, 31][..], &owner[3..]].concat(),
    );
    let mut point = |name: &str, bytes: [u8; 32]| {
        role(name, "malformed", &[&[1, 1, 1, 32][..], &bytes].concat());
    };
    let mut neutral = [0; 32];
    neutral[0] = 1;
    point("owner-of-small-order", neutral);
    let mut second = [0xff; 32];
    (second[0], second[31]) = (0xf0, 0x7f);
    point("owner-in-a-second-encoding", second);
    let mut none = [0; 32];
    none[0] = 2;
    point("owner-that-is-no-point", none);
    let too_long = [&[1, 1, 2, 0x81, 0x20][..], &[7; 4097]].concat();
    role("owner-of-4097-bytes", "malformed", &too_long);
}

fn signed(lines: &mut Lines) {
    let world = World::new();
    let statement = world.record(1).statement(world.volume);
    let good = sign(&statement, &[2]).to_bytes();
    let bare = sign(&statement, &[]).to_bytes();
    let bare = &bare[..bare.len() - 1];
    let entry = &good[bare.len() + 1..];
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("signed", name, expected, bytes, Signed::from_bytes(bytes));
    };
    let mut with = |name: &str, expected: &str, signatures: &[&[u8]]| {
        add(name, expected, &[bare, &signatures.concat()].concat());
    };
    with("one-signature", "good", &[&[1], entry]);
    with("no-signature", "good", &[&[0]]);
    let later = [&[2, 1, 9, 3][..], &[4; 3]].concat();
    with("of-algorithm-2", "good", &[&[2], entry, &later]);
    with("algorithms-not-sorted", "malformed", &[&[2], &later, entry]);
    with("key-twice", "malformed", &[&[2], entry, entry]);
    with("of-algorithm-0", "malformed", &[&[1], &[0], &entry[1..]]);
    with(
        "signature-of-63-bytes",
        "malformed",
        &[&[1], &entry[..34], &[63], &entry[36..]],
    );
    with("key-of-31-bytes", "malformed", &[&[1, 1, 31], &entry[3..]]);
    with("byte-too-many", "malformed", &[&[1], entry, &[0]]);
    with("fewer-than-counted", "malformed", &[&[2], entry]);
    let many: Vec<u8> = (0..81u8).flat_map(|n| [2, 1, n, 0]).collect();
    with("80-signatures", "good", &[&[80], &many[..320]]);
    with("81-signatures", "malformed", &[&[81], &many]);
    let long = |bytes: usize| {
        let mut entry = vec![2, 1, 7];
        entry.extend([
            bytes as u8 & 0x7f | 0x80,
            (bytes >> 7) as u8 & 0x7f | 0x80,
            (bytes >> 14) as u8,
        ]);
        entry.resize(entry.len() + bytes, 0xaa);
        entry
    };
    with("signature-of-16384-bytes", "good", &[&[1], &long(16_384)]);
    with(
        "signature-of-16385-bytes",
        "malformed",
        &[&[1], &long(16_385)],
    );
}

fn requests(lines: &mut Lines) {
    let mut world = World::new();
    let genesis = world.policies[0].clone();
    let head = world.publish(1);
    let good = Request {
        base: Base::Genesis(genesis.statement().sign(&[])),
        record: head.record.statement().sign(&[]),
    };
    let good = good.encode().unwrap();
    let body = &good[..good.len() - 32];
    let later = Request {
        base: Base::Head(Box::new(head.clone())),
        record: sign(&world.record(2).statement(world.volume), &[2]),
    };
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("request", name, expected, bytes, Request::decode(bytes));
    };
    add("first-version", "good", &good);
    add("later-version", "good", &later.encode().unwrap());
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    add("damaged", "malformed", &damaged);
    add("cut", "malformed", &good[..31]);
    let mut patched = |name: &str, expected: &str, at: usize, with: &[u8]| {
        add(name, expected, &with_checksum(patch(body, at, with)));
    };
    patched("another-magic", "malformed", 0, b"c");
    patched("later-format", "unsupported", 8, &[1]);
    patched("incompatible-flag", "unsupported", 10, &[1]);
    patched("base-2", "malformed", 12, &[2]);
    add(
        "byte-too-many",
        "malformed",
        &with_checksum([body, &[0]].concat()),
    );
}

fn checkpoints(lines: &mut Lines) {
    let mut world = World::new();
    let head = world.publish(1);
    let witnesses = |needed| threshold(needed, &[20, 21]);
    let mut add = |name: &str, expected: &str, note: &[u8], quorum: u8| {
        let result = checkpoint::verify(note, world.volume, &world.log, &witnesses(quorum));
        let LogPoint { size, root, .. } = world.log;
        let context = format!("{size},{},{quorum}", hex(&root));
        lines.add_within("checkpoint", name, expected, note, &context, result);
    };
    let note = world.checkpoint(&head, &[20, 21]);
    let text = String::from_utf8(note.to_vec()).unwrap();
    let one = world.checkpoint(&head, &[20]);
    add("two-witnesses", "good", &note, 2);
    add("one-witness", "good", &one, 1);
    add("one-of-two", "not-signed", &one, 2);
    add(
        "one-twice",
        "not-signed",
        &world.checkpoint(&head, &[20, 20]),
        2,
    );
    add("stranger", "not-signed", &world.checkpoint(&head, &[22]), 1);
    add(
        "stranger-beside",
        "good",
        &world.checkpoint(&head, &[22, 20]),
        1,
    );
    let log = checkpoint::note(world.volume, &world.log, &key(2)).unwrap();
    add("the-logs-own-line", "not-signed", log.as_bytes(), 1);
    let mut changed = |name: &str, expected: &str, from: &str, to: &str| {
        assert!(text.contains(from));
        add(name, expected, text.replacen(from, to, 1).as_bytes(), 2);
    };
    changed("another-size", "not-signed", "\n2\n", "\n3\n");
    changed("another-origin", "not-signed", "bulla/", "bulla:");
    changed("without-the-empty-line", "not-signed", "\n\n", "\n");
    changed("hyphen-for-dash", "not-signed", "\u{2014} ", "- ");
    changed("another-name", "not-signed", "example/20", "example/30");
    changed("without-padding", "not-signed", "==\n", "\n");
    changed("carriage-returns", "not-signed", "==\n", "==\r\n");
    changed("empty-lines", "good", "\n\u{2014}", "\n\n\u{2014}");
    let bad_text = [&note[..], &[0xff]].concat();
    add("not-utf8", "malformed", &bad_text, 2);
    let strangers = "x\n".repeat(100);
    let (origin, signatures) = text.split_once("\n\n").unwrap();
    let late = format!("{origin}\n\n{strangers}{signatures}");
    add("after-100-lines", "not-signed", late.as_bytes(), 2);
    let long = format!("{text}{}", "x".repeat(16 << 10));
    add("too-long", "malformed", long.as_bytes(), 2);
}

/// The log of eight versions, and the tile with its leaves, for a reader that has adopted the third.
fn tiles(lines: &mut Lines) {
    let mut world = World::with_genesis(roles(), NO_END, &[1]);
    let heads: Vec<_> = (1..=8).map(|version| world.publish(version)).collect();
    let all: Vec<_> = heads.iter().take(3).collect();
    let floor = adopted(&world.floor(), &all);
    let mut other = World::new();
    let mut twin = other.record(1);
    twin.start += 1;
    let twin = other.head_of(&twin, &[2]);
    other.advance(&twin);
    let forked: Vec<_> = (2..=8).map(|version| other.publish(version)).collect();
    let mut add = |name: &str, expected: &str, tile: &[u8], head: &trust::head::Head| {
        let offer = floor.judge(head, &Terms::strict(NOW), &mut Signatures::default());
        let mut offer = offer.unwrap();
        let mut prefix = floor.unproved(&offer).unwrap().unwrap();
        let result = prefix.supply(tile).and_then(|()| offer.prove(prefix));
        let old = floor.adopted().unwrap().log;
        let mut frontier = trust::encode::Encoder::new();
        head.frontier.encode(&mut frontier);
        let context = format!(
            "{},{},{}",
            old.size,
            hex(&old.root),
            hex(&frontier.finish())
        );
        lines.add_within("tile", name, expected, tile, &context, result);
    };
    let tile = world.leaves[&0].concat();
    add("good", "good", &tile, &heads[7]);
    let more = [&tile[..], &[7; 32]].concat();
    add("of-a-longer-log", "good", &more, &heads[7]);
    add(
        "changed",
        "bad-history",
        &patch(&tile, 100, &[tile[100] ^ 1]),
        &heads[7],
    );
    add(
        "half-a-hash-too-many",
        "bad-history",
        &[&tile[..], &[7; 16]].concat(),
        &heads[7],
    );
    add("cut", "bad-history", &tile[..7 * 32], &heads[7]);
    add("empty", "bad-history", &[], &heads[7]);
    let long = tile.repeat(29);
    add("of-261-hashes", "bad-history", &long, &heads[7]);
    let tile = other.leaves[&0].concat();
    add("of-another-history", "fork", &tile, &forked[6]);
}
