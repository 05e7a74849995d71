//! A tar stream, member by member (POSIX.1-2017 pax; GNU long names, base-256 numbers and sparse
//! files), in bounded memory and believing nothing: names, sizes and maps are a stranger's.
//!
//! Read by hand because what is needed is exact: values of pax records are bytes and may hold
//! newlines, times have nanoseconds and signs, the holes of a sparse file are never spelt out, and a
//! stream that ends without its end mark is an archive that was cut off.

use std::io::{ErrorKind, Read};

use bytes::Bytes;
use trust::inode::Mtime;

use crate::publish_error::{self, PublishError};

const BLOCK: usize = 512;
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
    pub mtime: Mtime,
    /// In the order of the archive.
    pub xattrs: Vec<(Bytes, Bytes)>,
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
    mtime: Option<Mtime>,
    xattrs: Vec<(Bytes, Bytes)>,
    sparse_major: Option<u64>,
    sparse_name: Option<Vec<u8>>,
    sparse_size: Option<u64>,
    /// Of the older pax forms, which this does not read.
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

    /// The next member; what was not read of the one before is passed over.
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
            let narrow = |n: i64| u32::try_from(n).map_err(|_| archive.bad("a device number"));
            Ok((
                narrow(archive.signed(header.major())?)?,
                narrow(archive.signed(header.minor())?)?,
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
        // Only files have content; other headers may state the size of what they stand for.
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
            None => Mtime {
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

    /// Reads what is left of the stream, so that whoever writes it can end.
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
        self.left = left.ok_or_else(|| self.bad("its map has more data than it"))?;
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
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    pax.xattrs
                        .push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
                }
            }
        }
        Ok(())
    }

    /// The map in a GNU header, and in the blocks that go on from it.
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

    /// The map that stands before the data, as decimal numbers one a line, padded to a block.
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
            return Err(self.bad("a sparse file with other data than its map"));
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
            path: publish_error::path(&self.name),
            why,
        }
    }
}

/// A header block and its fields.
struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    fn field(&self, from: usize, len: usize) -> &[u8] {
        self.0
            .get(from..from.saturating_add(len))
            .unwrap_or_default()
    }
    fn mode(&self) -> &[u8] {
        self.field(100, 8)
    }
    fn uid(&self) -> &[u8] {
        self.field(108, 8)
    }
    fn gid(&self) -> &[u8] {
        self.field(116, 8)
    }
    fn size(&self) -> &[u8] {
        self.field(124, 12)
    }
    fn mtime(&self) -> &[u8] {
        self.field(136, 12)
    }
    fn kind(&self) -> u8 {
        self.field(156, 1).first().copied().unwrap_or(0)
    }
    fn major(&self) -> &[u8] {
        self.field(329, 8)
    }
    fn minor(&self) -> &[u8] {
        self.field(337, 8)
    }

    fn name(&self) -> Vec<u8> {
        let name = text(self.field(0, 100));
        let prefix = text(self.field(345, 155));
        // GNU headers have other things there.
        if self.field(257, 6) == b"ustar\0" && !prefix.is_empty() {
            return [&prefix, &b"/"[..], &name].concat();
        }
        name
    }

    fn link(&self) -> Vec<u8> {
        text(self.field(157, 100))
    }

    fn check(&self) -> Result<(), &'static str> {
        let counts = |at: usize, byte: u8| match at {
            148..156 => i64::from(b' '),
            _ => i64::from(byte),
        };
        let bytes = || self.0.iter().enumerate();
        let sum: i64 = bytes().map(|(at, b)| counts(at, *b)).sum();
        // Some old programs took bytes for signed.
        let of_signed = |(at, b): (usize, &u8)| match at {
            148..156 => i64::from(b' '),
            _ => i64::from(b.cast_signed()),
        };
        let signed: i64 = bytes().map(of_signed).sum();
        match number(self.field(148, 8)) {
            Some(told) if told == sum || told == signed => Ok(()),
            _ => Err("not a tar archive (a compressed one must be unpacked first), or damaged"),
        }
    }
}

/// Bytes up to the first NUL.
fn text(field: &[u8]) -> Vec<u8> {
    let end = field.iter().position(|b| *b == 0);
    field
        .get(..end.unwrap_or(field.len()))
        .unwrap_or_default()
        .to_vec()
}

/// A number of a header: octal digits, or base 256 with the top bit set.
fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let mut value: i128 = if *first == 0xff {
            -1
        } else {
            i128::from(first & 0x7f)
        };
        for byte in rest {
            value = value.checked_mul(256)?.checked_add(i128::from(*byte))?;
        }
        return i64::try_from(value).ok();
    }
    let digits = field.trim_ascii();
    let end = digits.iter().position(|b| matches!(b, 0 | b' '));
    let digits = digits.get(..end.unwrap_or(digits.len()))?;
    let mut value: i64 = 0;
    for digit in digits {
        if !matches!(digit, b'0'..=b'7') {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(value)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value
            .checked_mul(10)?
            .checked_add(u64::from(digit - b'0'))?;
    }
    Some(value)
}

/// `[-]SECONDS[.FRACTION]`, rounded down to the nanosecond.
fn time(text: &[u8]) -> Option<Mtime> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|b| *b == b'.');
    let (whole, fraction) = text.split_at(dot.unwrap_or(text.len()));
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let fraction = fraction.get(1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |at: usize| fraction.get(at).map_or(0, |d| u32::from(d - b'0'));
    let nanos = (0..9).fold(0u32, |sum, at| sum * 10 + digit(at));
    let beyond = fraction.iter().skip(9).any(|d| *d != b'0');
    if !negative {
        return Some(Mtime { seconds, nanos });
    }
    // −1.25 s is 0.75 s after −2 s; what is finer than a nanosecond rounds down as well.
    let nanos = i64::from(nanos) + i64::from(beyond);
    let (seconds, nanos) = match nanos {
        0 => (-seconds, 0),
        nanos => ((-seconds).checked_sub(1)?, 1_000_000_000 - nanos),
    };
    Some(Mtime {
        seconds,
        nanos: u32::try_from(nanos).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_headers() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"777777777777"), Some(0o777_777_777_777));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\x02"), Some(258));
        assert_eq!(
            number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"),
            Some(-2)
        );
        assert_eq!(number(b"\x80\x01\0\0\0\0\0\0\0\0\0\0"), None);
        for bad in [&b"8"[..], b"-1", b"0x1", b""] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn times_round_down() {
        let at = |seconds, nanos| Some(Mtime { seconds, nanos });
        assert_eq!(time(b"12"), at(12, 0));
        assert_eq!(time(b"12.5"), at(12, 500_000_000));
        assert_eq!(time(b"12.1234567899"), at(12, 123_456_789));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-1"), at(-1, 0));
        assert_eq!(time(b"-0.0000000001"), at(-1, 999_999_999));
        for bad in [
            &b""[..],
            b".",
            b"-",
            b"1.x",
            b"1e3",
            b"--1",
            b"99999999999999999999",
        ] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
