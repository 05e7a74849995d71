//! A load generator that speaks the bulla protocol through the product's own client.
//!
//! The requests are recorded: the verified reader runs once over a [`Recorder`], and its requests are
//! replayed. The replay checks that the answers are complete; it does not verify them, because only the
//! server is measured.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use store::{BlockStore, BoxFuture, Replica, StoreError};
use trust::array::{Child, Extent};
use trust::inode::{Content, FileContent};
use trust::statement::VolumeId;
use trust::{Handle, Record};
use volume::{Fetch, Volume, VolumeOptions};
use wire::remote::{RemoteOptions, RemoteStore};

use crate::dataset;
use crate::field::Field;
use crate::process::Daemon;
use crate::subject::Published;

/// Time limit of one operation of the reader while it is recorded.
const DEADLINE: Duration = Duration::from_secs(30);

/// Longest file that is read at once.
const WHOLE_BYTES: usize = 16 << 20;

/// Bytes that are read at once of a longer file.
const PIECE_BYTES: usize = 1 << 20;

/// One request of a reader.
#[derive(Debug, Clone)]
pub enum Call {
    /// The head, with a path.
    Head {
        /// The path; empty for none.
        toward: Vec<u8>,
    },
    /// Blocks.
    Data {
        /// The handles.
        want: Vec<Handle>,
        /// Budget for read-around, bytes.
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

/// Publishes a tree and serves it, everything in the page cache.
pub fn serve(field: &Field, name: &str, tree: &Path) -> Result<(Daemon, Place)> {
    serve_published(field, &Published::new(field, name, tree)?)
}

/// Serves a volume, everything in the page cache.
pub fn serve_published(field: &Field, published: &Published) -> Result<(Daemon, Place)> {
    dataset::warm(&published.repo)?;
    let (daemon, port) = published.serve(field)?;
    let volume = published.volume.parse().context("parsing the volume id")?;
    Ok((daemon, Place { volume, port }))
}

/// The load generator's runtime: one thread, so that the server has the rest of the machine.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

impl Place {
    /// A client of the product; it connects with its first request.
    pub fn connect(&self) -> RemoteStore {
        let address = format!("127.0.0.1:{}", self.port);
        RemoteStore::new(&address, self.volume, RemoteOptions::default())
    }

    async fn open(
        &self,
        recorder: Arc<Recorder>,
        state: &Path,
        toward: Option<&str>,
    ) -> Result<Arc<Volume>> {
        let options = VolumeOptions {
            state_directory: state.to_owned(),
            deadline: DEADLINE,
            toward: toward.map(|path| path.as_bytes().to_vec()),
            ..VolumeOptions::default()
        };
        Ok(Volume::open(self.volume, vec![recorder], options).await?)
    }

    /// The requests of a reader with empty caches until it has a file's content.
    ///
    /// # Errors
    /// When the reader fails, or the file is not `file_bytes` long.
    pub async fn record(
        &self,
        path: &str,
        file_bytes: usize,
        max_around_bytes: usize,
        state: &Path,
    ) -> Result<Vec<Call>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes,
            calls: Mutex::default(),
        });
        // The command line sends the path too.
        let toward = (max_around_bytes > 0).then_some(path);
        let volume = self.open(recorder.clone(), state, toward).await?;
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

