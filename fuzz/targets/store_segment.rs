//! Arbitrary bytes as a segment, with a right checksum so that the footer is reached. Listed records lie
//! within the file, and the list that is made by reading the records matches the file.
#![no_main]

use bulla_fuzz::{disk, plant, repository_files};
use libfuzzer_sys::fuzz_target;
use store::names::FileId;
use store::segment::{HEADER_BYTES, TRAILER_BYTES, by_footer, by_records};
use trust::Record;

const KEY_BYTES: usize = 36;

fn with_sum(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let Some(trailer_at) = bytes.len().checked_sub(TRAILER_BYTES) else {
        return bytes;
    };
    let count = bytes[trailer_at..]
        .first_chunk::<4>()
        .map_or(0, |c| u32::from_le_bytes(*c));
    if let Some(keys_at) = trailer_at.checked_sub(count as usize * KEY_BYTES) {
        let sum = blake3::hash(&bytes[keys_at..trailer_at + 4]);
        bytes[trailer_at + 4..trailer_at + 36].copy_from_slice(sum.as_bytes());
    }
    bytes
}

fuzz_target!(init: plant(repository_files(".seg").0), |data: &[u8]| {
    let bytes = with_sum(data);
    let id = FileId([1; 16]);
    let disk = disk(&[(&id.segment(), &bytes)]);
    if let Ok(Some(listed)) = by_footer(&*disk, id) {
        assert!(listed.len() * KEY_BYTES < bytes.len());
        for (_, at) in listed {
            assert!(at.offset as usize >= HEADER_BYTES);
            assert!(at.offset as usize + at.len as usize <= bytes.len());
        }
    }
    if let Ok(listed) = by_records(&*disk, id) {
        for (handle, at) in listed {
            let place = at.offset as usize..at.offset as usize + at.len as usize;
            let mut there = bytes::Bytes::copy_from_slice(bytes.get(place).expect("within the file"));
            let record = Record::take(&mut there).expect("a record").expect("whole");
            assert_eq!((record.handle, record.len()), (handle, at.len as usize));
        }
    }
});
