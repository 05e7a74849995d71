//! A hundred hostile connections from 64 addresses of the loopback network, for figure 16.
//!
//! Half of them ask for 64 MiB and never read. Three in ten ask for as much and read little more than the server's
//! minimum. The others connect, ask for the head, and leave again. A connection that the server ends is made anew.
//! They run on one thread and cost little processor time, which is measured: it is taken from the server and the
//! reader on the same machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use wire::ObjectName;
use wire::frame::HELLO;
use wire::mirror::{MAX_RANGE_BYTES, Request};

use crate::protocol::{Place, runtime};
use crate::{cpu, dataset};

/// Connections at a time.
pub const CONNECTIONS: u32 = 100;
/// Addresses from which they come: 127.0.66.1 and the next ones.
const ADDRESSES: u32 = 64;
/// Requests in flight on each that reads little or nothing.
const REQUESTS: u32 = 16;
/// The client's part of the memory that the kernel keeps for a connection.
const RECEIVE_BUFFER_BYTES: u32 = 4096;
/// What a slow client reads, and how often: 80 KiB/s, of a minimum of 64.
const SIP_BYTES: usize = 20 << 10;
const SIP_PAUSE: Duration = Duration::from_millis(250);
/// How often a client that does not read asks for more, and so learns that its connection has ended.
const ASK_PAUSE: Duration = Duration::from_secs(1);
/// Pause of a client between two connections.
const NEW_PAUSE: Duration = Duration::from_millis(100);
/// How long the first connections may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause after they have asked, until the server has read for them what it holds at most.
const SETTLING: Duration = Duration::from_secs(1);

/// What a hostile client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    NeverReads,
    ReadsLittle,
    ComesAndGoes,
}

impl Habit {
    fn of(client: u32) -> Habit {
        match client % 10 {
            0..5 => Habit::NeverReads,
            5..8 => Habit::ReadsLittle,
            _ => Habit::ComesAndGoes,
        }
    }
}

/// What the clients share.
struct Shared {
    server: SocketAddr,
    /// The hello and the requests for much.
    much: Bytes,
    /// One more request for much.
    more: Bytes,
    /// The hello and a request for the head.
    head: Bytes,
    /// Clients that have asked for something once.
    ready: AtomicU32,
    /// Connections so far.
    connections: AtomicU64,
}

/// What the crowd has cost and done.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Processor seconds of the clients for each second.
    pub cpu: f64,
    /// Connections for each second, after the first ones.
    pub connections: f64,
}

/// The clients; they end when this is dropped.
pub struct Crowd {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<f64>>>,
}

impl Crowd {
    /// Starts all clients, and waits until each has asked for something, and a second more.
    ///
    /// # Errors
    /// When they cannot be connected.
    pub fn start(place: &Place, object: ObjectName) -> Result<Crowd> {
        let shared = Arc::new(Shared::new(place, object));
        let (stop, stopped) = oneshot::channel();
        let clients = shared.clone();
        let thread = std::thread::spawn(move || run(&clients, stopped));
        let mut crowd = Crowd {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        };
        let until = Instant::now() + PATIENCE;
        while crowd.shared.ready.load(Ordering::Relaxed) < CONNECTIONS {
            if crowd.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                crowd.end()?;
                return Err(anyhow!("the hostile clients have ended"));
            }
            ensure!(Instant::now() < until, "hostile clients are not connected");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(SETTLING);
        Ok(crowd)
    }

    /// Does `work` while the clients run.
    ///
    /// # Errors
    /// Those of `work`, and when the clients have ended.
    pub fn beside<T>(mut self, work: impl FnOnce() -> Result<T>) -> Result<(T, Seen)> {
        let (began, before) = (Instant::now(), self.connections());
        let done = work()?;
        let (seconds, connections) = (began.elapsed().as_secs_f64(), self.connections() - before);
        let lived = self.end()?;
        let seen = Seen {
            cpu: lived,
            connections: connections as f64 / seconds,
        };
        Ok((done, seen))
    }

    fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends the clients; returns their processor seconds for each second.
    fn end(&mut self) -> Result<f64> {
        drop(self.stop.take());
        let thread = self
            .thread
            .take()
            .context("the clients have ended before")?;
        thread
            .join()
            .map_err(|_| anyhow!("the hostile clients panicked"))?
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Its result no longer counts.
            let _ = self.end();
        }
    }
}

