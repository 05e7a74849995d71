//! Listening, admission of connections, picking up new heads, and the end.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use wire::frame::HELLO;
use wire::message::{ErrorCode, Volume, put_error};

use crate::connection::{Connection, End};
use crate::counters::Counters;
use crate::error::ServeError;
use crate::hot::Hot;
use crate::landing::Landing;
use crate::limits::Limits;
use crate::shelf::Shelf;

/// The id that no volume has.
const NO_VOLUME: Volume = [0; 32];
/// Connections that wait for being accepted: enough for all readers to come back at once.
const BACKLOG: u32 = 4096;
/// Pause after the system refused a connection for want of something.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// How long a request waits for others' answers to leave memory before it is refused.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_STEP: Duration = Duration::from_millis(5);

/// A server that is bound and not yet running.
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
}

/// One volume.
pub(crate) struct Served {
    pub(crate) shelf: Arc<dyn Shelf>,
    /// Its number on this server.
    pub(crate) number: u32,
    landing: RwLock<Arc<Landing>>,
}

impl Served {
    fn new(shelf: Arc<dyn Shelf>, number: u32) -> Served {
        let landing = Landing::prepare(&*shelf, shelf.head());
        Served {
            shelf,
            number,
            landing: RwLock::new(Arc::new(landing)),
        }
    }

    /// What goes with `head`, unless that came so lately that nothing is prepared yet.
    pub(crate) fn landing(&self, head: &Bytes) -> Option<Arc<Landing>> {
        let landing = self.landing.read().unwrap_or_else(PoisonError::into_inner);
        landing.is_of(head).then(|| Arc::clone(&landing))
    }

    /// Prepares anew when there is another head. Reads from the disk.
    fn prepare(&self) {
        let head = self.shelf.head();
        if self.landing(&head).is_none() {
            let landing = Arc::new(Landing::prepare(&*self.shelf, head));
            *self.landing.write().unwrap_or_else(PoisonError::into_inner) = landing;
        }
    }
}

/// What all connections see.
pub(crate) struct Shared {
    shelves: HashMap<Volume, Served>,
    pub(crate) hot: Hot,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    pub(crate) disk_reads: Arc<Semaphore>,
    refresh: Arc<Notify>,
}

impl Shared {
    pub(crate) fn shelf(&self, volume: &Volume) -> Option<&Served> {
        // Who does not know the volume's id may ask for the volume that nobody has: a server of one
        // volume then answers for it, and the id is shown to a person, not believed.
        if *volume == NO_VOLUME && self.shelves.len() == 1 {
            return self.shelves.values().next();
        }
        self.shelves.get(volume)
    }

    /// Whether slow readers keep so much in memory that others must wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.counters.held_bytes.get() > self.limits.max_held_bytes as u64
    }

    /// Waits for answers to leave memory; false when that does not help.
    pub(crate) async fn wait_for_room(&self) -> bool {
        let until = Instant::now() + BUSY_WAIT;
        while self.is_crowded() {
            if Instant::now() >= until {
                return false;
            }
            sleep(BUSY_STEP).await;
        }
        true
    }
}

/// Makes a running server look for new heads at once (on SIGHUP).
#[derive(Clone)]
pub struct Refresher(Arc<Notify>);

