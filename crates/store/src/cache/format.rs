//! The bytes of a disk cache (docs/formats/cache.md): headers, names and keys. Pure.
//!
//! ```text
//! every file   magic [8] | format u32 LE = 0 | flags u32 LE = 0
//! N-R.blocks   header | records, back to back (trust::record)
//! N-R.keys     header | keys: handle [32] | offset of the record in N-R.blocks u32 LE | its length u32 LE
//! ```
//!
//! Nothing here has a checksum. A key is a hint; a record that it leads to is believed only after its
//! plaintext was hashed.

use std::ffi::OsStr;
use std::fmt;

use trust::Handle;
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};

/// Length of the header of every file, bytes.
pub const HEADER_BYTES: usize = 16;
/// Length of a key, bytes.
pub const KEY_BYTES: usize = 40;
/// Most keys of a segment. More are neither written nor read.
pub const MAX_KEYS: usize = 1 << 16;

/// Begins the file that marks a directory as a cache.
pub(super) const MARK: &[u8; HEADER_BYTES] = b"bullacac\0\0\0\0\0\0\0\0";
/// Begins a file of records.
pub(super) const BLOCKS: &[u8; HEADER_BYTES] = b"bullacbl\0\0\0\0\0\0\0\0";
/// Begins a file of keys.
pub(super) const KEYS: &[u8; HEADER_BYTES] = b"bullacke\0\0\0\0\0\0\0\0";

/// The name of a segment, which is a file of records and a file of keys.
///
/// Numbers only grow, so they give the order in which segments were begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    /// One more than the greatest number in the directory when it was begun.
    pub number: u64,
    /// Distinguishes segments that two processes begin at once.
    pub random: u64,
}

/// One of the two files of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The records.
    Blocks,
    /// The keys.
    Keys,
}

impl Part {
    /// Both.
    pub const BOTH: [Part; 2] = [Part::Blocks, Part::Keys];

    fn ending(self) -> &'static str {
        match self {
            Part::Blocks => "blocks",
            Part::Keys => "keys",
        }
    }

    pub(super) fn header(self) -> &'static [u8; HEADER_BYTES] {
        match self {
            Part::Blocks => BLOCKS,
            Part::Keys => KEYS,
        }
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.number, self.random)
    }
}

impl SegmentName {
    /// The greatest number.
    pub const MAX_NUMBER: u64 = 1 << 62;

    /// The name of one of its files.
    pub fn file(&self, part: Part) -> String {
        format!("{self}.{}", part.ending())
    }

    /// Parses the name of a file. Only names that [`SegmentName::file`] gives are accepted.
    pub fn parse(name: &OsStr) -> Option<(SegmentName, Part)> {
        let (stem, ending) = name.to_str()?.split_once('.')?;
        let part = Part::BOTH
            .into_iter()
            .find(|part| part.ending() == ending)?;
        let (number, random) = stem.split_once('-')?;
        let name = SegmentName {
            number: digits(number)?,
            random: digits(random)?,
        };
        (name.number <= SegmentName::MAX_NUMBER).then_some((name, part))
    }
}

/// Sixteen lower-case hexadecimal digits.
fn digits(text: &str) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let whole = text.len() == 16 && text.bytes().all(is_digit);
    whole.then(|| u64::from_str_radix(text, 16).ok())?
}

/// Where a segment claims to have a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The block.
    pub handle: Handle,
    /// Offset of its record, bytes.
    pub offset: u32,
    /// Length of its record, bytes.
    pub len: u32,
}

impl Key {
    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.handle.as_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
    }

    /// `None` if no record can be there.
    fn parse(bytes: &[u8; KEY_BYTES]) -> Option<Key> {
        let (handle, rest) = bytes.split_first_chunk::<32>()?;
        let (offset, len) = rest.split_first_chunk::<4>()?;
        let key = Key {
            handle: Handle::from_bytes(*handle),
            offset: u32::from_le_bytes(*offset),
            len: u32::from_le_bytes(len.try_into().ok()?),
        };
        let possible = (RECORD_HEADER_BYTES + 1..=MAX_RECORD_BYTES).contains(&(key.len as usize));
        let within =
            key.offset as usize >= HEADER_BYTES && key.offset.checked_add(key.len).is_some();
        (possible && within).then_some(key)
    }
}

/// The keys in `bytes`, which begin at a key: possible ones only, in order. A part of a key at the end is
/// being written, or was torn by a crash.
pub fn keys(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Key> {
    bytes
        .as_chunks::<KEY_BYTES>()
        .0
        .iter()
        .filter_map(Key::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_accepted_only_as_they_are_written() {
        let name = SegmentName {
            number: 18,
            random: u64::MAX,
        };
        for part in Part::BOTH {
            let file = name.file(part);
            assert_eq!(SegmentName::parse(OsStr::new(&file)), Some((name, part)));
            for other in [file.to_uppercase(), format!("{file}x"), format!("0{file}")] {
                assert_eq!(SegmentName::parse(OsStr::new(&other)), None, "{other}");
            }
        }
        for other in [
            "",
            ".keys",
            "+000000000000012-ffffffffffffffff.keys",
            "a-b.blocks",
        ] {
            assert_eq!(SegmentName::parse(OsStr::new(other)), None, "{other}");
        }
    }

    /// Frozen bytes: docs/formats/cache.md gives the same.
    #[test]
    fn vectors() {
        let key = Key {
            handle: Handle::from_bytes([0xab; 32]),
            offset: 16,
            len: 47,
        };
        let mut bytes = Vec::new();
        key.put(&mut bytes);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, format!("{}100000002f000000", "ab".repeat(32)));
        assert_eq!(keys(&bytes).collect::<Vec<_>>(), [key]);
        assert_eq!(KEYS, b"bullacke\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn impossible_keys_are_passed_over_and_a_torn_one_ends_the_list() {
        let good = Key {
            handle: Handle::from_bytes([1; 32]),
            offset: 500,
            len: 100,
        };
        let mut bytes = Vec::new();
        for (offset, len) in [
            (15, 100),
            (500, 0),
            (500, RECORD_HEADER_BYTES as u32),
            (500, MAX_RECORD_BYTES as u32 + 1),
            (u32::MAX - 50, 100),
        ] {
            Key {
                offset,
                len,
                ..good
            }
            .put(&mut bytes);
        }
        good.put(&mut bytes);
        good.put(&mut bytes);
        for cut in 1..KEY_BYTES {
            let torn = &bytes[..bytes.len() - cut];
            assert_eq!(keys(torn).collect::<Vec<_>>(), [good]);
        }
    }
}
