//! Segments: immutable files of records, in the order in which they were written, so that records
//! that are read together lie together (docs/decisions/0007).
//!
//! ```text
//! header     magic "bullaseg" | format u32 = 0 | incompatible flags u32 = 0
//! records    `trust::Record` bytes, back to back
//! end mark   36 zero bytes: no record begins like this, so a sequential reader stops here
//! key footer per record, in order: handle [32] | record length u32, bytes
//! trailer    count u32 | BLAKE3 [32] of key footer and count | magic "bullaend"
//! ```
//!
//! The footer lists the records without reading them. Only rebuilding an index, collection and pulls
//! use it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use trust::{Handle, Record};

use crate::StoreError;
use crate::disk::{Disk, DiskFile, damaged, io_error};
use crate::index::Location;
use crate::names::FileId;

/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 16;
/// A segment is ended before a record would make it longer than this, bytes.
pub const TARGET_BYTES: u64 = 64 << 20;
/// Length of the trailer, bytes.
pub const TRAILER_BYTES: usize = 44;

const HEADER: &[u8; HEADER_BYTES] = b"bullaseg\0\0\0\0\0\0\0\0";
const END_MARK: [u8; RECORD_HEADER_BYTES] = [0; RECORD_HEADER_BYTES];
const END_MAGIC: &[u8; 8] = b"bullaend";
const KEY_BYTES: usize = 36;
const BUFFER_BYTES: usize = 1 << 20;

/// A segment that is being written, under its temporary name.
pub struct SegmentWriter {
    id: FileId,
    file: Arc<dyn DiskFile>,
    buffer: BytesMut,
    flushed: u64,
}

