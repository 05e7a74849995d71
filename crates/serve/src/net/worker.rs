//! One thread that accepts connections and serves them to their end, on a runtime of its own.
//!
//! Connections never move between threads: no wake-up crosses one, which is what a request costs
//! most where its answer lies in memory (docs/decisions/0009). Blocking reads go to threads of the
//! runtime's own, counted for all workers together.
//!
//! A newcomer's first request mostly is its last. So it is tried at once, before the runtime is told
//! of the socket; and whoever has got all that it said it was going to read is expected to leave:
//! its socket is looked at when the next one comes, or after [`EXPECTED_TO_LEAVE`], and becomes an
//! ordinary connection if it stays.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use wire::frame::HELLO;
use wire::refusal::{ErrorCode, put_error};

use crate::mirror::server::Shared;
use crate::net::connection::{Connection, End, Met};
use crate::net::limiter::Full;

/// Pause after the system refused a connection for want of something.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// How long a client that has got all may take to leave before its socket is watched.
const EXPECTED_TO_LEAVE: Duration = Duration::from_millis(1);
/// Connections accepted in a row before the others get a turn.
const ACCEPTED_IN_A_ROW: usize = 32;

/// Serves what comes to `listener` until told to stop, or until whoever could tell is gone.
pub(crate) fn run(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: watch::Receiver<bool>,
) {
    on_this_thread(serve(listener, shared, stopped));
}

/// Runs a worker's work to its end on a runtime of its own.
pub(crate) fn on_this_thread(work: impl Future<Output = std::io::Result<()>>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            if let Err(error) = runtime.block_on(work) {
                tracing::error!(%error, "a worker cannot listen");
            }
            // A read that a slow disk holds up holds up nobody else.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "a worker cannot start"),
    }
}

async fn serve(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    // What has taken its place is unsafe, for descriptors that change under it; std's never do.
    #[expect(deprecated)]
    let listener = AsyncFd::with_interest(listener, Interest::READABLE)?;
    let mut worker = Worker {
        shared: Arc::clone(shared),
        stopped: stopped.clone(),
        connections: JoinSet::new(),
        leaving: VecDeque::new(),
        resting_until: None,
        short: false,
    };
    let orderly = {
        let mut told = stopped;
        let mut stop = pin!(async move { told.wait_for(|stop| *stop).await.is_ok() });
        let mut clock = pin!(sleep_until(Instant::now()));
        loop {
            let next = worker.next_look();
            if let Some(next) = next
                && clock.deadline() != next
            {
                clock.as_mut().reset(next);
            }
            tokio::select! {
                orderly = stop.as_mut() => break orderly,
                ready = listener.readable(), if worker.resting_until.is_none() => {
                    let mut ready = ready?;
                    let all = worker.accept_some(listener.get_ref());
                    if all {
                        ready.clear_ready();
                    }
                    worker.see_off();
                    if !all {
                        tokio::task::yield_now().await;
                    }
                }
                () = clock.as_mut(), if next.is_some() => worker.see_off(),
                Some(_) = worker.connections.join_next() => {}
            }
        }
    };
    drop(listener);
    worker.leaving.clear();
    let mut connections = worker.connections;
    let all = async { while connections.join_next().await.is_some() {} };
    if orderly && timeout(shared.limits.grace, all).await.is_err() {
        let connections = connections.len();
        tracing::warn!(connections, "cut off: the grace is over");
    }
    Ok(())
}

/// Somebody who has got all and is expected to leave.
struct Leaving {
    connection: Connection,
    socket: OwnedFd,
    peer: SocketAddr,
    until: Instant,
}

struct Worker {
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
    connections: JoinSet<()>,
    /// In the order of their time.
    leaving: VecDeque<Leaving>,
    /// Nothing is accepted before this.
    resting_until: Option<Instant>,
    /// The system has refused connections since one was last accepted.
    short: bool,
}

impl Worker {
    /// When to look again without being woken.
    fn next_look(&self) -> Option<Instant> {
        let leaving = self.leaving.front().map(|first| first.until);
        leaving.into_iter().chain(self.resting_until).min()
    }

