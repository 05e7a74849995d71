//! What a client may ask of the device: sizes, alignment, flags. Pure: every request is judged here before memory is
//! taken or the device is called.

use super::wire::{
    NBD_CMD_DISC, NBD_CMD_FLAG_FUA, NBD_CMD_FLAG_NO_HOLE, NBD_CMD_FLUSH, NBD_CMD_READ,
    NBD_CMD_TRIM, NBD_CMD_WRITE, NBD_CMD_WRITE_ZEROES, NbdError, Request,
};
use crate::Block;

/// The preferred size of requests: the block that has one digest.
pub(super) const PREFERRED_BYTES: u32 = 4096;
/// A payload over this is an attack and ends the connection (the protocol's *Size constraints*). One between the
/// export's limit and this is skipped and refused.
pub(super) const MAX_SKIPPED_BYTES: u32 = 32 << 20;

/// The device as clients see it.
#[derive(Debug, Clone)]
pub struct Export {
    /// The name by which clients ask for it; clients that give no name ask for the empty one.
    pub name: String,
    /// Length in bytes, whole sectors.
    pub bytes: u64,
    /// The smallest unit of requests.
    pub sector_bytes: u32,
    /// The longest read or write.
    pub payload_bytes: u32,
}

/// A request that the device can carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Read so many bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes, at most the export's longest payload.
        bytes: u32,
    },
    /// Write these bytes.
    Write {
        /// First byte.
        offset: u64,
        /// What to write.
        data: Vec<u8>,
        /// Answer when it is durable.
        durable: bool,
    },
    /// Have the range read as zeros: TRIM and WRITE_ZEROES.
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
        /// Answer when it is durable.
        durable: bool,
    },
    /// Make all writes durable that were answered.
    Flush,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is carried out, as soon as its payload is here.
    Do(Command),
    /// It is answered with the error, after its payload was skipped.
    Refuse(NbdError),
    /// The client says goodbye.
    Disconnect,
    /// The payload is so long that the connection ends.
    Attack,
}

impl Export {
    /// The export of `block`, with this name and longest payload.
    pub fn new(block: &dyn Block, name: String, payload_bytes: u32) -> Export {
        let sector_bytes = block.sector_bytes();
        let beyond_last_sector = block.bytes().checked_rem(u64::from(sector_bytes));
        Export {
            name,
            bytes: block.bytes() - beyond_last_sector.unwrap_or(0),
            sector_bytes,
            payload_bytes,
        }
    }

    pub(super) fn judge(&self, request: &Request) -> Verdict {
        let Request { offset, bytes, .. } = *request;
        if request.kind == NBD_CMD_WRITE && bytes > MAX_SKIPPED_BYTES {
            return Verdict::Attack;
        }
        if request.flags & !allowed_flags(request.kind) != 0 {
            return Verdict::Refuse(NbdError::Inval);
        }
        let durable = request.flags & NBD_CMD_FLAG_FUA != 0;
        let command = match request.kind {
            NBD_CMD_DISC => return Verdict::Disconnect,
            NBD_CMD_FLUSH if (offset, bytes) == (0, 0) => return Verdict::Do(Command::Flush),
            NBD_CMD_READ => Command::Read { offset, bytes },
            NBD_CMD_WRITE => Command::Write {
                offset,
                data: Vec::new(),
                durable,
            },
            NBD_CMD_TRIM | NBD_CMD_WRITE_ZEROES => Command::Zero {
                offset,
                bytes,
                durable,
            },
            _ => return Verdict::Refuse(NbdError::Inval),
        };
        match self.refusal(request) {
            Some(error) => Verdict::Refuse(error),
            None => Verdict::Do(command),
        }
    }

    /// Why the range cannot be read or written.
    fn refusal(&self, request: &Request) -> Option<NbdError> {
        let carries_payload = matches!(request.kind, NBD_CMD_READ | NBD_CMD_WRITE);
        let sector = u64::from(self.sector_bytes);
        let is_whole = |number: u64| number.is_multiple_of(sector);
        if request.bytes == 0 || !is_whole(request.offset) || !is_whole(request.bytes.into()) {
            return Some(NbdError::Inval);
        }
        if carries_payload && request.bytes > self.payload_bytes {
            return Some(NbdError::Inval);
        }
        let end = request.offset.checked_add(u64::from(request.bytes));
        if end.is_some_and(|end| end <= self.bytes) {
            return None;
        }
        // The protocol's *Error values*.
        Some(match request.kind {
            NBD_CMD_WRITE | NBD_CMD_WRITE_ZEROES => NbdError::NoSpc,
            _ => NbdError::Inval,
        })
    }
}

