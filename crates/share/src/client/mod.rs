//! A device of a shared volume: one engine, and the programs that use it.
//!
//! [`Client::start`] opens a [`Home`], runs the engine, and connects to the server, again and again. Programs call
//! ([`Client::call`]), read blocks ([`Client::blocks`]) and put blocks ([`Client::sink`]). Every call has a deadline
//! and can be dropped. Memory is bounded: calls at a time, the shelf of bodies and blocks, the cache of blocks.
//!
//! | module | what lives there |
//! |---|---|
//! | `core` | one step: engine, timers, disk; what is read without the server; the feed of changes; comparing logs; folding and forgetting |
//! | `driver` | the task that owns the engine, connects, sends and answers |
//! | `create` | new files and their numbers |
//! | `flight` | calls that travel with the blocks that they name |
//! | `fetch` | fetches bodies and blocks, and verifies them |
//! | `again` | what a device that was killed would do again: whether the server has its blocks |
//! | `beacons` | devices that must write again and again |
//! | `neighbour` | other programs of this user, over a socket in the home |
//! | `connection`, `link` | a connection to the server, and the one of crate `wire` |
//! | `near` | the engine of this process, for questions that need no step of it |
//! | `lost`, `owed`, `paths`, `returned` | what this device wrote and the log does not have after a fork |
//! | `own`, `own_place` | content that this device wrote, on its own disk |
//! | `other_place` | another place with content of lost work, which a person names |
//! | `place` | the server's blocks for programs |
//! | [`local`] | what these programs say to each other, as bytes |
//! | `start`, `open` | from a home to an engine, and to a client |
//! | `begin` | a new device begins with a checkpoint |
//! | `checkpoint` | the state of this device's log as a checkpoint |
//! | `evidence` | files that convict the server |
//! | `status`, `error` | what a client says about itself, and why it fails |
//!
//! Relies on [`ordering::engine`] for the protocol, on [`crate::files`] for what calls mean, on `wire` for connections
//! on [`crate::disk`] for what must not be forgotten.

mod again;
mod beacons;
mod begin;
mod checkpoint;
mod connection;
mod core;
mod create;
mod driver;
mod error;
mod evidence;
mod fetch;
mod flight;
mod link;
pub mod local;
mod lost;
mod near;
mod neighbour;
mod open;
mod other_place;
mod owed;
mod own;
mod own_place;
mod paths;
mod place;
mod returned;
mod start;
mod status;
#[cfg(test)]
mod tests;
mod usage;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use reader::Blocks;
use store::cache::DiskCache;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout_at;
use trust::Hasher;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;
use trust_shared::note::SignedNote;
use trust_shared::principal::FileId;
use wire::shared::LinkOptions;

pub use self::core::{Compared, Folding};
pub use crate::disk::{self, DiskError};
use crate::files::{Answer, Basis, Call, Cursor, Feed, Refused, ShelfBytes, Stamped};
use crate::outbox::Flight;
pub use beacons::BeaconStatus;
pub use begin::{Begun, begin};
pub use checkpoint::Signable;
pub use connection::{Connection, Lost, Trouble};
pub use create::NewFile;
use driver::{Calling, Command};
pub use error::{ClientError, Differing, Stopped};
pub use flight::Boarding;
use flight::Room;
use link::Offered;
pub use link::offered;
use local::{Query, Response};
pub use lost::{Copy, GivenBack};
use neighbour::host::Hosting;
use ordering::engine::Delays;
pub use other_place::{
    DirectoryBlocks, DirectoryError, Lent, Location, OpenDirectory, OtherPlace, PlaceError,
};
use owed::Before;
pub use owed::Owed;
pub use own::Kept;
use own::Own;
pub use own_place::OwnSink as Sink;
use place::{ServerBlocks, Sink as ServerSink};
pub use status::{DeviceStatus, Phase, Status, View};

/// A server keeps blocks for a day at least.
const AWAY: Duration = Duration::from_secs(12 * 3600);

/// How long an engine that ends waits for changes of other programs, at most.
const HAND_OVER: Duration = Duration::from_secs(10);

/// How long a comparison may take after the deadline: it waits for this machine only.
const COMPARES: Duration = Duration::from_secs(5);

