//! A frame: records of several clients that become durable together. Bytes: `docs/formats/log.md`, *Frames*.
//!
//! The header part (fixed fields, records, digests of their pages, zeros, tag) is padded to whole pages; pages of
//! payload follow. The tag authenticates the header part, the digests in it authenticate the pages.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use zeroize::Zeroizing;

use crate::buffer::{PAGE, PAGE_BYTES};
use crate::error::AppendError;
use crate::key::{Digest, Key, VolumeId};
use crate::position::{Lsn, Mark};
use crate::record::{Client, Record};

const MAGIC: [u8; 8] = *b"bullafrm";
const RECORDS: u32 = 0;
const PADDING: u32 = 1;
const FIXED_BYTES: usize = 104;
const TAG_BYTES: usize = 32;
const DIGEST_BYTES: usize = 16;

/// Longest header part in bytes.
pub(crate) const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Most pages of payload in a frame: 8 MiB.
pub(crate) const MAX_PAGES: u64 = (8 << 20) / PAGE;
/// Longest body of a record in bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Most pages of payload in a record.
pub const MAX_PIECES: usize = 256;
/// Longest frame in bytes.
pub(crate) const MAX_FRAME_BYTES: u64 = MAX_HEADER_BYTES + MAX_PAGES * PAGE;

/// Authenticates frames of one volume.
#[derive(Clone)]
pub(crate) struct FrameKey {
    key: Zeroizing<[u8; 32]>,
    volume: VolumeId,
}

impl FrameKey {
    pub fn new(key: &Key, volume: VolumeId) -> FrameKey {
        FrameKey {
            key: key.derive("log frame", volume),
            volume,
        }
    }

    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    fn tag(&self, authenticated: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.key, authenticated)
    }
}

/// The fixed fields of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub padding: bool,
    pub epoch: u64,
    pub lsn: Lsn,
    /// Of the whole frame.
    pub bytes: u64,
    /// All before this position was durable when the frame was made.
    pub stable: Lsn,
    pub previous: [u8; 32],
    /// Bytes of the fixed fields and the records.
    used: usize,
    records: u32,
    pub pages: u64,
}

impl Fixed {
    /// Reads the fixed fields of a frame of this volume from its first page. Nothing is authentic yet.
    pub fn decode(page: &[u8], volume: VolumeId) -> Option<Fixed> {
        let fixed = Fixed::take(page, volume).ok()?;
        fixed.is_possible().then_some(fixed)
    }

    fn take(page: &[u8], volume: VolumeId) -> Result<Fixed, Reject> {
        let mut fields = Decoder::new(page, "log frame");
        if fields.array()? != MAGIC {
            return Err(fields.bad("not a frame"));
        }
        let kind = fields.u32()?;
        if kind > PADDING {
            return Err(fields.bad("of an unknown kind"));
        }
        if VolumeId(fields.array()?) != volume {
            return Err(fields.bad("of another volume"));
        }
        Ok(Fixed {
            padding: kind == PADDING,
            epoch: fields.u64()?,
            lsn: Lsn(fields.u64()?),
            bytes: fields.u64()?,
            stable: Lsn(fields.u64()?),
            previous: fields.array()?,
            used: fields.u32()? as usize,
            records: fields.u32()?,
            pages: u64::from(fields.u32()?),
        })
    }

    fn is_possible(&self) -> bool {
        let aligned = self.lsn.0.is_multiple_of(PAGE) && self.bytes.is_multiple_of(PAGE);
        let bounded = self.header_bytes() as u64 <= MAX_HEADER_BYTES
            && self.pages <= MAX_PAGES
            && self.lsn.0.checked_add(self.bytes).is_some();
        let content = self.header_bytes() as u64 + self.pages * PAGE;
        let complete = if self.padding {
            self.used == FIXED_BYTES && self.records == 0 && self.pages == 0 && self.bytes >= PAGE
        } else {
            self.bytes == content
        };
        aligned && bounded && complete
    }

