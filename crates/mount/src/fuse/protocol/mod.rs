//! The bytes of the FUSE protocol, `<linux/fuse.h>` versions 7.31 to 7.45, without any I/O: requests from bytes
//! ([`parse`]), answers ([`body`]) and notifications ([`notice`]) to bytes, and what FUSE_INIT agrees on ([`init`]).
//! Everything is in the machine's byte order. Nothing here panics, whatever the bytes are.

pub mod body;
mod fields;
pub mod init;
pub mod notice;
pub mod opcode;
pub mod parse;

use super::request::Caller;
use super::types::{Errno, INodeNo};
use fields::Fields;

/// Bytes of `fuse_out_header`.
pub const OUT_HEADER_BYTES: usize = 16;

/// What every request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which request; see [`opcode`].
    pub opcode: u32,
    /// Number by which the request is answered.
    pub unique: u64,
    /// The inode that it is about, mostly.
    pub inode: INodeNo,
    /// The calling process and its user.
    pub caller: Caller,
}

/// Why a message is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// It is shorter than a header, so that it cannot be answered.
    Short,
    /// Its lengths are not those of the message.
    Length(Header),
}

impl Header {
    /// Header and body of a message, which is what one read gave.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn split(message: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let mut fields = Fields::new(message);
        let read = Header::read(&mut fields);
        let (header, length, extensions) = read.map_err(|_| Malformed::Short)?;
        let body = fields.rest();
        let without = body.len().checked_sub(extensions);
        match without.and_then(|length| body.get(..length)) {
            Some(body) if length == message.len() => Ok((header, body)),
            _ => Err(Malformed::Length(header)),
        }
    }

    /// The header, the length of the message, and the length of the extensions at its end, bytes.
    fn read(fields: &mut Fields<'_>) -> Result<(Header, usize, usize), Errno> {
        let length = fields.u32()? as usize;
        let opcode = fields.u32()?;
        let unique = fields.u64()?;
        let inode = INodeNo(fields.u64()?);
        let caller = Caller {
            uid: fields.u32()?,
            gid: fields.u32()?,
            pid: fields.u32()?,
        };
        let extensions = usize::from(fields.u16()?) * 8;
        fields.skip(2)?;
        let header = Header {
            opcode,
            unique,
            inode,
            caller,
        };
        Ok((header, length, extensions))
    }
}

/// `fuse_out_header` of an answer: `error` is 0 or an errno, negative; of a notification, with `unique` 0, its code.
pub fn out_header(body_bytes: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_BYTES] {
    let length = OUT_HEADER_BYTES.saturating_add(body_bytes);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let mut header = [0; OUT_HEADER_BYTES];
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32, extensions: u16, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(opcode::LOOKUP.to_ne_bytes());
        message.extend(7_u64.to_ne_bytes());
        message.extend(1_u64.to_ne_bytes());
        for number in [1000_u32, 100, 4242] {
            message.extend(number.to_ne_bytes());
        }
        message.extend(extensions.to_ne_bytes());
        message.extend([0; 2]);
        message.extend(body);
        message
    }

    #[test]
    fn header_is_forty_bytes_and_the_body_ends_before_the_extensions() {
        let expected = Header {
            opcode: opcode::LOOKUP,
            unique: 7,
            inode: INodeNo(1),
            caller: Caller {
                uid: 1000,
                gid: 100,
                pid: 4242,
            },
        };
        let bytes = message(42, 0, b"f\0");
        assert_eq!(Header::split(&bytes), Ok((expected, &b"f\0"[..])));
        let bytes = message(50, 1, b"f\0 1234567");
        assert_eq!(Header::split(&bytes), Ok((expected, &b"f\0"[..])));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let bytes = message(42, 0, b"f\0");
        for length in 0..40 {
            assert_eq!(Header::split(&bytes[..length]), Err(Malformed::Short));
        }
        for (length, extensions) in [
            (41, 0),
            (43, 0),
            (0, 0),
            (u32::MAX, 0),
            (42, 1),
            (42, u16::MAX),
        ] {
            let bytes = message(length, extensions, b"f\0");
            match Header::split(&bytes) {
                Err(Malformed::Length(header)) => assert_eq!(header.unique, 7),
                other => panic!("{other:?}"),
            }
        }
    }
}
