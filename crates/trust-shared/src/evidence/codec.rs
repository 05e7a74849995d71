//! The bytes of evidence. Relies on the encodings of its parts.

use bytes::Bytes;

use super::{Evidence, Included, MAX_EVIDENCE_BYTES, Offence, bad};
use crate::entry::{MAX_ENTRY_BYTES, SignedEntry};
use crate::note::SignedNote;
use trust::encode::{Decoder, Encoder, split_checksum};
use trust::error::Reject;
use trust::history::MAX_PROOF_HASHES;
use trust::statement::{Job, Signed};
use trust::volume_id::VolumeId;

const MAGIC: &[u8; 8] = b"bullaevi";
const FORMAT: u16 = 0;
/// Most policies in one file.
const MAX_POLICIES: u64 = 1 << 12;

/// Whether a file begins as evidence does. Nothing else of it is read.
pub fn is_evidence(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Evidence {
    /// The file's bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it is too long.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.raw(MAGIC).u16(FORMAT).u16(0);
        e.raw(self.volume.as_bytes()).u64(self.epoch);
        e.varint(self.policies.len() as u64);
        for policy in &self.policies {
            policy.encode(&mut e);
        }
        self.offence.encode(&mut e);
        let bytes = e.finish_with_checksum();
        if bytes.len() > MAX_EVIDENCE_BYTES {
            return Err(bad("too long"));
        }
        Ok(bytes)
    }

    /// Reads a file. Nothing in it is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of evidence; [`Reject::Unsupported`] for a later
    /// format or kind.
    pub fn decode(bytes: &[u8]) -> Result<Evidence, Reject> {
        if bytes.len() > MAX_EVIDENCE_BYTES {
            return Err(bad("too long"));
        }
        let (body, whole) = split_checksum(bytes).ok_or(bad("truncated"))?;
        let mut d = Decoder::new(body, "evidence");
        if d.array()? != *MAGIC {
            return Err(d.bad("not a file of evidence"));
        }
        let (format, flags) = (d.u16()?, d.u16()?);
        if (format, flags) != (FORMAT, 0) {
            if is_of_this_format(bytes) {
                return Err(d.bad("damaged in the number of its format"));
            }
            return Err(unsupported(format!("format {format}, flags {flags:#06x}")));
        }
        if !whole {
            return Err(d.bad("damaged"));
        }
        let volume = VolumeId::from_bytes(d.array()?);
        let epoch = d.u64()?;
        let count = d.bounded(MAX_POLICIES, "too many policies")?;
        let mut policies = Vec::new();
        for _ in 0..count {
            policies.push(Signed::decode_of(Job::Shared, &mut d)?);
        }
        let offence = Offence::decode(&mut d)?;
        d.finish()?;
        Ok(Evidence {
            volume,
            epoch,
            policies,
            offence,
        })
    }
}

/// Whether the checksum is that of a file of this format. Then other numbers in it are damage, and no later format.
fn is_of_this_format(bytes: &[u8]) -> bool {
    let mut same = bytes.to_vec();
    if let Some(numbers) = same.get_mut(MAGIC.len()..MAGIC.len() + 4) {
        let mut this = Encoder::new();
        this.u16(FORMAT).u16(0);
        numbers.copy_from_slice(&this.finish());
    }
    split_checksum(&same).is_some_and(|(_, whole)| whole)
}

impl Offence {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Offence::Fork {
                first,
                second,
                proof,
            } => {
                e.u8(1);
                first.encode(e);
                second.encode(e);
                encode_hashes(proof, e);
            }
            Offence::OtherStart { note, proof } => {
                e.u8(2);
                note.encode(e);
                encode_hashes(proof, e);
            }
            Offence::BadLeaf { note, leaf } => {
                e.u8(3);
                note.encode(e);
                leaf.encode(e);
            }
            Offence::SeenElsewhere { note, entry, proof } => {
                e.u8(4);
                note.encode(e);
                entry.encode(e);
                encode_hashes(proof, e);
            }
            Offence::SeenMissesOwn {
                note,
                before,
                entry,
            } => {
                e.u8(5);
                note.encode(e);
                before.encode(e);
                entry.encode(e);
            }
            Offence::OtherPrevious {
                note,
                previous,
                entry,
            } => {
                e.u8(6);
                note.encode(e);
                e.bytes(previous);
                entry.encode(e);
            }
            Offence::PassesOver {
                note,
                previous,
                passed,
                entry,
            } => {
                e.u8(7);
                note.encode(e);
                previous.encode(e);
                passed.encode(e);
                entry.encode(e);
            }
            Offence::SignedTwice(both) => {
                e.u8(8);
                for entry in both.iter() {
                    e.bytes(entry.bytes());
                }
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Offence, Reject> {
        Ok(match d.u8()? {
            1 => Offence::Fork {
                first: SignedNote::decode(d)?,
                second: SignedNote::decode(d)?,
                proof: decode_hashes(d)?,
            },
            2 => Offence::OtherStart {
                note: SignedNote::decode(d)?,
                proof: decode_hashes(d)?,
            },
            3 => Offence::BadLeaf {
                note: SignedNote::decode(d)?,
                leaf: Included::decode(d)?,
            },
            4 => Offence::SeenElsewhere {
                note: SignedNote::decode(d)?,
                entry: Included::decode(d)?,
                proof: decode_hashes(d)?,
            },
            5 => Offence::SeenMissesOwn {
                note: SignedNote::decode(d)?,
                before: Included::decode(d)?,
                entry: Included::decode(d)?,
            },
            6 => Offence::OtherPrevious {
                note: SignedNote::decode(d)?,
                previous: leaf(d)?,
                entry: Included::decode(d)?,
            },
            7 => Offence::PassesOver {
                note: SignedNote::decode(d)?,
                previous: Included::decode(d)?,
                passed: Included::decode(d)?,
                entry: Included::decode(d)?,
            },
            8 => Offence::SignedTwice(Box::new([entry(d)?, entry(d)?])),
            kind => return Err(unsupported(format!("kind {kind}"))),
        })
    }
}

impl Included {
    fn encode(&self, e: &mut Encoder) {
        e.varint(self.index).bytes(&self.leaf);
        encode_hashes(&self.path, e);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Included, Reject> {
        Ok(Included {
            index: d.varint()?,
            leaf: leaf(d)?,
            path: decode_hashes(d)?,
        })
    }
}

/// A leaf of any length: an orderer may have accepted one that is too long.
fn leaf(d: &mut Decoder<'_>) -> Result<Bytes, Reject> {
    d.bytes(MAX_EVIDENCE_BYTES).map(Bytes::copy_from_slice)
}

fn entry(d: &mut Decoder<'_>) -> Result<SignedEntry, Reject> {
    SignedEntry::decode(Bytes::copy_from_slice(d.bytes(MAX_ENTRY_BYTES)?))
}

fn encode_hashes(hashes: &[[u8; 32]], e: &mut Encoder) {
    e.varint(hashes.len() as u64);
    for hash in hashes {
        e.raw(hash);
    }
}

fn decode_hashes(d: &mut Decoder<'_>) -> Result<Vec<[u8; 32]>, Reject> {
    let count = d.bounded(MAX_PROOF_HASHES as u64, "a proof of too many hashes")?;
    (0..count).map(|_| d.array()).collect()
}

fn unsupported(why: String) -> Reject {
    Reject::Unsupported {
        what: "evidence",
        why,
    }
}
