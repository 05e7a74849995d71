//! One client: requests are read many at a time, answered from memory where the page cache has
//! them, and answers leave in as few writes as possible.
//!
//! One task a connection. It stops reading while answers wait to be written, so a peer who does not
//! read holds back itself. A read that would wait for the disk goes to the blocking threads and is
//! answered when it is ready, in any order; requests behind it are not held up. Deadlines: for the
//! hello, for the rest of a request, for taking an answer, for doing nothing.

use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use store::{Patience, StoreError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout_at};
use trust::Reject;
use wire::frame::{self, HEADER_BYTES, HELLO, HELLO_BYTES, Header, MAX_REQUEST_BYTES, PROTOCOL};
use wire::mirror::{NO_OBJECT, NO_VOLUME, Request, kind};
use wire::refusal::ErrorCode;

use crate::mirror::disk_read::{DiskAnswer, DiskRead, Found};
use crate::mirror::reader::RepositoryReader;
use crate::mirror::server::Shared;
use crate::net::limiter::Permit;
use crate::net::outbox::Outbox;

/// What a connection that waits for its next request keeps for it, bytes.
const READ_BUFFER_BYTES: usize = 4096;

/// Why a connection ended, for the log.
#[derive(Debug)]
pub(crate) enum End {
    /// The client closed it.
    Closed,
    /// The network broke it.
    Broken(std::io::Error),
    /// The client sent what is no request.
    Malformed(Reject),
    /// The client took too long.
    TooSlow(&'static str),
    /// The client asked nothing for long.
    Idle,
    /// The server stops.
    Stopping,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Closed => f.write_str("the client closed it"),
            End::Broken(e) => write!(f, "broken: {e}"),
            End::Malformed(why) => write!(f, "the client broke the protocol: {why}"),
            End::TooSlow(what) => write!(f, "the client {what}"),
            End::Idle => f.write_str("nothing was asked for long"),
            End::Stopping => f.write_str("the server stops"),
        }
    }
}

/// What came of looking at a client's socket once.
pub(crate) enum Met {
    /// It is over.
    End(End),
    /// Nothing has come.
    Silent,
    /// It has got all that it said it would read, and will probably leave.
    HasAll,
    /// There may be more.
    Stays,
}

