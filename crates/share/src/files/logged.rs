//! A page of the log as programs get it, and its bytes.
//!
//! ```text
//! page    = count varint | entry * count | 0, or 1 and next varint
//! entry   = position varint | device varint | attested u8 | why bytes | body bytes | outcome u8 * ops
//! outcome = 0 not known, 1 effect, 2 effect at a later entry, 3 and more: none, by the number of the reason
//! ```

use std::hash::{Hash, Hasher};

use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust_shared::entry::MAX_OPS_BYTES;
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::Outcome;
use trust_shared::principal::Device;

/// Most entries of a page.
pub const MAX_LOGGED: u32 = 64;
/// Longest text about a damaged entry, bytes.
const MAX_WHY_BYTES: usize = 1 << 10;
#[cfg(test)]
const WHAT: &str = "page of a log";

/// An op of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedOp {
    /// What it was to do. Changes that its outline does not name are left out, because they do not exist.
    pub op: Op,
    /// What became of it. None: this device has forgotten the values before it, as far as folds have them.
    pub outcome: Option<Outcome>,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its position.
    pub at: u64,
    /// Its author.
    pub device: Device,
    /// Its author, an administrator, or this device itself speaks for it on this log.
    pub attested: bool,
    /// Its ops.
    pub ops: Vec<LoggedOp>,
    /// Why its ops cannot be read. It has none then.
    pub damaged: Option<String>,
}

/// A page of the log, newest entry first. Entries that only say that a device has started are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The entries.
    pub entries: Vec<Logged>,
    /// Where the next page begins: before this position. None: this was the last one.
    pub next: Option<u64>,
}

/// Positions tell two pages of one log apart.
impl Hash for History {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entries.iter().for_each(|entry| entry.at.hash(state));
        self.next.hash(state);
    }
}

impl History {
    /// Appends the page.
    pub fn encode(&self, e: &mut Encoder) {
        e.varint(self.entries.len() as u64);
        for entry in &self.entries {
            e.varint(entry.at).varint(entry.device.0.into());
            e.u8(u8::from(entry.attested));
            let why = entry.damaged.as_deref().unwrap_or_default();
            let cut = why.floor_char_boundary(MAX_WHY_BYTES);
            e.bytes(why.get(..cut).unwrap_or_default().as_bytes());
            let ops = entry.ops.iter().map(|told| told.op.clone()).collect();
            // Ops of one body fit into one body.
            let body = Body::new(ops).unwrap_or_default();
            e.bytes(&body.encode());
            for told in entry.ops.iter().take(body.ops().len()) {
                e.u8(Outcome::to_byte(told.outcome));
            }
        }
        match self.next {
            None => e.u8(0),
            Some(next) => e.u8(1).varint(next),
        };
    }

    /// Reads what [`History::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<History, Reject> {
        let count = d.bounded(MAX_LOGGED.into(), "too many entries")?;
        let entries: Result<Vec<Logged>, Reject> = (0..count).map(|_| read_logged(d)).collect();
        Ok(History {
            entries: entries?,
            next: match d.u8()? {
                0 => None,
                1 => Some(d.varint()?),
                _ => return Err(d.bad("a flag that is none")),
            },
        })
    }
}

fn read_logged(d: &mut Decoder<'_>) -> Result<Logged, Reject> {
    let at = d.varint()?;
    let device = Device(d.bounded(u32::MAX.into(), "a number over 32 bits")? as u32);
    let attested = match d.u8()? {
        0 => false,
        1 => true,
        _ => return Err(d.bad("a flag that is none")),
    };
    let why = std::str::from_utf8(d.bytes(MAX_WHY_BYTES)?).map_err(|_| d.bad("not UTF-8"))?;
    let damaged = (!why.is_empty()).then(|| why.to_owned());
    let body = Body::decode(d.bytes(MAX_OPS_BYTES)?)?;
    let mut ops = Vec::with_capacity(body.ops().len());
    for op in body.ops() {
        ops.push(LoggedOp {
            op: op.clone(),
            outcome: read_outcome(d.u8()?, d)?,
        });
    }
    Ok(Logged {
        at,
        device,
        attested,
        ops,
        damaged,
    })
}

fn read_outcome(byte: u8, d: &Decoder<'_>) -> Result<Option<Outcome>, Reject> {
    Outcome::from_byte(byte).ok_or_else(|| d.bad("an unknown outcome"))
}

#[cfg(test)]
mod tests {
    use trust_shared::calls;
    use trust_shared::decision::Decision;
    use trust_shared::principal::{FileId, INumber, Principal};

    use super::*;

    fn page() -> History {
        let file = FileId {
            principal: Principal::from_bytes([7; 32]),
            number: INumber {
                device: Device(0),
                counter: 1,
            },
        };
        let ops = [
            calls::unlock(file),
            calls::decide(Decision::RemoveDevice { device: Device(3) }),
        ];
        let outcomes = [None, Some(Outcome::Effect), Some(Outcome::Late)];
        let reasons = (3..).map_while(Outcome::from_byte);
        let entries = outcomes.into_iter().chain(reasons).enumerate();
        let entries = entries.map(|(number, outcome)| Logged {
            at: 100 - number as u64,
            device: Device(number as u32),
            attested: number % 2 == 0,
            ops: ops
                .iter()
                .map(|op| LoggedOp {
                    op: op.clone(),
                    outcome,
                })
                .collect(),
            damaged: None,
        });
        let mut entries: Vec<Logged> = entries.collect();
        entries.push(Logged {
            at: 3,
            device: Device(1),
            attested: false,
            ops: Vec::new(),
            damaged: Some("not signed".to_owned()),
        });
        History {
            entries,
            next: Some(3),
        }
    }

    #[test]
    fn page_survives_its_encoding_and_no_other_bytes_are_read() {
        let page = page();
        let mut e = Encoder::new();
        page.encode(&mut e);
        let bytes = e.finish();
        let read = |bytes: &[u8]| {
            let mut d = Decoder::new(bytes, WHAT);
            let page = History::decode(&mut d)?;
            d.finish()?;
            Ok::<History, Reject>(page)
        };
        assert_eq!(read(&bytes), Ok(page));
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            // Any answer but a panic will do.
            let _ = read(&changed);
        }
    }
}
