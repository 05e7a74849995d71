//! New content of a file out of its present content and what programs changed of it, at the cost of what changed.
//!
//! [`Overlay`] says what changed. [`edited`] cuts the changed stretches into blocks of [`PIECE_BYTES`] at multiples of that
//! length, widened to whole blocks of the present content, puts them, and replaces them in the array tree
//! (`trust::array::splice`). Memory grows with the number of changed ranges, not with lengths. Design: *Share*, Mount, Commit.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use content::blocks::Blocks;
use reader::{Fetch, ReadError, Tree};
use share::writeback::{From, Overlay};
use store::{BlockSink, StoreError};
use trust::array::{ArrayRoot, Child, Extent, Node, Nodes, edges, splice};
use trust::inode::{Content, FileContent, Inode, MAX_INLINE_BYTES};
use trust::{ArrayNode, Data, Handle, Hasher, Record, Reject};

/// Length of a block of changed content, and the multiples at which it is cut, bytes.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Packed blocks that wait until they are put together, bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Why there is no new content.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The present content cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The local bytes cannot be read.
    #[error("the local bytes cannot be read: {0}")]
    Local(io::Error),
    /// The sink did not take it.
    #[error(transparent)]
    Sink(#[from] StoreError),
    /// The format refuses the content: it is too long.
    #[error("the content cannot be cut into blocks: {0}")]
    Refused(#[from] Reject),
}

/// Fills a buffer with local bytes from an offset on.
pub type ReadLocal<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync + 'a;

/// What content is edited, and with what.
pub struct Edit<'a> {
    /// Reads the present content.
    pub tree: &'a Tree,
    /// The file, as it is now.
    pub base: &'a Inode,
    /// What changed of its content.
    pub overlay: &'a Overlay,
    /// The local bytes.
    pub local: &'a ReadLocal<'a>,
    /// How long a read may wait.
    pub how: Fetch,
}