/// Bounds and deadlines of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// Calls that wait for an answer at a time. Others wait for a place.
    pub calls: usize,
    /// Memory for bodies of entries and blocks of trees.
    pub shelf: ShelfBytes,
    /// Memory for verified blocks that programs read, bytes.
    pub cache_bytes: u64,
    /// Verified blocks on disk.
    pub cache: Option<Arc<DiskCache>>,
    /// When the device folds unasked.
    pub folding: Folding,
    /// Leaves after which the device writes a snapshot of its floor, so that a restart need not read those before.
    pub snapshot_after: u64,
    /// Time without a connection after which the server may have removed blocks that calls name. At most half of the least
    /// time for which a server keeps them.
    pub away: Duration,
    /// Idle time until the device attests.
    pub attest_after: Duration,
    /// Deadlines and bounds of a connection.
    pub link: LinkOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            calls: 256,
            shelf: ShelfBytes::default(),
            cache_bytes: 64 << 20,
            cache: None,
            folding: Folding::default(),
            snapshot_after: 1 << 17,
            away: AWAY,
            attest_after: Duration::from_millis(Delays::default().attest_ms),
            link: LinkOptions::default(),
        }
    }
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// What the program is told.
    pub answer: Answer,
    /// Size of the prefix at whose end the call took place.
    pub at: u64,
    /// Entries that the answer rests on although nobody speaks for them. Only where the volume's policy is relaxed.
    pub marked: Basis,
}

/// A running engine. Cheap to clone; the engine ends when the last clone is dropped.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    volume: VolumeId,
    root: FileId,
    hasher: Hasher,
    policies: Policies,
    commands: mpsc::UnboundedSender<Command>,
    view: watch::Receiver<View>,
    places: Semaphore,
    tickets: AtomicU64,
    blocks: Arc<Blocks>,
    sink: ServerSink,
    /// Memory for blocks that travel with calls.
    room: Room,
    own: Option<Arc<Own>>,
    hosting: Arc<Hosting>,
    /// The engine, if this process has it.
    near: Arc<near::Near>,
    /// What this device knew of earlier epochs of the log, where something of it may be lost.
    before: Before,
    offered: Offered,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, {:?})", self.0.volume, self.0.view.borrow())
    }
}

/// Tells the engine that nobody waits any more.
struct Leave<'a> {
    inner: &'a Inner,
    ticket: u64,
    answered: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // The engine may have ended.
        let _ = self.inner.commands.send(Command::Cancel(self.ticket));
    }
}

impl Client {
    /// A call, and its answer. Without a [`Stamped::time`] of its own it is made now.
    ///
    /// # Errors
    /// [`ClientError::Deadline`]: a call that changes something may still have effect then, also when the future is
    /// dropped. It comes earlier when the server refuses this device for good. [`ClientError::Stopped`],
    /// [`ClientError::Busy`].
    pub async fn call(
        &self,
        call: impl Into<Stamped>,
        deadline: Instant,
    ) -> Result<Answered, ClientError> {
        self.issue(call.into(), Flight::default(), deadline).await
    }

    async fn issue(
        &self,
        call: Stamped,
        flight: Flight,
        deadline: Instant,
    ) -> Result<Answered, ClientError> {
        tokio::select! {
            answered = self.enter((call, flight), false, deadline) => answered,
            connection = self.refused() => Err(ClientError::Deadline { connection }),
        }
    }

    /// Waits until the server refuses this device for a reason that time does not heal: it is no member any more, for
    /// example. No call is answered then.
    async fn refused(&self) -> Connection {
        let mut view = self.0.view.clone();
        let refused = view.wait_for(|view| match &view.connection {
            Connection::Offline(lost) => !lost.trouble.may_pass(),
            _ => false,
        });
        let connection = refused.await.ok().map(|view| view.connection.clone());
        match connection {
            Some(connection) => connection,
            None => std::future::pending().await,
        }
    }

    /// The answer that this device can give to a call that reads, from what it has verified: without the server's
    /// newest state, also when there is no server, and also when the engine has stopped. Not for what must be new.
    ///
    /// # Errors
    /// [`ClientError::Deadline`] when blocks or bodies are missing that no server gives; [`ClientError::Unsupported`]
    /// for a call that changes something.
    pub async fn look(&self, call: Call, deadline: Instant) -> Result<Answered, ClientError> {
        if !call.only_reads() {
            let why = "a change without the server";
            return Err(ClientError::Unsupported(why.to_owned()));
        }
        if let Some(answered) = self.0.near.look(&call) {
            return Ok(answered);
        }
        self.enter((call.into(), Flight::default()), true, deadline)
            .await
    }

