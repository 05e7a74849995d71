//! What waits to be sent: an entry that names new blocks goes after them.
//!
//! The blocks of the last entry are kept until the entry is in the log, because a new connection stores them again
//! before it sends the entry again. Other messages never wait.
//!
//! The server may say that it has not ordered the entry, because blocks that came before it were missing: those of the entry,
//! or others of this device. Then its blocks are stored again, and the same bytes are sent again: at once, and after a
//! pause that grows if the server says so again. So a server that says so for ever is not asked without end.

use std::sync::Arc;
use std::time::Duration;

use trust::Record;

use ordering::engine::Request;
use ordering::roster::Product;

/// The first pause before an entry goes a third time, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Blocks of the next entry, and the entry while they are on their way.
#[derive(Debug, Default)]
pub struct Outbox {
    blocks: Vec<Record>,
    state: State,
    /// Batches of blocks that were begun to be stored. An answer for an earlier one says nothing about these blocks.
    begun: u64,
    entry: Option<Request<Product>>,
    /// How often the server has not ordered the entry because blocks were missing.
    refusals: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server has them, as far as this connection knows; or there are none.
    #[default]
    Stored,
    Storing,
    Waiting,
    /// The server missed some, of this entry or of others. They wait for [`Outbox::retry`].
    Missing,
}

impl Outbox {
    /// The next entry names these blocks.
    pub fn store(&mut self, blocks: Vec<Record>) {
        self.blocks = blocks;
        self.state = State::Waiting;
    }

    /// What may be sent now.
    pub fn send(&mut self, request: Request<Product>) -> Option<Request<Product>> {
        if let Request::Entry(_) = request {
            self.refusals = 0;
        }
        match request {
            Request::Entry(_) if self.state != State::Stored => {
                self.entry = Some(request);
                None
            }
            request => Some(request),
        }
    }

    /// The server has not ordered this entry, because blocks were missing. Gives the pause before [`Outbox::retry`].
    pub fn again(&mut self, entry: Request<Product>) -> Duration {
        self.entry = Some(entry);
        self.state = State::Missing;
        let (first, longest) = PAUSES;
        let pause = match self.refusals {
            0 => Duration::ZERO,
            more => first.saturating_mul(1 << more.min(10)).min(longest),
        };
        self.refusals = self.refusals.saturating_add(1);
        pause
    }

    /// The pause is over: the blocks go again, or the entry if it has none.
    pub fn retry(&mut self) -> Option<Request<Product>> {
        if self.state != State::Missing {
            return None;
        }
        if self.blocks.is_empty() {
            self.state = State::Stored;
            return self.entry.take();
        }
        self.state = State::Waiting;
        None
    }

    /// Blocks that must be stored now, and the number of this batch.
    pub fn begin(&mut self) -> Option<(u64, Arc<[Record]>)> {
        if self.state != State::Waiting || self.blocks.is_empty() {
            return None;
        }
        self.state = State::Storing;
        self.begun = self.begun.saturating_add(1);
        Some((self.begun, self.blocks.as_slice().into()))
    }

    /// The blocks of a batch are durable. What waited for them may be sent.
    pub fn stored(&mut self, batch: u64) -> Option<Request<Product>> {
        if !self.stores(batch) {
            return None;
        }
        self.state = State::Stored;
        self.entry.take()
    }

    /// The blocks of a batch could not be stored.
    pub fn unstored(&mut self, batch: u64) {
        if self.stores(batch) {
            self.state = State::Waiting;
        }
    }

    /// Whether this batch has the blocks of the next entry, and no other connection stores them.
    fn stores(&self, batch: u64) -> bool {
        self.state == State::Storing && batch == self.begun
    }

    /// There is a new connection. The engine sends its entry again.
    pub fn connected(&mut self) {
        self.disconnected();
    }

    /// The connection is over.
    pub fn disconnected(&mut self) {
        self.entry = None;
        self.state = match self.blocks.is_empty() {
            true => State::Stored,
            false => State::Waiting,
        };
    }

