//! Numbers of the NBD protocol, named as in its document (`doc/proto.md` of NetworkBlockDevice/nbd), and the messages
//! of fixed length. All numbers are big-endian.

/// Begins the server's greeting.
pub(super) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Follows it in newstyle negotiation, and begins each option.
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins each answer to an option.
pub(super) const NBD_REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

// Handshake flags, and the client's of the same number.
pub(super) const NBD_FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NBD_FLAG_NO_ZEROES: u16 = 1 << 1;

// Transmission flags.
const NBD_FLAG_HAS_FLAGS: u16 = 1 << 0;
const NBD_FLAG_SEND_FLUSH: u16 = 1 << 2;
const NBD_FLAG_SEND_FUA: u16 = 1 << 3;
const NBD_FLAG_SEND_TRIM: u16 = 1 << 5;
const NBD_FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
const NBD_FLAG_CAN_MULTI_CONN: u16 = 1 << 8;

/// What every export of this server can do. Several connections see one device: a write that was answered on one is
/// read on all, and a flush on one covers the writes that were answered on all.
pub(super) const TRANSMISSION_FLAGS: u16 = NBD_FLAG_HAS_FLAGS
    | NBD_FLAG_SEND_FLUSH
    | NBD_FLAG_SEND_FUA
    | NBD_FLAG_SEND_TRIM
    | NBD_FLAG_SEND_WRITE_ZEROES
    | NBD_FLAG_CAN_MULTI_CONN;

pub(super) const NBD_OPT_EXPORT_NAME: u32 = 1;
pub(super) const NBD_OPT_ABORT: u32 = 2;
pub(super) const NBD_OPT_LIST: u32 = 3;
pub(super) const NBD_OPT_INFO: u32 = 6;
pub(super) const NBD_OPT_GO: u32 = 7;

pub(super) const NBD_REP_ACK: u32 = 1;
pub(super) const NBD_REP_SERVER: u32 = 2;
pub(super) const NBD_REP_INFO: u32 = 3;
pub(super) const NBD_REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(super) const NBD_REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(super) const NBD_REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(super) const NBD_REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;

pub(super) const NBD_INFO_EXPORT: u16 = 0;
pub(super) const NBD_INFO_NAME: u16 = 1;
pub(super) const NBD_INFO_BLOCK_SIZE: u16 = 3;

pub(super) const NBD_CMD_READ: u16 = 0;
pub(super) const NBD_CMD_WRITE: u16 = 1;
pub(super) const NBD_CMD_DISC: u16 = 2;
pub(super) const NBD_CMD_FLUSH: u16 = 3;
pub(super) const NBD_CMD_TRIM: u16 = 4;
pub(super) const NBD_CMD_WRITE_ZEROES: u16 = 6;

pub(super) const NBD_CMD_FLAG_FUA: u16 = 1 << 0;
pub(super) const NBD_CMD_FLAG_NO_HOLE: u16 = 1 << 1;

/// Bytes of a request without its payload.
pub(super) const REQUEST_BYTES: usize = 28;
/// Bytes of an option without its data.
pub(super) const OPTION_BYTES: usize = 16;
/// Bytes of a simple reply without its payload.
pub(super) const REPLY_BYTES: usize = 16;

/// The only errors that the protocol knows. Their numbers are those of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    /// `NBD_EPERM`: the device takes no writes.
    Perm = 1,
    /// `NBD_EIO`: a device failed, or has no right bytes.
    Io = 5,
    /// `NBD_EINVAL`: the request is not aligned, beyond the end, too long or unknown.
    Inval = 22,
    /// `NBD_ENOSPC`: a write beyond the end, or to a device that is full.
    NoSpc = 28,
    /// `NBD_ESHUTDOWN`: the device is being detached.
    Shutdown = 108,
}

/// A request as it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Request {
    /// `None` if the magic is wrong.
    pub(super) fn parse(sent: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let mut fields = Fields(sent);
        let magic = fields.u32()?;
        let request = Request {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            bytes: fields.u32()?,
        };
        (magic == NBD_REQUEST_MAGIC).then_some(request)
    }
}

/// The header of a simple reply.
pub(super) fn reply(cookie: u64, error: Option<NbdError>) -> [u8; REPLY_BYTES] {
    let mut header = [0; REPLY_BYTES];
    let (magic, rest) = header.split_at_mut(4);
    let (number, name) = rest.split_at_mut(4);
    magic.copy_from_slice(&NBD_SIMPLE_REPLY_MAGIC.to_be_bytes());
    number.copy_from_slice(&error.map_or(0, |error| error as u32).to_be_bytes());
    name.copy_from_slice(&cookie.to_be_bytes());
    header
}

/// Reads numbers from the front. `None` when too few bytes are left.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
