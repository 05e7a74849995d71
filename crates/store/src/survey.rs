//! Reads everything that a repository stores for its blocks, and says what of it is wrong: the head, each page of the
//! index, and each block of each segment against its name. It changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use bytes::Bytes;
use trust::record::{MAX_RECORD_BYTES, RECORD_HEADER_BYTES};
use trust::{Handle, Hasher, Record};

use crate::StoreError;
use crate::disk::{Disk, DiskFile, damaged, io_error, read_whole};
use crate::head::{Head, MAX_HEAD_BYTES};
use crate::index::run::Run;
use crate::names::{self, FileId};
use crate::repository::Repository;
use crate::segment::{self, Contents};

/// Bytes of a segment that are read at once: some records of any length.
const AT_ONCE: usize = 2 * MAX_RECORD_BYTES;

/// Something that is wrong.
#[derive(Debug, Clone)]
pub struct Wrong {
    /// The file.
    pub path: PathBuf,
    /// The block, and where its record begins in the file, bytes.
    pub block: Option<(Handle, u64)>,
    /// What is wrong with it.
    pub why: String,
}

/// What a survey tells while it reads.
#[derive(Debug)]
pub enum Told {
    /// So many blocks and bytes of records were read and are right.
    Read {
        /// Number of blocks.
        blocks: u64,
        /// Bytes of their records.
        bytes: u64,
    },
    /// Something is wrong.
    Wrong(Wrong),
}

/// The bytes of all segments, before they are read.
///
/// # Errors
/// [`StoreError::Io`].
pub fn segment_bytes(disk: &dyn Disk) -> Result<u64, StoreError> {
    let mut bytes: u64 = 0;
    for id in segments(disk)? {
        let name = id.segment();
        let len = disk.open(&name).and_then(|file| file.len_bytes());
        bytes = bytes.saturating_add(len.map_err(|e| io_error(disk, &name, e))?);
    }
    Ok(bytes)
}

impl Repository {
    /// Reads the index of the repository on this disk and, with a hasher, each of its blocks. No writer may be at work.
    ///
    /// # Errors
    /// [`StoreError::Io`] for a directory that cannot be read; [`StoreError::Format`] for a head of a later bulla. What is damaged is
    /// told, and is no error.
    pub fn survey_on(
        disk: &dyn Disk,
        hasher: Option<&Hasher>,
        told: &mut dyn FnMut(Told),
    ) -> Result<(), StoreError> {
        Survey::of(disk, hasher, told).map(drop)
    }

    /// A block, if the index has it and it is what its name says.
    pub fn whole_record(&self, handle: &Handle, hasher: &Hasher) -> Option<Record> {
        let mut found = None;
        let read = self.read_blocking(&[*handle], 0, &mut |region| {
            found = Some(region.bytes);
            std::ops::ControlFlow::Break(())
        });
        read.ok()?;
        verified(found?, handle, hasher).ok()
    }
}

/// What was found.
pub(crate) struct Survey {
    /// The head, if it can be read. One that is missing is empty.
    pub head: Option<Head>,
    /// Whether the index cannot be used as it is.
    pub index_is_wrong: bool,
    /// Segments that are right.
    pub whole: Vec<FileId>,
    /// Segments that are not, and the blocks that they should have.
    pub broken: Vec<(FileId, Contents)>,
}

impl Survey {
    /// Reads. Without a hasher blocks are not read, and a segment with a whole footer counts as right.
    pub fn of(
        disk: &dyn Disk,
        hasher: Option<&Hasher>,
        told: &mut dyn FnMut(Told),
    ) -> Result<Survey, StoreError> {
        let there = segments(disk)?;
        let mut wrong = |name: &str, why: &dyn std::fmt::Display| {
            told(Told::Wrong(Wrong {
                path: disk.path(name),
                block: None,
                why: why.to_string(),
            }));
        };
        let mut index_is_wrong = false;
        let head = match read(disk) {
            Ok(None) if there.is_empty() => Some(Head::default()),
            Ok(None) => {
                index_is_wrong = true;
                wrong(names::HEAD_FILE, &"it is missing, and there are segments");
                Some(Head::default())
            }
            Ok(Some(head)) => Some(head),
            Err(error @ StoreError::Damaged { .. }) => {
                index_is_wrong = true;
                wrong(names::HEAD_FILE, &error);
                None
            }
            Err(error) => return Err(error),
        };
        // Entries of segments whose own list is of no use. To remember all entries may take too much memory.
        let mut indexed: HashMap<FileId, Contents> = HashMap::new();
        let listed = there.iter().copied();
        let listed: BTreeSet<FileId> = listed
            .filter(|id| segment::footer_of(disk, *id).is_some())
            .collect();
        let mut named = BTreeSet::new();
        for name in head.iter().flat_map(|head| &head.runs) {
            let read = Run::open(disk, *name).and_then(|run| {
                named.extend(run.segments().iter().copied());
                for entry in run.entries(disk) {
                    let (handle, at) = entry?;
                    if !listed.contains(&at.segment) {
                        indexed.entry(at.segment).or_default().push((handle, at));
                    }
                }
                Ok(())
            });
            if let Err(error) = read {
                index_is_wrong = true;
                wrong(&name.id.index(), &error);
            }
        }
        let mut survey = Survey {
            head,
            index_is_wrong,
            whole: Vec::new(),
            broken: Vec::new(),
        };
        for id in named.iter().filter(|id| !there.contains(id)) {
            survey.index_is_wrong = true;
            wrong(&id.segment(), &"it is missing, and the index names it");
            survey
                .broken
                .push((*id, indexed.remove(id).unwrap_or_default()));
        }
        for id in there {
            let known = indexed.remove(&id).unwrap_or_default();
            let mut is_right = true;
            let contents = read_segment(disk, id, hasher, known, &mut |read| match read {
                Read::Right(record) => told(Told::Read {
                    blocks: 1,
                    bytes: record.len() as u64,
                }),
                Read::Wrong(block, why) => {
                    is_right = false;
                    told(Told::Wrong(Wrong {
                        path: disk.path(&id.segment()),
                        block,
                        why,
                    }));
                }
            })?;
            match is_right {
                true => survey.whole.push(id),
                false => survey.broken.push((id, contents)),
            }
        }
        Ok(survey)
    }
}

