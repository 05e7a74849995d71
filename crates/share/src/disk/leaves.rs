//! The file of leaves: the log up to the journal's base, one leaf after the other.
//!
//! ```text
//! offset 0   "bulla-leaves-1\n" and a zero byte
//! then       length u32 | check [8] | leaf (`item`)      for each leaf, in the order of the log
//! ```
//!
//! A check is BLAKE3 in key derivation mode over the position and the leaf, cut to 8 bytes. It detects bit rot in
//! bodies, no forgeries; the leaves themselves must lead to the root that the journal names. The journal says how much of the
//! file counts: what lies behind was being written when the process stopped.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES};

use super::item::{decode_leaf, encode_leaf};
use super::{DiskError, damaged};
use ordering::scheme::Leaf;
use ordering::signed::{Codec, Signed};

/// What the file begins with.
pub(super) const HEADER: &[u8; 16] = b"bulla-leaves-1\n\0";
const HEAD_BYTES: usize = 12;
/// A file is read in parts of this length.
const READ_BYTES: usize = 256 << 10;
const MAX_LEAF_BYTES: usize = MAX_ENTRY_BYTES + MAX_OPS_BYTES + 16;
const CHECK: &str = "bulla 2026-11 leaves of a shared volume: check";
/// The offset of each so many leaves is kept in memory, and in a snapshot.
const STRIDE: u64 = 64;
const WHAT: &str = "file of leaves";

/// Appends a leaf as it lies in the file.
pub(super) fn push<C: Codec>(leaf: &Leaf<Signed<C>>, at: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let mut e = Encoder::onto(std::mem::take(out));
    e.raw(&[0; HEAD_BYTES]);
    encode_leaf(leaf, &mut e);
    *out = e.finish();
    let written = out.get_mut(start..).unwrap_or_default();
    let Some((head, content)) = written.split_at_mut_checked(HEAD_BYTES) else {
        return;
    };
    // Bounded by what an entry and its body may have.
    let (len, wanted) = head.split_at_mut(4);
    len.copy_from_slice(&(content.len() as u32).to_le_bytes());
    wanted.copy_from_slice(&check(at, content));
}

/// The content of a leaf as it lies in the file.
pub(super) fn content(leaf: &[u8]) -> &[u8] {
    leaf.get(HEAD_BYTES..).unwrap_or_default()
}

/// The key that the context comes to. To compute it for each leaf would cost as much as a short leaf.
static CHECK_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(CHECK));

fn check(at: u64, content: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_from_context_key(&CHECK_KEY);
    hasher.update(&at.to_le_bytes());
    hasher.update(content);
    let mut check = [0; 8];
    hasher.finalize_xof().fill(&mut check);
    check
}

/// Reads what stands before a leaf: its length, and its check.
fn head(source: &mut impl Read) -> Result<(usize, [u8; 8]), Fault> {
    let mut head = [0; HEAD_BYTES];
    source.read_exact(&mut head)?;
    let [a, b, c, d, check @ ..] = head;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    match len > MAX_LEAF_BYTES {
        true => Err(Fault::Content("a leaf that is too long")),
        false => Ok((len, check)),
    }
}

