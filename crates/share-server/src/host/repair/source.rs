//! Where a repair finds leaves: files of leaves, of which some may be damaged, with the leaves of a temporary log; and the
//! memory of a device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use store::StoreError;
use store::disk::{Disk, DiskFile, io_error};

use super::super::directory::LEAVES;
use super::super::leaves::file::{Head, Row};
use super::super::record::StoredLeaf;
use super::DeviceLog;

/// Leaves that are read at once.
const AT_ONCE: u64 = 256;

/// See the head of this file.
pub(in super::super) enum Source {
    /// Of a server's directory.
    Server(Files),
    /// Of a device.
    Device(Box<dyn DeviceLog>),
}

impl Source {
    /// The leaves of a server's directory. Files that cannot be read give none.
    pub fn open(disk: Arc<dyn Disk>, tail: HashMap<u64, StoredLeaf>) -> Result<Source, StoreError> {
        Ok(Source::Server(Files::open(disk, tail)?))
    }

    /// Number of leaves of its log, by the names of its files and by its temporary log.
    pub fn end(&self) -> u64 {
        match self {
            Source::Server(files) => files.end(),
            Source::Device(device) => device.end(),
        }
    }

    /// A leaf, if it is there as it was written. That of a device may lack its body.
    pub fn leaf(&self, at: u64) -> Option<StoredLeaf> {
        match self {
            Source::Server(files) => files.leaf(at),
            Source::Device(device) => device.leaf(at).as_ref().map(StoredLeaf::of),
        }
    }
}

/// Files of leaves.
pub(in super::super) struct Files {
    disk: Arc<dyn Disk>,
    rows: Vec<Row>,
    /// Leaves of a temporary log.
    tail: HashMap<u64, StoredLeaf>,
    /// The leaves that were read last.
    read: RefCell<(Range<u64>, Vec<Option<StoredLeaf>>)>,
}

impl Files {
    fn open(disk: Arc<dyn Disk>, tail: HashMap<u64, StoredLeaf>) -> Result<Files, StoreError> {
        let names = match disk.list(LEAVES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            other => other.map_err(|e| io_error(&*disk, LEAVES, e))?,
        };
        let ranges = names.iter().filter_map(|name| Row::parse(name));
        let rows = ranges.filter_map(|range| row(&*disk, range)).collect();
        Ok(Files {
            disk,
            rows,
            tail,
            read: RefCell::new((0..0, Vec::new())),
        })
    }

    fn end(&self) -> u64 {
        let files = self.rows.iter().map(|row| row.range.end);
        let tail = self.tail.keys().map(|at| at.saturating_add(1));
        files.chain(tail).max().unwrap_or(0)
    }

    fn leaf(&self, at: u64) -> Option<StoredLeaf> {
        if let Some(stored) = self.tail.get(&at) {
            return Some(stored.clone());
        }
        let mut read = self.read.borrow_mut();
        if !read.0.contains(&at) {
            let from = at - at % AT_ONCE;
            let range = from..from.saturating_add(AT_ONCE);
            let leaves = range.clone().map(|_| None).collect();
            *read = (range, leaves);
            for row in &self.rows {
                self.fill(row, &mut read);
            }
        }
        let place = usize::try_from(at.checked_sub(read.0.start)?).ok()?;
        read.1.get(place)?.clone()
    }

    /// Reads what a file has of a range.
    fn fill(&self, row: &Row, (range, leaves): &mut (Range<u64>, Vec<Option<StoredLeaf>>)) {
        let part = range.start.max(row.range.start)..range.end.min(row.range.end);
        if part.is_empty() {
            return;
        }
        let Ok(file) = self.disk.open(&row.name()) else {
            return;
        };
        let mut put = |at: u64, leaf: Option<StoredLeaf>| {
            let place = usize::try_from(at - range.start).unwrap_or(usize::MAX);
            if let Some(slot) = leaves.get_mut(place)
                && slot.is_none()
            {
                *slot = leaf;
            }
        };
        match row.read(&*self.disk, &*file, part.clone()) {
            Ok(all) => part.zip(all).for_each(|(at, leaf)| put(at, Some(leaf))),
            Err(_) => part.for_each(|at| put(at, self.one(row, &*file, at))),
        }
    }

    fn one(&self, row: &Row, file: &dyn DiskFile, at: u64) -> Option<StoredLeaf> {
        let read = row.read(&*self.disk, file, at..at.saturating_add(1));
        read.ok()?.pop()
    }
}

fn row(disk: &dyn Disk, range: Range<u64>) -> Option<Row> {
    let name = format!("{LEAVES}/{:016x}-{:016x}", range.start, range.end);
    let file = disk.open(&name).ok()?;
    match Head::read(disk, &*file, range.clone()) {
        Ok(head) => Some(head.row),
        Err(_) => Row::guess(range, file.len_bytes().ok()?),
    }
}
