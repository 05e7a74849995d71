//! The machine-readable vectors in docs/formats/vectors/shared.txt: what every device must accept and refuse. They are
//! made here, each with the verdict that it must get, and compared byte by byte with the file. After a change of format:
//!
//! ```text
//! cargo test -p bulla-trust-shared --test formats write_vector_file -- --ignored
//! ```
// The lint's exception for tests does not reach functions that several tests share.
#![allow(clippy::unwrap_used)]

mod shared;

#[path = "../../../trust/tests/statements/vector_files/lines.rs"]
mod lines;

use trust::key::SecretKey;
use trust::roles::{Roles, Threshold};
use trust::statement::{Signed, Statement};

/// When everything happens, seconds since 1970.
const NOW: u64 = 1_800_000_000;

const FILES: [lines::File; 1] = [("shared.txt", shared::text)];

#[test]
fn vector_file_is_that_of_this_build() {
    lines::check(&FILES);
}

#[test]
#[ignore = "writes docs/formats/vectors: run it after a change of format"]
fn write_vector_file() {
    lines::write(&FILES);
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

fn threshold(needed: u8, numbers: &[u8]) -> Threshold {
    let keys = numbers.iter().map(|n| key(*n).public()).collect();
    Threshold::new(needed, keys).unwrap()
}

fn sign(statement: &Statement, numbers: &[u8]) -> Signed {
    let keys: Vec<SecretKey> = numbers.iter().map(|n| key(*n)).collect();
    statement.sign(&keys.iter().collect::<Vec<_>>())
}

fn roles() -> Roles {
    Roles {
        owners: threshold(1, &[1]),
        publishers: threshold(1, &[2]),
        ..Roles::single(key(1).public())
    }
}
