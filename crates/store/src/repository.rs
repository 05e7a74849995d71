//! The repository: a directory of immutable files and the head (docs/formats/repository.md).
//!
//! Nothing in it is trusted. The checks here protect the program from a damaged or hostile directory.
//! Whether a block is the right one, only `trust::Hasher::check` decides;
//! [`Repository::read_verified`] calls it.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use trust::floor::Floor;
use trust::head::Head;
use trust::inode::Inode;
use trust::reach::{Found, Wanted};
use trust::signatures::Signatures;
use trust::tiles::TileName;
use trust::{Block, BlockKind, Frame, Handle, Hasher, Record, Reject, array, map};

use crate::blocking::Blocking;
use crate::disk::{Disk, Local, Patience, io_error, replace_file};
use crate::history_log;
pub use crate::history_log::MAX_LEAF_BYTES;
use crate::index::run::Lookup;
use crate::names::{self, FileId};
use crate::notes::{self, Note};
use crate::object::ObjectName;
use crate::policies;
use crate::read::{self, Answer, Reading, RegionSink};
use crate::read_memory::ReadMemory;
use crate::view::{OpenSegments, View, read_head};
use crate::{BlockStore, BoxFuture, MAX_RANGE_BYTES, Objects, Replica, StoreError, format};

/// A repository that is open for reading. Cheap to clone; all clones share index and open files.
#[derive(Clone)]
pub struct Repository {
    shared: Arc<Shared>,
    blocking: Blocking,
}

struct Shared {
    disk: Arc<dyn Disk>,
    view: RwLock<Arc<View>>,
    refreshing: Mutex<()>,
    segments: OpenSegments,
}

impl Repository {
    /// Creates an empty repository. The directory must not exist, or be empty, or hold what an
    /// interrupted `create` left.
    ///
    /// # Errors
    /// [`StoreError::Io`] (`AlreadyExists` when the directory holds anything else);
    /// [`StoreError::Locked`].
    pub fn create(dir: impl AsRef<Path>) -> Result<Repository, StoreError> {
        Repository::create_on(Arc::new(Local::new(dir.as_ref())))
    }

