//! A tree of verified blocks: names, attributes and content below one root inode (SFSRO 4.2).
//!
//! Every read exists once, as an async fn that takes a [`Fetch`]: under [`Fetch::Cached`] it never
//! waits and can be driven by [`crate::blocks::now`] from any thread; under [`Fetch::Until`] it asks
//! replicas. Names are believed absent only when the map tree proves it.

use std::ops::{Bound, Range};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use trust::array::{ArrayRoot, Extent};
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs, decode_xattrs};
use trust::map::{ChildRef, Find, Item, MapRoot};
use trust::{Handle, InodeBlock, MapNode, Reject};

use crate::blocks::{Blocks, Fetch};
use crate::error::ReadError;
use crate::extents::{PlacedExtent, extents, next_batch};
use crate::read_around::Expect;

/// Files of one block and at most this length are read with their neighbours, bytes.
const SMALL_FILE_BYTES: u64 = 64 << 10;
/// Largest xattr list that is read, bytes (what Linux itself can hold, with room).
const MAX_XATTR_BYTES: u64 = 2 << 20;
/// Leaves of a large directory that a listing asks for at once.
const LIST_AHEAD: usize = 16;
/// Symbolic links followed in one path.
const MAX_LINKS: usize = 40;

/// How long fetching ahead of a reader may take.
const AHEAD_DEADLINE: Duration = Duration::from_secs(10);

/// Never written, so the system lends its one page of zeros for all of it.
static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; 1 << 20]));

/// The tree below one root directory; every byte of it is verified as it is read.
#[derive(Debug, Clone)]
pub struct Tree {
    blocks: Arc<Blocks>,
    root: Arc<Inode>,
}

/// Where a stretch of a file holds data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// Byte ranges, in order, not touching one another.
    pub data: Vec<Range<u64>>,
    /// Up to where this is known: the end of what was asked, or of the hole that passes it.
    pub until: u64,
}

impl Tree {
    /// Reads the root directory's inode.
    ///
    /// # Errors
    /// [`ReadError::Malformed`] when it is not a directory; else as [`Blocks::get_many`].
    pub async fn open(
        blocks: Arc<Blocks>,
        root: &Handle<InodeBlock>,
        how: Fetch,
    ) -> Result<Tree, ReadError> {
        let root = blocks.get(root, Expect::Near, how).await?;
        if !matches!(root.content, Content::Directory { .. }) {
            let why = Reject::BadTree {
                what: "root",
                why: "the root is not a directory",
            };
            return Err(ReadError::Malformed(why));
        }
        Ok(Tree { blocks, root })
    }

    /// The root directory.
    pub fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    /// The blocks below it.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// The inode of `name` in `directory`; `None` is proved absence.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when it is no directory; else as [`Blocks::get_many`].
    pub async fn lookup(
        &self,
        directory: &Inode,
        name: &[u8],
        how: Fetch,
    ) -> Result<Option<Inode>, ReadError> {
        let Some(root) = directory_map(directory)? else {
            return Ok(None);
        };
        let found = self.find(root, name, how).await?;
        if let Some(inode) = &found {
            self.blocks.siblings().found(root, name, inode);
        }
        Ok(found)
    }

    async fn find(
        &self,
        root: &MapRoot,
        name: &[u8],
        how: Fetch,
    ) -> Result<Option<Inode>, ReadError> {
        let began = Instant::now();
        self.go_to_directory(root, how);
        let mut child = root.child_ref();
        loop {
            let node = self.map_node(&child, how).await?;
            if child.handle == root.handle {
                self.arrived_at(root, name, began.elapsed());
            }
            child = match node.find(name, &child.interval) {
                Find::Absent => return Ok(None),
                Find::Value(value) => return self.entry(&value, how).await.map(Some),
                Find::Child(next) => next,
            };
        }
    }

    async fn map_node(
        &self,
        child: &ChildRef,
        how: Fetch,
    ) -> Result<Arc<trust::map::Node>, ReadError> {
        let node = self.blocks.get(&child.handle, Expect::Near, how).await?;
        node.check(child).map_err(ReadError::Malformed)?;
        Ok(node)
    }

    async fn entry(&self, value: &[u8], how: Fetch) -> Result<Inode, ReadError> {
        match Entry::decode(value).map_err(ReadError::Malformed)? {
            Entry::Inode(inode) => Ok(inode),
            Entry::Block(handle) => self
                .blocks
                .get(&handle, Expect::Nothing, how)
                .await
                .map(|inode| inode.as_ref().clone()),
        }
    }

