//! Proofs for paths: what they show, and attempts to show something else.

use std::collections::HashMap;

use bytes::Bytes;
use trust::error::Class;
use trust::head::Head;
use trust::inode::{Content, Entry, Inode, Time, Xattrs};
use trust::map::Builder;
use trust::path_proof::{Demands, MAX_PATH_PROOF_BYTES, PathProof, Prover, Shown};
use trust::policy::{Roles, Successor};
use trust::reach::{Absence, Outcome};
use trust::statement::{Signed, VolumeId};
use trust::{Handle, Hasher, InodeBlock, MapNode, Reject, encode::Decoder, encode::Encoder};

use crate::world::*;

mod beside_floors;

/// A world whose newest version has this tree:
///
/// ```text
/// docs/          400 files with attributes: a directory of several nodes
/// docs/n000 ...  docs/big has its inode in a block
/// empty/
/// link -> x
/// ```
struct Volume {
    world: World,
    head: Head,
    blocks: HashMap<Handle, Bytes>,
}

fn hasher() -> Hasher {
    Hasher::new(&[9; 32])
}

fn demands() -> Demands {
    Demands {
        now: NOW,
        least_policy: 0,
    }
}

fn file(xattr_bytes: usize) -> Inode {
    let mut inode = Inode::new(0o755, Time::default(), Content::Fifo);
    let value = Bytes::from(vec![b'v'; xattr_bytes]);
    inode.xattrs = Xattrs::Inline(vec![(Bytes::from_static(b"user.a"), value)]);
    inode
}

fn directory(blocks: &mut HashMap<Handle, Bytes>, entries: &[(Vec<u8>, Vec<u8>)]) -> Inode {
    let mut nodes = Vec::new();
    let sink = |handle: Handle<MapNode>, bytes: &Bytes| nodes.push((handle.any(), bytes.clone()));
    let mut builder = Builder::new(&hasher(), [0; 16], sink);
    for (name, value) in entries {
        builder.push(name, value).unwrap();
    }
    let map = builder.finish().unwrap();
    blocks.extend(nodes);
    let content = Content::Directory { map, opaque: false };
    Inode::new(0o755, Time::default(), content)
}

fn inode_block(blocks: &mut HashMap<Handle, Bytes>, inode: &Inode) -> Handle<InodeBlock> {
    let (handle, block) = hasher().seal::<InodeBlock>(inode.encode().into());
    blocks.insert(handle.any(), block.into_bytes());
    handle
}

fn tree(blocks: &mut HashMap<Handle, Bytes>) -> Handle<InodeBlock> {
    let big = Entry::Block(inode_block(blocks, &file(1000))).encode();
    let mut docs = vec![(b"big".to_vec(), big)];
    docs.extend((0..400).map(|n| (format!("n{n:03}").into_bytes(), file(500 + n).encode())));
    let docs = directory(blocks, &docs).encode();
    let empty = directory(blocks, &[]).encode();
    let link = Inode::new(0o777, Time::default(), Content::Symlink("x".into())).encode();
    let entries = [("docs", docs), ("empty", empty), ("link", link)];
    let entries = entries.map(|(name, value)| (name.as_bytes().to_vec(), value));
    let root = directory(blocks, &entries);
    inode_block(blocks, &root)
}

impl Volume {
    fn new() -> Volume {
        Volume::of(World::new(), 1, &[2])
    }

    fn of(mut world: World, version: u64, publishers: &[u8]) -> Volume {
        let mut blocks = HashMap::new();
        let mut record = world.record(version);
        record.root = tree(&mut blocks);
        let head = world.head_of(&record, publishers);
        world.advance(&head);
        Volume {
            world,
            head,
            blocks,
        }
    }

    fn prove(&self, path: &str) -> PathProof {
        self.prove_under(&self.head, path)
    }