/// The segments of a directory, in the order of their names.
pub(crate) fn segments(disk: &dyn Disk) -> Result<BTreeSet<FileId>, StoreError> {
    let listed = disk.list(names::SEGMENT_DIR);
    let listed = listed.map_err(|e| io_error(disk, names::SEGMENT_DIR, e))?;
    let ids = listed.iter();
    Ok(ids
        .filter_map(|name| FileId::parse(name, names::SEGMENT_ENDING))
        .collect())
}

/// The head, if there is one. One with the number of another format whose checksum is that of this format is damaged.
fn read(disk: &dyn Disk) -> Result<Option<Head>, StoreError> {
    let bytes = match read_whole(disk, names::HEAD_FILE, MAX_HEAD_BYTES) {
        Ok(bytes) => bytes,
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    match Head::decode(&bytes) {
        Ok(head) => Ok(Some(head)),
        Err(trust::Reject::Unsupported { why, .. }) if !Head::is_of_this_format(&bytes) => {
            Err(StoreError::Format {
                path: disk.path(names::HEAD_FILE),
                found: why,
            })
        }
        Err(why) => Err(damaged(disk, names::HEAD_FILE, &why.to_string())),
    }
}

/// What [`read_segment`] finds.
pub(crate) enum Read {
    /// A block that is what its name says.
    Right(Record),
    /// A block that is not, with the offset of its record; or another part of the segment.
    Wrong(Option<(Handle, u64)>, String),
}

/// Reads a segment. Its blocks are those that the footer lists, or those that the index knows, or those that follow each
/// other from its beginning on. Gives all that it should have.
pub(crate) fn read_segment(
    disk: &dyn Disk,
    id: FileId,
    hasher: Option<&Hasher>,
    mut indexed: Contents,
    each: &mut dyn FnMut(Read),
) -> Result<Contents, StoreError> {
    let name = id.segment();
    let file = disk.open(&name).map_err(|e| io_error(disk, &name, e))?;
    if let Err(error) = segment::check_header(disk, id, &*file) {
        each(Read::Wrong(None, error.to_string()));
    }
    let len = file.len_bytes().map_err(|e| io_error(disk, &name, e))?;
    let contents = match segment::footer_of(disk, id) {
        Some(contents) => {
            if !segment::has_end_mark(&*file, &contents) {
                each(Read::Wrong(
                    None,
                    "the mark after its last block is damaged".to_owned(),
                ));
            }
            contents
        }
        None => {
            each(Read::Wrong(
                None,
                "the list of its blocks is damaged".to_owned(),
            ));
            indexed.sort_by_key(|(_, at)| at.offset);
            match indexed.is_empty() {
                false => indexed,
                true => segment::walk(&*file, id, len).map_err(|e| io_error(disk, &name, e))?,
            }
        }
    };
    let Some(hasher) = hasher else {
        return Ok(contents);
    };
    let mut window = Window {
        file: &*file,
        at: 0,
        bytes: Bytes::new(),
    };
    for (handle, at) in &contents {
        let bytes = window.get(u64::from(at.offset), at.len as usize);
        let bytes = bytes.map_err(|e| io_error(disk, &name, e))?;
        match verified(bytes, handle, hasher) {
            Ok(record) => each(Read::Right(record)),
            Err(why) => each(Read::Wrong(Some((*handle, at.offset.into())), why)),
        }
    }
    Ok(contents)
}

/// A record that is the block of this name.
pub(crate) fn verified(
    mut bytes: Bytes,
    handle: &Handle,
    hasher: &Hasher,
) -> Result<Record, String> {
    let record = Record::take(&mut bytes).map_err(|why| why.to_string())?;
    let record = record.filter(|record| bytes.is_empty() && record.handle == *handle);
    let record = record.ok_or("its record is another one")?;
    let plaintext = record.frame.unpack().map_err(|why| why.to_string())?;
    match hasher.name(record.frame.kind(), &plaintext) == *handle {
        true => Ok(record),
        false => Err("it is not what its name says".to_owned()),
    }
}

/// Reads records of a file in ascending order, many at once.
struct Window<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// So many bytes at an offset; fewer if the file ends.
    fn get(&mut self, offset: u64, len: usize) -> std::io::Result<Bytes> {
        let len = len.min(MAX_RECORD_BYTES + RECORD_HEADER_BYTES);
        let from = offset
            .checked_sub(self.at)
            .and_then(|from| usize::try_from(from).ok());
        if let Some(from) = from
            && let Some(end) = from.checked_add(len)
            && end <= self.bytes.len()
        {
            return Ok(self.bytes.slice(from..end));
        }
        let mut read = vec![0; AT_ONCE.max(len)];
        let count = self.file.read_at(&mut read, offset)?;
        read.truncate(count);
        (self.at, self.bytes) = (offset, Bytes::from(read));
        Ok(self.bytes.slice(..len.min(self.bytes.len())))
    }
}
