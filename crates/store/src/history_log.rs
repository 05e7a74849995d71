//! The files of the volume's history log in a repository: leaves, and the tiles of hashes over them
//! (docs/decisions/0015, docs/formats/repository.md).
//!
//! Tiles can be computed from leaves again. They are written only when they give the root of the log
//! that was signed.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bytes::Bytes;
use trust::history::{LogPoint, leaf_hash};
use trust::statement::Signed;
use trust::tiles::{Edge, MAX_TILE_BYTES, TileName};

use crate::disk::{Disk, damaged, io_error, read_file, write_aside};
use crate::error::StoreError;
use crate::names;

/// Maximum length of a log leaf (a signed statement), bytes.
pub const MAX_LEAF_BYTES: usize = trust::statement::MAX_SIGNED_BYTES;

/// Tiles of a log, with their bytes.
type Tiles = Vec<(TileName, Vec<u8>)>;

/// Leaves and tiles to be written with the next commit.
#[derive(Default)]
pub(crate) struct LogAppend {
    /// Epoch, index, signed statement.
    leaves: Vec<(u64, u64, Vec<u8>)>,
    tiles: Vec<(u64, TileName, Vec<u8>)>,
    /// Epoch and indexes of the leaves that were written last, without a gap.
    written: (u64, Range<u64>),
}

impl LogAppend {
    /// Adds a leaf of the history log, to be written with the next commit.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is longer than [`MAX_LEAF_BYTES`].
    pub fn put_leaf(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        index: u64,
        leaf: &[u8],
    ) -> Result<(), StoreError> {
        if leaf.len() > MAX_LEAF_BYTES {
            let name = names::log_leaf(epoch, index);
            let why = "a log leaf is 73,312 bytes at most";
            return Err(damaged(disk, &name, why));
        }
        self.leaves.push((epoch, index, leaf.to_vec()));
        Ok(())
    }

    /// Computes the tiles of the log at `after` from the added leaves and the stored ones, to be
    /// written with the next commit. Returns false when a leaf is missing or the root differs; then
    /// the repository only lacks the proof that its log grew.
    pub fn put_tiles(&mut self, disk: &dyn Disk, after: &LogPoint) -> bool {
        let new = |index: u64| {
            let leaf = |(e, i, _): &(u64, u64, Vec<u8>)| (*e, *i) == (after.epoch, index);
            let (epoch, written) = &self.written;
            (*epoch == after.epoch && written.contains(&index)) || self.leaves.iter().any(leaf)
        };
        let mut start = after.size;
        while let Some(index) = start.checked_sub(1).filter(|index| new(*index)) {
            start = index;
        }
        let mut made = self.new_tiles(disk, start, after);
        if made.is_none() && start > 0 {
            made = self.new_tiles(disk, 0, after);
        }
        let Some(tiles) = made else {
            tracing::warn!(
                repository = disk.place(),
                epoch = after.epoch,
                "the history log is incomplete: the repository cannot prove that it grew"
            );
            return false;
        };
        let tiles = tiles.into_iter().map(|(t, bytes)| (after.epoch, t, bytes));
        self.tiles.extend(tiles);
        true
    }

    /// Writes leaves and tiles durably under their names.
    pub fn write(&mut self, disk: &dyn Disk) -> Result<(), StoreError> {
        for (epoch, index, _) in &self.leaves {
            let (of, written) = &mut self.written;
            if (*of, written.end) != (*epoch, *index) {
                (*of, *written) = (*epoch, *index..*index);
            }
            written.end = index.saturating_add(1);
        }
        let leaves = std::mem::take(&mut self.leaves).into_iter();
        let leaf = |(epoch, index, bytes)| {
            let dir = format!("{}/{epoch}", names::LOG_DIR);
            (dir, names::log_leaf(epoch, index), bytes)
        };
        let tiles = std::mem::take(&mut self.tiles).into_iter();
        let tile = |(epoch, tile, bytes)| {
            let dir = names::log_tiles(epoch);
            (dir, names::log_tile(epoch, tile), bytes)
        };
        let mut dirs: Vec<String> = Vec::new();
        for (dir, name, bytes) in leaves.map(leaf).chain(tiles.map(tile)) {
            if !dirs.contains(&dir) {
                let made = disk.make_dir(&dir);
                made.map_err(|e| io_error(disk, &dir, e))?;
                dirs.push(dir);
            }
            let temporary = format!("{name}{}", names::TEMPORARY);
            write_aside(disk, &name, &temporary, &bytes)?;
        }
        // One sync for all files of a directory: a replica may copy thousands.
        for dir in &dirs {
            disk.sync_dir(dir).map_err(|e| io_error(disk, dir, e))?;
        }
        Ok(())
    }