    /// Up to `max` entries of `directory` in order of their names, those after `after`.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    pub async fn list(
        &self,
        directory: &Inode,
        after: Option<&[u8]>,
        max: usize,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Inode)>, ReadError> {
        let mut entries = Vec::new();
        let Some(root) = directory_map(directory)? else {
            return Ok(entries);
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut stack = vec![root.child_ref()];
        while let Some(child) = stack.pop() {
            let node = self.map_node(&child, how).await?;
            let mut below = Vec::new();
            for item in node.iter_from(from, &child.interval) {
                match item {
                    Item::Child(next) => below.push(next),
                    Item::Entry(..) if entries.len() >= max => return Ok(entries),
                    Item::Entry(name, value) => {
                        trust::inode::check_name(&name).map_err(ReadError::Malformed)?;
                        entries.push((name, self.entry(&value, how).await?));
                    }
                }
            }
            if child.level == 2 {
                let ahead: Vec<Handle<MapNode>> =
                    below.iter().take(LIST_AHEAD).map(|c| c.handle).collect();
                self.blocks.get_many(&ahead, how).await?;
            }
            below.reverse();
            stack.append(&mut below);
        }
        Ok(entries)
    }

    /// `len` bytes of `file` from `offset` (fewer at its end), in extents that share memory.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when it is no regular file; else as [`Blocks::get_many`].
    pub async fn read(
        &self,
        file: &Inode,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, ReadError> {
        let Content::Regular(content) = &file.content else {
            return Err(wrong_kind("not a regular file"));
        };
        match content {
            FileContent::Empty => Ok(Vec::new()),
            FileContent::Inline(bytes) => Ok(vec![slice(bytes, 0, offset, end(offset, len))]),
            FileContent::Array(root) => self.read_stream(root, offset, len, how).await,
        }
    }

    /// Like [`Tree::read_array`] for a reader who may go on, or be one that does.
    async fn read_stream(
        &self,
        root: &ArrayRoot,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, ReadError> {
        let until = end(offset, len).min(root.len);
        self.blocks.ahead().read(root, offset, until);
        let late = how != Fetch::Cached;
        let began = Instant::now();
        // The neighbours come another way where they are fetched already.
        let expect = match self.go_to_file(root, how).await {
            true => Expect::Nothing,
            false => Expect::Near,
        };
        if late {
            // Begins when this read waits, and so after the request for what it wants.
            self.read_ahead(root, late);
        }
        let (out, extents) = self
            .read_extents(root, (offset, until), expect, how)
            .await?;
        self.arrived(&root.top, began.elapsed());
        if !late {
            self.read_ahead(root, late);
        }
        let ended = extents.iter().filter_map(|extent| match &extent.extent {
            Extent::Data { handle, len } => {
                let len = u64::from(*len);
                (extent.start + len <= until).then_some((handle.any(), len))
            }
            Extent::Hole { .. } => None,
        });
        for handle in self.blocks.ahead().passed(root, ended) {
            self.blocks.let_go(&handle);
        }
        Ok(out)
    }

    /// Begins to fetch what a sequential reader will want next, if that is to be done.
    fn read_ahead(&self, root: &ArrayRoot, late: bool) {
        let Some(runtime) = self.blocks.runtime() else {
            return;
        };
        for request in self.blocks.ahead().requests(root, late) {
            let (blocks, root) = (self.blocks.clone(), *root);
            runtime.spawn(async move {
                let began = Instant::now();
                let how = Fetch::Until(began + AHEAD_DEADLINE);
                // Nobody waits for it: a reader who comes for these blocks sees why they are missing.
                if let Ok(extents) = extents(&blocks, &root, request.start, request.end, how).await
                {
                    let (_, handles) = next_batch(&extents);
                    let _ = blocks.get_many(&handles, how).await;
                }
                blocks.ahead().done(&root, &request, began.elapsed());
            });
        }
    }

    /// Like [`Tree::read`] for any array tree.
    pub async fn read_array(
        &self,
        root: &ArrayRoot,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, ReadError> {
        let until = end(offset, len).min(root.len);
        let (out, _) = self
            .read_extents(root, (offset, until), Expect::Near, how)
            .await?;
        Ok(out)
    }

    /// The bytes of `[offset, until)` and what they were taken from.
    async fn read_extents(
        &self,
        root: &ArrayRoot,
        (offset, until): (u64, u64),
        expect: Expect,
        how: Fetch,
    ) -> Result<(Vec<Bytes>, Vec<PlacedExtent>), ReadError> {
        let mut out = Vec::new();
        if offset >= until {
            return Ok((out, Vec::new()));
        }
        let extents = extents(&self.blocks, root, offset, until, how).await?;
        let mut rest = extents.as_slice();
        while !rest.is_empty() {
            let (batch, handles) = next_batch(rest);
            let blocks = match handles.as_slice() {
                [one] if root.len <= SMALL_FILE_BYTES => {
                    vec![self.blocks.get(one, expect, how).await?]
                }
                many => self.blocks.get_many(many, how).await?,
            };
            let mut blocks = blocks.into_iter();
            let (now, later) = rest.split_at(batch);
            for extent in now {
                match extent.extent {
                    Extent::Hole { len } => zeros(extent.start, len, offset, until, &mut out),
                    Extent::Data { len, .. } => {
                        let block = blocks.next().ok_or(ReadError::NotCached)?;
                        if block.bytes().len() as u64 != u64::from(len) {
                            let why = "a data block has another length than its extent";
                            return Err(ReadError::Malformed(Reject::BadTree {
                                what: "file",
                                why,
                            }));
                        }
                        out.push(slice(block.bytes(), extent.start, offset, until));
                    }
                }
            }
            rest = later;
        }
        Ok((out, extents))
    }

    /// Where in `[offset, until)` of `file` there is data: everything else is zeros that need not be
    /// read. Adjacent blocks are one run.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub async fn data_runs(
        &self,
        file: &Inode,
        offset: u64,
        until: u64,
        how: Fetch,
    ) -> Result<Runs, ReadError> {
        let Content::Regular(content) = &file.content else {
            return Err(wrong_kind("not a regular file"));
        };
        let until = until.min(file.content.size());
        let FileContent::Array(root) = content else {
            let data = (offset < until).then_some(offset..until);
            return Ok(Runs {
                data: data.into_iter().collect(),
                until,
            });
        };
        let mut runs = Runs {
            data: Vec::new(),
            until,
        };
        if offset >= until {
            return Ok(runs);
        }
        for extent in extents(&self.blocks, root, offset, until, how).await? {
            let end = extent.start.saturating_add(extent.extent.len());
            match (extent.extent, runs.data.last_mut()) {
                // A hole is passed whole, however far it goes beyond what was asked.
                (Extent::Hole { .. }, _) => runs.until = runs.until.max(end),
                (Extent::Data { .. }, Some(last)) if last.end == extent.start => {
                    last.end = end.min(until);
                }
                (Extent::Data { .. }, _) => {
                    runs.data.push(extent.start.max(offset)..end.min(until));
                }
            }
        }
        Ok(runs)
    }

    /// Extended attributes, sorted by name.
    ///
    /// # Errors
    /// As [`Blocks::get_many`].
    pub async fn xattrs(
        &self,
        inode: &Inode,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        match &inode.xattrs {
            Xattrs::None => Ok(Vec::new()),
            Xattrs::Inline(list) => Ok(list.clone()),
            Xattrs::Stored(root) => {
                if root.len > MAX_XATTR_BYTES {
                    let why = "extended attributes over 2 MiB";
                    return Err(ReadError::Malformed(Reject::BadTree { what: "inode", why }));
                }
                let bytes = self
                    .read_array(root, 0, root.len as usize, how)
                    .await?
                    .concat();
                decode_xattrs(&bytes).map_err(ReadError::Malformed)
            }
        }
    }

    /// The inode at `path` (components separated by `/`, relative to the root), not following a
    /// symbolic link at its end or on its way.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when a component on the way is no directory.
    pub async fn resolve(&self, path: &[u8], how: Fetch) -> Result<Option<Arc<Inode>>, ReadError> {
        let mut at = self.root.clone();
        for name in components(path) {
            match self.lookup(&at, name, how).await? {
                Some(inode) => at = Arc::new(inode),
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Like [`Tree::resolve`], following symbolic links inside the volume (at most 40); `..` and
    /// absolute targets are taken as from the volume's root, and never leave it.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] on too many links or a component that is no directory.
    pub async fn follow(&self, path: &[u8], how: Fetch) -> Result<Option<Arc<Inode>>, ReadError> {
        let mut way: Vec<Arc<Inode>> = vec![self.root.clone()];
        let mut todo: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let at = way.last().unwrap_or(&self.root).clone();
            let Some(inode) = self.lookup(&at, &name, how).await? else {
                return Ok(None);
            };
            let Content::Symlink(target) = &inode.content else {
                way.push(Arc::new(inode));
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                return Err(wrong_kind("too many symbolic links"));
            }
            if target.starts_with(b"/") {
                way.truncate(1);
            }
            todo.extend(components(target).rev().map(<[u8]>::to_vec));
        }
        Ok(way.pop())
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|b| *b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
}

fn wrong_kind(why: &'static str) -> ReadError {
    ReadError::WrongKind {
        path: String::new(),
        why,
    }
}

fn directory_map(inode: &Inode) -> Result<Option<&MapRoot>, ReadError> {
    match &inode.content {
        Content::Directory { map, .. } => Ok(map.as_ref()),
        _ => Err(wrong_kind("not a directory")),
    }
}

fn end(offset: u64, len: usize) -> u64 {
    offset.saturating_add(len as u64)
}

/// The part of `bytes`, which lie at `start`, that falls into `[offset, until)`.
fn slice(bytes: &Bytes, start: u64, offset: u64, until: u64) -> Bytes {
    let len = bytes.len() as u64;
    let from = offset.saturating_sub(start).min(len);
    let to = until.saturating_sub(start).min(len);
    bytes.slice(from as usize..to.max(from) as usize)
}

fn zeros(start: u64, len: u64, offset: u64, until: u64, out: &mut Vec<Bytes>) {
    let from = offset.max(start);
    let mut left = until.min(start.saturating_add(len)).saturating_sub(from);
    while left > 0 {
        let n = left.min(ZEROS.len() as u64);
        out.push(ZEROS.slice(..n as usize));
        left -= n;
    }
}
