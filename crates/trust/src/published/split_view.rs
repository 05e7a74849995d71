//! Whether two readers were shown one log, and the evidence if they were not (docs/formats/sighting.md).
//!
//! ```text
//! evidence = "bullaspl" | format u16 (0) | flags u16 (0) | sighting | sighting
//!          | count varint | { tile length varint | tile } * count | checksum
//! ```
//!
//! Each sighting is signed. The tiles show which log of the first sighting's size is the beginning of the second's: they
//! lead to the frontier that the second's publishers signed, so nobody can make them up. If it is another log than the
//! first sighting's, the publishers have signed two histories, whatever mirrors did.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::encode::{Decoder, Encoder, split_checksum};
use crate::error::Reject;
use crate::history::LogPoint;
use crate::history::prefix::{Prefix, grown};
use crate::history::tiles::MAX_TILE_BYTES;
use crate::key::PublicKey;
use crate::published::sighting::{Seen, Sighting};
use crate::statement::VolumeId;

/// Longest evidence, bytes.
pub const MAX_SPLIT_VIEW_BYTES: usize = 17 << 20;
/// Most tiles: one for each level of a log.
const MAX_TILES: u64 = 8;

const MAGIC: &[u8; 8] = b"bullaspl";
const FORMAT: u16 = 0;
const WHAT: &str = "evidence of two logs";

/// How the logs that two readers have seen stand to each other.
#[derive(Debug, Clone)]
pub enum Relation {
    /// The first is the beginning of the second, or they are the same.
    Same,
    /// The tiles of the second log must show it: supply them, and call [`conclude`].
    Wanted(Box<Prefix>),
    /// The publishers, or the owners, signed two of them.
    Split(Split),
    /// The owners have begun the log again between the two. Nothing can be compared.
    Epochs,
}

/// What was signed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Two logs: the second does not begin with the first.
    Logs,
    /// Two policies with this number.
    Policies(u64),
}

/// Compares what two readers have seen. The first must not have seen more than the second: [`ordered`].
///
/// # Errors
/// [`Reject::Malformed`] for a second log that is shorter.
pub fn relation(first: &Seen, second: &Seen) -> Result<Relation, Reject> {
    let pairs = first.policies.iter().zip(&second.policies);
    if let Some(number) = pairs.enumerate().position(|(_, (a, b))| a != b) {
        return Ok(Relation::Split(Split::Policies(number as u64)));
    }
    if first.log.epoch != second.log.epoch {
        return Ok(Relation::Epochs);
    }
    if first.log.size > second.log.size {
        return Err(bad("the second log is shorter than the first"));
    }
    if first.log.size == second.log.size {
        return Ok(match first.log == second.log {
            true => Relation::Same,
            false => Relation::Split(Split::Logs),
        });
    }
    match grown(&first.log, &second.record.log, &second.before) {
        Ok(None) => Ok(Relation::Same),
        Ok(Some(prefix)) => Ok(Relation::Wanted(Box::new(prefix))),
        Err(Reject::Fork(_)) => Ok(Relation::Split(Split::Logs)),
        Err(why) => Err(why),
    }
}

/// What the tiles show that [`relation`] wanted. `None`: the first log is the beginning of the second.
///
/// # Errors
/// [`Reject::Unproved`] while tiles are wanted.
pub fn conclude(prefix: Prefix, second: &Seen) -> Result<Option<Split>, Reject> {
    match prefix.finish(&second.record.log) {
        Ok(_) => Ok(None),
        Err(Reject::Fork(_)) => Ok(Some(Split::Logs)),
        Err(why) => Err(why),
    }
}

/// Whether these stand in the order in which they are compared: by the size of the log, then by its root, then by the
/// record.
pub fn ordered(first: &Seen, second: &Seen) -> bool {
    let place = |seen: &Seen| {
        let LogPoint { epoch, size, root } = seen.log;
        (epoch, size, root, seen.record_hash)
    };
    place(first) <= place(second)
}

/// Evidence of two logs or policies. Only its form was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitView {
    /// What the one reader has seen.
    pub first: Sighting,
    /// What the other has seen, whose log is as long or longer.
    pub second: Sighting,
    /// Tiles of the second log, in the order in which they are wanted.
    pub tiles: Vec<Bytes>,
}

/// What evidence shows.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The volume.
    pub volume: VolumeId,
    /// What was signed twice.
    pub split: Split,
    /// The one record.
    pub first: Seen,
    /// The other record.
    pub second: Seen,
}

