//! Shared volumes: policies, entries, marks, attests, notes, checkpoints, evidence, invitations; good ones, and others
//! that are refused.

use bytes::Bytes;
use trust::device::{DeviceKey, Incarnation};
use trust::encode::{Decoder, Encoder};
use trust::history::leaf_hash;
use trust::history::proof::Roots;
use trust::map::MapRoot;
use trust::policy::{Genesis, NO_END, Successor, VolumeId};
use trust::signatures::Signatures;
use trust::statement::{Job, Signed};
use trust::{Handle, Reject};
use trust_shared::attest::{Attest, SignedAttest};
use trust_shared::checkpoint::{Checkpoint, VerifiedCheckpoint};
use trust_shared::entry::{Content, Entry, Ops, Prefix, SignedEntry, body_hash};
use trust_shared::evidence::{Evidence, Included, Offence};
use trust_shared::genesis::{self, Founder, Policies, SharedRoles, Silence};
use trust_shared::leaf::Leaf;
use trust_shared::mark::{MarkProof, MarkTree, Marks, Nonce};
use trust_shared::note::{Note, SignedNote};

use crate::lines::hex;
use crate::lines::{Lines, patch};
use crate::{NOW, key, roles, sign, threshold};

mod admission;
mod offences;
mod rows;

const HEADER: &str = "\
# Shared volumes (docs/formats/shared.md): bytes and the verdict that they get, for the volume below.
# STRUCTURE VERDICT NAME BYTES [CONTEXT]
# Bytes are hexadecimal digits and runs HH*N (N bytes HH), joined by +; - stands for none.
# policies    signed policies one after another, from the genesis on. Verify their chain.
# leaf        a leaf of the log; the signature of an entry is verified. Context of a good one: its leaf hash.
# mark        the proof of a nonce. Context: LEAF,NONCE.
# attest      verified under the device's key.
# note        the compact form, verified under the orderer below. Context of the good one: its text.
# checkpoint  a signed checkpoint; 2 of the checkpointers below must sign.
# row         a key of a checkpoint's state.
# author      the value of an author's row.
# value       a row: key and value, each with a varint before it that says its length. Of a log of 1,000 leaves.
# evidence    a file. Context of one that convicts: the key.
# line        an invitation (as text).
# request, challenge, opening    messages for the invitation below. Context of the good opening: the words.
";

/// Orderer 2, checkpointers 4, 5 and 6; the founder's device is 3.
fn shared_roles(is_genesis: bool) -> SharedRoles {
    let founder = Founder {
        user: [6; 32],
        name: "ada".to_owned(),
        device: key(3).public(),
    };
    SharedRoles {
        orderer: key(2).public(),
        checkpointers: threshold(2, &[4, 5, 6]),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: is_genesis.then_some(founder),
    }
}

/// A volume with a log in which the founder's device resumes and writes twice.
#[derive(Clone)]
struct Shared {
    volume: VolumeId,
    policies: Vec<Signed>,
    leaves: Vec<Bytes>,
    roots: Roots,
}

impl Shared {
    fn new() -> Shared {
        let genesis = Genesis::new("shared", [7; 32], [9; 32], roles()).unwrap();
        let statement = genesis::genesis(&genesis, &shared_roles(true));
        let mut shared = Shared {
            volume: VolumeId::from_bytes(statement.hash()),
            policies: vec![sign(&statement, &[1])],
            leaves: Vec::new(),
            roots: Roots::new(),
        };
        for n in 0..3 {
            shared.push(shared.sign(&shared.entry(n)).bytes().clone());
        }
        shared
    }

    fn push(&mut self, leaf: Bytes) {
        self.roots.push(leaf_hash(&leaf));
        self.leaves.push(leaf);
    }

    fn prefix(&self, size: u64) -> Prefix {
        let root = self.roots.root_at(size, |_| None).unwrap();
        Prefix { size, root }
    }

    /// The `n`th entry of the founder's device, at the end of the log.
    fn entry(&self, n: u64) -> Entry {
        let seen = self.prefix(self.roots.size());
        let ops = |n: u64| Ops {
            n,
            previous: leaf_hash(&self.leaves[n as usize - 1]),
            outline: Bytes::from_static(b"outline"),
            body_hash: body_hash(b"body"),
        };
        Entry {
            epoch: 0,
            device: DeviceKey::from(&key(3).public()),
            incarnation: Incarnation::from_bytes([1; 16]),
            kept: seen.size,
            seen,
            content: match n {
                0 => Content::Resume,
                n => Content::Ops(ops(n)),
            },
        }
    }

    fn sign(&self, entry: &Entry) -> SignedEntry {
        entry.sign(self.volume, &key(3)).unwrap()
    }

    fn note(&self) -> SignedNote {
        let note = Note {
            log: self.prefix(self.roots.size()).in_epoch(0),
            time_ms: NOW * 1000,
        };
        note.sign(self.volume, &key(2))
    }

