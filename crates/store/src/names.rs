//! Names of the files of a repository (docs/formats/repository.md). The name of a segment or an index
//! run is 16 random bytes that are never used again, so servers and caches can treat the file as
//! immutable.

use std::fmt;

use trust::tiles::TileName;

use crate::StoreError;

/// Marks a directory as a repository and gives its format.
pub const FORMAT_FILE: &str = "bulla";
/// The one file that changes.
pub const HEAD_FILE: &str = "head";
/// The file that the writer locks.
pub const LOCK_FILE: &str = "lock";
/// Directory of index runs.
pub const INDEX_DIR: &str = "index";
/// Directory of segments.
pub const SEGMENT_DIR: &str = "segments";
/// Directory of log leaves and tiles.
pub const LOG_DIR: &str = "log";
/// Directory of policies.
pub const POLICY_DIR: &str = "policies";
/// Suffix of files that are being written. After a crash such a file is a leftover.
pub const TEMPORARY: &str = ".tmp";
/// Suffix of index runs.
pub const INDEX_ENDING: &str = ".idx";
/// Suffix of segments.
pub const SEGMENT_ENDING: &str = ".seg";

/// Name of an immutable file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub [u8; 16]);

impl FileId {
    /// A new name that no file has had before.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the system gives no random bytes.
    pub fn random(place: &str) -> Result<FileId, StoreError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|e| StoreError::Unavailable {
            place: place.to_owned(),
            cause: format!("no random bytes: {e}"),
        })?;
        Ok(FileId(bytes))
    }

    /// Parses a file name: 32 hexadecimal digits, then `ending`.
    pub fn parse(name: &str, ending: &str) -> Option<FileId> {
        let digits = name.strip_suffix(ending)?.as_bytes();
        if digits.len() != 32 {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(FileId(bytes))
    }

    /// File name of the segment with this id.
    pub fn segment(&self) -> String {
        format!("{SEGMENT_DIR}/{self}{SEGMENT_ENDING}")
    }

    /// The same while it is being written.
    pub fn segment_temporary(&self) -> String {
        format!("{SEGMENT_DIR}/{self}{TEMPORARY}")
    }

    /// File name of the index run with this id.
    pub fn index(&self) -> String {
        format!("{INDEX_DIR}/{self}{INDEX_ENDING}")
    }

    /// The same while it is being written.
    pub fn index_temporary(&self) -> String {
        format!("{INDEX_DIR}/{self}{TEMPORARY}")
    }
}

/// The file of a policy.
pub fn policy(number: u64) -> String {
    format!("{POLICY_DIR}/{number}")
}

/// The file of a log leaf.
pub fn log_leaf(epoch: u64, index: u64) -> String {
    format!("{LOG_DIR}/{epoch}/{index}")
}

/// The directory of the tiles of a log.
pub fn log_tiles(epoch: u64) -> String {
    format!("{LOG_DIR}/{epoch}/tiles")
}

/// The file of a tile of a log.
pub fn log_tile(epoch: u64, tile: TileName) -> String {
    format!("{}/{tile}", log_tiles(epoch))
}

fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_id_has_one_spelling() {
        let id = FileId(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(FileId::parse(&format!("{id}.seg"), ".seg"), Some(id));
        for bad in [
            "00112233445566778899AABBCCDDEEFF.seg",
            "00112233445566778899aabbccddeef.seg",
            "00112233445566778899aabbccddeeff.idx",
            "é0112233445566778899aabbccddeeff.seg",
            "../../../../../../../etc/passwd...seg",
        ] {
            assert_eq!(FileId::parse(bad, ".seg"), None, "{bad}");
        }
    }
}
