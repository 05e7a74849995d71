//! A mirror on its addresses, over the bulla protocol and HTTP; it looks for new heads as long as it
//! runs.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use store::Repository;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use trust::statement::VolumeId;

use crate::mirror::counters::Counters;
use crate::mirror::error::ServeError;
use crate::mirror::http::Http;
use crate::mirror::options::Options;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::repository;
use crate::mirror::service::MirrorService;
use crate::mirror::volumes::Mirror;
use crate::net::{self, Limits, Listen, Resources};

/// A mirror that is listening and does not serve yet.
pub struct Server {
    net: net::Server<MirrorService>,
    mirror: Arc<Mirror>,
    refresh: Arc<Notify>,
    refresh_every: Duration,
    local: SocketAddr,
    /// Further addresses of the bulla protocol.
    also: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
}

/// Makes a running server look for new heads at once (on SIGHUP).
#[derive(Clone)]
pub struct Refresher(Arc<Notify>);

impl Refresher {
    /// Looks now instead of at the next interval.
    pub fn refresh(&self) {
        self.0.notify_one();
    }
}

impl Server {
    /// Listens for readers of the volumes that these repositories hold.
    ///
    /// # Errors
    /// As [`Server::listen`]; [`ServeError::Unpublished`], [`ServeError::Head`].
    pub fn bind(
        listen: impl Into<Listen>,
        repositories: Vec<Repository>,
        limits: Limits,
        options: Options,
    ) -> Result<Server, ServeError> {
        let mut readers: Vec<(VolumeId, Arc<dyn RepositoryReader>)> = Vec::new();
        for repository in repositories {
            readers.push((repository::volume(&repository)?, Arc::new(repository)));
        }
        Server::listen(listen, readers, limits, options)
    }

    /// Listens; clients wait until [`Server::run`].
    ///
    /// # Errors
    /// [`ServeError::Listen`], [`ServeError::Nothing`], [`ServeError::SameVolume`].
    pub fn listen(
        listen: impl Into<Listen>,
        readers: Vec<(VolumeId, Arc<dyn RepositoryReader>)>,
        limits: Limits,
        options: Options,
    ) -> Result<Server, ServeError> {
        let resources = Resources::new(limits);
        let mirror = Arc::new(Mirror::new(readers, &options, Arc::clone(&resources))?);
        let mut net = net::Server::new(MirrorService(Arc::clone(&mirror)), resources);
        let local = net.tcp(listen)?;
        Ok(Server {
            net,
            mirror,
            refresh: Arc::new(Notify::new()),
            refresh_every: options.refresh,
            local,
            also: Vec::new(),
            http: Vec::new(),
        })
    }

    /// Listens at one more place.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn also(mut self, listen: impl Into<Listen>) -> Result<Server, ServeError> {
        let local = self.net.tcp(listen)?;
        self.also.push(local);
        Ok(self)
    }

    /// Serves the repositories' own layout over HTTP as well.
    ///
    /// # Errors
    /// [`ServeError::Listen`].
    pub fn also_http(mut self, listen: impl Into<Listen>) -> Result<Server, ServeError> {
        let http = Http::new(Arc::clone(&self.mirror));
        let local = self.net.tcp_with(listen, &http)?;
        self.http.push(local);
        Ok(self)
    }

    /// Every address that serves HTTP.
    pub fn http_addrs(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Every address that serves the bulla protocol.
    pub fn local_addrs(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.local).chain(self.also.iter().copied())
    }

    /// The first address of the bulla protocol, its port chosen by the system where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The counters.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.mirror.counters)
    }

    /// A handle that makes the server look for new heads.
    pub fn refresher(&self) -> Refresher {
        Refresher(Arc::clone(&self.refresh))
    }

    /// Serves until `shutdown` completes, then lets answers under way finish for [`Limits::grace`].
    /// When the future is dropped, everything ends soon.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut refresher = JoinSet::new();
        refresher.spawn(keep_fresh(self.mirror, self.refresh, self.refresh_every));
        self.net.run(shutdown).await;
    }
}

/// Looks for new heads at each interval and when notified, until it is dropped.
async fn keep_fresh(mirror: Arc<Mirror>, now: Arc<Notify>, every: Duration) {
    let mut clock = interval(every.max(Duration::from_millis(1)));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            () = now.notified() => {}
        }
        let mirror = Arc::clone(&mirror);
        let look = tokio::task::spawn_blocking(move || mirror.refresh());
        if look.await.is_err() {
            return;
        }
    }
}