    fn prove_under(&self, head: &Head, path: &str) -> PathProof {
        let mut prover = Prover::new(head, &[], self.world.volume, path.as_bytes()).unwrap();
        while let Some(wanted) = prover.wants() {
            prover
                .supply(self.blocks[&wanted.handle()].clone())
                .unwrap();
        }
        prover.finish().unwrap()
    }

    fn check(&self, bytes: &[u8], path: &str, demands: &Demands) -> Result<Shown, Reject> {
        let proof = PathProof::decode(bytes)?;
        assert_eq!(proof.encode().unwrap(), bytes, "one encoding");
        proof.verify(self.world.volume, path.as_bytes(), demands)
    }
}

#[test]
fn proof_shows_presence_and_absence() {
    let volume = Volume::new();
    let absent = |absence| Outcome::Absent(absence);
    for (path, expected) in [
        ("docs/n007", Outcome::Present(Box::new(file(507)))),
        ("docs/big", Outcome::Present(Box::new(file(1000)))),
        ("docs/n400", absent(Absence::NoEntry { found: 1 })),
        ("docs/a", absent(Absence::NoEntry { found: 1 })),
        ("doc", absent(Absence::NoEntry { found: 0 })),
        ("doc/n007/deeper", absent(Absence::NoEntry { found: 0 })),
        ("empty/x/y", absent(Absence::NoEntry { found: 1 })),
        ("docs/n007/x", absent(Absence::NotADirectory { found: 2 })),
        ("link/x", absent(Absence::NotADirectory { found: 1 })),
        ("docs/big/x/y", absent(Absence::NotADirectory { found: 2 })),
    ] {
        let bytes = volume.prove(path).encode().unwrap();
        let shown = volume.check(&bytes, path, &demands()).unwrap();
        assert_eq!(shown.outcome, expected, "{path}");
        assert_eq!((shown.policy_number, shown.record.version), (0, 1));
        assert_eq!(shown.record_hash, volume.head.record.hash());
        assert_eq!(shown.valid_until, NOW + WEEK);
    }
    for path in ["", "docs", "empty", "link"] {
        let bytes = volume.prove(path).encode().unwrap();
        let shown = volume.check(&bytes, path, &demands()).unwrap();
        assert!(matches!(shown.outcome, Outcome::Present(_)), "{path}");
    }
}

/// A volume under a rotated policy with timestamps and witnesses: its proof has every part.
fn with_every_part() -> (Volume, PathProof) {
    let mut world = World::new();
    let first = world.publish(1);
    let roles = Roles {
        owners: threshold(2, &[1, 6, 7]),
        timestamps: threshold(1, &[3, 4]),
        timestamp_max: 7200,
        witnesses: threshold(1, &[20, 21]),
        ..roles()
    };
    let successor = Successor {
        roles,
        ..world.successor(Some(&first))
    };
    world.rotate(&successor, &[1, 6, 7, 30]);
    let mut volume = Volume::of(world, 2, &[2, 30]);
    let head = &mut volume.head;
    let timestamp = volume.world.timestamp(head);
    // The world's log already contains the head's record; the checkpoint is of the log after it.
    head.timestamp = Some(sign(&timestamp.statement(volume.world.volume), &[3, 30]));
    head.checkpoint = Some(volume.world.checkpoint(head, &[30, 20, 20, 21]));
    let proof = volume.prove("docs/n007");
    (volume, proof)
}

#[test]
fn proof_leaves_out_parts_that_are_not_required() {
    let (volume, proof) = with_every_part();
    let bytes = proof.encode().unwrap();
    let shown = volume.check(&bytes, "docs/n007", &demands()).unwrap();
    assert_eq!((shown.policy_number, shown.valid_until), (1, NOW + 3600));
    let contains = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(contains(key(2).public().as_bytes()));
    assert!(
        !contains(key(30).public().as_bytes()),
        "a key without a role"
    );
    assert_eq!(
        bytes
            .windows(17)
            .filter(|w| *w == b"witness.example/2")
            .count(),
        2
    );
    // A timestamp and a checkpoint are left out when no policy requires them.
    let plain = Volume::new();
    let mut head = plain.head.clone();
    let timestamp = plain.world.timestamp(&head).statement(plain.world.volume);
    head.timestamp = Some(sign(&timestamp, &[3]));
    head.checkpoint = Some(plain.world.checkpoint(&head, &[20]));
    assert_eq!(plain.prove_under(&head, "docs"), plain.prove("docs"));
}

