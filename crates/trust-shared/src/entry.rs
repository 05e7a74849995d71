//! Entries: what a device writes into the log of a shared volume (docs/formats/shared.md, *Entry*).
//!
//! An entry is kept as the exact bytes that were signed, with the signature. These bytes are the log's leaf. They
//! have the outline in full and the body as a hash, so that who replays the log needs no bodies, and bodies can be
//! thrown away. [`SignedEntry`] is what an untrusted source shows; its form can be judged ([`form`]) before its
//! signature is. Only [`SignedEntry::verify`] makes a [`VerifiedEntry`].

use bytes::Bytes;

use super::form::{self, Point};
use trust::device::{self, DeviceKey, Incarnation, KnownDevice};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::history::{LogPoint, leaf_hash};
use trust::key::{SIGNATURE_BYTES, SecretKey};
use trust::volume_id::VolumeId;

/// Most bytes of outline and body together.
pub const MAX_OPS_BYTES: usize = 48 << 10;
/// Longest encoded entry, bytes: the outline and all that is beside it.
pub const MAX_ENTRY_BYTES: usize = MAX_OPS_BYTES + 256;

/// Put before the volume and an entry's bytes when it is signed.
pub const SIGNING_DOMAIN: &[u8] = b"bulla entry signature 0\n";
const BODY_DOMAIN: &str = "bulla 0 shared body";
const WHAT: &str = "entry";

/// First byte of an entry with operations.
pub(super) const OPS: u8 = 1;
/// First byte of an entry that begins an incarnation.
pub(super) const RESUME: u8 = 2;

/// A prefix of a log: its size, and its root.
pub type Prefix = Point<[u8; 32]>;
/// What the rules of form judge.
pub type Heading = form::Heading<[u8; 32], Incarnation>;
/// What the log says about one device.
pub type Author = form::Author<[u8; 32], Incarnation>;
/// What is known about an author where an entry is judged.
pub type Standing<'a> = form::Standing<'a, [u8; 32], Incarnation>;

/// The content of an entry, without its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Number of the log.
    pub epoch: u64,
    /// The author.
    pub device: DeviceKey,
    /// The run of the author's engine.
    pub incarnation: Incarnation,
    /// The longest prefix that the author had verified when it signed.
    pub seen: Prefix,
    /// Size of the author's floor on disk when it signed; at most `seen.size`.
    pub kept: u64,
    /// What it does.
    pub content: Content,
}

/// What an entry does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Begins the incarnation. Its number is 0, and nothing is beside it.
    Resume,
    /// Operations.
    Ops(Ops),
}

/// The operations of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ops {
    /// Number of the entry in its incarnation, from 1.
    pub n: u64,
    /// Leaf hash of the author's entry before this one.
    pub previous: [u8; 32],
    /// The encoded outline: which keys the operations change.
    pub outline: Bytes,
    /// Hash of the encoded body ([`body_hash`]).
    pub body_hash: [u8; 32],
}

/// The hash of an entry's body.
pub fn body_hash(body: &[u8]) -> [u8; 32] {
    blake3::derive_key(BODY_DOMAIN, body)
}

impl Entry {
    /// Signs the entry.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an entry that has no encoding: a number 0 beside operations, a floor beyond what was
    /// seen, a longer outline, another device's key.
    pub fn sign(&self, volume: VolumeId, key: &SecretKey) -> Result<SignedEntry, Reject> {
        let mut e = Encoder::new();
        let kind = match self.content {
            Content::Resume => RESUME,
            Content::Ops(_) => OPS,
        };
        e.u8(kind).varint(self.epoch).raw(self.device.as_bytes());
        e.raw(self.incarnation.as_bytes());
        self.seen.encode(&mut e);
        // Not negative: `decode` below refuses an entry whose floor comes back as another one.
        e.varint(self.seen.size.saturating_sub(self.kept));
        if let Content::Ops(ops) = &self.content {
            e.varint(ops.n).raw(&ops.previous);
            e.bytes(&ops.outline).raw(&ops.body_hash);
        }
        let bytes = device::sign(SIGNING_DOMAIN, volume, e.finish(), key);
        let signed = SignedEntry::decode(bytes.into())?;
        if signed.entry != *self || DeviceKey::from(&key.public()) != self.device {
            return Err(bad(
                "says what no entry can say, or signed by another device",
            ));
        }
        Ok(signed)
    }

