//! Gathers the blocks of many files that are put at the same time. Blocks that wait go to the server in one batch, so
//! they share requests and round trips. While fewer than [`BATCHES`] batches are under way, blocks go at once, so none
//! waits longer than it would alone.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::{BlockSink, BoxFuture, StoreError};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::yield_now;
use trust::{Handle, Record};

/// Batches under way at a time. Together they fit into the smallest ring of a server.
const BATCHES: usize = 2;
/// A batch takes no more blocks when it has so many bytes.
const BATCH_BYTES: usize = 512 << 10;

/// A sink that gathers what several callers put.
#[derive(Debug)]
pub struct Gathering<S> {
    sink: S,
    turns: Semaphore,
    waiting: Mutex<VecDeque<Waiting>>,
    /// Why a batch was not stored. The first of its callers that asks takes it.
    failed: Mutex<Option<StoreError>>,
}

/// The blocks of one call. The answer says whether they were stored.
#[derive(Debug)]
struct Waiting {
    records: Vec<Record>,
    done: oneshot::Sender<bool>,
}

impl<S: BlockSink> Gathering<S> {
    /// Gathers for this sink.
    pub fn of(sink: S) -> Gathering<S> {
        Gathering {
            sink,
            turns: Semaphore::new(BATCHES),
            waiting: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the blocks of the calls that have waited longest, up to [`BATCH_BYTES`].
    fn batch(&self) -> Vec<Waiting> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut waiting = self.waiting();
        while bytes < BATCH_BYTES
            && let Some(next) = waiting.pop_front()
        {
            bytes += next.records.iter().map(Record::len).sum::<usize>();
            batch.push(next);
        }
        batch
    }

    /// Stores one batch, and answers its callers.
    async fn store(&self) {
        // Calls that are about to put blocks join this batch.
        yield_now().await;
        let mut batch = self.batch();
        let records = batch.iter_mut();
        let records: Vec<Record> = records
            .flat_map(|waiting| std::mem::take(&mut waiting.records))
            .collect();
        if batch.is_empty() {
            return;
        }
        let stored = self.sink.put(&records).await;
        let is_stored = stored.is_ok();
        if let Err(why) = stored {
            *self.failed() = Some(why);
        }
        for waiting in batch {
            // The caller may have been dropped.
            let _ = waiting.done.send(is_stored);
        }
    }

    /// The error for a caller whose blocks were not stored.
    fn why(&self) -> StoreError {
        let why = self.failed().take();
        why.unwrap_or_else(|| StoreError::Unavailable {
            place: "the server".to_owned(),
            cause: "content that went together with this was not stored".to_owned(),
        })
    }
}

impl<S: BlockSink> BlockSink for Gathering<S> {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        let records = records.to_vec();
        Box::pin(async move {
            if records.is_empty() {
                return Ok(());
            }
            let (done, mut stored) = oneshot::channel();
            self.waiting().push_back(Waiting { records, done });
            let is_stored = loop {
                tokio::select! {
                    biased;
                    stored = &mut stored => break stored,
                    turn = self.turns.acquire() => {
                        self.store().await;
                        drop(turn);
                    }
                }
                if self.waiting().is_empty() {
                    break stored.await;
                }
            };
            match is_stored {
                Ok(true) => Ok(()),
                _ => Err(self.why()),
            }
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        self.sink.touch(handles)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.sink.flush()
    }
}
