//! TLS over any stream, by rustls.

use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{Duration, Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::net::accept::Handler;
use crate::net::connection::Connection;
use crate::net::end::End;
use crate::net::limiter::{Full, Permit};
use crate::net::peer::Peer;
use crate::net::run::Stream;
use crate::net::service::{Host, Service};

/// How long the server tries to tell the client that the session is over.
const GOODBYE: Duration = Duration::from_secs(1);

/// Serves connections inside a TLS session.
pub(crate) struct Tls<S> {
    host: Arc<Host<S>>,
    acceptor: TlsAcceptor,
}

impl<S> Tls<S> {
    pub(crate) fn new(host: Arc<Host<S>>, config: Arc<ServerConfig>) -> Tls<S> {
        let acceptor = TlsAcceptor::from(config);
        Tls { host, acceptor }
    }
}

impl<S> Clone for Tls<S> {
    fn clone(&self) -> Tls<S> {
        Tls {
            host: Arc::clone(&self.host),
            acceptor: self.acceptor.clone(),
        }
    }
}

impl<S: Service, T: Stream> Handler<T> for Tls<S> {
    async fn serve(self, stream: T, peer: Peer, permit: Permit, stop: watch::Receiver<bool>) {
        let resources = &self.host.resources;
        let since = Instant::now();
        let until = since + resources.limits().hello_timeout;
        let mut told = stop.clone();
        let handshake = tokio::select! {
            handshake = timeout_at(until, self.acceptor.accept(stream)) => handshake,
            _ = told.wait_for(|stop| *stop) => return resources.ended(peer, &End::Stopping),
        };
        let mut stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return resources.ended(peer, &End::Broken(error)),
            Err(_) => {
                let end = End::TooSlow("does not finish the TLS handshake");
                return resources.ended(peer, &end);
            }
        };
        let exporter = match wire::session::tls::exporter(stream.get_ref().1) {
            Ok(exporter) => exporter,
            Err(why) => return resources.ended(peer, &End::Broken(io::Error::other(why))),
        };
        let connection = Connection::new(Arc::clone(&self.host), peer, permit, since);
        let connection = connection.inside(exporter);
        let end = connection.run(&mut stream, stop).await;
        resources.ended(peer, &end);
        // Best effort: without it the client cannot distinguish the end from a broken connection.
        let _ = timeout(GOODBYE, stream.shutdown()).await;
    }

    /// Nothing can be sent before the handshake.
    fn refusal(&self, _full: Full) -> Vec<u8> {
        Vec::new()
    }
}
