//! Batches become durable: as many as wait, in few frames, with one sync.

use wal::{AppendError, Client, LogError};

use super::error::Error;
use super::gather::{Gathering, Job};
use super::queue::Queue;
use super::record::ENTRIES;
use super::storage::{Progress, Storage, lock};

/// A commit ends with the frame that makes it longer than this.
const COMMIT_BYTES: u64 = 8 << 20;

impl Storage {
    /// Whether batches wait for the log.
    pub fn has_batches(&self) -> bool {
        !lock(&self.queue).is_empty()
    }

    /// Makes batches that wait durable with one sync, and tells their clients.
    pub fn commit(&self) -> Progress {
        let _turn = lock(&self.committing);
        let mut taken = Taken::default();
        let from = self.log.end();
        let mut progress = Progress::Done;
        while progress == Progress::Done && self.log.end().0 - from.0 < COMMIT_BYTES {
            progress = self.append_frame(&mut taken);
        }
        let is_work = !taken.framed.is_empty() || !taken.refused.is_empty() || taken.unsynced;
        if !taken.framed.is_empty() || taken.unsynced {
            // Blocks that were there already may lie in a frame that is not durable yet.
            let flushed = self.log.flush(self.log.end()).wait().map_err(Error::Log);
            for job in taken.framed {
                job.finish(flushed.clone());
            }
        }
        for (job, error) in taken.refused {
            job.finish(Err(error));
        }
        match progress {
            Progress::Full => Progress::Full,
            _ if is_work => Progress::Done,
            _ => Progress::Idle,
        }
    }

    /// Appends one frame of batches that wait. Clients are told when no lock is held.
    fn append_frame(&self, taken: &mut Taken) -> Progress {
        let most = self.log.max_frame_bytes();
        let mut queue = lock(&self.queue);
        let mut window = lock(&self.window);
        let mut frame = Gathering::new(&window);
        while let Some(job) = queue.pop_if(|job| frame.has_room(job, most)) {
            let added = frame.add(&mut window, self.now(), self.day(), job, &self.digests);
            taken.refused.extend(added.err().map(|refused| *refused));
        }
        let appended = match frame.records(&self.digests) {
            [] => None,
            records => Some(self.append(records)),
        };
        match appended {
            None if frame.jobs.is_empty() => return Progress::Idle,
            None => {}
            Some(Ok(appended)) => frame.appended(&mut window, &appended),
            Some(Err(error)) => {
                let jobs = frame.undo(&mut window);
                return not_appended(error, jobs, &mut queue, taken);
            }
        }
        taken.framed.append(&mut frame.jobs);
        Progress::Done
    }

    fn append(&self, records: &[(Client, wal::Record)]) -> Result<wal::Appended, AppendError> {
        let has_entries = records.iter().any(|(client, _)| *client == ENTRIES);
        if has_entries {
            lock(&self.entries).appending(self.log.end());
        }
        let appended = self.log.append(records)?;
        if has_entries {
            lock(&self.entries).appended(appended.end);
        }
        Ok(appended)
    }

    /// Tells every batch that waits why it is not stored.
    pub fn refuse_waiting(&self, why: &Error) {
        let waiting = lock(&self.queue).take();
        for job in waiting {
            job.finish(Err(why.clone()));
        }
    }
}

/// The batches of a commit.
#[derive(Default)]
struct Taken {
    framed: Vec<Job>,
    refused: Vec<(Job, Error)>,
    /// The log takes no more before a sync.
    unsynced: bool,
}

/// The log did not take the frame of these batches. They wait again, unless it never will.
fn not_appended(
    error: AppendError,
    jobs: Vec<Job>,
    queue: &mut Queue,
    taken: &mut Taken,
) -> Progress {
    let progress = match error {
        AppendError::Full { .. } => Progress::Full,
        AppendError::Unsynced { .. } => {
            taken.unsynced = true;
            Progress::Idle
        }
        AppendError::Log(error) => return refuse(jobs, &error, taken),
        AppendError::Invalid { why } => return refuse(jobs, &LogError::Invalid { why }, taken),
    };
    for job in jobs.into_iter().rev() {
        queue.put_back(job);
    }
    progress
}

fn refuse(jobs: Vec<Job>, error: &LogError, taken: &mut Taken) -> Progress {
    let refused = jobs.into_iter().map(|job| (job, Error::Log(error.clone())));
    taken.refused.extend(refused);
    Progress::Idle
}
