//! The home actor: what is durable in the log is written to its place on the data device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use wal::{Buffer, Digest, Lsn};

use super::{Engine, EngineError, lock};
use crate::core::{BLOCK_BYTES, HomeJob, HomePage, Outcome, Place, Redos};

/// A piece of work for the data device.
pub struct Homing {
    job: HomeJob,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct Homed {
    /// Blocks that could not be written, because the log has another page where their content should be.
    wrong: BTreeSet<u64>,
}

impl Homed {
    /// Whether everything was written.
    pub fn is_whole(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl Homing {
    /// Bytes that are written; none for zeros.
    pub fn bytes(&self) -> u64 {
        match &self.job {
            HomeJob::Zero { .. } => 0,
            HomeJob::Write(pages) => (pages.len() * BLOCK_BYTES) as u64,
        }
    }
}

impl Engine {
    /// The next work, if there is some: what must be written before the log can forget or a flush be answered, and those
    /// `redos`. Several may be under way.
    pub fn home_begin(&self, redos: Redos) -> Option<Homing> {
        let job = self.core().home_begin(redos)?;
        Some(Homing { job })
    }

    /// Writes. A block whose page in the log is wrong is left out; what it has costs no other block anything.
    ///
    /// # Errors
    /// The log or the data device failed. The write will be tried again.
    pub fn home_run(&self, homing: &Homing) -> Result<Homed, EngineError> {
        match &homing.job {
            HomeJob::Zero { range, .. } => {
                let (offset, bytes) = self.place(range);
                self.data.zero(offset, bytes).map_err(not_written)?;
                Ok(Homed::default())
            }
            HomeJob::Write(pages) => {
                let mut content = self.spare(pages.len() * BLOCK_BYTES);
                let mut wrong = self.content(pages, &mut content)?;
                let is_left_out = |page: &HomePage| wrong.contains_key(&page.block);
                for (run, at) in runs(pages, is_left_out) {
                    let (offset, bytes) = self.place(&run);
                    let content = &content[at * BLOCK_BYTES..][..bytes as usize];
                    self.data.write(offset, content).map_err(not_written)?;
                }
                lock(&self.spare).push(content);
                // A block that the data device has already needs no page; the next sync settles it.
                wrong.retain(|block, digest| self.read_digest(*block, *digest).is_err());
                let wrong = wrong.into_keys().collect();
                Ok(Homed { wrong })
            }
        }
    }

    /// Where blocks lie on the data device and how many bytes it has of them: the last one may be short.
    fn place(&self, range: &Range<u64>) -> (u64, u64) {
        let offset = range.start * BLOCK_BYTES as u64;
        let end = (range.end * BLOCK_BYTES as u64).min(self.shape.bytes);
        (offset, end - offset)
    }

    /// Memory of at least so many bytes, with anything in it.
    fn spare(&self, bytes: usize) -> Buffer {
        let spare = lock(&self.spare).pop();
        spare
            .filter(|spare| spare.len() >= bytes)
            .unwrap_or_else(|| Buffer::zeroed(bytes.max(self.core().home_bytes())))
    }

    /// Puts the blocks from memory and from the log into `content`. Returns the digests of those whose page is wrong there,
    /// and which are left out.
    fn content(
        &self,
        pages: &[HomePage],
        content: &mut [u8],
    ) -> Result<BTreeMap<u64, Digest>, EngineError> {
        let mut wrong = BTreeMap::new();
        let mut logged: Vec<(Lsn, Digest, usize)> = Vec::new();
        for (at, page) in pages.iter().enumerate() {
            match &page.place {
                Place::Page(page) => {
                    content[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(page)
                }
                Place::Log(lsn, digest) => logged.push((*lsn, *digest, at)),
            }
        }
        logged.sort_unstable_by_key(|(lsn, ..)| *lsn);
        let places: Vec<(Lsn, Digest)> = logged
            .iter()
            .map(|(lsn, digest, _)| (*lsn, *digest))
            .collect();
        self.log.read_pages(&places, &mut |n, page| {
            let (_, digest, at) = logged[n];
            match page {
                Some(page) => content[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(page),
                None => {
                    wrong.insert(pages[at].block, digest);
                }
            }
        })?;
        Ok(wrong)
    }

    /// The work is done; without `homed` it has failed. A block whose page is wrong again and again is lost: the next
    /// settle makes it unreadable, until it is written.
    pub fn home_end(&self, homing: &Homing, homed: Option<&Homed>) {
        let outcome = |block| match homed {
            None => Outcome::Failed,
            Some(homed) if homed.wrong.contains(&block) => Outcome::Wrong,
            Some(_) => Outcome::Written,
        };
        let lost = self.core().home_end(&homing.job, outcome);
        for block in lost {
            self.watch.bad_block(block, block * BLOCK_BYTES as u64);
        }
    }

    /// Whether nothing is on its way to the data device or must go there; nor those `redos`.
    pub fn is_home_idle(&self, redos: Redos) -> bool {
        self.core().is_home_idle(redos)
    }

    /// Whether something waits to go to the data device; `redos` count too.
    pub fn has_home_work(&self, redos: Redos) -> bool {
        self.core().has_home_work(redos)
    }

    /// Whether the next frame's pages would not all be kept in memory until they go home.
    pub fn is_cache_full(&self) -> bool {
        self.core().is_cache_full()
    }

    /// Bytes that the log has and the data device lacks.
    pub fn bytes_to_home(&self) -> usize {
        self.core().redos_to_home()
    }
}

/// Blocks that follow each other, without those that are left out, and the number of the first one's page.
fn runs(pages: &[HomePage], is_left_out: impl Fn(&HomePage) -> bool) -> Vec<(Range<u64>, usize)> {
    let mut runs: Vec<(Range<u64>, usize)> = Vec::new();
    let written = (pages.iter().enumerate()).filter(|(_, page)| !is_left_out(page));
    for (at, block) in written.map(|(at, page)| (at, page.block)) {
        match runs.last_mut() {
            Some((run, _)) if run.end == block => run.end += 1,
            _ => runs.push((block..block + 1, at)),
        }
    }
    runs
}

fn not_written(source: std::io::Error) -> EngineError {
    EngineError::Data {
        action: "written",
        source,
    }
}