    fn decode(bytes: &Bytes) -> Result<Entry, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if bytes.len() > MAX_ENTRY_BYTES {
            return Err(d.bad("too long"));
        }
        let kind = d.u8()?;
        if !matches!(kind, OPS | RESUME) {
            return Err(d.bad("another kind of leaf"));
        }
        let epoch = d.varint()?;
        let device = device::decode(&mut d)?;
        let incarnation = Incarnation::from_bytes(d.array()?);
        let seen = Prefix::decode(&mut d)?;
        let forgettable = d.bounded(seen.size, "keeps more than it has seen")?;
        let kept = seen.size.saturating_sub(forgettable);
        let content = match kind {
            RESUME => Content::Resume,
            _ => Content::Ops(Ops::decode(&mut d, bytes)?),
        };
        d.raw(SIGNATURE_BYTES)?;
        d.finish()?;
        Ok(Entry {
            epoch,
            device,
            incarnation,
            seen,
            kept,
            content,
        })
    }

    /// Number in its incarnation.
    pub fn n(&self) -> u64 {
        match &self.content {
            Content::Resume => 0,
            Content::Ops(ops) => ops.n,
        }
    }

    /// Whether it begins an incarnation.
    pub fn is_resume(&self) -> bool {
        self.content == Content::Resume
    }

    /// The operations. None in a Resume.
    pub fn ops(&self) -> Option<&Ops> {
        match &self.content {
            Content::Resume => None,
            Content::Ops(ops) => Some(ops),
        }
    }

    /// What the rules of form judge. A Resume is alone by its encoding, and has no previous entry.
    pub fn heading(&self) -> Heading {
        Heading {
            incarnation: self.incarnation,
            n: self.n(),
            previous: self.ops().map_or([0; 32], |ops| ops.previous),
            seen: self.seen,
            kept: self.kept,
            resume: self.is_resume(),
            alone: true,
        }
    }
}

impl Ops {
    fn decode(d: &mut Decoder<'_>, all: &Bytes) -> Result<Ops, Reject> {
        let n = d.varint()?;
        if n == 0 {
            return Err(d.bad("operations with the number of a Resume"));
        }
        Ok(Ops {
            n,
            previous: d.array()?,
            outline: all.slice_ref(d.bytes(MAX_OPS_BYTES)?),
            body_hash: d.array()?,
        })
    }

    /// Proves that `body` is the body of these operations.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for bytes that are too many beside the outline; [`Reject::WrongBlock`] for another body.
    pub fn check_body(&self, body: &[u8]) -> Result<(), Reject> {
        if body.len() > MAX_OPS_BYTES.saturating_sub(self.outline.len()) {
            return Err(bad("outline and body are too long"));
        }
        if body_hash(body) != self.body_hash {
            return Err(Reject::WrongBlock);
        }
        Ok(())
    }
}

impl Prefix {
    /// The prefix in the log of this epoch.
    pub fn in_epoch(&self, epoch: u64) -> LogPoint {
        LogPoint {
            epoch,
            size: self.size,
            root: self.root,
        }
    }

    /// Appends `size varint | root [32]`.
    pub fn encode(&self, out: &mut Encoder) {
        out.varint(self.size).raw(&self.root);
    }

    /// Reads what [`Prefix::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for bytes that are too few, or a size with a second encoding.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(Prefix {
            size: d.varint()?,
            root: d.array()?,
        })
    }
}

/// An entry as its author signed it. The signature is not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedEntry {
    entry: Entry,
    bytes: Bytes,
    hash: [u8; 32],
}

impl SignedEntry {
    /// Takes bytes that claim to be an entry.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of an entry.
    pub fn decode(bytes: Bytes) -> Result<Self, Reject> {
        Ok(SignedEntry {
            entry: Entry::decode(&bytes)?,
            hash: leaf_hash(&bytes),
            bytes,
        })
    }

    /// What the entry says. Nobody has verified who says it.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The leaf of the log: what was signed, and the signature.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The leaf's hash (RFC 6962). The author's next entry names it as `previous`.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The bytes that the signature covers, without domain and volume.
    #[cfg(test)]
    fn signed_part(&self) -> &[u8] {
        let signed = self.bytes.split_last_chunk::<SIGNATURE_BYTES>();
        signed.map_or(&[], |(signed, _)| signed)
    }

    /// Verifies that the device signed this entry for this volume.
    ///
    /// # Errors
    /// [`Reject::NotSigned`].
    pub fn verify(&self, volume: VolumeId) -> Result<VerifiedEntry, Reject> {
        device::verify(SIGNING_DOMAIN, volume, &self.bytes, &self.entry.device)?;
        Ok(VerifiedEntry(self.clone()))
    }

    /// The same for a device whose key is at hand.
    ///
    /// # Errors
    /// [`Reject::NotSigned`], also when another device is said to have signed.
    pub fn verify_by(&self, volume: VolumeId, by: &KnownDevice) -> Result<(), Reject> {
        by.verify(SIGNING_DOMAIN, volume, &self.bytes, &self.entry.device)
    }
}

/// An entry whose author's signature was verified. It may still be of bad form, or of another log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedEntry(SignedEntry);

impl VerifiedEntry {
    /// What its author says.
    pub fn entry(&self) -> &Entry {
        &self.0.entry
    }

    /// The entry as it was signed.
    pub fn signed(&self) -> &SignedEntry {
        &self.0
    }

    /// The leaf's hash.
    pub fn hash(&self) -> [u8; 32] {
        self.0.hash
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}

#[cfg(test)]
mod tests;