    /// Accepts what waits; true when nothing waits any more.
    fn accept_some(&mut self, listener: &std::net::TcpListener) -> bool {
        for _ in 0..ACCEPTED_IN_A_ROW {
            match acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((socket, peer)) => {
                    self.short = false;
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
                    self.admit(socket, peer.unwrap_or(nobody));
                }
                Err(Errno::AGAIN) => return true,
                Err(error) => {
                    self.shared.counters.accept_errors.add(1);
                    if !matches!(
                        error,
                        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
                    ) {
                        tracing::debug!(%error, "a connection was gone before it was accepted");
                        continue;
                    }
                    // It passes when connections close. Said once, however long it lasts.
                    if !std::mem::replace(&mut self.short, true) {
                        self.shared.counters.shortages.add(1);
                        tracing::warn!(%error, "cannot accept connections now");
                    }
                    self.resting_until = Some(Instant::now() + SHORTAGE_PAUSE);
                    return false;
                }
            }
        }
        false
    }

    fn admit(&mut self, socket: OwnedFd, peer: SocketAddr) {
        let seat = match self.shared.seats.take(peer.ip()) {
            Ok(seat) => seat,
            Err(full) => return self.turn_away(&socket, peer, full),
        };
        let mut connection = Connection::new(Arc::clone(&self.shared), seat);
        match connection.meet(&socket) {
            Met::End(end) => self.shared.ended(peer, &end),
            Met::HasAll => self.leaving.push_back(Leaving {
                connection,
                socket,
                peer,
                until: Instant::now() + EXPECTED_TO_LEAVE,
            }),
            Met::Silent | Met::Stays => self.stay(connection, socket, peer),
        }
    }

    /// Looks who has left of those who were expected to.
    fn see_off(&mut self) {
        if self
            .resting_until
            .is_some_and(|until| Instant::now() >= until)
        {
            self.resting_until = None;
        }
        let now = Instant::now();
        for _ in 0..self.leaving.len() {
            let Some(one) = self.leaving.pop_front() else {
                return;
            };
            let Leaving {
                mut connection,
                socket,
                peer,
                until,
            } = one;
            match connection.meet(&socket) {
                Met::End(end) => self.shared.ended(peer, &end),
                Met::Silent if now < until => self.leaving.push_back(Leaving {
                    connection,
                    socket,
                    peer,
                    until,
                }),
                Met::Silent | Met::Stays | Met::HasAll => self.stay(connection, socket, peer),
            }
        }
    }

    /// An ordinary connection from now on.
    fn stay(&mut self, connection: Connection, socket: OwnedFd, peer: SocketAddr) {
        let stream = match TcpStream::from_std(socket.into()) {
            Ok(stream) => stream,
            Err(e) => return self.shared.ended(peer, &End::Broken(e)),
        };
        let (stopped, shared) = (self.stopped.clone(), Arc::clone(&self.shared));
        self.connections.spawn(async move {
            let end = connection.run(stream, stopped).await;
            shared.ended(peer, &end);
        });
    }

    fn turn_away(&self, socket: &OwnedFd, peer: SocketAddr, full: Full) {
        let counters = &self.shared.counters;
        // Said once a thousand times: whoever floods connections must not flood the log too.
        if counters.turned_away.get().is_multiple_of(1000) {
            let limits = &self.shared.limits;
            match full {
                Full::All => {
                    let max = limits.max_connections;
                    tracing::warn!(max_connections = max, %peer, "too many connections, turned away");
                }
                Full::Client => {
                    let max = limits.max_per_client;
                    tracing::warn!(max_per_client = max, %peer, "too many connections of one client, turned away");
                }
            }
        }
        counters.turned_away.add(1);
        let mut parting = HELLO.to_vec();
        let text = match full {
            Full::All => "too many connections",
            Full::Client => "too many connections of yours",
        };
        put_error(&mut parting, 0, ErrorCode::BUSY, text);
        // Best effort: the connection ends either way.
        let _ = rustix::io::write(socket, &parting);
    }
}
