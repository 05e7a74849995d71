//! The process with the engine answers other programs of its user.
//!
//! Each connection has tasks of its own, and bounds: a program that reads slowly, says nothing, or speaks nonsense,
//! holds up or ends its own connection only. When a connection ends, its calls leave the engine like dropped calls.
//!
//! A process that ends hands over: it takes no more requests, says so, answers the changes that it has taken, and closes
//! the connections. The others repeat the rest wherever the engine is next.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{BlockSink, BlockStore, StoreError};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout_at};
use trust::Handle;

use super::socket::{self, Owner, greet, read_frame, write_frame};
use crate::client::local::{
    Asked, MAX_ASKED_BYTES, MAX_UNDER_WAY, MAX_UNDER_WAY_BYTES, PROTOCOL, RECORDS_BYTES, Response,
    Told, Want,
};
use crate::client::{Client, ClientError, Inner};

/// Most programs that are connected at a time.
const MAX_CONNECTIONS: usize = 32;
/// Calls of one connection in the engine at a time. Others wait, so that one program leaves places to the rest.
const CALLS: usize = 32;
/// The program's own deadline comes earlier. This one bounds what a program forgets.
const AT_LAST: Duration = Duration::from_secs(24 * 3600);
/// After a failure to accept, which is mostly a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// What this process has open for others while it has the engine.
#[derive(Debug, Default)]
pub(in crate::client) struct Hosting(watch::Sender<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The process gives the engine up.
    is_leaving: bool,
    /// The listener and the connections.
    count: usize,
    /// The socket's file, as long as this process has to remove it.
    socket: Option<PathBuf>,
}

impl Hosting {
    /// Hands over: takes nothing more, and waits until what was taken is answered, or until the deadline.
    ///
    /// The socket's file goes first. This process still has the lock, and later the file may be another process's.
    pub(in crate::client) async fn leave(&self, deadline: Instant) {
        let mut socket = None;
        self.0.send_modify(|open| {
            open.is_leaving = true;
            socket = open.socket.take();
        });
        if let Some(socket) = socket {
            // If it stays, nothing is lost: a connection to it is refused, and the next process replaces it.
            let _ = std::fs::remove_file(socket);
        }
        let mut open = self.0.subscribe();
        let ended = open.wait_for(|open| open.count == 0);
        // What is left at the deadline ends with the process: its outcome is unknown to who waits for it.
        let _ = timeout_at(deadline.into(), ended).await;
    }

    /// One more is open, perhaps the listener at this socket. None: this process is leaving.
    fn enter(self: &Arc<Self>, socket: Option<PathBuf>) -> Option<Inside> {
        let has_entered = self.0.send_if_modified(|open| {
            if open.is_leaving {
                return false;
            }
            open.count = open.count.saturating_add(1);
            open.socket = socket.or(open.socket.take());
            true
        });
        has_entered.then(|| Inside(Arc::clone(self)))
    }
}

/// Counts something that is open.
struct Inside(Arc<Hosting>);

impl Drop for Inside {
    fn drop(&mut self) {
        let open = &self.0.0;
        open.send_modify(|open| open.count = open.count.saturating_sub(1));
    }
}

/// Listens on the socket of a home whose lock this process has, unless it is leaving already.
pub(super) fn host(home: PathBuf, engine: Weak<Inner>, hosting: &Arc<Hosting>) -> io::Result<()> {
    let Some(inside) = hosting.enter(Some(socket::path(&home))) else {
        return Ok(());
    };
    let (listener, owner) = socket::bind(&home)?;
    let hosting = Arc::clone(hosting);
    tokio::spawn(async move {
        listen(listener, owner, engine, &hosting).await;
        drop(inside);
    });
    Ok(())
}

