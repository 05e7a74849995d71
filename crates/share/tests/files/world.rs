//! Keys, policies and randomness by number, and leaves as deliveries carry them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ordering::read_rule::Silence;
use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::{Entry, Source};
use share::files::{Answer, Refused};
use trust::Handle;
use trust::device::DeviceKey;
use trust::key::SecretKey;
use trust::policy::Genesis;
use trust::roles::Roles;
use trust::signatures::Signatures;
use trust::statement::roles::Threshold;
use trust::volume_id::VolumeId;
use trust_shared::genesis::{self, Founder, Policies, SharedRoles};
use trust_shared::ops::{Body, Op};
use trust_shared::outline::Outline;
use trust_shared::principal::Principal;

pub fn key(number: usize) -> SecretKey {
    SecretKey::from_seed(&[number as u8 + 1; 32])
}

pub fn device(number: usize) -> DeviceKey {
    DeviceKey::from(&key(number).public())
}

pub fn orderer() -> SecretKey {
    SecretKey::from_seed(&[200; 32])
}

struct Seed(u64, AtomicU64);

impl Source for Seed {
    fn draw(&self) -> [u8; 32] {
        let drawn = self.1.fetch_add(1, Ordering::Relaxed);
        let seed = [self.0.to_le_bytes(), drawn.to_le_bytes()].concat();
        *hash_of(&seed).as_bytes()
    }
}

/// Any hash does.
pub fn hash_of(seed: &[u8]) -> Handle {
    trust::Hasher::new(&[0; 32]).name(trust::Kind::Data, seed)
}

/// The user of a device.
pub fn user(number: usize) -> Principal {
    Principal::from_bytes([number as u8 + 100; 32])
}

pub fn policies() -> Policies {
    let roles = Roles::single(key(250).public());
    let genesis = Genesis::new("shared", [1; 32], [2; 32], roles).unwrap();
    let shared = SharedRoles {
        orderer: orderer().public(),
        checkpointers: Threshold::new(1, vec![key(251).public()]).unwrap(),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(Founder {
            user: *user(0).as_bytes(),
            name: "user 0".to_owned(),
            device: key(0).public(),
        }),
    };
    let statement = genesis::genesis(&genesis, &shared);
    let volume = VolumeId::from_bytes(statement.hash());
    let signed = statement.sign(&[&key(250)]);
    Policies::begin(volume, &signed, &mut Signatures::new(0)).unwrap()
}

pub fn scheme(policies: &Policies, key: SecretKey, seed: u64) -> Product {
    let source = Arc::new(Seed(seed, AtomicU64::new(0)));
    let volume = policies.chain().volume();
    Product::new(volume, 0, orderer().public(), key, source)
}

/// A leaf as a delivery carries it: with its body only if it decides about members.
pub fn carried(leaf: &Leaf<Product>) -> Leaf<Product> {
    let Leaf::Entry(entry) = leaf else {
        return leaf.clone();
    };
    let signed = entry.signed().clone();
    let Some(ops) = signed.entry().ops() else {
        return leaf.clone();
    };
    let decides = Outline::decode(&ops.outline).is_ok_and(|outline| outline.decides());
    match entry.body() {
        Some(_) if decides => leaf.clone(),
        _ => Leaf::Entry(Entry::new(signed)),
    }
}

/// The ops of a body.
pub fn ops(body: &Bytes) -> Vec<Op> {
    Body::decode(body).unwrap().ops().to_vec()
}

pub fn refused(why: Refused) -> Answer {
    Answer::Refused(why)
}
