//! Calls that travel with the blocks that they name (decision 0113).
//!
//! [`Boarding`] is the sink for such blocks. It keeps them, up to [`FLIGHT_BYTES`]; what does not fit is put into the server
//! as by any other sink, and waited for. [`Client::call_with`] makes the call. Only the process that has the engine sends
//! both in one flight: another program's blocks go first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use store::{BlockSink, BoxFuture, StoreError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use trust::{Handle, Record};

use super::{Answered, Client, ClientError, Sink};
use crate::files::Stamped;
use crate::outbox::{FLIGHT_BLOCKS, FLIGHT_BYTES, Flight};

/// Memory for blocks that travel with calls, all together, bytes. A call that finds no room puts its blocks first.
const ALL_FLIGHTS_BYTES: usize = 8 << 20;
/// One unit of that memory.
const UNIT_BYTES: usize = 1 << 10;

/// Memory for blocks that travel with calls.
#[derive(Debug, Clone)]
pub(super) struct Room {
    units: Arc<Semaphore>,
    /// The server has refused blocks of a call. Each refusal costs the device a Resume, so all calls put their blocks
    /// first, until the server has taken some.
    is_refused: Arc<AtomicBool>,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            units: Arc::new(Semaphore::new(ALL_FLIGHTS_BYTES / UNIT_BYTES)),
            is_refused: Arc::default(),
        }
    }
}

impl Room {
    fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        Arc::clone(&self.units).try_acquire_many_owned(units).ok()
    }
}

/// Blocks that wait for their call.
#[derive(Debug, Default)]
struct Held {
    records: Vec<Record>,
    bytes: usize,
    room: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// Keeps more blocks, if they fit.
    fn take(&mut self, records: &[Record], room: &Room) -> bool {
        let bytes = records.iter().map(Record::len).sum::<usize>();
        if self.bytes + bytes > FLIGHT_BYTES {
            return false;
        }
        if self.records.len() + records.len() > FLIGHT_BLOCKS {
            return false;
        }
        let Some(more) = room.take(bytes) else {
            return false;
        };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        self.bytes += bytes;
        self.records.extend_from_slice(records);
        true
    }
}

/// Blocks of one call, which is made when they are complete.
#[derive(Debug)]
pub struct Boarding {
    sink: Sink,
    room: Room,
    held: Mutex<Held>,
}

impl Boarding {
    /// Stores blocks, and waits for the server.
    async fn put_first(&self, records: &[Record]) -> Result<(), StoreError> {
        self.sink.put(records).await?;
        if !records.is_empty() {
            self.room.is_refused.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The blocks that are not stored yet. The call must travel with them.
    pub fn flight(self) -> Flight {
        let held = self.held.into_inner();
        let held = held.unwrap_or_else(PoisonError::into_inner);
        Flight::of(held.records, held.room)
    }
}

impl BlockSink for Boarding {
    /// Accepts the records: those that are not stored are in [`Boarding::flight`].
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            if self.held().take(records, &self.room) {
                return Ok(());
            }
            let before = std::mem::take(&mut *self.held());
            self.put_first(&before.records).await?;
            drop(before);
            if self.held().take(records, &self.room) {
                return Ok(());
            }
            self.put_first(records).await
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        self.sink.touch(handles)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let held = std::mem::take(&mut *self.held());
            self.put_first(&held.records).await?;
            self.sink.flush().await
        })
    }
}

impl Client {
    /// A sink for the blocks of one call, which is made with [`Boarding::flight`]. `patience` as for [`Client::sink`].
    pub fn boarding(&self, patience: Duration) -> Boarding {
        Boarding {
            sink: self.sink(patience),
            room: self.0.room.clone(),
            held: Mutex::default(),
        }
    }

    /// A call, and blocks that it names. The server orders the call only after the blocks. A call that is dropped goes on
    /// if it has left with blocks.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Unstored`] when the server refuses the blocks: the call had no effect.
    pub async fn call_with(
        &self,
        call: impl Into<Stamped>,
        flight: Flight,
        deadline: Instant,
    ) -> Result<Answered, ClientError> {
        if flight.is_empty() {
            return self.call(call, deadline).await;
        }
        if !self.0.near.is_here() {
            let patience = self.0.sink.patience;
            self.sink(patience).put(flight.records()).await?;
            return self.call(call, deadline).await;
        }
        let kept = flight.records().to_vec();
        let keeping = async {
            if let Some(own) = &self.0.own {
                own.keep(&kept).await;
            }
        };
        let (answered, ()) = tokio::join!(self.issue(call.into(), flight, deadline), keeping);
        if let Err(ClientError::Unstored { .. }) = &answered {
            self.0.room.is_refused.store(true, Ordering::Relaxed);
        }
        answered
    }
}
