//! Cuts a file's content into blocks and holes (trees.md *Array tree*; the exact rule, with vectors, is
//! `docs/formats/chunking.md`).
//!
//! 1. Every maximal run of at least 64 KiB of zero bytes is a hole.
//! 2. The content between holes is a *stretch*. A stretch of at most 64 KiB is one block; a longer one is
//!    cut by FastCDC (2020, 16/64/256 KiB, normalisation 1, crate `fastcdc`), beginning anew at the
//!    stretch's first byte.
//!
//! The result depends on the content alone: not on how it was read, nor on whether the file is sparse.

use std::ops::Range;

use fastcdc::v2020::{Normalization, cut, select_masks};

/// Shortest run of zeros that is a hole, bytes.
pub const HOLE_MIN_BYTES: usize = 64 << 10;
/// Longest stretch that is one block regardless of its content, bytes.
pub const ONE_BLOCK_BYTES: usize = 64 << 10;
/// FastCDC: no chunk but a stretch's last is shorter, bytes.
pub const MIN_CHUNK_BYTES: usize = 16 << 10;
/// FastCDC: where the mask changes, bytes.
pub const NORMAL_CHUNK_BYTES: usize = 64 << 10;
/// FastCDC: no chunk is longer, bytes.
pub const MAX_CHUNK_BYTES: usize = 256 << 10;

/// A part of a file's content, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The plaintext of one data block.
    Data(&'a [u8]),
    /// This many zero bytes.
    Hole(u64),
}

/// Cuts content that lies in memory.
pub fn split<'a>(content: &'a [u8], mut emit: impl FnMut(Piece<'a>)) {
    let mut start = 0;
    while let Some(hole) = next_hole(content, start) {
        split_stretch(&content[start..hole.start], &mut emit);
        emit(Piece::Hole(hole.len() as u64));
        start = hole.end;
    }
    split_stretch(&content[start..], &mut emit);
}

/// Cuts content that comes piece by piece; holds at most one chunk and the bytes pushed last.
#[derive(Debug, Default)]
pub struct Chunker {
    /// The uncut end of the present stretch, without zero bytes at its end, which `zeros` counts.
    stretch: Vec<u8>,
    /// Whether chunks of this stretch have gone out already.
    begun: bool,
    /// Number of zero bytes after `stretch` that may become a hole.
    zeros: u64,
}

impl Chunker {
    /// A chunker at the beginning of a file.
    pub fn new() -> Self {
        Chunker::default()
    }

    /// Appends `zeros` zero bytes that need not be read, such as a hole of a sparse file.
    pub fn push_zeros(&mut self, zeros: u64) {
        self.zeros = self.zeros.saturating_add(zeros);
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// Only those of `emit`.
    pub fn push<E>(
        &mut self,
        bytes: &[u8],
        emit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let leading = leading_zeros(bytes);
        self.push_zeros(leading as u64);
        let Some(last) = bytes.iter().rposition(|b| *b != 0) else {
            return Ok(());
        };
        self.settle_zeros(emit)?;
        let body = &bytes[leading..=last];
        let mut start = 0;
        while let Some(hole) = next_hole(body, start) {
            self.stretch.extend_from_slice(&body[start..hole.start]);
            self.end_stretch(emit)?;
            emit(Piece::Hole(hole.len() as u64))?;
            start = hole.end;
        }
        self.stretch.extend_from_slice(&body[start..]);
        self.zeros = (bytes.len() - 1 - last) as u64;
        self.cut_settled(emit)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Only those of `emit`.
    pub fn finish<E>(
        &mut self,
        emit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.settle_zeros(emit)?;
        self.end_stretch(emit)
    }

    /// Decides whether the zeros at the end are a hole: a byte that is not zero, or the end, follows them.
    fn settle_zeros<E>(
        &mut self,
        emit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let zeros = std::mem::take(&mut self.zeros);
        if zeros >= HOLE_MIN_BYTES as u64 {
            self.end_stretch(emit)?;
            return emit(Piece::Hole(zeros));
        }
        self.stretch.resize(self.stretch.len() + zeros as usize, 0);
        Ok(())
    }

    /// Cuts off the chunks that no later byte can change: those with a longest chunk's worth of
    /// content before them.
    fn cut_settled<E>(
        &mut self,
        emit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut start = 0;
        while self.stretch.len() - start >= MAX_CHUNK_BYTES {
            let len = first_cut(&self.stretch[start..]);
            emit(Piece::Data(&self.stretch[start..start + len]))?;
            start += len;
        }
        self.begun |= start > 0;
        self.stretch.drain(..start);
        Ok(())
    }

    fn end_stretch<E>(
        &mut self,
        emit: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.begun {
            let mut rest = self.stretch.as_slice();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at(first_cut(rest));
                emit(Piece::Data(chunk))?;
                rest = after;
            }
        } else {
            let mut failed = Ok(());
            split_stretch(&self.stretch, &mut |piece| {
                if failed.is_ok() {
                    failed = emit(piece);
                }
            });
            failed?;
        }
        self.stretch.clear();
        self.begun = false;
        Ok(())
    }
}

/// Cuts a whole stretch.
fn split_stretch<'a>(stretch: &'a [u8], emit: &mut impl FnMut(Piece<'a>)) {
    if stretch.is_empty() {
        return;
    }
    if stretch.len() <= ONE_BLOCK_BYTES {
        return emit(Piece::Data(stretch));
    }
    let mut rest = stretch;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(first_cut(rest));
        emit(Piece::Data(chunk));
        rest = after;
    }
}

