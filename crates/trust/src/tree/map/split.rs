//! The rules by which a level is cut into nodes (design `trees.md`, docs/decisions/0004). The cuts depend
//! only on the level's entries, and each cut only on the entries near it. So one set of entries has one tree,
//! and an edit changes few nodes.
//!
//! 1. An entry is a *candidate* when its keyed hash, as a fraction of 2⁶⁴, is below its size over
//!    [`TARGET_NODE_BYTES`].
//! 2. A candidate *counts* when at least four entries lie before it, at least four from it on, and none of
//!    the three entries before it is a candidate. The entries between counted candidates are *runs*.
//! 3. While a run is longer than [`MAX_BODY_BYTES`], it is cut at the entry of lowest hash in the
//!    middle half of its first `MAX_BODY_BYTES`; the rest is again a run.
//!
//! Rule 3 looks at a window instead of the whole run. So keys that were chosen to avoid candidates need no
//! more memory than one node.

use bytes::Bytes;

use super::{FORMAT, MAX_NODE_BYTES, MIN_ENTRIES, Salt, TARGET_NODE_BYTES};
use crate::encode::Encoder;
use crate::handle::{Handle, MapNode};

/// Longest sequence of entries that the rules put into one node, bytes: a node without its header.
pub(super) const MAX_BODY_BYTES: usize = MAX_NODE_BYTES - 16;

/// The sizes that the rules aim at. Every tree that leaves the crate uses the same; tests use smaller ones to
/// make deep trees of few entries. The verifier does not depend on them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub target: usize,
    /// A quarter of it must be larger than three of the largest entries. Then each piece of a cut run has at
    /// least four entries, and the middle half of a window is never empty.
    pub max_body: usize,
}

impl Sizes {
    pub const FIXED: Sizes = Sizes {
        target: TARGET_NODE_BYTES,
        max_body: MAX_BODY_BYTES,
    };
}

/// The part of an entry beside its key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload<'a> {
    Value(&'a [u8]),
    Child { handle: Handle<MapNode>, below: u64 },
}

/// A finished node.
#[derive(Debug)]
pub(super) struct Finished {
    pub first_key: Vec<u8>,
    pub bytes: Bytes,
    pub below: u64,
}

/// The hash that chooses boundaries on one level.
#[derive(Debug, Clone)]
pub(super) struct Chooser {
    key: [u8; 32],
    target: u128,
}

impl Chooser {
    pub fn new(salt: &Salt, level: u8, sizes: Sizes) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *salt;
        let material = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, level];
        Chooser {
            key: blake3::derive_key("bulla 0 map boundary", &material),
            target: sizes.target as u128,
        }
    }

    pub fn hash(&self, key: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.key, key);
        hash.as_bytes()
            .first_chunk::<8>()
            .map_or(0, |first| u64::from_le_bytes(*first))
    }

    /// Rule 1; `size` is that of the encoded entry.
    pub fn is_candidate(&self, hash: u64, size: usize) -> bool {
        u128::from(hash) * self.target < (size as u128) << 64
    }
}

/// What the rules need to know about the entries before the first one that they see.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Context {
    /// Number of such entries; above four, the exact number does not matter.
    pub seen: u64,
    /// Which of the last three are candidates; bit 0 is the last.
    pub recent: u8,
}

/// Cuts the entries of one level, given in order, into nodes.
#[derive(Debug)]
pub(super) struct Level {
    level: u8,
    sizes: Sizes,
    chooser: Chooser,
    context: Context,
    /// The entry at which the next node starts, if at least four entries come from it on.
    tentative: Option<usize>,
    body: Vec<u8>,
    entries: Vec<Pending>,
    /// Finished nodes that have not been taken.
    pub done: Vec<Finished>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    start: usize,
    key_start: usize,
    key_len: usize,
    hash: u64,
    below: u64,
}

impl Level {
    pub fn new(salt: &Salt, level: u8, sizes: Sizes) -> Self {
        Level::resume(salt, level, sizes, Context::default())
    }

