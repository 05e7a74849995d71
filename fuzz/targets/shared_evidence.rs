//! Arbitrary bytes as evidence, as they are and with the right checksum. They are refused, or they are the canonical
//! encoding. The fuzzer knows no key, so it convicts only where a seed does: the orderer 2 or the device 3.
#![no_main]

use bulla_fuzz::{key, plant, shared_vectors, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::device::DeviceKey;
use trust_shared::evidence::{Convicted, Evidence};

fuzz_target!(init: plant(shared_vectors("evidence")), |data: &[u8]| {
    for data in [data.to_vec(), with_checksum(data)] {
        let Ok(evidence) = Evidence::decode(&data) else {
            continue;
        };
        assert_eq!(evidence.encode().expect("short"), data);
        let Ok(verdict) = evidence.judge() else {
            continue;
        };
        let guilty = match verdict.convicted {
            Convicted::Orderer(orderer) => orderer == key(2).public(),
            Convicted::Device(device) => device == DeviceKey::from(&key(3).public()),
        };
        assert!(guilty, "{verdict}");
    }
});
