//! Names of the objects (files) of a repository, as the request *get range* takes them. They are the
//! paths that the same repository has behind a web server. All objects but the head are immutable, so
//! a cache may keep them for ever.
//!
//! A name is parsed into a value, and the path is made from the value: a peer's string never reaches
//! the file system.

use std::fmt;
use std::str::FromStr;

use trust::Reject;
use trust::tiles::TileName;

use crate::names::{self, FileId};

/// Maximum length of a name, bytes.
pub const MAX_NAME_BYTES: usize = 64;

/// The random name of a segment or an index run.
pub type ObjectId = [u8; 16];

/// One object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectName {
    /// The repository's format file.
    Format,
    /// The head file, the only object that changes. It is replaced as a whole.
    Head,
    /// A segment of records.
    Segment(ObjectId),
    /// An index run.
    Index(ObjectId),
    /// The policy with this number: a signed statement.
    Policy(u64),
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
    /// Parses a name that a peer sent.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the canonical spelling of a name.
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
            ObjectName::Policy(number) => f.write_str(&names::policy(*number)),
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
        } else if let Some(number) = text.strip_prefix("policies/") {
            number.parse().ok().map(ObjectName::Policy)
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
        // Each object has one spelling: `log/+1/01` is refused because it is not written back the
        // same.
        name.filter(|n| text.len() <= MAX_NAME_BYTES && n.to_string() == text)
            .ok_or_else(no_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_canonical_names_are_parsed() {
        let id = "00112233445566778899aabbccddeeff";
        for good in [
            "bulla".to_owned(),
            "head".to_owned(),
            format!("segments/{id}.seg"),
            format!("index/{id}.idx"),
            "policies/0".to_owned(),
            format!("policies/{}", u64::MAX),
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
            "policies",
            "policies/",
            "policies/01",
            "policies/+1",
            "policies/1/",
            "policies/-1",
            "policies/18446744073709551616",
            "policies/../head",
            "policies/0.tmp",
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
