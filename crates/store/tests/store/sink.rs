//! The writer of a repository (on a disk that loses all unsynced writes) and memory pass the suite for sinks, and the
//! suite fails sinks that break a rule.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use sim::disk::CrashDisk;
use store::conformance::sink::{SinkPlace, suite};
use store::{BlockSink, BlockStore, BoxFuture, MemoryStore, Repository, StoreError, Writer};
use trust::{Handle, Record};

/// A writer as a sink: a flush is a checkpoint.
struct WriterSink(Mutex<Writer>);

impl WriterSink {
    fn of(repository: &Repository) -> WriterSink {
        WriterSink(Mutex::new(Writer::begin(repository).unwrap()))
    }

    fn with<'a, T: Send + 'a>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let done = work(&mut self.0.lock().unwrap()).map_err(|error| match error {
            StoreError::Io { source, .. } if source.kind() == ErrorKind::StorageFull => {
                StoreError::Full {
                    place: "a full disk".to_owned(),
                    cause: source.to_string(),
                }
            }
            other => other,
        });
        Box::pin(std::future::ready(done))
    }
}

impl BlockSink for WriterSink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        self.with(|writer| {
            records
                .iter()
                .try_for_each(|record| writer.append(record).map(drop))
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        self.with(|writer| {
            let (mut absent, mut asked) = (Vec::new(), HashSet::new());
            for handle in handles {
                if asked.insert(handle) && !writer.contains(handle)? {
                    absent.push(*handle);
                }
            }
            Ok(absent)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.with(|writer| writer.checkpoint().map(drop))
    }
}

/// A repository on a disk that loses unsynced writes at each restart.
struct Crashing {
    disk: Arc<CrashDisk>,
    restarts: usize,
}

impl Crashing {
    fn new() -> Crashing {
        let disk = CrashDisk::new();
        Repository::create_on(disk.clone()).unwrap();
        Crashing { disk, restarts: 0 }
    }
}

impl SinkPlace for Crashing {
    type Sink = WriterSink;
    type Store = Repository;

    async fn sink(&self) -> WriterSink {
        let repository = Repository::open_on(self.disk.clone()).unwrap();
        WriterSink::of(&repository)
    }

    async fn restart(&mut self) -> Repository {
        // In turn: everything unsynced is lost, is kept, names remain without data, data without names.
        let outcomes = self.disk.outcomes(4);
        let outcome = &outcomes[self.restarts % outcomes.len()];
        self.restarts += 1;
        self.disk = self.disk.reborn(outcome);
        Repository::open_on(self.disk.clone()).unwrap()
    }

    fn limit(&mut self, writes: Option<u64>) -> bool {
        match writes {
            Some(writes) => self.disk.full_from(self.disk.operations() + writes),
            None => self.disk.free_space(),
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repository_on_a_crashing_disk_conforms() {
    suite(async || Crashing::new()).await;
}

/// A repository in a real directory, reopened as after a clean stop.
struct Directory {
    dir: tempfile::TempDir,
}

impl SinkPlace for Directory {
    type Sink = WriterSink;
    type Store = Repository;

    async fn sink(&self) -> WriterSink {
        let repository = Repository::open_or_create(self.dir.path()).unwrap();
        WriterSink::of(&repository)
    }

    async fn restart(&mut self) -> Repository {
        Repository::open(self.dir.path()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repository_in_a_directory_conforms() {
    let make = async || Directory {
        dir: tempfile::tempdir().unwrap(),
    };
    suite(make).await;
}

/// A store in memory, behind a wrapper that may break a rule.
struct Memory {
    store: Arc<MemoryStore>,
    all: Arc<Mutex<Vec<Record>>>,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    DropsOneOfMany,
    LastPutWins,
    PutsUnderAnotherName,
    TouchFindsAll,
    TouchFindsNone,
    TouchNamesTwice,
    FailsWhenPutTwice,
}

const FAULTS: [Fault; 7] = [
    Fault::DropsOneOfMany,
    Fault::LastPutWins,
    Fault::PutsUnderAnotherName,
    Fault::TouchFindsAll,
    Fault::TouchFindsNone,
    Fault::TouchNamesTwice,
    Fault::FailsWhenPutTwice,
];

struct MemorySink {
    store: Arc<MemoryStore>,
    /// All records that were put, in order.
    all: Arc<Mutex<Vec<Record>>>,
    fault: Fault,
}

/// A store in memory, shared.
struct Shared(Arc<MemoryStore>);

impl BlockStore for Shared {
    fn place(&self) -> &str {
        self.0.place()
    }
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.0.get_many(want, around)
    }
}

impl BlockSink for MemorySink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut records = records.to_vec();
            match self.fault {
                Fault::DropsOneOfMany if records.len() > 10 => drop(records.pop()),
                Fault::PutsUnderAnotherName if records.len() > 10 => {
                    let frame = records[1].frame.clone();
                    records[2].frame = frame;
                }
                Fault::FailsWhenPutTwice => {
                    let known = |r: &Record| self.store.try_cached(&r.handle).is_some();
                    if records.iter().any(known) {
                        let place = "memory".to_owned();
                        return Err(StoreError::NoVolume { place });
                    }
                }
                _ => {}
            }
            self.all.lock().unwrap().extend(records.iter().cloned());
            self.store.put(&records).await
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(async move {
            let absent = self.store.touch(handles).await?;
            Ok(match self.fault {
                Fault::TouchFindsAll => Vec::new(),
                Fault::TouchFindsNone => handles.to_vec(),
                Fault::TouchNamesTwice => [absent.clone(), absent].concat(),
                _ => absent,
            })
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.flush()
    }
}

impl SinkPlace for Memory {
    type Sink = MemorySink;
    type Store = Shared;

    async fn sink(&self) -> MemorySink {
        MemorySink {
            store: self.store.clone(),
            all: self.all.clone(),
            fault: self.fault,
        }
    }

    async fn restart(&mut self) -> Shared {
        if self.fault == Fault::LastPutWins {
            self.store = Arc::new(MemoryStore::new("memory"));
            for record in self.all.lock().unwrap().iter().rev() {
                self.store.insert(record.clone());
            }
        }
        Shared(self.store.clone())
    }
}

fn memory(fault: Fault) -> Memory {
    Memory {
        store: Arc::new(MemoryStore::new("memory")),
        all: Arc::default(),
        fault,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    suite(async || memory(Fault::None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_notices_sinks_that_break_a_rule() {
    for fault in FAULTS {
        let run = AssertUnwindSafe(suite(async || memory(fault))).catch_unwind();
        assert!(run.await.is_err(), "{fault:?} passed");
    }
}

/// A repository whose sink acknowledges a flush that it did not carry out.
struct Unflushed(Crashing);

struct NoFlush(WriterSink);

impl BlockSink for NoFlush {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.put(records)
    }
    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        self.0.touch(handles)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl SinkPlace for Unflushed {
    type Sink = NoFlush;
    type Store = Repository;

    async fn sink(&self) -> NoFlush {
        NoFlush(self.0.sink().await)
    }
    async fn restart(&mut self) -> Repository {
        self.0.restart().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_notices_a_flush_that_does_nothing() {
    let make = async || Unflushed(Crashing::new());
    let run = AssertUnwindSafe(suite(make)).catch_unwind();
    assert!(run.await.is_err());
}
