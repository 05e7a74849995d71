//! A scrub of the ring while the log is in use: the frames from the tail to the durable end are read again, in steps.
//!
//! A frame is never rewritten, so nothing is mended here. Whoever keeps the content elsewhere makes the frame
//! unneeded: a checkpoint moves the tail behind it.

use bytes::Bytes;

use crate::chain::{Chain, Found};
use crate::error::LogError;
use crate::frame::records;
use crate::log::Log;
use crate::position::{Lsn, Mark};
use crate::record::Client;
use crate::ring::RingReader;
use crate::superblock::Gap;

/// Bytes that are read ahead. A step begins anew, so it is short.
const AHEAD_BYTES: usize = 256 << 10;

/// How far a scrub of the ring came.
#[derive(Debug, Clone, Copy)]
pub struct Patrol {
    /// The last frame that was right; everything before the tail is.
    at: Option<Mark>,
    /// What was durable when it began. It would not end beside somebody who writes faster than it may read.
    until: Option<Lsn>,
}

/// What is wrong with the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingDefect {
    /// Where the frame begins. The log does not need it any more when its tail is behind this position.
    pub frame: Lsn,
    /// Where the damage lies on the device, in bytes.
    pub offset: u64,
    /// The page of payload that is wrong. Nothing, if the frame itself is: an opening of the log would fail there.
    pub page: Option<WrongPage>,
}

/// A page of payload that does not match its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongPage {
    /// Whose record it belongs to.
    pub client: Client,
    /// What the client calls the record.
    pub kind: u8,
    /// The body of the record.
    pub body: Bytes,
    /// Pages of the record.
    pub pages: usize,
    /// Number of this page in it.
    pub number: usize,
}

/// What a step of a scrub of the ring has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Patrolled {
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether it came to the end of what is durable, or of what can be followed.
    pub is_over: bool,
}

impl Patrol {
    /// A scrub from the tail on.
    pub fn new() -> Patrol {
        Patrol {
            at: None,
            until: None,
        }
    }

    /// Checks the next frames, about `bytes` of them, at least one. A defect that the tail passes meanwhile is none. After a
    /// frame whose header is wrong nothing can be followed before the tail has passed it: the next step finds it again.
    ///
    /// # Errors
    /// None of the device: what cannot be read is a defect. [`LogError::Failed`].
    pub fn step(
        &mut self,
        log: &Log,
        bytes: u64,
        tell: &mut dyn FnMut(RingDefect),
    ) -> Result<Patrolled, LogError> {
        let shared = &*log.shared;
        let gaps: Vec<Gap> = crate::shared::lock(&shared.superblock).gaps.clone();
        let chain = shared.keys.chain(&shared.layout, &gaps);
        let mut reader = RingReader::new(&*shared.device, &shared.layout, AHEAD_BYTES);
        let mut done = Patrolled::default();
        while done.bytes < bytes {
            let (at, durable) = {
                let machine = &shared.state().machine;
                if let Some(failure) = machine.failure() {
                    return Err(failure);
                }
                let tail = machine.tail_mark();
                let at = self.at.filter(|at| at.lsn >= tail.lsn);
                (at.unwrap_or(tail), machine.durable())
            };
            let until = *self.until.get_or_insert(durable.lsn);
            if chain.beyond(&at).lsn >= until {
                done.is_over = true;
                break;
            }
            let checked = next(&chain, &mut reader, &at);
            // What the tail has passed may be overwritten.
            let is_needed = shared.state().machine.tail() <= at.lsn;
            match checked {
                Ok((frame, wrong)) => {
                    let read = frame.mark.lsn.0 - frame.lsn.0;
                    done.bytes += read;
                    self.at = Some(frame.mark);
                    for lsn in wrong.into_iter().filter(|_| is_needed) {
                        tell(RingDefect {
                            frame: frame.lsn,
                            offset: shared.layout.offset(lsn),
                            page: page_at(&frame, lsn),
                        });
                    }
                }
                Err(frame) if is_needed => {
                    done.is_over = true;
                    tell(RingDefect {
                        frame,
                        offset: shared.layout.offset(frame),
                        page: None,
                    });
                    break;
                }
                Err(_) => self.at = None,
            }
        }
        Ok(done)
    }
}

impl Default for Patrol {
    fn default() -> Patrol {
        Patrol::new()
    }
}

/// The frame after `at`, which is durable, and its pages that are wrong or cannot be read; or where the frame should be.
fn next(
    chain: &Chain<'_>,
    reader: &mut RingReader<'_>,
    at: &Mark,
) -> Result<(Found, Vec<Lsn>), Lsn> {
    let lsn = chain.beyond(at).lsn;
    let Ok(Some(frame)) = chain.next(reader, at) else {
        return Err(lsn);
    };
    // A page that cannot be read ends that: which ones are wrong is not told then, but that the frame is.
    let wrong = chain.wrong_pages(reader, &frame).map_err(|_| lsn)?;
    Ok((frame, wrong))
}

/// The record that the page at this position belongs to.
fn page_at(frame: &Found, lsn: Lsn) -> Option<WrongPage> {
    records(&frame.records, frame.payload).find_map(|(payload, record)| {
        let pages = record.digests().count();
        let number = (lsn.0.checked_sub(payload.0)? / crate::buffer::PAGE) as usize;
        (number < pages).then(|| WrongPage {
            client: record.client,
            kind: record.kind,
            body: Bytes::copy_from_slice(record.body),
            pages,
            number,
        })
    })
}
