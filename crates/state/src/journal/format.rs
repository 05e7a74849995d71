//! The bytes of a journal. All integers are little-endian.
//!
//! ```text
//! offset  bytes
//! 0       16     "bulla-journal-1\n"
//! 16      16     slot A: length of the file that is fsynced (u64), check (8)
//! 32      16     slot B: the same; the greater of the valid ones counts
//! 48      ...    records
//!
//! record: length of the content (u32, 1 to 65,536), check (16), content
//! ```
//!
//! A check is BLAKE3 in key derivation mode, cut to 8 or 16 bytes: over the u64 of a slot; over offset (u64),
//! length and content of a record. The offset ties a record to its place, so bytes of an older journal are
//! never taken for a record. The checks detect torn writes and bit rot, not forgeries: a user who can write
//! here controls the state anyway. The first incomplete record ends the journal. The slots are written in
//! turn, after each fsync, so a torn write never damages both.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Maximum length of a record, bytes.
pub const MAX_RECORD_BYTES: usize = 64 << 10;

pub(super) const HEADER_BYTES: usize = 48;

const MAGIC: &[u8; 16] = b"bulla-journal-1\n";
const SLOT_BYTES: usize = 16;
const CHECK_BYTES: usize = 16;
const RECORD_HEAD_BYTES: usize = 4 + CHECK_BYTES;

/// The beginning of the file.
pub(super) struct Header;

impl Header {
    /// A header whose slots both say `durable` bytes.
    pub(super) fn bytes(durable: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..32].copy_from_slice(&slot(durable));
        bytes[32..].copy_from_slice(&slot(durable));
        bytes
    }

    /// Number of bytes of the file that had been fsynced; `None` when this is not a journal.
    pub(super) fn read(file: &File) -> io::Result<Option<u64>> {
        let mut bytes = [0; HEADER_BYTES];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        }
        let (magic, slots) = bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Ok(None);
        }
        Ok(slots.chunks_exact(SLOT_BYTES).filter_map(read_slot).max())
    }

    /// Records that `durable` bytes are fsynced; `turn` chooses the slot.
    pub(super) fn note(file: &File, durable: u64, turn: u64) -> io::Result<()> {
        let at = MAGIC.len() as u64 + (turn % 2) * SLOT_BYTES as u64;
        file.write_all_at(&slot(durable), at)
    }
}

fn slot(durable: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&durable.to_le_bytes());
    let check = slot_check(&durable.to_le_bytes());
    bytes[8..].copy_from_slice(&check);
    bytes
}

fn read_slot(bytes: &[u8]) -> Option<u64> {
    let (durable, check) = bytes.split_first_chunk::<8>()?;
    (check == slot_check(durable)).then(|| u64::from_le_bytes(*durable))
}

fn slot_check(durable: &[u8; 8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_derive_key("bulla 2026-11 journal: fsynced length");
    hasher.update(durable);
    let mut check = [0; 8];
    hasher.finalize_xof().fill(&mut check);
    check
}

fn record_check(at: u64, content: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key("bulla 2026-11 journal: record");
    hasher.update(&at.to_le_bytes());
    // At most 65,536.
    hasher.update(&(content.len() as u32).to_le_bytes());
    hasher.update(content);
    let mut check = [0; CHECK_BYTES];
    hasher.finalize_xof().fill(&mut check);
    check
}

/// A record of allowed length, at its offset in the file.
pub(super) struct Record<'a> {
    at: u64,
    content: &'a [u8],
}

impl<'a> Record<'a> {
    pub(super) fn new(at: u64, content: &'a [u8]) -> Result<Record<'a>, &'static str> {
        match content.len() {
            0 => Err("an empty record"),
            len if len > MAX_RECORD_BYTES => Err("a record that is too long"),
            _ => Ok(Record { at, content }),
        }
    }

    /// Its length in the file, bytes.
    pub(super) fn len(&self) -> usize {
        RECORD_HEAD_BYTES + self.content.len()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.content.len() as u32).to_le_bytes());
        out.extend_from_slice(&record_check(self.at, self.content));
        out.extend_from_slice(self.content);
    }
}

/// Passes the complete records to `replay`. Returns their end and their number.
pub(super) fn records(file: &File, mut replay: impl FnMut(&[u8])) -> io::Result<(u64, u64)> {
    let mut reader = BufReader::new(file);
    let mut at = reader.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
    let mut count = 0;
    let mut content = Vec::new();
    while let Some(len) = record(&mut reader, at, &mut content)? {
        replay(&content);
        at += len;
        count += 1;
    }
    Ok((at, count))
}

/// Reads one record into `content`; `None` when there is no complete record.
fn record(reader: &mut impl Read, at: u64, content: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut len = [0; 4];
    let mut check = [0; CHECK_BYTES];
    if !fill(reader, &mut len)? || !fill(reader, &mut check)? {
        return Ok(None);
    }
    let len = u32::from_le_bytes(len) as usize;
    if len == 0 || len > MAX_RECORD_BYTES {
        return Ok(None);
    }
    content.resize(len, 0);
    if !fill(reader, content)? || record_check(at, content) != check {
        return Ok(None);
    }
    Ok(Some((RECORD_HEAD_BYTES + len) as u64))
}

/// Fills `buffer`; `false` when the file ends before.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