    /// What may have changed since a cursor, by this device too: files and names, in the order of the log. Waits until
    /// there is something to tell. A program begins with `None`, is told to look at everything, and goes on with the
    /// cursor of each answer. It misses nothing when the connection breaks or another process takes the engine over.
    ///
    /// `hold`: an entry of another device for which nobody speaks is waited for that long, from when the question meets
    /// it. Readers would wait for it, too. Then it is told all the same, with all that comes after it: what it changed
    /// must not be shown as it was before.
    ///
    /// Each question has a hold of its own: give it a deadline later than `hold`, or a silent device holds a program that
    /// asks again and again for ever. A question that waits takes one of the places for calls.
    ///
    /// The inner error says why this device answers no question, as a read would.
    ///
    /// # Errors
    /// [`ClientError::Deadline`]: the program asks again with the same cursor. [`ClientError::Stopped`],
    /// [`ClientError::Closed`].
    pub async fn changes(
        &self,
        since: Option<Cursor>,
        hold: Duration,
        deadline: Instant,
    ) -> Result<Result<Feed, Refused>, ClientError> {
        let call = Call::Feed {
            since,
            wait: true,
            hold_ms: u32::try_from(hold.as_millis()).unwrap_or(u32::MAX),
        };
        match self.look(call, deadline).await?.answer {
            Answer::Feed(feed) => Ok(Ok(feed)),
            Answer::Refused(why) => Ok(Err(why)),
            _ => Err(ClientError::Closed),
        }
    }

    async fn enter(
        &self,
        (call, flight): (Stamped, Flight),
        looks: bool,
        deadline: Instant,
    ) -> Result<Answered, ClientError> {
        let late = || ClientError::Deadline {
            connection: self.0.view.borrow().connection.clone(),
        };
        let place = timeout_at(deadline.into(), self.0.places.acquire()).await;
        let _place = place
            .map_err(|_| late())?
            .map_err(|_| ClientError::Closed)?;
        let ticket = self.0.tickets.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let calling = Calling {
            ticket,
            call,
            looks,
            flight: Box::new(flight),
            answer,
        };
        let sent = self.0.commands.send(Command::Call(calling));
        sent.map_err(|_| ClientError::Closed)?;
        let mut leave = Leave {
            inner: &self.0,
            ticket,
            answered: false,
        };
        let Ok(answer) = timeout_at(deadline.into(), answered).await else {
            return Err(late());
        };
        leave.answered = true;
        answer.unwrap_or(Err(ClientError::Closed))
    }

    /// Policies that the server has shown and that begin another epoch of the log, from the one after this client's
    /// newest on. They are verified: the owners have signed them. [`Home::follow`](crate::home::Home::follow) takes them.
    pub fn offered(&self) -> Option<Vec<Signed>> {
        let offered = self.0.offered.lock();
        offered.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until there are such policies. The engine answers nothing from then on.
    pub async fn offering(&self) {
        let mut view = self.0.view.clone();
        // They are there before the view tells of them.
        if view.wait_for(|_| self.offered().is_some()).await.is_err() {
            std::future::pending().await
        }
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.0.volume
    }

    /// Its root directory.
    pub fn root(&self) -> FileId {
        self.0.root
    }

    /// Its hash function.
    pub fn hasher(&self) -> &Hasher {
        &self.0.hasher
    }

    /// Its policies, as the home had them at the start.
    pub fn policies(&self) -> &Policies {
        &self.0.policies
    }

    /// The verified blocks of the volume. A read waits for a connection until its own deadline.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.0.blocks
    }

    /// Where blocks are put before a call names them. A put fails when the server has taken nothing of this client for
    /// `patience`: each answer begins that time anew for what waits behind it.
    /// This device keeps them, too.
    pub fn sink(&self, patience: Duration) -> Sink {
        Sink {
            own: self.0.own.clone(),
            sink: self.server_sink(patience),
        }
    }

    /// The same, and this device keeps nothing.
    fn server_sink(&self, patience: Duration) -> ServerSink {
        ServerSink {
            patience,
            ..self.0.sink.clone()
        }
    }

    /// The server's blocks alone.
    fn server_blocks(&self) -> ServerBlocks {
        ServerBlocks {
            name: self.0.sink.name.to_string(),
            lines: self.0.sink.lines.clone(),
            view: self.0.view.clone(),
            own: None,
        }
    }

