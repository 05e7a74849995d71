//! What is served, picking up new heads, and the end. The connections are the workers' matter.

use std::collections::HashMap;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use wire::mirror::Volume;

use crate::mirror::bundle::HeadBundle;
use crate::mirror::error::ServeError;
use crate::mirror::http;
use crate::mirror::path_cache::PathCache;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::response_cache::ResponseCache;
use crate::net::connection::End;
use crate::net::counters::Counters;
use crate::net::limiter::ConnectionLimiter;
use crate::net::limits::Limits;
use crate::net::listener::Listen;
use crate::net::worker;

/// The id that no volume has.
const NO_VOLUME: Volume = [0; 32];

/// How long a request waits for others' answers to leave memory before it is refused.
const BUSY_WAIT: Duration = Duration::from_secs(2);
const BUSY_STEP: Duration = Duration::from_millis(5);

/// What a worker thread does with its listener.
type Work = fn(TcpListener, &Arc<Shared>, watch::Receiver<bool>);

/// A server that is bound and not yet running.
pub struct Server {
    /// One for each worker.
    listeners: Vec<(TcpListener, Work)>,
    local: SocketAddr,
    /// Further addresses of the same protocol.
    also: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

/// One volume.
pub(crate) struct Served {
    pub(crate) shelf: Arc<dyn RepositoryReader>,
    /// Its number on this server.
    pub(crate) number: u32,
    landing: RwLock<Arc<HeadBundle>>,
}

impl Served {
    fn new(shelf: Arc<dyn RepositoryReader>, number: u32) -> Served {
        let landing = HeadBundle::prepare(&*shelf, shelf.head());
        Served {
            shelf,
            number,
            landing: RwLock::new(Arc::new(landing)),
        }
    }

    /// What goes with `head`, unless that came so lately that nothing is prepared yet.
    pub(crate) fn landing(&self, head: &Bytes) -> Option<Arc<HeadBundle>> {
        let landing = self.landing.read().unwrap_or_else(PoisonError::into_inner);
        landing.is_of(head).then(|| Arc::clone(&landing))
    }

    /// Prepares anew when there is another head. Reads from the disk.
    fn prepare(&self) {
        let head = self.shelf.head();
        if self.landing(&head).is_none() {
            let landing = Arc::new(HeadBundle::prepare(&*self.shelf, head));
            *self.landing.write().unwrap_or_else(PoisonError::into_inner) = landing;
        }
    }
}

/// What all connections see.
pub(crate) struct Shared {
    shelves: HashMap<Volume, Served>,
    pub(crate) hot: ResponseCache,
    pub(crate) ways: PathCache,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    pub(crate) seats: Arc<ConnectionLimiter>,
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

    /// Notes how a connection ended.
    pub(crate) fn ended(&self, peer: SocketAddr, end: &End) {
        let counters = &self.counters;
        match end {
            End::Malformed(_) => counters.malformed.add(1),
            End::TooSlow(_) => counters.too_slow.add(1),
            End::Idle => counters.idle.add(1),
            End::Closed | End::Broken(_) | End::Stopping => {}
        }
        tracing::debug!(%peer, %end, "connection closed");
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
    /// Listens; connections wait until [`Server::run`].
    ///
    /// # Errors
    /// [`ServeError::Listen`], [`ServeError::Nothing`], [`ServeError::SameVolume`].
    pub fn listen(
        listen: impl Into<Listen>,
        shelves: Vec<(Volume, Arc<dyn RepositoryReader>)>,
        limits: Limits,
    ) -> Result<Server, ServeError> {
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
        let (listeners, local) = listen.into().open(limits.workers)?;
        let limits = limits.fit_to_system();
        let counters = Arc::new(Counters::default());
        let (most, each) = (limits.max_connections, limits.max_per_client);
        let shared = Arc::new(Shared {
            shelves: map,
            hot: ResponseCache::new(limits.hot_bytes),
            ways: PathCache::new(limits.ways_bytes),
            disk_reads: Arc::new(Semaphore::new(limits.disk_reads.max(1))),
            limits,
            seats: ConnectionLimiter::new(Arc::clone(&counters), most, each),
            counters,
            refresh: Arc::new(Notify::new()),
        });
        let worker = |listener| (listener, worker::run as Work);
        Ok(Server {
            listeners: listeners.into_iter().map(worker).collect(),
            local,
            also: Vec::new(),
            http: Vec::new(),
            shared,
        })
    }

    /// Listens at one more place.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn also(mut self, listen: impl Into<Listen>) -> Result<Server, ServeError> {
        let local = self.open(listen.into(), worker::run)?;
        self.also.push(local);
        Ok(self)
    }

    /// Serves the repositories' own layout over HTTP as well.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn also_http(mut self, listen: impl Into<Listen>) -> Result<Server, ServeError> {
        let local = self.open(listen.into(), http::run)?;
        self.http.push(local);
        Ok(self)
    }

    fn open(&mut self, listen: Listen, work: Work) -> Result<SocketAddr, ServeError> {
        let (listeners, local) = listen.open(self.shared.limits.workers)?;
        let workers = listeners.into_iter().map(|listener| (listener, work));
        self.listeners.extend(workers);
        Ok(local)
    }

    /// The first address on which HTTP is listened for, if it is.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.http.first().copied()
    }

    /// Every address on which HTTP is listened for.
    pub fn http_addrs(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Every address on which the protocol is listened for.
    pub fn local_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.local).chain(self.also.iter().copied())
    }

    /// The first address that is listened on, its port chosen by the system where 0 was asked for.
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
    /// [`Limits::grace`]. When the future is dropped, everything ends soon.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server {
            listeners, shared, ..
        } = self;
        let (stop, stopped) = watch::channel(false);
        // Nothing is sent: the channel closes when the last worker has ended.
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut refresher = JoinSet::new();
        refresher.spawn(keep_fresh(Arc::clone(&shared)));
        for (number, (listener, work)) in listeners.into_iter().enumerate() {
            let (shared, stopped, alive) = (Arc::clone(&shared), stopped.clone(), alive.clone());
            let work = move || {
                work(listener, &shared, stopped);
                drop(alive);
            };
            let thread = std::thread::Builder::new().name(format!("serve-{number}"));
            if let Err(error) = thread.spawn(work) {
                // Its listener is closed, so the others get what it would have got.
                tracing::error!(%error, "a worker cannot start");
            }
        }
        drop((stopped, alive));
        shutdown.await;
        let connections = shared.counters.connections.get();
        tracing::info!(connections, "stopping");
        stop.send_replace(true);
        ended.recv().await;
    }
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
