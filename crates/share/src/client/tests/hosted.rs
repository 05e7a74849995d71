//! A connection that is no network: each message is a call of the server, and each may be the last one.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, StoreError};
use tokio::sync::{Notify, oneshot};
use trust::device::DeviceKey;
use trust::{Handle, Record};
use trust_shared::leaf;
use wire::shared::Usage;

use crate::client::connection::{Deliveries, Dial, Flying, Line, Lost, Stored, Stores, Trouble};
use crate::outbox::Unstored;
use ordering::engine::{Reply, Request};
use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::{Entry, Marks};
use share_server::host::{Delivery, Host, HostError, Session, StoredLeaf};

/// Where the server is, while it runs.
#[derive(Default)]
pub struct Door(Mutex<Option<Arc<Host>>>);

impl Door {
    pub fn open(&self, host: Arc<Host>) {
        *self.0.lock().unwrap() = Some(host);
    }

    /// Size of the server's log.
    pub fn size(&self) -> u64 {
        let host = self.0.lock().unwrap();
        host.as_ref().unwrap().status().leaves
    }

    /// Entries that the server did not order, because blocks before them were missing.
    pub fn unstored(&self) -> u64 {
        let host = self.0.lock().unwrap();
        host.as_ref().unwrap().status().counts.unstored
    }

    /// The server stops. Sessions that are open end.
    pub fn close(&self) {
        *self.0.lock().unwrap() = None;
    }
}

/// What a server that lies makes of a reply.
pub type Lie = Box<dyn FnMut(&mut Reply<Product>) + Send>;

/// What a server that lies makes of blocks.
#[derive(Clone, Copy)]
pub enum WrongBlocks {
    Changed,
    Missing,
}

/// The way between one device and the server.
#[derive(Default)]
pub struct Wire {
    /// Messages until the connection breaks, if not negative, counted in both directions.
    left: AtomicI64,
    breaks: AtomicBool,
    pub lie: Mutex<Option<Lie>>,
    /// Bodies are given with one byte changed.
    pub wrong_bodies: AtomicBool,
    pub wrong_blocks: Mutex<Option<WrongBlocks>>,
    /// No blocks come, and the server does not say that it has none.
    pub no_blocks: AtomicBool,
    /// No bodies come, and the server says nothing.
    pub no_bodies: AtomicBool,
    /// The next touch panics.
    pub panics: AtomicBool,
    /// All blocks are refused.
    pub refuses: Mutex<Option<Unstored>>,
    /// No blocks go on the wire before their entry: there is never a place.
    pub never_flies: AtomicBool,
    /// A block that is refused is refused for lack of room.
    pub is_full: AtomicBool,
    /// What the server says of its room.
    pub usage: Mutex<Option<Usage>>,
    /// Bodies were asked for that do not come.
    pub kept_waiting: AtomicBool,
    /// Bodies that were asked for.
    pub bodies: AtomicU64,
    /// Connections that were made.
    pub dialed: AtomicU64,
    pub sent: AtomicU64,
}

impl Wire {
    /// The connection breaks after so many messages.
    pub fn break_after(&self, messages: i64) {
        self.left.store(messages, Ordering::SeqCst);
        self.breaks.store(true, Ordering::SeqCst);
    }

    fn passes(&self) -> Result<(), Lost> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if self.breaks.load(Ordering::SeqCst) && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.breaks.store(false, Ordering::SeqCst);
            return Err(Lost::new(Trouble::Unreachable, "the connection broke"));
        }
        Ok(())
    }
}

pub struct Hosted {
    pub door: Arc<Door>,
    pub device: DeviceKey,
    pub wire: Arc<Wire>,
}

struct Connected {
    door: Arc<Door>,
    wire: Arc<Wire>,
    session: Session,
    rung: Notify,
    dead: AtomicBool,
}

fn lost(error: HostError) -> Lost {
    let trouble = match error {
        HostError::NoMember => Trouble::NotMember,
        HostError::Restored { .. } => Trouble::Restored,
        _ => Trouble::Refused,
    };
    Lost::new(trouble, error.to_string())
}

impl Connected {
    /// One message passes, unless the connection or the server is gone.
    fn passes(&self) -> Result<(), Lost> {
        let gone = || Lost::new(Trouble::Unreachable, "the server is gone");
        if self.dead.load(Ordering::SeqCst) || self.door.0.lock().unwrap().is_none() {
            return Err(gone());
        }
        self.wire.passes().inspect_err(|_| {
            self.dead.store(true, Ordering::SeqCst);
            self.rung.notify_one();
        })
    }
}

