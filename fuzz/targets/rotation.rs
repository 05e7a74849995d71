//! Arbitrary bytes as the policies that a replica keeps beside its head, shown beside an honest replica's. The reader
//! learns what the owners signed and nothing else, and its floor stays small.
#![no_main]

use std::sync::OnceLock;

use bulla_fuzz::{NOW, key, plant, rotated_policies};
use libfuzzer_sys::fuzz_target;
use trust::chain::MAX_POLICIES;
use trust::encode::Decoder;
use trust::floor::Floor;
use trust::signatures::Signatures;
use trust::statement::{Signed, VolumeId};

static HONEST: OnceLock<(VolumeId, Vec<Signed>)> = OnceLock::new();

fn seeds() -> Vec<Vec<u8>> {
    let (_, policies) = rotated_policies();
    let mut other = policies.clone();
    other.swap(9, 10);
    let mut stray = policies.clone();
    stray[12] = stray[12].statement().sign(&[&key(9)]);
    let bytes = |policies: &Vec<Signed>| policies.iter().flat_map(Signed::to_bytes).collect();
    [policies, other, stray].iter().map(bytes).collect()
}

fn part(data: &[u8]) -> Vec<Signed> {
    let mut d = Decoder::new(data, "part");
    std::iter::from_fn(|| Signed::decode(&mut d).ok()).collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let (volume, honest) = HONEST.get_or_init(rotated_policies);
    let shown = part(data);
    let mut signatures = Signatures::default();
    let none = Floor::new(*volume);
    let (alone, _) = none.learn_parts(&[&shown], NOW, &mut signatures);
    let known = alone.policy().map(|(number, hash)| (number as usize, hash));
    // Only the owners have the keys.
    if let Some((number, hash)) = known {
        assert_eq!(honest[number].hash(), hash);
    }
    assert!(alone.policies().len() <= MAX_POLICIES);
    assert_eq!(Floor::decode(&alone.encode()).as_ref(), Ok(&alone));
    for parts in [[&shown[..], honest], [honest, &shown]] {
        let (floor, _) = alone.learn_parts(&parts, NOW, &mut signatures);
        assert_eq!(floor.policy().map(|(number, _)| number as usize), Some(honest.len() - 1));
        assert!(!floor.forks().stand());
    }
});