async fn listen(listener: UnixListener, owner: Owner, engine: Weak<Inner>, hosting: &Arc<Hosting>) {
    let mut leaving = hosting.0.subscribe();
    loop {
        let stream = tokio::select! {
            () = left(&mut leaving) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = stream else {
            sleep(PAUSE).await;
            continue;
        };
        let is_owner = stream
            .peer_cred()
            .is_ok_and(|peer| owner.admits(peer.uid()));
        // The listener itself is one.
        if !is_owner || hosting.0.borrow().count > MAX_CONNECTIONS {
            continue;
        }
        let Some(inside) = hosting.enter(None) else {
            return;
        };
        let engine = Weak::clone(&engine);
        tokio::spawn(async move {
            if let Err(error) = attend(stream, engine, &inside).await {
                tracing::debug!(%error, "the connection of a program on this machine has ended");
            }
        });
    }
}

/// Until the engine ends.
async fn left(leaving: &mut watch::Receiver<Open>) {
    // Without a sender there is no engine.
    drop(leaving.wait_for(|open| open.is_leaving).await);
}

/// One connection, until either end ends it.
async fn attend(mut stream: UnixStream, engine: Weak<Inner>, inside: &Inside) -> io::Result<()> {
    let mut leaving = inside.0.0.subscribe();
    let hello = tokio::select! {
        hello = greet(&mut stream) => hello?,
        () = left(&mut leaving) => return Ok(()),
    };
    if hello.protocol != PROTOCOL {
        // It has this end's hello, and says what is wrong.
        return Ok(());
    }
    let Some(client) = engine.upgrade().map(Client) else {
        return Ok(());
    };
    let mut view = client.0.view.clone();
    drop(client);
    let (read, write) = stream.into_split();
    let (out, outgoing) = mpsc::channel(32);
    let (frames, mut incoming) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(read_all(read, frames));
    let mut writer = tokio::spawn(write_all(write, outgoing));
    let mut desk = Desk {
        engine,
        out,
        calls: Arc::new(Semaphore::new(CALLS)),
        under_way: HashMap::new(),
        bytes: 0,
        taken: 0,
        tasks: JoinSet::new(),
    };
    let shown = Told::View(view.borrow_and_update().clone());
    desk.tell(&shown).await?;
    loop {
        tokio::select! {
            frame = incoming.recv() => match frame {
                Some(frame) => desk.take(frame?)?,
                None => return Ok(()),
            },
            Some(done) = desk.tasks.join_next() => desk.done(done.ok()),
            changed = view.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let shown = Told::View(view.borrow_and_update().clone());
                desk.tell(&shown).await?;
            }
            () = left(&mut leaving) => break,
            ended = &mut writer => return ended.map_err(io::Error::other)?,
        }
    }
    drop(incoming);
    tasks.abort_all();
    desk.leave().await?;
    drop(desk);
    writer.await.map_err(io::Error::other)?
}

async fn read_all(mut from: OwnedReadHalf, to: mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let frame = match read_frame(&mut from, MAX_ASKED_BYTES).await {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let is_last = frame.is_err();
        if to.send(frame).await.is_err() || is_last {
            return;
        }
    }
}

async fn write_all(mut to: OwnedWriteHalf, mut from: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
    while let Some(message) = from.recv().await {
        write_frame(&mut to, &message).await?;
    }
    Ok(())
}

/// A request that is under way.
struct UnderWay {
    task: AbortHandle,
    bytes: usize,
    changes: bool,
}

/// The requests of one connection. When it is dropped, they are.
struct Desk {
    engine: Weak<Inner>,
    out: mpsc::Sender<Vec<u8>>,
    calls: Arc<Semaphore>,
    under_way: HashMap<u64, UnderWay>,
    /// Of the requests under way.
    bytes: usize,
    /// Requests so far.
    taken: u64,
    tasks: JoinSet<u64>,
}

