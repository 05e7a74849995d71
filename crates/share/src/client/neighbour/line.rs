//! Blocks over the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store::{BlockSink, BlockStore, BoxFuture, StoreError};
use tokio::sync::{Semaphore, mpsc, oneshot};
use trust::{Handle, Record};

use super::host::parts;
use crate::client::connection::Stores;
use crate::client::local::{BLOCKS_UNDER_WAY, MAX_HANDLES, RECORDS_BYTES, Want};

/// Numbers of requests for blocks begin here; those of calls are below.
const FIRST: u64 = 1 << 62;

/// What came of a request for blocks: those of `Get`, and absent ones for `Touch`.
pub(super) type Got = Result<(Vec<Record>, Vec<Handle>), StoreError>;

/// A request for blocks.
#[derive(Debug)]
pub(super) enum Op {
    Begin {
        id: u64,
        want: Want,
        answer: oneshot::Sender<Got>,
    },
    /// Nobody waits any more.
    Cancel(u64),
}

/// The server's blocks, by way of the process that runs the engine.
#[derive(Debug, Clone)]
pub(super) struct LocalLine {
    ops: mpsc::UnboundedSender<Op>,
    places: Arc<Semaphore>,
    next: Arc<AtomicU64>,
}

/// Tells the guest that nobody waits any more.
struct Leave<'a> {
    ops: &'a mpsc::UnboundedSender<Op>,
    id: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        // One that is answered is not known any more.
        let _ = self.ops.send(Op::Cancel(self.id));
    }
}

impl LocalLine {
    pub(super) fn new() -> (LocalLine, mpsc::UnboundedReceiver<Op>) {
        let (ops, received) = mpsc::unbounded_channel();
        let line = LocalLine {
            ops,
            places: Arc::new(Semaphore::new(BLOCKS_UNDER_WAY)),
            next: Arc::new(AtomicU64::new(FIRST)),
        };
        (line, received)
    }

    async fn ask(&self, want: Want) -> Got {
        let gone = || StoreError::Unavailable {
            place: String::new(),
            cause: "the process that runs the volume's engine has ended".to_owned(),
        };
        let _place = self.places.acquire().await.map_err(|_| gone())?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let sent = self.ops.send(Op::Begin { id, want, answer });
        sent.map_err(|_| gone())?;
        let _leave = Leave { ops: &self.ops, id };
        answered.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Asks for several things at the same time.
    async fn ask_all(&self, wants: Vec<Want>) -> Got {
        let asked = wants.into_iter().map(|want| self.ask(want));
        let mut all = (Vec::new(), Vec::new());
        for got in futures_util::future::try_join_all(asked).await? {
            all.0.extend(got.0);
            all.1.extend(got.1);
        }
        Ok(all)
    }
}

impl Stores for LocalLine {
    fn store(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn sink(&self) -> Arc<dyn BlockSink> {
        Arc::new(self.clone())
    }
}

impl BlockStore for LocalLine {
    fn place(&self) -> &str {
        "the process that runs the volume's engine"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let groups = want.chunks(MAX_HANDLES);
        let wants = groups.map(|group| Want::Get(group.to_vec())).collect();
        Box::pin(async move { Ok(self.ask_all(wants).await?.0) })
    }
}

impl BlockSink for LocalLine {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        let groups = parts(records, RECORDS_BYTES).into_iter();
        let wants = groups.map(|group| Want::Put(group.to_vec())).collect();
        Box::pin(async move { self.ask_all(wants).await.map(drop) })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        let groups = handles.chunks(MAX_HANDLES);
        let wants = groups.map(|group| Want::Touch(group.to_vec())).collect();
        Box::pin(async move { Ok(self.ask_all(wants).await?.1) })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        // What `put` accepts is durable.
        Box::pin(async { Ok(()) })
    }
}
