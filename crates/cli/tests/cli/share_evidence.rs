//! `share check`: a third person judges a file of evidence with nothing but the program.

use trust::history::leaf_hash;
use trust::history::proof::Roots;
use trust::key::SecretKey;
use trust::policy::Genesis;
use trust::roles::Roles;
use trust::statement::{Signed, VolumeId};
use trust_shared::entry::Prefix;
use trust_shared::evidence::{Evidence, Offence};
use trust_shared::genesis::{self, Founder, SharedRoles, Silence};
use trust_shared::note::{Note, SignedNote};

use crate::support::Home;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(&[seed; 32])
}

/// A volume of owner 1 and orderer 2.
fn volume() -> (VolumeId, Signed) {
    let roles = Roles::single(key(1).public());
    let policy = Genesis::new("notes", [1; 32], [2; 32], roles).unwrap();
    let shared = SharedRoles {
        orderer: key(2).public(),
        checkpointers: trust::roles::Threshold::none(),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(Founder {
            user: [6; 32],
            name: "ada".to_owned(),
            device: key(3).public(),
        }),
    };
    let statement = genesis::genesis(&policy, &shared);
    let id = VolumeId::from_bytes(statement.hash());
    (id, statement.sign(&[&key(1)]))
}

/// The log of some leaves, and a note of it.
fn log(volume: VolumeId, leaves: &[&str]) -> (Roots, SignedNote) {
    let mut roots = Roots::default();
    for leaf in leaves {
        assert_eq!(roots.push(leaf_hash(leaf.as_bytes())), None);
    }
    let size = leaves.len() as u64;
    let root = roots.root_at(size, |_| None).unwrap();
    let note = Note {
        log: Prefix { size, root }.in_epoch(0),
        time_ms: 1_800_000_000_000,
    };
    (roots, note.sign(volume, &key(2)))
}

/// A file that convicts the orderer of showing two logs.
fn fork() -> (VolumeId, Vec<u8>) {
    let (volume, genesis) = volume();
    let (_, first) = log(volume, &["a", "b"]);
    let (roots, second) = log(volume, &["a", "c", "d"]);
    let evidence = Evidence {
        volume,
        epoch: 0,
        policies: vec![genesis],
        offence: Offence::Fork {
            first,
            second,
            proof: roots.prefix(2, 3, |_| None).unwrap(),
        },
    };
    (volume, evidence.encode().unwrap())
}

#[test]
fn evidence_of_a_fork_convicts_the_orderer() {
    let home = Home::new();
    let (volume, bytes) = fork();
    std::fs::write(home.path("fork"), &bytes).unwrap();
    let told = home.run(&["--json", "share", "check", "fork"]).ends(0);
    assert_eq!(told.field("volume"), volume.to_string());
    assert_eq!(told.field("convicted"), "orderer");
    assert_eq!(told.field("key"), key(2).public().to_string());
    assert_eq!(told.field("epoch"), 0);
    let told = home.run(&["share", "check", "fork"]).ends(0);
    assert!(told.out.contains("signed two logs"), "{}", told.out);
    let id = volume.to_string();
    home.run(&["share", "check", "fork", "--volume", &id])
        .ends(0);
    let other = VolumeId::from_bytes([9; 32]).to_string();
    let refused = home
        .run(&["share", "check", "fork", "--volume", &other])
        .ends(2);
    assert!(refused.err.contains(&id), "{}", refused.err);
}

#[test]
fn changed_evidence_convicts_nobody() {
    let home = Home::new();
    let (_, bytes) = fork();
    // The numbers of format and flags too: the checksum tells a damaged file from one of a later format.
    for at in [0, 7, 8, 9, 10, 11, 12, 50, bytes.len() / 2, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(home.path("changed"), &changed).unwrap();
        let told = home.run(&["share", "check", "changed"]).ends(20);
        assert!(told.err.contains("convicts nobody"), "byte {at}");
    }
    std::fs::write(home.path("cut"), &bytes[..bytes.len() - 1]).unwrap();
    home.run(&["share", "check", "cut"]).ends(20);
    std::fs::write(home.path("empty"), b"").unwrap();
    home.run(&["share", "check", "empty"]).ends(20);
    let long = std::fs::File::create(home.path("long")).unwrap();
    long.set_len(5 << 30).unwrap();
    home.run(&["share", "check", "long"]).ends(20);
    home.run(&["share", "check", "nowhere"]).ends(10);
}

#[test]
fn orderer_key_is_a_key_file() {
    let home = Home::new();
    let made = home.run(&[
        "--json",
        "orderer",
        "new",
        "--out",
        "orderer",
        "--no-passphrase",
    ]);
    let made = made.ends(0);
    let shown = home.run(&["--json", "key", "show", "orderer"]).ends(0);
    assert_eq!(made.field("key"), shown.field("key"));
    assert_eq!(made.field("passphrase"), false);
    home.run(&["orderer", "new", "--out", "orderer", "--no-passphrase"])
        .ends(1);
    home.run(&["orderer", "new", "--out", "other", "--no-input"])
        .ends(2);
    assert!(!home.path("other").exists());
}