    /// Connection and phase at this moment.
    pub fn view(&self) -> View {
        self.0.view.borrow().clone()
    }

    /// Waits until the engine reads and writes: the device is a member, has caught up, and its Resume is in the log.
    ///
    /// # Errors
    /// [`ClientError::Deadline`], [`ClientError::Stopped`], [`ClientError::Closed`].
    pub async fn running(&self, deadline: Instant) -> Result<(), ClientError> {
        self.wait(deadline, |view| matches!(view.phase, Phase::Running))
            .await
    }

    /// Waits until something is true of the engine, or it has stopped.
    async fn wait(
        &self,
        deadline: Instant,
        mut until: impl FnMut(&View) -> bool,
    ) -> Result<(), ClientError> {
        let mut view = self.0.view.clone();
        let waits = view.wait_for(|view| matches!(view.phase, Phase::Stopped(_)) || until(view));
        let view = match timeout_at(deadline.into(), waits).await {
            Ok(Ok(view)) => view.clone(),
            Ok(Err(_)) => return Err(ClientError::Closed),
            Err(_) => {
                let connection = self.0.view.borrow().connection.clone();
                return Err(ClientError::Deadline { connection });
            }
        };
        match view.phase {
            Phase::Stopped(why) => Err(why.into()),
            _ => Ok(()),
        }
    }

    /// The state of the engine.
    ///
    /// # Errors
    /// [`ClientError::Deadline`], [`ClientError::Closed`].
    pub async fn status(&self, deadline: Instant) -> Result<Status, ClientError> {
        match self.query(Query::Status, deadline).await? {
            Response::Status(status) => Ok(*status),
            _ => Err(ClientError::Closed),
        }
    }

    /// Compares this device's log with a note that another device has shown. Waits until this device has seen as much,
    /// or until the deadline.
    ///
    /// # Errors
    /// [`ClientError::Closed`], and [`ClientError::Deadline`] when there was no time to compare at all.
    pub async fn compare(
        &self,
        note: SignedNote,
        deadline: Instant,
    ) -> Result<Compared, ClientError> {
        let size = note.note().log.size;
        // What this device has is compared also when it has less.
        let _ = self.wait(deadline, |view| view.size >= size).await;
        let grace = Instant::now() + COMPARES;
        match self
            .query(Query::Compare(note), deadline.max(grace))
            .await?
        {
            Response::Compared(compared) => Ok(compared),
            _ => Err(ClientError::Closed),
        }
    }

    /// The engine reads again which beacons this home asks for.
    ///
    /// # Errors
    /// [`ClientError::Closed`], [`ClientError::Deadline`].
    pub async fn beacons_changed(&self, deadline: Instant) -> Result<(), ClientError> {
        match self.query(Query::Beacons, deadline).await? {
            Response::Done(_) => Ok(()),
            _ => Err(ClientError::Closed),
        }
    }

    /// Asks the engine, wherever it is, as it is now. The response is of the kind that the query names.
    async fn query(&self, query: Query, deadline: Instant) -> Result<Response, ClientError> {
        self.ask(deadline, |answer| Command::Query(query, answer))
            .await
    }

    async fn ask<T>(
        &self,
        deadline: Instant,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ClientError> {
        let (answer, answered) = oneshot::channel();
        let sent = self.0.commands.send(command(answer));
        sent.map_err(|_| ClientError::Closed)?;
        match timeout_at(deadline.into(), answered).await {
            Ok(answered) => answered.map_err(|_| ClientError::Closed),
            Err(_) => Err(ClientError::Deadline {
                connection: self.0.view.borrow().connection.clone(),
            }),
        }
    }

    /// Ends the engine for all clones, and waits until what it wrote is durable. Other programs that use it are handed
    /// over first: one of them runs the engine next.
    ///
    /// # Errors
    /// [`ClientError::Deadline`] when the disk does not answer.
    pub async fn close(self, deadline: Instant) -> Result<(), ClientError> {
        let hand_over = Instant::now() + HAND_OVER;
        let handing_over = self.0.hosting.leave(deadline.min(hand_over));
        let syncing = async {
            if let Some(own) = &self.0.own {
                own.sync(deadline).await;
            }
        };
        tokio::join!(handing_over, syncing);
        match self.ask(deadline, Command::Close).await {
            Err(ClientError::Closed) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