    /// Starts in the middle of a level, at the beginning of a node.
    pub fn resume(salt: &Salt, level: u8, sizes: Sizes, context: Context) -> Self {
        Level {
            level,
            sizes,
            chooser: Chooser::new(salt, level, sizes),
            context,
            tentative: None,
            body: Vec::new(),
            entries: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Appends an entry.
    pub fn push(&mut self, key: &[u8], payload: Payload<'_>) {
        let start = self.body.len();
        let (key_start, below) = self.encode(key, payload);
        let hash = self.chooser.hash(key);
        let candidate = self.chooser.is_candidate(hash, self.body.len() - start);
        if candidate && self.context.seen >= MIN_ENTRIES as u64 && self.context.recent == 0 {
            self.tentative = Some(self.entries.len());
        }
        self.context.recent = (self.context.recent << 1 | u8::from(candidate)) & 0b111;
        self.context.seen = self.context.seen.saturating_add(1);
        self.entries.push(Pending {
            start,
            key_start,
            key_len: key.len(),
            hash,
            below,
        });
        match self.tentative {
            Some(at) if self.entries.len() >= at + MIN_ENTRIES => {
                self.tentative = None;
                self.close_run(at);
            }
            // It is not known yet whether the run ends at the tentative boundary.
            Some(_) => {}
            None if self.body.len() > self.sizes.max_body => self.cut(),
            None => {}
        }
    }

    /// Ends the level. A tentative boundary has fewer than four entries after it, so it does not count.
    pub fn finish(&mut self) {
        self.tentative = None;
        self.close_run(self.entries.len());
    }

    /// The first key of the node that is not finished.
    pub fn pending_key(&self) -> Option<&[u8]> {
        let entry = self.entries.first()?;
        self.body
            .get(entry.key_start..entry.key_start + entry.key_len)
    }

    /// The only entry of a level that has had one entry: the root of the tree below it.
    pub fn only_child(&self) -> Option<(Handle<MapNode>, u64)> {
        let entry = self.entries.first()?;
        let from = entry.key_start + entry.key_len;
        let handle = self.body.get(from..from + 32)?.try_into().ok()?;
        (self.context.seen == 1).then(|| (Handle::from_bytes(handle), entry.below))
    }

    fn encode(&mut self, key: &[u8], payload: Payload<'_>) -> (usize, u64) {
        put_varint(&mut self.body, key.len() as u64);
        let key_start = self.body.len();
        self.body.extend_from_slice(key);
        match payload {
            Payload::Value(value) => {
                put_varint(&mut self.body, value.len() as u64);
                self.body.extend_from_slice(value);
                (key_start, 1)
            }
            Payload::Child { handle, below } => {
                self.body.extend_from_slice(handle.as_bytes());
                put_varint(&mut self.body, below);
                (key_start, below)
            }
        }
    }

    /// Writes the first `end` entries as nodes. They are a complete run.
    fn close_run(&mut self, end: usize) {
        let rest = self.entries.len() - end;
        while self.start_of(self.entries.len() - rest) > self.sizes.max_body {
            self.cut();
        }
        if self.entries.len() > rest {
            self.emit(self.entries.len() - rest);
        }
    }

    /// Rule 3: makes one cut in a run that is known to be longer than the longest body.
    fn cut(&mut self) {
        let window = self.sizes.max_body / 4..=self.sizes.max_body / 4 * 3;
        let inside = |(_, entry): &(usize, &Pending)| window.contains(&entry.start);
        let lowest = self
            .entries
            .iter()
            .enumerate()
            .filter(inside)
            .min_by_key(|(index, entry)| (entry.hash, *index));
        if let Some((index, _)) = lowest {
            self.emit(index);
        }
    }

    fn start_of(&self, index: usize) -> usize {
        self.entries
            .get(index)
            .map_or(self.body.len(), |entry| entry.start)
    }

    fn emit(&mut self, count: usize) {
        let end = self.start_of(count);
        let below = self
            .entries
            .drain(..count)
            .fold((0u64, None), |(sum, first), entry| {
                (
                    sum.saturating_add(entry.below),
                    first.or(Some((entry.key_start, entry.key_len))),
                )
            });
        let (below, first) = below;
        let first_key = first
            .and_then(|(start, len)| self.body.get(start..start + len))
            .unwrap_or_default()
            .to_vec();
        let mut e = Encoder::new();
        e.u8(FORMAT).u8(self.level).varint(count as u64);
        e.raw(self.body.get(..end).unwrap_or_default());
        self.done.push(Finished {
            first_key,
            bytes: Bytes::from(e.finish()),
            below,
        });
        self.body.drain(..end);
        for entry in &mut self.entries {
            entry.start -= end;
            entry.key_start -= end;
        }
    }
}

fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push((v as u8 & 0x7f) | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}
