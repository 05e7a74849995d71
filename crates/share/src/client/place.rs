//! The server's blocks as a program sees them: whichever connection there is at the time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, Replica, StoreError};
use tokio::sync::watch;
use tokio::time::timeout;
use trust::{Handle, Record};

use super::connection::Stores;

/// A server that has no room is asked again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Does something over a connection, and over the next one when that one is lost. The caller holds the deadline.
async fn over<T, F>(
    lines: &watch::Receiver<Option<Arc<dyn Stores>>>,
    name: &str,
    work: impl Fn(Arc<dyn Stores>) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut lines = lines.clone();
    loop {
        let line = lines.borrow_and_update().clone();
        if let Some(line) = line {
            match work(line).await {
                Err(StoreError::Unavailable { .. }) => {}
                done => return done,
            }
        }
        // The connection that failed is over, or the server has no room at the moment.
        let changed = timeout(AGAIN, lines.changed()).await;
        if let Ok(Err(_)) = changed {
            return Err(closed(name));
        }
    }
}

fn closed(place: &str) -> StoreError {
    StoreError::Unavailable {
        place: place.to_owned(),
        cause: "the volume was closed".to_owned(),
    }
}

/// The blocks that the server has. What it gives is verified by who reads.
pub(super) struct ServerBlocks {
    pub(super) name: String,
    pub(super) lines: watch::Receiver<Option<Arc<dyn Stores>>>,
}

impl BlockStore for ServerBlocks {
    fn place(&self) -> &str {
        &self.name
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let get =
            move |line: Arc<dyn Stores>| async move { line.store().get_many(want, around).await };
        Box::pin(over(&self.lines, &self.name, get))
    }
}

impl Replica for ServerBlocks {
    /// A shared volume has a log, and no head.
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async {
            Err(StoreError::NoVolume {
                place: self.name.clone(),
            })
        })
    }
}

/// Takes blocks that calls name afterwards. A block is durable at the server when `put` returns. When the connection
/// is lost meanwhile, the blocks are put again over the next one.
#[derive(Clone)]
pub struct Sink {
    pub(super) name: Arc<str>,
    pub(super) lines: watch::Receiver<Option<Arc<dyn Stores>>>,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sink({})", self.name)
    }
}

impl BlockSink for Sink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        let put = move |line: Arc<dyn Stores>| async move {
            let sink = line.sink();
            sink.put(records).await?;
            sink.flush().await
        };
        Box::pin(over(&self.lines, &self.name, put))
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        let touch = move |line: Arc<dyn Stores>| async move { line.sink().touch(handles).await };
        Box::pin(over(&self.lines, &self.name, touch))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}