    /// The requests of a reader with empty caches until it has read all these files, one after the other.
    ///
    /// # Errors
    /// When the reader fails, or a file is not there.
    pub async fn record_all(&self, paths: &[PathBuf], state: &Path) -> Result<Vec<Call>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes: usize::MAX,
            calls: Mutex::default(),
        });
        let volume = self.open(recorder.clone(), state, None).await?;
        let snapshot = volume.snapshot();
        let how = Fetch::Until(volume.deadline());
        for path in paths {
            let shown = path.display();
            let name = path.as_os_str().as_bytes();
            let inode = snapshot
                .resolve(name, how)
                .await?
                .with_context(|| format!("the volume has no {shown}"))?;
            snapshot
                .read(&inode, 0, WHOLE_BYTES, how)
                .await
                .with_context(|| format!("reading {shown}"))?;
        }
        Ok(recorder.calls())
    }

    /// The requests of a reader with empty caches until it has read a file from its beginning to its end.
    ///
    /// # Errors
    /// When the reader fails, or the file is not there.
    pub async fn record_file(&self, path: &str, state: &Path) -> Result<Vec<Call>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes: usize::MAX,
            calls: Mutex::default(),
        });
        let volume = self.open(recorder.clone(), state, None).await?;
        let snapshot = volume.snapshot();
        let how = || Fetch::Until(volume.deadline());
        let inode = snapshot.resolve(path.as_bytes(), how()).await?;
        let inode = inode.with_context(|| format!("the volume has no {path}"))?;
        let mut offset = 0;
        loop {
            let pieces = snapshot.read(&inode, offset, PIECE_BYTES, how()).await?;
            let length: usize = pieces.iter().map(Bytes::len).sum();
            if length == 0 {
                return Ok(recorder.calls());
            }
            offset += length as u64;
        }
    }

    /// The head and one block over a new connection.
    ///
    /// # Errors
    /// When one of them does not come.
    pub async fn first_answers(&self, block: Handle) -> Result<()> {
        let store = self.connect();
        store.head().await?;
        let records = store.get_many(&[block], 0).await?;
        ensure!(
            records.len() == 1,
            "{} records came instead of 1",
            records.len()
        );
        Ok(())
    }

    /// The handles of the files of a flat directory whose content is one block each.
    ///
    /// # Errors
    /// When a file has another shape.
    pub async fn blocks(&self, max: usize, state: &Path) -> Result<Vec<Handle>> {
        let recorder = Arc::new(Recorder {
            inner: self.connect(),
            max_around_bytes: usize::MAX,
            calls: Mutex::default(),
        });
        let volume = self.open(recorder, state, None).await?;
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

    /// Replays a look-up over a new connection each time. Returns the seconds.
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

    /// Requests single blocks over persistent connections. Returns the seconds.
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

/// A load over persistent connections.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Connections at once.
    pub connections: u32,
    /// Requests in flight on each.
    pub in_flight: u32,
    /// Total number of requests on each, a multiple of `in_flight`.
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
        let index = at
            .checked_rem(handles.len())
            .context("there are no handles")?;
        let want = handles
            .get(index..=index)
            .context("the handle is out of range")?;
        let records = store.get_many(want, 0).await?;
        ensure!(
            records.len() == 1,
            "{} records came instead of 1",
            records.len()
        );
    }
    Ok(())
}

async fn replay(store: &RemoteStore, call: &Call) -> Result<()> {
    match call {
        Call::Head { toward } => drop(store.head_toward(toward).await?),
        Call::Data { want, around_bytes } => {
            let records = store.get_many(want, *around_bytes).await?;
            ensure!(
                records.len() >= want.len(),
                "the server does not have a requested block"
            );
        }
    }
    Ok(())
}