    /// Bytes of the header part.
    pub fn header_bytes(&self) -> usize {
        self.used
            .saturating_add(TAG_BYTES)
            .checked_next_multiple_of(PAGE_BYTES)
            .unwrap_or(usize::MAX)
    }

    pub fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.bytes)
    }

    /// Position of the first page of payload.
    pub fn payload(&self) -> Lsn {
        Lsn(self.lsn.0 + self.header_bytes() as u64)
    }
}

/// The header part of a frame, authenticated.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    pub fixed: Fixed,
    pub tag: [u8; 32],
    records: &'a [u8],
}

impl<'a> Header<'a> {
    /// Authenticates a header part. `None`: not a whole frame of this volume.
    pub fn open(bytes: &'a [u8], key: &FrameKey) -> Option<Header<'a>> {
        let fixed = Fixed::decode(bytes, key.volume)?;
        let header = bytes.get(..fixed.header_bytes())?;
        let (authenticated, tag) = header.split_last_chunk::<TAG_BYTES>()?;
        if key.tag(authenticated) != *tag {
            return None;
        }
        let header = Header {
            fixed,
            tag: *tag,
            records: authenticated.get(FIXED_BYTES..fixed.used)?,
        };
        let whole = header.is_whole() == Ok(true)
            && authenticated.get(fixed.used..)?.iter().all(|b| *b == 0);
        whole.then_some(header)
    }

    fn is_whole(&self) -> Result<bool, Reject> {
        let mut fields = Decoder::new(self.records, "log frame");
        let mut pages = 0;
        for _ in 0..self.fixed.records {
            pages += RecordView::take(&mut fields)?.pieces() as u64;
        }
        fields.finish()?;
        Ok(pages == self.fixed.pages)
    }

    pub fn mark(&self) -> Mark {
        Mark {
            epoch: self.fixed.epoch,
            lsn: self.fixed.end(),
            tag: self.tag,
        }
    }

    /// The records, for [`records`].
    pub fn encoded(&self) -> &'a [u8] {
        self.records
    }
}

/// A record in a header part.
#[derive(Clone, Copy)]
pub(crate) struct RecordView<'a> {
    pub client: Client,
    pub kind: u8,
    pub body: &'a [u8],
    digests: &'a [u8],
}

/// Records in order, each with the position of its first page; `payload` is the first one's.
pub(crate) fn records(encoded: &[u8], payload: Lsn) -> impl Iterator<Item = (Lsn, RecordView<'_>)> {
    let mut fields = Decoder::new(encoded, "log frame");
    let mut at = payload;
    std::iter::from_fn(move || {
        let record = RecordView::take(&mut fields).ok()?;
        let first = at;
        at.0 += record.pieces() as u64 * PAGE;
        Some((first, record))
    })
}

impl<'a> RecordView<'a> {
    fn take(fields: &mut Decoder<'a>) -> Result<RecordView<'a>, Reject> {
        let (client, kind) = (Client(fields.u8()?), fields.u8()?);
        let body = fields.bytes(MAX_BODY_BYTES)?;
        let pieces = fields.bounded(MAX_PIECES as u64, "too many pages")?;
        Ok(RecordView {
            client,
            kind,
            body,
            digests: fields.raw(pieces as usize * DIGEST_BYTES)?,
        })
    }

    fn pieces(&self) -> usize {
        self.digests.len() / DIGEST_BYTES
    }

    pub fn digests(&self) -> impl Iterator<Item = Digest> + use<'a> {
        let (digests, _) = self.digests.as_chunks::<DIGEST_BYTES>();
        digests.iter().map(|digest| Digest(*digest))
    }
}

/// A frame whose place in the log is not known yet.
pub(crate) struct Draft {
    header: Vec<u8>,
    used: usize,
    records: u32,
    pages: u64,
}

