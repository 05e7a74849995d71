//! Arbitrary bytes as a checkpoint of a shared volume, as the key of a row, as the row of an author. They are
//! refused, or they are the canonical encoding.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use libfuzzer_sys::fuzz_target;
use trust::shared::checkpoint::{Checkpoint, Row};
use trust::shared::entry::Author;
use trust::statement::{Job, Signed};

fn seeds() -> Vec<Vec<u8>> {
    let of = |structure: &&str| shared_vectors(structure);
    ["checkpoint", "row", "author"]
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
    if let Ok(signed) = Signed::from_bytes_of(Job::Shared, data) {
        let statement = signed.statement();
        if let Ok(checkpoint) = statement.read::<Checkpoint>(statement.volume()) {
            let again = checkpoint.statement(statement.volume());
            assert!(again.bytes().len() <= statement.bytes().len());
        }
    }
});
