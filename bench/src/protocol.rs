//! A load generator that speaks the bulla protocol through the product's own client.
//!
//! What a look-up asks for is not guessed: the verified reader runs once over a [`Recorder`], and
//! what it asked is replayed. Verifying the answers is the client's work and metered for nobody;
//! that they are complete is checked.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use publish::{Fetch, Volume, VolumeOptions};
use store::{BlockStore, BoxFuture, Replica, StoreError};
use trust::array::{Child, Extent};
use trust::inode::{Content, FileContent};
use trust::statement::VolumeId;
use trust::{Handle, Record};
use wire::remote::{RemoteOptions, RemoteStore};

/// Longest that the reader may take over one operation while it is recorded.
const DEADLINE: Duration = Duration::from_secs(30);

/// One request of a reader.
#[derive(Debug, Clone)]
pub enum Call {
    /// The head.
    Head,
    /// Blocks.
    Data {
        /// Which.
        want: Vec<Handle>,
        /// Read-around that is granted, bytes.
        around_bytes: usize,
    },
}

/// A volume at a server of this machine.
#[derive(Debug, Clone)]
pub struct Place {
    /// The volume.
    pub volume: VolumeId,
    /// The server's port at 127.0.0.1.
    pub port: u16,
}

impl Place {
    fn connect(&self) -> RemoteStore {
        let address = format!("127.0.0.1:{}", self.port);
        RemoteStore::new(&address, *self.volume.as_bytes(), RemoteOptions::default())
    }

    async fn open(&self, recorder: Arc<Recorder>, state: &std::path::Path) -> Result<Arc<Volume>> {
        let options = VolumeOptions {
            state_directory: state.to_owned(),
            deadline: DEADLINE,
            ..VolumeOptions::default()
        };
        Ok(Volume::over(self.volume, vec![recorder], options).await?)
    }

    /// Everything that a reader with empty caches asks for until it has a file's content.
    ///
    /// # Errors
    /// When the reader fails, or the file is not `file_bytes` long.
    pub async fn record(
        &self,
        path: &str,
        file_bytes: usize,
        max_around_bytes: usize,
        state: &std::path::Path,
    ) -> Result<Vec<Call>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes,
            calls: Mutex::default(),
        });
        let volume = self.open(recorder.clone(), state).await?;
        let snapshot = volume.snapshot();
        let how = Fetch::Until(volume.deadline());
        let inode = snapshot
            .resolve(path.as_bytes(), how)
            .await?
            .with_context(|| format!("the volume has no {path}"))?;
        let content = snapshot.read(&inode, 0, file_bytes + 1, how).await?;
        let length: usize = content.iter().map(Bytes::len).sum();
        ensure!(length == file_bytes, "{path} has {length} bytes");
        Ok(recorder.calls())
    }

    /// The handles of the files of a flat directory whose content is one block each.
    ///
    /// # Errors
    /// When one is something else.
    pub async fn blocks(&self, max: usize, state: &std::path::Path) -> Result<Vec<Handle>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes: usize::MAX,
            calls: Mutex::default(),
        });
        let volume = self.open(recorder, state).await?;
        let snapshot = volume.snapshot();
        let how = Fetch::Until(volume.deadline());
        let entries = snapshot.list(snapshot.root(), None, max, how).await?;
        entries
            .into_iter()
            .map(|(name, inode)| match inode.content {
                Content::Regular(FileContent::Array(root)) => match root.top() {
                    Child::Extent(Extent::Data { handle, .. }) => Ok(handle.any()),
                    _ => anyhow::bail!("{name:?} has more than one block"),
                },
                _ => anyhow::bail!("{name:?} has no block"),
            })
            .collect()
    }

    /// Replays a look-up over a new connection each time; the seconds.
    ///
    /// # Errors
    /// When an answer is not complete.
    pub async fn new_connections(&self, calls: &[Call], count: u32) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            let store = self.connect();
            for call in calls {
                replay(&store, call).await?;
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Asks for single blocks over connections that stay; the seconds.
    ///
    /// # Errors
    /// When an answer is not complete.
    pub async fn keep_alive(&self, load: Load, handles: Arc<[Handle]>) -> Result<f64> {
        let stores: Vec<_> = (0..load.connections)
            .map(|_| Arc::new(self.connect()))
            .collect();
        for store in &stores {
            store.head().await?;
        }
        let start = Instant::now();
        let mut tasks = Vec::new();
        for (store, connection) in stores.iter().zip(0..) {
            for lane in 0..load.in_flight {
                let first = connection * load.in_flight + lane;
                let requests = load.requests / load.in_flight;
                let (store, handles) = (store.clone(), handles.clone());
                tasks.push(tokio::spawn(lane_of(store, handles, first, requests)));
            }
        }
        for task in tasks {
            task.await??;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// A load over connections that stay.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Connections at once.
    pub connections: u32,
    /// Requests under way on each.
    pub in_flight: u32,
    /// Requests on each in all, a multiple of `in_flight`.
    pub requests: u32,
}

async fn lane_of(
    store: Arc<RemoteStore>,
    handles: Arc<[Handle]>,
    first: u32,
    requests: u32,
) -> Result<()> {
    let mut at = first as usize * 61;
    for _ in 0..requests {
        at += 37;
        let index = at.checked_rem(handles.len()).context("no handles")?;
        let want = handles.get(index..=index).context("no such handle")?;
        let records = store.get_many(want, 0).await?;
        ensure!(records.len() == 1, "{} records came", records.len());
    }
    Ok(())
}

async fn replay(store: &RemoteStore, call: &Call) -> Result<()> {
    match call {
        Call::Head => drop(store.head().await?),
        Call::Data { want, around_bytes } => {
            let records = store.get_many(want, *around_bytes).await?;
            ensure!(records.len() >= want.len(), "a block was denied");
        }
    }
    Ok(())
}

/// A replica that remembers what it was asked, and grants no more read-around than it was told.
struct Recorder {
    inner: RemoteStore,
    max_around_bytes: usize,
    calls: Mutex<Vec<Call>>,
}

impl Recorder {
    fn note(&self, call: Call) {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(call);
    }

    fn calls(&self) -> Vec<Call> {
        self.calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl BlockStore for Recorder {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let around_bytes = around.min(self.max_around_bytes);
        self.note(Call::Data {
            want: want.to_vec(),
            around_bytes,
        });
        self.inner.get_many(want, around_bytes)
    }
}

impl Replica for Recorder {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.note(Call::Head);
        self.inner.head()
    }
}