    fn included(&self, index: u64) -> Included {
        let path = self.roots.inclusion(index, self.roots.size(), |_| None);
        Included {
            index,
            leaf: self.leaves[index as usize].clone(),
            path: path.unwrap(),
        }
    }

    fn with(&self, leaf: Bytes) -> Shared {
        let mut longer = self.clone();
        longer.push(leaf);
        longer
    }

    fn evidence(&self, policies: bool, offence: Offence) -> Evidence {
        Evidence {
            volume: self.volume,
            epoch: 0,
            policies: self.policies.iter().filter(|_| policies).cloned().collect(),
            offence,
        }
    }
}

pub fn text() -> String {
    let shared = Shared::new();
    let mut lines = Lines::new(HEADER);
    lines.context("volume", shared.volume.as_bytes());
    lines.context("orderer", key(2).public().as_bytes());
    for number in 4..7 {
        lines.context("checkpointer", key(number).public().as_bytes());
    }
    policies(&mut lines, &shared);
    leaves(&mut lines, &shared);
    marks(&mut lines);
    attests(&mut lines, &shared);
    notes(&mut lines, &shared);
    checkpoints(&mut lines, &shared);
    rows::add(&mut lines);
    offences::add(&mut lines, &shared);
    admission::add(&mut lines, &shared);
    lines.finish()
}

fn policies(lines: &mut Lines, shared: &Shared) {
    let volume = shared.volume;
    let genesis = shared.policies[0].to_bytes();
    let read = |bytes: &[u8]| {
        let mut d = Decoder::new(bytes, "policies");
        let mut policies = Vec::new();
        while d.remaining() > 0 {
            policies.push(Signed::decode_of(Job::Shared, &mut d)?);
        }
        Policies::verify(volume, &policies, &mut Signatures::default()).map(drop)
    };
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("policies", name, verdict, bytes, read(bytes));
    };
    add("genesis", "good", &genesis);
    let successor = |orderer: u8, start: Option<Prefix>| {
        let successor = Successor {
            number: 1,
            previous: shared.policies[0].hash(),
            not_after: NO_END,
            log_epoch: u64::from(start.is_some()),
            roles: roles(),
            last: start.map(|start| genesis::standing(0, &start)),
            lower: false,
            revoked: None,
            refused: Vec::new(),
        };
        let roles = SharedRoles {
            orderer: key(orderer).public(),
            ..shared_roles(false)
        };
        let statement = genesis::successor(volume, &successor, &roles);
        [genesis.as_slice(), &sign(&statement, &[1]).to_bytes()].concat()
    };
    add("same-epoch", "good", &successor(2, None));
    add("next-epoch", "good", &successor(7, Some(shared.prefix(2))));
    add(
        "other-orderer-in-one-epoch",
        "malformed",
        &successor(7, None),
    );
    // The flags are in the second byte after the length of the statement, which has two bytes.
    add("without-the-flag", "malformed", &patch(&genesis, 7, &[0]));
    add("sealed-too", "unsupported", &patch(&genesis, 7, &[3]));
    let last = genesis.len() - 1;
    let spoilt = patch(&genesis, last, &[genesis[last] ^ 1]);
    add("bad-signature", "not-signed", &spoilt);
}

fn leaves(lines: &mut Lines, shared: &Shared) {
    let read = |bytes: &[u8]| match Leaf::decode(Bytes::copy_from_slice(bytes))? {
        Leaf::Entry(entry) => entry.verify(shared.volume).map(drop),
        Leaf::Marks(_) => Ok(()),
    };
    let tree = MarkTree::new(vec![Nonce::from_bytes([1; 32])]).unwrap();
    let marks = tree.marks().encode();
    let (resume, ops) = (&shared.leaves[0], &shared.leaves[1]);
    for (name, leaf) in [("resume", resume.as_ref()), ("ops", ops), ("marks", &marks)] {
        let hash = hex(&leaf_hash(leaf));
        lines.add_within("leaf", name, "good", leaf, &hash, read(leaf));
    }
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("leaf", name, verdict, bytes, read(bytes));
    };
    add("empty", "malformed", &[]);
    add("cut", "malformed", &ops[..ops.len() - 1]);
    add(
        "byte-after-the-signature",
        "malformed",
        &[ops, &[0][..]].concat(),
    );
    add("kind-0", "unsupported", &patch(ops, 0, &[0]));
    add("kind-4", "unsupported", &patch(ops, 0, &[4]));
    // Kind, epoch, device, incarnation; then size and root of what was seen; then what may be forgotten.
    let forgets = 1 + 1 + 32 + 16 + 1 + 32;
    add(
        "overlong-epoch",
        "malformed",
        &[&[2, 0x80, 0][..], &resume[2..]].concat(),
    );
    add(
        "keeps-more-than-it-saw",
        "malformed",
        &patch(ops, forgets, &[2]),
    );
    add(
        "ops-with-number-0",
        "malformed",
        &patch(ops, forgets + 1, &[0]),
    );
    add("resume-as-ops", "malformed", &patch(resume, 0, &[1]));
    add("of-no-key", "not-signed", &patch(ops, 2, &[0; 32]));
    let last = ops.len() - 1;
    add(
        "spoilt-signature",
        "not-signed",
        &patch(ops, last, &[ops[last] ^ 1]),
    );
    let mut other = shared.clone();
    other.volume = VolumeId::from_bytes([1; 32]);
    let other = other.sign(&shared.entry(1));
    add("of-another-volume", "not-signed", other.bytes());
    add("no-marks", "malformed", &[&[3][..], &[0; 32]].concat());
    add("cut-marks", "malformed", &marks[..32]);
    add(
        "byte-after-marks",
        "malformed",
        &[&marks[..], &[0]].concat(),
    );
}

