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
mod policy_cases;
mod refused;
mod shared;
mod trees;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use trust::Reject;

/// A run of one byte that is at least this long is written as `HH*N`.
const RUN_BYTES: usize = 64;

/// A file, and what makes its text.
type File = (&'static str, fn() -> String);

const FILES: [File; 4] = [
    ("ed25519.txt", ed25519::text),
    ("refused.txt", refused::text),
    ("judgements.txt", judgements::text),
    ("shared.txt", shared::text),
];

fn path(name: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/vectors");
    formats.join(name)
}

#[test]
fn vector_files_are_those_of_this_build() {
    for (name, text) in FILES {
        let (made, kept) = (text(), fs::read_to_string(path(name)).unwrap());
        let mut lines = made.lines().zip(kept.lines());
        let differs = lines.position(|(made, kept)| made != kept);
        assert!(made == kept, "{name} differs from line {differs:?} on");
    }
}

#[test]
#[ignore = "writes docs/formats/vectors: run it after a change of format"]
fn write_vector_files() {
    for (name, text) in FILES {
        fs::write(path(name), text()).unwrap();
    }
}

/// Bytes as the files have them: hexadecimal digits and runs `HH*N`, joined by `+`; `-` for none.
fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    let mut parts: Vec<String> = Vec::new();
    let mut plain = String::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        if run.len() < RUN_BYTES {
            run.iter().for_each(|b| write!(plain, "{b:02x}").unwrap());
            continue;
        }
        if !plain.is_empty() {
            parts.push(std::mem::take(&mut plain));
        }
        parts.push(format!("{:02x}*{}", run[0], run.len()));
    }
    if !plain.is_empty() {
        parts.push(plain);
    }
    parts.join("+")
}

/// The verdict's name in docs/formats/verification.md.
fn verdict<T>(result: &Result<T, Reject>) -> &'static str {
    let Err(why) = result else {
        return "good";
    };
    match why {
        Reject::WrongBlock => "wrong-block",
        Reject::WrongKind { .. } => "wrong-kind",
        Reject::BadFrame(_) => "bad-frame",
        Reject::UnknownFrame(_) => "unknown-frame",
        Reject::Malformed { .. } => "malformed",
        Reject::BadTree { .. } => "bad-tree",
        Reject::NotSigned(_) => "not-signed",
        Reject::Superseded(_) => "superseded",
        Reject::WrongVolume => "wrong-volume",
        Reject::Rollback { .. } => "rollback",
        Reject::Fork(_) => "fork",
        Reject::StrayPolicy(_) => "stray-policy",
        Reject::Expired { .. } => "expired",
        Reject::NotYetValid { .. } => "not-yet-valid",
        Reject::Revoked { .. } => "revoked",
        Reject::BadHistory(_) => "bad-history",
        Reject::Unproved => "unproved",
        Reject::PoliciesMissing { .. } => "policies-missing",
        Reject::NotPinned(_) => "not-pinned",
        Reject::Refused(_) => "refused",
        Reject::Unsupported { .. } => "unsupported",
    }
}
