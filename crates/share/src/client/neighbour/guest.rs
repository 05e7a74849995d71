//! A client without an engine: it passes its commands to the process that has one.
//!
//! When that process ends, a call that only reads is made again, wherever the engine is next. A call that changes
//! something, and whose answer has not come, is not: it may have had effect. The program is told so.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use store::StoreError;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;
use trust::Record;

use super::line::{Got, LocalLine, Op};
use super::plug::Plug;
use super::socket::{HELLO_WITHIN, connect, greet, read_frame, write_frame};
use crate::client::connection::{Connection, Stores};
use crate::client::core::Ticket;
use crate::client::driver::{Calling, Command};
use crate::client::local::{Asked, MAX_TOLD_BYTES, PROTOCOL, Query, Response, Told};
use crate::client::{ClientError, View};

/// Numbers of requests that are no calls and not for blocks.
const OTHERS: Ticket = 1 << 61;

/// A connection to the process that has the engine.
pub(in crate::client) struct Joined {
    stream: UnixStream,
    /// What it shows.
    pub(in crate::client) view: View,
}

/// Why there is no connection.
pub(super) enum Alone {
    /// Nobody listens, or nobody who answers.
    Nobody,
    /// Another version of the program runs the engine.
    OtherBuild { build: String, process: u32 },
    /// The socket is not what it should be.
    Foreign(String),
}

/// Connects to the process that has the engine of this home.
pub(super) async fn join(home: &Path) -> Result<Joined, Alone> {
    let mut stream = match connect(home).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Alone::Foreign(error.to_string()));
        }
        Err(_) => return Err(Alone::Nobody),
    };
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let process = peer.and_then(|pid| u32::try_from(pid).ok());
    let hello = greet(&mut stream).await.map_err(|_| Alone::Nobody)?;
    if hello.protocol != PROTOCOL {
        return Err(Alone::OtherBuild {
            build: hello.build,
            process: process.unwrap_or(0),
        });
    }
    let first = timeout(HELLO_WITHIN, read_frame(&mut stream, MAX_TOLD_BYTES)).await;
    let Ok(Ok(Some(first))) = first else {
        return Err(Alone::Nobody);
    };
    let Ok(Told::View(mut view)) = Told::decode(&first) else {
        return Err(Alone::Nobody);
    };
    view.process = Some(process.unwrap_or(0));
    Ok(Joined { stream, view })
}

/// Why a guest stops.
pub(super) enum End {
    /// The process with the engine goes away.
    Lost,
    /// The client is closed, or nobody has it any more.
    Closed,
}

/// Something that waits for an answer.
enum Pending {
    /// How many requests were sent before this one, and the call.
    Call(u64, Calling),
    Query(Query, oneshot::Sender<Response>),
    Blocks(Vec<Record>, oneshot::Sender<Got>),
}

struct Guest<'a> {
    plug: &'a mut Plug,
    process: Option<u32>,
    out: mpsc::UnboundedSender<Vec<u8>>,
    pending: HashMap<u64, Pending>,
    /// Requests that were sent.
    sent: u64,
    /// Requests that were taken by an engine that ends now.
    taken: Option<u64>,
    others: u64,
}

enum Event {
    Command(Option<Box<Command>>),
    Told(Option<io::Result<Bytes>>),
    Op(Option<Op>),
}

/// Passes commands on until the connection or the client ends.
pub(super) async fn run(joined: Joined, plug: &mut Plug) -> End {
    let (read, write) = joined.stream.into_split();
    let (out, outgoing) = mpsc::unbounded_channel();
    let (frames, mut incoming) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(read_all(read, frames));
    tasks.spawn(write_all(write, outgoing));
    let (line, mut ops) = LocalLine::new();
    let line = Arc::new(line);
    // This end stays when nobody sees the line any more: answers to calls may still come.
    let stores: Arc<dyn Stores> = Arc::clone(&line) as _;
    plug.shown.line.send_replace(Some(stores));
    let mut guest = Guest {
        process: joined.view.process,
        plug,
        out,
        pending: HashMap::new(),
        sent: 0,
        taken: None,
        others: OTHERS,
    };
    guest.show(joined.view);
    let end = loop {
        let stays = guest.taken.is_none();
        let event = tokio::select! {
            command = guest.plug.commands.recv(), if stays => Event::Command(command.map(Box::new)),
            told = incoming.recv() => Event::Told(told),
            op = ops.recv() => Event::Op(op),
            // Writing has failed.
            Some(_) = tasks.join_next(), if tasks.len() > 1 => continue,
        };
        match event {
            Event::Command(None) => break End::Closed,
            Event::Command(Some(command)) => match *command {
                Command::Close(done) => {
                    // Whoever closes the client may be gone.
                    let _ = done.send(());
                    break End::Closed;
                }
                command => guest.command(command),
            },
            Event::Told(Some(Ok(frame))) => match Told::decode(&frame) {
                Ok(told) => guest.told(told),
                Err(error) => {
                    tracing::warn!(%error, "the process that runs a volume's engine speaks nonsense");
                    break End::Lost;
                }
            },
            Event::Told(_) | Event::Op(None) => break End::Lost,
            Event::Op(Some(op)) => guest.op(op),
        }
    };
    guest.ended();
    drop(line);
    end
}