impl Verdict {
    /// If too few publishers under a later policy, which only the one reader knows, have signed what the other one has seen:
    /// the number of that policy, and the signers that are no publishers under it. Their old keys can sign another
    /// history at any time, and no reader of the later policy believes it (rule 3).
    pub fn removed(&self) -> Option<(u64, Vec<PublicKey>)> {
        let (first, second) = (&self.first, &self.second);
        let (behind, ahead) = match first.policies.len().cmp(&second.policies.len()) {
            Ordering::Less => (first, second),
            Ordering::Equal => return None,
            Ordering::Greater => (second, first),
        };
        let stays = |key: &&PublicKey| ahead.publishers.keys().contains(key);
        let (stay, removed): (Vec<_>, Vec<_>) = behind.signers.iter().partition(stays);
        let number = ahead.policies.len().saturating_sub(1) as u64;
        let is_enough = stay.len() >= usize::from(ahead.publishers.needed());
        (self.split == Split::Logs && !is_enough).then_some((number, removed))
    }
}

/// Whether a file begins as this evidence does. Nothing else of it is read.
pub fn is_split_view(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl SplitView {
    /// The volume that it claims to be about. Nothing is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it has no policy.
    pub fn volume(&self) -> Result<VolumeId, Reject> {
        self.first.volume()
    }

    /// Judges it. It needs nothing else: the volume id is the hash of the first policy.
    ///
    /// # Errors
    /// [`Reject::Malformed`] if it shows no contradiction, or has more than it needs; those of [`Sighting::verify`];
    /// [`Reject::BadHistory`] for tiles that are not of the second log.
    pub fn verify(&self) -> Result<Verdict, Reject> {
        let volume = self.volume()?;
        let (first, second) = (self.first.verify(volume)?, self.second.verify(volume)?);
        if !ordered(&first, &second) {
            return Err(bad("the two are not in their order"));
        }
        let mut tiles = self.tiles.iter();
        let split = match relation(&first, &second)? {
            Relation::Split(split) => Some(split),
            Relation::Wanted(mut prefix) => {
                for _ in prefix.wants() {
                    prefix.supply(tiles.next().ok_or(bad("too few tiles"))?)?;
                }
                conclude(*prefix, &second)?
            }
            Relation::Same | Relation::Epochs => None,
        };
        if tiles.next().is_some() {
            return Err(bad("more tiles than are needed"));
        }
        Ok(Verdict {
            volume,
            split: split.ok_or(bad("the two do not contradict each other"))?,
            first,
            second,
        })
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it is too long.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.raw(MAGIC).u16(FORMAT).u16(0);
        self.first.encode(&mut e)?;
        self.second.encode(&mut e)?;
        e.varint(self.tiles.len() as u64);
        for tile in &self.tiles {
            e.bytes(tile);
        }
        let bytes = e.finish_with_checksum();
        if bytes.len() > MAX_SPLIT_VIEW_BYTES {
            return Err(bad("too long"));
        }
        Ok(bytes)
    }

    /// Reads a file. Nothing in it is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of evidence; [`Reject::Unsupported`] for a later format.
    pub fn decode(bytes: &[u8]) -> Result<SplitView, Reject> {
        if bytes.len() > MAX_SPLIT_VIEW_BYTES {
            return Err(bad("too long"));
        }
        let (body, whole) = split_checksum(bytes).ok_or(bad("truncated"))?;
        let mut d = Decoder::new(body, WHAT);
        if d.array()? != *MAGIC {
            return Err(d.bad("not a file of evidence"));
        }
        let (format, flags) = (d.u16()?, d.u16()?);
        if (format, flags) != (FORMAT, 0) {
            return Err(Reject::Unsupported {
                what: WHAT,
                why: format!("format {format}, flags {flags:#06x}"),
            });
        }
        if !whole {
            return Err(d.bad("damaged"));
        }
        let (first, second) = (Sighting::decode(&mut d)?, Sighting::decode(&mut d)?);
        let count = d.bounded(MAX_TILES, "too many tiles")?;
        let mut tiles = Vec::new();
        for _ in 0..count {
            let tile = d.bytes(MAX_TILE_BYTES)?;
            tiles.push(Bytes::copy_from_slice(tile));
        }
        d.finish()?;
        Ok(SplitView {
            first,
            second,
            tiles,
        })
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