impl SegmentWriter {
    /// Begins a segment.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn begin(disk: &dyn Disk) -> Result<Self, StoreError> {
        let id = FileId::random(disk.place())?;
        let name = id.segment_temporary();
        let file = disk.create(&name).map_err(|e| io_error(disk, &name, e))?;
        let mut buffer = BytesMut::with_capacity(BUFFER_BYTES + MAX_RECORD_BYTES);
        buffer.extend_from_slice(HEADER);
        Ok(SegmentWriter {
            id,
            file,
            buffer,
            flushed: 0,
        })
    }

    /// The segment's id.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether a record of this length belongs in the next segment.
    pub fn is_full_for(&self, record_bytes: usize) -> bool {
        let end = self.end();
        end > HEADER_BYTES as u64 && end + record_bytes as u64 > TARGET_BYTES
    }

    /// Appends a record and returns its location.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn append(&mut self, disk: &dyn Disk, record: &Record) -> Result<Location, StoreError> {
        let at = Location {
            segment: self.id,
            offset: self.end() as u32,
            len: record.len() as u32,
        };
        record.put(&mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush(disk)?;
        }
        Ok(at)
    }

    /// Writes the footer; `keys` are the records' handles and lengths in order. The file keeps its
    /// temporary name and is not synced yet.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn finish(
        mut self,
        disk: &dyn Disk,
        keys: impl Iterator<Item = (Handle, u32)>,
    ) -> Result<Written, StoreError> {
        self.buffer.extend_from_slice(&END_MARK);
        let mut sum = blake3::Hasher::new();
        let mut count: u32 = 0;
        for (handle, len) in keys {
            let mut key = [0; KEY_BYTES];
            key[..32].copy_from_slice(handle.as_bytes());
            key[32..].copy_from_slice(&len.to_le_bytes());
            sum.update(&key);
            self.buffer.extend_from_slice(&key);
            count += 1;
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush(disk)?;
            }
        }
        sum.update(&count.to_le_bytes());
        self.buffer.extend_from_slice(&count.to_le_bytes());
        self.buffer.extend_from_slice(sum.finalize().as_bytes());
        self.buffer.extend_from_slice(END_MAGIC);
        self.flush(disk)?;
        Ok(Written {
            id: self.id,
            file: self.file,
            len_bytes: self.flushed,
        })
    }

    fn end(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    fn flush(&mut self, disk: &dyn Disk) -> Result<(), StoreError> {
        self.file
            .write_at(&self.buffer, self.flushed)
            .map_err(|e| io_error(disk, &self.id.segment_temporary(), e))?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// A finished segment that is not yet durable.
pub struct Written {
    /// Its id.
    pub id: FileId,
    /// The file, to be synced.
    pub file: Arc<dyn DiskFile>,
    /// Its length, bytes.
    pub len_bytes: u64,
}

/// A segment's records in order, with their locations.
pub type Contents = Vec<(Handle, Location)>;

/// Lists a segment by its footer; `None` when the footer is damaged.
///
/// # Errors
/// [`StoreError::Io`]; [`StoreError::Damaged`] when the file has no segment header; [`StoreError::Format`]
/// when a later bulla wrote it.
pub fn by_footer(disk: &dyn Disk, id: FileId) -> Result<Option<Contents>, StoreError> {
    let (file, len) = open(disk, id)?;
    footer(&*file, id, len).map_err(|e| io_error(disk, &id.segment(), e))
}

/// Lists a segment by its footer, for who removes what is not on the list. The records before the first damaged one are no
/// list for that: there may be readable ones after it.
///
/// # Errors
/// As [`by_footer`]; [`StoreError::Damaged`] when the footer is damaged, or there is no such file.
pub(crate) fn whole_list(disk: &dyn Disk, id: FileId) -> Result<Contents, StoreError> {
    let name = id.segment();
    match by_footer(disk, id) {
        Ok(Some(contents)) => Ok(contents),
        Ok(None) => Err(damaged(disk, &name, "the list of its blocks is damaged")),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Err(
            damaged(disk, &name, "the index names it, but it does not exist"),
        ),
        Err(error) => Err(error),
    }
}

/// Lists a segment by reading its records, up to the first that is damaged.
///
/// # Errors
/// As [`by_footer`].
pub fn by_records(disk: &dyn Disk, id: FileId) -> Result<Contents, StoreError> {
    let (file, len) = open(disk, id)?;
    walk(&*file, id, len).map_err(|e| io_error(disk, &id.segment(), e))
}

/// The footer of a segment, whatever its header says. None: it is damaged, or there is no such file.
pub(crate) fn footer_of(disk: &dyn Disk, id: FileId) -> Option<Contents> {
    let file = disk.open(&id.segment()).ok()?;
    let len = file.len_bytes().ok()?;
    footer(&*file, id, len).ok()?
}

/// Whether the mark lies behind the last record.
pub(crate) fn has_end_mark(file: &dyn DiskFile, contents: &Contents) -> bool {
    let end = contents.last().map_or(HEADER_BYTES as u64, |(_, at)| {
        u64::from(at.offset) + u64::from(at.len)
    });
    let mut mark = [1; END_MARK.len()];
    file.read_at(&mut mark, end).is_ok() && mark == END_MARK
}

fn open(disk: &dyn Disk, id: FileId) -> Result<(Arc<dyn DiskFile>, u64), StoreError> {
    let name = id.segment();
    let fail = |e| io_error(disk, &name, e);
    let file = disk.open(&name).map_err(fail)?;
    let len = file.len_bytes().map_err(fail)?;
    check_header(disk, id, &*file)?;
    Ok((file, len))
}

/// Checks the first bytes of a segment.
///
/// # Errors
/// As [`by_footer`].
pub(crate) fn check_header(
    disk: &dyn Disk,
    id: FileId,
    file: &dyn DiskFile,
) -> Result<(), StoreError> {
    let name = id.segment();
    let mut header = [0; HEADER_BYTES];
    let read = file
        .read_at(&mut header, 0)
        .map_err(|e| io_error(disk, &name, e))?;
    let (magic, fields) = header.split_at(8);
    if read != HEADER_BYTES || !HEADER.starts_with(magic) {
        return Err(damaged(disk, &name, "has no segment header"));
    }
    if !HEADER.ends_with(fields) {
        let found = format!("format and flags {fields:02x?}");
        let path = disk.path(&name);
        return Err(StoreError::Format { path, found });
    }
    Ok(())
}

/// `None` when the footer is incomplete or does not fit the file.
fn footer(file: &dyn DiskFile, id: FileId, len: u64) -> std::io::Result<Option<Contents>> {
    let Some(trailer_at) = len.checked_sub(TRAILER_BYTES as u64) else {
        return Ok(None);
    };
    let mut trailer = [0; TRAILER_BYTES];
    if file.read_at(&mut trailer, trailer_at)? != TRAILER_BYTES || !trailer.ends_with(END_MAGIC) {
        return Ok(None);
    }
    let (count, sum) = match (trailer.first_chunk::<4>(), trailer.get(4..36)) {
        (Some(count), Some(sum)) => (*count, sum),
        _ => return Ok(None),
    };
    let keys_bytes = u64::from(u32::from_le_bytes(count)) * KEY_BYTES as u64;
    // `checked_sub` proves that the file is at least as long as the footer that is allocated below.
    let footer_at = trailer_at.checked_sub(keys_bytes);
    let Some(footer_at) = footer_at.filter(|_| len <= u64::from(u32::MAX)) else {
        return Ok(None);
    };
    let mut keys = vec![0; keys_bytes as usize];
    if file.read_at(&mut keys, footer_at)? != keys.len() {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&keys).update(&count);
    if hasher.finalize().as_bytes() != sum {
        return Ok(None);
    }
    let mut offset = HEADER_BYTES as u64;
    let mut records = Vec::with_capacity(keys.len() / KEY_BYTES);
    for key in keys.chunks_exact(KEY_BYTES) {
        let Some((handle, record_len)) = key.split_first_chunk::<32>() else {
            return Ok(None);
        };
        let record_len = record_len.try_into().map_or(0, u32::from_le_bytes);
        let segment_offset = offset as u32;
        offset += u64::from(record_len);
        if record_len as usize > MAX_RECORD_BYTES || offset > footer_at {
            return Ok(None);
        }
        records.push((
            Handle::from_bytes(*handle),
            Location {
                segment: id,
                offset: segment_offset,
                len: record_len,
            },
        ));
    }
    Ok((offset + END_MARK.len() as u64 == footer_at).then_some(records))
}

/// The records that follow each other from the beginning on.
pub(crate) fn walk(file: &dyn DiskFile, id: FileId, len: u64) -> std::io::Result<Contents> {
    let len = len.min(u64::from(u32::MAX));
    let mut records = Vec::new();
    let mut at = HEADER_BYTES as u64;
    let mut window = Bytes::new();
    loop {
        match Record::take(&mut window) {
            Ok(Some(record)) => {
                let location = Location {
                    segment: id,
                    offset: at as u32,
                    len: record.len() as u32,
                };
                at += record.len() as u64;
                records.push((record.handle, location));
            }
            Err(_) => return Ok(records),
            Ok(None) => {
                // Continue at the record that the window cuts off. No progress: the file cuts it off.
                let before = window.len();
                let want = (2 * MAX_RECORD_BYTES as u64).min(len.saturating_sub(at));
                let mut buf = BytesMut::zeroed(want as usize);
                let n = file.read_at(&mut buf, at)?;
                buf.truncate(n);
                window = buf.freeze();
                if window.len() <= before {
                    return Ok(records);
                }
            }
        }
    }
}