async fn read_all(mut from: OwnedReadHalf, to: mpsc::Sender<io::Result<Bytes>>) {
    while let Some(frame) = read_frame(&mut from, MAX_TOLD_BYTES).await.transpose() {
        let is_last = frame.is_err();
        if to.send(frame).await.is_err() || is_last {
            return;
        }
    }
}

async fn write_all(mut to: OwnedWriteHalf, mut from: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(message) = from.recv().await {
        if write_frame(&mut to, &message).await.is_err() {
            // The reader sees the end of the connection.
            return;
        }
    }
}

impl Guest<'_> {
    fn show(&self, view: View) {
        let process = self.process;
        self.plug.shown.view.send_replace(View { process, ..view });
    }

    fn send(&mut self, id: u64, asked: &Asked) {
        self.sent = self.sent.saturating_add(1);
        // The reader notices the end of the connection.
        let _ = self.out.send(asked.encode(id));
    }

    fn command(&mut self, command: Command) {
        let (id, asked, pending) = match command {
            // It was made for the engine of this process, which another one has taken over meanwhile.
            Command::Call(it) if !it.flight.is_empty() => {
                let cause = "another process runs the engine now".to_owned();
                let is_full = false;
                let why = ClientError::Unstored { is_full, cause };
                return drop(it.answer.send(Err(why)));
            }
            Command::Call(it) => {
                let call = it.call.clone();
                let asked = match it.looks {
                    false => Asked::Call(call),
                    true => Asked::Look(call.call),
                };
                (it.ticket, asked, Pending::Call(self.sent, it))
            }
            Command::Query(query, answer) => {
                self.others = self.others.saturating_add(1);
                let asked = Asked::Query(query.clone());
                (self.others, asked, Pending::Query(query, answer))
            }
            Command::Cancel(ticket) => return self.cancel(ticket),
            // What was lost is given back by the process that has the engine.
            // Checkpoints are made by that process, too.
            Command::Lost(_)
            | Command::Leaves { .. }
            | Command::Line(_)
            | Command::Ask
            | Command::Close(_) => return,
        };
        self.pending.insert(id, pending);
        self.send(id, &asked);
    }

    fn cancel(&mut self, id: u64) {
        if self.pending.remove(&id).is_some() {
            self.send(id, &Asked::Cancel);
        }
    }

    fn op(&mut self, op: Op) {
        match op {
            Op::Begin { answer, .. } if self.taken.is_some() => drop(answer.send(Err(gone()))),
            Op::Begin { id, want, answer } => {
                self.pending.insert(id, Pending::Blocks(Vec::new(), answer));
                self.send(id, &Asked::Blocks(want));
            }
            Op::Cancel(id) => self.cancel(id),
        }
    }

    /// Whoever waited may be gone.
    fn told(&mut self, told: Told) {
        match told {
            Told::View(view) => self.show(view),
            Told::Leaving(taken) => {
                self.taken = Some(taken);
                self.plug.shown.line.send_replace(None);
            }
            Told::Records(id, more) => {
                if let Some(Pending::Blocks(records, _)) = self.pending.get_mut(&id) {
                    records.extend(more);
                }
            }
            Told::Response(id, response) => match (self.pending.remove(&id), response) {
                (Some(Pending::Call(_, it)), Response::Answer(answer)) => {
                    let _ = it.answer.send(*answer);
                }
                (Some(Pending::Query(_, to)), response) => drop(to.send(response)),
                (Some(Pending::Blocks(records, to)), Response::Done(done)) => {
                    let _ = to.send(done.map(|absent| (records, absent)));
                }
                // Dropped: the program is told that the request failed.
                _ => {}
            },
        }
    }

    /// The connection is over: sends reads again to the next process that runs the engine.
    fn ended(mut self) {
        self.plug.shown.line.send_replace(None);
        self.plug.shown.view.send_modify(|view| {
            view.connection = Connection::Connecting;
            view.process = None;
        });
        // What waits in the queue was cancelled after this, if at all, and nobody waits for that.
        let mut again: Vec<(u64, Command)> = Vec::new();
        for (_, pending) in std::mem::take(&mut self.pending) {
            match pending {
                Pending::Call(before, it) => {
                    let was_taken = self.taken.is_none_or(|taken| before < taken);
                    if was_taken && !it.looks && !it.call.call.only_reads() {
                        let _ = it.answer.send(Err(ClientError::Interrupted));
                        continue;
                    }
                    again.push((before, Command::Call(it)));
                }
                Pending::Query(query, answer) => {
                    again.push((u64::MAX, Command::Query(query, answer)));
                }
                // The reader of blocks asks again by itself.
                Pending::Blocks(_, answer) => drop(answer.send(Err(gone()))),
            }
        }
        again.sort_by_key(|(before, _)| *before);
        if let Some(queue) = self.plug.queue.upgrade() {
            for (_, command) in again {
                let _ = queue.send(command);
            }
        }
    }
}

fn gone() -> StoreError {
    StoreError::Unavailable {
        place: String::new(),
        cause: "the process that runs the volume's engine has ended".to_owned(),
    }
}
