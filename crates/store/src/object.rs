//! Names of the objects of a repository, as *get range* takes them: the paths that the same
//! repository has behind any web server (design `publish.md`, "Repository"). All but the head are
//! immutable: their bytes may be kept for ever under their names.
//!
//! A name is parsed into a value and written back from it, so that no string of a peer ever
//! reaches a file system.

use std::fmt;
use std::str::FromStr;

use trust::Reject;
use trust::tiles::TileName;

use crate::names::{self, FileId};

/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// Sixteen random bytes that name a segment or an index run for ever.
pub type ObjectId = [u8; 16];

/// One object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectName {
    /// The repository's format file.
    Format,
    /// The head file: the one object that changes, whole at any moment.
    Head,
    /// A segment of records.
    Segment(ObjectId),
    /// An index run.
    Index(ObjectId),
    /// A leaf of the history log.
    Log {
        /// Log epoch.
        epoch: u64,
        /// Number of the leaf.
        index: u64,
    },
    /// A tile of hashes of the history log.
    Tile {
        /// Log epoch.
        epoch: u64,
        /// Which tile.
        tile: TileName,
    },
}

impl ObjectName {
    /// Reads a name from a peer's bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one spelling of an object's name.
    pub fn from_bytes(bytes: &[u8]) -> Result<ObjectName, Reject> {
        std::str::from_utf8(bytes)
            .map_err(|_| no_name())?
            .parse::<ObjectName>()
    }
}

fn no_name() -> Reject {
    Reject::Malformed {
        what: "object name",
        why: "not the name of an object",
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectName::Format => f.write_str(names::FORMAT_FILE),
            ObjectName::Head => f.write_str(names::HEAD_FILE),
            ObjectName::Segment(id) => f.write_str(&FileId(*id).segment()),
            ObjectName::Index(id) => f.write_str(&FileId(*id).index()),
            ObjectName::Log { epoch, index } => f.write_str(&names::log_leaf(*epoch, *index)),
            ObjectName::Tile { epoch, tile } => f.write_str(&names::log_tile(*epoch, *tile)),
        }
    }
}

impl FromStr for ObjectName {
    type Err = Reject;

    fn from_str(text: &str) -> Result<ObjectName, Reject> {
        let inner = |dir: &str, ending: &str| {
            let name = text.strip_prefix(dir)?.strip_prefix('/')?;
            FileId::parse(name, ending).map(|id| id.0)
        };
        let name = if text == names::FORMAT_FILE {
            Some(ObjectName::Format)
        } else if text == names::HEAD_FILE {
            Some(ObjectName::Head)
        } else if let Some(id) = inner(names::SEGMENT_DIR, names::SEGMENT_ENDING) {
            Some(ObjectName::Segment(id))
        } else if let Some(id) = inner(names::INDEX_DIR, names::INDEX_ENDING) {
            Some(ObjectName::Index(id))
        } else {
            text.strip_prefix("log/").and_then(|rest| {
                let (epoch, of) = rest.split_once('/')?;
                let epoch = epoch.parse().ok()?;
                if let Some(tile) = of.strip_prefix("tiles/") {
                    let tile = tile.parse().ok()?;
                    return Some(ObjectName::Tile { epoch, tile });
                }
                let index = of.parse().ok()?;
                Some(ObjectName::Log { epoch, index })
            })
        };
        // One object, one spelling: `log/+1/01` and the like do not come back the same.
        name.filter(|n| text.len() <= MAX_NAME_BYTES && n.to_string() == text)
            .ok_or_else(no_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_exact_names_pass() {
        let id = "00112233445566778899aabbccddeeff";
        for good in [
            "bulla".to_owned(),
            "head".to_owned(),
            format!("segments/{id}.seg"),
            format!("index/{id}.idx"),
            "log/0/0".to_owned(),
            format!("log/{}/{}", u64::MAX, u64::MAX),
            "log/0/tiles/0.0".to_owned(),
            "log/0/tiles/0.0.1".to_owned(),
            format!("log/{}/tiles/7.{}.255", u64::MAX, u64::MAX),
        ] {
            assert_eq!(good.parse::<ObjectName>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "head.tmp",
            "lock",
            "/bulla",
            "../head",
            "segments/../head",
            "segments/",
            "log/1",
            "log/01/1",
            "log/+1/1",
            "log/1/1/",
            "log/1/18446744073709551616",
            "log/1/tiles",
            "log/1/tiles/",
            "log/1/tiles/0",
            "log/1/tiles/8.0",
            "log/1/tiles/0.00",
            "log/1/tiles/0.0.0",
            "log/1/tiles/0.0.256",
            "log/1/tiles/0.0.1.1",
            "log/1/tiles/../../head",
            &format!("segments/{}.seg", id.to_uppercase()),
            &format!("segments/+{}.seg", &id[1..]),
            &format!("segments/{id}.idx"),
            &format!("segments/{id}.seg\0"),
            &format!("segments/{id}0.seg"),
        ] {
            assert!(bad.parse::<ObjectName>().is_err(), "{bad:?}");
        }
        assert!(ObjectName::from_bytes(&[0xff; 5]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_name_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(name) = ObjectName::from_bytes(&bytes) {
                prop_assert_eq!(name.to_string().into_bytes(), bytes);
            }
        }
        #[test]
        fn names_round_trip(id in any::<[u8; 16]>(), epoch in any::<u64>(), index in any::<u64>()) {
            for name in [ObjectName::Segment(id), ObjectName::Index(id), ObjectName::Log { epoch, index }] {
                prop_assert_eq!(name.to_string().parse::<ObjectName>(), Ok(name));
            }
        }
    }
}