/// The largest segment of a repository.
///
/// # Errors
/// When there is none.
pub fn segment(repo: &Path) -> Result<ObjectName> {
    let mut files = dataset::files(&repo.join("segments"))?;
    files.sort_by_key(|path| path.metadata().map_or(0, |m| m.len()));
    let largest = files.last().context("the repository has no segment")?;
    let name = largest.strip_prefix(repo)?.to_str().context("not a name")?;
    name.parse::<ObjectName>()
        .map_err(|why| anyhow!("{name}: {why}"))
}

impl Shared {
    fn new(place: &Place, object: ObjectName) -> Shared {
        let volume = place.volume;
        let range = Request::Range {
            volume,
            object,
            offset: 0,
            len_bytes: MAX_RANGE_BYTES,
        };
        let mut much = BytesMut::from(&HELLO[..]);
        (1..=REQUESTS).for_each(|id| range.put(id, &mut much));
        let mut more = BytesMut::new();
        range.put(REQUESTS + 1, &mut more);
        let mut head = BytesMut::from(&HELLO[..]);
        let toward = Vec::new();
        Request::Head {
            volume,
            around_bytes: 0,
            known: None,
            toward,
        }
        .put(1, &mut head);
        Shared {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, place.port)),
            much: much.freeze(),
            more: more.freeze(),
            head: head.freeze(),
            ready: AtomicU32::new(0),
            connections: AtomicU64::new(0),
        }
    }

    async fn connect(&self, client: u32) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        let host = (client % ADDRESSES) as u8 + 1;
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 66, host), 0)))?;
        let stream = socket.connect(self.server).await?;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    /// One connection, to its end. Errors are the server's answer to such clients.
    async fn visit(&self, client: u32, is_ready: &mut bool) -> std::io::Result<()> {
        let mut stream = self.connect(client).await?;
        let habit = Habit::of(client);
        let first = match habit {
            Habit::ComesAndGoes => &self.head,
            Habit::NeverReads | Habit::ReadsLittle => &self.much,
        };
        stream.write_all(first).await?;
        if !std::mem::replace(is_ready, true) {
            self.ready.fetch_add(1, Ordering::Relaxed);
        }
        let mut sip = vec![0; SIP_BYTES];
        loop {
            match habit {
                Habit::NeverReads => {
                    tokio::time::sleep(ASK_PAUSE).await;
                    or_blocked(stream.try_write(&self.more))?;
                }
                Habit::ReadsLittle => {
                    tokio::time::sleep(SIP_PAUSE).await;
                    if or_blocked(stream.try_read(&mut sip))? == Some(0) {
                        return Ok(());
                    }
                }
                Habit::ComesAndGoes => {
                    stream.readable().await?;
                    return or_blocked(stream.try_read(&mut sip)).map(drop);
                }
            }
        }
    }

    async fn live(self: Arc<Shared>, client: u32) {
        let mut is_ready = false;
        loop {
            // The server ends such connections: the next one follows.
            let _ = self.visit(client, &mut is_ready).await;
            tokio::time::sleep(NEW_PAUSE).await;
        }
    }
}

/// `None` where the call would block.
fn or_blocked(done: std::io::Result<usize>) -> std::io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs the clients until `stopped`; returns their processor seconds for each second.
fn run(shared: &Arc<Shared>, stopped: oneshot::Receiver<()>) -> Result<f64> {
    let (began, before_s) = (Instant::now(), cpu::own_s());
    let tasks = LocalSet::new();
    for client in 0..CONNECTIONS {
        tasks.spawn_local(shared.clone().live(client));
    }
    // Ends when the sender is dropped.
    let _ = tasks.block_on(&runtime()?, stopped);
    drop(tasks);
    Ok((cpu::own_s() - before_s) / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::tests::{objects, served};

    #[test]
    fn each_habit_has_its_share() {
        let count = |habit| (0..CONNECTIONS).filter(|c| Habit::of(*c) == habit).count();
        assert_eq!(count(Habit::NeverReads), 50);
        assert_eq!(count(Habit::ReadsLittle), 30);
        assert_eq!(count(Habit::ComesAndGoes), 20);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn clients_come_back_and_cost_little() {
        let served = served(objects).await;
        let repo = served.dir.path().join("repo");
        let place = served.place.clone();
        let seen = tokio::task::spawn_blocking(move || {
            let crowd = Crowd::start(&place, segment(&repo)?)?;
            crowd.beside(|| {
                std::thread::sleep(Duration::from_secs(2));
                Ok(())
            })
        });
        let ((), seen) = seen.await.unwrap().unwrap();
        // Those that come and go connect some ten times in a second each.
        assert!(seen.connections > 20.0, "{seen:?}");
        assert!(seen.cpu < 0.5, "{seen:?}");
        served.server.abort();
    }
}
