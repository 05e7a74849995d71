//! The meaning of each request on a published volume (docs/semantics.md).
//!
//! Every operation that may have to wait is an async fn with a `Fetch`. `file_system` first drives it
//! under `Fetch::Cached`, where it never waits; if something is not cached, it starts the operation
//! again with a deadline. Nothing here changes state before the last wait, so that is harmless.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use trust::inode::{Content, FileContent, Inode, MAX_NAME_BYTES};
use volume::{Fetch, Snapshot, Volume, VolumeError};

use crate::attributes::{self, Owners};
use crate::fuse::request::{Attributes, Entry, Lookup};
use crate::fuse::{Error, FileAttr, INodeNo};
use crate::published::directory::OpenDirectory;
use crate::published::failure::Failure;
use crate::published::faults::Faults;
use crate::published::nodes::{Node, Nodes};
use crate::published::recording::Recorder;
use crate::published::repeats::Repeats;
use crate::published::view::View;

/// How long the kernel may believe a name or attributes while the statement is valid.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// The same if the kernel cannot be notified that they are stale.
const SHORT: Duration = Duration::from_secs(1);

/// The mounted volume: everything that requests share.
#[derive(Debug)]
pub struct Core {
    /// The volume that is mounted.
    pub volume: Arc<Volume>,
    /// Files that the kernel knows.
    pub nodes: Nodes,
    /// Counters of failures.
    pub faults: Faults,
    /// Notes what programs read, if that was asked for.
    pub recorder: Option<Arc<Recorder>>,
    owners: Owners,
    repeats: Repeats,
    view: RwLock<Arc<View>>,
    longest_ttl: RwLock<Duration>,
    open: Mutex<HashMap<u64, Arc<OpenDirectory>>>,
    next_handle: AtomicU64,
}

