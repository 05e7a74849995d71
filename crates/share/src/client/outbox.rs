//! What waits to be sent: an entry that names new blocks goes after them.
//!
//! The blocks of the last entry are kept until the entry is in the log, because a new connection stores them again
//! before it sends the entry again. Other messages never wait.

use std::sync::Arc;

use trust::Record;

use ordering::engine::Request;
use ordering::roster::Product;

/// Blocks of the next entry, and the entry while they are on their way.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    blocks: Vec<Record>,
    state: State,
    /// Batches of blocks that were begun to be stored. An answer for an earlier one says nothing about these blocks.
    begun: u64,
    entry: Option<Request<Product>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server has them, as far as this connection knows; or there are none.
    #[default]
    Stored,
    Storing,
    Waiting,
}

impl Outbox {
    /// The next entry names these blocks.
    pub(super) fn store(&mut self, blocks: Vec<Record>) {
        self.blocks = blocks;
        self.state = State::Waiting;
    }

    /// What may be sent now.
    pub(super) fn send(&mut self, request: Request<Product>) -> Option<Request<Product>> {
        match request {
            Request::Entry(_) if self.state != State::Stored => {
                self.entry = Some(request);
                None
            }
            request => Some(request),
        }
    }

    /// Blocks that must be stored now, and the number of this batch.
    pub(super) fn begin(&mut self) -> Option<(u64, Arc<[Record]>)> {
        if self.state != State::Waiting || self.blocks.is_empty() {
            return None;
        }
        self.state = State::Storing;
        self.begun = self.begun.saturating_add(1);
        Some((self.begun, self.blocks.as_slice().into()))
    }

    /// The blocks of a batch are durable. What waited for them may be sent.
    pub(super) fn stored(&mut self, batch: u64) -> Option<Request<Product>> {
        if !self.stores(batch) {
            return None;
        }
        self.state = State::Stored;
        self.entry.take()
    }

    /// The blocks of a batch could not be stored.
    pub(super) fn unstored(&mut self, batch: u64) {
        if self.stores(batch) {
            self.state = State::Waiting;
        }
    }

    /// Whether this batch has the blocks of the next entry, and no other connection stores them.
    fn stores(&self, batch: u64) -> bool {
        self.state == State::Storing && batch == self.begun
    }

    /// There is a new connection. The engine sends its entry again.
    pub(super) fn connected(&mut self) {
        self.disconnected();
    }

    /// The connection is over.
    pub(super) fn disconnected(&mut self) {
        self.entry = None;
        if !self.blocks.is_empty() {
            self.state = State::Waiting;
        }
    }

    /// All entries that were sent have their places.
    pub(super) fn settled(&mut self) {
        self.blocks.clear();
        self.state = State::Stored;
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
