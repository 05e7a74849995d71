//! Published vectors of the primitives, and our own of the formats (docs/formats/statements.md).

use trust::checkpoint;
use trust::history::{Frontier, leaf_hash};
use trust::key::{PublicKey, SecretKey};
use trust::proposal::Proposal;
use trust::request::{Base, Request};
use trust::signatures::Signatures;
use trust::tiles::Edge;

use crate::world::*;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn array<const N: usize>(text: &str) -> [u8; N] {
    unhex(text).try_into().unwrap()
}

#[test]
fn rfc_8032_ed25519() {
    let vectors = [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
             5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
             18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ];
    for (seed, public, message, signature) in vectors {
        let key = SecretKey::from_seed(&array(seed));
        let message = unhex(message);
        assert_eq!(*key.public().as_bytes(), array(public));
        assert_eq!(key.sign(&message), array::<64>(signature));
        assert!(key.public().verify(&message, &array(signature)));
    }
}

#[test]
fn signature_that_only_lenient_verifiers_accept_is_refused() {
    // Key of seed [1; 32], R the point of order 1, S = k·a: [S]B = R + [k]A holds.
    let key = PublicKey::from_bytes(array(
        "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
    ))
    .unwrap();
    let signature = array(
        "0100000000000000000000000000000000000000000000000000000000000000\
         a8cbc417f8e24bf2fd37a45e6b7908a5285e69ef8a480e2dc00559aaa87ce209",
    );
    assert!(!key.verify(b"small order R", &signature));
}

#[test]
fn rfc_6962_merkle_tree_hashes() {
    // The eight leaves and the roots of Certificate Transparency's own tests.
    let steps = [
        (
            "",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        ),
        (
            "00",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        ),
        (
            "10",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        ),
        (
            "2021",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ),
        (
            "3031",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        ),
        (
            "40414243",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        ),
        (
            "5051525354555657",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        ),
        (
            "606162636465666768696a6b6c6d6e6f",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ),
    ];
    let mut frontier = Frontier::new();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(frontier.root(), array(empty));
    for (leaf, root) in steps {
        frontier.push(&unhex(leaf)).unwrap();
        assert_eq!(frontier.root(), array(root));
    }
}

/// The format document, which lists these lines.
const DOCUMENT: &str = include_str!("../../../../docs/formats/statements.md");

/// Lines that the format document must contain exactly.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        self.0.push(format!("{name:<17} {value}"));
    }

    fn missing(self) -> String {
        let mut lines = self.0;
        lines.retain(|line| !DOCUMENT.lines().any(|l| l == line));
        lines.join("\n")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn format_document_contains_the_bytes() {
    let (mut world, mut lines) = (World::new(), Lines::default());
    let genesis = world.policies[0].clone();
    lines.add("genesis", &hex(genesis.statement().bytes()));
    lines.add("genesis.hash", &hex(&genesis.hash()));
    lines.add(
        "genesis.signature",
        &hex(&genesis.signatures()[0].signature),
    );
    lines.add("volume", &world.volume.to_string());
    let head = world.publish(1);
    lines.add("record", &hex(head.record.statement().bytes()));
    lines.add("record.hash", &hex(&head.record.hash()));
    lines.add(
        "record.signature",
        &hex(&head.record.signatures()[0].signature),
    );
    lines.add("record.signed", &hex(&blake(&head.record.to_bytes())));
    let leaves = [&genesis, &head.record].map(|leaf| leaf.statement().bytes().to_vec());
    lines.add("tile.0.0.2", &hex(&tile_of(leaves, "0.0.2")));
    let numbers = (0..600).map(|number| number.to_string().into_bytes());
    lines.add("tile.1.0.2", &hex(&tile_of(numbers, "1.0.2")));
    lines.add("log.after", &hex(&world.log.root));
    let timestamp = world.timestamp(&head).statement(world.volume);
    lines.add("timestamp", &hex(timestamp.bytes()));
    lines.add("timestamp.hash", &hex(&timestamp.hash()));
    let successor = world.successor(Some(&head)).statement(world.volume);
    lines.add("successor", &hex(successor.bytes()));
    lines.add("successor.hash", &hex(&successor.hash()));
    lines.add("head.blake3", &hex(&blake(&head.encode().unwrap())));
    let floor = adopted(&world.floor(), &[&head]);
    lines.add("floor.blake3", &hex(&blake(&floor.encode())));
    let request = Request {
        base: Base::Genesis(genesis.statement().sign(&[])),
        record: head.record.statement().sign(&[]),
    };
    lines.add("request.blake3", &hex(&blake(&request.encode().unwrap())));
    let second = world.record(2).statement(world.volume);
    let later = Request {
        base: Base::Head(Box::new(head.clone())),
        record: sign(&second, &[2]),
    };
    lines.add("later.blake3", &hex(&blake(&later.encode().unwrap())));
    let proposal = Proposal {
        base: Box::new(head.clone()),
        policy: sign(&successor, &[1]),
    };
    assert!(proposal.examine(&mut Signatures::default()).is_ok());
    lines.add("proposal.blake3", &hex(&blake(&proposal.encode().unwrap())));
    let note = checkpoint::note(world.volume, &world.log, &key(2)).unwrap();
    let cosigned = world.checkpoint(&head, &[20]);
    let mut rotated = head.clone();
    for _ in 0..10 {
        let policy = world.successor(Some(&rotated));
        world.rotate(&policy, &[1]);
        let policy = world.policies.last().unwrap().clone();
        rotated = rotated.rotated(policy).unwrap();
    }
    lines.add("rotated.log", &hex(&world.log.root));
    lines.add("rotated.head", &hex(&blake(&rotated.encode().unwrap())));
    let signatures = &mut Signatures::default();
    let (floor, _) = world
        .floor()
        .learn_parts(&[&world.policies], NOW, signatures);
    let floor = adopted(&floor, &[&rotated]);
    lines.add("rotated.floor", &hex(&blake(&floor.encode())));
    lines.0.extend(note.lines().map(str::to_owned));
    let cosigned = std::str::from_utf8(&cosigned).unwrap();
    lines.0.extend(cosigned.lines().map(str::to_owned));
    let missing = lines.missing();
    assert!(
        missing.is_empty(),
        "not in docs/formats/statements.md:\n{missing}"
    );
}

/// A tile of the log that has these leaves.
fn tile_of(leaves: impl IntoIterator<Item = Vec<u8>>, name: &str) -> Vec<u8> {
    let (mut edge, mut tiles) = (Edge::new(), Vec::new());
    for leaf in leaves {
        edge.push(leaf_hash(&leaf), &mut tiles).unwrap();
    }
    tiles.extend(edge.tiles());
    let found = tiles.into_iter().find(|(tile, _)| tile.to_string() == name);
    found.unwrap().1
}

fn blake(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