/// FUA is accepted everywhere, because clients are known to send it with any request. NO_HOLE asks that the range keep
/// its space on the data device; how a range is zeroed there is the device's choice (docs/decisions/0039-nbd.md).
fn allowed_flags(kind: u16) -> u16 {
    match kind {
        NBD_CMD_WRITE_ZEROES => NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE,
        _ => NBD_CMD_FLAG_FUA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1 << 20;

    fn export() -> Export {
        Export {
            name: String::new(),
            bytes: END,
            sector_bytes: 512,
            payload_bytes: 64 << 10,
        }
    }

    fn judged(kind: u16, flags: u16, offset: u64, bytes: u32) -> Verdict {
        export().judge(&Request {
            flags,
            kind,
            cookie: 7,
            offset,
            bytes,
        })
    }

    const READ: u16 = NBD_CMD_READ;
    const WRITE: u16 = NBD_CMD_WRITE;
    const INVAL: Verdict = Verdict::Refuse(NbdError::Inval);
    const NO_SPACE: Verdict = Verdict::Refuse(NbdError::NoSpc);

    #[test]
    fn whole_sectors_up_to_the_last_one_are_allowed() {
        for kind in [READ, WRITE, NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES] {
            for (offset, bytes) in [(0, 512), (END - 512, 512), (512, 64 << 10)] {
                let verdict = judged(kind, NBD_CMD_FLAG_FUA, offset, bytes);
                assert!(matches!(verdict, Verdict::Do(_)), "{kind} {offset} {bytes}");
            }
        }
    }

    #[test]
    fn parts_of_sectors_are_invalid() {
        for kind in [READ, WRITE, NBD_CMD_TRIM, NBD_CMD_WRITE_ZEROES] {
            for (offset, bytes) in [(0, 0), (1, 512), (0, 511), (256, 256), (u64::MAX, 512)] {
                assert_eq!(judged(kind, 0, offset, bytes), INVAL);
            }
        }
    }

    #[test]
    fn range_beyond_the_end_is_invalid_to_read_and_no_space_to_write() {
        for (offset, bytes) in [(END, 512), (END - 512, 1024), (u64::MAX - 511, 512)] {
            assert_eq!(judged(READ, 0, offset, bytes), INVAL);
            assert_eq!(judged(NBD_CMD_TRIM, 0, offset, bytes), INVAL);
            assert_eq!(judged(WRITE, 0, offset, bytes), NO_SPACE);
            assert_eq!(judged(NBD_CMD_WRITE_ZEROES, 0, offset, bytes), NO_SPACE);
        }
    }

    #[test]
    fn long_payloads_are_refused_and_endless_ones_are_attacks() {
        for kind in [READ, WRITE] {
            assert_eq!(judged(kind, 0, 0, (64 << 10) + 512), INVAL);
            assert_eq!(judged(kind, 0, 0, MAX_SKIPPED_BYTES), INVAL);
        }
        assert_eq!(
            judged(WRITE, 0, 0, MAX_SKIPPED_BYTES + 512),
            Verdict::Attack
        );
        assert_eq!(judged(READ, 0, 0, MAX_SKIPPED_BYTES + 512), INVAL);
        let zeros = judged(NBD_CMD_WRITE_ZEROES, 0, 0, 1 << 20);
        assert!(matches!(zeros, Verdict::Do(Command::Zero { bytes, .. }) if bytes == 1 << 20));
    }

    #[test]
    fn unknown_flags_and_requests_are_invalid() {
        assert_eq!(judged(READ, NBD_CMD_FLAG_NO_HOLE, 0, 512), INVAL);
        assert_eq!(judged(NBD_CMD_TRIM, NBD_CMD_FLAG_NO_HOLE, 0, 512), INVAL);
        for flag in 2..16 {
            assert_eq!(judged(NBD_CMD_WRITE_ZEROES, 1 << flag, 0, 512), INVAL);
        }
        for kind in [5, 7, 8, u16::MAX] {
            assert_eq!(judged(kind, 0, 0, 512), INVAL);
        }
        assert_eq!(judged(NBD_CMD_FLUSH, 0, 0, 512), INVAL);
        assert_eq!(judged(NBD_CMD_FLUSH, 0, 512, 0), INVAL);
        let flush = judged(NBD_CMD_FLUSH, NBD_CMD_FLAG_FUA, 0, 0);
        assert_eq!(flush, Verdict::Do(Command::Flush));
    }

    #[test]
    fn durable_writes_stay_durable() {
        let write = judged(WRITE, NBD_CMD_FLAG_FUA, 0, 512);
        assert!(matches!(
            write,
            Verdict::Do(Command::Write { durable: true, .. })
        ));
        let zero = judged(NBD_CMD_WRITE_ZEROES, 3, 0, 512);
        assert!(matches!(
            zero,
            Verdict::Do(Command::Zero { durable: true, .. })
        ));
        let trim = judged(NBD_CMD_TRIM, 0, 0, 512);
        assert!(matches!(
            trim,
            Verdict::Do(Command::Zero { durable: false, .. })
        ));
    }
}
