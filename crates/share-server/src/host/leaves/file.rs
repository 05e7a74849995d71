//! One file of leaves as bytes. Bytes: `docs/formats/shared-server.md`.

use std::ops::Range;

use bytes::Bytes;
use store::StoreError;
use store::disk::{Disk, DiskFile, damaged, io_error};
use trust::Reject;
use trust::encode::{Decoder, Encoder, varint_len};
use trust::history::Frontier;

use super::super::directory::LEAVES;
use super::super::record::{MAX_STORED_BYTES, StoredLeaf};
use ordering::prefixes::PAGE;

const MAGIC: &[u8; 8] = b"bullalv\n";
const FORMAT: u32 = 0;
/// Magic, format, flags, first position, number of leaves, bytes of leaves.
const FIXED_BYTES: usize = 8 + 4 + 4 + 8 + 4 + 8;
/// Most leaves of a file.
const MAX_LEAVES: u32 = 1 << 23;
/// Most bytes of leaves in a file.
const MAX_DATA_BYTES: u64 = 1 << 30;
const CHECK_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 32;
const OFFSET_BYTES: u64 = 4;
const WHAT: &str = "file of leaves";

/// A file and where things are in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Positions of its leaves.
    pub range: Range<u64>,
    /// Where the leaves begin.
    data_at: u64,
    /// Bytes of the leaves.
    data_bytes: u64,
}

/// The beginning of a file.
#[derive(Debug)]
pub struct Head {
    /// The file.
    pub row: Row,
    /// The log before its first leaf.
    pub frontier: Frontier,
    /// Roots at the ends of the pages that end in it.
    pub roots: Vec<[u8; 32]>,
}

/// Pages whose end is after `range.start`, and not after `range.end`.
fn pages(range: &Range<u64>) -> u64 {
    range.end / PAGE - range.start / PAGE
}

/// Bytes of the head of a file of these leaves. None: they are too many for a file.
fn head_bytes(range: &Range<u64>) -> Option<usize> {
    if range.end - range.start > u64::from(MAX_LEAVES) {
        return None;
    }
    let hashes = u64::from(range.start.count_ones()) + pages(range);
    Some(FIXED_BYTES + varint_len(range.start) + 32 * hashes as usize + CHECKSUM_BYTES)
}

impl Row {
    /// Name of the file.
    pub fn name(&self) -> String {
        let Range { start, end } = self.range;
        format!("{LEAVES}/{start:016x}-{end:016x}")
    }

    /// The positions that a name without its directory says.
    pub fn parse(name: &str) -> Option<Range<u64>> {
        let (start, end) = name.split_once('-')?;
        let number = |digits: &str| {
            let canonical = digits.len() == 16
                && digits
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            u64::from_str_radix(digits, 16).ok().filter(|_| canonical)
        };
        let range = number(start)?..number(end)?;
        (!range.is_empty()).then_some(range)
    }

    /// Where things are in a file of these leaves and this length, if its head cannot be read. None: it is too short.
    pub fn guess(range: Range<u64>, len_bytes: u64) -> Option<Row> {
        let data_at = head_bytes(&range)? as u64;
        let offsets = OFFSET_BYTES.checked_mul(range.end - range.start)?;
        let data_bytes = len_bytes.checked_sub(data_at)?.checked_sub(offsets)?;
        (data_bytes <= MAX_DATA_BYTES).then_some(Row {
            range,
            data_at,
            data_bytes,
        })
    }

