//! What single frames and superblocks say, for tools and for tests of the formats.

use bytes::Bytes;

use crate::buffer::Buffer;
use crate::error::LogError;
use crate::frame::{self, FrameKey, Header};
use crate::key::{Digest, Key, VolumeId};
use crate::position::{Lsn, Mark};
use crate::record::Client;
use crate::superblock::{Judged, SuperblockKey, refusal};

pub use crate::superblock::{ClientState, Gap, Superblock};

/// The header part of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Whether it only fills the ring's end.
    pub padding: bool,
    /// Where the frame begins.
    pub lsn: Lsn,
    /// Its epoch, end and tag.
    pub mark: Mark,
    /// All before this position was durable when the frame was made.
    pub stable: Lsn,
    /// The tag of the frame before it.
    pub previous: [u8; 32],
    /// The position of its first page.
    pub payload: Lsn,
    /// Its records.
    pub records: Vec<FrameRecord>,
}

/// A record in a [`Frame`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRecord {
    /// Whose it is.
    pub client: Client,
    /// What the client calls it.
    pub kind: u8,
    /// Its body.
    pub body: Bytes,
    /// The digests of its pages.
    pub digests: Vec<Digest>,
}

/// Decodes the header part of a frame that begins at the first byte. `None`: not an authentic frame of this volume.
pub fn frame(bytes: &[u8], key: &Key, volume: VolumeId) -> Option<Frame> {
    let header = Header::open(bytes, &FrameKey::new(key, volume))?;
    let fixed = header.fixed;
    let records = frame::records(header.encoded(), fixed.payload());
    let record = |(_, record): (Lsn, frame::RecordView<'_>)| FrameRecord {
        client: record.client,
        kind: record.kind,
        body: Bytes::copy_from_slice(record.body),
        digests: record.digests().collect(),
    };
    Some(Frame {
        padding: fixed.padding,
        lsn: fixed.lsn,
        mark: header.mark(),
        stable: fixed.stable,
        previous: fixed.previous,
        payload: fixed.payload(),
        records: records.map(record).collect(),
    })
}

/// Decodes a page as a superblock.
///
/// # Errors
/// [`LogError::NotALog`], [`LogError::WrongKey`], [`LogError::Unsupported`] or [`LogError::Superblock`].
pub fn superblock(page: &[u8], key: &Key) -> Result<Superblock, LogError> {
    match Superblock::judge(page, |volume| SuperblockKey::new(key, volume)) {
        Judged::Authentic(superblock) => Ok(*superblock),
        other => Err(refusal(other)),
    }
}

/// The page of a superblock.
pub fn encode_superblock(superblock: &Superblock, key: &Key) -> Buffer {
    superblock.encode(&SuperblockKey::new(key, superblock.volume))
}
