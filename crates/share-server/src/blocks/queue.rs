//! Batches that wait for the temporary log, in the order in which they came, and how many bytes of each session wait. How
//! much a session stores at a time decides which way its blocks go.

use std::collections::{HashMap, VecDeque};

use super::Session;
use super::gather::Job;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Queue {
    jobs: VecDeque<Job>,
    bytes: u64,
    /// Bytes of the sessions that have some here.
    of: HashMap<Session, u64>,
}

impl Queue {
    /// Bytes that all batches take in frames at most.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the batches of a session.
    pub fn bytes_of(&self, session: Session) -> u64 {
        self.of.get(&session).copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The last in the queue.
    pub fn push(&mut self, job: Job) {
        self.count(&job);
        self.jobs.push_back(job);
    }

    /// Back to the front.
    pub fn put_back(&mut self, job: Job) {
        self.count(&job);
        self.jobs.push_front(job);
    }

    /// The first, if it is as wanted.
    pub fn pop_if(&mut self, wanted: impl FnOnce(&Job) -> bool) -> Option<Job> {
        let job = self.jobs.pop_front_if(|job| wanted(job))?;
        let bytes = job.size().bytes();
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(all) = self.of.get_mut(&job.session) {
            *all = all.saturating_sub(bytes);
            if *all == 0 {
                self.of.remove(&job.session);
            }
        }
        Some(job)
    }

    /// All of them.
    pub fn take(&mut self) -> VecDeque<Job> {
        std::mem::take(self).jobs
    }

    fn count(&mut self, job: &Job) {
        let bytes = job.size().bytes();
        self.bytes = self.bytes.saturating_add(bytes);
        if bytes > 0 {
            let all = self.of.entry(job.session).or_default();
            *all = all.saturating_add(bytes);
        }
    }
}
