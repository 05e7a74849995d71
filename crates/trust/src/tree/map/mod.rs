//! The map tree: sorted keys with values. A set of entries has one root, whatever the order of edits (design
//! `trees.md`). Relies on [`crate::encode`] and [`crate::handle`]; bytes in docs/formats/trees.md, the choice
//! of boundaries and its cost in docs/decisions/0004.
//!
//! | module | what it does |
//! |---|---|
//! | `node` | encodes a node, checks its interval of keys, finds a key in it |
//! | `split` | cuts a level into nodes by a keyed hash of each entry's key |
//! | `build` | builds a tree from a sorted stream, in bounded memory |
//! | `walk` | moves along one level of a stored tree |
//! | `edit` | computes the root of a changed set, at the cost of the changes |
//! | `diff` | finds the differences of two maps, at the cost of the differences |
//! | `proof` | proves presence or absence of a key to a reader that has only the root |

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Handle, MapNode};

mod build;
mod diff;
mod edit;
mod node;
mod proof;
mod split;
#[cfg(test)]
mod tests;
mod walk;

pub use build::Builder;
pub use diff::{Change, Diff, WAVE};
pub use edit::edit;
pub use node::{ChildRef, Find, Interval, Item, Node};
pub use proof::{Proof, prove};
pub use walk::Nodes;

/// Largest encoded node, bytes.
pub const MAX_NODE_BYTES: usize = 64 << 10;
/// Node size that the boundary rule aims at, bytes.
pub const TARGET_NODE_BYTES: usize = 24 << 10;
/// Largest encoded entry (key, value and their lengths), bytes.
pub const MAX_ENTRY_BYTES: usize = 4096;
/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Highest number of levels of a tree.
pub const MAX_HEIGHT: u8 = 16;
/// Fewest entries of a node other than the root.
pub const MIN_ENTRIES: usize = 4;

const FORMAT: u8 = 0;
const WHAT: &str = "map node";
/// Set in the height byte of an encoded root when a salt follows.
const SALTED: u8 = 0x80;

/// Keys the hash that chooses boundaries. Zeros, unless somebody chose a volume's names to attack that hash.
pub type Salt = [u8; 16];

/// The root of a map tree. The empty map has no root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRoot {
    /// The top node.
    pub handle: Handle<MapNode>,
    /// Its level; 1 is a single leaf node.
    pub height: u8,
    /// Entries of the whole map, at least 1.
    pub entries: u64,
    /// The salt that chose the boundaries.
    pub salt: Salt,
}

impl MapRoot {
    /// Appends `handle [32] | height u8 | entries varint | salt [16] if the height's top bit is set`.
    pub fn encode(&self, e: &mut Encoder) {
        let salted = self.salt != Salt::default();
        let height = if salted {
            self.height | SALTED
        } else {
            self.height
        };
        e.raw(self.handle.as_bytes())
            .u8(height)
            .varint(self.entries);
        if salted {
            e.raw(&self.salt);
        }
    }

    /// Reads what [`MapRoot::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an impossible height, no entries, or a stated salt of zeros.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let handle = Handle::from_bytes(d.array()?);
        let byte = d.u8()?;
        let height = byte & !SALTED;
        if !(1..=MAX_HEIGHT).contains(&height) {
            return Err(d.bad("impossible height of a map"));
        }
        let entries = d.varint()?;
        if entries == 0 {
            return Err(d.bad("an empty map has no root"));
        }
        let mut salt = Salt::default();
        if byte & SALTED != 0 {
            salt = d.array()?;
            if salt == Salt::default() {
                return Err(d.bad("salt of zeros is not stated"));
            }
        }
        Ok(MapRoot {
            handle,
            height,
            entries,
            salt,
        })
    }

    /// The top of the tree, where every walk starts.
    pub fn child_ref(&self) -> ChildRef {
        ChildRef {
            handle: self.handle,
            level: self.height,
            entries: self.entries,
            interval: Interval::everything(),
        }
    }
}