/// Passes over a leaf. A wrong length shows at the next leaf that is read.
fn skip(source: &mut impl Read) -> Result<(), Fault> {
    let (len, _) = head(source)?;
    let skipped = io::copy(&mut source.take(len as u64), &mut io::sink())?;
    match skipped == len as u64 {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// Reads leaf number `at` from a source that lies before it.
fn next<C: Codec>(source: &mut impl Read, at: u64) -> Result<(Leaf<Signed<C>>, u64), Fault> {
    let (len, wanted) = head(source)?;
    let mut content = vec![0; len];
    source.read_exact(&mut content)?;
    if check(at, &content) != wanted {
        return Err(Fault::Content("a leaf was changed"));
    }
    // Entry and body are parts of it.
    let content = Bytes::from(content);
    let mut d = Decoder::new(&content, WHAT);
    let leaf = decode_leaf(&mut d, |part| content.slice_ref(part));
    let leaf = leaf.and_then(|leaf| d.finish().map(|()| leaf))?;
    Ok((leaf, (HEAD_BYTES + len) as u64))
}

/// Reads leaf number `at` from its bytes.
pub(super) fn read<C: Codec>(
    mut bytes: &[u8],
    at: u64,
    path: &Path,
) -> Result<Leaf<Signed<C>>, DiskError> {
    let (leaf, _) = next(&mut bytes, at).map_err(|e| e.of(path))?;
    Ok(leaf)
}

/// Why a leaf cannot be read.
enum Fault {
    Io(io::Error),
    Content(&'static str),
    Leaf(Reject),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

impl From<Reject> for Fault {
    fn from(why: Reject) -> Self {
        Fault::Leaf(why)
    }
}

impl Fault {
    fn of(self, path: &Path) -> DiskError {
        match self {
            Fault::Io(error) => damaged(path, error),
            Fault::Content(why) => damaged(path, why),
            Fault::Leaf(why) => damaged(path, why),
        }
    }
}

/// Where leaves lie in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Position of the first leaf.
    pub first: u64,
    /// Position after the last leaf.
    pub len: u64,
    /// Where they end, bytes.
    pub end: u64,
    /// Offsets of the first leaf, and of every 64th after it.
    pub index: Vec<u64>,
}

impl Span {
    /// Before the first leaf.
    pub(super) fn begin(first: u64) -> Span {
        Span {
            first,
            len: first,
            end: HEADER.len() as u64,
            index: Vec::new(),
        }
    }

    /// Whether a file may have its leaves there.
    pub(crate) fn is_possible(&self) -> bool {
        let Some(leaves) = self.len.checked_sub(self.first) else {
            return false;
        };
        let begins = self.index.first().copied().unwrap_or(self.end);
        self.index.len() as u64 == leaves.div_ceil(STRIDE)
            && begins == HEADER.len() as u64
            && self.index.is_sorted_by(|a, b| a < b)
            && self.index.last().is_none_or(|last| *last < self.end)
    }

    fn passed(&mut self, bytes: u64) {
        if (self.len.saturating_sub(self.first)).is_multiple_of(STRIDE) {
            self.index.push(self.end);
        }
        self.len = self.len.saturating_add(1);
        self.end = self.end.saturating_add(bytes);
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct Leaves {
    path: PathBuf,
    file: File,
    span: Span,
}

impl Leaves {
    /// Opens the file, and gives its leaves from those on that are known, up to the position `len`, which end at `end`, to
    /// `each`.
    pub(super) fn open<C: Codec>(
        path: &Path,
        known: Span,
        (len, end): (u64, u64),
        mut each: impl FnMut(Leaf<Signed<C>>),
    ) -> Result<Leaves, DiskError> {
        let file = state::private::open_file(path)?;
        let first = known.first;
        let mut leaves = Leaves {
            path: path.to_owned(),
            span: known,
            file,
        };
        let begin = HEADER.len() as u64;
        if end < leaves.span.end || len < leaves.span.len || (end == begin) != (len == first) {
            return Err(damaged(path, "the journal names a length that is none"));
        }
        let mut header = [0; HEADER.len()];
        let read = leaves.file.read_exact_at(&mut header, 0);
        read.map_err(|e| damaged(path, e))?;
        if header != *HEADER {
            return Err(damaged(path, "not a file of leaves"));
        }
        let length = leaves.file.metadata().map_err(|e| damaged(path, e))?.len();
        if length < end {
            return Err(damaged(path, "it is cut short"));
        }
        let source = At {
            file: &leaves.file,
            offset: leaves.span.end,
        };
        let ahead = end.saturating_sub(leaves.span.end);
        let mut source = BufReader::with_capacity(READ_BYTES, source.take(ahead));
        while leaves.span.len < len {
            let (leaf, bytes) = next(&mut source, leaves.span.len).map_err(|e| e.of(path))?;
            leaves.span.passed(bytes);
            each(leaf);
        }
        drop(source);
        if leaves.span.end != end {
            return Err(damaged(path, "it has more than the journal names"));
        }
        Ok(leaves)
    }

    /// Appends leaves, given as they lie in the file with the length of each, durably.
    pub(super) fn append(&mut self, bytes: &[u8], lengths: &[u32]) -> Result<(), DiskError> {
        let write = || -> io::Result<()> {
            self.file.write_all_at(bytes, self.span.end)?;
            let end = self.span.end.saturating_add(bytes.len() as u64);
            self.file.set_len(end)?;
            self.file.sync_all()
        };
        write().map_err(|e| damaged(&self.path, e))?;
        for length in lengths {
            self.span.passed(u64::from(*length));
        }
        Ok(())
    }

    /// Where they lie.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// Position of the first leaf.
    pub(super) fn first(&self) -> u64 {
        self.span.first
    }

    /// Position after the last leaf.
    pub(super) fn len(&self) -> u64 {
        self.span.len
    }

    /// Where they end.
    pub(super) fn end(&self) -> u64 {
        self.span.end
    }

    /// One leaf.
    pub(super) fn get<C: Codec>(&self, at: u64) -> Result<Option<Leaf<Signed<C>>>, DiskError> {
        if at < self.first() || at >= self.len() {
            return Ok(None);
        }
        let mut found = None;
        self.each_from(at, at.saturating_add(1), |_, leaf| found = Some(leaf))?;
        Ok(found)
    }

    /// Gives the leaves of a range to `each`.
    pub(super) fn each_from<C: Codec>(
        &self,
        from: u64,
        to: u64,
        mut each: impl FnMut(u64, Leaf<Signed<C>>),
    ) -> Result<(), DiskError> {
        let to = to.min(self.len());
        if from >= to {
            return Ok(());
        }
        let behind = from.saturating_sub(self.first());
        let place = usize::try_from(behind / STRIDE).unwrap_or(usize::MAX);
        let indexed = self.first().saturating_add(behind - behind % STRIDE);
        let Some(offset) = self.span.index.get(place) else {
            return Ok(());
        };
        let source = At {
            file: &self.file,
            offset: *offset,
        };
        let mut source = BufReader::with_capacity(64 << 10, source);
        for _ in indexed..from {
            skip(&mut source).map_err(|e| e.of(&self.path))?;
        }
        for at in from.max(self.first())..to {
            let (leaf, _) = next(&mut source, at).map_err(|e| e.of(&self.path))?;
            each(at, leaf);
        }
        Ok(())
    }
}

/// Reads a file from an offset on, without a position that others share.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.offset)?;
        self.offset = self.offset.saturating_add(read as u64);
        Ok(read)
    }
}
