//! Frames: a block as it is stored and sent.
//!
//! ```text
//! kind u8 | codec u8 | plaintext length u32 LE | payload (the rest)
//! ```
//!
//! Nothing here is trusted. `kind` only says which handle to compute for a block that came unrequested
//! (read-around); `codec` 0 is raw, 1 is zstd. The decoder handles hostile bytes before the hash can refuse
//! them. So it takes exactly one zstd frame whose stated content size is the frame's length, without
//! dictionary, skippable frames or trailing bytes, and unpacks it in one call into a buffer of that size.

use bytes::{BufMut, Bytes, BytesMut};
use zstd_safe::{CCtx, DCtx};

use crate::error::Reject;
use crate::handle::{BlockKind, Kind};

/// Largest plaintext of a block, bytes.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 6;
/// Largest frame, bytes: a payload is never longer than its plaintext.
pub const MAX_FRAME_BYTES: usize = HEADER_BYTES + MAX_BLOCK_BYTES;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const ZSTD_LEVEL: i32 = 1;

/// A block from an untrusted source. Only its form was checked.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
}

impl Frame {
    /// Takes bytes that claim to be a frame.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when the header or a length is impossible, [`Reject::UnknownFrame`] for a kind
    /// or codec of a later bulla.
    pub fn parse(bytes: Bytes) -> Result<Frame, Reject> {
        let [kind, codec, len @ ..] = bytes.first_chunk::<HEADER_BYTES>().ok_or(short())?;
        let plain = u32::from_le_bytes(*len) as usize;
        let payload = bytes.len() - HEADER_BYTES;
        if Kind::from_byte(*kind).is_none() {
            return Err(Reject::UnknownFrame("its kind is not known"));
        }
        if plain > MAX_BLOCK_BYTES {
            return Err(Reject::BadFrame("plaintext over 1 MiB"));
        }
        match *codec {
            RAW if payload == plain => {}
            ZSTD if payload < plain => {}
            RAW | ZSTD => return Err(Reject::BadFrame("payload length does not fit the codec")),
            _ => return Err(Reject::UnknownFrame("its codec is not known")),
        }
        Ok(Frame { bytes })
    }

    /// The kind that the frame claims.
    pub fn kind(&self) -> Kind {
        self.bytes
            .first()
            .and_then(|b| Kind::from_byte(*b))
            .unwrap_or(Kind::Data)
    }

    /// Length of the plaintext that the frame claims, bytes.
    pub fn plaintext_len(&self) -> usize {
        match self.bytes.first_chunk::<HEADER_BYTES>() {
            Some([_, _, len @ ..]) => u32::from_le_bytes(*len) as usize,
            None => 0,
        }
    }

    /// Whether [`Frame::unpack`] shares the frame's memory instead of allocating.
    pub fn is_raw(&self) -> bool {
        self.bytes.get(1) == Some(&RAW)
    }

    /// The whole frame, for stores.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Unpacks the plaintext of a block that is expected to be of kind `K`.
    ///
    /// # Errors
    /// [`Reject::WrongKind`] or [`Reject::BadFrame`]; the replica's fault, not the volume's.
    pub fn plaintext<K: BlockKind>(&self) -> Result<Bytes, Reject> {
        if self.kind() != K::KIND {
            return Err(Reject::WrongKind {
                expected: K::KIND,
                found: self.kind() as u8,
            });
        }
        self.unpack()
    }

    /// Unpacks the plaintext, whatever kind the frame claims. For read-around, which hashes it under
    /// [`Frame::kind`]. A raw payload is shared, not copied.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when the payload is not exactly one well-formed zstd frame.
    pub fn unpack(&self) -> Result<Bytes, Reject> {
        let payload = self.bytes.slice(HEADER_BYTES.min(self.bytes.len())..);
        match self.bytes.get(1) {
            Some(&RAW) => Ok(payload),
            Some(&ZSTD) => unzstd(&payload, self.plaintext_len()),
            _ => Err(short()),
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Frame({:?}, {} of {} bytes)",
            self.kind(),
            self.bytes.len(),
            self.plaintext_len()
        )
    }
}

fn short() -> Reject {
    Reject::BadFrame("shorter than its header")
}

