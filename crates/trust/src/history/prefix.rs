//! The proof that a log only grew (docs/decisions/0015), computed by the reader from tiles.
//!
//! Two steps, so that the error names the party at fault. First, each tile is proved to be part of the newer
//! log, whose subtrees the publisher signed. If one is not, its sender is at fault, and the caller asks
//! another replica. Then the older log's root is computed from proved tiles only. If it is not the root that
//! the reader saw before, the publisher has signed two histories: a fork.

use crate::error::Reject;
use crate::history::tiles::{TILE_HASHES, TileName, fold};
use crate::history::{Frontier, LogPoint};

/// The part of the older log that is proved, and the part that is still wanted.
#[derive(Debug, Clone)]
pub struct Prefix {
    old: LogPoint,
    new: LogPoint,
    stored: u64,
    /// Roots of the first perfect subtrees of the older log, proved.
    subtrees: Vec<[u8; 32]>,
    /// The node above the remaining subtrees.
    below: Option<Below>,
}

/// A node of the newer log, and how many of the older log's last leaves are below it: at least one, and fewer
/// than the node has.
#[derive(Debug, Clone, Copy)]
struct Below {
    node: Node,
    leaves: u64,
    root: [u8; 32],
}

/// The root of the perfect subtree of 2^height leaves, the `index`th of this height.
#[derive(Debug, Clone, Copy)]
struct Node {
    height: u8,
    index: u64,
}

/// The part of the way down that lies in one tile.
struct Steps {
    tile: TileName,
    level_height: u8,
    /// Index in the tile of the first hash that is needed, and the number of such hashes.
    first: usize,
    count: usize,
    /// Subtrees of the older log, largest first.
    found: Vec<Node>,
    /// The node above the remaining leaves, and how many remain.
    next: Option<(Node, u64)>,
}

impl Prefix {
    /// Begins to show that the log `old` is the beginning of the log with the frontier `new`. The tiles are
    /// those of a log of `stored` leaves (at least as many as `new` has).
    ///
    /// # Errors
    /// [`Reject::Fork`] when no tiles could show it: the logs have different epochs, or the newer is shorter.
    pub(crate) fn new(
        old: LogPoint,
        epoch: u64,
        new: &Frontier,
        stored: u64,
    ) -> Result<Prefix, Reject> {
        if old.epoch != epoch || old.size > new.size() {
            return Err(Reject::Fork("a newer record in a log without the older"));
        }
        let mut subtrees = Vec::new();
        let mut below = None;
        let mut left = old.size;
        for (start, leaves, root) in new.subtrees() {
            if left >= leaves {
                subtrees.push(root);
                left = left.saturating_sub(leaves);
                continue;
            }
            if left > 0 {
                let height = leaves.checked_ilog2().unwrap_or(0) as u8;
                let index = start >> height;
                let node = Node { height, index };
                below = Some(Below {
                    node,
                    leaves: left,
                    root,
                });
            }
            break;
        }
        Ok(Prefix {
            old,
            new: new.point(epoch),
            stored,
            subtrees,
            below,
        })
    }

    /// The tiles that are wanted, in the order in which they must be supplied: at most eight.
    pub fn wants(&self) -> Vec<TileName> {
        let mut tiles = Vec::new();
        let mut at = self.below.map(|below| (below.node, below.leaves));
        while let Some((node, leaves)) = at {
            let Some(steps) = steps(node, leaves, self.stored) else {
                break;
            };
            tiles.push(steps.tile);
            at = steps.next;
        }
        tiles
    }

    /// The older log.
    pub(crate) fn old(&self) -> LogPoint {
        self.old
    }

    /// Epoch of the log that the tiles belong to.
    pub fn epoch(&self) -> u64 {
        self.old.epoch
    }