fn marks(lines: &mut Lines) {
    let nonces: Vec<Nonce> = (0..5).map(|n| Nonce::from_bytes(leaf_hash(&[n]))).collect();
    let tree = MarkTree::new(nonces.clone()).unwrap();
    let leaf = tree.marks().encode();
    let mut e = Encoder::new();
    tree.prove(&nonces[3]).unwrap().encode(&mut e);
    let proof = e.finish();
    let mut add = |name: &str, verdict: &str, bytes: &[u8], nonce: &Nonce| {
        let read = || {
            let mut d = Decoder::new(bytes, "proof of a mark");
            let proof = MarkProof::decode(&mut d)?;
            d.finish()?;
            let found = Marks::decode(&leaf)?.contain(nonce, &proof);
            found
                .then_some(())
                .ok_or(Reject::BadHistory("no such mark"))
        };
        let context = format!("{},{}", hex(&leaf), hex(nonce.as_bytes()));
        lines.add_within("mark", name, verdict, bytes, &context, read());
    };
    add("of-five", "good", &proof, &nonces[3]);
    add("of-another-nonce", "bad-history", &proof, &nonces[2]);
    let changed = patch(&proof, 1, &[proof[1] ^ 1]);
    add("changed", "bad-history", &changed, &nonces[3]);
    add("cut", "malformed", &proof[..proof.len() - 1], &nonces[3]);
    let deep = [&[0x81, 0x02][..], &[0; 257 * 32]].concat();
    add("deeper-than-a-nonce", "malformed", &deep, &nonces[3]);
}

fn attests(lines: &mut Lines, shared: &Shared) {
    let attest = Attest {
        epoch: 0,
        device: DeviceKey::from(&key(3).public()),
        seen: shared.prefix(2),
    };
    let good = attest.sign(shared.volume, &key(3)).unwrap();
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        let read = SignedAttest::decode(Bytes::copy_from_slice(bytes));
        let read = read.and_then(|attest| attest.verify(shared.volume));
        lines.add("attest", name, verdict, bytes, read);
    };
    let good = good.bytes();
    add("of-two-leaves", "good", good);
    add("of-three", "not-signed", &patch(good, 33, &[3]));
    add("cut", "malformed", &good[..good.len() - 1]);
    add("longer", "malformed", &[good, &[0][..]].concat());
}

fn notes(lines: &mut Lines, shared: &Shared) {
    let orderer = key(2).public();
    let read = |bytes: &[u8]| {
        let mut d = Decoder::new(bytes, "note");
        let note = SignedNote::decode(&mut d)?;
        d.finish()?;
        note.verify(shared.volume, &orderer).map(drop)
    };
    let mut e = Encoder::new();
    shared.note().encode(&mut e);
    let good = e.finish();
    let text = hex(shared.note().to_text(shared.volume, &orderer).as_bytes());
    lines.add_within("note", "of-the-log", "good", &good, &text, read(&good));
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("note", name, verdict, bytes, read(bytes));
    };
    add("of-another-time", "not-signed", &patch(&good, 48, &[1]));
    add("cut", "malformed", &good[..119]);
    add("longer", "malformed", &[&good[..], &[0]].concat());
}

fn checkpoints(lines: &mut Lines, shared: &Shared) {
    let state = MapRoot {
        handle: Handle::from_bytes([5; 32]),
        height: 2,
        entries: 100,
        salt: [0; 16],
    };
    let checkpoint = Checkpoint {
        log: shared.prefix(2).in_epoch(0),
        state,
    };
    let by = |signers: &[u8]| sign(&checkpoint.statement(shared.volume), signers).to_bytes();
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        let checkpointers = shared_roles(true).checkpointers;
        let read = Signed::from_bytes_of(Job::Shared, bytes).and_then(|signed| {
            let signatures = &mut Signatures::default();
            VerifiedCheckpoint::verify(&signed, shared.volume, &checkpointers, None, signatures)
        });
        lines.add("checkpoint", name, verdict, bytes, read);
    };
    add("by-two", "good", &by(&[4, 6]));
    add("by-one", "not-signed", &by(&[4]));
    add("by-one-and-a-stranger", "not-signed", &by(&[4, 9]));
    let other = sign(
        &checkpoint.statement(VolumeId::from_bytes([1; 32])),
        &[4, 5],
    );
    add("of-another-volume", "wrong-volume", &other.to_bytes());
}