fn unzstd(payload: &[u8], plain: usize) -> Result<Bytes, Reject> {
    if payload.first_chunk::<4>() != Some(&ZSTD_MAGIC) {
        return Err(Reject::BadFrame("not a zstd frame"));
    }
    if !matches!(zstd_safe::get_frame_content_size(payload), Ok(Some(n)) if n == plain as u64) {
        return Err(Reject::BadFrame(
            "zstd content size is not the plaintext length",
        ));
    }
    if zstd_safe::get_dict_id_from_frame(payload).is_some() {
        return Err(Reject::BadFrame("zstd frame names a dictionary"));
    }
    if !matches!(zstd_safe::find_frame_compressed_size(payload), Ok(n) if n == payload.len()) {
        return Err(Reject::BadFrame("bytes after the zstd frame"));
    }
    thread_local! {
        static CONTEXT: std::cell::RefCell<DCtx<'static>> = std::cell::RefCell::new(DCtx::create());
    }
    let mut out: Vec<u8> = Vec::with_capacity(plain);
    let n = CONTEXT
        .with_borrow_mut(|context| context.decompress(&mut out, payload))
        .map_err(|_| Reject::BadFrame("zstd payload is damaged"))?;
    if n != plain || out.len() != plain {
        return Err(Reject::BadFrame(
            "zstd payload has another length than stated",
        ));
    }
    Ok(Bytes::from(out))
}

/// Packs plaintexts into frames; keeps its compression context between blocks.
pub struct Packer {
    context: CCtx<'static>,
    scratch: Vec<u8>,
}

impl Default for Packer {
    fn default() -> Self {
        Packer::new()
    }
}

impl Packer {
    /// A packer for one thread.
    pub fn new() -> Self {
        Packer {
            context: CCtx::create(),
            scratch: Vec::new(),
        }
    }

