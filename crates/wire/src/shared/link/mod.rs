//! A client's connection to the server of a shared volume.
//!
//! [`Link::connect`] makes the connection and proves the device. Then many callers ask at the same time; answers come
//! in any order. What the server pushes comes out of [`Deliveries`], in order, and only as fast as the caller takes it.
//! A connection that ends stays ended: the caller connects again.
//!
//! Every wait has a deadline, and a call can be dropped at any time. Memory: what callers ask for within
//! [`LinkOptions::max_held_bytes`], at most [`WINDOW`] deliveries and one that is coming, one message of 4 MiB, small
//! buffers. Relies on [`crate::session::tls`] for the session.
//!
//! | module | what it holds |
//! |---|---|
//! | [`error`] | why a connection ended |
//! | `dial` | TCP, TLS, hello and ENTER |
//! | `collect` | the answer of one request, from its messages |
//! | `shared` | requests that wait, and bytes to send |
//! | `tasks` | reading and writing |
//! | `blocks` | the link as a store and as a sink of blocks |

mod blocks;
mod collect;
mod dial;
pub mod error;
mod shared;
mod tasks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use trust::device::DeviceKey;
use trust::key::{PublicKey, SecretKey};
use trust::record::MAX_RECORD_BYTES;
use trust::volume_id::VolumeId;
use trust::{Handle, Record};
use trust_shared::attest::SignedAttest;
use trust_shared::entry::SignedEntry;
use trust_shared::mark::Nonce;
use trust_shared::note::SignedNote;

use super::enter::Welcome;
use super::request::{self, Request, Slot};
use super::{
    Delivery, MAX_LEAVES, MAX_NAMES, MAX_STORE_BYTES, MAX_TAKE_MS, PROTOCOL, SESSION_ID, SentLeaf,
    ServerAddress, Terms, Usage, WINDOW, kind,
};
use collect::{Answer, Expect};
use dial::Dialed;
pub use error::LinkError;
use shared::Shared;

/// Requests that wait for an answer, at most. Fewer than the server takes, so that messages of the session are
/// always read.
const MAX_IN_FLIGHT: usize = 32;
/// One unit of `max_held_bytes`.
const UNIT_BYTES: usize = 4 << 10;

/// Deadlines and bounds of a link.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Longest time to connect, TLS and the server's welcome included.
    pub connect_timeout: Duration,
    /// Longest wait of a request for the next message of its answer, and of bytes to be sent.
    pub answer_timeout: Duration,
    /// Longest silence of a server that pushes. Three of the heartbeats that hold, if that is less.
    pub max_silence: Duration,
    /// The pause between deliveries without anything new that this client wishes for. The server says what holds
    /// ([`Link::terms`]).
    pub heartbeat: Duration,
    /// Most bytes that requests and answers under way hold together.
    pub max_held_bytes: usize,
}

impl Default for LinkOptions {
    fn default() -> Self {
        LinkOptions {
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            max_silence: Duration::from_secs(60),
            heartbeat: Duration::from_secs(10),
            max_held_bytes: 64 << 20,
        }
    }
}

/// A connection. Cheap to clone; it is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    welcome: Welcome,
    heartbeat_ms: u32,
    answer_timeout: Duration,
    in_flight: Arc<Semaphore>,
    held: Arc<Semaphore>,
    units: usize,
    tasks: [AbortHandle; 2],
}