impl Edit<'_> {
    /// `len` bytes of the content as it is with the changes, from `offset` on; fewer only at its end.
    ///
    /// # Errors
    /// [`EditError::Read`], [`EditError::Local`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, EditError> {
        let until = offset.saturating_add(len as u64);
        let mut out = Vec::with_capacity(len.min(PIECE_BYTES as usize));
        let mut at = offset;
        while let Some((range, from)) = self.overlay.stretch(at, until) {
            let begin = out.len();
            let bytes = (range.end - range.start) as usize;
            match from {
                From::Local => {
                    out.resize(begin + bytes, 0);
                    (self.local)(range.start, &mut out[begin..]).map_err(EditError::Local)?;
                }
                From::Base => {
                    let read = self.tree.read(self.base, range.start, bytes, self.how);
                    for piece in read.await? {
                        out.extend_from_slice(&piece);
                    }
                    // The overlay shows no more of the base than there is.
                    out.resize(begin + bytes, 0);
                }
                From::Nowhere => out.resize(begin + bytes, 0),
            }
            at = range.end;
        }
        Ok(out)
    }

    /// The new content, whose blocks are in the sink then.
    ///
    /// # Errors
    /// [`EditError`].
    pub async fn content(
        &self,
        hasher: &Hasher,
        sink: &dyn BlockSink,
    ) -> Result<FileContent, EditError> {
        let len = self.overlay.len();
        if len == 0 {
            return Ok(FileContent::Empty);
        }
        if len <= MAX_INLINE_BYTES as u64 {
            let bytes = self.read(0, MAX_INLINE_BYTES).await?;
            return Ok(FileContent::Inline(bytes.into()));
        }
        let base = match &self.base.content {
            Content::Regular(FileContent::Array(root)) => Some(*root),
            _ => None,
        };
        let mut known = Known::new(hasher);
        let base_len = base.map_or(0, |root| root.len);
        let changed = match base {
            Some(root) => self.widened(&root, &mut known).await?,
            // What lies in the inode itself is written as a whole.
            None => std::iter::once(0..len).collect(),
        };
        let mut putting = Putting::new(hasher, sink);
        let mut root = base;
        // From the end on, so that the offsets before stay as they are.
        for range in changed.into_iter().rev() {
            let extents = self.cut(range.clone(), &mut putting).await?;
            let is_end = range.end >= len;
            let old_end = match is_end {
                true => root.map_or(0, |root| root.len),
                false => range.end,
            };
            let old = range.start.min(base_len)..old_end;
            root = self.replaced(root, old, &extents, &mut known).await?;
        }
        let Some(root) = root else {
            return Ok(FileContent::Empty);
        };
        for node in known.new_below(&root) {
            putting.block::<ArrayNode>(&node).await?;
        }
        putting.end().await?;
        Ok(FileContent::Array(root))
    }

    /// The changed ranges, widened to multiples of [`PIECE_BYTES`] and to whole blocks of the base. Those that meet are
    /// one.
    async fn widened(
        &self,
        root: &ArrayRoot,
        known: &mut Known<'_>,
    ) -> Result<Vec<Range<u64>>, EditError> {
        let len = self.overlay.len();
        let kept = self.overlay.base_len().min(root.len);
        let mut all: Vec<Range<u64>> = Vec::new();
        for range in self.overlay.changed(root.len) {
            let start = range.start - range.start % PIECE_BYTES;
            let end = range.end.checked_next_multiple_of(PIECE_BYTES);
            let end = end.unwrap_or(len).min(len);
            // What changes up to the end, or at it, replaces all of the base that follows.
            let is_end = end >= kept;
            let old_end = if is_end { root.len } else { end };
            let old = start.min(root.len)..old_end;
            let wide = loop {
                match edges(Some(root), old.clone(), &*known) {
                    Ok(edges) => break edges.range,
                    Err(Stop::Refused(why)) => return Err(why.into()),
                    Err(Stop::Missing(handle)) => self.learn(handle, known).await?,
                }
            };
            let end = if is_end { len } else { wide.end.min(len) };
            let range = wide.start.min(start)..end;
            match all.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => all.push(range),
            }
        }
        Ok(all)
    }

    /// The tree with other extents in the place of a range.
    async fn replaced(
        &self,
        root: Option<ArrayRoot>,
        old: Range<u64>,
        extents: &[Extent],
        known: &mut Known<'_>,
    ) -> Result<Option<ArrayRoot>, EditError> {
        loop {
            let made = RefCell::new(Vec::new());
            let keep =
                |handle, bytes: &bytes::Bytes| made.borrow_mut().push((handle, bytes.clone()));
            let spliced = splice(
                known.hasher,
                root.as_ref(),
                old.clone(),
                extents,
                &*known,
                keep,
            );
            match spliced {
                Ok(root) => {
                    for (handle, bytes) in made.into_inner() {
                        known.add(handle, bytes)?;
                    }
                    return Ok(root);
                }
                Err(Stop::Refused(why)) => return Err(why.into()),
                Err(Stop::Missing(handle)) => self.learn(handle, known).await?,
            }
        }
    }

    async fn learn(
        &self,
        handle: Handle<ArrayNode>,
        known: &mut Known<'_>,
    ) -> Result<(), EditError> {
        let nodes = self.tree.blocks().get_many(&[handle], self.how).await?;
        known
            .old
            .extend(nodes.into_iter().map(|node| (handle, node)));
        Ok(())
    }

    /// Cuts a range of the new content, and puts its blocks. Stretches of zeros are holes.
    async fn cut(
        &self,
        range: Range<u64>,
        putting: &mut Putting<'_>,
    ) -> Result<Vec<Extent>, EditError> {
        let mut extents: Vec<Extent> = Vec::new();
        let hole = |extents: &mut Vec<Extent>, more: u64| match extents.last_mut() {
            Some(Extent::Hole { len }) => *len += more,
            _ => extents.push(Extent::Hole { len: more }),
        };
        let mut at = range.start;
        while at < range.end {
            let piece_end = (at - at % PIECE_BYTES).saturating_add(PIECE_BYTES);
            let end = piece_end.min(range.end);
            // A long hole costs nothing.
            if let Some((zeros, From::Nowhere)) = self.overlay.stretch(at, range.end)
                && zeros.end >= end
            {
                let until = match zeros.end == range.end {
                    true => range.end,
                    false => zeros.end - zeros.end % PIECE_BYTES,
                };
                hole(&mut extents, until.max(end) - at);
                at = until.max(end);
                continue;
            }
            let bytes = self.read(at, (end - at) as usize).await?;
            match bytes.iter().all(|byte| *byte == 0) {
                true => hole(&mut extents, end - at),
                false => {
                    let handle = putting.block::<Data>(&bytes).await?;
                    let len = bytes.len() as u32;
                    extents.push(Extent::Data { handle, len });
                }
            }
            at = end;
        }
        Ok(extents)
    }
}