    /// Number of its leaves.
    fn count(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Bytes of the file.
    pub fn len_bytes(&self) -> u64 {
        self.data_at + self.data_bytes + OFFSET_BYTES * self.count()
    }

    /// Reads leaves of this file.
    pub fn read(
        &self,
        disk: &dyn Disk,
        file: &dyn DiskFile,
        range: Range<u64>,
    ) -> Result<Vec<StoredLeaf>, StoreError> {
        let name = self.name();
        let wrong = |why: &str| damaged(disk, &name, why);
        let offsets = self.offsets(disk, file, &range)?;
        let (Some(&start), Some(&end)) = (offsets.first(), offsets.last()) else {
            return Ok(Vec::new());
        };
        let most = (range.end - range.start) * (MAX_STORED_BYTES + CHECK_BYTES) as u64;
        if !offsets.is_sorted() || end > self.data_bytes || end - start > most {
            return Err(wrong("offsets of leaves are wrong"));
        }
        let data: Bytes = read_exact(disk, file, &name, self.data_at + start, end - start)?.into();
        let mut leaves = Vec::new();
        for (at, place) in range.zip(offsets.windows(2)) {
            let &[from, to] = place else { continue };
            let record = data.slice((from - start) as usize..(to - start) as usize);
            let leaf = read_leaf(at, &record);
            leaves.push(leaf.map_err(|_| wrong(&format!("leaf {at} is not what was written")))?);
        }
        Ok(leaves)
    }

    /// Where the leaves of a range begin, and where the last one ends.
    fn offsets(
        &self,
        disk: &dyn Disk,
        file: &dyn DiskFile,
        range: &Range<u64>,
    ) -> Result<Vec<u64>, StoreError> {
        let table = self.data_at + self.data_bytes;
        let from = range.start - self.range.start;
        let until = (range.end + 1).min(self.range.end) - self.range.start;
        let at = table + OFFSET_BYTES * from;
        let bytes = read_exact(disk, file, &self.name(), at, OFFSET_BYTES * (until - from))?;
        let numbers = bytes.as_chunks::<4>().0.iter();
        let mut offsets: Vec<u64> = numbers
            .map(|bytes| u32::from_le_bytes(*bytes).into())
            .collect();
        if range.end == self.range.end {
            offsets.push(self.data_bytes);
        }
        Ok(offsets)
    }

    /// The leaves and their offsets as they are in the file.
    fn raw(&self, disk: &dyn Disk, file: &dyn DiskFile) -> Result<(Vec<u8>, Vec<u32>), StoreError> {
        let name = self.name();
        let data = read_exact(disk, file, &name, self.data_at, self.data_bytes)?;
        let bytes = OFFSET_BYTES * self.count();
        let table = read_exact(disk, file, &name, self.data_at + self.data_bytes, bytes)?;
        let offsets = table.as_chunks::<4>().0.iter();
        let offsets: Vec<u32> = offsets.map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok((data, offsets))
    }
}

impl Head {
    /// Reads the beginning of the file with these leaves. Its length must be right.
    pub fn read(
        disk: &dyn Disk,
        file: &dyn DiskFile,
        range: Range<u64>,
    ) -> Result<Head, StoreError> {
        let name = Row {
            range: range.clone(),
            data_at: 0,
            data_bytes: 0,
        }
        .name();
        let bytes = head_bytes(&range)
            .ok_or_else(|| damaged(disk, &name, "its name says too many leaves"))?;
        let head = read_exact(disk, file, &name, 0, bytes as u64)?;
        let head = Head::decode(&head, &range);
        let head = head.map_err(|why| damaged(disk, &name, &why.to_string()))?;
        let len = file.len_bytes().map_err(|e| io_error(disk, &name, e))?;
        match len == head.row.len_bytes() {
            true => Ok(head),
            false => Err(damaged(disk, &name, "its length is wrong")),
        }
    }

    /// Reads the bytes of a head.
    ///
    /// # Errors
    /// [`Reject`] for anything but the head of the file with these leaves.
    pub fn decode(head: &[u8], range: &Range<u64>) -> Result<Head, Reject> {
        let mut d = Decoder::new(head, WHAT);
        let Some((summed, checksum)) = head.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(d.bad("cut short"));
        };
        if blake3::hash(summed).as_bytes() != checksum {
            return Err(d.bad("its checksum is wrong"));
        }
        if d.array()? != *MAGIC {
            return Err(d.bad("not a file of leaves"));
        }
        if (d.u32()?, d.u32()?) != (FORMAT, 0) {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: "a later format".to_owned(),
            });
        }
        let (first, count, data_bytes) = (d.u64()?, d.u32()?, d.u64()?);
        let end = first.checked_add(count.into());
        if end != Some(range.end) || first != range.start || count > MAX_LEAVES {
            return Err(d.bad("it has other leaves than its name says"));
        }
        if data_bytes > MAX_DATA_BYTES {
            return Err(d.bad("too long"));
        }
        let frontier = Frontier::decode(&mut d)?;
        if frontier.size() != first {
            return Err(d.bad("its log before it is another one"));
        }
        let roots = (0..pages(range))
            .map(|_| d.array())
            .collect::<Result<_, _>>()?;
        d.raw(CHECKSUM_BYTES)?;
        let data_at = head.len() as u64;
        d.finish()?;
        Ok(Head {
            row: Row {
                range: range.clone(),
                data_at,
                data_bytes,
            },
            frontier,
            roots,
        })
    }
}