impl Inner {
    /// Units of memory for so many bytes.
    fn units_of(&self, bytes: usize) -> u32 {
        bytes.div_ceil(UNIT_BYTES).clamp(1, self.units) as u32
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close("closed by this program");
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// What the server pushes, in order.
pub struct Deliveries {
    shared: Arc<Shared>,
    waiting: mpsc::Receiver<Delivery>,
}

impl Deliveries {
    /// The next delivery. Nothing comes before [`Link::open`]. Can be dropped at any time without loss.
    ///
    /// # Errors
    /// Why the connection ended.
    pub async fn next(&mut self) -> Result<Delivery, LinkError> {
        match self.waiting.recv().await {
            Some(delivery) => {
                self.shared.taken(delivery.more);
                Ok(delivery)
            }
            None => Err(self.shared.ended()),
        }
    }
}

impl Link {
    /// Connects to the server of a volume, which must have the orderer's key, and enters as a device or as a guest.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::OtherServer`] when the server has another key, [`LinkError::Refused`] with
    /// [`NOT_MEMBER`](super::NOT_MEMBER) when it does not know the device.
    pub async fn connect(
        to: &ServerAddress,
        volume: VolumeId,
        orderer: &PublicKey,
        device: Option<&SecretKey>,
        options: &LinkOptions,
    ) -> Result<(Link, Deliveries), LinkError> {
        let dialed = dial::dial(to, volume, Some(orderer), device, options).await?;
        Ok(Link::over(dialed, to, options))
    }

    /// Connects as a guest who does not know the orderer yet, because he has an invitation and no policies. Also gives
    /// the key that the server has proved to have. It is the caller who compares it with the volume's policies.
    ///
    /// # Errors
    /// As [`Link::connect`].
    pub async fn connect_as_guest(
        to: &ServerAddress,
        volume: VolumeId,
        options: &LinkOptions,
    ) -> Result<(Link, PublicKey), LinkError> {
        let dialed = dial::dial(to, volume, None, None, options).await?;
        let key = dialed.key;
        Ok((Link::over(dialed, to, options).0, key))
    }

    /// Connects as a device to a server whatever its key is: for blocks, which the caller verifies by their hashes.
    ///
    /// # Errors
    /// As [`Link::connect`], but for [`LinkError::OtherServer`].
    pub async fn connect_to_any(
        to: &ServerAddress,
        volume: VolumeId,
        device: &SecretKey,
        options: &LinkOptions,
    ) -> Result<Link, LinkError> {
        let dialed = dial::dial(to, volume, None, Some(device), options).await?;
        Ok(Link::over(dialed, to, options).0)
    }

    fn over(dialed: Dialed, to: &ServerAddress, options: &LinkOptions) -> (Link, Deliveries) {
        let (send, waiting) = mpsc::channel(WINDOW as usize);
        let timeouts = (options.max_silence, options.answer_timeout);
        let shared = Shared::new(to.to_string().into(), timeouts);
        let tasks = tasks::start(&shared, dialed.stream, dialed.buffer, send);
        let units = (options.max_held_bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        let link = Link(Arc::new(Inner {
            shared: Arc::clone(&shared),
            welcome: dialed.welcome,
            heartbeat_ms: u32::try_from(options.heartbeat.as_millis()).unwrap_or(u32::MAX),
            answer_timeout: options.answer_timeout,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            held: Arc::new(Semaphore::new(units)),
            units,
            tasks,
        }));
        (link, Deliveries { shared, waiting })
    }

    /// Where the server is: `bulla://host:port`.
    pub fn place(&self) -> &str {
        self.0.shared.place()
    }

    /// What the server said about itself. Not proved.
    pub fn welcome(&self) -> &Welcome {
        &self.0.welcome
    }

    /// Why the connection ended, if it has.
    pub fn ended(&self) -> Option<LinkError> {
        self.0.shared.dead()
    }

    /// Ends the connection for all clones.
    pub fn close(&self) {
        self.0.shared.close("closed by this program");
    }

    /// Begins deliveries with what comes after `note`, or with the first leaf. Once for each connection.
    ///
    /// # Errors
    /// Why the connection ended. What the server thinks of a message of the session comes, if it refuses it, as the
    /// end of the connection.
    pub fn open(&self, note: Option<&SignedNote>) -> Result<(), LinkError> {
        self.0.shared.opened();
        self.say(&Request::Open {
            heartbeat_ms: self.0.heartbeat_ms,
            note: note.copied(),
        })
    }

    /// What holds for this device at the server: the answer to [`Link::open`], for which it waits. Not proved.
    ///
    /// # Errors
    /// Why the connection ended; [`LinkError::Unavailable`] when there is no answer in time.
    pub async fn terms(&self) -> Result<Terms, LinkError> {
        let answered = timeout(self.0.answer_timeout, self.0.shared.terms());
        let late = |_| LinkError::unavailable(self.0.shared.place(), "no answer to OPEN in time");
        answered.await.map_err(late)?
    }

    /// Asks for an entry to be ordered. The reply is the delivery that has it, or that refuses it.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn entry(&self, entry: &SignedEntry, body: Option<&[u8]>) -> Result<(), LinkError> {
        let put = |out: &mut BytesMut| request::put_entry(SESSION_ID, entry, body, out);
        self.0.shared.say(put)
    }

    /// Asks for a mark to be put into the log.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn mark(&self, mark: &Nonce) -> Result<(), LinkError> {
        self.say(&Request::Mark(*mark))
    }

    /// Sends an Attest for the others.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn attest(&self, attest: &SignedAttest) -> Result<(), LinkError> {
        self.say(&Request::Attest(attest.clone()))
    }

