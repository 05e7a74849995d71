//! The lines of vector files: bytes, and the verdict that they must get.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use trust::Reject;

/// A run of one byte that is at least this long is written as `HH*N`.
const RUN_BYTES: usize = 64;

/// A file, and what makes its text.
pub type File = (&'static str, fn() -> String);

fn path(name: &str) -> PathBuf {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/vectors");
    formats.join(name)
}

/// Compares the files with what this build makes.
pub fn check(files: &[File]) {
    for (name, text) in files {
        let (made, kept) = (text(), fs::read_to_string(path(name)).unwrap());
        let mut lines = made.lines().zip(kept.lines());
        let differs = lines.position(|(made, kept)| made != kept);
        assert!(made == kept, "{name} differs from line {differs:?} on");
    }
}

/// Writes the files.
pub fn write(files: &[File]) {
    for (name, text) in files {
        fs::write(path(name), text()).unwrap();
    }
}

/// The lines of the file, and those whose verdict is another than expected.
pub struct Lines {
    pub text: String,
    wrong: Vec<String>,
}

impl Lines {
    /// A file that begins with this comment.
    pub fn new(header: &str) -> Lines {
        Lines {
            text: header.to_owned(),
            wrong: Vec::new(),
        }
    }

    /// The file's text. Panics when a verdict is another than expected.
    pub fn finish(self) -> String {
        assert!(self.wrong.is_empty(), "{:#?}", self.wrong);
        self.text
    }

    /// Adds what the lines after it need.
    pub fn context(&mut self, name: &str, bytes: &[u8]) {
        self.text += &format!("{name} {}\n", hex(bytes));
    }

    /// Adds bytes whose verdict is `expected`.
    pub fn add<T>(
        &mut self,
        structure: &str,
        name: &str,
        expected: &str,
        bytes: &[u8],
        result: Result<T, Reject>,
    ) {
        self.add_within(structure, name, expected, bytes, "", result);
    }

    /// As [`Lines::add`], for bytes that are judged in a context.
    pub fn add_within<T>(
        &mut self,
        structure: &str,
        name: &str,
        expected: &str,
        bytes: &[u8],
        context: &str,
        result: Result<T, Reject>,
    ) {
        let why = result.as_ref().err();
        if verdict(&result) != expected {
            self.wrong.push(format!("{structure} {name}: {why:?}"));
        }
        let line = format!("{structure} {expected} {name} {} {context}", hex(bytes));
        self.text += line.trim_end();
        self.text += "\n";
    }
}

/// `bytes` with `with` in the place of what is at `at`.
pub fn patch(bytes: &[u8], at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// Bytes as the files have them: hexadecimal digits and runs `HH*N`, joined by `+`; `-` for none.
pub fn hex(bytes: &[u8]) -> String {
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
pub fn verdict<T>(result: &Result<T, Reject>) -> &'static str {
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
