//! The readers: threads that read, cut and compress files. A file is published as it was at one moment, or
//! not at all: a reader compares size and times before and after. (A reader cannot detect a single `write`
//! call that began more than 20 ms before the reading and goes on during it.)

use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use crossbeam_channel::Receiver;
use rustix::fs::{FileType, OFlags, Statx};
use rustix::io::Errno;
use trust::inode::{Content, FileContent, Inode, MAX_INLINE_BYTES, Xattrs};

use crate::blocks_out::{Cutter, Outgoing};
use crate::publish_error::{PublishError, Unreadable};
use crate::walk::{open_at, stat_open};
use crate::work::{Done, Item, Job, Link, Part, ToRead, WHOLE_FILE_BYTES, What};
use content::access::Access;
use content::attributes::{self, Stamp, XattrReader};

/// How many times a file that changes while it is read is tried.
pub(crate) const ATTEMPTS: u32 = 3;
/// A file that has grown beyond this since it was listed is too busy to be read.
const MAX_WHOLE_BYTES: u64 = 8 * WHOLE_FILE_BYTES;
/// Longer than one write takes, and than a timer tick: Linux before 6.13 stamps changes with the time of
/// the last tick, which is at most 10 ms old.
const TICK: Duration = Duration::from_millis(20);

/// Works off jobs until there are no more.
pub(crate) fn work(jobs: &Receiver<Job>, cutter: Cutter<'_>, publishing: Publishing) {
    let mut reader = Reader {
        cutter,
        publishing,
        xattrs: XattrReader::default(),
        buffer: Vec::new(),
    };
    for job in jobs {
        // If the publication was given up, nothing waits for the answer any more.
        match job {
            Job::Entries {
                directory,
                items,
                reply,
            } => drop(reply.send(reader.entries(&directory, items))),
            Job::Part {
                bytes,
                chunks,
                reply,
            } => drop(reply.send(part(&mut reader.cutter, &bytes, &chunks))),
        }
    }
}

fn part(cutter: &mut Cutter<'_>, bytes: &[u8], chunks: &[u32]) -> Result<Part, PublishError> {
    let mut part = Part {
        extents: Vec::with_capacity(chunks.len()),
        blocks: Vec::with_capacity(chunks.len()),
    };
    let mut rest = bytes;
    for len in chunks {
        let (chunk, after) = rest.split_at((*len as usize).min(rest.len()));
        part.extents.push(cutter.data(chunk, &mut part.blocks)?);
        rest = after;
    }
    Ok(part)
}

/// What of a file is published besides its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Publishing {
    /// Owner, group, and attributes that go with them.
    pub owner: bool,
    /// Key files, and other files of bulla's own.
    pub keys: bool,
}

impl Publishing {
    /// Refuses a file of bulla's own, by its first bytes.
    pub(crate) fn check(self, start: &[u8]) -> Result<(), Unreadable> {
        match state::own_files::what(start).filter(|_| !self.keys) {
            Some(what) => Err(Unreadable::OwnFile(what)),
            None => Ok(()),
        }
    }
}

