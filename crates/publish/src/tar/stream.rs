//! A tar stream, member by member (POSIX.1-2017 pax; GNU long names, base-256 numbers and sparse
//! files), in bounded memory. Names, sizes and maps are untrusted.
//!
//! This parser is our own because the result must be exact: values of pax records are bytes and may hold
//! newlines, times have nanoseconds and signs, the holes of a sparse file are never spelt out, and a
//! stream that ends without its end mark is an archive that was cut off.

use std::io::{ErrorKind, Read};

use bytes::Bytes;
use trust::inode::Time;

use super::header::{BLOCK, Header, decimal, number, text, time};
use crate::publish_error::PublishError;
use content::access;

/// Longest pax header or long name, bytes: 1 MiB of attributes, and room.
const MAX_META_BYTES: u64 = 2 << 20;
/// Most pieces of a sparse file.
const MAX_PIECES: usize = 1 << 20;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    /// Another name of the member of this name.
    HardLink(Vec<u8>),
    Fifo,
    CharDevice {
        major: u32,
        minor: u32,
    },
    BlockDevice {
        major: u32,
        minor: u32,
    },
}

/// A member; its content is read by [`Archive::content`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// As it stands in the archive.
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: u16,
    pub uid: i64,
    pub gid: i64,
    pub mtime: Time,
    /// In the order of the archive.
    pub xattrs: Vec<(Bytes, Bytes)>,
    /// Access control lists, as the archive has them ([`access::is_list`]).
    pub lists: Vec<(Bytes, Bytes)>,
    /// Length of the content, holes included, bytes.
    pub size: u64,
}

/// A stretch of a member's content.
pub(crate) enum Stretch<'a> {
    Bytes(&'a [u8]),
    Zeros(u64),
}

/// What pax headers said.
#[derive(Debug, Clone, Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<i64>,
    gid: Option<i64>,
    mtime: Option<Time>,
    xattrs: Vec<(Bytes, Bytes)>,
    lists: Vec<(Bytes, Bytes)>,
    sparse_major: Option<u64>,
    sparse_name: Option<Vec<u8>>,
    sparse_size: Option<u64>,
    /// Whether it has keys of the older pax forms of sparse files, which are not supported.
    sparse_other: bool,
}

