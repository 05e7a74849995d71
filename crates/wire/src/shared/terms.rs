//! The answer to OPEN: what holds for this device at this server. How often it is sent something, how much it may send,
//! and how much may be under way. What is beyond that is not refused: the server reads it later.

use std::time::Duration;

use trust::Reject;
use trust::encode::{Decoder, Encoder};

/// Shortest pause between deliveries without anything new that a client may wish for, milliseconds.
pub const MIN_HEARTBEAT_MS: u32 = 250;
/// Longest such pause.
pub const MAX_HEARTBEAT_MS: u32 = 10_000;
/// What a message of a client costs at least, bytes.
pub const MESSAGE_COST_BYTES: u64 = 64 << 10;
/// What each block, body or leaf that a message has or asks for costs at least, bytes.
pub const NAMED_COST_BYTES: u64 = 16 << 10;

/// How much in the long run, and how much at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// In a second. Never 0.
    pub per_second: u64,
    /// At once. Never 0.
    pub at_once: u64,
}

impl Pace {
    fn encode(self, e: &mut Encoder) {
        e.u64(self.per_second).u64(self.at_once);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Pace, Reject> {
        let (per_second, at_once) = (d.u64()?, d.u64()?);
        match per_second == 0 || at_once == 0 {
            true => Err(d.bad("a pace of nothing")),
            false => Ok(Pace {
                per_second,
                at_once,
            }),
        }
    }
}

/// The body of an OPENED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The device is sent a delivery when there was none for so long, milliseconds: [`MIN_HEARTBEAT_MS`] to
    /// [`MAX_HEARTBEAT_MS`].
    pub heartbeat_ms: u32,
    /// Bytes of messages, as they are counted ([`MESSAGE_COST_BYTES`], [`NAMED_COST_BYTES`]).
    pub bytes: Pace,
    /// Entries.
    pub entries: Pace,
    /// Bytes of entries and their bodies.
    pub entry_bytes: Pace,
    /// Bytes of requests and answers that the server keeps for a connection without letting the next request wait.
    /// Never 0.
    pub outstanding_bytes: u64,
}

/// Length of the body.
pub const TERMS_BYTES: usize = 4 + 3 * 16 + 8;

impl Terms {
    /// The pause that a server gives a client that wishes for one of so many milliseconds.
    pub fn heartbeat_for(wish_ms: u32) -> Duration {
        let ms = wish_ms.clamp(MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS);
        Duration::from_millis(ms.into())
    }

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        e.u32(self.heartbeat_ms);
        for pace in [self.bytes, self.entries, self.entry_bytes] {
            pace.encode(&mut e);
        }
        e.u64(self.outstanding_bytes);
        e.finish()
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding, and for what no server may answer.
    pub fn decode(body: &[u8]) -> Result<Terms, Reject> {
        let mut d = Decoder::new(body, "terms");
        let terms = Terms {
            heartbeat_ms: d.u32()?,
            bytes: Pace::decode(&mut d)?,
            entries: Pace::decode(&mut d)?,
            entry_bytes: Pace::decode(&mut d)?,
            outstanding_bytes: d.u64()?,
        };
        if !(MIN_HEARTBEAT_MS..=MAX_HEARTBEAT_MS).contains(&terms.heartbeat_ms) {
            return Err(d.bad("a pause that no client may wish for"));
        }
        if terms.outstanding_bytes == 0 {
            return Err(d.bad("nothing may be under way"));
        }
        d.finish()?;
        Ok(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        let pace = |n| Pace {
            per_second: n,
            at_once: n + 1,
        };
        Terms {
            heartbeat_ms: 250,
            bytes: pace(1 << 30),
            entries: pace(4000),
            entry_bytes: pace(1 << 20),
            outstanding_bytes: 4 << 20,
        }
    }

    #[test]
    fn terms_have_one_encoding_and_no_zeros() {
        let bytes = terms().encode();
        assert_eq!(bytes.len(), TERMS_BYTES);
        assert_eq!(Terms::decode(&bytes), Ok(terms()));
        assert!(Terms::decode(&[&bytes[..], &[0]].concat()).is_err());
        for cut in 0..bytes.len() {
            assert!(Terms::decode(&bytes[..cut]).is_err());
        }
        for field in 0..7 {
            let at = 4 + 8 * field;
            let mut zero = bytes.clone();
            zero[at..at + 8].fill(0);
            assert!(Terms::decode(&zero).is_err(), "{field}");
        }
    }

    #[test]
    fn heartbeats_are_between_a_quarter_of_a_second_and_ten() {
        for (wish, given) in [
            (0, 250),
            (249, 250),
            (1000, 1000),
            (10_001, 10_000),
            (u32::MAX, 10_000),
        ] {
            assert_eq!(Terms::heartbeat_for(wish).as_millis(), given);
        }
        for ms in [0, 249, 10_001, u32::MAX] {
            let odd = Terms {
                heartbeat_ms: ms,
                ..terms()
            };
            assert!(Terms::decode(&odd.encode()).is_err(), "{ms}");
        }
    }
}
