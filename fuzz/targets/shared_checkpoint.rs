//! Arbitrary bytes as a checkpoint of a shared volume, as the key of a row, as the row of an author, as rows of a state,
//! as what a server keeps. They are refused, or they are the canonical encoding.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use trust::encode::Decoder;
use trust::history::LogPoint;
use trust::statement::{Job, Signed};
use trust_shared::checkpoint::Posted;
use trust_shared::checkpoint::{Checkpoint, Reader, Row};
use trust_shared::entry::Author;
use trust_shared::principal::Principal;

const LOG: LogPoint = LogPoint {
    epoch: 1,
    size: 1000,
    root: [9; 32],
};

fn seeds() -> Vec<Vec<u8>> {
    let of = |structure: &&str| shared_vectors(structure);
    ["checkpoint", "row", "author", "value"]
        .iter()
        .flat_map(of)
        .collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Ok(row) = Row::decode(data) {
        assert_eq!(row.encode(), data);
    }
    if let Ok(author) = Author::decode(data) {
        assert_eq!(author.encode(), data);
    }
    let volume = Principal::from_bytes([5; 32]);
    let mut reader = Reader::new(volume, LOG);
    let mut rows = Decoder::new(data, "rows");
    while let (Ok(key), Ok(value)) = (rows.bytes(4096), rows.bytes(4096)) {
        if reader.take(key, value).is_err() {
            break;
        }
    }
    let _ = reader.finish();
    if let Ok(posted) = Posted::decode(data) {
        assert_eq!(posted.encode(), data);
    }
    if let Ok(signed) = Signed::from_bytes_of(Job::Shared, data) {
        let statement = signed.statement();
        if let Ok(checkpoint) = statement.read::<Checkpoint>(statement.volume()) {
            let again = checkpoint.statement(statement.volume());
            assert!(again.bytes().len() <= statement.bytes().len());
        }
    }
});