    /// Packs a block: zstd level 1 where that saves at least a tenth, raw otherwise.
    ///
    /// # Errors
    /// [`Reject::BadFrame`] when the plaintext is over [`MAX_BLOCK_BYTES`].
    pub fn pack(&mut self, kind: Kind, plaintext: &[u8]) -> Result<Frame, Reject> {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + plaintext.len());
        self.pack_into(kind, plaintext, &mut out)?;
        Ok(Frame {
            bytes: out.freeze(),
        })
    }

    /// Like [`Packer::pack`], appending the frame to `out`.
    ///
    /// # Errors
    /// As [`Packer::pack`].
    pub fn pack_into(
        &mut self,
        kind: Kind,
        plaintext: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), Reject> {
        if plaintext.len() > MAX_BLOCK_BYTES {
            return Err(Reject::BadFrame("plaintext over 1 MiB"));
        }
        // A result that would not save a tenth does not fit here and is stored raw.
        let room = plaintext.len() - plaintext.len() / 10;
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let packed = match self.scratch.get_mut(..room) {
            Some(target) if plaintext.len() >= 64 => {
                self.context.compress(target, plaintext, ZSTD_LEVEL).ok()
            }
            _ => None,
        };
        let packed = packed
            .filter(|n| *n < plaintext.len())
            .and_then(|n| self.scratch.get(..n));
        out.put_u8(kind as u8);
        out.put_u8(if packed.is_some() { ZSTD } else { RAW });
        out.put_u32_le(plaintext.len() as u32);
        out.extend_from_slice(packed.unwrap_or(plaintext));
        Ok(())
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Packer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::{Data, Hasher, MapNode};

    #[test]
    fn round_trip_raw_and_packed() {
        let mut packer = Packer::new();
        let noise = Hasher::new(&[1; 32]);
        for plain in [vec![], vec![7; 10], vec![0; MAX_BLOCK_BYTES], {
            (0..2000u32)
                .flat_map(|i| *noise.name(Kind::Data, &i.to_le_bytes()).as_bytes())
                .collect()
        }] {
            let frame = packer.pack(Kind::Data, &plain).unwrap();
            let again = Frame::parse(frame.as_bytes().clone()).unwrap();
            assert_eq!(again.plaintext_len(), plain.len());
            assert_eq!(again.plaintext::<Data>().unwrap(), plain);
            assert!(again.plaintext::<MapNode>().is_err());
        }
        assert!(
            packer
                .pack(Kind::Data, &vec![0; MAX_BLOCK_BYTES + 1])
                .is_err()
        );
    }

    #[test]
    fn every_flipped_or_cut_byte_is_refused_or_harmless() {
        let plain: Vec<u8> = (0..4000u32).map(|i| (i / 9) as u8).collect();
        let frame = Packer::new().pack(Kind::Data, &plain).unwrap();
        let good = frame.as_bytes().to_vec();
        for cut in 0..good.len() {
            let frame = Frame::parse(Bytes::copy_from_slice(&good[..cut]));
            assert!(frame.and_then(|f| f.unpack()).is_err(), "cut at {cut}");
        }
        for i in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[i] ^= 1 << bit;
                if let Ok(out) = Frame::parse(bad.into()).and_then(|f| f.unpack()) {
                    assert!(out.len() <= MAX_BLOCK_BYTES);
                }
            }
        }
        let mut trailing = good.clone();
        trailing.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
        assert!(
            Frame::parse(trailing.into())
                .and_then(|f| f.unpack())
                .is_err()
        );
    }

    #[test]
    fn impossible_frame_header_is_refused() {
        let parses = |kind: u8, codec: u8, plain: usize, payload: usize| {
            let mut bytes = vec![kind, codec];
            bytes.extend_from_slice(&(plain as u32).to_le_bytes());
            bytes.resize(HEADER_BYTES + payload, 0);
            Frame::parse(bytes.into()).map(drop)
        };
        let impossible = |parsed| matches!(parsed, Err(Reject::BadFrame(_)));
        let unknown = |parsed| matches!(parsed, Err(Reject::UnknownFrame(_)));
        let data = Kind::Data as u8;
        assert_eq!(parses(data, RAW, 9, 9), Ok(()));
        assert_eq!(parses(data, ZSTD, MAX_BLOCK_BYTES, 8), Ok(()));
        assert!(unknown(parses(0xee, RAW, 9, 9)));
        assert!(unknown(parses(data, 2, 9, 9)));
        assert!(impossible(parses(data, RAW, 9, 8)));
        assert!(impossible(parses(data, RAW, 9, 10)));
        assert!(impossible(parses(data, ZSTD, 9, 9)));
        assert!(impossible(parses(data, ZSTD, MAX_BLOCK_BYTES + 1, 8)));
    }

    #[test]
    fn frame_of_a_reserved_kind_or_codec_is_unknown_and_not_damaged() {
        let parse = |kind: u8, codec: u8| {
            let bytes = [kind, codec, 5, 0, 0, 0, b'b', b'u', b'l', b'l', b'a'];
            Frame::parse(Bytes::copy_from_slice(&bytes))
        };
        for kind in (0..=u8::MAX).filter(|byte| Kind::from_byte(*byte).is_none()) {
            let refused = parse(kind, RAW).unwrap_err();
            assert!(matches!(refused, Reject::UnknownFrame(_)), "kind {kind}");
        }
        for codec in 2..=u8::MAX {
            let refused = parse(Kind::Data as u8, codec).unwrap_err();
            assert!(matches!(refused, Reject::UnknownFrame(_)), "codec {codec}");
            assert_eq!(refused.class(), crate::error::Class::Unavailable);
        }
        assert_eq!(Kind::ALL.map(|kind| kind as u8), [1, 2, 3, 4]);
    }

    /// The table of docs/formats/blocks.md, read from the page itself.
    #[test]
    fn refused_frames_of_the_page_are_refused_with_their_verdict() {
        let page = include_str!("../../../docs/formats/blocks.md");
        let mut rows = 0;
        for line in page.lines() {
            let cells: Vec<&str> = line.split(" | ").collect();
            let [frame, verdict @ ("damaged" | "unknown"), rule] = cells.as_slice() else {
                continue;
            };
            let hex = frame.trim_matches(['|', ' ', '`']);
            let digits = (0..hex.len()).step_by(2);
            let bytes: Vec<u8> = digits
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect();
            let refused = Frame::parse(bytes.into()).and_then(|frame| frame.unpack());
            let fits = match *verdict {
                "damaged" => matches!(refused, Err(Reject::BadFrame(_))),
                _ => matches!(refused, Err(Reject::UnknownFrame(_))),
            };
            assert!(fits, "{rule}: {refused:?}");
            rows += 1;
        }
        assert_eq!(rows, 12);
    }

    #[test]
    fn zstd_bomb_is_bounded_by_the_stated_length() {
        let mut bomb = vec![0u8; 2 << 20];
        let n = zstd_safe::compress(&mut bomb[..], &vec![0u8; 1 << 24], 1).unwrap();
        let mut bytes = vec![Kind::Data as u8, ZSTD];
        bytes.extend_from_slice(&(MAX_BLOCK_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&bomb[..n]);
        assert!(Frame::parse(bytes.into()).unwrap().unpack().is_err());
    }
}
