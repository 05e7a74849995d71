//! The log's inner hashes in tiles (docs/decisions/0015). A replica keeps them so that a reader that skipped
//! versions can check that the log only grew ([`crate::history::prefix`]).
//!
//! A tile of level L holds up to 256 roots of perfect subtrees of 256^L leaves each, side by side: level 0
//! has leaf hashes, level 1 the roots of full tiles of level 0, and so on, as in C2SP `tlog-tiles`. A full
//! tile never changes. The last tile of each level is stored under a name that contains its number of hashes.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::error::Reject;
use crate::history::{Frontier, LogPoint, node_hash};

/// Hashes in a full tile.
pub const TILE_HASHES: usize = 256;
/// Bytes of a full tile.
pub const MAX_TILE_BYTES: usize = TILE_HASHES * 32;
/// Levels needed by a log of 2⁶⁴ leaves.
pub const LEVELS: u8 = 8;

/// Binary levels of the log in one tile.
const TILE_HEIGHT: u8 = 8;

/// The name of a tile: `LEVEL.INDEX` of a full one, `LEVEL.INDEX.HASHES` of one with fewer than 256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TileName {
    level: u8,
    index: u64,
    hashes: u16,
}

impl TileName {
    /// The tile that has the hash at `node` of `level` in a log of `size` leaves; `None` when the log has no
    /// such hash.
    pub(crate) fn of(level: u8, node: u64, size: u64) -> Option<TileName> {
        let nodes = nodes_at(level, size);
        if node >= nodes {
            return None;
        }
        let index = node >> TILE_HEIGHT;
        let left = nodes.saturating_sub(index << TILE_HEIGHT);
        let hashes = left.min(TILE_HASHES as u64) as u16;
        Some(TileName {
            level,
            index,
            hashes,
        })
    }

    /// The level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The same tile when it is full.
    pub fn full(self) -> TileName {
        TileName {
            hashes: TILE_HASHES as u16,
            ..self
        }
    }

    /// Whether it has all 256 hashes.
    pub fn is_full(&self) -> bool {
        usize::from(self.hashes) == TILE_HASHES
    }

    /// Its length, bytes.
    pub fn len_bytes(&self) -> usize {
        usize::from(self.hashes).saturating_mul(32)
    }
}

impl fmt::Display for TileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.level, self.index)?;
        if self.is_full() {
            return Ok(());
        }
        write!(f, ".{}", self.hashes)
    }
}

impl FromStr for TileName {
    type Err = Reject;

    /// Reads a tile's name in its one spelling.
    fn from_str(text: &str) -> Result<TileName, Reject> {
        let read = || {
            let mut parts = text.split('.');
            let level = parts.next()?.parse().ok().filter(|l| *l < LEVELS)?;
            let index = parts.next()?.parse().ok()?;
            let hashes = match parts.next() {
                Some(hashes) => hashes.parse().ok().filter(|h| (1..256).contains(h))?,
                None => TILE_HASHES as u16,
            };
            let name = TileName {
                level,
                index,
                hashes,
            };
            (name.to_string() == text).then_some(name)
        };
        read().ok_or(bad("not the name of a tile"))
    }
}

/// The last tile of each level of a growing log: all that is needed to extend it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edge {
    size: u64,
    levels: Vec<Vec<[u8; 32]>>,
}

impl Edge {
    /// The empty log.
    pub fn new() -> Edge {
        Edge::default()
    }

    /// The names of the tiles that make up the edge of a log of `size` leaves, level 0 first.
    pub fn names(size: u64) -> Vec<TileName> {
        let last = |level| {
            let node = nodes_at(level, size).checked_sub(1)?;
            TileName::of(level, node, size).filter(|tile| !tile.is_full())
        };
        (0..LEVELS).filter_map(last).collect()
    }

