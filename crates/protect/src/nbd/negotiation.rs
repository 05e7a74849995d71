//! The handshake, *fixed newstyle*, as a state machine without I/O: bytes of the client go in, bytes for the client
//! come out. Options and their number are bounded, so that a client cannot negotiate for ever.

use super::Violation;
use super::export::{Export, PREFERRED_BYTES};
use super::wire::{
    Fields, IHAVEOPT, NBD_FLAG_FIXED_NEWSTYLE, NBD_FLAG_NO_ZEROES, NBD_INFO_BLOCK_SIZE,
    NBD_INFO_EXPORT, NBD_INFO_NAME, NBD_OPT_ABORT, NBD_OPT_EXPORT_NAME, NBD_OPT_GO, NBD_OPT_INFO,
    NBD_OPT_LIST, NBD_REP_ACK, NBD_REP_ERR_INVALID, NBD_REP_ERR_POLICY, NBD_REP_ERR_UNKNOWN,
    NBD_REP_ERR_UNSUP, NBD_REP_INFO, NBD_REP_MAGIC, NBD_REP_SERVER, NBDMAGIC, OPTION_BYTES,
    TRANSMISSION_FLAGS,
};

/// The longest data of an option. A name has at most 4096 bytes.
pub const MAX_OPTION_DATA_BYTES: usize = 16 << 10;
/// More options than any client sends. libnbd asks for some eight.
pub const MAX_OPTIONS: u32 = 64;

/// One client's negotiation.
#[derive(Debug)]
pub struct Negotiation {
    export: Export,
    refusal: Option<&'static str>,
    /// Whether the client wants no zeros after the answer to `NBD_OPT_EXPORT_NAME`. `None` before its flags are here.
    no_zeroes: Option<bool>,
    options: u32,
}

/// What the bytes led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// So many bytes are done with; there may be more to do in the rest.
    Took(usize),
    /// So many bytes are done with, and requests follow them.
    Transmission(usize),
    /// The client ends the connection, or asked for what is not there in the one way that has no error.
    Ended,
}

impl Negotiation {
    /// Begins. The bytes are the server's greeting.
    pub fn new(export: Export) -> (Negotiation, Vec<u8>) {
        let mut greeting = Vec::new();
        greeting.extend(NBDMAGIC.to_be_bytes());
        greeting.extend(IHAVEOPT.to_be_bytes());
        greeting.extend((NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES).to_be_bytes());
        let negotiation = Negotiation {
            export,
            refusal: None,
            no_zeroes: None,
            options: 0,
        };
        (negotiation, greeting)
    }

    /// Gives this reason to a client that asks for the export.
    pub fn refuse(&mut self, reason: &'static str) {
        self.refusal = Some(reason);
    }

