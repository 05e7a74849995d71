//! One thread that accepts connections and serves them to their end, on a runtime of its own.
//!
//! Connections never move between threads: no wake-up crosses one, which is what a request costs
//! most where its answer lies in memory (docs/decisions/0009). Blocking reads go to threads of the
//! runtime's own, counted for all workers together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wire::frame::HELLO;
use wire::message::{ErrorCode, put_error};

use crate::connection::{Connection, End};
use crate::server::Shared;

/// Pause after the system refused a connection for want of something.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Serves what comes to `listener` until told to stop, or until whoever could tell is gone.
pub(crate) fn run(
    listener: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: watch::Receiver<bool>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            if let Err(error) = runtime.block_on(serve(listener, shared, stopped)) {
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
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let orderly = {
        let mut told = stopped.clone();
        let mut stop = std::pin::pin!(async move { told.wait_for(|stop| *stop).await.is_ok() });
        loop {
            tokio::select! {
                orderly = stop.as_mut() => break orderly,
                accepted = accept(&listener, shared) => if let Some((stream, peer)) = accepted {
                    admit(shared, &mut connections, stream, peer, &stopped);
                },
                Some(_) = connections.join_next() => {}
            }
        }
    };
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if orderly && timeout(shared.limits.grace, all).await.is_err() {
        let connections = connections.len();
        tracing::warn!(connections, "cut off: the grace is over");
    }
    Ok(())
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