/// A file that is being written.
pub struct Content {
    frontier: Frontier,
    roots: Vec<[u8; 32]>,
    data: Vec<u8>,
    offsets: Vec<u32>,
}

impl Content {
    /// Begins after the log of `frontier`.
    pub fn after(frontier: Frontier) -> Content {
        Content {
            frontier,
            roots: Vec::new(),
            data: Vec::new(),
            offsets: Vec::new(),
        }
    }

    /// Begins with what a file has. Its leaves are verified.
    pub fn repeat(
        disk: &dyn Disk,
        file: &dyn DiskFile,
        range: Range<u64>,
    ) -> Result<Content, StoreError> {
        let head = Head::read(disk, file, range.clone())?;
        let step = PAGE as usize;
        for from in range.clone().step_by(step) {
            head.row
                .read(disk, file, from..range.end.min(from + PAGE))?;
        }
        let (data, offsets) = head.row.raw(disk, file)?;
        Ok(Content {
            frontier: head.frontier,
            roots: head.roots,
            data,
            offsets,
        })
    }

    /// Adds leaves, and the roots at the ends of the pages that end in them. False: the file would be too long.
    #[must_use]
    pub fn extend<'a>(
        &mut self,
        leaves: impl IntoIterator<Item = &'a StoredLeaf>,
        roots: &[[u8; 32]],
    ) -> bool {
        for leaf in leaves {
            let at = self.end();
            let Ok(offset) = u32::try_from(self.data.len()) else {
                return false;
            };
            self.offsets.push(offset);
            write_leaf(at, leaf, &mut self.data);
        }
        self.roots.extend_from_slice(roots);
        let fits = self.offsets.len() <= MAX_LEAVES as usize;
        fits && self.data.len() as u64 <= MAX_DATA_BYTES
    }

    fn end(&self) -> u64 {
        self.frontier.size() + self.offsets.len() as u64
    }

    /// Where the file's leaves are, and its bytes.
    pub fn encode(&self) -> (Row, Vec<u8>) {
        let mut head = Encoder::new();
        head.raw(MAGIC).u32(FORMAT).u32(0);
        head.u64(self.frontier.size());
        head.u32(self.offsets.len() as u32);
        head.u64(self.data.len() as u64);
        self.frontier.encode(&mut head);
        for root in &self.roots {
            head.raw(root);
        }
        let mut bytes = head.finish();
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        let row = Row {
            range: self.frontier.size()..self.end(),
            data_at: bytes.len() as u64,
            data_bytes: self.data.len() as u64,
        };
        bytes.extend_from_slice(&self.data);
        for offset in &self.offsets {
            bytes.extend_from_slice(&offset.to_le_bytes());
        }
        (row, bytes)
    }
}

/// A leaf of a file that may be damaged.
pub enum Salvaged {
    /// As it was written: its check is right.
    Right(StoredLeaf),
    /// What its bytes say, and the check beside them, which is another one.
    Unchecked(StoredLeaf, [u8; CHECK_BYTES]),
    /// Its bytes are no leaf. The check that lies where its own should, if that is known.
    Lost(Option<[u8; CHECK_BYTES]>),
}

impl Salvaged {
    /// Whether a leaf is the one that was written here, by the check beside it.
    pub fn is(&self, at: u64, leaf: &StoredLeaf) -> bool {
        let (Salvaged::Unchecked(_, wanted) | Salvaged::Lost(Some(wanted))) = self else {
            return false;
        };
        let mut bytes = Encoder::new();
        leaf.encode(&mut bytes);
        check(at, &bytes.finish()) == *wanted
    }
}

