//! Takes the fields of a request from its bytes, one after the other. Whatever is missing is EIO.

use crate::fuse::types::Errno;

/// The bytes that are left.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(Errno::EIO)?;
        self.rest = rest;
        Ok(*first)
    }

    pub fn u16(&mut self) -> Result<u16, Errno> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Errno> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Errno> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    /// Padding, and fields that nothing here uses.
    pub fn skip(&mut self, bytes: usize) -> Result<(), Errno> {
        self.rest = self.rest.get(bytes..).ok_or(Errno::EIO)?;
        Ok(())
    }

    /// A string of at least one byte, which ends at the next NUL.
    pub fn string(&mut self) -> Result<&'a [u8], Errno> {
        let length = self.rest.iter().position(|byte| *byte == 0);
        let length = length.filter(|length| *length > 0).ok_or(Errno::EIO)?;
        let (string, rest) = self.rest.split_at(length);
        self.rest = &rest[1..];
        Ok(string)
    }

    /// The name of an entry of a directory.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.string()?;
        let is_name = name != b"." && name != b".." && !name.contains(&b'/');
        if is_name { Ok(name) } else { Err(Errno::EIO) }
    }

    /// Nothing must be left.
    pub fn end(&self) -> Result<(), Errno> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Errno::EIO)
        }
    }
}
