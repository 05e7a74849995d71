//! Content: the bytes of files, and where they hold data. Relies on [`crate::extents`].

use std::ops::Range;
use std::sync::LazyLock;
use std::time::Instant;

use bytes::Bytes;
use trust::array::{ArrayRoot, Extent};
use trust::inode::{Content, FileContent, Inode};
use trust::{Kind, Reject};

use super::Tree;
use crate::blocks::Fetch;
use crate::error::ReadError;
use crate::extents::{PlacedExtent, extents, next_batch};
use crate::read_around::Expect;

/// Files of one block and at most this length are read with their neighbours, bytes.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// Never written, so the kernel backs all of it by its one page of zeros.
static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; 1 << 20]));

/// Where a stretch of a file holds data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    /// Byte ranges, in order, not touching one another.
    pub data: Vec<Range<u64>>,
    /// Up to where this is known: the end of the requested range, or of a hole that goes beyond it.
    pub until: u64,
}

impl Tree {
    /// `len` bytes of `file` from `offset` (fewer at its end), in slices that share memory.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when it is not a regular file; else as
    /// [`Blocks::get_many`](crate::Blocks::get_many).
    pub async fn read(
        &self,
        file: &Inode,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, ReadError> {
        let Content::Regular(content) = &file.content else {
            return Err(ReadError::wrong_kind("not a regular file"));
        };
        match content {
            FileContent::Empty => Ok(Vec::new()),
            FileContent::Inline(bytes) => Ok(vec![slice(bytes, 0, offset, end(offset, len))]),
            FileContent::Array(root) => self.read_stream(root, offset, len, how).await,
        }
    }

    /// Reads a file's content, and starts prefetch for a reader that goes on.
    async fn read_stream(
        &self,
        root: &ArrayRoot,
        offset: u64,
        len: usize,
        how: Fetch,
    ) -> Result<Vec<Bytes>, ReadError> {
        let until = end(offset, len).min(root.len);
        let prefetcher = self.prefetcher();
        prefetcher.content_read(root, offset, until);
        let late = how != Fetch::Cached;
        let began = Instant::now();
        // The prefetch that starts here brings the neighbours: this read need not ask for them.
        let expect = match prefetcher.file_wanted(root, how) {
            true => Expect::Nothing,
            false => Expect::Near,
        };
        if late {
            // Its tasks run once this read waits, so their requests follow this read's own.
            prefetcher.read_ahead(root, late);
        }
        let (out, extents) = self
            .read_extents(root, (offset, until), expect, how)
            .await?;
        prefetcher.arrived(&root.top, began.elapsed());
        if !late {
            prefetcher.read_ahead(root, late);
        }
        let ended = extents.iter().filter_map(|placed| match &placed.extent {
            Extent::Data { handle, len } => {
                let len = u64::from(*len);
                (placed.start.saturating_add(len) <= until).then_some((handle.any(), len))
            }
            Extent::Hole { .. } => None,
        });
        prefetcher.passed(root, ended);
        Ok(out)
    }

    /// Reads `len` bytes of any array tree from `offset`, without prefetch.
    ///
    /// # Errors
    /// As [`Blocks::get_many`](crate::Blocks::get_many).
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

    /// The bytes of `[offset, until)` and the extents that hold them.
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
        let extents = extents(self.blocks(), root, offset, until, how).await?;
        let mut rest = extents.as_slice();
        while !rest.is_empty() {
            let (extents, batch) = next_batch(rest);
            let blocks = match batch.handles.as_slice() {
                [one] if root.len <= SMALL_FILE_BYTES => {
                    vec![self.blocks().get(one, expect, how).await?]
                }
                many => self.blocks().get_sized(many, &batch.lens, how).await?,
            };
            let mut blocks = blocks.into_iter();
            let (now, later) = rest.split_at(extents);
            for placed in now {
                match placed.extent {
                    Extent::Hole { len } => zeros(placed.start, len, offset, until, &mut out),
                    Extent::Data { handle, len } => {
                        let block = blocks.next().ok_or(ReadError::NotCached)?;
                        if block.bytes().len() as u64 != u64::from(len) {
                            let why = "a data block has another length than its extent";
                            return Err(ReadError::Malformed(Reject::BadTree {
                                what: "file",
                                why,
                            }));
                        }
                        out.push(slice(block.bytes(), placed.start, offset, until));
                        if self.reads_once && placed.start + u64::from(len) <= until {
                            self.blocks().let_go(&handle.any());
                        }
                    }
                }
            }
            rest = later;
        }
        Ok((out, extents))
    }

    /// Where in `[offset, until)` of `file` there is data. The rest is holes, which read as zeros.
    /// Adjacent blocks are one run.
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
            return Err(ReadError::wrong_kind("not a regular file"));
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
        for placed in extents(self.blocks(), root, offset, until, how).await? {
            let end = placed.start.saturating_add(placed.extent.len());
            match (placed.extent, runs.data.last_mut()) {
                // A hole counts as a whole, even if it goes beyond the requested range.
                (Extent::Hole { .. }, _) => runs.until = runs.until.max(end),
                (Extent::Data { .. }, Some(last)) if last.end == placed.start => {
                    last.end = end.min(until);
                }
                (Extent::Data { .. }, _) => {
                    runs.data.push(placed.start.max(offset)..end.min(until));
                }
            }
        }
        Ok(runs)
    }
}

impl Tree {
    /// Where in `[offset, until)` a copy of `file` differs from it, holes left out. `copy` gives bytes of the copy, or
    /// `None` if it has fewer. Blocks are compared by their hashes, so that none is fetched.
    ///
    /// # Errors
    /// As [`Tree::read`].
    pub async fn differing_runs(
        &self,
        file: &Inode,
        (offset, until): (u64, u64),
        how: Fetch,
        copy: impl Fn(u64, usize) -> Option<Vec<u8>>,
    ) -> Result<Vec<Range<u64>>, ReadError> {
        let until = until.min(file.content.size());
        let Content::Regular(content) = &file.content else {
            return Err(ReadError::wrong_kind("not a regular file"));
        };
        let root = match content {
            FileContent::Empty => return Ok(Vec::new()),
            FileContent::Inline(bytes) => {
                let differs = copy(0, bytes.len()).is_none_or(|copied| copied != bytes[..]);
                return Ok(differs.then_some(offset..until).into_iter().collect());
            }
            FileContent::Array(root) => root,
        };
        let hasher = self.blocks().hasher();
        let mut runs: Vec<Range<u64>> = Vec::new();
        if offset >= until {
            return Ok(runs);
        }
        for placed in extents(self.blocks(), root, offset, until, how).await? {
            let Extent::Data { handle, len } = placed.extent else {
                continue;
            };
            let copied = copy(placed.start, len as usize);
            if copied.is_some_and(|bytes| hasher.name(Kind::Data, &bytes) == handle.any()) {
                continue;
            }
            let end = placed.start.saturating_add(len.into()).min(until);
            let start = placed.start.max(offset);
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        Ok(runs)
    }
}

fn end(offset: u64, len: usize) -> u64 {
    offset.saturating_add(len as u64)
}

/// The part of `bytes`, which begin at `start` of the file, inside `[offset, until)`.
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
