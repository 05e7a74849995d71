//! Heads, floors and path proofs that are refused.

use bytes::Bytes;
use trust::encode::Encoder;
use trust::floor::Floor;
use trust::handle::{Hasher, InodeBlock};
use trust::head::Head;
use trust::inode::{Content, Inode, Time};
use trust::path_proof::{Demands, PathProof, Prover};
use trust::root::RootRecord;

use super::lines::{Lines, patch};
use crate::world::*;

pub fn add(lines: &mut Lines) {
    forms_of_heads(lines);
    floors(lines);
    path_proofs(lines);
}

fn forms_of_heads(lines: &mut Lines) {
    let mut world = World::new();
    let mut head = world.publish(1);
    let good = head.encode().unwrap();
    let policy = head.policies[0].to_bytes();
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("head", name, expected, bytes, Head::decode(bytes));
    };
    add("head", "good", &good);
    add("empty", "malformed", &[]);
    add("cut", "malformed", &good[..good.len() - 1]);
    add("byte-too-many", "malformed", &[&good[..], &[0]].concat());
    add("later-format", "unsupported", &patch(&good, 0, &[1]));
    add("incompatible-flag", "unsupported", &patch(&good, 2, &[1]));
    // The genesis begins after two numbers, a count and the length of its statement.
    let genesis = 4 + 1 + 2;
    add("later-policy", "unsupported", &patch(&good, genesis, &[1]));
    add(
        "shared-volume",
        "unsupported",
        &patch(&good, genesis + 5, &[1]),
    );
    let timestamp = 4 + 1 + policy.len() + head.record.to_bytes().len();
    assert_eq!(good[timestamp], 0);
    add(
        "timestamp-flag-2",
        "malformed",
        &patch(&good, timestamp, &[2]),
    );
    add(
        "timestamp-missing",
        "malformed",
        &patch(&good, timestamp, &[1]),
    );
    // A frontier of 2 leaves has one hash.
    let frontier = timestamp + 2;
    assert_eq!(good[frontier], 1);
    add("frontier-of-2", "good", &patch(&good, frontier, &[2]));
    add("frontier-of-3", "malformed", &patch(&good, frontier, &[3]));
    let later_log = good.len() - 1;
    assert_eq!(good[later_log], 0);
    add(
        "later-log-flag-2",
        "malformed",
        &patch(&good, later_log, &[2]),
    );
    add(
        "later-log-missing",
        "malformed",
        &patch(&good, later_log, &[1]),
    );
    head.later_log = Some(head.frontier.clone());
    add("later-log", "good", &head.encode().unwrap());
    head.later_log = None;
    head.policies = vec![head.policies[0].clone(); 8];
    add("8-policies", "good", &head.encode().unwrap());
    head.policies.push(head.policies[0].clone());
    add("9-policies", "malformed", &head.encode().unwrap());
    head.policies.truncate(1);
    head.checkpoint = Some(vec![b'x'; 16 << 10].into());
    add("longest-checkpoint", "good", &head.encode().unwrap());
    head.checkpoint = Some(vec![b'x'; (16 << 10) + 1].into());
    add("checkpoint-too-long", "malformed", &head.encode().unwrap());
    add("too-long", "malformed", &vec![0; (1 << 20) + 1]);
}

fn floors(lines: &mut Lines) {
    let mut world = World::new();
    let head = world.publish(1);
    let floor = adopted(&world.floor(), &[&head]);
    let good = floor.encode();
    let body = &good[..good.len() - 32];
    let mut add = |name: &str, expected: &str, bytes: &[u8]| {
        lines.add("floor", name, expected, bytes, Floor::decode(bytes));
    };
    add("new", "good", &world.floor().encode());
    add("adopted", "good", &good);
    add("damaged", "malformed", &patch(&good, 40, &[good[40] ^ 1]));
    add("cut", "malformed", &good[..good.len() - 1]);
    add("empty", "malformed", &[]);
    add(
        "later-format",
        "unsupported",
        &with_checksum(patch(body, 0, &[1])),
    );
    let more = with_checksum([body, &[0]].concat());
    add("byte-too-many", "malformed", &more);
    // After format, volume, newest start and the policies: the flag of the adopted record.
    let flag = 2 + 32 + 8 + 1 + world.policies[0].to_bytes().len();
    assert_eq!(body[flag], 1);
    let mut patched = |name: &str, at: usize, with: &[u8]| {
        add(name, "malformed", &with_checksum(patch(body, at, with)));
    };
    patched("adopted-flag-2", flag, &[2]);
    patched("9-policies", 42, &[9]);
    let end = body.len() - 3;
    patched("policy-fork-flag-2", end, &[2]);
    patched("record-fork-cut", end + 1, &[1]);
    patched("17-refused", end + 2, &[17]);
    let without = [&body[..42], &[0], &body[flag..]].concat();
    add(
        "record-without-policy",
        "malformed",
        &with_checksum(without),
    );
    let refused = |hashes: &[[u8; 32]]| {
        let count = [hashes.len() as u8];
        with_checksum([&body[..end + 2], &count, &hashes.concat()[..]].concat())
    };
    add("refused-ascending", "good", &refused(&[[1; 32], [2; 32]]));
    add(
        "refused-descending",
        "malformed",
        &refused(&[[2; 32], [1; 32]]),
    );
    add("refused-twice", "malformed", &refused(&[[1; 32], [1; 32]]));
    let fork = |one: u8, other: u8| {
        with_checksum([&body[..end], &[1], &[one; 32], &[other; 32], &[0, 0]].concat())
    };
    add("fork-ascending", "good", &fork(1, 2));
    add("fork-descending", "malformed", &fork(2, 1));
    add("fork-of-one", "malformed", &fork(1, 1));
}

