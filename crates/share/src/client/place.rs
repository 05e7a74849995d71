//! The server's blocks as a program sees them: whichever connection there is at the time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, Replica, StoreError};
use tokio::sync::watch;
use tokio::time::timeout;
use trust::{Handle, Record};

use super::connection::Line;

/// A server that has no room is asked again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for a connection; the caller holds the deadline.
async fn line(lines: &watch::Receiver<Option<Arc<dyn Line>>>) -> Option<Arc<dyn Line>> {
    let mut lines = lines.clone();
    let found = lines.wait_for(Option::is_some).await.ok()?;
    found.clone()
}

fn closed(place: &str) -> StoreError {
    StoreError::Unavailable {
        place: place.to_owned(),
        cause: "the volume was closed".to_owned(),
    }
}

/// The blocks that the server has. What it gives is verified by who reads.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) lines: watch::Receiver<Option<Arc<dyn Line>>>,
}

impl BlockStore for Place {
    fn place(&self) -> &str {
        &self.name
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let line = line(&self.lines).await.ok_or_else(|| closed(&self.name))?;
            line.store().get_many(want, around).await
        })
    }
}

impl Replica for Place {
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
    pub(super) lines: watch::Receiver<Option<Arc<dyn Line>>>,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sink({})", self.name)
    }
}

impl Sink {
    /// Does something over a connection, and over the next one when that one is lost.
    async fn over<T, F>(&self, work: impl Fn(Arc<dyn BlockSink>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut lines = self.lines.clone();
        loop {
            let line = lines.borrow_and_update().clone();
            if let Some(line) = line {
                match work(line.sink()).await {
                    Err(StoreError::Unavailable { .. }) => {}
                    done => return done,
                }
            }
            // The connection that failed is over, or the server has no room at the moment.
            let changed = timeout(AGAIN, lines.changed()).await;
            if let Ok(Err(_)) = changed {
                return Err(closed(&self.name));
            }
        }
    }
}

impl BlockSink for Sink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.over(move |sink| async move {
            sink.put(records).await?;
            sink.flush().await
        }))
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(self.over(move |sink| async move { sink.touch(handles).await }))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}
