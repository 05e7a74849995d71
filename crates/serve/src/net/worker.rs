//! One thread that accepts plain TCP connections and serves them to their end, on a runtime of its
//! own.
//!
//! Connections never move between threads: a wake-up across threads is the larger part of what a
//! request costs when its answer lies in memory (docs/decisions/0009).
//!
//! Most clients send only one request. So the worker tries to answer the first one before it registers the
//! socket with the runtime. A client that has everything it asked for will probably leave: the worker looks
//! at its socket when the next client comes, or after [`EXPECTED_TO_LEAVE`], and makes it an ordinary
//! connection if it stays.

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
use tokio::time::{Instant, sleep_until};

use crate::net::accept::{SHORTAGE_PAUSE, finish, is_shortage, note_shortage, refusal};
use crate::net::connection::Connection;
use crate::net::end::End;
use crate::net::limiter::Full;
use crate::net::newcomer::Met;
use crate::net::peer::Peer;
use crate::net::service::{Host, Service};

/// How long a client that has everything may take to leave before the runtime watches its socket.
const EXPECTED_TO_LEAVE: Duration = Duration::from_millis(1);
/// Connections accepted in a row before the others get a turn.
const ACCEPTED_IN_A_ROW: usize = 32;

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
            // A blocking read that a slow disk holds up must not hold up the end.
            runtime.shutdown_background();
        }
        Err(error) => tracing::error!(%error, "a worker cannot start"),
    }
}

/// Accepts until `stop` asks to stop or its sender is gone; then lets connections finish.
pub(crate) async fn serve<S: Service>(
    listener: std::net::TcpListener,
    host: Arc<Host<S>>,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    // The function that replaces it is `unsafe`, for descriptors that may change; those of std never do.
    #[expect(deprecated)]
    let listener = AsyncFd::with_interest(listener, Interest::READABLE)?;
    let mut worker = Worker {
        host,
        stopped: stopped.clone(),
        connections: JoinSet::new(),
        leaving: VecDeque::new(),
        resting_until: None,
        is_short: false,
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
    finish(worker.connections, orderly, &worker.host.resources).await;
    Ok(())
}

/// A client that has everything it asked for and will probably leave.
struct Leaving<S: Service> {
    connection: Connection<S>,
    socket: OwnedFd,
    peer: Peer,
    until: Instant,
}

struct Worker<S: Service> {
    host: Arc<Host<S>>,
    stopped: watch::Receiver<bool>,
    connections: JoinSet<()>,
    /// In the order of their time.
    leaving: VecDeque<Leaving<S>>,
    /// Nothing is accepted before this.
    resting_until: Option<Instant>,
    /// The system has refused connections since one was last accepted.
    is_short: bool,
}

impl<S: Service> Worker<S> {
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
                    self.is_short = false;
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    let nobody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
                    self.admit(socket, peer.unwrap_or(nobody).into());
                }
                Err(Errno::AGAIN) => return true,
                Err(error) => {
                    self.host.resources.counters().accept_errors.add(1);
                    if !is_shortage(error) {
                        tracing::debug!(%error, "a connection was gone before it was accepted");
                        continue;
                    }
                    note_shortage(&self.host.resources, &mut self.is_short, &error);
                    self.resting_until = Some(Instant::now() + SHORTAGE_PAUSE);
                    return false;
                }
            }
        }
        false
    }

    fn admit(&mut self, socket: OwnedFd, peer: Peer) {
        let permit = match self.host.resources.limiter().take(peer) {
            Ok(permit) => permit,
            Err(full) => return self.turn_away(&socket, peer, full),
        };
        let mut connection = Connection::new(Arc::clone(&self.host), peer, permit, Instant::now());
        match connection.meet(&socket) {
            Met::End(end) => self.host.resources.ended(peer, &end),
            Met::Served => self.leaving.push_back(Leaving {
                connection,
                socket,
                peer,
                until: Instant::now() + EXPECTED_TO_LEAVE,
            }),
            Met::Silent | Met::Stays => self.stay(connection, socket, peer),
        }
    }

    /// Looks again at the clients that will probably leave.
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
                Met::End(end) => self.host.resources.ended(peer, &end),
                Met::Silent if now < until => self.leaving.push_back(Leaving {
                    connection,
                    socket,
                    peer,
                    until,
                }),
                Met::Silent | Met::Stays | Met::Served => self.stay(connection, socket, peer),
            }
        }
    }

    /// Makes it an ordinary connection.
    fn stay(&mut self, connection: Connection<S>, socket: OwnedFd, peer: Peer) {
        let mut stream = match TcpStream::from_std(socket.into()) {
            Ok(stream) => stream,
            Err(e) => return self.host.resources.ended(peer, &End::Broken(e)),
        };
        let (stopped, host) = (self.stopped.clone(), Arc::clone(&self.host));
        self.connections.spawn(async move {
            let end = connection.run(&mut stream, stopped).await;
            host.resources.ended(peer, &end);
        });
    }

    fn turn_away(&self, socket: &OwnedFd, peer: Peer, full: Full) {
        self.host.resources.turned_away(peer, full);
        // Best effort: the connection ends either way.
        let _ = rustix::io::write(socket, &refusal::<S>(full));
    }
}