pub(crate) struct Connection {
    shared: Arc<Shared>,
    _seat: Permit,
    buffer: BytesMut,
    outbox: Outbox,
    /// Bytes of the outbox that the server's account knows of.
    held_bytes: usize,
    greeted: bool,
    /// When the part of a request that lies in `buffer` began to come.
    begun: Option<Instant>,
    last_request: Instant,
    disk: JoinSet<DiskAnswer>,
    /// The last request made the server walk into the tree.
    walked: bool,
    /// The last request said where the client is going, and was answered with all the way there.
    has_all: bool,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, seat: Permit) -> Connection {
        let mut outbox = Outbox::default();
        // The client waits for no hello, so ours leaves with the first answer.
        outbox.raw(&HELLO);
        Connection {
            shared,
            _seat: seat,
            buffer: BytesMut::new(),
            outbox,
            held_bytes: 0,
            greeted: false,
            begun: None,
            last_request: Instant::now(),
            disk: JoinSet::new(),
            walked: false,
            has_all: false,
        }
    }

    /// Serves until the end.
    pub(crate) async fn run(
        mut self,
        mut stream: TcpStream,
        mut stop: watch::Receiver<bool>,
    ) -> End {
        let end = self.serve(&mut stream, &mut stop).await;
        let parting = match &end {
            End::Malformed(why) => Some((ErrorCode::MALFORMED, why.to_string())),
            End::Stopping => Some((ErrorCode::STOPPING, "the server stops".to_owned())),
            _ => None,
        };
        if let Some((code, text)) = parting {
            self.outbox.error(0, code, &text);
            // Best effort: the connection ends either way.
            let _ = self.flush(&stream).await;
        }
        end
    }

    /// Reads once and answers what has come, without waiting: a newcomer's request mostly is there
    /// with the newcomer.
    pub(crate) fn meet(&mut self, socket: &OwnedFd) -> Met {
        let mut came = [0; READ_BUFFER_BYTES];
        let read = match rustix::net::recv(socket, &mut came, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Met::End(End::Closed),
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Met::Silent,
            Err(e) => return Met::End(End::Broken(e.into())),
        };
        self.shared.counters.received_bytes.add(read as u64);
        self.buffer
            .extend_from_slice(came.get(..read).unwrap_or_default());
        self.has_all = false;
        while !self.shared.is_crowded()
            && !self.walked
            && self.may_start()
            && self.outbox.left_bytes() < self.shared.limits.gather_bytes
        {
            // Who sends what is no request is told so by an ordinary connection.
            match self.next_request() {
                Ok(Some((id, request))) => self.answer(id, request),
                Ok(None) | Err(_) => break,
            }
        }
        let total = self.outbox.left_bytes();
        if total > 0 && self.greeted {
            let wrote = self.outbox.with_slices(|s| rustix::io::writev(socket, s));
            match wrote {
                Ok(n) => self.outbox.advance(n),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Met::End(End::Broken(e.into())),
            }
            let left = self.outbox.left_bytes();
            self.account(left);
            self.shared.counters.sent_bytes.add((total - left) as u64);
            self.last_request = Instant::now();
        }
        let quiet = self.buffer.is_empty() && self.outbox.left_bytes() == 0 && self.disk.is_empty();
        if quiet {
            self.buffer = BytesMut::new();
        }
        if self.has_all && quiet {
            Met::HasAll
        } else {
            Met::Stays
        }
    }

    async fn serve(&mut self, stream: &mut TcpStream, stop: &mut watch::Receiver<bool>) -> End {
        let mut clock = pin!(sleep(self.shared.limits.hello_timeout));
        // Subscribed once: a waiter made anew for each request would contend with all others.
        let mut stopped = pin!(async move {
            // An error means that the server is gone, which is a stop as well.
            let _ = stop.wait_for(|stop| *stop).await;
        });
        let (mut stopping, mut finished) = (false, false);
        loop {
            if let Err(end) = self.work(stream).await {
                return end;
            }
            if self.outbox.left_bytes() > 0 && self.greeted {
                if let Err(end) = self.flush(stream).await {
                    return end;
                }
                continue;
            }
            let quiet = self.disk.is_empty();
            if finished && quiet {
                return End::Closed;
            }
            if stopping && quiet {
                return End::Stopping;
            }
            if let Err(end) = self.arm(clock.as_mut()) {
                return end;
            }
            let may_read = !finished && self.may_start();
            tokio::select! {
                read = read(stream, &mut self.buffer), if may_read => match read {
                    Ok(0) => finished = true,
                    Ok(n) => self.shared.counters.received_bytes.add(n as u64),
                    Err(e) => return End::Broken(e),
                },
                Some(done) = self.disk.join_next(), if !quiet => {
                    if let Ok(answer) = done {
                        self.take_disk_answer(answer);
                    }
                }
                () = clock.as_mut() => {}
                () = stopped.as_mut(), if !stopping => stopping = true,
            }
        }
    }

    fn may_start(&self) -> bool {
        self.disk.len() < self.shared.limits.disk_reads_per_connection
    }

    /// Answers requests that have come whole until enough is gathered.
    async fn work(&mut self, stream: &TcpStream) -> Result<(), End> {
        while let Some(Ok(answer)) = self.disk.try_join_next() {
            self.take_disk_answer(answer);
        }
        let limit = self.shared.limits.gather_bytes;
        while self.may_start() && self.outbox.left_bytes() < limit {
            match self.next_request() {
                Ok(Some((id, request))) => {
                    if self.shared.is_crowded() && !self.room(stream).await? {
                        self.busy(id);
                    } else {
                        self.answer(id, request);
                        if std::mem::take(&mut self.walked) {
                            // Whoever sends many of them waits for everybody else in between.
                            tokio::task::yield_now().await;
                        }
                    }
                }
                Ok(None) => break,
                Err(why) => return Err(End::Malformed(why)),
            }
        }
        Ok(())
    }

    /// Cuts the next request off the buffer; `None` until one is whole.
    fn next_request(&mut self) -> Result<Option<(u32, Request)>, Reject> {
        if !self.greeted {
            let Some(hello) = self.buffer.first_chunk::<HELLO_BYTES>() else {
                return Ok(None);
            };
            frame::check_hello(hello, PROTOCOL)?;
            self.buffer.advance(HELLO_BYTES);
            self.greeted = true;
            self.last_request = Instant::now();
        }
        let header = Header::peek(&self.buffer, MAX_REQUEST_BYTES)?;
        let whole = header.map(|h| (h, HEADER_BYTES + h.body_bytes));
        let Some((header, body)) =
            whole.and_then(|(h, n)| Some((h, self.buffer.get(HEADER_BYTES..n)?)))
        else {
            if self.buffer.is_empty() {
                self.begun = None;
            } else if self.begun.is_none() {
                self.begun = Some(Instant::now());
            }
            if let Some((_, n)) = whole {
                self.buffer.reserve(n.saturating_sub(self.buffer.len()));
            }
            return Ok(None);
        };
        if header.id == 0 {
            return Err(Reject::Malformed {
                what: "request",
                why: "id 0",
            });
        }
        let request = Request::decode(header.kind, body)?;
        self.buffer.advance(HEADER_BYTES + header.body_bytes);
        self.begun = None;
        Ok(Some((header.id, request)))
    }

    fn answer(&mut self, id: u32, request: Request) {
        self.has_all = false;
        let counters = &self.shared.counters;
        let Some(served) = self.shared.shelf(request.volume()) else {
            return self.no_volume(id);
        };
        let shelf = &served.shelf;
        match request {
            Request::Head {
                around_bytes,
                toward,
                ..
            } => {
                counters.head_requests.add(1);
                let head = shelf.head();
                if head.is_empty() {
                    return self.no_volume(id);
                }
                let landing = (around_bytes > 0).then(|| served.landing(&head)).flatten();
                let Some(landing) = landing else {
                    return self.outbox.message(kind::HEAD, id, head);
                };
                if toward.is_empty() {
                    let records = landing.near().within(around_bytes);
                    return self.landed(id, records, head);
                }
                if let Some(way) = self.shared.ways.get(landing.number(), &toward) {
                    self.has_all = way.is_whole(around_bytes);
                    return self.landed(id, way.within(around_bytes), head);
                }
                counters.walks.add(1);
                self.walked = true;
                match landing.toward(&**shelf, &toward, Patience::Never) {
                    Some(way) => {
                        let way = Arc::new(way);
                        self.shared.ways.keep(landing.number(), &toward, &way);
                        self.landed(id, way.within(around_bytes), head);
                    }
                    None => {
                        let (shelf, around) = (Arc::clone(shelf), around_bytes);
                        let read = DiskRead::PathRecords {
                            landing,
                            toward,
                            around,
                        };
                        self.read_disk(id, shelf, read);
                    }
                }
            }
            Request::Range {
                object,
                offset,
                len_bytes,
                ..
            } => {
                counters.range_requests.add(1);
                let shelf = Arc::clone(shelf);
                let read = DiskRead::Range {
                    object,
                    offset,
                    len_bytes,
                };
                self.read_disk(id, shelf, read);
            }
            Request::Data {
                around_bytes: around,
                want,
                ..
            } => {
                counters.data_requests.add(1);
                counters.handles.add(want.len() as u64);
                let hot = &self.shared.hot;
                let one = match want.as_slice() {
                    [one] => Some(*one),
                    _ => None,
                };
                if let Some(one) = one
                    && let Some(regions) = hot.get(served.number, &one, around)
                {
                    self.outbox.records(id, regions.iter().cloned());
                    self.outbox.message(kind::DONE, id, Bytes::new());
                    return;
                }
                match shelf.read_if_cached(&want, around) {
                    Ok(Some(regions)) => {
                        if let Some(one) = one {
                            hot.keep(served.number, &one, around, &regions);
                        }
                        self.outbox.records(id, regions);
                        self.outbox.message(kind::DONE, id, Bytes::new());
                    }
                    Ok(None) => {
                        let shelf = Arc::clone(shelf);
                        self.read_disk(id, shelf, DiskRead::Data { want, around });
                    }
                    Err(e) => {
                        let place = shelf.place().to_owned();
                        self.storage_error(id, &place, &e);
                    }
                }
            }
        }
    }

    /// A head, and what goes with it.
    fn landed(&mut self, id: u32, records: Bytes, head: Bytes) {
        if !records.is_empty() {
            self.outbox.message(kind::RECORDS, id, records);
        }
        self.outbox.message(kind::HEAD, id, head);
    }

    fn no_volume(&mut self, id: u32) {
        self.shared.counters.no_volume.add(1);
        self.outbox.error(id, NO_VOLUME, "not served here");
    }

    /// Leaves a read to the blocking threads.
    fn read_disk(&mut self, id: u32, shelf: Arc<dyn RepositoryReader>, read: DiskRead) {
        self.shared.counters.disk_reads.add(1);
        self.disk
            .spawn(read.answer(Arc::clone(&self.shared), id, shelf));
    }

    fn take_disk_answer(&mut self, answer: DiskAnswer) {
        let DiskAnswer { id, shelf, found } = answer;
        let (found, held) = match found {
            None => return self.busy(id),
            Some(Err(e)) => return self.storage_error(id, shelf.place(), &e),
            Some(Ok(found)) => found,
        };
        match found {
            Found::Records(regions, rest) => {
                self.outbox.records(id, regions);
                if rest.is_empty() {
                    self.outbox.message(kind::DONE, id, Bytes::new());
                } else {
                    let read = DiskRead::Data {
                        want: rest,
                        around: 0,
                    };
                    self.read_disk(id, shelf, read);
                }
            }
            Found::Range(Some(bytes)) => self.outbox.message(kind::RANGE, id, bytes),
            Found::Landed(records, head) => self.landed(id, records, head),
            Found::Range(None) => {
                self.shared.counters.no_object.add(1);
                self.outbox.error(id, NO_OBJECT, "no such object");
            }
        }
        self.account(self.outbox.left_bytes());
        drop(held);
    }

    fn busy(&mut self, id: u32) {
        self.shared.counters.busy.add(1);
        self.outbox.error(id, ErrorCode::BUSY, "too much in flight");
    }

    /// The client learns that, the log learns what: paths are none of a client's business.
    fn storage_error(&mut self, id: u32, place: &str, error: &StoreError) {
        self.shared.counters.storage_errors.add(1);
        tracing::warn!(%place, %error, "cannot read what a client asked for");
        self.outbox
            .error(id, ErrorCode::STORAGE, "the repository cannot be read");
    }

    /// Waits for other answers to leave memory; false when that does not help.
    async fn room(&mut self, stream: &TcpStream) -> Result<bool, End> {
        if self.outbox.left_bytes() > 0 {
            self.flush(stream).await?;
        }
        Ok(self.shared.wait_for_room().await)
    }

    /// Writes everything gathered, within the time that a reader is granted for so much.
    async fn flush(&mut self, stream: &TcpStream) -> Result<(), End> {
        let total = self.outbox.left_bytes();
        self.account(total);
        let mut deadline = None;
        while self.outbox.left_bytes() > 0 {
            let wrote = self.outbox.with_slices(|s| stream.try_write_vectored(s));
            match wrote {
                Ok(n) => self.outbox.advance(n),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let limits = &self.shared.limits;
                    let deadline = *deadline.get_or_insert_with(|| {
                        let rate = limits.min_bytes_per_second.max(1) as f64;
                        let granted = Duration::from_secs_f64(total as f64 / rate);
                        Instant::now() + limits.write_timeout + granted
                    });
                    match timeout_at(deadline, stream.writable()).await {
                        Ok(ready) => ready.map_err(End::Broken)?,
                        Err(_) => return Err(End::TooSlow("does not take its answers")),
                    }
                }
                Err(e) => return Err(End::Broken(e)),
            }
        }
        self.account(0);
        self.shared.counters.sent_bytes.add(total as u64);
        self.last_request = Instant::now();
        if self.buffer.is_empty() && self.buffer.capacity() > READ_BUFFER_BYTES {
            self.buffer = BytesMut::new();
        }
        Ok(())
    }

    fn account(&mut self, bytes: usize) {
        let held = &self.shared.counters.held_bytes;
        if bytes > self.held_bytes {
            held.add((bytes - self.held_bytes) as u64);
        } else {
            held.take_off((self.held_bytes - bytes) as u64);
        }
        self.held_bytes = bytes;
    }

    /// Checks the deadlines, and sees to it that the clock rings at the next one. It mostly stands
    /// right already: it is moved when it has rung, not at each request.
    fn arm(&mut self, clock: Pin<&mut Sleep>) -> Result<(), End> {
        let limits = &self.shared.limits;
        let (deadline, end) = if !self.greeted {
            (
                self.last_request + limits.hello_timeout,
                End::TooSlow("sends no hello"),
            )
        } else if let Some(begun) = self.begun {
            (
                begun + limits.request_timeout,
                End::TooSlow("does not finish its request"),
            )
        } else if self.disk.is_empty() {
            (self.last_request + limits.idle_timeout, End::Idle)
        } else {
            // The disk's turn: no fault of the client's.
            (Instant::now() + limits.idle_timeout, End::Idle)
        };
        let rung = clock.is_elapsed();
        if rung && Instant::now() >= deadline {
            return Err(end);
        }
        if rung || clock.deadline() > deadline {
            clock.reset(deadline);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.account(0);
    }
}

/// Reads once; room is made only for what is about to come. Cancel-safe.
async fn read(stream: &mut TcpStream, buffer: &mut BytesMut) -> std::io::Result<usize> {
    if buffer.capacity() == buffer.len() {
        buffer.reserve(READ_BUFFER_BYTES);
    }
    stream.read_buf(buffer).await
}
