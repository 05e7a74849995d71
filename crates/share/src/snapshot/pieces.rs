//! A long file in sections, so that neither its writer nor its reader has all of it in memory.
//!
//! ```text
//! section = length u32 | check [8] | content
//! ```
//!
//! A check is BLAKE3 in key derivation mode over the number of the section, the first section and this one, cut to 8
//! bytes. So sections of two files do not fit together. The last section is empty.

use std::io::{self, Read, Write};

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::effect::replay::{Sink, Source};
use trust_shared::entry::{MAX_ENTRY_BYTES, MAX_OPS_BYTES};

/// A section ends with the piece that reaches this length.
const SECTION_BYTES: usize = 64 << 10;
/// Longest piece: an entry with its body, and less than that of anything else.
const MAX_PIECE_BYTES: usize = MAX_ENTRY_BYTES + MAX_OPS_BYTES + 64;
const CONTEXT: &str = "bulla 2026-11 snapshot of a shared volume: section";
const WHAT: &str = "snapshot of a shared volume";

/// What ties sections to their file.
#[derive(Clone, Copy)]
struct Checks {
    number: u64,
    first: [u8; 32],
}

impl Checks {
    fn begin() -> Checks {
        Checks {
            number: 0,
            first: [0; 32],
        }
    }

    /// The check of the next section.
    fn next(&mut self, content: &[u8]) -> [u8; 8] {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&self.first).update(content);
        if self.number == 0 {
            self.first = *hasher.finalize().as_bytes();
        }
        self.number = self.number.saturating_add(1);
        let mut check = [0; 8];
        hasher.finalize_xof().fill(&mut check);
        check
    }
}

/// Writes pieces.
pub struct Writer<W> {
    out: W,
    section: Encoder,
    checks: Checks,
    result: io::Result<()>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(out: W) -> Writer<W> {
        Writer {
            out,
            section: Encoder::new(),
            checks: Checks::begin(),
            result: Ok(()),
        }
    }

    /// Ends the section.
    pub fn flush(&mut self) {
        let mut content = std::mem::take(&mut self.section).finish();
        if self.result.is_ok() {
            self.result = self.write(&content);
        }
        content.clear();
        self.section = Encoder::onto(content);
    }

    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let check = self.checks.next(content);
        // Sections are short.
        self.out.write_all(&(content.len() as u32).to_le_bytes())?;
        self.out.write_all(&check)?;
        self.out.write_all(content)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Why something could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        if !self.section.is_empty() {
            self.flush();
        }
        self.flush();
        self.result.and_then(|()| self.out.flush())
    }
}

impl<W: Write> Sink for Writer<W> {
    fn put(&mut self, write: impl FnOnce(&mut Encoder) -> &mut Encoder) {
        write(&mut self.section);
        if self.section.len() >= SECTION_BYTES {
            self.flush();
        }
    }
}

/// Reads what a [`Writer`] wrote.
pub struct Reader<R> {
    from: R,
    section: Vec<u8>,
    at: usize,
    checks: Checks,
}

impl<R: Read> Reader<R> {
    /// Begins a file.
    pub fn new(from: R) -> Reader<R> {
        Reader {
            from,
            section: Vec::new(),
            at: 0,
            checks: Checks::begin(),
        }
    }

    fn next(&mut self) -> Result<(), Reject> {
        let bad = |why| Reject::Malformed { what: WHAT, why };
        let mut head = [0; 12];
        self.from
            .read_exact(&mut head)
            .map_err(|_| bad("cut short"))?;
        let [a, b, c, d, check @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > SECTION_BYTES + MAX_PIECE_BYTES {
            return Err(bad("a section that is too long"));
        }
        self.section.clear();
        self.section.resize(length, 0);
        self.at = 0;
        let read = self.from.read_exact(&mut self.section);
        read.map_err(|_| bad("cut short"))?;
        match self.checks.next(&self.section) == check {
            true => Ok(()),
            false => Err(bad("a section was changed")),
        }
    }

    /// The file ends here.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when there is more, or the end is missing.
    pub fn finish(mut self) -> Result<(), Reject> {
        let is_read = self.at == self.section.len();
        self.next()?;
        match is_read && self.section.is_empty() {
            true => Ok(()),
            false => Err(Reject::Malformed {
                what: WHAT,
                why: "more than a snapshot has",
            }),
        }
    }
}

impl<R: Read> Source for Reader<R> {
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, Reject>,
    ) -> Result<T, Reject> {
        if self.at == self.section.len() {
            self.next()?;
        }
        let rest = self.section.get(self.at..).unwrap_or_default();
        let mut d = Decoder::new(rest, WHAT);
        let found = read(&mut d)?;
        self.at = self.section.len().saturating_sub(d.remaining());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pieces: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        for piece in 0..pieces {
            writer.put(|e| e.u64(piece));
            if piece == 0 {
                writer.flush();
            }
        }
        writer.finish().unwrap();
        bytes
    }

    fn read(bytes: &[u8], pieces: u64) -> Result<(), Reject> {
        let mut reader = Reader::new(bytes);
        for piece in 0..pieces {
            assert_eq!(reader.take(|d| d.u64())?, piece);
        }
        reader.finish()
    }

    #[test]
    fn pieces_come_back_and_nothing_else_does() {
        for pieces in [1, 2, 8193, 20_000] {
            let bytes = written(pieces);
            read(&bytes, pieces).unwrap();
            assert!(read(&bytes, pieces - 1).is_err());
            assert!(read(&bytes, pieces + 1).is_err());
        }
    }

    #[test]
    fn every_cut_and_every_change_is_found() {
        let bytes = written(40);
        for at in 0..bytes.len() {
            assert!(read(&bytes[..at], 40).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(read(&changed, 40).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn sections_of_two_files_do_not_fit_together() {
        let (one, mut other) = (written(2), written(2));
        // The first section of another file: a length, a check and eight bytes.
        let mut head = Vec::new();
        let mut writer = Writer::new(&mut head);
        writer.put(|e| e.u64(7));
        writer.finish().unwrap();
        assert_eq!(one, other);
        other[..20].copy_from_slice(&head[..20]);
        let mut reader = Reader::new(&other[..]);
        assert_eq!(reader.take(|d| d.u64()), Ok(7));
        assert!(reader.take(|d| d.u64()).is_err());
    }
}
