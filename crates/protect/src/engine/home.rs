//! The home actor: what is durable in the log is written to its place on the data device.

use log::{Buffer, Digest};

use super::{Engine, EngineError};
use crate::core::{BLOCK_BYTES, HomeJob, Place, Seq};

/// A write to the data device.
pub struct Homing {
    job: HomeJob,
}

impl Homing {
    /// Bytes that are written; none for zeros.
    pub fn bytes(&self) -> u64 {
        match &self.job {
            HomeJob::Zero { .. } => 0,
            HomeJob::Write { pages, .. } => (pages.len() * BLOCK_BYTES) as u64,
        }
    }
}

impl Engine {
    /// The next write, if there is one. `redos`: also of what the log has, not only what must be written before the
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
                let offset = range.start * BLOCK_BYTES as u64;
                let end = (range.end * BLOCK_BYTES as u64).min(self.shape.bytes);
                let zeroed = self.data.zero(offset, end - offset);
                zeroed.map_err(not_written)
            }
            HomeJob::Write { start, pages } => {
                let content = self.content(pages)?;
                let offset = start * BLOCK_BYTES as u64;
                let real = content.len().min((self.shape.bytes - offset) as usize);
                self.data
                    .write(offset, &content[..real])
                    .map_err(not_written)
            }
        }
    }

    /// The content of a write, from memory and from the log. Pages that follow each other in the log are read at once.
    fn content(&self, pages: &[(Seq, Place)]) -> Result<Buffer, EngineError> {
        let mut content = Buffer::zeroed(pages.len() * BLOCK_BYTES);
        let mut at = 0;
        while let Some((_, place)) = pages.get(at) {
            let into = &mut content[at * BLOCK_BYTES..];
            match place {
                Place::Page(page) => {
                    into[..BLOCK_BYTES].copy_from_slice(page);
                    at += 1;
                }
                Place::Log(lsn, _) => {
                    let positions = (lsn.0..).step_by(BLOCK_BYTES);
                    let run = pages[at..].iter().zip(positions);
                    let digests = run.map_while(|((_, place), position)| match place {
                        Place::Log(lsn, digest) if lsn.0 == position => Some(*digest),
                        _ => None,
                    });
                    let digests: Vec<Digest> = digests.collect();
                    let bytes = digests.len() * BLOCK_BYTES;
                    self.log.read_run(*lsn, &digests, &mut into[..bytes])?;
                    at += digests.len();
                }
            }
        }
        Ok(content)
    }

    /// The write has returned.
    pub fn home_end(&self, homing: &Homing, succeeded: bool) {
        self.core().home_end(&homing.job, succeeded);
    }

    /// Whether nothing is on its way to the data device or must go there; with `redos`, nor what the log has too.
    pub fn is_home_idle(&self, redos: bool) -> bool {
        self.core().is_home_idle(redos)
    }

    /// Bytes that the log has and the data device lacks.
    pub fn bytes_to_home(&self) -> usize {
        self.core().redos_to_home()
    }
}

fn not_written(source: std::io::Error) -> EngineError {
    EngineError::Data {
        action: "written",
        source,
    }
}
