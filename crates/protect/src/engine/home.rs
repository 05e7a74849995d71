//! The home actor: what is durable in the log is written to its place on the data device.

use std::ops::Range;

use log::{Buffer, Digest, Lsn};

use super::{Engine, EngineError};
use crate::core::{BLOCK_BYTES, HomeJob, HomePage, Place};

/// A piece of work for the data device.
pub struct Homing {
    job: HomeJob,
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
    /// The next work, if there is some. `redos`: also what the log has, not only what must be written before the
    /// log can forget or a flush be answered. Several may be under way.
    pub fn home_begin(&self, redos: bool) -> Option<Homing> {
        let job = self.core().home_begin(redos)?;
        Some(Homing { job })
    }

    /// Writes.
    ///
    /// # Errors
    /// The log or the data device failed. The write will be tried again.
    pub fn home_run(&self, homing: &Homing) -> Result<(), EngineError> {
        match &homing.job {
            HomeJob::Zero { range, .. } => {
                let (offset, bytes) = self.place(range);
                self.data.zero(offset, bytes).map_err(not_written)
            }
            HomeJob::Write(pages) => {
                let content = self.content(pages)?;
                let mut rest = &content[..];
                for run in runs(pages) {
                    let (offset, bytes) = self.place(&run);
                    let whole = (run.end - run.start) as usize * BLOCK_BYTES;
                    let written = self.data.write(offset, &rest[..bytes as usize]);
                    written.map_err(not_written)?;
                    rest = &rest[whole..];
                }
                Ok(())
            }
        }
    }

    /// Where blocks lie on the data device and how many bytes it has of them: the last one may be short.
    fn place(&self, range: &Range<u64>) -> (u64, u64) {
        let offset = range.start * BLOCK_BYTES as u64;
        let end = (range.end * BLOCK_BYTES as u64).min(self.shape.bytes);
        (offset, end - offset)
    }

    /// The content of the blocks, from memory and from the log.
    fn content(&self, pages: &[HomePage]) -> Result<Buffer, EngineError> {
        let mut content = Buffer::zeroed(pages.len() * BLOCK_BYTES);
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
            let at = logged[n].2;
            content[at * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(page);
        })?;
        Ok(content)
    }

    /// The work is done, or has failed.
    pub fn home_end(&self, homing: &Homing, succeeded: bool) {
        self.core().home_end(&homing.job, succeeded);
    }

    /// Whether nothing is on its way to the data device or must go there; with `redos`, nor what the log has too.
    pub fn is_home_idle(&self, redos: bool) -> bool {
        self.core().is_home_idle(redos)
    }

    /// Whether something waits to go to the data device; with `redos`, also of what the log has too.
    pub fn has_home_work(&self, redos: bool) -> bool {
        self.core().has_home_work(redos)
    }

    /// Bytes that the log has and the data device lacks.
    pub fn bytes_to_home(&self) -> usize {
        self.core().redos_to_home()
    }
}

/// Blocks that follow each other.
fn runs(pages: &[HomePage]) -> impl Iterator<Item = Range<u64>> {
    let together = pages.chunk_by(|one, next| one.block + 1 == next.block);
    together.map(|run| {
        let start = run.first().map_or(0, |page| page.block);
        start..start + run.len() as u64
    })
}

fn not_written(source: std::io::Error) -> EngineError {
    EngineError::Data {
        action: "written",
        source,
    }
}
