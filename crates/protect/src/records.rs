//! Records of a protected device in the log. Bytes: `docs/formats/protect.md`.

use std::ops::Range;

use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use wal::{Digest, Lsn, Piece, Record};

/// Most blocks of one record.
pub(crate) const MAX_RUN: u64 = 256;
/// Most choices of one Adopted record.
pub(crate) const MAX_ADOPTED: usize = 2048;

const REDO: u8 = 1;
const HASH: u8 = 2;
const TRIM: u8 = 3;
const SETTLED: u8 = 4;
const ADOPTED: u8 = 5;
const RECOVERED: u8 = 6;
const DETACHED: u8 = 7;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Content of consecutive blocks; the payload has a page for each.
    Redo(Range<u64>),
    /// Digests of consecutive blocks from the first on. Their content goes to the data device after this record
    /// is durable.
    Hash(u64, Vec<Digest>),
    /// Blocks that read as zeros.
    Trim(Range<u64>),
    /// The data device has the content of every Hash record before this position durably, unless a newer record
    /// replaces it.
    Settled(Lsn),
    /// What a recovery found for blocks with an unsettled Hash.
    Adopted(Vec<Adoption>),
    /// The device is attached, for the `epoch`-th time.
    Recovered(u64),
    /// The device was detached: the data device has everything.
    Detached,
}

/// The choice for one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adoption {
    /// The block.
    pub block: u64,
    /// Which version it has.
    pub choice: Choice,
}

/// Which version a block with an unsettled Hash has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The content with this digest, which the data device has durably.
    Settled(Digest),
    /// The Redo record whose page lies at this position.
    Redo(Lsn),
    /// Zeros, whatever the data device has.
    Zero,
    /// None: nothing fits. Reads fail until the block is written.
    Bad,
}

impl Entry {
    /// The record. A Redo gets its `payload`; others have none.
    pub fn record(&self, payload: Vec<Piece>) -> Record {
        let mut out = Encoder::new();
        let kind = match self {
            Entry::Redo(range) => {
                encode_range(&mut out, range);
                REDO
            }
            Entry::Hash(start, digests) => {
                out.varint(*start).varint(digests.len() as u64);
                digests.iter().for_each(|digest| {
                    out.raw(&digest.0);
                });
                HASH
            }
            Entry::Trim(range) => {
                encode_range(&mut out, range);
                TRIM
            }
            Entry::Settled(through) => {
                out.u64(through.0);
                SETTLED
            }
            Entry::Adopted(adoptions) => {
                out.varint(adoptions.len() as u64);
                adoptions
                    .iter()
                    .for_each(|adoption| adoption.encode(&mut out));
                ADOPTED
            }
            Entry::Recovered(epoch) => {
                out.u64(*epoch);
                RECOVERED
            }
            Entry::Detached => DETACHED,
        };
        let body = Bytes::from(out.finish());
        Record {
            kind,
            body,
            payload,
        }
    }

    /// Decodes a record of a device of `blocks` blocks, whose payload has `pages` pages.
    ///
    /// # Errors
    /// The record is malformed, although it is authentic: another version of bulla wrote it.
    pub fn decode(kind: u8, body: &[u8], pages: usize, blocks: u64) -> Result<Entry, Reject> {
        let mut from = Decoder::new(body, "record of a protected device");
        let entry = match kind {
            REDO => Entry::Redo(decode_range(&mut from, blocks, MAX_RUN)?),
            HASH => decode_hash(&mut from, blocks)?,
            TRIM => Entry::Trim(decode_range(&mut from, blocks, u64::MAX)?),
            SETTLED => Entry::Settled(Lsn(from.u64()?)),
            ADOPTED => decode_adopted(&mut from, blocks)?,
            RECOVERED => Entry::Recovered(from.u64()?),
            DETACHED => Entry::Detached,
            _ => return Err(from.bad("unknown kind")),
        };
        let expected = match &entry {
            Entry::Redo(range) => (range.end - range.start) as usize,
            _ => 0,
        };
        if pages != expected {
            return Err(from.bad("wrong number of pages"));
        }
        from.finish()?;
        Ok(entry)
    }
}

