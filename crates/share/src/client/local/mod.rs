//! What programs of one user on one machine say to each other about a shared volume: one of them runs the engine of the
//! device, the others use it over a socket in the home (docs/formats/shared-local.md, decision 0053).
//!
//! Only bytes live here; `neighbour` has the sockets. Both ends are programs of one user, and mostly of one build.
//! The decoders are strict all the same: a process that is out of order must not take another one with it.
//!
//! | module | what lives there |
//! |---|---|
//! | here | the first bytes, bounds |
//! | `message` | requests, and what comes back |
//! | `answer` | answers to calls |
//! | `engine` | errors, the state of an engine |
//! | `field` | what several of them have in common |

mod answer;
mod engine;
mod field;
mod message;
#[cfg(test)]
mod tests;

use trust::Reject;
use trust::encode::Decoder;

pub use message::{Asked, Query, Response, Told, Want};

/// Version of the messages. Programs of different versions do not talk.
pub const PROTOCOL: u16 = 4;
/// Bytes before the version.
pub const MAGIC: &[u8; 10] = b"bulla-home";
/// Length of a hello.
pub const HELLO_BYTES: usize = 44;
/// Longest request, bytes.
pub const MAX_ASKED_BYTES: usize = 4 << 20;
/// Longest message that comes back, bytes: the members of a volume with a million roles.
pub const MAX_TOLD_BYTES: usize = 96 << 20;
/// Records of one message are not longer together, unless there is only one, bytes.
pub const RECORDS_BYTES: usize = 1 << 20;
/// Most handles of one request.
pub const MAX_HANDLES: usize = 16;
/// Requests of one connection that are under way at a time. A program that has more is cut off.
pub const MAX_UNDER_WAY: usize = 512;
/// Bytes of the requests of one connection that are under way at a time.
pub const MAX_UNDER_WAY_BYTES: usize = 24 << 20;
/// Reads and writes of blocks that a program has under way at a time.
pub const BLOCKS_UNDER_WAY: usize = 8;

const BUILD_BYTES: usize = 32;
const WHAT: &str = "message between programs of one machine";

/// The first bytes of each end: `magic [10] | protocol u16 | build [32]`. The build is text, filled up with zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The protocol that the program speaks.
    pub protocol: u16,
    /// The program's version, for people.
    pub build: String,
}

impl Hello {
    /// That of this build.
    pub fn own() -> Hello {
        Hello {
            protocol: PROTOCOL,
            build: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let build = self.build.bytes().take(BUILD_BYTES);
        let all = MAGIC.iter().copied();
        let all = all.chain(self.protocol.to_le_bytes()).chain(build);
        for (to, byte) in bytes.iter_mut().zip(all) {
            *to = byte;
        }
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for other bytes. The rest of a hello of another protocol is not looked at.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if d.raw(MAGIC.len())? != MAGIC {
            return Err(d.bad("it does not begin as one"));
        }
        let protocol = d.u16()?;
        let build = d.raw(BUILD_BYTES)?;
        let shown = build.iter().take_while(|byte| byte.is_ascii_graphic());
        Ok(Hello {
            protocol,
            build: shown.map(|byte| char::from(*byte)).collect(),
        })
    }
}
