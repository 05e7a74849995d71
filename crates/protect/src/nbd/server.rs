//! The server: accepts clients up to a number, tells newcomers beyond it why they are refused, and stops cleanly.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::address::{Address, ListenError, Listener, Stream};
use super::client;
use super::in_flight::InFlight;
use super::service::{Limits, Service};
use crate::Block;

/// Connections that are told why they are refused. Further ones are closed at once.
const REFUSALS: usize = 4;
/// How long accepting pauses when the system has no more descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
/// How long connections may take to notice that they were cut off.
const CUT_OFF: Duration = Duration::from_secs(1);

/// What happened since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections now.
    pub clients: usize,
    /// Connections so far, without those that were refused.
    pub accepted: u64,
    /// Connections that were refused because there were too many.
    pub refused: u64,
    /// Connections that were cut off, because the client broke the protocol or was too slow.
    pub cut_off: u64,
}

/// How the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Every request in flight was answered.
    Cleanly,
    /// So many connections were cut off, because their requests or replies took too long.
    CutOff(usize),
}

/// A running server. Dropping it cuts all connections off; [`stop`](Server::stop) waits for their requests.
pub struct Server {
    address: Address,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    accepting: Option<JoinHandle<()>>,
}

/// What the server's threads know.
struct Shared {
    service: Service,
    clients: Mutex<Clients>,
    /// A client has gone.
    gone: Condvar,
    accepted: AtomicU64,
    refused: AtomicU64,
    cut_off: AtomicU64,
}

#[derive(Default)]
struct Clients {
    next: u64,
    /// By number; whether it is one of those that are refused.
    connected: HashMap<u64, (Arc<InFlight>, bool)>,
}

impl Clients {
    fn count(&self, is_refused: bool) -> usize {
        let all = self.connected.values();
        all.filter(|(_, refused)| *refused == is_refused).count()
    }
}

impl Server {
    /// Listens, and shows `block` to clients that ask for the export `name`. Clients that give no name ask for the empty
    /// one.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start(
        address: &Address,
        block: Arc<dyn Block>,
        name: &str,
        limits: Limits,
    ) -> Result<Server, ListenError> {
        let failed = |source| ListenError::Io {
            address: address.clone(),
            source,
        };
        let listener = Arc::new(Listener::bind(address)?);
        let address = listener.address().map_err(failed)?;
        if let Address::Tcp(tcp) = &address
            && !tcp.ip().is_loopback()
        {
            tracing::warn!(
                "{tcp}: everybody who reaches this address can read and write the device"
            );
        }
        let shared = Arc::new(Shared {
            service: Service::new(block, name, limits),
            clients: Mutex::default(),
            gone: Condvar::new(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
        });
        let accepting = {
            let (shared, listener) = (shared.clone(), listener.clone());
            let builder = thread::Builder::new().name("nbd-accept".to_owned());
            builder.spawn(move || accept(&shared, &listener))
        };
        Ok(Server {
            accepting: Some(accepting.map_err(failed)?),
            address,
            shared,
            listener,
        })
    }

    /// Where it listens, with the port that was chosen.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        Totals {
            clients: self.shared.lock().count(false),
            accepted: self.shared.accepted.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            cut_off: self.shared.cut_off.load(Ordering::Relaxed),
        }
    }

    /// Accepts nobody any more, takes no more requests, waits until those in flight are answered, and closes the
    /// connections. Returns at the latest a second after the time for this; calls of the device that still run then end
    /// on their own.
    pub fn stop(mut self) -> Stopped {
        self.refuse_more();
        let deadline = Instant::now() + self.shared.service.limits.stop;
        let left = self.shared.wait_for_clients(deadline);
        if left == 0 {
            return Stopped::Cleanly;
        }
        self.cut_all_off();
        self.shared.wait_for_clients(Instant::now() + CUT_OFF);
        Stopped::CutOff(left)
    }

    fn refuse_more(&mut self) {
        self.shared.service.stop();
        self.listener.stop();
        if let Some(accepting) = self.accepting.take()
            && accepting.join().is_err()
        {
            tracing::error!("the thread that accepts nbd clients has panicked");
        }
        for (client, _) in self.shared.lock().connected.values() {
            client.stream().shutdown(Shutdown::Read);
        }
    }

    fn cut_all_off(&self) {
        for (client, _) in self.shared.lock().connected.values() {
            client.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.refuse_more();
        self.cut_all_off();
        self.shared.service.readers.stop();
        self.shared.service.writers.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many are left at the deadline.
    fn wait_for_clients(&self, deadline: Instant) -> usize {
        let clients = self.lock();
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .gone
            .wait_timeout_while(clients, left, |clients| !clients.connected.is_empty());
        let (clients, _) = waited.unwrap_or_else(PoisonError::into_inner);
        clients.connected.len()
    }

    /// Takes the client in, as one that is served or as one that is refused. `None` if there are too many of both.
    fn enter(&self, stream: Stream) -> Option<(u64, Arc<InFlight>, bool)> {
        let mut clients = self.lock();
        let is_refused = clients.count(false) >= self.service.limits.clients;
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
            if clients.count(true) >= REFUSALS {
                return None;
            }
        } else {
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let share_bytes = usize::try_from(self.service.limits.payload_bytes).unwrap_or(usize::MAX);
        let spare = self.service.spare.clone();
        let client = InFlight::new(stream, self.service.limits.requests, share_bytes, spare);
        let number = clients.next;
        clients.next += 1;
        clients
            .connected
            .insert(number, (client.clone(), is_refused));
        Some((number, client, is_refused))
    }
}

fn accept(shared: &Arc<Shared>, listener: &Listener) {
    while !shared.service.is_stopping() {
        match listener.accept() {
            Ok(stream) => welcome(shared, stream),
            Err(_) if shared.service.is_stopping() => return,
            Err(error) => {
                tracing::warn!(%error, "cannot accept an nbd client");
                thread::sleep(PAUSE);
            }
        }
    }
}

fn welcome(shared: &Arc<Shared>, stream: Stream) {
    let Some((number, client, is_refused)) = shared.enter(stream) else {
        tracing::warn!("an nbd client was refused: too many clients");
        return;
    };
    let leaving = Leaving(shared.clone(), number);
    let builder = thread::Builder::new().name("nbd-client".to_owned());
    let started = builder.spawn(move || {
        let shared = &leaving.0;
        let refusal = is_refused.then_some("this server has as many clients as it allows");
        if let Some(reason) = refusal {
            tracing::warn!("an nbd client is refused: {reason}");
        }
        if let Err(violation) = client::serve(&client, &shared.service, refusal) {
            shared.cut_off.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("an nbd client was cut off: {violation}");
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "cannot start a thread for an nbd client");
    }
}

/// Counts a client out, also when its thread panics or cannot be started.
struct Leaving(Arc<Shared>, u64);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.lock().connected.remove(&self.1);
        self.0.gone.notify_all();
    }
}
