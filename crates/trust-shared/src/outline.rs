//! The outline of an entry: for each op the keys that it changes. Every device keeps outlines, and reads bodies
//! only of the entries that it needs. Relies on [`super::key`], and on
//! [`super::entry`] for how long it may be.
//!
//! ```text
//! outline = format u8 (0) | principals: count varint | [32] * count | ops: count varint | op * count
//! op      = count varint | key * count                      keys ascend
//! ```
//!
//! A change that is not in the outline does not exist: readers who look for the changes of one key find the same
//! ones as readers of every body.

pub use super::entry::MAX_OPS_BYTES;
use super::key::Key;
use super::principal::{Reader, Writer};
use trust::error::Reject;

/// Most ops of an entry.
pub const MAX_OPS: usize = 1024;
/// Most changes of an op.
pub const MAX_OP_CHANGES: usize = 16;

const FORMAT: u8 = 0;
const WHAT: &str = "outline of an entry";

/// The keys that each op of an entry changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outline {
    ops: Vec<Vec<Key>>,
}

impl Outline {
    pub(super) fn of(ops: Vec<Vec<Key>>) -> Outline {
        Outline { ops }
    }

    /// The keys of each op, ascending.
    pub fn ops(&self) -> &[Vec<Key>] {
        &self.ops
    }

    /// Whether a change of this key exists in the op with this number.
    pub fn has(&self, op: usize, key: &Key) -> bool {
        let keys = self.ops.get(op);
        keys.is_some_and(|keys| keys.binary_search(key).is_ok())
    }

    /// Whether every reader must read the body: it changes members, or counts a silent device's entries.
    pub fn decides(&self) -> bool {
        self.ops.iter().flatten().any(|key| {
            matches!(
                key,
                Key::Device(_)
                    | Key::Principal(_)
                    | Key::Role(..)
                    | Key::Accepted(_)
                    | Key::Pin(_)
                    | Key::Retention
            )
        })
    }

    /// Whether it names a fold.
    pub fn folds(&self) -> bool {
        let mut keys = self.ops.iter().flatten();
        keys.any(|key| matches!(key, Key::Fold(_)))
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let principals = self
            .ops
            .iter()
            .flatten()
            .flat_map(Key::principals)
            .collect();
        let mut w = Writer::new(FORMAT, principals);
        w.out.varint(self.ops.len() as u64);
        for keys in &self.ops {
            w.out.varint(keys.len() as u64);
            keys.iter().for_each(|key| key.encode(&mut w));
        }
        w.out.finish()
    }

    /// Reads the canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of an outline within the bounds;
    /// [`Reject::Unsupported`] for a later format.
    pub fn decode(bytes: &[u8]) -> Result<Outline, Reject> {
        let mut r = Reader::new(bytes, WHAT, FORMAT)?;
        if bytes.len() > MAX_OPS_BYTES {
            return Err(r.rest.bad("over 48 KiB"));
        }
        let count = r.rest.bounded(MAX_OPS as u64, "over 1,024 ops")?;
        let mut ops = Vec::new();
        for _ in 0..count {
            let count = r
                .rest
                .bounded(MAX_OP_CHANGES as u64, "over 16 keys of an op")?;
            let keys: Result<Vec<Key>, Reject> = (0..count).map(|_| Key::decode(&mut r)).collect();
            let keys = keys?;
            if keys.is_empty() {
                return Err(r.rest.bad("an op without keys"));
            }
            if !keys.is_sorted_by(|a, b| a < b) {
                return Err(r.rest.bad("keys not sorted, or one twice"));
            }
            ops.push(keys);
        }
        r.finish()?;
        Ok(Outline { ops })
    }
}
