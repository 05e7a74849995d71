//! Another place that may have the content of lost work, which a person names: a server, or the directory of one
//! (decision 0087). What comes from there is hashed before it is used. A place that fails or is mute is not asked again by
//! the same command, so that it cannot keep what others give.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use store::{BlockStore, StoreError};
use tokio::sync::oneshot;
use tokio::time::timeout;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust::{Handle, Hasher, Record};
use wire::shared::{Link, LinkOptions, ServerAddress};

use super::own::is_whole;
use crate::home::{Home, HomeError};

/// How long some content of a lost file may take to be read, wherever it comes from.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes that requests and answers under way hold together.
const HELD_BYTES: usize = 32 << 20;

/// Where another place is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A server. Its key does not matter.
    Server(ServerAddress),
    /// The directory of a server, which need not run.
    Directory(PathBuf),
}

/// What a place has given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lent {
    /// The place.
    pub place: String,
    /// Blocks that were taken.
    pub blocks: u64,
    /// Their bytes, as they are stored.
    pub bytes: u64,
    /// Blocks that were wrong or damaged, and not taken.
    pub wrong: u64,
    /// Why it is not asked any more.
    pub failed: Option<String>,
}

/// A place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The home cannot be read.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The directory is not that of a server of this volume, or cannot be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The disk does not answer.
    #[error("{}: the disk does not answer", .0.display())]
    Mute(PathBuf),
}

/// The blocks in the directory of a server. Nothing that comes from there is verified.
pub trait DirectoryBlocks {
    /// Those of `want` that are there, and how many of them are damaged. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    fn get(&mut self, want: &[Handle]) -> Result<(Vec<Record>, u64), StoreError>;
}

/// Why a directory is not that of a server of the volume, or cannot be read.
pub type DirectoryError = Box<dyn std::error::Error + Send + Sync>;

/// Opens the directory of the server of a volume, to read blocks.
pub type OpenDirectory = fn(&Path, VolumeId) -> Result<Box<dyn DirectoryBlocks>, DirectoryError>;

/// See the head of this file.
#[derive(Debug)]
pub struct OtherPlace {
    hasher: Hasher,
    way: Way,
    /// How long a request may take.
    request: Duration,
    /// How long all requests together may take until one gives something.
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    lent: Lent,
    /// Time of the requests since one gave something.
    in_vain: Duration,
}

enum Way {
    Server(Box<Server>),
    Directory(mpsc::Sender<Asked>),
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Way::Server(_) => "Server",
            Way::Directory(_) => "Directory",
        })
    }
}

/// A request. Its time counts also when the caller drops it.
struct Waiting<'a> {
    place: &'a OtherPlace,
    began: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.place.state();
        state.in_vain = state.in_vain.saturating_add(self.began.elapsed());
    }
}

struct Server {
    to: ServerAddress,
    volume: VolumeId,
    device: SecretKey,
    options: LinkOptions,
    link: tokio::sync::Mutex<Option<Link>>,
}

/// Records, and how many others are damaged.
type Found = (Vec<Record>, u64);

/// What the thread of a directory is asked.
struct Asked {
    want: Vec<Handle>,
    answer: oneshot::Sender<Result<Found, StoreError>>,
}