fn unruly(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl Desk {
    async fn tell(&self, told: &Told) -> io::Result<()> {
        let sent = self.out.send(told.encode()).await;
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn take(&mut self, frame: Bytes) -> io::Result<()> {
        let (id, asked) = Asked::decode(&frame).map_err(io::Error::other)?;
        self.taken = self.taken.saturating_add(1);
        let changes = match &asked {
            Asked::Cancel => {
                if let Some(gone) = self.under_way.remove(&id) {
                    self.bytes = self.bytes.saturating_sub(gone.bytes);
                    gone.task.abort();
                }
                return Ok(());
            }
            Asked::Call(call) => !call.call.only_reads(),
            Asked::Look(_) | Asked::Query(_) | Asked::Blocks(_) => false,
        };
        self.bytes = self.bytes.saturating_add(frame.len());
        if self.under_way.len() >= MAX_UNDER_WAY || self.bytes > MAX_UNDER_WAY_BYTES {
            return Err(unruly("too much is under way"));
        }
        if self.under_way.contains_key(&id) {
            return Err(unruly("two requests of one number"));
        }
        let work = work(
            Weak::clone(&self.engine),
            (id, asked),
            self.out.clone(),
            Arc::clone(&self.calls),
        );
        let task = self.tasks.spawn(async move {
            work.await;
            id
        });
        let bytes = frame.len();
        self.under_way.insert(
            id,
            UnderWay {
                task,
                bytes,
                changes,
            },
        );
        Ok(())
    }

    /// None: a request that was cancelled.
    fn done(&mut self, id: Option<u64>) {
        if let Some(gone) = id.and_then(|id| self.under_way.remove(&id)) {
            self.bytes = self.bytes.saturating_sub(gone.bytes);
        }
    }

    /// Takes nothing more, and answers the changes that were taken.
    async fn leave(&mut self) -> io::Result<()> {
        self.under_way.retain(|_, under_way| {
            if !under_way.changes {
                under_way.task.abort();
            }
            under_way.changes
        });
        self.tell(&Told::Leaving(self.taken)).await?;
        while !self.under_way.is_empty() {
            match self.tasks.join_next().await {
                Some(done) => self.done(done.ok()),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Does what was asked, and answers.
async fn work(
    engine: Weak<Inner>,
    (id, asked): (u64, Asked),
    out: mpsc::Sender<Vec<u8>>,
    calls: Arc<Semaphore>,
) {
    let Some(client) = engine.upgrade().map(Client) else {
        return;
    };
    let until = Instant::now() + AT_LAST;
    let response = match asked {
        Asked::Call(call) => {
            let _place = calls.acquire().await;
            Response::Answer(Box::new(client.call(call, until).await))
        }
        Asked::Look(call) => {
            let _place = calls.acquire().await;
            Response::Answer(Box::new(client.look(call, until).await))
        }
        Asked::Query(query) => match client.query(query, until).await {
            Ok(response) => response,
            // The connection ends, and the program asks elsewhere.
            Err(_) => return,
        },
        Asked::Blocks(want) => match move_blocks(&client, id, want, &out).await {
            Some(done) => Response::Done(done),
            None => return,
        },
        Asked::Cancel => return,
    };
    if let Response::Answer(answer) = &response
        && let Err(ClientError::Closed) = answer.as_ref()
    {
        // The engine has ended. The connection ends too.
        return;
    }
    // The program may be gone.
    let _ = out.send(Told::Response(id, response).encode()).await;
}

/// Absent blocks, for `Touch`. None: the program is gone.
async fn move_blocks(
    client: &Client,
    id: u64,
    want: Want,
    out: &mpsc::Sender<Vec<u8>>,
) -> Option<Result<Vec<Handle>, StoreError>> {
    // The program has looked at what this device keeps, and keeps what it puts.
    let done = match want {
        Want::Get(handles) => match client.server_blocks().get_many(&handles, 0).await {
            Ok(records) => {
                for part in parts(&records, RECORDS_BYTES) {
                    let part = Told::Records(id, part.to_vec());
                    out.send(part.encode()).await.ok()?;
                }
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        },
        Want::Put(records) => {
            let put = client.server_sink(AT_LAST).put(&records).await;
            put.map(|()| Vec::new())
        }
        Want::Touch(handles) => client.server_sink(AT_LAST).touch(&handles).await,
    };
    Some(done)
}

/// Records in groups that are not longer than `most` together, unless one record is.
pub(super) fn parts(records: &[trust::Record], most: usize) -> Vec<&[trust::Record]> {
    let mut parts = Vec::new();
    let (mut rest, mut at, mut bytes) = (records, 0usize, 0usize);
    for record in records {
        let more = bytes.saturating_add(record.len());
        if at > 0 && more > most {
            let (part, after) = rest.split_at(at);
            parts.push(part);
            (rest, at, bytes) = (after, 0, 0);
        }
        at += 1;
        bytes = bytes.saturating_add(record.len());
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}