impl Core {
    /// Begins with the version that the volume has adopted.
    pub fn new(volume: Arc<Volume>, owners: Owners, recorder: Option<Arc<Recorder>>) -> Self {
        let snapshot = volume.snapshot();
        let nodes = Nodes::new(*volume.id().as_bytes(), snapshot.root().clone(), 1);
        Core {
            volume,
            nodes,
            faults: Faults::default(),
            recorder,
            owners,
            repeats: Repeats::default(),
            view: RwLock::new(Arc::new(View {
                serial: 1,
                snapshot,
            })),
            longest_ttl: RwLock::new(SHORT),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// The newest version, valid or not: open files stay readable.
    pub fn view(&self) -> Arc<View> {
        self.view
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The newest version, if its statement is valid.
    pub fn current(&self) -> Result<Arc<View>, VolumeError> {
        let view = self.view();
        let until = view.snapshot.valid_until();
        if self.volume.now() >= until {
            return Err(VolumeError::Expired { until });
        }
        Ok(view)
    }

    /// Shows `snapshot` from now on: as a new version, or as the same one under a renewed statement.
    pub fn show(&self, snapshot: Arc<Snapshot>, new_version: bool) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        let serial = view.serial + u64::from(new_version);
        *view = Arc::new(View { serial, snapshot });
    }

    /// From now on the kernel can be notified that names are stale, so it may cache them for long.
    pub fn names_can_be_recalled(&self) {
        *self
            .longest_ttl
            .write()
            .unwrap_or_else(PoisonError::into_inner) = LONG;
    }

    /// How long the kernel may cache answers from `view`: never past the expiry of its statement.
    pub fn ttl(&self, view: &View) -> Duration {
        let left = view
            .snapshot
            .valid_until()
            .saturating_sub(self.volume.now());
        // `now` is in whole seconds, rounded down.
        let left = Duration::from_secs(left.saturating_sub(1));
        left.min(
            *self
                .longest_ttl
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// The node of a number, which the kernel must have been given.
    pub fn node(&self, number: u64) -> Result<Arc<Node>, Failure> {
        self.nodes
            .get(number)
            .ok_or(Failure::Plain(Error::StaleInode))
    }

    /// The directory at a node's path in `view`; ENOENT if that version has none there.
    pub async fn directory(
        &self,
        node: &Arc<Node>,
        view: &View,
        how: Fetch,
    ) -> Result<Arc<Inode>, Failure> {
        if node.file().is_some() {
            return Err(Error::NotADirectory.into());
        }
        self.nodes.note_use(node);
        let mut unbound = Vec::new();
        let mut at = node.clone();
        let mut inode = loop {
            match at.binding() {
                Some(binding) if binding.serial == view.serial => break binding.inode,
                _ => {}
            }
            match at.parent().cloned() {
                Some(parent) => {
                    unbound.push(at);
                    at = parent;
                }
                None => {
                    let root = view.snapshot.root().clone();
                    at.bind(view.serial, Some(root.clone()));
                    break Some(root);
                }
            }
        };
        while let Some(node) = unbound.pop() {
            inode = match inode {
                Some(parent) => view.snapshot.lookup(&parent, node.name(), how).await?,
                None => None,
            }
            .filter(|inode| matches!(inode.content, Content::Directory { .. }))
            .map(Arc::new);
            node.bind(view.serial, inode.clone());
        }
        inode.ok_or(Failure::Plain(Error::NotFound))
    }

    /// LOOKUP.
    pub async fn lookup(&self, parent: u64, name: &Bytes, how: Fetch) -> Result<Lookup, Failure> {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong.into());
        }
        let view = self.current()?;
        let parent = self.node(parent)?;
        let directory = self.directory(&parent, &view, how).await?;
        let Some(inode) = view.snapshot.lookup(&directory, name, how).await? else {
            return Ok(Lookup::Absent(self.ttl(&view)));
        };
        if matches!(directory.content, Content::Directory { opaque: true, .. }) {
            parent.saw(name);
        }
        if let Some(recorder) = &self.recorder {
            recorder.found(&parent, name);
        }
        let attributes = self.enter(&parent, name, inode, &view);
        Ok(Lookup::Found(Entry {
            attributes,
            ttl: self.ttl(&view),
            generation: 0,
        }))
    }

    /// Counts a look-up and gives the attributes to answer with.
    pub fn enter(&self, parent: &Arc<Node>, name: &[u8], inode: Inode, view: &View) -> FileAttr {
        let mut attributes = attributes::of(&inode, 0, &self.owners);
        let node = self.nodes.enter(parent, name, inode, view.serial);
        attributes.ino = INodeNo(node.number());
        attributes
    }

    /// GETATTR. Works for a known file even after the statement has expired: such a file is open, because
    /// for others the kernel looks the name up first.
    pub async fn attributes(&self, number: u64, how: Fetch) -> Result<Attributes, Failure> {
        let node = self.node(number)?;
        let (inode, view) = match node.file() {
            Some(inode) => (inode, self.view()),
            None => {
                let view = self.current()?;
                (self.directory(&node, &view, how).await?, view)
            }
        };
        Ok(Attributes {
            attributes: attributes::of(&inode, number, &self.owners),
            ttl: self.ttl(&view),
        })
    }

    /// READLINK.
    pub fn target(&self, number: u64) -> Result<Bytes, Failure> {
        match self.node(number)?.file().as_deref() {
            Some(Inode {
                content: Content::Symlink(target),
                ..
            }) => Ok(target.clone()),
            _ => Err(Error::InvalidArgument.into()),
        }
    }

    /// READ: bytes of the content that the number stands for, independent of the version adopted now.
    pub async fn read(
        &self,
        number: u64,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, Failure> {
        let node = self.node(number)?;
        let inode = node.file().ok_or(Failure::Plain(Error::IsADirectory))?;
        if let Some(directory) = node.parent() {
            self.nodes.note_use(directory);
        }
        if !matches!(inode.content, Content::Regular(_)) {
            return Err(Error::InvalidArgument.into());
        }
        if let Fetch::Until(_) = how
            && let Some(error) = self.repeats.take(number, (offset, len))
        {
            return Err(error.into());
        }
        let read = self.view().snapshot.read(&inode, offset, len, how).await;
        let bytes = read.map_err(VolumeError::from).inspect_err(|error| {
            if let Fetch::Until(deadline) = how {
                self.repeats.note(number, (offset, len), deadline, error);
            }
        })?;
        if let Some(recorder) = &self.recorder {
            recorder.read(&node, offset, len, inode.size);
        }
        Ok(bytes)
    }

    /// The inode behind a number, for extended attributes.
    async fn inode(&self, number: u64, how: Fetch) -> Result<(Arc<Inode>, Arc<View>), Failure> {
        let node = self.node(number)?;
        match node.file() {
            Some(inode) => Ok((inode, self.view())),
            None => {
                let view = self.current()?;
                Ok((self.directory(&node, &view, how).await?, view))
            }
        }
    }

    /// GETXATTR.
    pub async fn xattr(&self, number: u64, name: &Bytes, how: Fetch) -> Result<Bytes, Failure> {
        let (inode, view) = self.inode(number, how).await?;
        if let Some(ours) = name.strip_prefix(OURS) {
            return self.our_xattr(ours, &inode, &view, number);
        }
        let list = view.snapshot.xattrs(&inode, how).await?;
        let found = list.into_iter().find(|(n, _)| n == name);
        found
            .map(|(_, value)| value)
            .ok_or(Failure::Plain(Error::NoSuchAttribute))
    }

    /// LISTXATTR: names, each ended by a NUL. The mount's own are not listed, so that a copy of the tree
    /// does not contain them.
    pub async fn xattr_names(&self, number: u64, how: Fetch) -> Result<Vec<u8>, Failure> {
        let (inode, view) = self.inode(number, how).await?;
        let mut names = Vec::new();
        for (name, _) in view.snapshot.xattrs(&inode, how).await? {
            if !name.starts_with(OURS) {
                names.extend_from_slice(&name);
                names.push(0);
            }
        }
        Ok(names)
    }

    fn our_xattr(
        &self,
        name: &[u8],
        inode: &Inode,
        view: &View,
        number: u64,
    ) -> Result<Bytes, Failure> {
        let record = view.snapshot.record();
        let text = match name {
            b"volume" => self.volume.id().to_string(),
            b"version" => record.version.to_string(),
            b"handle" if number == crate::published::nodes::ROOT => record.root.to_string(),
            b"handle" => content_handle(inode).ok_or(Failure::Plain(Error::NoSuchAttribute))?,
            _ => return Err(Error::NoSuchAttribute.into()),
        };
        Ok(Bytes::from(text))
    }

    /// OPENDIR: pins the version that the directory will show.
    pub async fn open_directory(&self, number: u64, how: Fetch) -> Result<u64, Failure> {
        let view = self.current()?;
        let node = self.node(number)?;
        let inode = self.directory(&node, &view, how).await?;
        let mut opaque = None;
        if matches!(inode.content, Content::Directory { opaque: true, .. }) {
            let mut present = Vec::new();
            for name in node.seen() {
                if view.snapshot.lookup(&inode, &name, how).await?.is_some() {
                    present.push(name);
                }
            }
            opaque = Some(present);
        }
        if let Some(recorder) = &self.recorder {
            recorder.listed(&node);
        }
        let directory = OpenDirectory::new(view, node, inode, opaque);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.opened().insert(handle, Arc::new(directory));
        Ok(handle)
    }

    /// The directory that OPENDIR gave a handle to.
    pub fn opened_directory(&self, handle: u64) -> Result<Arc<OpenDirectory>, Failure> {
        self.opened()
            .get(&handle)
            .cloned()
            .ok_or(Failure::Plain(Error::BadHandle))
    }

    /// RELEASEDIR.
    pub fn close_directory(&self, handle: u64) {
        let closed = self.opened().remove(&handle);
        drop(closed);
    }

    /// At most `most` directories: open ones first, then those in which files were looked up or read last.
    pub fn directories_in_use(&self, most: usize) -> Vec<Arc<Node>> {
        let open: HashSet<u64> = self
            .opened()
            .values()
            .map(|open| open.node.number())
            .collect();
        self.nodes.in_use(&open, most)
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<OpenDirectory>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of a number, for logs.
    pub fn path(&self, number: u64) -> String {
        self.nodes
            .get(number)
            .map_or_else(|| format!("file number {number}"), |node| node.path())
    }

    /// Owners of files.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }
}

/// Prefix of the mount's own attributes.
const OURS: &[u8] = b"user.bulla.";

/// Handle of a file's or directory's top block, if it has one.
fn content_handle(inode: &Inode) -> Option<String> {
    match &inode.content {
        Content::Directory { map: Some(map), .. } => Some(map.handle.to_string()),
        Content::Regular(FileContent::Array(root)) if root.top != [0; 32] => {
            Some(trust::Handle::<trust::Any>::from_bytes(root.top).to_string())
        }
        _ => None,
    }
}
