//! The bytes of a page of the feed, for a process of the same user.
//!
//! ```text
//! feed   = 0 | cursor | after u8 | count varint | touched * count, or 1 | cursor
//! cursor = epoch varint | size varint
//! after  = 0 nothing, 1 more, 2 held
//! touched = position varint | 0 and file, 1 and file and name, or 2 and principal [32]
//! ```

use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust_shared::principal::Principal;

use super::codec::{encode_file, read_file, read_name};
use super::feed::{After, Cursor, Feed, MAX_TOUCHED, Thing, Touched};

impl Touched {
    fn encode(&self, e: &mut Encoder) {
        e.varint(self.at);
        match &self.what {
            Thing::File(file) => encode_file(e.u8(0), file),
            Thing::Name(directory, name) => {
                encode_file(e.u8(1), directory);
                e.bytes(name.as_bytes());
            }
            Thing::Owned(principal) => {
                e.u8(2).raw(principal.as_bytes());
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Touched, Reject> {
        let at = d.varint()?;
        let what = match d.u8()? {
            0 => Thing::File(read_file(d)?),
            1 => Thing::Name(read_file(d)?, read_name(d)?),
            2 => Thing::Owned(Principal::from_bytes(d.array()?)),
            _ => return Err(d.bad("an unknown kind of change")),
        };
        Ok(Touched { at, what })
    }
}

impl Feed {
    /// Appends the page.
    pub fn encode(&self, e: &mut Encoder) {
        match self {
            Feed::Changes {
                changes,
                until,
                after,
            } => {
                until.encode(e.u8(0));
                e.u8(match after {
                    After::Nothing => 0,
                    After::More => 1,
                    After::Held => 2,
                });
                e.varint(changes.len() as u64);
                changes.iter().for_each(|touched| touched.encode(e));
            }
            Feed::LookAgain { now } => now.encode(e.u8(1)),
        }
    }

    /// Reads what [`Feed::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode(d: &mut Decoder<'_>) -> Result<Feed, Reject> {
        match d.u8()? {
            0 => {}
            1 => {
                let now = Cursor::decode(d)?;
                return Ok(Feed::LookAgain { now });
            }
            _ => return Err(d.bad("an unknown kind of page")),
        }
        let until = Cursor::decode(d)?;
        let after = match d.u8()? {
            0 => After::Nothing,
            1 => After::More,
            2 => After::Held,
            _ => return Err(d.bad("an unknown end of a page")),
        };
        let count = d.bounded(MAX_TOUCHED as u64, "too many changes")?;
        let changes: Result<_, Reject> = (0..count).map(|_| Touched::decode(d)).collect();
        Ok(Feed::Changes {
            changes: changes?,
            until,
            after,
        })
    }
}

#[cfg(test)]
mod tests {
    use trust_shared::principal::{Device, FileId, INumber, Name};

    use super::*;

    fn pages() -> Vec<Feed> {
        let principal = Principal::from_bytes([7; 32]);
        let file = FileId {
            principal,
            number: INumber {
                device: Device(3),
                counter: 300,
            },
        };
        let things = [
            Thing::File(file),
            Thing::Name(file, Name::new(b"plan").unwrap()),
            Thing::Owned(principal),
        ];
        let changes = (5..).zip(things);
        let changes: Vec<Touched> = changes.map(|(at, what)| Touched { at, what }).collect();
        let until = Cursor {
            epoch: 2,
            size: 900,
        };
        let page = |after| Feed::Changes {
            changes: changes.clone(),
            until,
            after,
        };
        let mut pages: Vec<Feed> = [After::Nothing, After::More, After::Held].map(page).into();
        pages.push(Feed::LookAgain { now: until });
        pages
    }

    #[test]
    fn page_survives_its_encoding_and_no_other_bytes_are_read() {
        let read = |bytes: &[u8]| {
            let mut d = Decoder::new(bytes, "feed");
            let page = Feed::decode(&mut d)?;
            d.finish()?;
            Ok::<Feed, Reject>(page)
        };
        for page in pages() {
            let mut e = Encoder::new();
            page.encode(&mut e);
            let bytes = e.finish();
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

    #[test]
    fn page_that_claims_too_many_changes_is_refused() {
        let mut e = Encoder::new();
        e.u8(0).varint(0).varint(1).u8(0);
        e.varint(MAX_TOUCHED as u64 + 1);
        let bytes = e.finish();
        let error = Feed::decode(&mut Decoder::new(&bytes, "feed")).unwrap_err();
        assert!(error.to_string().contains("too many changes"), "{error}");
    }
}
