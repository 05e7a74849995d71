//! Builds a map tree from a sorted stream, with one node per level in memory. Relies on `split` for the
//! boundaries of nodes.

use bytes::Bytes;

use super::split::{Level, Payload, Sizes};
use super::{MAX_ENTRY_BYTES, MAX_HEIGHT, MAX_KEY_BYTES, MapRoot, Salt};
use crate::encode::varint_len;
use crate::error::Reject;
use crate::handle::{Handle, Hasher, MapNode};

/// Builds the tree of a sorted stream of entries.
///
/// Passes each finished node to the sink once; children come before their parents.
pub struct Builder<F> {
    hasher: Hasher,
    salt: Salt,
    sizes: Sizes,
    sink: F,
    last_key: Option<Vec<u8>>,
    /// Level of `rows[0]`; above 1 only when an edit adds levels to a tree.
    base: u8,
    rows: Vec<Level>,
}

impl<F: FnMut(Handle<MapNode>, &Bytes)> Builder<F> {
    /// Starts with an empty map.
    pub fn new(hasher: &Hasher, salt: Salt, sink: F) -> Self {
        Builder::with_sizes(hasher, salt, Sizes::FIXED, 1, sink)
    }

    pub(super) fn with_sizes(hasher: &Hasher, salt: Salt, sizes: Sizes, base: u8, sink: F) -> Self {
        Builder {
            hasher: hasher.clone(),
            salt,
            sizes,
            sink,
            last_key: None,
            base,
            rows: Vec::new(),
        }
    }

    /// Appends an entry, whose key must be greater than all before it.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a key out of order or too long, or an entry over
    /// [`MAX_ENTRY_BYTES`]; a larger value needs a block of its own.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Reject> {
        check_entry(key, value)?;
        match &mut self.last_key {
            Some(last) if last.as_slice() >= key => return Err(bad("keys not sorted")),
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last_key = Some(key.to_vec()),
        }
        self.put(0, key, Payload::Value(value))
    }

    /// The root, or `None` for the empty map.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the tree would be higher than [`MAX_HEIGHT`].
    pub fn finish(mut self) -> Result<Option<MapRoot>, Reject> {
        let mut row = 0;
        while let Some(level) = self.rows.get_mut(row) {
            if let (1.., Some((handle, entries))) = (row, level.only_child()) {
                return Ok(Some(MapRoot {
                    handle,
                    height: self.base + row as u8 - 1,
                    entries,
                    salt: self.salt,
                }));
            }
            level.finish();
            self.pass_up(row)?;
            row += 1;
        }
        Ok(None)
    }

    pub(super) fn put(
        &mut self,
        row: usize,
        key: &[u8],
        payload: Payload<'_>,
    ) -> Result<(), Reject> {
        if row == self.rows.len() {
            let level = self.base.saturating_add(row as u8);
            // The row above the highest level may hold the root's entry, but never a node.
            if level > MAX_HEIGHT + 1 {
                return Err(bad("too many entries"));
            }
            self.rows.push(Level::new(&self.salt, level, self.sizes));
        }
        match self.rows.get_mut(row) {
            Some(level) => level.push(key, payload),
            None => return Err(bad("a level is missing")),
        }
        self.pass_up(row)
    }

    /// Computes the handles of the nodes that a level has finished, and adds them to the level above.
    fn pass_up(&mut self, row: usize) -> Result<(), Reject> {
        let Some(level) = self.rows.get_mut(row) else {
            return Ok(());
        };
        if level.done.is_empty() {
            return Ok(());
        }
        if self.base.saturating_add(row as u8) > MAX_HEIGHT {
            return Err(bad("too many entries"));
        }
        for node in std::mem::take(&mut level.done) {
            let (handle, block) = self.hasher.seal::<MapNode>(node.bytes);
            (self.sink)(handle, block.bytes());
            let below = node.below;
            self.put(row + 1, &node.first_key, Payload::Child { handle, below })?;
        }
        Ok(())
    }
}

/// Refuses an entry that no map can hold.
pub(super) fn check_entry(key: &[u8], value: &[u8]) -> Result<(), Reject> {
    if key.len() > MAX_KEY_BYTES {
        return Err(bad("key over 1 KiB"));
    }
    let lengths = varint_len(key.len() as u64) + varint_len(value.len() as u64);
    if key.len() + value.len() + lengths > MAX_ENTRY_BYTES {
        return Err(bad("entry over 4 KiB"));
    }
    Ok(())
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "map entry",
        why,
    }
}