    /// Takes the tile that is wanted next. It may have more hashes than requested, because logs grow.
    ///
    /// # Errors
    /// [`Reject::BadHistory`] when it is not part of the newer log: its sender is at fault, and nothing has
    /// changed.
    pub fn supply(&mut self, tile: &[u8]) -> Result<(), Reject> {
        let (Some(below), no_tile) = (self.below, Reject::BadHistory("not a tile of the log"))
        else {
            return Err(Reject::BadHistory("a tile that is not wanted"));
        };
        let (hashes, rest) = tile.as_chunks::<32>();
        if !rest.is_empty() || hashes.len() > TILE_HASHES {
            return Err(no_tile);
        }
        let steps = steps(below.node, below.leaves, self.stored).ok_or(no_tile.clone())?;
        let wanted = steps.first..steps.first.saturating_add(steps.count);
        let part = hashes.get(wanted).ok_or(no_tile.clone())?;
        if fold(part) != below.root {
            return Err(Reject::BadHistory(
                "a tile that is not part of the log which was signed",
            ));
        }
        let root_of = |node: Node| {
            let rise = node.height.checked_sub(steps.level_height)?;
            let start = (node.index << rise) as usize % TILE_HASHES;
            let end = start.checked_add(1 << rise)?;
            hashes.get(start..end).map(fold)
        };
        let found: Option<Vec<[u8; 32]>> = steps.found.iter().map(|node| root_of(*node)).collect();
        let found = found.ok_or(no_tile.clone())?;
        let next = match steps.next {
            None => None,
            Some((node, leaves)) => {
                let root = root_of(node).ok_or(no_tile)?;
                Some(Below { node, leaves, root })
            }
        };
        self.subtrees.extend(found);
        self.below = next;
        Ok(())
    }

    /// Whether the older log is the beginning of the newer one. Call it when no tile is wanted any more.
    ///
    /// # Errors
    /// [`Reject::Fork`]: the publisher signed two histories. [`Reject::Unproved`] while tiles are
    /// wanted.
    pub(crate) fn finish(self, new: &LogPoint) -> Result<LogPoint, Reject> {
        let old = self.old;
        self.frontier(new).map(|_| old)
    }

    /// The frontier of the older log, by the rules of [`Prefix::finish`].
    ///
    /// # Errors
    /// Those of [`Prefix::finish`].
    pub(crate) fn frontier(self, new: &LogPoint) -> Result<Frontier, Reject> {
        if self.below.is_some() || self.new != *new {
            return Err(Reject::Unproved);
        }
        let old = Frontier::of(self.old.size, self.subtrees);
        if old.root() != self.old.root {
            return Err(Reject::Fork("a newer record in another log"));
        }
        Ok(old)
    }
}

/// What tiles must show so that a log with the frontier `before` is known to contain `older`. `None` where
/// the frontier alone shows it. The tiles include the record that is the next leaf.
pub(crate) fn grown(
    older: &LogPoint,
    log: &LogPoint,
    before: &Frontier,
) -> Result<Option<Prefix>, Reject> {
    // The record's epoch is that of its policy. Only a policy that this reader has verified since then can
    // have begun a later log. An earlier one cannot contain the older record.
    if log.epoch > older.epoch {
        return Ok(None);
    }
    let prefix = Prefix::new(*older, log.epoch, before, log.size.saturating_add(1))?;
    if !prefix.wants().is_empty() {
        return Ok(Some(prefix));
    }
    prefix.finish(log).map(|_| None)
}

/// The way down through one tile from `node`, towards the first `leaves` of its leaves. `None` only for nodes
/// that no log of `stored` leaves has.
fn steps(node: Node, leaves: u64, stored: u64) -> Option<Steps> {
    let level = node.height.checked_sub(1)? / 8;
    let level_height = level.checked_mul(8)?;
    let rise = node.height.checked_sub(level_height)?;
    let first_node = node.index.checked_shl(u32::from(rise))?;
    let tile = TileName::of(level, first_node, stored)?;
    let (mut at, mut left) = (node, leaves);
    let mut found = Vec::new();
    while at.height > level_height && left > 0 {
        let height = at.height.checked_sub(1)?;
        let index = at.index.checked_mul(2)?;
        at = Node { height, index };
        let half = 1u64.checked_shl(u32::from(height))?;
        if left >= half {
            found.push(at);
            left = left.checked_sub(half)?;
            at.index = index.checked_add(1)?;
        }
    }
    Some(Steps {
        tile,
        level_height,
        first: (first_node % TILE_HASHES as u64) as usize,
        count: 1 << rise,
        found,
        next: (left > 0).then_some((at, left)),
    })
}

#[cfg(test)]
mod tests;