impl Dial for Hosted {
    fn dial(&self) -> BoxFuture<'_, Result<crate::client::connection::Connected, Lost>> {
        Box::pin(async move {
            let host = self.door.0.lock().unwrap().clone();
            let host = host.ok_or_else(|| Lost::new(Trouble::Unreachable, "no server"))?;
            self.wire.passes()?;
            self.wire.dialed.fetch_add(1, Ordering::SeqCst);
            let bell: Arc<Mutex<Option<std::sync::Weak<Connected>>>> = Arc::default();
            let rings = Arc::clone(&bell);
            let wake = move || {
                let connected = rings.lock().unwrap().as_ref().and_then(|at| at.upgrade());
                if let Some(connected) = connected {
                    connected.rung.notify_one();
                }
            };
            let session = host.connect(self.device, Arc::new(wake)).map_err(lost)?;
            let connected = Arc::new(Connected {
                door: Arc::clone(&self.door),
                wire: Arc::clone(&self.wire),
                session,
                rung: Notify::new(),
                dead: AtomicBool::new(false),
            });
            *bell.lock().unwrap() = Some(Arc::downgrade(&connected));
            let pushed: Box<dyn Deliveries> = Box::new(Pushed(Arc::clone(&connected)));
            Ok((Arc::new(Lined(connected)) as Arc<dyn Line>, pushed))
        })
    }
}

struct Lined(Arc<Connected>);

impl Line for Lined {
    fn send(&self, request: Request<Product>) -> Result<(), Lost> {
        self.0.passes()?;
        let Request::Entry(_) = request else {
            return self.0.session.receive(&request).map_err(lost);
        };
        let turn = self.0.session.turn();
        if turn.is_ready() {
            return self.0.session.order(&request, &turn).map_err(lost);
        }
        // It waits for the blocks before it, as in the server's own connections.
        let connected = Arc::clone(&self.0);
        tokio::spawn(async move {
            let (tell, told) = oneshot::channel();
            turn.when_ready(Box::new(move || {
                let _ = tell.send(());
            }));
            let _ = told.await;
            if connected.session.order(&request, &turn).is_err() {
                connected.dead.store(true, Ordering::SeqCst);
                connected.rung.notify_one();
            }
        });
        Ok(())
    }

    fn fly(&self, records: &[Record]) -> Option<Flying> {
        if self.0.passes().is_err() || self.0.wire.never_flies.load(Ordering::SeqCst) {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let done = move |result: Result<_, _>| drop(tell.send(result.map(drop)));
        let refuses = *self.0.wire.refuses.lock().unwrap();
        let mut records = records.to_vec();
        if refuses.is_some() {
            // The server takes no block under a name that is not its own.
            let wrong = trust::frame::Packer::new().pack(trust::handle::Kind::Data, b"another");
            let wrong = wrong.unwrap();
            records
                .iter_mut()
                .for_each(|record| record.frame = wrong.clone());
        }
        self.0.session.store(records, Box::new(done));
        let full = self.0.wire.is_full.load(Ordering::SeqCst);
        let says = match full {
            true => Unstored::Full,
            false => refuses.unwrap_or(Unstored::Refused),
        };
        Some(Box::pin(async move {
            match told.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(why)) => Err(refused(says, why)),
                Err(why) => Err((Unstored::Now, failed(why))),
            }
        }))
    }

    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Stored> {
        Box::pin(async move {
            if let Some(why) = *self.0.wire.refuses.lock().unwrap() {
                return Err(refused(why, "the wire"));
            }
            let put = Blocks(Arc::clone(&self.0)).put(records).await;
            put.map_err(|error| (Unstored::Now, error))
        })
    }

    fn bodies(&self, positions: Vec<u64>) -> BoxFuture<'_, Result<Vec<(u64, Bytes)>, Lost>> {
        Box::pin(async move {
            self.0.passes()?;
            while self.0.wire.no_bodies.load(Ordering::SeqCst) {
                self.0.wire.kept_waiting.store(true, Ordering::SeqCst);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            let bodies = self.0.session.bodies(&positions).map_err(lost)?;
            let wire = &self.0.wire;
            wire.bodies
                .fetch_add(positions.len() as u64, Ordering::SeqCst);
            let wrong = wire.wrong_bodies.load(Ordering::SeqCst);
            let given = |body: Bytes| match wrong {
                true => {
                    let mut bytes = body.to_vec();
                    bytes[10] ^= 1;
                    Bytes::from(bytes)
                }
                false => body,
            };
            let found = positions.into_iter().zip(bodies);
            Ok(found
                .filter_map(|(at, body)| Some((at, given(body?))))
                .collect())
        })
    }

    fn checkpoints(&self) -> BoxFuture<'_, Result<Vec<Bytes>, Lost>> {
        Box::pin(async move {
            self.0.passes()?;
            self.0.session.checkpoints().map_err(lost)
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage, Lost>> {
        Box::pin(async move {
            self.0.passes()?;
            let lie = *self.0.wire.usage.lock().unwrap();
            lie.ok_or_else(|| Lost::new(Trouble::Refused, "the lab has no disk"))
        })
    }

    fn post_checkpoint(&self, posted: Bytes) -> BoxFuture<'_, Result<(), Lost>> {
        Box::pin(async move {
            self.0.passes()?;
            self.0.session.post_checkpoint(posted).map_err(lost)
        })
    }
}

