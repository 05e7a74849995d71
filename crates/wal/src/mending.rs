//! A scrub of what lies on the device in two copies while the log is open: superblocks and key slots. A copy that is
//! wrong is written again. A crash between the writes of two copies leaves one of an older generation: that is no
//! damage, and is made good without a word.

use crate::buffer::{Buffer, PAGE};
use crate::copies::{Copied, CopyDefect, has, rewrite};
use crate::error::LogError;
use crate::log::Log;
use crate::shared::{Shared, lock};
use crate::slots;
use crate::superblock::{self, COPIES, Judged, Superblock};

impl Log {
    /// Checks all copies of both superblocks and of the key slots, and writes those again that are wrong. What is mended
    /// is durable when this returns. Returns the bytes that were read.
    ///
    /// # Errors
    /// As for [`check_session`](Log::check_session), which is asked first: nothing is written over a superblock of
    /// somebody else. [`LogError::Failed`]. A defect is not an error.
    pub fn check_copies(&self, tell: &mut dyn FnMut(CopyDefect)) -> Result<u64, LogError> {
        let shared = &*self.shared;
        let mut superblock = lock(&shared.superblock);
        shared.check_session(&superblock)?;
        shared.mend_superblocks(&mut superblock, tell)?;
        slots::mend(&*shared.device, superblock.volume, tell);
        shared.sync()?;
        Ok(4 * PAGE + slots::ALL_COPIES_BYTES)
    }

    /// Makes everything durable that was written to the log's device, by its clients too.
    ///
    /// # Errors
    /// [`LogError::Failed`]: after a failed sync the log accepts nothing more.
    pub fn sync(&self) -> Result<(), LogError> {
        self.shared.sync()
    }
}

impl Shared {
    fn mend_superblocks(
        &self,
        ours: &mut Superblock,
        tell: &mut dyn FnMut(CopyDefect),
    ) -> Result<(), LogError> {
        let newest = ours.encode(&self.keys.superblock);
        let number = (ours.generation % 2) as usize;
        for offset in COPIES[number] {
            if !has(&*self.device, offset, &newest) {
                self.refuse_newer(ours, self.authentic(offset).as_ref())?;
                tell(self.mended(offset, &newest));
            }
        }
        let older = COPIES[1 - number].map(|offset| (offset, self.authentic(offset)));
        for (_, page) in &older {
            self.refuse_newer(ours, page.as_ref())?;
        }
        let pages = older.iter().filter_map(|(_, page)| page.as_ref());
        let Some((_, best)) = pages.max_by_key(|(found, _)| found.generation) else {
            // Nobody knows what it was. The next generation takes its place.
            self.flip(ours, ours.clone())?;
            let next = ours.encode(&self.keys.superblock);
            COPIES[1 - number].into_iter().for_each(|offset| {
                tell(CopyDefect {
                    of: Copied::Superblock,
                    offset,
                    is_mended: has(&*self.device, offset, &next),
                });
            });
            return Ok(());
        };
        for (offset, page) in &older {
            if page.is_none() {
                tell(self.mended(*offset, best));
            } else if !has(&*self.device, *offset, best) {
                rewrite(&*self.device, *offset, best);
            }
        }
        Ok(())
    }

    fn mended(&self, offset: u64, page: &Buffer) -> CopyDefect {
        CopyDefect {
            of: Copied::Superblock,
            offset,
            is_mended: rewrite(&*self.device, offset, page),
        }
    }

    /// Whatever another host has written since the session was asked for is no damage.
    fn refuse_newer(
        &self,
        ours: &Superblock,
        found: Option<&(Box<Superblock>, Buffer)>,
    ) -> Result<(), LogError> {
        let is_newer = |found: &Superblock| {
            found.generation > ours.generation
                || found.generation == ours.generation && found.session != ours.session
        };
        match found.is_some_and(|(found, _)| is_newer(found)) {
            true => Err(self.fail(&LogError::Foreign)),
            false => Ok(()),
        }
    }

    /// The superblock there, if it is authentic. It is read twice before it counts as wrong.
    fn authentic(&self, offset: u64) -> Option<(Box<Superblock>, Buffer)> {
        (0..2).find_map(|_| {
            let page = superblock::read_page(&*self.device, offset).ok()?;
            match Superblock::judge(&page, |_| self.keys.superblock.clone()) {
                Judged::Authentic(found) => Some((found, page)),
                _ => None,
            }
        })
    }
}
