//! What clients append to a log.

use bytes::Bytes;

use crate::key::Digest;

/// A user of a log. Each client reads its own records only, and keeps its own oldest position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Client(pub u8);

/// A page of payload and its digest under the volume's [`DigestKey`](crate::DigestKey).
#[derive(Clone, Debug)]
pub struct Piece {
    /// The digest of `page`.
    pub digest: Digest,
    /// [`PAGE_BYTES`](crate::PAGE_BYTES) bytes, which need not be aligned: appending copies them.
    pub page: Bytes,
}

/// A record. The log authenticates `kind`, `body` and the digests of the pieces, and stores the pages beside them.
#[derive(Clone, Debug)]
pub struct Record {
    /// What the client calls it.
    pub kind: u8,
    /// At most 64 KiB.
    pub body: Bytes,
    /// At most 256 pieces (1 MiB).
    pub payload: Vec<Piece>,
}
