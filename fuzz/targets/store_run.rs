//! Arbitrary bytes as an index run, with right checksums so that the code after them is reached. They are
//! refused, or every listed entry can be looked up.
#![no_main]

use bulla_fuzz::{disk, plant, repository_files};
use libfuzzer_sys::fuzz_target;
use store::Patience;
use store::head::RunName;
use store::index::run::{Lookup, Run};
use store::index::{PAGE_BYTES, TRAILER_BYTES, pages};
use store::names::FileId;

const SUM_BYTES: usize = 4;

/// The bytes with the checksums that a file of this many entries needs.
fn with_sums(data: &[u8], entries: u64) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let behind = (pages(entries) as usize)
        .saturating_mul(PAGE_BYTES)
        .min(bytes.len());
    for page in bytes[..behind].chunks_exact_mut(PAGE_BYTES) {
        let (body, sum) = page.split_at_mut(PAGE_BYTES - SUM_BYTES);
        sum.copy_from_slice(&blake3::hash(body).as_bytes()[..SUM_BYTES]);
    }
    if bytes.len() >= behind + TRAILER_BYTES {
        let sum_at = bytes.len() - 32;
        let sum = blake3::hash(&bytes[behind..sum_at]);
        bytes[sum_at..].copy_from_slice(sum.as_bytes());
    }
    bytes
}

fuzz_target!(
    init: {
        let (runs, _) = repository_files(".idx");
        plant(runs.iter().map(|run| [&[120], run.as_slice()].concat()));
    },
    |data: &[u8]| {
        let Some((entries, file)) = data.split_first() else {
            return;
        };
        let entries = u64::from(*entries);
        let bytes = with_sums(file, entries);
        let id = FileId([1; 16]);
        let disk = disk(&[(&id.index(), &bytes)]);
        let name = RunName { id, entries, len_bytes: bytes.len() as u64 };
        let Ok(run) = Run::open(&*disk, name) else {
            return;
        };
        let listed: Vec<_> = run.entries(&*disk).take(1000).collect();
        assert!(listed.len() as u64 <= entries);
        for (handle, at) in listed.into_iter().flatten() {
            assert!(run.segments().contains(&at.segment));
            assert!(at.offset.checked_add(at.len).is_some());
            let found = run.lookup(&*disk, &handle, Patience::Wait);
            assert_eq!(found.expect("a page that was read"), Lookup::At(at));
        }
    }
);
