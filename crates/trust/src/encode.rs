//! The one encoding style: fixed fields little-endian, counts and sizes as canonical LEB128, byte strings
//! after their length. Decoders accept exactly one encoding of a value, bound every length before they
//! allocate, and never panic.

use crate::error::Reject;

/// Appends encoded fields to a buffer.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
}

impl Encoder {
    /// An empty buffer.
    pub fn new() -> Self {
        Encoder::default()
    }

    /// Appends to these bytes.
    pub fn onto(bytes: Vec<u8>) -> Self {
        Encoder { out: bytes }
    }

    /// The bytes so far.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// The bytes so far and their BLAKE3, 32 bytes. Detects damage, not forgery.
    pub fn finish_with_checksum(mut self) -> Vec<u8> {
        let checksum = blake3::hash(&self.out);
        self.raw(checksum.as_bytes());
        self.out
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// One byte.
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.out.push(v);
        self
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.raw(&v.to_le_bytes())
    }

    /// Canonical LEB128: seven bits a byte, no trailing zero byte.
    pub fn varint(&mut self, mut v: u64) -> &mut Self {
        while v >= 0x80 {
            self.out.push((v as u8 & 0x7f) | 0x80);
            v >>= 7;
        }
        self.out.push(v as u8);
        self
    }

    /// Bytes without a length, for a decoder that knows it.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// A varint length, then the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.varint(bytes.len() as u64).raw(bytes)
    }
}

/// The bytes before the checksum that [`Encoder::finish_with_checksum`] wrote, and whether it matches. `None`
/// when the bytes are too few for a checksum.
pub fn split_checksum(bytes: &[u8]) -> Option<(&[u8], bool)> {
    let (body, checksum) = bytes.split_last_chunk::<32>()?;
    Some((body, blake3::hash(body) == *checksum))
}

/// Length of `v` as a canonical varint.
pub fn varint_len(v: u64) -> usize {
    (64 - (v | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads encoded fields; every method fails with [`Reject::Malformed`] naming `what`.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Decoder<'a> {
    /// Reads `bytes` as a structure called `what` in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Decoder { rest: bytes, what }
    }

    /// An error about this structure.
    pub fn bad(&self, why: &'static str) -> Reject {
        Reject::Malformed {
            what: self.what,
            why,
        }
    }

    /// The format's number, one byte. A later format is unsupported, not malformed.
    pub fn format(&mut self, known: u8) -> Result<(), Reject> {
        let format = self.u8()?;
        if format != known {
            return Err(Reject::Unsupported {
                what: self.what,
                why: format!("format {format}"),
            });
        }
        Ok(())
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Exactly `n` bytes.
    pub fn raw(&mut self, n: usize) -> Result<&'a [u8], Reject> {
        if n > self.rest.len() {
            return Err(self.bad("truncated"));
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        Ok(head)
    }

    /// Exactly `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Reject> {
        let bytes = self.raw(N)?;
        bytes.try_into().map_err(|_| self.bad("truncated"))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Reject> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16, Reject> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Reject> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Reject> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A canonical varint; an overlong or overflowing one is refused.
    pub fn varint(&mut self) -> Result<u64, Reject> {
        let mut value: u64 = 0;
        for i in 0..10u32 {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if i == 9 && bits > 1 {
                return Err(self.bad("varint overflows"));
            }
            value |= bits << (7 * i);
            if byte & 0x80 == 0 {
                if byte == 0 && i > 0 {
                    return Err(self.bad("varint is not canonical"));
                }
                return Ok(value);
            }
        }
        Err(self.bad("varint overflows"))
    }

    /// A varint that must not exceed `max`.
    pub fn bounded(&mut self, max: u64, why: &'static str) -> Result<u64, Reject> {
        let v = self.varint()?;
        if v > max { Err(self.bad(why)) } else { Ok(v) }
    }

    /// A length of at most `max`, then that many bytes.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8], Reject> {
        let n = self.bounded(max as u64, "string too long")?;
        self.raw(n as usize)
    }

    /// A byte that is 0 or 1.
    pub fn flag(&mut self) -> Result<bool, Reject> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("a flag is 0 or 1")),
        }
    }

    /// Refuses trailing bytes.
    pub fn finish(self) -> Result<(), Reject> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.bad("trailing bytes"))
        }
    }
}

/// The form of a file that travels between machines: what it is, the format and flags (none yet), the content, a checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileForm {
    /// Its first bytes.
    pub magic: &'static [u8; 8],
    /// The only format that this build reads.
    pub format: u16,
    /// The name of the kind of file in errors.
    pub what: &'static str,
    /// Largest file, bytes.
    pub most_bytes: usize,
}

impl FileForm {
    /// Begins a file; the content follows.
    pub fn begin(&self) -> Encoder {
        let mut e = Encoder::new();
        // Incompatible flags: none in this format.
        e.raw(self.magic).u16(self.format).u16(0);
        e
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they are too many.
    pub fn finish(&self, content: Encoder) -> Result<Vec<u8>, Reject> {
        let bytes = content.finish_with_checksum();
        match bytes.len() > self.most_bytes {
            true => Err(self.bad("too long")),
            false => Ok(bytes),
        }
    }

    /// The content of bytes that claim to be such a file. The caller finishes the decoder.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for another file and for damage.
    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<Decoder<'a>, Reject> {
        if bytes.len() > self.most_bytes {
            return Err(self.bad("too long"));
        }
        let (body, intact) = split_checksum(bytes).ok_or_else(|| self.bad("truncated"))?;
        let mut d = Decoder::new(body, self.what);
        if d.raw(self.magic.len())? != self.magic {
            return Err(d.bad("another kind of file"));
        }
        let (format, incompatible) = (d.u16()?, d.u16()?);
        if format != self.format || incompatible != 0 {
            return Err(Reject::Unsupported {
                what: self.what,
                why: format!("format {format}, flags {incompatible:#06x}"),
            });
        }
        // The checksum detects damage on the way. Security comes from the signatures.
        if !intact {
            return Err(d.bad("damaged: the checksum does not match"));
        }
        Ok(d)
    }

    fn bad(&self, why: &'static str) -> Reject {
        let what = self.what;
        Reject::Malformed { what, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_encoding() {
        for v in [
            0,
            1,
            127,
            128,
            300,
            16383,
            16384,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let mut e = Encoder::new();
            e.varint(v);
            let bytes = e.finish();
            assert_eq!(bytes.len(), varint_len(v));
            let mut d = Decoder::new(&bytes, "v");
            assert_eq!(d.varint(), Ok(v));
            d.finish().unwrap();
            let mut long = bytes.clone();
            *long.last_mut().unwrap() |= 0x80;
            long.push(0);
            assert!(Decoder::new(&long, "v").varint().is_err());
        }
        assert!(Decoder::new(&[0xff; 11], "v").varint().is_err());
        let over = [&[0xff; 9][..], &[2]].concat();
        assert!(Decoder::new(&over, "v").varint().is_err());
    }
}
