//! Blocks and entries on their way: the outbox of a device, and the promise of the server about the blocks before an entry
//! ([`share_server::host::promise`]). Blocks become durable later than they come; until then the server may lose them.

use share_server::host::promise::{Asked, Promise, Turn};
use trust::frame::Packer;
use trust::inode::{Content, FileContent};

use super::*;

/// From a device to the server.
pub enum Up {
    Request(Request<Product>),
    Store(u64, Arc<[Block]>),
    Touch(Vec<Handle>),
}

/// What the server has of a session.
#[derive(Default)]
pub struct Desk {
    /// Which session of the device it is.
    session: u64,
    promise: Promise,
    /// Entries that wait for the blocks before them.
    entries: VecDeque<(Request<Product>, Turn)>,
}

/// Blocks that are not durable yet.
pub struct Storing {
    at: usize,
    session: u64,
    batch: u64,
    asked: Asked,
    blocks: Arc<[Block]>,
}

/// Blocks that an engine made, as they are stored.
pub fn packed(made: Vec<share::files::Made>) -> Vec<Block> {
    let mut packer = Packer::new();
    let pack = |made: share::files::Made| Block {
        handle: made.handle,
        frame: packer.pack(made.kind, &made.bytes).unwrap(),
    };
    made.into_iter().map(pack).collect()
}

impl Net {
    /// The connection is gone, with what travels on it.
    pub(super) fn leave(&mut self, at: usize) {
        self.server.disconnect(device(at));
        let session = self.desks[at].session + 1;
        self.desks[at] = Desk {
            session,
            ..Desk::default()
        };
        let node = &mut self.nodes[at];
        node.up.clear();
        node.down.clear();
        node.acks.clear();
        node.touched = None;
        node.outbox.disconnected();
    }

    /// Puts blocks on the wire, and the entry behind them. Sometimes there is no place: then the entry waits for the answer.
    pub(super) fn fly(&mut self, at: usize) {
        if !self.nodes[at].connected {
            return;
        }
        while let Some((batch, blocks)) = self.nodes[at].outbox.begin() {
            let has_place = self.random(4) > 0;
            let node = &mut self.nodes[at];
            node.up.push_back(Up::Store(batch, blocks));
            if has_place {
                node.outbox.flies(batch);
            }
        }
        let node = &mut self.nodes[at];
        let entry = node.outbox.ready();
        node.up.extend(entry.map(Up::Request));
    }

    pub(super) fn send(&mut self, at: usize, request: Request<Product>) {
        self.fly(at);
        let node = &mut self.nodes[at];
        let request = node.outbox.send(request);
        node.up.extend(request.map(Up::Request));
    }

    pub(super) fn again(&mut self, at: usize, entry: Entry) {
        let node = &mut self.nodes[at];
        let pause = node.outbox.again(Request::Entry(entry));
        node.retry_at = Some(self.now_ms + pause.as_millis() as u64);
        self.retry(at);
    }

    pub(super) fn retry(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.retry_at.is_some_and(|retry| retry <= self.now_ms) {
            node.retry_at = None;
            node.outbox.retry();
            self.fly(at);
        }
    }

    /// A device that was killed asks for the blocks of what would run again.
    pub(super) fn touch(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.unchecked.is_empty() {
            let handles = node.unchecked.iter();
            let handles = handles.map(|root| Handle::from_bytes(root.top)).collect();
            node.up.push_back(Up::Touch(handles));
        }
    }

    /// The server takes a message.
    pub(super) fn took(&mut self, at: usize, up: Up) {
        let promise = self.desks[at].promise.clone();
        match up {
            Up::Request(request @ Request::Entry(_)) => {
                let turn = promise.entry();
                self.desks[at].entries.push_back((request, turn));
            }
            Up::Request(request) => self.receive(at, &request),
            Up::Store(batch, blocks) => {
                let asked = promise.ask(blocks.iter().map(|block| block.handle).collect());
                if self.refuses > 0 && self.random(1000) < self.refuses {
                    let why = match self.random(3) {
                        0 => Unstored::Full,
                        _ => Unstored::Refused,
                    };
                    return self.nodes[at].acks.push_back((batch, Err(why)));
                }
                let session = self.desks[at].session;
                self.storing.push(Storing {
                    at,
                    session,
                    batch,
                    asked,
                    blocks,
                });
            }
            Up::Touch(handles) => {
                let has = |handle: &Handle| self.blocks.contains_key(handle);
                let asked = promise.ask(handles.clone());
                asked.answered(handles.iter().map(has));
                let lacks = handles.iter().filter(|handle| !has(handle)).copied();
                self.nodes[at].touched = Some(lacks.collect());
            }
        }
    }

    /// A program has put blocks, and has waited until they are durable.
    pub fn put(&mut self, blocks: &[Block]) {
        for block in blocks {
            let plain = block.frame.unpack().unwrap();
            self.blocks.insert(block.handle, plain.to_vec().into());
        }
    }

    /// Blocks become durable.
    pub(super) fn sync(&mut self) {
        for stored in std::mem::take(&mut self.storing) {
            self.put(&stored.blocks);
            stored.asked.stored();
            if self.desks[stored.at].session == stored.session {
                let acks = &mut self.nodes[stored.at].acks;
                acks.push_back((stored.batch, Ok(())));
            }
        }
    }

    /// Entries whose turn has come are ordered, or refused because blocks before them are missing.
    pub(super) fn order(&mut self, at: usize) {
        while let Some((_, turn)) = self.desks[at].entries.front()
            && turn.is_ready()
        {
            let Some((request, turn)) = self.desks[at].entries.pop_front() else {
                return;
            };
            let Request::Entry(entry) = &request else {
                continue;
            };
            if !turn.lacks() {
                self.receive(at, &request);
                continue;
            }
            if self.server.unstored(device(at), entry).unwrap() {
                self.unstored += 1;
                turn.told();
            }
        }
    }

    /// A device hears what became of blocks.
    pub(super) fn hear(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if let Some((batch, ack)) = node.acks.pop_front() {
            match ack {
                Ok(()) => node.outbox.stored(batch),
                Err(why) => {
                    let given_up = node.outbox.unstored(batch, why);
                    node.retry_at.get_or_insert(self.now_ms + 20);
                    let effects = node
                        .engine
                        .withdraw(|of, _| of.is_some_and(|of| given_up.contains(&of)));
                    self.act(at, effects);
                }
            }
            self.fly(at);
        }
        let node = &mut self.nodes[at];
        if let Some(lacks) = node.touched.take() {
            node.unchecked.clear();
            let is_gone = |call: &Stamped| {
                let mut roots = call.call.arrays().into_iter();
                roots.any(|root| lacks.contains(&Handle::from_bytes(root.top)))
            };
            let effects = node
                .engine
                .withdraw(|of, call| of.is_none() && is_gone(call));
            node.engine.may_resume();
            self.act(at, effects);
        }
    }

    /// Each content that an entry sets is at the server.
    pub(super) fn check_blocks(&self, entry: &Entry) {
        let Some(body) = entry.body().filter(|_| self.watches_blocks) else {
            return;
        };
        let changes = ops(body).into_iter().flat_map(|op| op.changes);
        for change in changes {
            if let Change::Set { inode, .. } = change
                && let Content::Regular(FileContent::Array(root)) = &inode.content
            {
                let has = self.blocks.contains_key(&Handle::from_bytes(root.top));
                assert!(has, "seed {}: an entry before its blocks", self.seed);
            }
        }
    }
}
