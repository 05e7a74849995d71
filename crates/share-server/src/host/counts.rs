//! What the server of a shared volume has done since it was opened, for its operator.

use std::time::Duration;

use ordering::engine::Request;
use ordering::orderer::Turned;
use ordering::roster::Product;

/// See the head of this file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that were ordered and are durable.
    pub entries: u64,
    /// Marks that were ordered and are durable.
    pub marks: u64,
    /// Attests that were taken.
    pub attests: u64,
    /// Commits: each has one note.
    pub commits: u64,
    /// How long they took, from the first write to the note.
    pub commit_time: Duration,
    /// Messages that must wait: the server is busy.
    pub busy: u64,
    /// Messages that must wait: the device's quota is used up.
    pub quota: u64,
    /// Entries that were not ordered, because blocks before them were missing.
    pub unstored: u64,
    /// Messages with a bad signature, or of another device than the connection's.
    pub forged: u64,
}

impl Counts {
    /// A message was taken.
    pub(super) fn taken(&mut self, request: &Request<Product>) {
        if let Request::Attest(_) = request {
            self.attests += 1;
        }
    }

    /// A message was turned away.
    pub(super) fn turned(&mut self, why: Turned) {
        match why {
            Turned::Busy => self.busy += 1,
            Turned::Quota => self.quota += 1,
            Turned::Forged => self.forged += 1,
            Turned::NoSession | Turned::OtherEpoch | Turned::OtherLog | Turned::Restored => {}
        }
    }

    /// A commit is done.
    pub(super) fn committed(&mut self, entries: u64, marks: u64, time: Duration) {
        self.entries += entries;
        self.marks += marks;
        self.commits += 1;
        self.commit_time += time;
    }
}