impl OtherPlace {
    /// Opens a place for the device of this home. Nothing is sent to a server yet. `patience`: how long the place may take
    /// without giving anything.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub async fn open(
        location: &Location,
        home: &Home,
        patience: Duration,
        open_directory: OpenDirectory,
    ) -> Result<Arc<OtherPlace>, PlaceError> {
        // Less than a read may take, so that the server of the volume is asked too.
        let request = patience.min(PATIENCE) * 3 / 4;
        let (place, way) = match location {
            Location::Server(to) => {
                let server = Server {
                    to: to.clone(),
                    volume: home.volume(),
                    device: home.key()?,
                    options: LinkOptions {
                        connect_timeout: request,
                        answer_timeout: request,
                        max_held_bytes: HELD_BYTES,
                        ..LinkOptions::default()
                    },
                    link: tokio::sync::Mutex::default(),
                };
                (to.to_string(), Way::Server(Box::new(server)))
            }
            Location::Directory(path) => {
                let opening = directory(path.clone(), home.volume(), open_directory);
                let opening = timeout(request, opening);
                let opened = opening.await.unwrap_or(Ok(None))?;
                let asks = opened.ok_or_else(|| PlaceError::Mute(path.clone()))?;
                (path.display().to_string(), Way::Directory(asks))
            }
        };
        Ok(Arc::new(OtherPlace {
            hasher: home.policies()?.chain().hasher(),
            way,
            request,
            patience,
            state: Mutex::new(State {
                lent: Lent {
                    place,
                    ..Lent::default()
                },
                in_vain: Duration::ZERO,
            }),
        }))
    }

    /// What it has given so far.
    pub fn lent(&self) -> Lent {
        self.state().lent.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of these blocks that it gives and that are whole.
    pub(super) async fn get(&self, want: &[Handle]) -> Vec<Record> {
        if self.is_over() {
            return Vec::new();
        }
        let waiting = Waiting {
            place: self,
            began: Instant::now(),
        };
        let asked = timeout(self.request, self.ask(want)).await;
        drop(waiting);
        let answer = asked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let mut state = self.state();
        let (mut records, damaged) = match answer {
            Ok(found) => found,
            Err(why) => {
                state.lent.failed.get_or_insert(why);
                return Vec::new();
            }
        };
        state.lent.wrong = state.lent.wrong.saturating_add(damaged);
        let mut wanted: HashSet<Handle> = want.iter().copied().collect();
        records.retain(|record| wanted.remove(&record.handle));
        let came = records.len();
        records.retain(|record| is_whole(&self.hasher, record));
        let wrong = came.saturating_sub(records.len()) as u64;
        state.lent.wrong = state.lent.wrong.saturating_add(wrong);
        if !records.is_empty() {
            state.in_vain = Duration::ZERO;
        }
        state.lent.blocks = state.lent.blocks.saturating_add(records.len() as u64);
        let bytes: usize = records.iter().map(Record::len).sum();
        state.lent.bytes = state.lent.bytes.saturating_add(bytes as u64);
        records
    }

    /// Whether it is not asked any more.
    fn is_over(&self) -> bool {
        let mut state = self.state();
        if state.in_vain > self.patience {
            let why = "it took too long, and gave nothing";
            state.lent.failed.get_or_insert(why.to_owned());
        }
        state.lent.failed.is_some()
    }

    async fn ask(&self, want: &[Handle]) -> Result<Found, String> {
        match &self.way {
            Way::Server(server) => {
                let link = server.link().await?;
                let got = link.get_many(want, 0).await;
                Ok((got.map_err(|e| e.to_string())?, 0))
            }
            Way::Directory(asks) => {
                let (answer, answered) = oneshot::channel();
                let want = want.to_vec();
                let sent = asks.send(Asked { want, answer });
                let ended = || "the thread that reads it has ended".to_owned();
                sent.map_err(|_| ended())?;
                let answer = answered.await.map_err(|_| ended())?;
                answer.map_err(|e| e.to_string())
            }
        }
    }
}

impl Server {
    /// The connection, which is made once.
    async fn link(&self) -> Result<Link, String> {
        let mut link = self.link.lock().await;
        if let Some(link) = &*link {
            return Ok(link.clone());
        }
        let connected = Link::connect_to_any(&self.to, self.volume, &self.device, &self.options);
        let connected = connected.await.map_err(|e| e.to_string())?;
        Ok(link.insert(connected).clone())
    }
}

/// Opens a directory, and reads it in a thread that nobody waits for: a disk may not answer. None: the thread has ended.
async fn directory(
    path: PathBuf,
    volume: VolumeId,
    open_directory: OpenDirectory,
) -> Result<Option<mpsc::Sender<Asked>>, DirectoryError> {
    let (asks, asked) = mpsc::channel::<Asked>();
    let (open, opened) = oneshot::channel();
    let thread = std::thread::Builder::new().name("other-place".to_owned());
    let spawned = thread.spawn(move || {
        let mut blocks = match open_directory(&path, volume) {
            Ok(blocks) => blocks,
            // The caller may have gone, here and below.
            Err(error) => return drop(open.send(Err(error))),
        };
        let _ = open.send(Ok(()));
        for Asked { want, answer } in asked {
            if !answer.is_closed() {
                let _ = answer.send(blocks.get(&want));
            }
        }
    });
    if spawned.is_err() {
        return Ok(None);
    }
    match opened.await {
        Ok(opened) => opened.map(|()| Some(asks)),
        Err(_) => Ok(None),
    }
}
