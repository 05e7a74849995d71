//! Arbitrary bytes as evidence of two histories, as they are and with the right checksum, and as the text of a reader.
//! They are refused, or canonical. The fuzzer knows no key, so a sighting that verifies is about the volume of the seeds.
#![no_main]

use bulla_fuzz::{honest_head, key, plant, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::head::Head;
use trust::root::RootRecord;
use trust::sighting::Sighting;
use trust::split_view::SplitView;

fn seeds() -> Vec<Vec<u8>> {
    let (volume, head, _) = honest_head();
    let record: RootRecord = head.record.statement().read(volume).expect("a record");
    let other = RootRecord {
        start: record.start + 1,
        ..record
    };
    let other = Head {
        record: other.statement(volume).sign(&[&key(2)]),
        ..head.clone()
    };
    let seen = |head: &Head| Sighting::new(head, &[], volume).expect("signed");
    let (one, two) = (seen(&head), seen(&other));
    let pair = |first: &Sighting, second: &Sighting| SplitView {
        first: first.clone(),
        second: second.clone(),
        tiles: Vec::new(),
    };
    let pairs = [pair(&one, &two), pair(&two, &one)];
    assert!(
        pairs.iter().any(|pair| pair.verify().is_ok()),
        "a seed that convicts"
    );
    let files = pairs.map(|pair| pair.encode().expect("short"));
    let text = one.to_text().expect("short").into_bytes();
    files.into_iter().chain([text]).collect()
}

fuzz_target!(
    init: { plant(seeds()); },
    |data: &[u8]| {
        for data in [data.to_vec(), with_checksum(data)] {
            let Ok(evidence) = SplitView::decode(&data) else {
                continue;
            };
            assert_eq!(evidence.encode().expect("short"), data);
            if let Ok(verdict) = evidence.verify() {
                assert_eq!(verdict.volume, honest_head().0);
            }
        }
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        if let Ok(sighting) = Sighting::from_text(text) {
            let same = sighting.to_text().expect("short");
            assert_eq!(Sighting::from_text(&same).as_ref(), Ok(&sighting));
            let _ = sighting.verify(honest_head().0);
        }
    }
);
