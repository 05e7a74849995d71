//! A scrub of the durable tree: every page of it is read from the device, and what is wrong is written again from its
//! other copy or from memory.
//!
//! The durable tree is walked, not the one in memory: its slots are those that a crash leaves. It is read beside
//! write-backs, so a page that looks wrong may have been replaced; only while no writer runs, and under the root that
//! named the page, is it called wrong. A right page is never written over: the rule that nothing writes to a slot of a
//! durable root protects right pages alone.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use wal::PAGE_BYTES;

use super::error::MapError;
use super::layout::{FAN_OUT, PageId};
use super::page::{Entry, Page};
use super::pages::Stored;
use super::tree::Found;
use super::value::Cell;
use super::{Map, Root};

/// A copy of a page that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageDefect {
    /// 0 for a leaf.
    pub level: u8,
    /// Number of the page in its level.
    pub index: u64,
    /// Where the copy lies on the device, in bytes.
    pub offset: u64,
    /// The blocks of the data device that depend on the page.
    pub blocks: Range<u64>,
    /// What became of it.
    pub repair: Repair,
}

/// What a scrub made of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// It is written again, and is right. Durable when the device is synced.
    Mended,
    /// A newer version of the page is in memory: the next checkpoint writes it elsewhere.
    Superseded,
    /// There is another right copy, but this one cannot be written.
    Stays,
    /// There is no right copy.
    Lost,
}

/// What a step of a scrub has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Bytes that were read.
    pub bytes: u64,
    /// Where the next step begins. Nothing at the end.
    pub next: Option<u64>,
    /// Whether the caller must sync the device.
    pub has_written: bool,
    /// Whether a page is wrong of which memory has a newer version. The next checkpoint writes that one elsewhere; then the
    /// step must be done again, because nothing below the page could be checked.
    pub is_superseded: bool,
    /// Whether it ended early, because nothing may be repaired.
    pub is_refused: bool,
}

/// Why a step cannot go on.
enum Ended {
    /// The durable root has changed: the pages of the old one may be overwritten.
    Changed,
    /// Nothing may be repaired.
    Refused,
}

/// A step under way.
struct Step<'a> {
    root: Root,
    checked: Checked,
    told: BTreeSet<u64>,
    may_repair: &'a mut dyn FnMut() -> bool,
    tell: &'a mut dyn FnMut(PageDefect),
}

impl Map {
    /// Checks pages of the durable tree: the leaves from number `from` on that have the same parent, and those interior
    /// pages whose first leaf is `from`. Begin with 0. Memory is bounded, and no lock is held while pages are read.
    /// What cannot be read is a defect like what is wrong.
    ///
    /// `may_repair` is asked before anything is called wrong: whether these pages are still this host's. If not, the check
    /// ends.
    pub fn check(
        &self,
        from: u64,
        may_repair: &mut dyn FnMut() -> bool,
        tell: &mut dyn FnMut(PageDefect),
    ) -> Checked {
        let mut step = Step {
            root: Root::ZERO,
            checked: Checked::default(),
            told: BTreeSet::new(),
            may_repair,
            tell,
        };
        loop {
            step.root = self.tree().durable();
            match self.check_below(from, &mut step) {
                Ok(next) => {
                    let leaves = self.pages.layout.count(0);
                    step.checked.next = Some(next).filter(|next| *next < leaves);
                    return step.checked;
                }
                Err(Ended::Refused) => {
                    step.checked.is_refused = true;
                    return step.checked;
                }
                Err(Ended::Changed) => {}
            }
        }
    }

    /// Goes from the top page down to the leaf `from`. Returns the first leaf that is not checked.
    fn check_below(&self, from: u64, step: &mut Step<'_>) -> Result<u64, Ended> {
        let mut id = self.pages.layout.top();
        let mut cell: Cell = step.root.to_bytes();
        loop {
            let leaves = id.below(0);
            let behind = leaves.end.index;
            let Entry::Page(slot, mac) = Entry::decode(cell) else {
                return Ok(behind);
            };
            let stored = Stored { id, slot, mac };
            // Another step has checked it, unless this is its first leaf.
            let checked = match self.pages.read(stored) {
                Ok(page) if leaves.start.index != from => {
                    step.checked.bytes += PAGE_BYTES as u64;
                    Some(page)
                }
                _ => self.check_page(stored, step)?,
            };
            let Some(page) = checked else {
                return Ok(behind);
            };
            match id.level {
                0 => return Ok(behind),
                1 => {
                    self.check_leaves(id, &page, step)?;
                    return Ok(behind);
                }
                _ => {}
            }
            let each = FAN_OUT.pow(u32::from(id.level) - 1);
            let child = id.child(from / each % FAN_OUT);
            cell = page.cells().get(child.cell()).copied().unwrap_or_default();
            id = child;
        }
    }

