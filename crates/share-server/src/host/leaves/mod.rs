//! The log's leaves for ever: files that are written once, each with the leaves of a range. Bytes:
//! `docs/formats/shared-server.md`.
//!
//! A file appears under its name when it is whole and durable. While the last file is short, the next one repeats its
//! leaves and takes its place: so files are 16 MiB or more, and a crash leaves the old one, the new one, or both. In
//! memory is one row for each file.

pub(super) mod file;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use store::StoreError;
use store::disk::{Disk, DiskFile, damaged, io_error, replace_file};
use store::names::TEMPORARY;
use trust::history::Frontier;

use self::file::{Content, Head, Row};
use super::directory::LEAVES;
use super::record::StoredLeaf;
use crate::blocks::storage::lock;

pub use self::file::Head as FileHead;

/// Files of more bytes are not repeated by the next one.
pub const FULL_BYTES: u64 = 16 << 20;
/// Files that are open at a time.
const OPEN: usize = 64;
/// How often a read follows a file that is replaced at the same time.
const TRIES: usize = 3;

/// The files of leaves. One writer, many readers.
pub struct Leaves {
    disk: Arc<dyn Disk>,
    /// In order, without gaps.
    rows: RwLock<Vec<Row>>,
    /// Files that are open, the one used last at the end.
    open: Mutex<VecDeque<Open>>,
}

/// A file that is open, and its leaves.
type Open = (Range<u64>, Arc<dyn DiskFile>);

/// What the files say of the log's tree.
#[derive(Debug, Default)]
pub struct Found {
    /// The log before each file.
    pub frontiers: Vec<Frontier>,
    /// Root at the end of each page.
    pub roots: Vec<[u8; 32]>,
}

impl Leaves {
    /// Opens the files of a directory, and removes what a crash left.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Damaged`] for files with gaps between them, or with a damaged head.
    pub fn open(disk: Arc<dyn Disk>) -> Result<(Leaves, Found), StoreError> {
        let names = disk.list(LEAVES);
        let mut ranges = Vec::new();
        for name in names.map_err(|e| io_error(&*disk, LEAVES, e))? {
            match Row::parse(&name) {
                Some(range) => ranges.push(range),
                None if name.ends_with(TEMPORARY) => remove(&*disk, &format!("{LEAVES}/{name}")),
                None => {}
            }
        }
        // Of those that begin together the longest comes first.
        ranges.sort_by_key(|range| (range.start, u64::MAX - range.end));
        let (mut rows, mut found, mut end) = (Vec::new(), Found::default(), 0);
        for range in ranges {
            let name = format!("{LEAVES}/{:016x}-{:016x}", range.start, range.end);
            if range.end <= end {
                remove(&*disk, &name);
                continue;
            }
            if range.start != end {
                let why = format!("leaves {end} to {} are missing or twice there", range.start);
                return Err(damaged(&*disk, &name, &why));
            }
            end = range.end;
            let file = disk.open(&name).map_err(|e| io_error(&*disk, &name, e))?;
            let head = Head::read(&*disk, &*file, range)?;
            rows.push(head.row);
            found.frontiers.push(head.frontier);
            found.roots.extend(head.roots);
        }
        let leaves = Leaves {
            disk,
            rows: RwLock::new(rows),
            open: Mutex::default(),
        };
        Ok((leaves, found))
    }

    /// Number of leaves.
    pub fn end(&self) -> u64 {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.last().map_or(0, |row| row.range.end)
    }

    /// Number of files.
    pub fn files(&self) -> usize {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        rows.len()
    }

    /// Writes the next leaves durably. `before`: the log before them. `roots`: those at the ends of the pages that end
    /// in them.
    ///
    /// # Errors
    /// [`StoreError`]; the files are as before then.
    pub fn append(
        &self,
        leaves: &[StoredLeaf],
        before: &Frontier,
        roots: &[[u8; 32]],
    ) -> Result<(), StoreError> {
        let disk = &*self.disk;
        if before.size() != self.end() {
            return Err(damaged(
                disk,
                LEAVES,
                "leaves that do not follow the others",
            ));
        }
        let short = self.last_short();
        let mut content = match &short {
            Some(row) => self.repeated(row)?,
            None => Content::after(before.clone()),
        };
        if !content.extend(leaves, roots) {
            return Err(damaged(disk, LEAVES, "too many leaves at once"));
        }
        let (row, bytes) = content.encode();
        let name = row.name();
        replace_file(disk, &name, &format!("{name}{TEMPORARY}"), LEAVES, &bytes)?;
        {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            if short.is_some() {
                rows.pop();
            }
            rows.push(row);
        }
        if let Some(row) = short {
            lock(&self.open).retain(|(range, _)| *range != row.range);
            remove(disk, &row.name());
        }
        Ok(())
    }

    /// The last file, if the next one repeats it.
    fn last_short(&self) -> Option<Row> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let last = rows.last().filter(|row| row.len_bytes() < FULL_BYTES);
        last.cloned()
    }

    fn repeated(&self, row: &Row) -> Result<Content, StoreError> {
        let file = self.file(row);
        let file = file.map_err(|e| io_error(&*self.disk, &row.name(), e))?;
        Content::repeat(&*self.disk, &*file, row.range.clone())
    }

    /// Leaves at these positions, which must be there. The caller bounds their number.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Damaged`], which names the file and the leaf.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<StoredLeaf>, StoreError> {
        let mut leaves = Vec::new();
        let mut next = range.start;
        let mut tries = TRIES;
        while next < range.end {
            let row = self.row(next).ok_or_else(|| {
                let why = format!("leaf {next} is missing");
                damaged(&*self.disk, LEAVES, &why)
            })?;
            let file = match self.file(&row) {
                // It was replaced by a longer one.
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries > 0 => {
                    tries -= 1;
                    continue;
                }
                other => other.map_err(|e| io_error(&*self.disk, &row.name(), e))?,
            };
            let until = range.end.min(row.range.end);
            leaves.extend(row.read(&*self.disk, &*file, next..until)?);
            next = until;
        }
        Ok(leaves)
    }

    fn row(&self, position: u64) -> Option<Row> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let place = rows.partition_point(|row| row.range.end <= position);
        rows.get(place).cloned()
    }

    fn file(&self, row: &Row) -> io::Result<Arc<dyn DiskFile>> {
        let mut open = lock(&self.open);
        let place = open.iter().position(|(range, _)| *range == row.range);
        let found = match place.and_then(|place| open.remove(place)) {
            Some(found) => found,
            None => (row.range.clone(), self.disk.open(&row.name())?),
        };
        if open.len() >= OPEN {
            open.pop_front();
        }
        let file = Arc::clone(&found.1);
        open.push_back(found);
        Ok(file)
    }
}

/// Removes a file that is not needed any more. If that fails, the next start removes it.
fn remove(disk: &dyn Disk, name: &str) {
    if let Err(error) = disk.remove(name) {
        tracing::warn!(%error, name, "a file of leaves that is not needed cannot be removed");
    }
}
