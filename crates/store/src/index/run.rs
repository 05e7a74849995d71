//! Reads an index run from a disk. The file is not trusted: each page is checked when it is first read
//! (by the rules of [`super::table`]), and kept.

use std::sync::{Arc, OnceLock};

use trust::Handle;

use super::table::Table;
use super::{Broken, Location, PAGE_BYTES};
use crate::StoreError;
use crate::disk::{Disk, DiskFile, Patience, damaged, io_error};
use crate::head::RunName;
use crate::names::FileId;

type Page = Box<[u8; PAGE_BYTES]>;

/// An open index run.
pub struct Run {
    name: RunName,
    file: Arc<dyn DiskFile>,
    table: Table,
    pages: Vec<OnceLock<Page>>,
}

/// Result of looking a handle up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The location of its record.
    At(Location),
    /// There is no entry for it.
    Absent,
    /// A page would have to be read from the device, and the caller does not wait.
    WouldWait,
}

impl Run {
    /// Opens a run and reads its trailer, fan-out and segment table.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it does not fit the head; [`StoreError::Format`] when a later bulla
    /// wrote it; [`StoreError::Io`].
    pub fn open(disk: &dyn Disk, name: RunName) -> Result<Run, StoreError> {
        let path = name.id.index();
        let file = disk.open(&path).map_err(|e| io_error(disk, &path, e))?;
        let bad = |why: Broken| broken(disk, &path, why);
        let len = file.len_bytes().map_err(|e| io_error(disk, &path, e))?;
        if len != name.len_bytes {
            return Err(bad("not as long as the head says".into()));
        }
        let read = |buf: &mut [u8], at: u64| match file.read_at(buf, at) {
            Ok(n) if n == buf.len() => Ok(()),
            Ok(_) => Err(bad("cut short".into())),
            Err(e) => Err(io_error(disk, &path, e)),
        };
        let table = Table::read(&name, read, bad)?;
        Ok(Run {
            name,
            file,
            pages: (0..table.pages()).map(|_| OnceLock::new()).collect(),
            table,
        })
    }

    /// The run's name in the head.
    pub fn name(&self) -> RunName {
        self.name
    }

    /// The segments that it names.
    pub fn segments(&self) -> &[FileId] {
        self.table.segments()
    }

    /// Looks a handle up.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn lookup(
        &self,
        disk: &dyn Disk,
        handle: &Handle,
        patience: Patience,
    ) -> Result<Lookup, StoreError> {
        let Some(number) = self.table.page_of(handle) else {
            return Ok(Lookup::Absent);
        };
        let Some(page) = self.page(disk, number, patience)? else {
            return Ok(Lookup::WouldWait);
        };
        let found = self.table.find(number, page, handle);
        let found = found.map_err(|why| self.bad(disk, why))?;
        Ok(found.map_or(Lookup::Absent, Lookup::At))
    }

    /// All entries in order of their handles. Pages that are read here are not kept, so that merging a
    /// large run does not fill memory.
    pub fn entries<'a>(
        &'a self,
        disk: &'a dyn Disk,
    ) -> impl Iterator<Item = Result<(Handle, Location), StoreError>> + 'a {
        let mut number = 0;
        let mut page: Option<Arc<[u8]>> = None;
        let mut next = 0;
        std::iter::from_fn(move || {
            loop {
                if page.is_none() {
                    if number >= self.pages.len() {
                        return None;
                    }
                    match self.page_unkept(disk, number) {
                        Ok(p) => page = Some(p),
                        Err(e) => {
                            number = self.pages.len();
                            return Some(Err(e));
                        }
                    }
                    next = 0;
                }
                if next < self.table.entries_in(number) {
                    let bytes = page.as_deref().unwrap_or_default();
                    let entry = self.table.entry(bytes, next);
                    next += 1;
                    return Some(entry.map_err(|why| self.bad(disk, why)));
                }
                page = None;
                number += 1;
            }
        })
    }

    /// A page, from memory or from the file; `None` when the caller would have to wait.
    fn page(
        &self,
        disk: &dyn Disk,
        number: usize,
        patience: Patience,
    ) -> Result<Option<&[u8]>, StoreError> {
        let Some(slot) = self.pages.get(number) else {
            return Err(self.bad(disk, "no such page"));
        };
        if let Some(page) = slot.get() {
            return Ok(Some(&page[..]));
        }
        let mut page: Page = Box::new([0; PAGE_BYTES]);
        let at = number as u64 * PAGE_BYTES as u64;
        let read = match patience {
            Patience::Wait => self.file.read_at(&mut page[..], at).map(Some),
            Patience::Never => self.file.read_at_if_cached(&mut page[..], at),
        };
        match read.map_err(|e| io_error(disk, &self.name.id.index(), e))? {
            None => return Ok(None),
            Some(PAGE_BYTES) => self.check(disk, number, &page[..])?,
            Some(_) => return Err(self.bad(disk, "cut short")),
        }
        Ok(Some(&slot.get_or_init(|| page)[..]))
    }

    fn page_unkept(&self, disk: &dyn Disk, number: usize) -> Result<Arc<[u8]>, StoreError> {
        if let Some(page) = self.pages.get(number).and_then(OnceLock::get) {
            return Ok(Arc::from(&page[..]));
        }
        let mut page = vec![0; PAGE_BYTES];
        let at = number as u64 * PAGE_BYTES as u64;
        let read = self.file.read_at(&mut page, at);
        if read.map_err(|e| io_error(disk, &self.name.id.index(), e))? != PAGE_BYTES {
            return Err(self.bad(disk, "cut short"));
        }
        self.check(disk, number, &page)?;
        Ok(page.into())
    }

    fn check(&self, disk: &dyn Disk, number: usize, page: &[u8]) -> Result<(), StoreError> {
        let checked = self.table.check_page(number, page);
        checked.map_err(|why| self.bad(disk, why))
    }

    fn bad(&self, disk: &dyn Disk, why: impl Into<Broken>) -> StoreError {
        broken(disk, &self.name.id.index(), why.into())
    }
}

fn broken(disk: &dyn Disk, name: &str, why: Broken) -> StoreError {
    match why {
        Broken::Rule(why) => damaged(disk, name, why),
        Broken::Newer(found) => StoreError::Format {
            path: disk.path(name),
            found,
        },
    }
}
