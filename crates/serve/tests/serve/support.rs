//! A repository in memory that can act as a slow disk, a broken disk, or one that is never in the page cache;
//! and a server around it that ends with the test.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serve::mirror::{Counters, Options, RepositoryReader, Server};
use serve::net::Limits;
use sim::random::noise;
use sim::time::wait_until;
use store::StoreError;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trust::frame::Packer;
use trust::{Handle, Hasher, Kind, Record};
use wire::http::HttpOptions;
use wire::{ObjectName, RemoteOptions, RemoteStore};

pub const VOLUME: trust::statement::VolumeId = trust::statement::VolumeId::from_bytes([7; 32]);
pub const SEGMENT: ObjectName = ObjectName::Segment([5; 16]);

/// Time-outs that no answer reaches, however busy the machine is.
pub fn patient() -> RemoteOptions {
    RemoteOptions {
        connect_timeout: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        ..RemoteOptions::default()
    }
}

/// The same over HTTP.
pub fn patient_http() -> HttpOptions {
    HttpOptions {
        connect_timeout: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        ..HttpOptions::default()
    }
}

pub fn hasher() -> Hasher {
    Hasher::new(&[3; 32])
}

pub fn record(seed: u64, len: usize) -> Record {
    let plain = noise(seed, len);
    Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

pub fn encoded(record: &Record) -> Bytes {
    let mut out = BytesMut::new();
    record.put(&mut out);
    out.freeze()
}

#[derive(Default)]
pub struct TestReader {
    records: HashMap<Handle, Bytes>,
    order: Vec<Handle>,
    head: Mutex<Bytes>,
    next_head: Mutex<Option<Bytes>>,
    pub cold: AtomicBool,
    pub broken: AtomicBool,
    pub disk_ms: AtomicU64,
    /// Reads from disk wait while this is set.
    pub held: AtomicBool,
    /// How many reads from disk wait.
    pub waiting: AtomicUsize,
    pub object: Bytes,
}

impl TestReader {
    pub fn new(records: &[Record]) -> TestReader {
        TestReader {
            records: records.iter().map(|r| (r.handle, encoded(r))).collect(),
            order: records.iter().map(|r| r.handle).collect(),
            head: Mutex::new(Bytes::from_static(b"head 1")),
            object: Bytes::from(noise(99, 300_000)),
            ..TestReader::default()
        }
    }

    pub fn publish(&self, head: &'static [u8]) {
        *self.next_head.lock().unwrap() = Some(Bytes::from_static(head));
    }

    fn regions(&self, want: &[Handle], around: usize) -> Vec<Bytes> {
        let found = |h: &Handle| self.records.get(h).cloned();
        let mut regions: Vec<Bytes> = want.iter().filter_map(found).collect();
        let first = want
            .first()
            .and_then(|h| self.order.iter().position(|o| o == h));
        let mut left = around;
        for handle in self.order.iter().skip(first.map_or(usize::MAX, |i| i + 1)) {
            let bytes = &self.records[handle];
            if want.contains(handle) {
                continue;
            }
            if bytes.len() > left {
                break;
            }
            left -= bytes.len();
            regions.push(bytes.clone());
        }
        regions
    }
}

impl RepositoryReader for TestReader {
    fn place(&self) -> &str {
        "test shelf"
    }
    fn head(&self) -> Bytes {
        self.head.lock().unwrap().clone()
    }
    fn read_if_cached(
        &self,
        want: &[Handle],
        around: usize,
    ) -> Result<Option<Vec<Bytes>>, StoreError> {
        if self.cold.load(Ordering::Relaxed) || self.broken.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let regions = self.regions(want, around);
        let total: usize = regions.iter().map(Bytes::len).sum();
        Ok((total <= 2 << 20).then_some(regions))
    }
    fn read_blocking(
        &self,
        want: &[Handle],
        around: usize,
        sink: &mut serve::mirror::reader::Regions<'_>,
    ) -> Result<(), StoreError> {
        std::thread::sleep(Duration::from_millis(self.disk_ms.load(Ordering::Relaxed)));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        wait_until("the disk goes on", || !self.held.load(Ordering::SeqCst));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if self.broken.load(Ordering::Relaxed) {
            return Err(StoreError::Damaged {
                path: "/secret/path".into(),
                why: "broken".into(),
            });
        }
        for region in self.regions(want, around) {
            if let ControlFlow::Break(()) = sink(region) {
                break;
            }
        }
        Ok(())
    }
    fn read_range(
        &self,
        object: ObjectName,
        offset: u64,
        len: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        if object != SEGMENT {
            return Ok(None);
        }
        let from = self.object.len().min(offset as usize);
        let to = self.object.len().min(from + len);
        Ok(Some(self.object.slice(from..to)))
    }
    fn refresh(&self) -> Result<bool, StoreError> {
        let Some(new) = self.next_head.lock().unwrap().take() else {
            return Ok(false);
        };
        *self.head.lock().unwrap() = new;
        Ok(true)
    }
}

/// A server that runs until it is stopped or dropped.
pub struct Running {
    pub address: SocketAddr,
    pub counters: Arc<Counters>,
    pub refresher: serve::mirror::Refresher,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(shelf: Arc<TestReader>, limits: Limits) -> Running {
        Running::start_with(shelf, limits, Options::default())
    }

    pub fn start_with(shelf: Arc<TestReader>, limits: Limits, options: Options) -> Running {
        Running::start_at("127.0.0.1:0".parse().unwrap(), shelf, limits, options)
    }

    pub fn start_at(
        at: SocketAddr,
        shelf: Arc<TestReader>,
        limits: Limits,
        options: Options,
    ) -> Running {
        let shelf: Arc<dyn RepositoryReader> = shelf;
        let server = Server::listen(at, vec![(VOLUME, shelf)], limits, options).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        Running {
            address: server.local_addr(),
            counters: server.counters(),
            refresher: server.refresher(),
            stop: Some(stop),
            task: tokio::spawn(server.run(async move {
                let _ = stopped.await;
            })),
        }
    }

    pub fn store(&self) -> RemoteStore {
        RemoteStore::new(&self.address.to_string(), VOLUME, patient())
    }

    /// Stops it and waits for the end.
    pub async fn stop(mut self) {
        self.stop.take();
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