    /// All entries that were sent have their places.
    pub fn settled(&mut self) {
        self.blocks.clear();
        // A Resume leaves no trace in the journal, and may wait to be sent again.
        if self.state != State::Missing {
            self.state = State::Stored;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::device::DeviceKey;
    use trust::device::Incarnation;
    use trust::key::SecretKey;
    use trust::volume_id::VolumeId;
    use trust::{Handle, frame::Packer};
    use trust_shared::entry::{Content, Entry, Prefix};

    fn entry() -> Request<Product> {
        let key = SecretKey::from_seed(&[1; 32]);
        let seen = Prefix {
            size: 0,
            root: [0; 32],
        };
        let entry = Entry {
            epoch: 0,
            device: DeviceKey::from(&key.public()),
            incarnation: Incarnation::from_bytes([2; 16]),
            seen,
            kept: 0,
            content: Content::Resume,
        };
        let signed = entry.sign(VolumeId::from_bytes([3; 32]), &key).unwrap();
        Request::Entry(ordering::signed::Entry::new(signed))
    }

    fn block() -> Record {
        let frame = Packer::new()
            .pack(trust::handle::Kind::Data, b"block")
            .unwrap();
        let handle = Handle::from_bytes([4; 32]);
        Record { handle, frame }
    }

    #[test]
    fn entry_waits_for_its_blocks_and_other_messages_do_not() {
        let mut outbox = Outbox::default();
        assert!(outbox.send(entry()).is_some());
        outbox.store(vec![block()]);
        assert!(outbox.send(entry()).is_none());
        assert!(outbox.send(Request::Open(None)).is_some());
        let (batch, blocks) = outbox.begin().unwrap();
        assert_eq!(blocks.len(), 1);
        assert!(outbox.begin().is_none(), "it is under way");
        assert!(outbox.send(entry()).is_none());
        assert!(outbox.stored(batch).is_some());
        assert!(outbox.send(entry()).is_some());
    }

    #[test]
    fn new_connection_stores_blocks_again_until_the_entry_is_in_the_log() {
        let mut outbox = Outbox::default();
        outbox.store(vec![block()]);
        let (lost, _) = outbox.begin().unwrap();
        outbox.disconnected();
        outbox.connected();
        assert!(outbox.send(entry()).is_none());
        assert!(outbox.stored(lost).is_none());
        let (again, _) = outbox.begin().unwrap();
        outbox.unstored(again);
        let (batch, _) = outbox.begin().unwrap();
        assert!(outbox.stored(batch).is_some());
        outbox.settled();
        outbox.disconnected();
        assert!(outbox.begin().is_none());
        assert!(outbox.send(entry()).is_some());
    }

    #[test]
    fn entry_that_was_before_its_blocks_goes_after_them_again() {
        let mut outbox = Outbox::default();
        outbox.store(vec![block()]);
        assert!(outbox.send(entry()).is_none());
        let (first, _) = outbox.begin().unwrap();
        assert!(outbox.stored(first).is_some());
        assert_eq!(outbox.again(entry()), Duration::ZERO);
        assert!(outbox.begin().is_none(), "it waits for its time");
        assert!(outbox.retry().is_none(), "its blocks go first");
        assert!(outbox.retry().is_none());
        let (second, blocks) = outbox.begin().unwrap();
        assert_eq!(blocks.len(), 1);
        assert!(outbox.stored(first).is_none());
        assert!(outbox.stored(second).is_some());
        // It was another block of this device that was missing: there is nothing to be stored.
        outbox.settled();
        assert!(outbox.again(entry()) > Duration::ZERO);
        outbox.settled();
        assert!(outbox.retry().is_some());
        assert!(outbox.send(entry()).is_some());
        assert_eq!(outbox.again(entry()), Duration::ZERO, "it is another entry");
        let pauses: Vec<Duration> = (0..40).map(|_| outbox.again(entry())).collect();
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&PAUSES.1));
        outbox.disconnected();
        assert!(outbox.retry().is_none(), "the engine sends it again");
        assert!(outbox.send(entry()).is_some());
    }

    /// An earlier connection had sent the first entry. It is in the log while its blocks are stored once more.
    #[test]
    fn entry_does_not_go_when_the_blocks_of_the_one_before_it_are_stored() {
        let mut outbox = Outbox::default();
        outbox.store(vec![block()]);
        let (first, _) = outbox.begin().unwrap();
        outbox.settled();
        outbox.store(vec![block(), block()]);
        assert!(outbox.send(entry()).is_none());
        assert!(outbox.stored(first).is_none());
        let (second, _) = outbox.begin().unwrap();
        assert!(outbox.stored(first).is_none());
        outbox.unstored(first);
        assert!(outbox.begin().is_none(), "it is under way");
        assert!(outbox.stored(second).is_some());
    }
}