    /// Removes written leaves.
    pub fn remove(
        &mut self,
        disk: &dyn Disk,
        epoch: u64,
        indexes: &[u64],
    ) -> Result<(), StoreError> {
        self.written = Default::default();
        for index in indexes {
            let name = names::log_leaf(epoch, *index);
            disk.remove(&name).map_err(|e| io_error(disk, &name, e))?;
        }
        if indexes.is_empty() {
            return Ok(());
        }
        let dir = format!("{}/{epoch}", names::LOG_DIR);
        disk.sync_dir(&dir).map_err(|e| io_error(disk, &dir, e))
    }

    /// The tiles that are new in the log at `after`, which had `start` leaves before; `None` when the
    /// leaves do not give the root of `after`.
    fn new_tiles(&self, disk: &dyn Disk, start: u64, after: &LogPoint) -> Option<Tiles> {
        let epoch = after.epoch;
        let new = self.leaves.iter().filter(|(e, ..)| *e == epoch);
        let new: HashMap<u64, &[u8]> = new.map(|(_, at, leaf)| (*at, leaf.as_slice())).collect();
        let mut edge = read_edge(disk, epoch, start)?;
        let mut tiles = Vec::new();
        for index in start..after.size {
            let leaf = match new.get(&index) {
                Some(leaf) => Bytes::copy_from_slice(leaf),
                None => leaf(disk, epoch, index).ok()??,
            };
            let signed = Signed::from_bytes(&leaf).ok()?;
            let hash = leaf_hash(signed.statement().bytes());
            edge.push(hash, &mut tiles).ok()?;
        }
        if edge.frontier().root() != after.root {
            return None;
        }
        if start < after.size {
            // A level grows only where the level below has filled a tile.
            let filled: HashSet<u8> = tiles.iter().map(|(tile, _)| tile.level()).collect();
            let mut last = edge.tiles();
            last.retain(|(tile, _)| {
                let below = tile.level().checked_sub(1);
                start == 0 || below.is_none_or(|level| filled.contains(&level))
            });
            tiles.extend(last);
        }
        Some(tiles)
    }
}

/// A leaf of the history log, if it is there.
pub(crate) fn leaf(disk: &dyn Disk, epoch: u64, index: u64) -> Result<Option<Bytes>, StoreError> {
    read_file(disk, &names::log_leaf(epoch, index), MAX_LEAF_BYTES)
}

/// A tile of the history log, if it is there.
pub(crate) fn tile(
    disk: &dyn Disk,
    epoch: u64,
    tile: TileName,
) -> Result<Option<Bytes>, StoreError> {
    read_file(disk, &names::log_tile(epoch, tile), MAX_TILE_BYTES)
}

/// The last tiles of the log at `size`. If a full tile has replaced a partial one, the beginning of the full
/// tile has the same hashes.
fn read_edge(disk: &dyn Disk, epoch: u64, size: u64) -> Option<Edge> {
    let read = |tile: TileName| {
        let partial = self::tile(disk, epoch, tile).ok()?;
        let whole = || self::tile(disk, epoch, tile.full()).ok()?;
        let bytes = partial.or_else(whole)?;
        (bytes.len() >= tile.len_bytes()).then(|| bytes.slice(..tile.len_bytes()))
    };
    let tiles: Option<Vec<Bytes>> = Edge::names(size).into_iter().map(read).collect();
    Edge::read(size, &tiles?).ok()
}

/// Files of the log that no reader needs any more: temporary files that a crash left, and partial
/// tiles of which the full tile exists.
pub(crate) fn leftovers(
    epoch: &str,
    list: impl Fn(&str) -> Result<Vec<String>, StoreError>,
) -> Result<Vec<String>, StoreError> {
    let dir = format!("{}/{epoch}", names::LOG_DIR);
    let mut doomed = list(&dir)?;
    doomed.retain(|name| name.ends_with(names::TEMPORARY));
    let mut doomed: Vec<String> = doomed.iter().map(|name| format!("{dir}/{name}")).collect();
    let Ok(number) = epoch.parse::<u64>() else {
        return Ok(doomed);
    };
    let dir = names::log_tiles(number);
    let listed = list(&dir)?;
    let tiles: HashSet<TileName> = listed.iter().filter_map(|name| name.parse().ok()).collect();
    let filled = |tile: TileName| !tile.is_full() && tiles.contains(&tile.full());
    let over = |name: &&String| {
        name.ends_with(names::TEMPORARY) || name.parse::<TileName>().is_ok_and(filled)
    };
    doomed.extend(
        listed
            .iter()
            .filter(over)
            .map(|name| format!("{dir}/{name}")),
    );
    Ok(doomed)
}
