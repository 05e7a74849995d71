//! The name that a publisher gives to a version (docs/formats/statements.md, *Root record*): an extension of the root
//! record, so it is signed and in the log. A bulla that does not know it ignores it.

use std::fmt;
use std::str::FromStr;

use crate::published::root::RootRecord;
use crate::statement::{Job, Purpose, Statement, VolumeId};

/// Tag of the extension. Even: who does not know it may ignore it.
const TAG: u64 = 2;
/// Longest name, bytes.
pub const MAX_VERSION_NAME_BYTES: usize = 64;

/// A name of a version: letters, digits, `.`, `_`, `+` and `-`, beginning with a letter or a digit, at most 64 bytes, and
/// not a number, because versions are named by numbers too.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VersionName(String);

/// A text that is no name of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a version's name has 1 to 64 letters, digits, `.`, `_`, `+` or `-`, begins with a letter or digit, and is not a number"
)]
pub struct BadVersionName;

impl VersionName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for VersionName {
    type Err = BadVersionName;

    fn from_str(text: &str) -> Result<VersionName, BadVersionName> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"._+-".contains(&b);
        let bytes = text.as_bytes();
        let begins = bytes.first().is_some_and(u8::is_ascii_alphanumeric);
        let is_number = bytes.iter().all(u8::is_ascii_digit);
        let fits = bytes.len() <= MAX_VERSION_NAME_BYTES;
        if !begins || is_number || !fits || !bytes.iter().copied().all(is_allowed) {
            return Err(BadVersionName);
        }
        Ok(VersionName(text.to_owned()))
    }
}

impl RootRecord {
    /// The statement to sign, with a name for this version.
    pub fn named_statement(&self, volume: VolumeId, name: Option<&VersionName>) -> Statement {
        let extension = name.map(|name| (TAG, name.as_str().as_bytes().to_vec()));
        Statement::with_extensions(Job::Published, volume, self, extension.as_slice())
    }
}

impl Statement {
    /// The name of the version, if this is a root record with one. Anything but a name counts as none.
    pub fn version_name(&self) -> Option<VersionName> {
        if self.purpose() != Purpose::Root {
            return None;
        }
        let name = self.extension::<RootRecord>(TAG)?;
        std::str::from_utf8(&name).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reject;
    use crate::handle::Handle;
    use crate::history::Frontier;
    use crate::published::root::Totals;

    fn record() -> RootRecord {
        RootRecord {
            version: 3,
            start: 5,
            duration: 7,
            root: Handle::from_bytes([1; 32]),
            totals: Totals::default(),
            policy_number: 0,
            policy_hash: [2; 32],
            log: Frontier::new().point(0),
            mirrors: Vec::new(),
        }
    }

    #[test]
    fn names_are_short_plain_and_no_numbers() {
        let longest = "v".repeat(64);
        for good in ["v1", "1.2.3", "2026-01-31", "stable", "a_b+c", &longest] {
            let name: VersionName = good.parse().unwrap();
            assert_eq!(name.to_string(), good);
        }
        let long = "v".repeat(65);
        for bad in [
            "",
            "7",
            "007",
            "-v",
            ".",
            "a b",
            "a/b",
            "é",
            "v\n",
            "v\u{202e}",
            &long,
        ] {
            assert_eq!(bad.parse::<VersionName>(), Err(BadVersionName), "{bad:?}");
        }
    }

    #[test]
    fn name_is_signed_and_readers_without_it_read_the_same_record() {
        let volume = VolumeId::from_bytes([4; 32]);
        let name: VersionName = "1.2.3".parse().unwrap();
        let named = record().named_statement(volume, Some(&name));
        assert_eq!(named.version_name(), Some(name));
        assert_eq!(named.read::<RootRecord>(volume), Ok(record()));
        let plain = record().named_statement(volume, None);
        assert_eq!(plain, record().statement(volume));
        assert_eq!(plain.version_name(), None);
        assert_ne!(plain.hash(), named.hash());
    }

    #[test]
    fn bytes_that_are_no_name_count_as_none_and_are_no_error() {
        let volume = VolumeId::from_bytes([4; 32]);
        for bad in [&b""[..], b"7", b"a b", b"\xff", &[b'v'; 65]] {
            let extensions = [(TAG, bad.to_vec())];
            let job = Job::Published;
            let statement = Statement::with_extensions(job, volume, &record(), &extensions);
            assert_eq!(statement.version_name(), None);
            assert_eq!(statement.read::<RootRecord>(volume), Ok(record()));
        }
        // An odd extension is of a later bulla and is not ignored.
        let extensions = [(TAG, b"v1".to_vec()), (3, Vec::new())];
        let later = Statement::with_extensions(Job::Published, volume, &record(), &extensions);
        let read = later.read::<RootRecord>(volume);
        assert!(matches!(read, Err(Reject::Unsupported { .. })), "{read:?}");
        assert_eq!(later.version_name(), None);
    }
}
