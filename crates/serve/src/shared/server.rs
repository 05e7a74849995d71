//! The server of shared volumes on its addresses, inside TLS with the orderer's key. All volumes have the same orderer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use share_server::host::Host;
use tokio_rustls::rustls::ServerConfig;
use trust::key::SecretKey;
use wire::session::tls;

use crate::net::{self, Limits, Listen, ListenError, Resources};
use crate::shared::service::SharedService;

/// Limits that suit the server of a shared volume: its clients stay connected, and have more requests under way than
/// readers of a mirror.
pub fn limits() -> Limits {
    Limits {
        max_in_flight: 64,
        idle_timeout: Duration::from_secs(120),
        watch_timeout: Duration::from_secs(120),
        answer_timeout: Duration::from_secs(180),
        ..Limits::default()
    }
}

/// The TLS library does not take the key.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot use the orderer's key: {0}")]
pub struct TlsError(String);

/// A server that may listen and does not serve yet.
pub struct Server {
    net: net::Server<SharedService>,
    tls: Arc<ServerConfig>,
}

impl Server {
    /// A server of these hosts without addresses. `orderer`: the key that all of them order with.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(
        hosts: impl IntoIterator<Item = Arc<Host>>,
        orderer: &SecretKey,
        limits: Limits,
    ) -> Result<Server, TlsError> {
        let service = SharedService::new(hosts);
        Ok(Server {
            net: net::Server::new(service, Resources::new(limits)),
            tls: tls::server(orderer).map_err(TlsError)?,
        })
    }

    /// Listens at an address; returns it, its port chosen by the system where 0 was asked for. Clients wait until
    /// [`Server::run`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, at: impl Into<Listen>) -> Result<SocketAddr, ListenError> {
        self.net.tls(at, Arc::clone(&self.tls))
    }

    /// Limits and counters.
    pub fn resources(&self) -> &Arc<Resources> {
        self.net.resources()
    }

    /// Serves until `shutdown` completes, then lets answers under way finish for [`Limits::grace`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        self.net.run(shutdown).await;
    }
}