impl Draft {
    /// # Errors
    /// [`AppendError::Invalid`]: a limit is broken.
    pub fn new(records: &[(Client, Record)]) -> Result<Draft, AppendError> {
        let mut out = Encoder::new();
        out.raw(&[0; FIXED_BYTES]);
        let mut pages = 0;
        for (client, record) in records {
            check(record)?;
            out.u8(client.0).u8(record.kind).bytes(&record.body);
            out.varint(record.payload.len() as u64);
            for piece in &record.payload {
                out.raw(&piece.digest.0);
            }
            pages += record.payload.len() as u64;
            if out.len() + TAG_BYTES > MAX_HEADER_BYTES as usize {
                let why = "bodies and digests of a frame have more than 1 MiB";
                return Err(AppendError::Invalid { why });
            }
        }
        if pages > MAX_PAGES {
            let why = "pages of a frame have more than 8 MiB";
            return Err(AppendError::Invalid { why });
        }
        Ok(Draft::with(out.finish(), records.len() as u32, pages))
    }

    fn padding() -> Draft {
        Draft::with(vec![0; FIXED_BYTES], 0, 0)
    }

    fn with(mut header: Vec<u8>, records: u32, pages: u64) -> Draft {
        let used = header.len();
        header.resize((used + TAG_BYTES).next_multiple_of(PAGE_BYTES), 0);
        Draft {
            header,
            used,
            records,
            pages,
        }
    }

    /// Bytes of the frame.
    pub fn bytes(&self) -> u64 {
        self.header.len() as u64 + self.pages * PAGE
    }

    /// Bytes of the header part.
    pub fn header_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// Gives the frame its place after `previous`, and its tag.
    pub fn seal(self, key: &FrameKey, epoch: u64, previous: &Mark, stable: Lsn) -> Sealed {
        let bytes = self.bytes();
        self.seal_as(RECORDS, bytes, key, epoch, previous, stable)
    }

    fn seal_as(
        mut self,
        kind: u32,
        bytes: u64,
        key: &FrameKey,
        epoch: u64,
        previous: &Mark,
        stable: Lsn,
    ) -> Sealed {
        let mut out = Encoder::new();
        out.raw(&MAGIC).u32(kind).raw(&key.volume.0).u64(epoch);
        out.u64(previous.lsn.0).u64(bytes).u64(stable.0);
        out.raw(&previous.tag).u32(self.used as u32);
        out.u32(self.records).u32(self.pages as u32);
        self.header[..FIXED_BYTES].copy_from_slice(&out.finish());
        let tag_at = self.header.len() - TAG_BYTES;
        let tag = *key.tag(&self.header[..tag_at]).as_bytes();
        self.header[tag_at..].copy_from_slice(&tag);
        Sealed {
            header: self.header,
            start: previous.lsn,
            mark: Mark {
                epoch,
                lsn: Lsn(previous.lsn.0 + bytes),
                tag,
            },
        }
    }
}

/// A frame that fills `bytes` after `previous`, to the ring's end.
pub(crate) fn padding(
    bytes: u64,
    key: &FrameKey,
    epoch: u64,
    previous: &Mark,
    stable: Lsn,
) -> Sealed {
    Draft::padding().seal_as(PADDING, bytes, key, epoch, previous, stable)
}

/// The header part of a frame as it is written, and where it lies.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub header: Vec<u8>,
    pub start: Lsn,
    /// The frame's end and tag.
    pub mark: Mark,
}

fn check(record: &Record) -> Result<(), AppendError> {
    let invalid = |why| Err(AppendError::Invalid { why });
    if record.body.len() > MAX_BODY_BYTES {
        return invalid("the body of a record has more than 64 KiB");
    }
    if record.payload.len() > MAX_PIECES {
        return invalid("a record has more than 256 pages");
    }
    if record.payload.iter().any(|p| p.page.len() != PAGE_BYTES) {
        return invalid("a page of payload has 4096 bytes");
    }
    Ok(())
}
