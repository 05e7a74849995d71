//! The machine-readable vectors in docs/formats/vectors: what every verifier must accept and refuse
//! (docs/formats/verification.md, *Vectors*). They are made here, each with the verdict that it must get, and
//! compared byte by byte with the files. After a change of format:
//!
//! ```text
//! cargo test -p bulla-trust --test statements write_vector_files -- --ignored
//! ```

mod cases;
mod demand_cases;
mod ed25519;
mod heads;
mod inodes;
mod judgements;
mod lines;
mod policy_cases;
mod refused;
mod trees;

const FILES: [lines::File; 3] = [
    ("ed25519.txt", ed25519::text),
    ("refused.txt", refused::text),
    ("judgements.txt", judgements::text),
];

#[test]
fn vector_files_are_those_of_this_build() {
    lines::check(&FILES);
}

#[test]
#[ignore = "writes docs/formats/vectors: run it after a change of format"]
fn write_vector_files() {
    lines::write(&FILES);
}