/// Length of the first chunk of the rest of a stretch.
fn first_cut(rest: &[u8]) -> usize {
    let (strict, loose) = select_masks(NORMAL_CHUNK_BYTES, Normalization::Level1);
    let (_, len) = cut(
        rest,
        MIN_CHUNK_BYTES,
        NORMAL_CHUNK_BYTES,
        MAX_CHUNK_BYTES,
        strict,
        loose,
        strict << 1,
        loose << 1,
    );
    len
}

/// The first maximal run of at least [`HOLE_MIN_BYTES`] zeros at or after `from`, where `from` is not
/// inside such a run. Such a run cannot lie between two probes that are that far apart, so that
/// content without long runs costs one look in 64 KiB.
fn next_hole(content: &[u8], from: usize) -> Option<Range<usize>> {
    let mut probe = from + HOLE_MIN_BYTES - 1;
    while probe < content.len() {
        if content[probe] == 0 {
            let before = content[from..probe].iter().rev().take_while(|b| **b == 0);
            let start = probe - before.count();
            let end = probe + leading_zeros(&content[probe..]);
            if end - start >= HOLE_MIN_BYTES {
                return Some(start..end);
            }
            probe = end;
        }
        probe += HOLE_MIN_BYTES;
    }
    None
}

/// How many zero bytes `bytes` begins with.
fn leading_zeros(bytes: &[u8]) -> usize {
    const STEP: usize = 64;
    let mut n = 0;
    for block in bytes.chunks_exact(STEP) {
        if block.iter().fold(0, |all, b| all | b) != 0 {
            break;
        }
        n += STEP;
    }
    n + bytes[n..].iter().take_while(|b| **b == 0).count()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// The generator of docs/formats/chunking.md. It gives no zero byte: all zeros are the test's own.
    fn vector_bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut x = seed;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 32) as u8) | 1
        };
        (0..len).map(|_| next()).collect()
    }

    fn layout(content: &[u8]) -> Vec<i64> {
        let mut out = Vec::new();
        split(content, |piece| {
            out.push(match piece {
                Piece::Data(bytes) => bytes.len() as i64,
                Piece::Hole(len) => -(len as i64),
            });
        });
        out
    }

    /// The same rule, written for clarity: byte by byte, with the library's own iterator.
    fn reference(content: &[u8]) -> Vec<i64> {
        let mut out = Vec::new();
        let mut stretch: Vec<u8> = Vec::new();
        let flush = |stretch: &mut Vec<u8>, out: &mut Vec<i64>| {
            if stretch.len() > ONE_BLOCK_BYTES {
                let chunks = fastcdc::v2020::FastCDC::new(stretch, 16 << 10, 64 << 10, 256 << 10);
                out.extend(chunks.map(|c| c.length as i64));
            } else if !stretch.is_empty() {
                out.push(stretch.len() as i64);
            }
            stretch.clear();
        };
        let mut i = 0;
        while i < content.len() {
            let zeros = content[i..].iter().take_while(|b| **b == 0).count();
            if zeros >= HOLE_MIN_BYTES {
                flush(&mut stretch, &mut out);
                out.push(-(zeros as i64));
                i += zeros;
            } else if zeros > 0 {
                stretch.resize(stretch.len() + zeros, 0);
                i += zeros;
            } else {
                stretch.push(content[i]);
                i += 1;
            }
        }
        flush(&mut stretch, &mut out);
        out
    }

    /// Pushes in parts of the given sizes, in turn. Of the parts that hold only zeros, every third goes
    /// through `push_zeros`.
    fn streamed(content: &[u8], parts: &[usize]) -> (Vec<i64>, Vec<u8>) {
        let mut out = Vec::new();
        let mut bytes = Vec::new();
        let mut emit = |piece: Piece<'_>| -> Result<(), Infallible> {
            match piece {
                Piece::Data(data) => {
                    out.push(data.len() as i64);
                    bytes.extend_from_slice(data);
                }
                Piece::Hole(len) => {
                    out.push(-(len as i64));
                    bytes.resize(bytes.len() + len as usize, 0);
                }
            }
            Ok(())
        };
        let mut chunker = Chunker::new();
        let mut rest = content;
        for (turn, part) in parts.iter().cycle().enumerate() {
            if rest.is_empty() {
                break;
            }
            let (now, after) = rest.split_at((*part).clamp(1, rest.len()));
            if turn % 3 == 0 && now.iter().all(|b| *b == 0) {
                chunker.push_zeros(now.len() as u64);
            } else {
                chunker.push(now, &mut emit).unwrap();
            }
            rest = after;
        }
        chunker.finish(&mut emit).unwrap();
        (out, bytes)
    }

    #[test]
    fn vectors() {
        let table: [(&str, Vec<u8>, &[i64]); 12] = [
            ("empty", vec![], &[]),
            ("one byte", vec![0], &[1]),
            ("65536 of noise", vector_bytes(1, 65536), &[65536]),
            ("65535 zeros", vec![0; 65535], &[65535]),
            ("65536 zeros", vec![0; 65536], &[-65536]),
            ("200000 of noise", vector_bytes(1, 200_000), VECTOR_200000),
            ("1 MiB of noise", vector_bytes(1, 1 << 20), VECTOR_MIB),
            (
                "noise, hole, noise",
                [
                    vector_bytes(1, 300_000),
                    vec![0; 70_000],
                    vector_bytes(2, 200_000),
                ]
                .concat(),
                VECTOR_HOLE,
            ),
            (
                "noise, too few zeros, noise",
                [
                    vector_bytes(1, 100_000),
                    vec![0; 65_535],
                    vector_bytes(2, 100_000),
                ]
                .concat(),
                &[68111, 140_093, 57331],
            ),
            ("a cut at the last byte", vector_bytes(3, 79525), &[79525]),
            ("one byte more", vector_bytes(3, 79526), &[79524, 2]),
            ("no cut", vec![1; 600_001], &[262_144, 262_144, 75713]),
        ];
        for (name, content, expected) in table {
            assert_eq!(layout(&content), expected, "{name}");
        }
    }

    /// The document, and the table that it points to.
    const DOCUMENT: &str = include_str!("../../../docs/formats/chunking.md");
    const GEAR: &str = include_str!("../../../docs/formats/vectors/gear.txt");

    #[test]
    fn documents_have_the_gear_table_and_the_masks() {
        let lines = GEAR.lines().filter(|line| !line.starts_with('#'));
        let table: Vec<u64> = lines
            .map(|line| u64::from_str_radix(line, 16).unwrap())
            .collect();
        // The hash of one byte after the shortest chunk is that byte's entry.
        let entry = |byte: u8| {
            let mut source = [0; 65];
            source[64] = byte;
            cut(&source, 64, 256, 1024, 0, 0, 0, 0).0
        };
        let used: Vec<u64> = (0..=255).map(entry).collect();
        assert_eq!(table, used);
        let (strict, loose) = select_masks(NORMAL_CHUNK_BYTES, Normalization::Level1);
        for line in [
            format!("STRICT = {strict:#018x}"),
            format!("LOOSE  = {loose:#018x}"),
        ] {
            assert!(DOCUMENT.contains(&line), "{line}");
        }
    }

    const VECTOR_200000: &[i64] = &[68111, 88961, 19937, 22991];
    const VECTOR_MIB: &[i64] = &[
        68111, 88961, 19937, 23178, 60810, 72805, 81036, 62029, 71927, 87073, 168876, 25634, 75142,
        73114, 69943,
    ];
    const VECTOR_HOLE: &[i64] = &[
        68111, 88961, 19937, 23178, 60810, 39003, -70000, 42669, 133357, 23974,
    ];

    #[test]
    fn a_hole_of_a_terabyte_is_cut_at_once() {
        let mut pieces = Vec::new();
        let mut chunker = Chunker::new();
        let mut emit = |piece: Piece<'_>| -> Result<(), Infallible> {
            pieces.push(match piece {
                Piece::Data(bytes) => bytes.len() as i64,
                Piece::Hole(len) => -(len as i64),
            });
            Ok(())
        };
        chunker.push(b"begin", &mut emit).unwrap();
        chunker.push_zeros(1 << 40);
        chunker.push(b"end", &mut emit).unwrap();
        chunker.finish(&mut emit).unwrap();
        assert_eq!(pieces, [5, -(1 << 40), 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
        #[test]
        fn cuts_do_not_depend_on_how_content_is_read(
            runs in prop::collection::vec((any::<bool>(), prop_oneof![
                0usize..200, 65_000usize..66_000, 1usize..600_000,
            ]), 0..6),
            seed in 1u64..1000,
            parts in prop::collection::vec(prop_oneof![1usize..5000, 4096usize..400_000], 1..5),
        ) {
            let mut content = Vec::new();
            for (i, (zeros, len)) in runs.iter().enumerate() {
                if *zeros {
                    content.resize(content.len() + len, 0);
                } else {
                    content.extend(vector_bytes(seed + i as u64, *len));
                }
            }
            let expected = reference(&content);
            prop_assert_eq!(&layout(&content), &expected);
            let (pieces, bytes) = streamed(&content, &parts);
            prop_assert_eq!(&pieces, &expected);
            prop_assert!(bytes == content);
        }
    }
}