/// A volume whose root directory is empty, and one inode more that no directory names.
struct Tree {
    world: World,
    head: Head,
    root: Bytes,
    other: Bytes,
}

fn tree() -> Tree {
    let mut world = World::new();
    let inode = |mode| {
        let empty = Content::Directory {
            map: None,
            opaque: false,
        };
        Bytes::from(Inode::new(mode, Time::default(), empty).encode())
    };
    let (root, other) = (inode(0o755), inode(0o700));
    let (handle, _) = Hasher::new(&[9; 32]).seal::<InodeBlock>(root.clone());
    let record = RootRecord {
        root: handle,
        ..world.record(1)
    };
    let head = world.head_of(&record, &[2]);
    world.advance(&head);
    Tree {
        world,
        head,
        root,
        other,
    }
}

fn proof_bytes(path: &[u8], head: &Head, blocks: &[&[u8]]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u16(0).u16(0).bytes(path);
    e.bytes(&head.encode().unwrap());
    // No policies beside those of the head.
    e.varint(0).varint(blocks.len() as u64);
    blocks.iter().for_each(|block| {
        e.bytes(block);
    });
    e.finish()
}

fn path_proofs(lines: &mut Lines) {
    let Tree {
        world,
        mut head,
        root,
        other,
    } = tree();
    let mut prover = Prover::new(&head, &[], world.volume, b"seal").unwrap();
    prover.supply(root.clone()).unwrap();
    let good = prover.finish().unwrap().encode().unwrap();
    assert_eq!(good, proof_bytes(b"seal", &head, &[&root]));
    let mut add = |name: &str, expected: &str, path: &[u8], bytes: &[u8]| {
        let demands = Demands {
            now: NOW,
            least_policy: 0,
        };
        let proof = PathProof::decode(bytes);
        let result = proof.and_then(|proof| proof.verify(world.volume, path, &demands));
        lines.add_within(
            "path-proof",
            name,
            expected,
            bytes,
            &super::lines::hex(path),
            result,
        );
    };
    add("absent", "good", b"seal", &good);
    add("root", "good", b"", &proof_bytes(b"", &head, &[&root]));
    add("of-another-path", "malformed", b"seals", &good);
    add(
        "later-format",
        "unsupported",
        b"seal",
        &patch(&good, 0, &[1]),
    );
    add(
        "incompatible-flag",
        "unsupported",
        b"seal",
        &patch(&good, 2, &[1]),
    );
    add("cut", "malformed", b"seal", &good[..good.len() - 1]);
    add(
        "byte-too-many",
        "malformed",
        b"seal",
        &[&good[..], &[0]].concat(),
    );
    let blocks = |blocks: &[&[u8]]| proof_bytes(b"seal", &head, blocks);
    add("without-blocks", "malformed", b"seal", &blocks(&[]));
    let count = good.len() - root.len() - 3;
    assert_eq!(good[count..count + 2], [0, 1]);
    let genesis = world.policies[0].to_bytes();
    let older = [&good[..count], &[1], &genesis, &good[count + 1..]].concat();
    add("policy-too-many", "malformed", b"seal", &older);
    add(
        "block-too-many",
        "malformed",
        b"seal",
        &blocks(&[&root, &other]),
    );
    add("another-block", "wrong-block", b"seal", &blocks(&[&other]));
    add(
        "changed-block",
        "wrong-block",
        b"seal",
        &blocks(&[&patch(&root, 2, &[0])]),
    );
    for path in ["a//b", "/a", "a/", ".", "a/..", "a\0"] {
        let name = format!("path-{}", super::lines::hex(path.as_bytes()));
        let bytes = proof_bytes(path.as_bytes(), &head, &[&root]);
        add(&name, "malformed", path.as_bytes(), &bytes);
    }
    let signed = head.record.clone();
    head.record.add(&key(77));
    let padded = proof_bytes(b"seal", &head, &[&root]);
    add("strangers-signature", "malformed", b"seal", &padded);
    head.record = signed;
    head.checkpoint = Some(world.checkpoint(&head, &[20]));
    let padded = proof_bytes(b"seal", &head, &[&root]);
    add("needless-checkpoint", "malformed", b"seal", &padded);
    head.checkpoint = None;
    let timestamp = world.timestamp(&head).statement(world.volume);
    head.timestamp = Some(sign(&timestamp, &[2]));
    let padded = proof_bytes(b"seal", &head, &[&root]);
    add("needless-timestamp", "malformed", b"seal", &padded);
    head.timestamp = None;
    head.record = sign(head.record.statement(), &[3]);
    let unsigned = proof_bytes(b"seal", &head, &[&root]);
    add("not-signed", "not-signed", b"seal", &unsigned);
}