impl Adoption {
    fn encode(&self, out: &mut Encoder) {
        out.varint(self.block);
        match self.choice {
            Choice::Settled(digest) => out.u8(1).raw(&digest.0),
            Choice::Redo(payload) => out.u8(2).u64(payload.0),
            Choice::Zero => out.u8(3),
            Choice::Bad => out.u8(4),
        };
    }
}

fn encode_range(out: &mut Encoder, range: &Range<u64>) {
    out.varint(range.start).varint(range.end - range.start);
}

fn decode_range(from: &mut Decoder<'_>, blocks: u64, most: u64) -> Result<Range<u64>, Reject> {
    let start = from.bounded(blocks, "a block beyond the end")?;
    let count = from.bounded(most.min(blocks - start), "blocks beyond the end")?;
    if count == 0 {
        return Err(from.bad("no blocks"));
    }
    Ok(start..start + count)
}

fn decode_hash(from: &mut Decoder<'_>, blocks: u64) -> Result<Entry, Reject> {
    let range = decode_range(from, blocks, MAX_RUN)?;
    let digests = range.clone().map(|_| from.array().map(Digest));
    Ok(Entry::Hash(range.start, digests.collect::<Result<_, _>>()?))
}

fn decode_adopted(from: &mut Decoder<'_>, blocks: u64) -> Result<Entry, Reject> {
    let count = from.bounded(MAX_ADOPTED as u64, "too many choices")?;
    let mut adoptions = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let block = from.varint()?;
        if block >= blocks {
            return Err(from.bad("a block beyond the end"));
        }
        let choice = match from.u8()? {
            1 => Choice::Settled(Digest(from.array()?)),
            2 => Choice::Redo(Lsn(from.u64()?)),
            3 => Choice::Zero,
            4 => Choice::Bad,
            _ => return Err(from.bad("an unknown choice")),
        };
        adoptions.push(Adoption { block, choice });
    }
    Ok(Entry::Adopted(adoptions))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 10_000;

    fn entries() -> impl Strategy<Value = Entry> {
        let range = (0..BLOCKS - MAX_RUN, 1..=MAX_RUN).prop_map(|(start, n)| start..start + n);
        let digest = any::<[u8; 16]>().prop_map(Digest);
        let choice = prop_oneof![
            digest.clone().prop_map(Choice::Settled),
            any::<u64>().prop_map(|lsn| Choice::Redo(Lsn(lsn))),
            Just(Choice::Zero),
            Just(Choice::Bad),
        ];
        let adoption = (0..BLOCKS, choice).prop_map(|(block, choice)| Adoption { block, choice });
        prop_oneof![
            range.clone().prop_map(Entry::Redo),
            range.prop_map(Entry::Trim),
            (0..BLOCKS - MAX_RUN, prop::collection::vec(digest, 1..100))
                .prop_map(|(start, digests)| Entry::Hash(start, digests)),
            any::<u64>().prop_map(|lsn| Entry::Settled(Lsn(lsn))),
            prop::collection::vec(adoption, 0..50).prop_map(Entry::Adopted),
            any::<u64>().prop_map(Entry::Recovered),
            Just(Entry::Detached),
        ]
    }

    fn pages(entry: &Entry) -> usize {
        match entry {
            Entry::Redo(range) => (range.end - range.start) as usize,
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn record_is_decoded_as_it_was_encoded(entry in entries()) {
            let record = entry.record(Vec::new());
            let decoded = Entry::decode(record.kind, &record.body, pages(&entry), BLOCKS);
            prop_assert_eq!(decoded.ok(), Some(entry));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_have_one_encoding(
            kind in 0u8..10,
            body in prop::collection::vec(any::<u8>(), 0..60),
            count in 0usize..4,
        ) {
            if let Ok(entry) = Entry::decode(kind, &body, count, BLOCKS) {
                let record = entry.record(Vec::new());
                prop_assert_eq!((record.kind, record.body.to_vec()), (kind, body));
            }
        }
    }

    #[test]
    fn blocks_beyond_the_end_are_refused() {
        for entry in [
            Entry::Redo(BLOCKS - 1..BLOCKS + 1),
            Entry::Trim(BLOCKS..BLOCKS + 1),
            Entry::Hash(BLOCKS - 1, vec![Digest([9; 16]); 2]),
        ] {
            let record = entry.record(Vec::new());
            assert!(Entry::decode(record.kind, &record.body, pages(&entry), BLOCKS).is_err());
        }
    }
}
