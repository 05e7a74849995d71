//! A connection to the server as the driver sees it, and how one is made again after it is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, StoreError};
use trust::Record;
use wire::shared::Usage;

use crate::outbox::Unstored;

use ordering::engine::{Reply, Request};
use ordering::roster::Product;

/// First pause before the next attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause. A device that waits for its admission asks so often.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The server does not answer.
    Unreachable,
    /// The server has another key than the orderer of the volume, or speaks something else.
    OtherServer,
    /// The server does not have the volume.
    NoVolume,
    /// The server does not know this device as a member.
    NotMember,
    /// The server knows less of the log than this device: it was restored from a copy.
    Restored,
    /// The server has another log than this device.
    OtherLog,
    /// The owners have begun the volume's log again, as policies say that the server has shown: the device goes over.
    Successor,
    /// The server has not accepted the policies that this device follows.
    NotAccepted,
    /// The server works in another epoch of the log.
    OtherEpoch,
    /// The server gave an answer that does not fit.
    Unfit,
    /// The server refused something.
    Refused,
}

impl Trouble {
    /// Whether the server may do better by itself.
    pub fn may_pass(self) -> bool {
        match self {
            Trouble::Unreachable | Trouble::Refused | Trouble::Unfit | Trouble::Successor => true,
            Trouble::OtherServer
            | Trouble::NoVolume
            | Trouble::NotMember
            | Trouble::Restored
            | Trouble::OtherLog
            | Trouble::NotAccepted
            | Trouble::OtherEpoch => false,
        }
    }
}

/// A connection that could not be made, or was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Lost {
    /// Why.
    pub trouble: Trouble,
    /// For people.
    pub text: String,
}

impl Lost {
    pub(super) fn new(trouble: Trouble, text: impl Into<String>) -> Lost {
        let text = text.into();
        Lost { trouble, text }
    }
}

/// How the connection to the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connection {
    /// The first attempt is under way.
    Connecting,
    /// It works.
    Online,
    /// It was lost or could not be made; another attempt follows.
    Offline(Lost),
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Connection::Connecting => f.write_str("the server has not answered yet"),
            Connection::Online => {
                f.write_str("the server is connected, and has not answered this call")
            }
            Connection::Offline(lost) => write!(f, "no connection to the server: {lost}"),
        }
    }
}

/// Blocks over an open connection.
pub(super) trait Stores: Send + Sync + 'static {
    /// Blocks by handle.
    fn store(&self) -> Arc<dyn BlockStore>;
    /// Where blocks are put. When `flush` returns they are durable.
    fn sink(&self) -> Arc<dyn BlockSink>;
}

/// An open connection.
pub(super) trait Line: Stores {
    /// Sends a message of the session. If the connection breaks, the deliveries end.
    fn send(&self, request: Request<Product>) -> Result<(), Lost>;
    /// Puts blocks on the wire: what is sent next comes behind them. The future says whether they are durable. None:
    /// nothing was sent, and they must be put into the sink.
    fn fly(&self, records: &[Record]) -> Option<Flying>;
    /// Stores blocks that cannot fly: in several messages, and when there is a place for each.
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Stored>;
    /// Bodies of entries by position; those that the server has, in any order. Nothing is verified.
    fn bodies(&self, positions: Vec<u64>) -> BoxFuture<'_, Result<Vec<(u64, Bytes)>, Lost>>;
    /// The checkpoints that the server keeps. Nothing is verified.
    fn checkpoints(&self) -> BoxFuture<'_, Result<Vec<Bytes>, Lost>>;
    /// What this device has used at the server, and what is left. Nothing is proved.
    fn usage(&self) -> BoxFuture<'_, Result<Usage, Lost>>;
    /// Gives the server a checkpoint to keep.
    fn post_checkpoint(&self, posted: Bytes) -> BoxFuture<'_, Result<(), Lost>>;
}

/// Blocks are durable, or not, and why.
pub(super) type Stored = Result<(), (Unstored, StoreError)>;

/// What becomes of blocks that are on the wire.
pub(super) type Flying = BoxFuture<'static, Stored>;

/// What the server pushes.
pub(super) trait Deliveries: Send + 'static {
    /// The next one. Dropping the future loses nothing.
    fn next(&mut self) -> BoxFuture<'_, Result<Reply<Product>, Lost>>;
}

/// A new connection, and what comes over it.
pub(super) type Connected = (Arc<dyn Line>, Box<dyn Deliveries>);

/// Makes connections.
pub(super) trait Dial: Send + Sync + 'static {
    /// A new connection, or why there is none. Has a deadline of its own.
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Lost>>;
}

/// Pauses between attempts: each is longer than the one before, with chance, so that many devices do not come at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The connection works.
    pub(super) fn works(&mut self) {
        self.failures = 0;
    }

    /// The pause before the next attempt. `chance`: any number.
    pub(super) fn pause(&mut self, chance: u64) -> Duration {
        let longest = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        let longest = longest.min(LONGEST_PAUSE);
        let half = longest / 2;
        let share = half.as_micros() as u64;
        half + Duration::from_micros(chance % share.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again_when_the_connection_works() {
        let mut backoff = Backoff::default();
        let mut last = Duration::ZERO;
        for round in 0..40 {
            let pause = backoff.pause(u64::MAX - round);
            assert!(pause <= LONGEST_PAUSE && pause >= FIRST_PAUSE / 2);
            last = pause;
        }
        assert!(last >= LONGEST_PAUSE / 2);
        backoff.works();
        assert!(backoff.pause(0) < FIRST_PAUSE);
    }
}