    /// Reads the leaves below a page in as few requests as possible, and looks again at those that are wrong.
    fn check_leaves(&self, id: PageId, page: &Page, step: &mut Step<'_>) -> Result<(), Ended> {
        let named = (0..).zip(page.cells()).filter_map(|(number, cell)| {
            let id = id.child(number);
            match Entry::decode(*cell) {
                Entry::Page(slot, mac) if id.index < self.pages.layout.count(0) => {
                    Some(Stored { id, slot, mac })
                }
                _ => None,
            }
        });
        let named: Vec<Stored> = named.collect();
        let neighbours = |a: &Stored, b: &Stored| a.slot == b.slot && a.id.index + 1 == b.id.index;
        for run in named.chunk_by(neighbours) {
            step.checked.bytes += (run.len() * PAGE_BYTES) as u64;
            let right = self.pages.read_run(run);
            for (stored, _) in run.iter().zip(right).filter(|(_, right)| !right) {
                self.mend(*stored, step)?;
            }
        }
        Ok(())
    }

    /// Reads all copies of a page, and mends those that are wrong. Nothing, if no copy is left.
    fn check_page(&self, stored: Stored, step: &mut Step<'_>) -> Result<Option<Arc<Page>>, Ended> {
        let (right, wrong) = self.judge(stored);
        step.checked.bytes += PAGE_BYTES as u64 * (1 + u64::from(stored.id.level > 0));
        match wrong.is_empty() {
            true => Ok(right),
            false => self.mend(stored, step),
        }
    }

    /// The page, from a copy that is right, and the offsets of those that are not.
    fn judge(&self, stored: Stored) -> (Option<Arc<Page>>, Vec<u64>) {
        let (mut right, mut wrong) = (None, Vec::new());
        for offset in self.pages.layout.copies(stored.id, stored.slot) {
            match self.pages.read_copy(stored, offset) {
                Ok(page) => right = Some(page),
                Err(_) => wrong.push(offset),
            }
        }
        (right, wrong)
    }

    /// Looks again at a page while nobody writes, and mends its copies that are wrong then.
    fn mend(&self, stored: Stored, step: &mut Step<'_>) -> Result<Option<Arc<Page>>, Ended> {
        let _writer = self.writer();
        if self.tree().durable() != step.root {
            return Err(Ended::Changed);
        }
        let (right, wrong) = self.judge(stored);
        if !wrong.is_empty() && !(step.may_repair)() {
            return Err(Ended::Refused);
        }
        let page = match right {
            Some(page) => Ok(page),
            None => self.remembered(stored),
        };
        for offset in wrong {
            let repair = match &page {
                Err(repair) => *repair,
                Ok(page) => {
                    step.checked.has_written = true;
                    match self.rewrite(stored, offset, page) {
                        Ok(()) => Repair::Mended,
                        Err(_) => Repair::Stays,
                    }
                }
            };
            step.found(
                stored,
                offset,
                repair,
                self.pages.layout.blocks_of(stored.id),
            );
        }
        Ok(page.ok())
    }

    /// Writes a copy, and reads it back.
    fn rewrite(&self, stored: Stored, offset: u64, page: &Page) -> Result<(), MapError> {
        self.pages.write_copy(offset, page)?;
        self.pages.read_copy(stored, offset).map(drop)
    }

    /// The page as memory has it. If it is not the durable version, whether the tree still needs that one.
    fn remembered(&self, stored: Stored) -> Result<Arc<Page>, Repair> {
        let found = self.tree().find(stored.id);
        match found {
            Found::Memory(page) if self.pages.mac(stored.id, &page) == stored.mac => Ok(page),
            // A page above it is not in memory, so nothing below it has changed.
            Found::Missing(now) if now == stored || now.id != stored.id => Err(Repair::Lost),
            _ => Err(Repair::Superseded),
        }
    }
}

impl Step<'_> {
    fn found(&mut self, stored: Stored, offset: u64, repair: Repair, blocks: Range<u64>) {
        self.checked.is_superseded |= repair == Repair::Superseded;
        // The root may change after it was told.
        if self.told.insert(offset) {
            (self.tell)(PageDefect {
                level: stored.id.level,
                index: stored.id.index,
                offset,
                blocks,
                repair,
            });
        }
    }
}