    /// Asks another device for an Attest.
    ///
    /// # Errors
    /// As [`Link::open`].
    pub fn ask(&self, device: &DeviceKey) -> Result<(), LinkError> {
        self.say(&Request::Ask(*device))
    }

    fn say(&self, request: &Request) -> Result<(), LinkError> {
        self.0.shared.say(|out| request.put(SESSION_ID, out))
    }

    /// Leaves from a position on: at most `count` and at most [`MAX_LEAVES`], fewer at the end of the log, and fewer
    /// where they are long. Bodies come with them as in deliveries.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn leaves(&self, from: u64, count: u32) -> Result<Vec<SentLeaf>, LinkError> {
        let count = count.clamp(1, MAX_LEAVES as u32);
        let expect = Expect::Leaves { from, count };
        let request = Request::Leaves { from, count };
        match self.call(expect, super::MAX_PART_BYTES, &request).await? {
            Answer::Leaves(leaves) => Ok(leaves),
            _ => Ok(Vec::new()),
        }
    }

    /// Bodies of the entries at these positions, which ascend. Those that the server does not have are left out.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn bodies(&self, positions: &[u64]) -> Result<Vec<(u64, Bytes)>, LinkError> {
        // They share a round trip.
        let asked = positions.chunks(MAX_BODIES_AT_ONCE).map(async |some| {
            let expect = Expect::Bodies(some.to_vec());
            let held = some.len().saturating_mul(collect::BODY_BYTES);
            let request = Request::Bodies(some.to_vec());
            match self.call(expect, held, &request).await? {
                Answer::Bodies(bodies) => Ok(bodies),
                _ => Ok::<_, LinkError>(Vec::new()),
            }
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    /// STORE: the blocks are durable at the server when this returns.
    ///
    /// # Errors
    /// [`LinkError`]; refused with [`FULL`](super::FULL) or [`QUOTA`](super::QUOTA) when there is no room.
    pub async fn store(&self, records: &[Record]) -> Result<(), LinkError> {
        self.keep(kind::STORE, records).await
    }

    /// STORE in one message, behind which the next message of the session is sent: an entry that names the blocks need not
    /// wait for the answer. The future gives it: the blocks are durable. None: nothing was sent, because there is no room
    /// for one more request now, or the blocks need more than one message.
    pub fn fly(
        &self,
        records: &[Record],
    ) -> Option<impl Future<Output = Result<(), LinkError>> + Send + use<>> {
        let inner = &self.0;
        if records.is_empty() || fitting(records) < records.len() {
            return None;
        }
        let units = inner.units_of(records.iter().map(Record::len).sum());
        let place = Arc::clone(&inner.in_flight).try_acquire_owned().ok()?;
        let held = Arc::clone(&inner.held).try_acquire_many_owned(units).ok()?;
        let put = |id, out: &mut BytesMut| request::put_records(kind::STORE, id, records, out);
        let asked = inner.shared.ask(Expect::Done, Duration::ZERO, put);
        Some(async move {
            let _room = (place, held);
            asked?.answered().await.map(drop)
        })
    }

    /// PSTORE: as [`Link::store`], for blocks that nobody will dereference.
    ///
    /// # Errors
    /// As [`Link::store`].
    pub async fn pstore(&self, records: &[Record]) -> Result<(), LinkError> {
        self.keep(kind::PSTORE, records).await
    }

    async fn keep(&self, kind: u8, mut records: &[Record]) -> Result<(), LinkError> {
        while !records.is_empty() {
            let (some, rest) = records.split_at(fitting(records));
            let held = some.iter().map(Record::len).sum();
            let put = |id, out: &mut BytesMut| request::put_records(kind, id, some, out);
            self.call_with(Expect::Done, held, Duration::ZERO, put)
                .await?;
            records = rest;
        }
        Ok(())
    }

    /// RETRIEVE: the blocks that the server has, in any order. Not verified.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn retrieve(&self, handles: &[Handle]) -> Result<Vec<Record>, LinkError> {
        let asked = handles.chunks(MAX_BLOCKS_AT_ONCE).map(async |some| {
            let most_bytes = some.len().saturating_mul(MAX_RECORD_BYTES);
            let records = self.records(some, most_bytes).await?;
            Ok::<_, LinkError>(records.unwrap_or_default())
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    /// The same for blocks that have together at most about so many bytes: more of them are under way at a time. If they
    /// have more, they are asked for again.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn retrieve_within(
        &self,
        handles: &[Handle],
        most_bytes: usize,
    ) -> Result<Vec<Record>, LinkError> {
        let asked = handles.chunks(MAX_SHORT_BLOCKS_AT_ONCE).map(async |some| {
            let most_bytes = most_bytes.saturating_add(some.len().saturating_mul(OVERHEAD_BYTES));
            match self.records(some, most_bytes).await? {
                Some(records) => Ok::<_, LinkError>(records),
                None => self.retrieve(some).await,
            }
        });
        Ok(try_join_all(asked).await?.into_iter().flatten().collect())
    }

    /// One RETRIEVE. None: the answer was longer, and nothing of it was kept.
    async fn records(
        &self,
        handles: &[Handle],
        most_bytes: usize,
    ) -> Result<Option<Vec<Record>>, LinkError> {
        let expect = Expect::Records(handles.to_vec(), most_bytes);
        let put = |id, out: &mut BytesMut| request::put_handles(kind::RETRIEVE, id, handles, out);
        let answer = self.call_with(expect, most_bytes, Duration::ZERO, put);
        match answer.await? {
            Answer::Records(records) => Ok(Some(records)),
            _ => Ok(None),
        }
    }

    /// CSTORE: for each block whether the server has it, durably. Those that it has stay.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn cstore(&self, handles: &[Handle]) -> Result<Vec<bool>, LinkError> {
        let mut have = Vec::with_capacity(handles.len());
        for some in handles.chunks(MAX_NAMES) {
            let expect = Expect::Have(some.len());
            let put = |id, out: &mut BytesMut| request::put_handles(kind::CSTORE, id, some, out);
            let answer = self.call_with(expect, 32 * some.len(), Duration::ZERO, put);
            if let Answer::Have(mut more) = answer.await? {
                have.append(&mut more);
            }
        }
        Ok(have)
    }

    /// DECREF: this device refers to these blocks no more.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn decref(&self, handles: &[Handle]) -> Result<(), LinkError> {
        for some in handles.chunks(MAX_NAMES) {
            let put = |id, out: &mut BytesMut| request::put_handles(kind::DECREF, id, some, out);
            self.call_with(Expect::Done, 32 * some.len(), Duration::ZERO, put)
                .await?;
        }
        Ok(())
    }

    /// Signed policies from a number on, as bytes. Not verified. None when there are no more; there may be more than
    /// come at once.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn policies(&self, from: u64) -> Result<Vec<Bytes>, LinkError> {
        let held = super::MAX_PART_BYTES;
        match self
            .call(Expect::Policies, held, &Request::Policies(from))
            .await?
        {
            Answer::Policies(policies) => Ok(policies),
            _ => Ok(Vec::new()),
        }
    }

    /// Gives the server a checkpoint to keep: a note, and a signed statement about its log. Durable when this returns.
    ///
    /// # Errors
    /// [`LinkError`]; refused with [`NO_CHECKPOINT`](super::NO_CHECKPOINT) when no checkpointer signed it.
    pub async fn post_checkpoint(&self, posted: Bytes) -> Result<(), LinkError> {
        let request = Request::Checkpoint(posted);
        self.call(Expect::Done, UNIT_BYTES, &request).await?;
        Ok(())
    }

    /// The checkpoints that the server keeps, as they were posted. Not verified.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn checkpoints(&self) -> Result<Vec<Bytes>, LinkError> {
        let held = super::MAX_PART_BYTES;
        match self
            .call(Expect::Checkpoints, held, &Request::Checkpoints)
            .await?
        {
            Answer::Checkpoints(all) => Ok(all),
            _ => Ok(Vec::new()),
        }
    }

    /// Puts a message into a mailbox. The same message again has no effect.
    ///
    /// # Errors
    /// [`LinkError`]; refused with [`NO_MAILBOX`](super::NO_MAILBOX) when no member waits there, with
    /// [`OCCUPIED`](super::OCCUPIED) when another message is there.
    pub async fn post(&self, slot: Slot, letter: Bytes) -> Result<(), LinkError> {
        let request = Request::Post { slot, letter };
        self.call(Expect::Done, UNIT_BYTES, &request).await?;
        Ok(())
    }

    /// The message in a mailbox; waits for it. It stays there. A member's call makes the mailbox. Asks the server again
    /// every few seconds: one that waits for a connection that is gone waits no longer.
    ///
    /// # Errors
    /// [`LinkError`]; refused with [`NO_MAILBOX`](super::NO_MAILBOX) when no member waits there.
    pub async fn take(&self, slot: Slot, wait: Duration) -> Result<Option<Bytes>, LinkError> {
        let began = Instant::now();
        loop {
            let left = wait.saturating_sub(began.elapsed()).as_millis();
            let wait_ms = u32::try_from(left).unwrap_or(u32::MAX).min(MAX_TAKE_MS);
            let request = Request::Take { slot, wait_ms };
            let wait_here = Duration::from_millis(wait_ms.into());
            let put = |id, out: &mut BytesMut| request.put(id, out);
            let answer = self.call_with(Expect::Letter, UNIT_BYTES, wait_here, put);
            if let Answer::Letter(Some(letter)) = answer.await? {
                return Ok(Some(letter));
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            // A server that does not wait at all is not asked without end.
            tokio::time::sleep(left.min(TAKE_PAUSE)).await;
        }
    }

    /// What this device has used at the server, and what is left. Not proved: for people to see.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn usage(&self) -> Result<Usage, LinkError> {
        match self.call(Expect::Usage, 0, &Request::Usage).await? {
            Answer::Usage(usage) => Ok(usage),
            _ => Err(self.0.shared.ended()),
        }
    }

    /// Asks for an answer, to see whether the server is there.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn ping(&self) -> Result<(), LinkError> {
        self.call(Expect::Done, 0, &Request::Ping).await?;
        Ok(())
    }

    async fn call(
        &self,
        expect: Expect,
        held_bytes: usize,
        request: &Request,
    ) -> Result<Answer, LinkError> {
        let put = |id, out: &mut BytesMut| request.put(id, out);
        self.call_with(expect, held_bytes, Duration::ZERO, put)
            .await
    }

    /// One request and its answer. `wait`: how much longer than usual the server may take.
    async fn call_with(
        &self,
        expect: Expect,
        held_bytes: usize,
        wait: Duration,
        put: impl FnOnce(u32, &mut BytesMut),
    ) -> Result<Answer, LinkError> {
        let inner = &self.0;
        let units = inner.units_of(held_bytes);
        let closed = || inner.shared.ended();
        let _place = inner.in_flight.acquire().await.map_err(|_| closed())?;
        let _held = inner.held.acquire_many(units).await;
        let _held = _held.map_err(|_| closed())?;
        inner.shared.ask(expect, wait, put)?.answered().await
    }
}

/// Pause before a mailbox is asked again.
const TAKE_PAUSE: Duration = Duration::from_millis(100);
/// Bodies in one request.
const MAX_BODIES_AT_ONCE: usize = 64;
/// Blocks of unknown length in one request. Memory is reserved for the longest ones.
const MAX_BLOCKS_AT_ONCE: usize = 16;
/// Blocks in one request that are together not long. A server reads few requests of one connection at a time.
const MAX_SHORT_BLOCKS_AT_ONCE: usize = 256;
/// What a block takes beside its bytes, at most.
const OVERHEAD_BYTES: usize = 64;

/// How many of these records go into one STORE.
fn fitting(records: &[Record]) -> usize {
    let mut bytes: usize = 0;
    let fits = |record: &&Record| {
        bytes = bytes.saturating_add(record.len());
        bytes <= MAX_STORE_BYTES
    };
    let fitting = records.iter().take(MAX_NAMES).take_while(fits).count();
    fitting.max(1)
}