struct Reader<'a> {
    cutter: Cutter<'a>,
    publishing: Publishing,
    xattrs: XattrReader,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    fn entries(
        &mut self,
        directory: &OwnedFd,
        items: Vec<Item>,
    ) -> Result<Vec<Done>, PublishError> {
        let entry = |item| match item {
            Item::Ready(done) => Ok(done),
            Item::Read(file) => self.file(directory, file),
        };
        items.into_iter().map(entry).collect()
    }

    fn file(&mut self, directory: &OwnedFd, file: ToRead) -> Result<Done, PublishError> {
        let mut stamp = None;
        let what = match self.read(directory, &file) {
            Ok((stat, len, (list, access))) => {
                stamp = Some(Stamp::of(&stat));
                let mut blocks = Vec::new();
                let content = self.content(len, &mut blocks)?;
                let mut inode = attributes::inode(&stat, access, self.publishing.owner, content);
                inode.xattrs = store_xattrs(&mut self.cutter, list, &mut blocks)?;
                name_link(&mut inode, file.link.as_ref());
                What::File {
                    inode: Box::new(inode),
                    blocks,
                    link: file.link,
                }
            }
            Err(Unreadable::Io(e)) if gone(&e) => What::Vanished,
            Err(why) => What::Unreadable(why),
        };
        Ok(Done {
            name: file.name.into_bytes().into(),
            what,
            stamp,
        })
    }

    /// Reads a file into the buffer: its attributes and its length.
    fn read(
        &mut self,
        directory: &OwnedFd,
        file: &ToRead,
    ) -> Result<(Statx, usize, (attributes::XattrList, Access)), Unreadable> {
        for _ in 0..ATTEMPTS {
            let fd = open_at(directory, &file.name, OFlags::empty())?;
            let before = begin(&fd)?;
            if before.stx_size > MAX_WHOLE_BYTES {
                break;
            }
            if file
                .link
                .is_some_and(|link| link.file != Stamp::of(&before).file)
            {
                return Err(Unreadable::Replaced);
            }
            let len = before.stx_size as usize;
            if self.buffer.len() <= len {
                self.buffer.resize(len + 1, 0);
            }
            // One byte more than expected, to reach the end of the file.
            let target = self.buffer.get_mut(..=len).unwrap_or_default();
            let read = read_full(&fd, target)?;
            let xattrs = self.xattrs.read(&fd, self.publishing.owner)?;
            let after = stat_open(&fd)?;
            if read == len && unchanged(&before, &after) {
                let start = self.buffer.get(..len).unwrap_or_default();
                self.publishing.check(start)?;
                return Ok((after, len, xattrs));
            }
        }
        Err(Unreadable::Changing(ATTEMPTS))
    }

    fn content(&mut self, len: usize, out: &mut Vec<Outgoing>) -> Result<Content, PublishError> {
        let bytes = self.buffer.get(..len).unwrap_or_default();
        Ok(Content::Regular(if bytes.is_empty() {
            FileContent::Empty
        } else if len <= MAX_INLINE_BYTES {
            FileContent::Inline(Bytes::copy_from_slice(bytes))
        } else {
            match self.cutter.content(bytes, out)? {
                Some(root) => FileContent::Array(root),
                None => FileContent::Empty,
            }
        }))
    }
}

/// Looks at a file that is about to be read; gives its attributes.
///
/// If the file was changed less than [`TICK`] ago, waits until that time is over. A second change within
/// the same timer tick has the same time stamp and would not be noticed afterwards. And the time is stamped
/// when a write begins, so the write may still be going on.
pub(crate) fn begin(fd: &OwnedFd) -> Result<Statx, Unreadable> {
    for _ in 0..ATTEMPTS {
        let stat = stat_open(fd)?;
        if attributes::file_type(&stat) != FileType::RegularFile {
            return Err(Unreadable::Replaced);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = u64::try_from(stat.stx_ctime.tv_sec).unwrap_or(0);
        let changed = Duration::new(seconds, stat.stx_ctime.tv_nsec);
        // A time in the future comes from another machine's clock and says nothing.
        match now.ok().and_then(|now| now.checked_sub(changed)) {
            Some(ago) if ago < TICK => std::thread::sleep(TICK - ago),
            _ => return Ok(stat),
        }
    }
    Err(Unreadable::Changing(ATTEMPTS))
}

/// Whether a file is as it was.
pub(crate) fn unchanged(before: &Statx, after: &Statx) -> bool {
    Stamp::of(before) == Stamp::of(after)
}

/// Whether the error says that the name no longer exists.
pub(crate) fn gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOENT.raw_os_error())
}

/// Fills `target` as far as the file goes.
pub(crate) fn read_full(fd: &OwnedFd, target: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(rest) = target.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::io::read(fd, rest) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Decides where extended attributes are stored. The blocks of a long list are added to `out`.
pub(crate) fn store_xattrs(
    cutter: &mut Cutter<'_>,
    list: attributes::XattrList,
    out: &mut Vec<Outgoing>,
) -> Result<Xattrs, PublishError> {
    match attributes::place_xattrs(list) {
        Ok(xattrs) => Ok(xattrs),
        Err(encoded) => Ok(match cutter.content(&encoded, out)? {
            Some(root) => Xattrs::Stored(root),
            None => Xattrs::None,
        }),
    }
}

/// Writes into an inode how many names it has.
pub(crate) fn name_link(inode: &mut Inode, link: Option<&Link>) {
    let link = link.filter(|link| link.names > 1);
    inode.links = link.map_or(1, |link| link.names);
    inode.link_group = link.map(|link| link.group);
}