impl Stores for Lined {
    fn store(&self) -> Arc<dyn BlockStore> {
        Arc::new(Blocks(Arc::clone(&self.0)))
    }

    fn sink(&self) -> Arc<dyn BlockSink> {
        Arc::new(Blocks(Arc::clone(&self.0)))
    }
}

fn refused(why: Unstored, cause: impl std::fmt::Debug) -> (Unstored, StoreError) {
    let (place, cause) = ("lab".to_owned(), format!("{cause:?}"));
    let error = match why {
        Unstored::Full => StoreError::Full { place, cause },
        _ => StoreError::Unavailable { place, cause },
    };
    (why, error)
}

struct Blocks(Arc<Connected>);

fn failed(why: impl ToString) -> StoreError {
    StoreError::Unavailable {
        place: "lab".to_owned(),
        cause: why.to_string(),
    }
}

impl BlockStore for Blocks {
    fn place(&self) -> &str {
        "lab"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            self.0.passes().map_err(failed)?;
            if self.0.wire.no_blocks.load(Ordering::SeqCst) {
                return Err(failed("no blocks"));
            }
            let mut records = Vec::new();
            for handle in want {
                records.extend(self.0.session.retrieve(handle).map_err(failed)?);
            }
            match *self.0.wire.wrong_blocks.lock().unwrap() {
                None => {}
                Some(WrongBlocks::Missing) => drop(records.pop()),
                Some(WrongBlocks::Changed) => {
                    for record in &mut records {
                        let kind = record.frame.kind();
                        let mut packer = trust::frame::Packer::new();
                        record.frame = packer.pack(kind, b"another block").unwrap();
                    }
                }
            }
            Ok(records)
        })
    }
}

impl BlockSink for Blocks {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.0.passes().map_err(failed)?;
            let (tell, told) = oneshot::channel();
            let done = move |result: Result<_, _>| drop(tell.send(result.map(drop)));
            self.0.session.store(records.to_vec(), Box::new(done));
            told.await
                .map_err(failed)?
                .map_err(|e| failed(format!("{e:?}")))?;
            self.0.passes().map_err(failed)
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(async move {
            self.0.passes().map_err(failed)?;
            let panics = self.0.wire.panics.swap(false, Ordering::SeqCst);
            assert!(!panics, "a touch panics");
            let absent = |handle: &&Handle| !self.0.session.cstore(handle).unwrap();
            Ok(handles.iter().filter(absent).copied().collect())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}

struct Pushed(Arc<Connected>);

impl Deliveries for Pushed {
    fn next(&mut self) -> BoxFuture<'_, Result<Reply<Product>, Lost>> {
        Box::pin(async move {
            loop {
                if self.0.dead.load(Ordering::SeqCst) {
                    return Err(Lost::new(Trouble::Unreachable, "the connection broke"));
                }
                if let Some(delivery) = self.0.session.draw().map_err(lost)? {
                    self.0.passes()?;
                    let mut reply = reply(delivery);
                    if let Some(lie) = &mut *self.0.wire.lie.lock().unwrap() {
                        lie(&mut reply);
                    }
                    return Ok(reply);
                }
                let rung = self.0.rung.notified();
                // A server that stopped rings no bell.
                let _ = tokio::time::timeout(std::time::Duration::from_millis(50), rung).await;
                if self.0.door.0.lock().unwrap().is_none() {
                    return Err(Lost::new(Trouble::Unreachable, "the server is gone"));
                }
            }
        })
    }
}

fn reply(delivery: Delivery) -> Reply<Product> {
    let leaves = delivery.leaves.iter().zip(delivery.from..);
    let leaves = leaves.map(|(stored, at)| {
        let proofs = delivery.proofs.iter().filter(|(leaf, ..)| *leaf == at);
        let proofs = proofs.map(|(_, nonce, proof)| (*nonce, proof.clone()));
        leaf(stored, proofs.collect())
    });
    Reply {
        from: delivery.from,
        leaves: leaves.collect(),
        note: delivery.note,
        more: delivery.more,
        attests: delivery.attests,
        asked: delivery.asked,
        refused: delivery.refused,
        unstored: delivery.unstored,
    }
}

type Proofs = Vec<(trust_shared::mark::Nonce, trust_shared::mark::MarkProof)>;

fn leaf(stored: &StoredLeaf, proofs: Proofs) -> Leaf<Product> {
    match leaf::Leaf::decode(stored.leaf.clone()).unwrap() {
        leaf::Leaf::Marks(marks) => Leaf::Marks(Marks::new(marks, proofs)),
        leaf::Leaf::Entry(entry) => Leaf::Entry(match &stored.body {
            Some(body) => Entry::with_body(*entry, body.clone()).unwrap(),
            None => Entry::new(*entry),
        }),
    }
}