    /// Opens the repository in a directory.
    ///
    /// # Errors
    /// [`StoreError::NoRepository`], [`StoreError::Format`], [`StoreError::Damaged`],
    /// [`StoreError::Io`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Repository, StoreError> {
        Repository::open_on(Arc::new(Local::new(dir.as_ref())))
    }

    /// Opens the repository in a directory, creating it when there is none.
    ///
    /// # Errors
    /// Those of [`Repository::open`] and [`Repository::create`].
    pub fn open_or_create(dir: impl AsRef<Path>) -> Result<Repository, StoreError> {
        match Repository::open(&dir) {
            Err(StoreError::NoRepository { .. }) => Repository::create(dir),
            other => other,
        }
    }

    /// [`Repository::create`] on any disk.
    ///
    /// # Errors
    /// The same.
    pub fn create_on(disk: Arc<dyn Disk>) -> Result<Repository, StoreError> {
        let fail = |name: &'static str| {
            let disk = disk.clone();
            move |e| io_error(&*disk, name, e)
        };
        disk.make_dir("").map_err(fail(""))?;
        let parts = [names::INDEX_DIR, names::SEGMENT_DIR, names::LOG_DIR];
        let ours = |name: &String| {
            parts.contains(&name.as_str())
                || name == names::LOCK_FILE
                || name.ends_with(names::TEMPORARY)
        };
        if !disk.list("").map_err(fail(""))?.iter().all(ours) {
            let taken = std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                "is neither empty nor an unfinished repository",
            );
            return Err(io_error(&*disk, "", taken));
        }
        let lock = disk
            .lock(names::LOCK_FILE)
            .map_err(fail(names::LOCK_FILE))?;
        let _lock = lock.ok_or_else(|| StoreError::Locked {
            path: disk.path(""),
        })?;
        for dir in parts {
            disk.make_dir(dir).map_err(fail(dir))?;
        }
        // The format file comes last: it makes the directory a repository.
        replace_file(
            &*disk,
            names::FORMAT_FILE,
            "bulla.tmp",
            "",
            format::TEXT.as_bytes(),
        )?;
        Repository::open_on(disk.clone())
    }

    /// [`Repository::open`] on any disk.
    ///
    /// # Errors
    /// The same.
    pub fn open_on(disk: Arc<dyn Disk>) -> Result<Repository, StoreError> {
        format::read(&*disk)?;
        let view = View::load(&*disk, None)?;
        Ok(Repository {
            shared: Arc::new(Shared {
                disk,
                view: RwLock::new(Arc::new(view)),
                refreshing: Mutex::new(()),
                segments: OpenSegments::new(),
            }),
            blocking: Blocking::default(),
        })
    }

    /// Returns the same repository with this choice of where its futures wait for the disk. The
    /// default is [`Blocking::Pool`].
    #[must_use]
    pub fn with_blocking(self, blocking: Blocking) -> Repository {
        Repository { blocking, ..self }
    }

    /// Reads the head file again; true when it has changed. Reads that have begun keep the old index.
    /// Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`]; the old state stays in use.
    pub fn refresh(&self) -> Result<bool, StoreError> {
        let _one = self
            .shared
            .refreshing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let old = self.view();
        let head = read_head(self.disk())?;
        if head == old.head {
            return Ok(false);
        }
        let new = View::load(self.disk(), Some(&old))?;
        *self
            .shared
            .view
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        Ok(true)
    }

    /// Closes segments that neither the index nor these need.
    pub(crate) fn close_segments(&self, but: &HashSet<FileId>) {
        let mut needed = self.view().segments();
        needed.extend(but);
        self.shared.segments.close_others(&needed);
    }

    /// The statements as of the last [`Repository::refresh`]; empty before the first version.
    pub fn statements(&self) -> Bytes {
        self.view().head.statements.clone()
    }

    /// Whether the index has the block. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn contains(&self, handle: &Handle) -> Result<bool, StoreError> {
        let found = self.view().locate(self.disk(), handle, Patience::Wait)?;
        Ok(matches!(found, Lookup::At(_)))
    }

    /// Every segment that the index names.
    pub fn segments(&self) -> Vec<FileId> {
        let mut segments: Vec<FileId> = self.view().segments().into_iter().collect();
        segments.sort_unstable();
        segments
    }

    /// Number of index entries. It is the number of blocks if none was written twice.
    pub fn index_entries(&self) -> u64 {
        self.view().head.runs.iter().map(|r| r.entries).sum()
    }

    /// Reads records, waiting for the disk if needed, and passes them to `sink` in regions of one or
    /// more records, ready to be sent. Returns the handles that are missing.
    ///
    /// First come the wanted records, in the order of their locations; then at most `around` bytes of
    /// the records that follow the first wanted one. `sink` may stop the read.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when a record is not where the index says; [`StoreError::Io`]. Regions
    /// that were passed on before are good.
    pub fn read_blocking(
        &self,
        want: &[Handle],
        around: usize,
        sink: &mut RegionSink<'_>,
    ) -> Result<Vec<Handle>, StoreError> {
        self.reading(&self.view()).waiting(want, around, sink)
    }

    /// Reads one block and verifies it, waiting for the disk if needed.
    ///
    /// # Errors
    /// [`StoreError::NoBlock`] when the index does not have it; [`StoreError::WrongBlock`] when its
    /// record does not unpack, is of another kind or does not hash to `handle`;
    /// [`StoreError::Damaged`] when the index or the segment is damaged; [`StoreError::Io`].
    pub fn read_verified<K: BlockKind>(
        &self,
        handle: &Handle<K>,
        hasher: &Hasher,
    ) -> Result<Block<K>, StoreError> {
        let place = || self.place().to_owned();
        let mut found = None;
        self.read_blocking(&[handle.any()], 0, &mut |region| {
            found = Some(region.bytes);
            ControlFlow::Break(())
        })?;
        let region = found.ok_or_else(|| StoreError::NoBlock {
            place: place(),
            handle: handle.any(),
        })?;
        read::verify_region(&region, handle, hasher).map_err(|why| StoreError::WrongBlock {
            place: place(),
            handle: handle.any(),
            why,
        })
    }

    /// Reads, verifies and decodes a block that a walk wants, waiting for the disk if needed.
    ///
    /// # Errors
    /// As [`Repository::read_verified`]. [`StoreError::WrongBlock`] also for a block that matches its handle
    /// but is not a valid node (`Reject::is_publishers_fault`); [`StoreError::Unsupported`] for a node of a later
    /// bulla, which is not damaged.
    pub fn read_wanted(&self, wanted: &Wanted, hasher: &Hasher) -> Result<Found, StoreError> {
        let found = match wanted {
            Wanted::Data { handle, .. } => {
                let len = self.read_verified(handle, hasher)?.bytes().len() as u64;
                return Ok(Found::Data { len });
            }
            Wanted::Array { handle, .. } => {
                array::Node::decode(&self.read_verified(handle, hasher)?).map(Found::Array)
            }
            Wanted::Map(handle) => {
                map::Node::decode(&self.read_verified(handle, hasher)?).map(Found::Map)
            }
            Wanted::Inode(handle) => {
                Inode::from_block(&self.read_verified(handle, hasher)?).map(Found::Inode)
            }
        };
        let place = self.place().to_owned();
        found.map_err(|why| match why {
            Reject::Unsupported { what, why } => StoreError::Unsupported {
                place,
                why: format!("{what}, {why}"),
            },
            why => StoreError::WrongBlock {
                place,
                handle: wanted.handle(),
                why,
            },
        })
    }

    /// Reads records only if that needs no wait for the disk: `None` when it would, or when the answer
    /// would exceed [`read::MAX_CACHED_BYTES`].
    ///
    /// # Errors
    /// As [`Repository::read_blocking`].
    pub fn read_if_cached(
        &self,
        want: &[Handle],
        around: usize,
    ) -> Result<Option<Answer>, StoreError> {
        self.reading(&self.view()).if_cached(want, around)
    }

    /// Reads a leaf of the history log, if it exists. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn log_leaf(&self, epoch: u64, index: u64) -> Result<Option<Bytes>, StoreError> {
        history_log::leaf(self.disk(), epoch, index)
    }

    /// Reads a policy, if it exists. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn policy(&self, number: u64) -> Result<Option<Bytes>, StoreError> {
        policies::read(self.disk(), number)
    }

    /// The floor of a reader that was shown the genesis and the policies between it and the others of `head`, in
    /// their order. With it `head` can be judged. Blocks; reads one policy after the other.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] for a policy that is missing or is not the next one; [`StoreError::Io`].
    pub fn floor(&self, head: &Head, signatures: &mut Signatures) -> Result<Floor, StoreError> {
        policies::floor(self.disk(), head, signatures)
    }

    /// Reads a tile of the history log, if it exists. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn log_tile(&self, epoch: u64, tile: TileName) -> Result<Option<Bytes>, StoreError> {
        history_log::tile(self.disk(), epoch, tile)
    }

    /// Reads a note, if it exists. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is longer than a note can be; [`StoreError::Io`].
    pub fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        notes::read(self.disk(), note)
    }

    /// Reads at most `len_bytes` (and [`MAX_RANGE_BYTES`]) of an object from `offset` on, waiting for
    /// the disk if needed; `None` when there is no such object.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn read_object(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let name = name.to_string();
        let fail = |e| io_error(self.disk(), &name, e);
        let file = match self.disk().open(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail(e)),
        };
        let left = file.len_bytes().map_err(fail)?.saturating_sub(offset);
        let len_bytes = len_bytes.min(MAX_RANGE_BYTES);
        let len_bytes = len_bytes.min(usize::try_from(left).unwrap_or(len_bytes));
        let mut bytes = ReadMemory::of(len_bytes);
        let read = file.read_at(&mut bytes, offset).map_err(fail)?;
        bytes.truncate(read);
        Ok(Some(bytes.freeze()))
    }

    /// Runs `read`, which may wait for the disk, where [`Repository::with_blocking`] says.
    async fn wait_for<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Repository) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let repository = self.clone();
        let work = move || read(&repository);
        self.blocking.run(self.place(), work).await
    }

    fn reading<'a>(&'a self, view: &'a View) -> Reading<'a> {
        Reading {
            disk: self.disk(),
            view,
            segments: &self.shared.segments,
        }
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.shared.disk
    }

    /// The disk of the repository, for servers that send its files as they are.
    pub fn disk_shared(&self) -> Arc<dyn Disk> {
        self.shared.disk.clone()
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.shared
            .view
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl BlockStore for Repository {
    fn place(&self) -> &str {
        self.shared.disk.place()
    }

    /// Answers at once what the page cache holds. Everything else is read where
    /// [`Repository::with_blocking`] says.
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            if let Some(answer) = self.read_if_cached(want, around)? {
                return answer.records(self.disk());
            }
            let want = want.to_vec();
            self.wait_for(move |repository| {
                let mut answer = Answer::default();
                answer.missing = repository.read_blocking(&want, around, &mut |region| {
                    answer.regions.push(region);
                    ControlFlow::Continue(())
                })?;
                answer.records(repository.disk())
            })
            .await
        })
    }

    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        let answer = self.read_if_cached(&[*handle], 0).ok()??;
        let record = answer.records(self.disk()).ok()?.into_iter().next()?;
        Some(record.frame)
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Replica for Repository {
    /// Reads the head file again, so that a newly published version is seen.
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(self.wait_for(|repository| {
            repository.refresh()?;
            let statements = repository.statements();
            if statements.is_empty() {
                return Err(StoreError::NoVolume {
                    place: repository.place().to_owned(),
                });
            }
            Ok(statements)
        }))
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }
}

impl Objects for Repository {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(self.wait_for(move |r| r.read_object(name, offset, len_bytes)))
    }
}
