//! A server of one service: its listeners, its threads, and its shutdown.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_rustls::rustls::ServerConfig;

use crate::net::accept::{self, Handler, Incoming, Plain};
use crate::net::listener::{Listen, ListenError};
use crate::net::resources::Resources;
use crate::net::service::{Host, Service};
use crate::net::tls::Tls;
use crate::net::worker;

/// The work of a thread, until the channel asks it to stop.
type Work = Box<dyn FnOnce(watch::Receiver<bool>) + Send>;

/// A server that may already listen but does not serve yet. All its listeners share one service and its
/// resources.
pub struct Server<S> {
    host: Arc<Host<S>>,
    threads: Vec<Work>,
}

impl<S: Service> Server<S> {
    /// A server without listeners.
    pub fn new(service: S, resources: Arc<Resources>) -> Server<S> {
        Server {
            host: Arc::new(Host { service, resources }),
            threads: Vec::new(),
        }
    }

    /// Its service.
    pub fn service(&self) -> &S {
        &self.host.service
    }

    /// Its resources.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.host.resources
    }

    /// Listens for plain TCP; returns the address, its port chosen by the system where 0 was asked
    /// for. Clients wait in the socket's queue until [`Server::run`].
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn tcp(&mut self, listen: impl Into<Listen>) -> Result<SocketAddr, ListenError> {
        let (listeners, local) = listen.into().open(self.workers())?;
        for listener in listeners {
            let host = Arc::clone(&self.host);
            self.threads.push(Box::new(move |stop| {
                worker::on_this_thread(worker::serve(listener, host, stop));
            }));
        }
        Ok(local)
    }

    /// Listens for TLS over TCP.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn tls(
        &mut self,
        listen: impl Into<Listen>,
        config: Arc<ServerConfig>,
    ) -> Result<SocketAddr, ListenError> {
        let tls = Tls::new(Arc::clone(&self.host), config);
        self.tcp_with(listen, &tls)
    }

    /// Serves the connections to a Unix socket, on one thread. The socket's directory and mode decide
    /// which users may connect; a limit per client counts by user.
    pub fn unix(&mut self, listener: UnixListener) {
        let plain = Plain(Arc::clone(&self.host));
        let open = move || {
            listener.set_nonblocking(true)?;
            tokio::net::UnixListener::from_std(listener)
        };
        self.thread(open, plain);
    }

    /// Listens for TCP connections of any protocol, within the same limits.
    pub(crate) fn tcp_with(
        &mut self,
        listen: impl Into<Listen>,
        handler: &impl Handler<tokio::net::TcpStream>,
    ) -> Result<SocketAddr, ListenError> {
        let (listeners, local) = listen.into().open(self.workers())?;
        for listener in listeners {
            let open = move || tokio::net::TcpListener::from_std(listener);
            self.thread(open, handler.clone());
        }
        Ok(local)
    }

    /// Adds a thread that accepts from the listener that `open` makes in the thread's runtime.
    fn thread<I: Incoming>(
        &mut self,
        open: impl FnOnce() -> io::Result<I> + Send + 'static,
        handler: impl Handler<I::Stream>,
    ) {
        let resources = Arc::clone(&self.host.resources);
        self.threads.push(Box::new(move |stop| {
            worker::on_this_thread(async move {
                accept::serve(open()?, handler, resources, stop).await;
                Ok(())
            });
        }));
    }

    fn workers(&self) -> usize {
        self.host.resources.limits().workers
    }

    /// Serves until `shutdown` completes, then lets answers under way finish for
    /// [`Limits::grace`](crate::net::Limits::grace). When the future is dropped, everything ends
    /// soon.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        // Nothing is sent: the channel closes when the last thread has ended.
        let (alive, mut ended) = mpsc::channel::<()>(1);
        for (number, work) in self.threads.into_iter().enumerate() {
            let (stopped, alive) = (stopped.clone(), alive.clone());
            let work = move || {
                work(stopped);
                drop(alive);
            };
            let thread = std::thread::Builder::new().name(format!("serve-{number}"));
            if let Err(error) = thread.spawn(work) {
                // Its listener is closed, so the others get its connections.
                tracing::error!(%error, "a worker cannot start");
            }
        }
        drop((stopped, alive));
        shutdown.await;
        let connections = self.host.resources.counters().connections.get();
        tracing::info!(connections, "stopping");
        stop.send_replace(true);
        ended.recv().await;
    }
}
