//! The server's blocks as a program sees them: whichever connection there is at the time.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, Replica, StoreError};
use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use trust::{Frame, Handle, Record};

use super::connection::Stores;
use super::own::{Own, without};
use super::status::{Phase, View};

/// A server that has no room is asked again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// Does something over a connection, and over the next one when that one is lost. The caller holds the deadline.
/// `failed` is told why a connection did not do it.
async fn over<T, F>(
    lines: &watch::Receiver<Option<Arc<dyn Stores>>>,
    name: &str,
    work: impl Fn(Arc<dyn Stores>) -> F,
    failed: impl Fn(String),
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut lines = lines.clone();
    loop {
        let line = lines.borrow_and_update().clone();
        if let Some(line) = line {
            match work(line).await {
                Err(StoreError::Unavailable { cause, .. }) => failed(cause),
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
    /// An engine that has stopped connects to nobody.
    pub(super) view: watch::Receiver<View>,
    /// What this device wrote is read from its own disk first.
    pub(super) own: Option<Arc<Own>>,
}

impl ServerBlocks {
    /// Asks the server.
    async fn ask(&self, want: &[Handle], around: usize) -> Result<Vec<Record>, StoreError> {
        let get =
            move |line: Arc<dyn Stores>| async move { line.store().get_many(want, around).await };
        let mut view = self.view.clone();
        let stopped = view.wait_for(|view| matches!(view.phase, Phase::Stopped(_)));
        tokio::select! {
            biased;
            got = over(&self.lines, &self.name, get, drop) => got,
            Ok(_) = stopped => Err(StoreError::Unavailable {
                place: self.name.clone(),
                cause: "this device asks its server nothing more".to_owned(),
            }),
        }
    }
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
        Box::pin(async move {
            let Some(own) = &self.own else {
                return self.ask(want, around).await;
            };
            let mut found = own.get(want).await;
            let rest = without(want, &found);
            if !rest.is_empty() {
                // Without an answer nobody knows that the server does not have them.
                found.extend(self.ask(&rest, around).await?);
            }
            Ok(found)
        })
    }

    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        self.own.as_ref()?.try_cached(handle)
    }

    fn get_within<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
        most_bytes: u64,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let get = move |line: Arc<dyn Stores>| async move {
            line.store().get_within(want, around, most_bytes).await
        };
        Box::pin(over(&self.lines, &self.name, get, drop))
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
/// is lost meanwhile, the blocks are put again over the next one, until the server has taken nothing for so long.
#[derive(Clone)]
pub struct Sink {
    pub(super) name: Arc<str>,
    pub(super) lines: watch::Receiver<Option<Arc<dyn Stores>>>,
    pub(super) patience: Duration,
    pub(super) taken: Taken,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sink({})", self.name)
    }
}

/// When the server took blocks of this client last. Blocks that wait behind them on a slow connection have their time
/// from then on; a server that takes nothing ends them all.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    began: Instant,
    ms: Arc<AtomicU64>,
}

impl Taken {
    pub(super) fn begin() -> Taken {
        Taken {
            began: Instant::now(),
            ms: Arc::default(),
        }
    }

    fn note(&self) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.ms.fetch_max(ms, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        let since = Duration::from_millis(self.ms.load(Ordering::Relaxed));
        self.began.checked_add(since).unwrap_or(self.began)
    }
}

impl Sink {
    /// Does something over whichever connection there is, until the server has taken nothing for too long.
    async fn over<T, F>(&self, work: impl Fn(Arc<dyn Stores>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let began = Instant::now();
        let why = Mutex::new(None);
        let failed = |cause| *why.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
        let mut work = pin!(over(&self.lines, &self.name, work, failed));
        loop {
            let last = self.taken.last();
            let until = began.max(last).checked_add(self.patience);
            let Some(until) = until else {
                return work.await;
            };
            match timeout_at(until.into(), &mut work).await {
                Ok(done) => {
                    if done.is_ok() {
                        self.taken.note();
                    }
                    return done;
                }
                // Others were taken meanwhile.
                Err(_) if self.taken.last() > last => {}
                Err(_) => break,
            }
        }
        let seconds = self.patience.as_secs_f32();
        let mut cause = format!("it has taken no content for {seconds:.1} s");
        if let Some(why) = why.lock().unwrap_or_else(PoisonError::into_inner).take() {
            cause = format!("{cause}; {why}");
        }
        Err(StoreError::Unavailable {
            place: self.name.to_string(),
            cause,
        })
    }
}

impl BlockSink for Sink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        let put = move |line: Arc<dyn Stores>| async move {
            let sink = line.sink();
            sink.put(records).await?;
            sink.flush().await
        };
        Box::pin(self.over(put))
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        let touch = move |line: Arc<dyn Stores>| async move { line.sink().touch(handles).await };
        Box::pin(self.over(touch))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use tokio::sync::Semaphore;
    use tokio::time::sleep;

    use super::*;

    /// A server that takes one batch after the other, each after some time.
    #[derive(Clone)]
    struct Slow {
        turn: Arc<Semaphore>,
        takes: Duration,
    }

    impl Stores for Slow {
        fn store(&self) -> Arc<dyn BlockStore> {
            Arc::new(store::memory::MemoryStore::new("slow"))
        }

        fn sink(&self) -> Arc<dyn BlockSink> {
            Arc::new(self.clone())
        }
    }

    impl BlockSink for Slow {
        fn put<'a>(&'a self, _: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async {
                let _turn = self.turn.acquire().await;
                sleep(self.takes).await;
                Ok(())
            })
        }

        fn touch<'a>(&'a self, _: &'a [Handle]) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
            Box::pin(async { Ok(()) })
        }
    }

    fn sink(takes: Duration, patience: Duration) -> Sink {
        let turn = Arc::new(Semaphore::new(1));
        let slow: Arc<dyn Stores> = Arc::new(Slow { turn, takes });
        Sink {
            name: "slow".into(),
            lines: watch::channel(Some(slow)).1,
            patience,
            taken: Taken::begin(),
        }
    }

    #[tokio::test]
    async fn blocks_behind_others_on_a_slow_connection_have_their_time_from_the_last_answer_on() {
        let sink = sink(Duration::from_millis(500), Duration::from_millis(2500));
        let puts = join_all((0..8).map(|_| sink.put(&[]))).await;
        assert!(puts.iter().all(Result::is_ok), "{puts:?}");
    }

    #[tokio::test]
    async fn server_that_takes_nothing_ends_all_that_wait() {
        let sink = sink(Duration::from_secs(3600), Duration::from_millis(200));
        let puts = join_all((0..8).map(|_| sink.put(&[])));
        let puts = timeout(Duration::from_secs(60), puts).await.unwrap();
        for put in puts {
            let why = put.unwrap_err().to_string();
            assert!(why.contains("has taken no content for 0.2 s"), "{why}");
        }
        let touched = timeout(Duration::from_secs(60), sink.touch(&[])).await;
        assert!(touched.unwrap().is_ok());
    }
}