impl Refresher {
    /// Looks now instead of at the next tick.
    pub fn refresh(&self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Listens on `address`; connections wait until [`Server::run`].
    ///
    /// # Errors
    /// [`ServeError::Listen`], [`ServeError::Nothing`], [`ServeError::SameVolume`].
    pub fn listen(
        address: SocketAddr,
        shelves: Vec<(Volume, Arc<dyn Shelf>)>,
        limits: Limits,
    ) -> Result<Server, ServeError> {
        let listening = |source| ServeError::Listen { address, source };
        let mut map: HashMap<Volume, Served> = HashMap::new();
        for (volume, shelf) in shelves {
            let second = shelf.place().to_owned();
            let served = Served::new(shelf, map.len() as u32);
            if let Some(first) = map.insert(volume, served) {
                return Err(ServeError::SameVolume {
                    first: first.shelf.place().to_owned(),
                    second,
                });
            }
        }
        if map.is_empty() {
            return Err(ServeError::Nothing);
        }
        let listener = bind(address).map_err(listening)?;
        let local = listener.local_addr().map_err(listening)?;
        let limits = limits.fit_to_system();
        let shared = Arc::new(Shared {
            shelves: map,
            hot: Hot::new(limits.hot_bytes),
            disk_reads: Arc::new(Semaphore::new(limits.disk_reads.max(1))),
            limits,
            counters: Arc::new(Counters::default()),
            refresh: Arc::new(Notify::new()),
        });
        Ok(Server {
            listener,
            local,
            shared,
        })
    }

    /// The address that is listened on, its port chosen by the system where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What happens, counted.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// A handle to make it look for new heads.
    pub fn refresher(&self) -> Refresher {
        Refresher(Arc::clone(&self.shared.refresh))
    }

    /// Serves until `shutdown` completes, then lets answers under way finish for
    /// [`Limits::grace`]. When the future is dropped, everything ends at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server {
            listener, shared, ..
        } = self;
        let (stop, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut refresher = JoinSet::new();
        refresher.spawn(keep_fresh(Arc::clone(&shared)));
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = shutdown.as_mut() => break,
                accepted = accept(&listener, &shared) => if let Some((stream, peer)) = accepted {
                    admit(&shared, &mut connections, stream, peer, &stopped);
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(listener);
        drop(stopped);
        tracing::info!(connections = connections.len(), "stopping");
        stop.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        if timeout(shared.limits.grace, all).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "cut off: the grace is over"
            );
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The next connection. A shortage is waited out: it passes when connections close.
async fn accept(listener: &TcpListener, shared: &Shared) -> Option<(TcpStream, SocketAddr)> {
    match listener.accept().await {
        Ok(accepted) => Some(accepted),
        Err(e) => {
            shared.counters.accept_errors.add(1);
            let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
            if shortage
                .iter()
                .any(|s| Some(s.raw_os_error()) == e.raw_os_error())
            {
                tracing::warn!(error = %e, "cannot accept connections now");
                sleep(SHORTAGE_PAUSE).await;
            } else {
                tracing::debug!(error = %e, "a connection was gone before it was accepted");
            }
            None
        }
    }
}

fn admit(
    shared: &Arc<Shared>,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
    stopped: &watch::Receiver<bool>,
) {
    let counters = &shared.counters;
    if counters.connections.get() >= shared.limits.max_connections as u64 {
        // Said once a thousand times: whoever floods connections must not flood the log too.
        if counters.turned_away.get().is_multiple_of(1000) {
            let max = shared.limits.max_connections;
            tracing::warn!(max_connections = max, %peer, "too many connections, turned away");
        }
        counters.turned_away.add(1);
        let mut parting = HELLO.to_vec();
        put_error(&mut parting, 0, ErrorCode::Busy, "too many connections");
        // Best effort: the connection ends either way.
        let _ = stream.try_write(&parting);
        return;
    }
    counters.connections.add(1);
    counters.accepted.add(1);
    // Answers leave whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let connection = Connection::new(Arc::clone(shared), stream);
    let (stopped, shared) = (stopped.clone(), Arc::clone(shared));
    connections.spawn(async move {
        let end = connection.run(stopped).await;
        let counters = &shared.counters;
        match &end {
            End::Malformed(_) => counters.malformed.add(1),
            End::TooSlow(_) => counters.too_slow.add(1),
            End::Idle => counters.idle.add(1),
            End::Closed | End::Broken(_) | End::Stopping => {}
        }
        tracing::debug!(%peer, %end, "connection closed");
    });
}

/// Looks for new heads for ever: every [`Limits::refresh`], and when told.
async fn keep_fresh(shared: Arc<Shared>) {
    let mut clock = interval(shared.limits.refresh.max(Duration::from_millis(1)));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            () = shared.refresh.notified() => {}
        }
        let looking = Arc::clone(&shared);
        let look: JoinHandle<()> = tokio::task::spawn_blocking(move || look_once(&looking));
        if look.await.is_err() {
            return;
        }
    }
}

fn look_once(shared: &Shared) {
    for served in shared.shelves.values() {
        let shelf = &served.shelf;
        let refreshed = shelf.refresh();
        served.prepare();
        match refreshed {
            Ok(false) => {}
            Ok(true) => {
                shared.counters.new_heads.add(1);
                tracing::info!(place = shelf.place(), "serves a new version");
            }
            Err(error) => {
                shared.counters.refresh_errors.add(1);
                tracing::warn!(place = shelf.place(), %error, "cannot read the head; the old one stays");
            }
        }
    }
}