    /// Reads an edge from the bytes of the tiles that [`Edge::names`] gives. It is not trusted until
    /// [`Edge::frontier`] matches a signed log.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for tiles whose lengths do not match their names, or for too few tiles.
    pub fn read<T: AsRef<[u8]>>(size: u64, tiles: &[T]) -> Result<Edge, Reject> {
        let mut edge = Edge {
            size,
            levels: Vec::new(),
        };
        let names = Edge::names(size);
        if names.len() != tiles.len() {
            return Err(bad("too few or too many for the size"));
        }
        for (name, tile) in names.iter().zip(tiles) {
            let (hashes, rest) = tile.as_ref().as_chunks::<32>();
            if !rest.is_empty() || hashes.len() != usize::from(name.hashes) {
                return Err(bad("of another length than its name says"));
            }
            let level = usize::from(name.level);
            edge.levels.resize(level.saturating_add(1), Vec::new());
            if let Some(last) = edge.levels.last_mut() {
                last.extend_from_slice(hashes);
            }
        }
        Ok(edge)
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the hash of a leaf. Tiles that become full go to `filled`.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the log would have more than 2⁶⁴ − 1 leaves.
    pub fn push(
        &mut self,
        leaf_hash: [u8; 32],
        filled: &mut Vec<(TileName, Vec<u8>)>,
    ) -> Result<(), Reject> {
        let node = self.size;
        self.size = self.size.checked_add(1).ok_or(bad("the log is full"))?;
        let mut hash = leaf_hash;
        for level in 0..LEVELS {
            let at = usize::from(level);
            if self.levels.len() <= at {
                self.levels.push(Vec::new());
            }
            let Some(hashes) = self.levels.get_mut(at) else {
                break;
            };
            hashes.push(hash);
            if hashes.len() < TILE_HASHES {
                break;
            }
            let index = node >> TILE_HEIGHT.saturating_mul(level.saturating_add(1)).min(63);
            let name = TileName {
                level,
                index,
                hashes: TILE_HASHES as u16,
            };
            filled.push((name, hashes.concat()));
            hash = fold(hashes);
            hashes.clear();
        }
        Ok(())
    }

    /// The tiles that are not full yet.
    pub fn tiles(&self) -> Vec<(TileName, Vec<u8>)> {
        let names = Edge::names(self.size).into_iter();
        let of = |name: TileName| {
            let hashes = self.levels.get(usize::from(name.level))?;
            Some((name, hashes.concat()))
        };
        names.filter_map(of).collect()
    }

    /// The log's frontier, computed from these tiles.
    pub fn frontier(&self) -> Frontier {
        let mut subtrees = Vec::new();
        for hashes in self.levels.iter().rev() {
            let mut rest = hashes.as_slice();
            while let Some(bit) = rest.len().checked_ilog2() {
                let (subtree, others) = rest.split_at(1 << bit);
                subtrees.push(fold(subtree));
                rest = others;
            }
        }
        Frontier::of(self.size, subtrees)
    }
}

/// The frontier of a log that was signed, from the tiles that [`Edge::names`] gives for its size.
///
/// # Errors
/// [`Reject::BadHistory`] for tiles of another log, or none at all: their sender is at fault.
pub fn frontier_of<T: AsRef<[u8]>>(log: &LogPoint, tiles: &[T]) -> Result<Frontier, Reject> {
    let edge =
        Edge::read(log.size, tiles).map_err(|_| Reject::BadHistory("not tiles of the log"))?;
    let frontier = edge.frontier();
    match frontier.root() == log.root {
        true => Ok(frontier),
        false => Err(Reject::BadHistory(
            "tiles that are not those of the log which was signed",
        )),
    }
}

/// Number of hashes of a level in a log of `size` leaves.
fn nodes_at(level: u8, size: u64) -> u64 {
    let height = u32::from(level).saturating_mul(u32::from(TILE_HEIGHT));
    size.checked_shr(height).unwrap_or(0)
}

/// The root of the perfect subtree of 2^`height` leaves that begins with the leaf `first`, in a log of `size` leaves.
/// `None` when the log has no such subtree, or the tile that has it is not given or too short.
pub(crate) fn subtree_root(
    first: u64,
    height: u32,
    size: u64,
    tile: impl Fn(TileName) -> Option<Bytes>,
) -> Option<[u8; 32]> {
    let tile_height = u32::from(TILE_HEIGHT);
    let level = (height / tile_height).min(u32::from(LEVELS).checked_sub(1)?);
    let below = level.checked_mul(tile_height)?;
    let node = first.checked_shr(below)?;
    let hashes = tile(TileName::of(u8::try_from(level).ok()?, node, size)?)?;
    let (hashes, _) = hashes.as_chunks::<32>();
    let start = usize::try_from(node).ok()? % TILE_HASHES;
    let count = 1usize.checked_shl(height.checked_sub(below)?)?;
    hashes.get(start..start.checked_add(count)?).map(fold)
}

/// The root over a power of two of hashes.
pub(crate) fn fold(hashes: &[[u8; 32]]) -> [u8; 32] {
    let mut row = hashes.to_vec();
    while row.len() > 1 {
        let (pairs, _) = row.as_chunks::<2>();
        row = pairs.iter().map(|[l, r]| node_hash(l, r)).collect();
    }
    row.first().copied().unwrap_or_default()
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "log tile",
        why,
    }
}