/// An archive that is being read.
pub(crate) struct Archive<R> {
    input: R,
    /// Bytes of the present member that have not been read, and the padding after them.
    left: u64,
    padding: u64,
    /// Where the present member has data: offset and length, ascending.
    map: Option<Vec<(u64, u64)>>,
    size: u64,
    global: Pax,
    name: Vec<u8>,
    buffer: Vec<u8>,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(input: R) -> Self {
        Archive {
            input,
            left: 0,
            padding: 0,
            map: None,
            size: 0,
            global: Pax::default(),
            name: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// The next member; skips the unread rest of the one before.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, PublishError> {
        self.skip()?;
        let mut pax = self.global.clone();
        let (mut long_name, mut long_link) = (None, None);
        loop {
            let Some(block) = self.header()? else {
                return Ok(None);
            };
            let header = Header(&block);
            self.name = header.name();
            header.check().map_err(|why| self.bad(why))?;
            let size = self.number(header.size())?;
            match header.kind() {
                b'x' | b'X' => self.meta(size).and_then(|m| self.pax(&m, &mut pax))?,
                b'g' => {
                    let meta = self.meta(size)?;
                    let mut global = std::mem::take(&mut self.global);
                    self.pax(&meta, &mut global)?;
                    self.global = global.clone();
                    pax = global;
                }
                b'L' => long_name = Some(text(&self.meta(size)?)),
                b'K' => long_link = Some(text(&self.meta(size)?)),
                // A label of the whole archive.
                b'V' => {
                    self.begin(size)?;
                    self.skip()?;
                }
                kind => {
                    pax.path = pax.path.or(long_name);
                    pax.link = pax.link.or(long_link);
                    return self.member(&header, kind, size, pax).map(Some);
                }
            }
        }
    }

    fn member(
        &mut self,
        header: &Header<'_>,
        kind: u8,
        size: u64,
        pax: Pax,
    ) -> Result<Member, PublishError> {
        let path = pax
            .sparse_name
            .or(pax.path)
            .unwrap_or_else(|| header.name());
        self.name.clone_from(&path);
        let link = pax.link.unwrap_or_else(|| header.link());
        let device = |archive: &Self| -> Result<(u32, u32), PublishError> {
            // Linux has 12 and 20 bits.
            let narrow = |n: i64, limit: u32| {
                let number = u32::try_from(n).ok().filter(|n| *n < limit);
                number.ok_or_else(|| archive.bad("a device number that Linux does not have"))
            };
            Ok((
                narrow(archive.signed(header.major())?, 1 << 12)?,
                narrow(archive.signed(header.minor())?, 1 << 20)?,
            ))
        };
        let kind = match kind {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | 0 | b'7' | b'S' => Kind::Regular,
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Symlink(link),
            b'3' => {
                let (major, minor) = device(self)?;
                Kind::CharDevice { major, minor }
            }
            b'4' => {
                let (major, minor) = device(self)?;
                Kind::BlockDevice { major, minor }
            }
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => return Err(self.bad("a member of an unknown kind")),
        };
        // Only files have content. The header of a hard link, for example, may state the size of its target.
        let stored = match kind {
            Kind::Regular => pax.size.unwrap_or(size),
            _ => 0,
        };
        self.begin(stored)?;
        self.size = stored;
        if header.kind() == b'S' {
            self.gnu_sparse(header)?;
        } else if pax.sparse_major == Some(1) {
            let size = pax
                .sparse_size
                .ok_or_else(|| self.bad("a sparse file without a size"))?;
            self.pax_sparse(size)?;
        } else if pax.sparse_other || pax.sparse_major.is_some() {
            return Err(self.bad("an old form of sparse file; make it with --sparse-version=1.0"));
        }
        let mtime = match pax.mtime {
            Some(mtime) => mtime,
            None => Time {
                seconds: self.signed(header.mtime())?,
                nanos: 0,
            },
        };
        let mode = self.signed(header.mode())? & 0o7777;
        Ok(Member {
            path,
            kind,
            mode: u16::try_from(mode).unwrap_or(0),
            uid: pax.uid.map_or_else(|| self.signed(header.uid()), Ok)?,
            gid: pax.gid.map_or_else(|| self.signed(header.gid()), Ok)?,
            mtime,
            xattrs: pax.xattrs,
            lists: pax.lists,
            size: self.size,
        })
    }

    /// The content of the present member, in order.
    pub(crate) fn content(
        &mut self,
        mut emit: impl FnMut(Stretch<'_>) -> Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        let size = self.size;
        let map = self.map.take().unwrap_or_else(|| vec![(0, size)]);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(READ_BYTES, 0);
        let mut at = 0u64;
        for (offset, len) in map {
            if offset > at {
                emit(Stretch::Zeros(offset - at))?;
            }
            let mut left = len;
            while left > 0 {
                let room = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
                let target = buffer.get_mut(..room).unwrap_or_default();
                self.read(target)?;
                emit(Stretch::Bytes(target))?;
                left -= room as u64;
            }
            at = offset.saturating_add(len);
        }
        if size > at {
            emit(Stretch::Zeros(size - at))?;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Reads the rest of the stream, so that the program that writes it can end.
    pub(crate) fn drain(&mut self) -> Result<(), PublishError> {
        let drained = std::io::copy(&mut self.input, &mut std::io::sink());
        drained.map(drop).map_err(PublishError::Input)
    }

    /// A block that is a header; `None` at the end mark.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, PublishError> {
        let mut block = [0; BLOCK];
        self.exact(&mut block)?;
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        Ok(Some(block))
    }

    fn begin(&mut self, stored: u64) -> Result<(), PublishError> {
        let blocks = stored.div_ceil(BLOCK as u64);
        let whole = blocks.checked_mul(BLOCK as u64);
        let whole = whole.ok_or_else(|| self.bad("longer than any file"))?;
        self.left = stored;
        self.padding = whole - stored;
        self.map = None;
        Ok(())
    }

    fn skip(&mut self) -> Result<(), PublishError> {
        let mut left = self.left.saturating_add(self.padding);
        let mut buffer = [0; 16 * BLOCK];
        while left > 0 {
            let room = usize::try_from(left)
                .unwrap_or(buffer.len())
                .min(buffer.len());
            self.exact(buffer.get_mut(..room).unwrap_or_default())?;
            left -= room as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// Reads stored bytes of the present member.
    fn read(&mut self, target: &mut [u8]) -> Result<(), PublishError> {
        let left = self.left.checked_sub(target.len() as u64);
        self.left = left.ok_or_else(|| self.bad("a map with more data than the file has"))?;
        self.exact(target)
    }

    fn exact(&mut self, target: &mut [u8]) -> Result<(), PublishError> {
        self.input.read_exact(target).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => self.bad("the archive is cut off here"),
            _ => PublishError::Input(e),
        })
    }

    /// The whole content of a header that is about another one.
    fn meta(&mut self, size: u64) -> Result<Vec<u8>, PublishError> {
        if size > MAX_META_BYTES {
            return Err(self.bad("a header over 2 MiB"));
        }
        self.begin(size)?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.read(&mut bytes)?;
        self.skip()?;
        Ok(bytes)
    }

    /// Records `LENGTH KEY=VALUE\n`.
    fn pax(&self, mut bytes: &[u8], pax: &mut Pax) -> Result<(), PublishError> {
        let bad = || self.bad("a malformed pax header");
        while !bytes.is_empty() {
            let space = bytes.iter().position(|b| *b == b' ').ok_or_else(bad)?;
            let (digits, _) = bytes.split_at(space);
            let len = decimal(digits).and_then(|len| usize::try_from(len).ok());
            let len = len.filter(|len| *len > space + 1 && *len <= bytes.len());
            let (record, rest) = bytes.split_at(len.ok_or_else(bad)?);
            bytes = rest;
            let record = record.get(space + 1..).and_then(|r| r.strip_suffix(b"\n"));
            let record = record.ok_or_else(bad)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
            let (key, value) = record.split_at(equals);
            self.pax_record(key, value.get(1..).unwrap_or_default(), pax)?;
        }
        Ok(())
    }

    fn pax_record(&self, key: &[u8], value: &[u8], pax: &mut Pax) -> Result<(), PublishError> {
        let bad = || self.bad("a malformed number in a pax header");
        let number = || decimal(value).ok_or_else(bad);
        let owner = || number().and_then(|n| i64::try_from(n).map_err(|_| bad()));
        match key {
            b"path" => pax.path = Some(value.to_vec()),
            b"linkpath" => pax.link = Some(value.to_vec()),
            b"size" => pax.size = Some(number()?),
            b"uid" => pax.uid = Some(owner()?),
            b"gid" => pax.gid = Some(owner()?),
            b"mtime" => pax.mtime = Some(time(value).ok_or_else(bad)?),
            b"GNU.sparse.major" => pax.sparse_major = Some(number()?),
            b"GNU.sparse.name" => pax.sparse_name = Some(value.to_vec()),
            b"GNU.sparse.realsize" => pax.sparse_size = Some(number()?),
            b"GNU.sparse.map" | b"GNU.sparse.numblocks" => pax.sparse_other = true,
            key if access::is_list(key) => {
                let list = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                pax.lists.push(list);
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    pax.xattrs
                        .push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
                }
            }
        }
        Ok(())
    }

    /// The map in a GNU header, and in the blocks that continue it.
    fn gnu_sparse(&mut self, header: &Header<'_>) -> Result<(), PublishError> {
        let mut map = Vec::new();
        let mut pieces = header.field(386, 96).to_vec();
        let mut more = header.field(482, 1) != [0];
        let size = self.number(header.field(483, 12))?;
        loop {
            for piece in pieces.chunks_exact(24) {
                let (offset, len) = piece.split_at(12);
                if offset.first().is_some_and(|b| *b != 0) {
                    map.push((self.number(offset)?, self.number(len)?));
                }
            }
            if !more {
                break;
            }
            if map.len() > MAX_PIECES {
                return Err(self.bad("a sparse file of too many pieces"));
            }
            let mut block = [0; BLOCK];
            self.exact(&mut block)?;
            let block = Header(&block);
            pieces = block.field(0, 504).to_vec();
            more = block.field(504, 1) != [0];
        }
        self.set_map(map, size)
    }

    /// The map before the data: decimal numbers, one in each line, padded to a block.
    fn pax_sparse(&mut self, size: u64) -> Result<(), PublishError> {
        let mut read = 0u64;
        let count = self.map_number(&mut read)?;
        if count > MAX_PIECES as u64 {
            return Err(self.bad("a sparse file of too many pieces"));
        }
        let mut map = Vec::new();
        for _ in 0..count {
            map.push((self.map_number(&mut read)?, self.map_number(&mut read)?));
        }
        let over = read % BLOCK as u64;
        if over > 0 {
            let mut rest = [0; BLOCK];
            let rest_bytes = BLOCK - usize::try_from(over).unwrap_or(0);
            self.read(rest.get_mut(..rest_bytes).unwrap_or_default())?;
        }
        self.set_map(map, size)
    }

    fn map_number(&mut self, read: &mut u64) -> Result<u64, PublishError> {
        let mut digits = Vec::new();
        loop {
            let mut byte = [0];
            self.read(&mut byte)?;
            *read += 1;
            match byte {
                [b'\n'] => break,
                [digit] if digits.len() < 20 => digits.push(digit),
                _ => return Err(self.bad("a malformed map of a sparse file")),
            }
        }
        decimal(&digits).ok_or_else(|| self.bad("a malformed map of a sparse file"))
    }

    fn set_map(&mut self, map: Vec<(u64, u64)>, size: u64) -> Result<(), PublishError> {
        let mut at = 0;
        let mut data = 0u64;
        for (offset, len) in &map {
            let end = offset.checked_add(*len).filter(|end| *end <= size);
            if *offset < at || end.is_none() {
                return Err(self.bad("a map of a sparse file that is not in order"));
            }
            at = end.unwrap_or(size);
            data = data.saturating_add(*len);
        }
        if data != self.left {
            return Err(self.bad("a sparse file whose data does not match its map"));
        }
        self.map = Some(map);
        self.size = size;
        Ok(())
    }

    fn number(&self, field: &[u8]) -> Result<u64, PublishError> {
        let number = self.signed(field)?;
        u64::try_from(number).map_err(|_| self.bad("a negative length"))
    }

    fn signed(&self, field: &[u8]) -> Result<i64, PublishError> {
        number(field).ok_or_else(|| self.bad("a malformed number in a header"))
    }

    fn bad(&self, why: &'static str) -> PublishError {
        PublishError::Archive {
            path: trust::change::path(&self.name),
            why,
        }
    }
}