/// Nodes that an edit needs: those that the base has, as they were fetched, and new ones.
struct Known<'a> {
    hasher: &'a Hasher,
    old: HashMap<Handle<ArrayNode>, Arc<Node>>,
    new: HashMap<Handle<ArrayNode>, (Arc<Node>, bytes::Bytes)>,
}

/// An edit cannot go on.
enum Stop {
    Missing(Handle<ArrayNode>),
    Refused(Reject),
}

impl std::convert::From<Reject> for Stop {
    fn from(why: Reject) -> Self {
        Stop::Refused(why)
    }
}

impl Nodes for Known<'_> {
    type Error = Stop;

    fn node(&self, handle: &Handle<ArrayNode>) -> Result<Node, Stop> {
        let new = self.new.get(handle).map(|(node, _)| node);
        let node = new.or_else(|| self.old.get(handle));
        node.map(|node| Node::clone(node))
            .ok_or(Stop::Missing(*handle))
    }
}

impl<'a> Known<'a> {
    fn new(hasher: &'a Hasher) -> Known<'a> {
        Known {
            hasher,
            old: HashMap::new(),
            new: HashMap::new(),
        }
    }

    fn add(&mut self, handle: Handle<ArrayNode>, bytes: bytes::Bytes) -> Result<(), Reject> {
        let (_, block) = self.hasher.seal::<ArrayNode>(bytes.clone());
        let node = Arc::new(Node::decode(&block)?);
        self.new.insert(handle, (node, bytes));
        Ok(())
    }

    /// The new nodes of a tree. Those of steps in between are left out.
    fn new_below(&self, root: &ArrayRoot) -> Vec<bytes::Bytes> {
        let mut found = Vec::new();
        let mut below = vec![root.top()];
        while let Some(child) = below.pop() {
            if let Child::Node { handle, .. } = child
                && let Some((node, bytes)) = self.new.get(&handle)
            {
                found.push(bytes.clone());
                below.extend(node.children());
            }
        }
        found
    }
}

/// Blocks on their way into a sink, in batches.
struct Putting<'a> {
    blocks: Blocks<'a>,
    sink: &'a dyn BlockSink,
    records: Vec<Record>,
    bytes: usize,
}

impl<'a> Putting<'a> {
    fn new(hasher: &'a Hasher, sink: &'a dyn BlockSink) -> Putting<'a> {
        Putting {
            blocks: Blocks::new(hasher),
            sink,
            records: Vec::new(),
            bytes: 0,
        }
    }

    async fn block<K: trust::BlockKind>(&mut self, plain: &[u8]) -> Result<Handle<K>, EditError> {
        let (handle, record) = self.blocks.record::<K>(plain)?;
        self.bytes += record.len();
        self.records.push(record);
        if self.bytes >= BATCH_BYTES {
            self.end().await?;
        }
        Ok(handle)
    }

    async fn end(&mut self) -> Result<(), EditError> {
        if !self.records.is_empty() {
            self.sink.put(&self.records).await?;
        }
        self.records.clear();
        self.bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