/// What is left of each leaf of a file, by its offsets and by the leaves before it. The whole file is in memory meanwhile.
pub fn salvage(disk: &dyn Disk, range: &Range<u64>) -> Result<Vec<Salvaged>, StoreError> {
    let lost = || {
        (range.start..range.end)
            .map(|_| Salvaged::Lost(None))
            .collect()
    };
    let name = Row {
        range: range.clone(),
        data_at: 0,
        data_bytes: 0,
    }
    .name();
    let file = match disk.open(&name) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(lost()),
        other => other.map_err(|e| io_error(disk, &name, e))?,
    };
    let len = file.len_bytes().map_err(|e| io_error(disk, &name, e))?;
    let Some(row) = Row::guess(range.clone(), len) else {
        return Ok(lost());
    };
    let data: Bytes = read_exact(disk, &*file, &name, row.data_at, row.data_bytes)?.into();
    let offsets = row.offsets(disk, &*file, range)?;
    let mut after = Some(0);
    let mut found = Vec::new();
    for (at, place) in range.clone().zip(offsets.windows(2)) {
        let &[from, to] = place else { continue };
        let (from, to) = (from as usize, to as usize);
        let written = (from..to).len() > CHECK_BYTES && to <= data.len();
        let by_offsets = written.then(|| data.slice(from..to));
        let by_previous = after.and_then(|from| record_at(&data, from));
        let mut right = by_offsets.iter().chain(&by_previous);
        let right = right.find_map(|record| Some((read_leaf(at, record).ok()?, record.len())));
        if let Some((leaf, len)) = right {
            let begins = by_offsets
                .as_ref()
                .is_some_and(|it| read_leaf(at, it).is_ok());
            let begin = match begins {
                true => from,
                false => after.unwrap_or(from),
            };
            after = begin.checked_add(len);
            found.push(Salvaged::Right(leaf));
            continue;
        }
        after = written.then_some(to);
        found.push(match by_offsets.or(by_previous) {
            Some(record) => unchecked(&record),
            None => Salvaged::Lost(None),
        });
    }
    Ok(found)
}

/// The record that begins here, by the lengths in it.
fn record_at(data: &Bytes, from: usize) -> Option<Bytes> {
    let rest = data.slice(from.min(data.len())..);
    let mut d = Decoder::new(&rest, "leaf of the log");
    StoredLeaf::read(&mut d, &rest).ok()?;
    d.raw(CHECK_BYTES).ok()?;
    let len = rest.len() - d.remaining();
    Some(rest.slice(..len))
}

fn unchecked(record: &Bytes) -> Salvaged {
    let Some((leaf, found)) = record.split_last_chunk::<CHECK_BYTES>() else {
        return Salvaged::Lost(None);
    };
    let leaf = record.slice_ref(leaf);
    let mut d = Decoder::new(&leaf, "leaf of the log");
    let read = StoredLeaf::read(&mut d, &leaf);
    match read.and_then(|stored| d.finish().map(|()| stored)) {
        Ok(stored) => Salvaged::Unchecked(stored, *found),
        Err(_) => Salvaged::Lost(Some(*found)),
    }
}

fn check(at: u64, leaf: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&at.to_le_bytes()).update(leaf);
    let hash = hasher.finalize();
    let (check, _) = hash.as_bytes().split_at(CHECK_BYTES);
    check.try_into().unwrap_or_default()
}

fn write_leaf(at: u64, stored: &StoredLeaf, out: &mut Vec<u8>) {
    let mut leaf = Encoder::new();
    stored.encode(&mut leaf);
    let leaf = leaf.finish();
    out.extend_from_slice(&leaf);
    out.extend_from_slice(&check(at, &leaf));
}

fn read_leaf(at: u64, record: &Bytes) -> Result<StoredLeaf, Reject> {
    let mut d = Decoder::new(record, "leaf of the log");
    let stored = StoredLeaf::read(&mut d, record)?;
    let found: [u8; CHECK_BYTES] = d.array()?;
    let (leaf, _) = record.split_at(record.len() - d.remaining() - CHECK_BYTES);
    if found != check(at, leaf) {
        return Err(d.bad("its check is wrong"));
    }
    d.finish()?;
    Ok(stored)
}

/// Reads so many bytes; fewer are damage.
fn read_exact(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    name: &str,
    at: u64,
    bytes: u64,
) -> Result<Vec<u8>, StoreError> {
    let mut buffer = vec![0; bytes as usize];
    let read = file.read_at(&mut buffer, at);
    match read.map_err(|e| io_error(disk, name, e))? == buffer.len() {
        true => Ok(buffer),
        false => Err(damaged(disk, name, "is cut short")),
    }
}