    /// Looks at the bytes that the client has sent and that are not done with. Appends answers to `out`.
    ///
    /// # Errors
    /// When the connection must end, because the client breaks the protocol.
    pub fn step(&mut self, sent: &[u8], out: &mut Vec<u8>) -> Result<Progress, Violation> {
        let mut fields = Fields(sent);
        let Some(no_zeroes) = self.no_zeroes else {
            let Some(flags) = fields.u32() else {
                return Ok(Progress::More);
            };
            let known = u32::from(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
            if flags & !known != 0 {
                return Err(Violation::ClientFlags(flags));
            }
            self.no_zeroes = Some(flags & u32::from(NBD_FLAG_NO_ZEROES) != 0);
            return Ok(Progress::Took(4));
        };
        let Some(magic) = fields.u64() else {
            return Ok(Progress::More);
        };
        if magic != IHAVEOPT {
            return Err(Violation::Magic);
        }
        let (Some(option), Some(bytes)) = (fields.u32(), fields.u32()) else {
            return Ok(Progress::More);
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > MAX_OPTION_DATA_BYTES {
            return Err(Violation::OptionTooLong);
        }
        let Some(data) = fields.bytes(bytes) else {
            return Ok(Progress::More);
        };
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(Violation::TooManyOptions);
        }
        let took = OPTION_BYTES + bytes;
        Ok(self.option(option, data, no_zeroes, took, out))
    }

    fn option(
        &self,
        option: u32,
        data: &[u8],
        no_zeroes: bool,
        took: usize,
        out: &mut Vec<u8>,
    ) -> Progress {
        match option {
            NBD_OPT_EXPORT_NAME if self.refusal.is_some() || !self.is_name(data) => Progress::Ended,
            NBD_OPT_EXPORT_NAME => {
                out.extend(self.export.bytes.to_be_bytes());
                out.extend(TRANSMISSION_FLAGS.to_be_bytes());
                out.extend([0; 124].iter().take(if no_zeroes { 0 } else { 124 }));
                Progress::Transmission(took)
            }
            NBD_OPT_ABORT => {
                answer(out, option, NBD_REP_ACK, b"");
                Progress::Ended
            }
            NBD_OPT_LIST if !data.is_empty() => {
                answer(out, option, NBD_REP_ERR_INVALID, b"LIST has no data");
                Progress::Took(took)
            }
            NBD_OPT_LIST => {
                let name = self.export.name.as_bytes();
                // At most 4096 bytes, so the length fits.
                let mut server = (name.len() as u32).to_be_bytes().to_vec();
                server.extend(name);
                answer(out, option, NBD_REP_SERVER, &server);
                answer(out, option, NBD_REP_ACK, b"");
                Progress::Took(took)
            }
            NBD_OPT_INFO | NBD_OPT_GO => {
                if self.info(option, data, out) && option == NBD_OPT_GO {
                    Progress::Transmission(took)
                } else {
                    Progress::Took(took)
                }
            }
            _ => {
                answer(out, option, NBD_REP_ERR_UNSUP, b"");
                Progress::Took(took)
            }
        }
    }

    /// Answers `NBD_OPT_INFO` or `NBD_OPT_GO`. Returns whether the client may use the export.
    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> bool {
        let Some((name, wanted)) = asked(data) else {
            answer(out, option, NBD_REP_ERR_INVALID, b"malformed option");
            return false;
        };
        if let Some(reason) = self.refusal {
            answer(out, option, NBD_REP_ERR_POLICY, reason.as_bytes());
            return false;
        }
        if !self.is_name(name) {
            answer(out, option, NBD_REP_ERR_UNKNOWN, b"no export of this name");
            return false;
        }
        let mut export = NBD_INFO_EXPORT.to_be_bytes().to_vec();
        export.extend(self.export.bytes.to_be_bytes());
        export.extend(TRANSMISSION_FLAGS.to_be_bytes());
        answer(out, option, NBD_REP_INFO, &export);
        if wanted.contains(&NBD_INFO_NAME) {
            let mut name = NBD_INFO_NAME.to_be_bytes().to_vec();
            name.extend(self.export.name.as_bytes());
            answer(out, option, NBD_REP_INFO, &name);
        }
        let mut sizes = NBD_INFO_BLOCK_SIZE.to_be_bytes().to_vec();
        let Export {
            sector_bytes,
            payload_bytes,
            ..
        } = self.export;
        for size in [sector_bytes, PREFERRED_BYTES, payload_bytes] {
            sizes.extend(size.to_be_bytes());
        }
        answer(out, option, NBD_REP_INFO, &sizes);
        answer(out, option, NBD_REP_ACK, b"");
        true
    }

    fn is_name(&self, name: &[u8]) -> bool {
        name == self.export.name.as_bytes()
    }
}

/// The name and the kinds of information that the data of `NBD_OPT_INFO` or `NBD_OPT_GO` asks for.
fn asked(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut fields = Fields(data);
    let name_bytes = usize::try_from(fields.u32()?).ok()?;
    let name = fields.bytes(name_bytes)?;
    let count = fields.u16()?;
    // No more than the data has: it is bounded.
    let wanted: Vec<u16> = std::iter::from_fn(|| fields.u16()).collect();
    (fields.0.is_empty() && wanted.len() == usize::from(count)).then_some((name, wanted))
}

fn answer(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(NBD_REP_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    // A name and two bytes at most, so the length fits.
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

#[cfg(test)]
mod tests;