/// A replica that records its requests, and limits read-around to a given budget.
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
        let toward = Vec::new();
        self.note(Call::Head { toward });
        self.inner.head()
    }

    fn head_toward<'a>(&'a self, path: &'a [u8]) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let toward = path.to_vec();
        self.note(Call::Head { toward });
        self.inner.head_toward(path)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::{self, Clients};
    use serve::mirror::{Options, Server};
    use serve::net::Limits;
    use sim::model::Model;
    use store::{Repository, Writer};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    /// A volume with `one`, `a/b/c/one` and `big` on a server in this process.
    pub(crate) struct Served {
        pub(crate) dir: tempfile::TempDir,
        pub(crate) place: Place,
        model: Model,
        pub(crate) server: JoinHandle<()>,
        _stop: oneshot::Sender<()>,
    }

    fn names(model: &mut Model) -> trust::inode::Inode {
        let one = model.file(&[1; 1024], 65_536).unwrap();
        let mut deep = model
            .directory(vec![(b"one".to_vec(), one.clone())])
            .unwrap();
        for name in [b"c", b"b"] {
            deep = model.directory(vec![(name.to_vec(), deep)]).unwrap();
        }
        model
            .directory(vec![(b"a".to_vec(), deep), (b"one".to_vec(), one)])
            .unwrap()
    }

    pub(crate) fn objects(model: &mut Model) -> trust::inode::Inode {
        let entries = (0..9_u8)
            .map(|n| (vec![b'0' + n], model.file(&[n + 1; 8192], 65_536).unwrap()))
            .collect();
        model.directory(entries).unwrap()
    }

    pub(crate) async fn served(make: fn(&mut Model) -> trust::inode::Inode) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let mut model = Model::new(7).unwrap();
        let root = make(&mut model);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let head = model.publish(&root, now, 3600).unwrap();
        let repository = Repository::create(dir.path().join("repo")).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        // The model makes leaves first; a publisher stores the blocks that are read first in front.
        for record in model.records.iter().rev() {
            writer.append(record).unwrap();
        }
        writer.commit(&head).unwrap();
        drop(writer);
        let repository = Repository::open(dir.path().join("repo")).unwrap();
        let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(
            address,
            vec![repository],
            Limits::default(),
            Options::default(),
        )
        .unwrap();
        let port = server.local_addr().port();
        let (stop, stopped) = oneshot::channel::<()>();
        Served {
            dir,
            place: Place {
                volume: model.id(),
                port,
            },
            model,
            server: tokio::spawn(server.run(async move { drop(stopped.await) })),
            _stop: stop,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_reader_asks_for_is_recorded_and_replayed() {
        let served = served(names).await;
        let state = |name| served.dir.path().join(name);
        let record = |path, around, name| {
            let state = state(name);
            let place = served.place.clone();
            async move { place.record(path, 1024, around, &state).await }
        };
        let one = record("one", 0, "1").await.unwrap();
        let four = record("a/b/c/one", 0, "2").await.unwrap();
        let around = record("a/b/c/one", usize::MAX, "3").await.unwrap();
        assert!(matches!(one.first(), Some(Call::Head { .. })));
        // Without read-around each directory is a call of its own. A reader asks for little read-around with
        // the first names, so it may save no call here, but must never cost one.
        assert_eq!(four.len(), one.len() + 3, "{four:?}");
        assert!(around.len() <= four.len(), "{around:?}");

        let wrong = served.place.record("one", 1023, 0, &state("4")).await;
        assert!(wrong.is_err(), "a file of another length was taken");
        assert!(record("two", 0, "5").await.is_err());

        let paths = ["one", "a/b/c/one"].map(PathBuf::from);
        let both = served.place.record_all(&paths, &state("6")).await.unwrap();
        tokio::task::LocalSet::new()
            .run_until(async {
                let script = load::script(&served.place, &both).await.unwrap();
                let clients = Clients::connect(&served.place, 3).await.unwrap();
                clients.play(&script, 10).await.unwrap();
                let denied = [Call::Data {
                    want: vec![Handle::from_bytes([9; 32])],
                    around_bytes: 0,
                }];
                assert!(load::script(&served.place, &denied).await.is_err());
                assert!(load::script(&served.place, &[]).await.is_err());
            })
            .await;
        let gone = [PathBuf::from("two")];
        let gone = served.place.record_all(&gone, &state("7")).await;
        assert!(gone.unwrap_err().to_string().contains("no two"));

        served.place.new_connections(&four, 3).await.unwrap();
        let nowhere = [Call::Data {
            want: vec![Handle::from_bytes([9; 32])],
            around_bytes: 0,
        }];
        let denied = served.place.new_connections(&nowhere, 1).await;
        assert!(denied.unwrap_err().to_string().contains("does not have"));
        served.server.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blocks_are_found_and_asked_for_many_at_once() {
        let served = served(objects).await;
        let state = served.dir.path().join("state");
        let handles = served.place.blocks(100, &state).await.unwrap();
        let right: Vec<Handle> = (0..9_u8)
            .map(|n| {
                served
                    .model
                    .hasher()
                    .handle::<trust::Data>(&[n + 1; 8192])
                    .any()
            })
            .collect();
        assert_eq!(handles, right);
        let load = Load {
            connections: 4,
            in_flight: 16,
            requests: 64,
        };
        let handles: Arc<[Handle]> = handles.into();
        served.place.first_answers(handles[3]).await.unwrap();
        let nothing = Handle::from_bytes([9; 32]);
        assert!(served.place.first_answers(nothing).await.is_err());
        served.place.keep_alive(load, handles).await.unwrap();
        served.server.abort();
    }
}