/// The parts of a proof, for putting them together in other ways.
struct Parts {
    path: Vec<u8>,
    head: Vec<u8>,
    older: Vec<Signed>,
    blocks: Vec<Vec<u8>>,
}

impl Parts {
    fn of(proof: &PathProof) -> Parts {
        let bytes = proof.encode().unwrap();
        let mut d = Decoder::new(&bytes, "proof");
        d.u32().unwrap();
        let path = d.bytes(1 << 16).unwrap().to_vec();
        let head = d.bytes(1 << 20).unwrap().to_vec();
        let count = d.varint().unwrap();
        let older = (0..count)
            .map(|_| Signed::decode(&mut d).unwrap())
            .collect();
        let count = d.varint().unwrap();
        let block = |_| d.bytes(1 << 16).unwrap().to_vec();
        let blocks = (0..count).map(block).collect();
        Parts {
            path,
            head,
            older,
            blocks,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u16(0).u16(0).bytes(&self.path).bytes(&self.head);
        e.varint(self.older.len() as u64);
        for policy in &self.older {
            policy.encode(&mut e);
        }
        e.varint(self.blocks.len() as u64);
        for block in &self.blocks {
            e.bytes(block);
        }
        e.finish()
    }

    /// The proof with a changed head.
    fn with_head(&self, change: impl Fn(&mut Head)) -> Vec<u8> {
        let mut head = Head::decode(&self.head).unwrap();
        change(&mut head);
        let head = head.encode().unwrap();
        Parts {
            head,
            path: self.path.clone(),
            older: self.older.clone(),
            blocks: self.blocks.clone(),
        }
        .bytes()
    }
}

#[test]
fn every_flipped_byte_is_refused() {
    let (volume, proof) = with_every_part();
    let bytes = proof.encode().unwrap();
    let blocks: usize = Parts::of(&proof).blocks.iter().map(Vec::len).sum();
    for at in 0..bytes.len() {
        // One bit of each byte; of the blocks, which a hash covers, one byte in 97.
        if at > bytes.len() - blocks && at % 97 != 0 {
            continue;
        }
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        let checked = volume.check(&bad, "docs/n007", &demands());
        assert!(checked.is_err(), "byte {at} of {}", bytes.len());
    }
}

#[test]
fn truncated_or_longer_proof_is_refused() {
    let (volume, proof) = with_every_part();
    let bytes = proof.encode().unwrap();
    for cut in (0..bytes.len()).filter(|cut| *cut < 3000 || cut % 53 == 0) {
        assert!(PathProof::decode(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    refused_as(
        volume.check(&longer, "docs/n007", &demands()),
        "trailing bytes",
    );
    let huge = vec![0; MAX_PATH_PROOF_BYTES + 1];
    refused_as(PathProof::decode(&huge), "too long");
    let later = [&[1, 0], &bytes[2..]].concat();
    refused_as(PathProof::decode(&later), "needs a newer bulla");
}

#[test]
fn blocks_swapped_missing_or_surplus_are_refused() {
    let volume = Volume::new();
    let proof = volume.prove("docs/big");
    let count = Parts::of(&proof).blocks.len();
    assert!(
        count >= 4,
        "root, its directory, docs of two levels, the inode"
    );
    let check = |parts: &Parts| volume.check(&parts.bytes(), "docs/big", &demands());
    assert!(check(&Parts::of(&proof)).is_ok());
    for i in 0..count {
        let mut parts = Parts::of(&proof);
        let block = parts.blocks.remove(i);
        assert!(check(&parts).is_err(), "without block {i}");
        parts.blocks.insert(i, block.clone());
        parts.blocks.insert(i, block);
        assert!(check(&parts).is_err(), "block {i} twice");
        for j in 0..i {
            let mut parts = Parts::of(&proof);
            parts.blocks.swap(i, j);
            refused_as(check(&parts), "does not hash to the requested handle");
        }
    }
    let mut parts = Parts::of(&proof);
    parts.blocks.push(parts.blocks[0].clone());
    refused_as(check(&parts), "goes on after the end of the path");
    parts.blocks.truncate(count - 1);
    refused_as(check(&parts), "ends before the path");
}

#[test]
fn proof_of_another_path_or_volume_is_refused() {
    let volume = Volume::new();
    let proof = volume.prove("docs/n007");
    let bytes = proof.encode().unwrap();
    refused_as(
        volume.check(&bytes, "docs/n008", &demands()),
        "another path",
    );
    // Another path in the proof does not help: the blocks do not lead there, or it is not canonical.
    let mut parts = Parts::of(&proof);
    parts.path = b"empty/n007".to_vec();
    assert!(
        volume
            .check(&parts.bytes(), "empty/n007", &demands())
            .is_err()
    );
    parts.path = b"docs//n007".to_vec();
    assert!(
        volume
            .check(&parts.bytes(), "docs//n007", &demands())
            .is_err()
    );
    let other = VolumeId::from_bytes([5; 32]);
    let refused = proof.verify(other, b"docs/n007", &demands());
    assert_eq!(refused.unwrap_err(), Reject::WrongVolume);
    assert!(Prover::new(&volume.head, &[], other, b"docs").is_err());
    let stranger = World::with_genesis(roles(), u64::MAX - 1, &[1]);
    let refused = proof.verify(stranger.volume, b"docs/n007", &demands());
    assert_eq!(refused.unwrap_err(), Reject::WrongVolume);
}

#[test]
fn expired_or_early_proof_is_refused() {
    let (volume, proof) = with_every_part();
    let at = |now| {
        let demands = Demands { now, ..demands() };
        proof.verify(volume.world.volume, b"docs/n007", &demands)
    };
    assert!(at(NOW + 3599).is_ok() && at(NOW - 600).is_ok());
    assert_eq!(at(NOW + 3600).unwrap_err().class(), Class::Expired);
    assert!(matches!(at(NOW - 601), Err(Reject::NotYetValid { .. })));
    let plain = Volume::new();
    let proof = plain.prove("docs");
    let demands = Demands {
        now: NOW + WEEK,
        ..demands()
    };
    let refused = proof.verify(plain.world.volume, b"docs", &demands);
    assert!(matches!(refused, Err(Reject::Expired { .. })));
}

#[test]
fn proof_under_an_older_policy_than_demanded_is_refused() {
    let volume = Volume::new();
    let proof = volume.prove("docs");
    let demands = Demands {
        least_policy: 1,
        ..demands()
    };
    let refused = proof.verify(volume.world.volume, b"docs", &demands);
    let expected = Reject::Rollback {
        offered: 0,
        floor: 1,
    };
    assert_eq!(refused.unwrap_err(), expected);
    let (volume, proof) = with_every_part();
    assert!(
        proof
            .verify(volume.world.volume, b"docs/n007", &demands)
            .is_ok()
    );
}

#[test]
fn surplus_statement_or_signature_is_refused() {
    let (volume, proof) = with_every_part();
    let parts = Parts::of(&proof);
    let check = |bytes: &[u8]| volume.check(bytes, "docs/n007", &demands());
    assert!(check(&parts.with_head(|_| {})).is_ok());
    let surplus = "not required";
    refused_as(
        check(&parts.with_head(|head| head.record.add(&key(30)))),
        surplus,
    );
    refused_as(
        check(&parts.with_head(|head| head.policies[0].add(&key(30)))),
        surplus,
    );
    let timestamp = |head: &mut Head| head.timestamp.as_mut().unwrap().add(&key(30));
    refused_as(check(&parts.with_head(timestamp)), surplus);
    let line = |head: &mut Head| {
        let note = head.checkpoint.take().unwrap();
        head.checkpoint = Some([&note[..], "\u{2014} x AAAA\n".as_bytes()].concat().into());
    };
    refused_as(check(&parts.with_head(line)), surplus);
    let plain = Volume::new();
    let parts = Parts::of(&plain.prove("docs"));
    let head = parts.with_head(|head| head.checkpoint = Some("any".into()));
    refused_as(plain.check(&head, "docs", &demands()), surplus);
}

#[test]
fn prover_refuses_another_block() {
    let volume = Volume::new();
    let mut prover = Prover::new(&volume.head, &[], volume.world.volume, b"docs").unwrap();
    let refused = prover.supply(Bytes::from_static(b"other")).unwrap_err();
    assert_eq!(refused, Reject::WrongBlock);
    refused_as(prover.finish(), "ends before the path");
    assert!(Prover::new(&volume.head, &[], volume.world.volume, b"docs/..").is_err());
    let unsigned = volume.world.head_of(&volume.world.record(2), &[5]);
    refused_as(
        Prover::new(&unsigned, &[], volume.world.volume, b"docs"),
        "not signed as the policy demands",
    );
}

/// Frozen bytes: docs/formats/path-proof.md gives the same.
#[test]
fn vectors() {
    let mut world = World::new();
    let mut blocks = HashMap::new();
    let root = directory(&mut blocks, &[]);
    let mut record = world.record(1);
    record.root = inode_block(&mut blocks, &root);
    let head = world.head_of(&record, &[2]);
    world.advance(&head);
    let volume = Volume {
        world,
        head,
        blocks,
    };
    let bytes = volume.prove("seal").encode().unwrap();
    let shown = volume.check(&bytes, "seal", &demands()).unwrap();
    assert_eq!(
        shown.outcome,
        Outcome::Absent(Absence::NoEntry { found: 0 })
    );
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let page = include_str!("../../../../docs/formats/path-proof.md");
    assert!(page.contains(&hex), "{hex}");
}

/// A volume whose policies do not fit into a head.
fn rotated_often() -> Volume {
    let mut volume = Volume::new();
    for _ in 0..20 {
        let policy = volume.world.successor(Some(&volume.head));
        volume.world.rotate(&policy, &[1]);
        let policy = volume.world.policies.last().unwrap().clone();
        volume.head = volume.head.rotated(policy).unwrap();
    }
    volume
}

#[test]
fn proof_after_many_rotations_carries_the_older_policies() {
    let volume = rotated_often();
    let (older, all) = (&volume.world.policies[1..14], volume.world.volume);
    assert_eq!(volume.head.begins(), 14);
    let prove = |older: &[Signed]| -> Result<PathProof, Reject> {
        let mut prover = Prover::new(&volume.head, older, all, b"docs")?;
        while let Some(wanted) = prover.wants() {
            prover.supply(volume.blocks[&wanted.handle()].clone())?;
        }
        prover.finish()
    };
    let proof = prove(older).unwrap();
    let check = |parts: &Parts| volume.check(&parts.bytes(), "docs", &demands());
    assert_eq!(check(&Parts::of(&proof)).unwrap().policy_number, 20);
    assert!(prove(&older[..12]).is_err(), "one is missing");
    for change in [
        |older: &mut Vec<Signed>| drop(older.remove(12)),
        |older: &mut Vec<Signed>| drop(older.remove(0)),
        |older: &mut Vec<Signed>| older.swap(3, 4),
        |older: &mut Vec<Signed>| older[3].add(&key(30)),
        |older: &mut Vec<Signed>| older.clear(),
    ] {
        let mut parts = Parts::of(&proof);
        change(&mut parts.older);
        assert!(check(&parts).is_err());
    }
    let mut parts = Parts::of(&proof);
    parts.older.push(volume.world.policies[14].clone());
    assert!(check(&parts).is_err(), "one that the head has");
}
