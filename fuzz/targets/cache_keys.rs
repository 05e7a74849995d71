//! Arbitrary bytes as the keys of a segment of a disk cache: only possible places are listed, and what is listed
//! encodes to the same bytes. Arbitrary bytes as a name: only what is written is accepted.
#![no_main]

use std::os::unix::ffi::OsStrExt;

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use store::cache::format::{HEADER_BYTES, KEY_BYTES, Key, Part, SegmentName, keys};
use trust::Handle;
use trust::record::MAX_RECORD_BYTES;

fn seeds() -> [Vec<u8>; 2] {
    let key = Key {
        handle: Handle::from_bytes([0xab; 32]),
        offset: 16,
        len: 47,
    };
    let mut bytes = Vec::new();
    key.put(&mut bytes);
    let name = SegmentName {
        number: 3,
        random: 7,
    };
    [bytes, name.file(Part::Keys).into_bytes()]
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let listed: Vec<Key> = keys(data).collect();
    assert!(listed.len() * KEY_BYTES <= data.len());
    let mut bytes = Vec::new();
    for key in &listed {
        assert!(key.offset as usize >= HEADER_BYTES);
        assert!(key.offset.checked_add(key.len).is_some());
        assert!(key.len as usize <= MAX_RECORD_BYTES);
        key.put(&mut bytes);
    }
    assert_eq!(keys(&bytes).collect::<Vec<_>>(), listed);
    let text = std::ffi::OsStr::from_bytes(data);
    if let Some((name, part)) = SegmentName::parse(text) {
        assert_eq!(name.file(part).as_bytes(), data);
    }
});
