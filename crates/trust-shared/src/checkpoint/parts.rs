//! All rows of a checkpoint put together: what a device starts from.

use super::window::WindowRows;
use super::{Author, Row, Window};
use crate::effect::replay::Base;
use crate::members::{MemberRows, Members};
use crate::principal::Principal;
use trust::device::DeviceKey;
use trust::encode::Decoder;
use trust::error::Reject;
use trust::history::LogPoint;

/// The policy that begins the epoch: its number and its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRow {
    /// Its number.
    pub number: u64,
    /// The hash of its statement.
    pub hash: [u8; 32],
}

/// What the rows of a checkpoint say.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The policy that begins the epoch.
    pub policy: PolicyRow,
    /// What the log says about each device that wrote.
    pub authors: Vec<(DeviceKey, Author)>,
    /// The members.
    pub members: Members,
    /// Folds, locks, and what changed since the folds.
    pub base: Base,
    /// The end of the log.
    pub window: Window,
}

/// Reads rows, in the order of their keys.
#[derive(Debug)]
pub struct Reader {
    log: LogPoint,
    last: Option<Row>,
    policy: Option<PolicyRow>,
    authors: Vec<(DeviceKey, Author)>,
    members: MemberRows,
    base: Base,
    window: WindowRows,
}

impl Reader {
    /// No rows yet of the checkpoint of a log. `volume` is the group that owns the root directory.
    pub fn new(volume: Principal, log: LogPoint) -> Reader {
        Reader {
            log,
            last: None,
            policy: None,
            authors: Vec::new(),
            members: MemberRows::new(volume, log.size),
            base: Base::default(),
            window: WindowRows::default(),
        }
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a row that no log has; [`Reject::Unsupported`] for one that needs a newer bulla.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Reject> {
        let row = Row::decode(key)?;
        let mut d = Decoder::new(value, "row of a checkpoint");
        if self.last.as_ref().is_some_and(|last| *last >= row) {
            return Err(d.bad("rows out of order"));
        }
        match &row {
            Row::Policy => {
                let (number, hash) = (d.u64()?, d.array()?);
                d.finish()?;
                self.policy = Some(PolicyRow { number, hash });
            }
            Row::Author(device) => {
                let author = Author::decode(value)?;
                if author.last_at >= self.log.size {
                    return Err(d.bad("a position that the log does not have"));
                }
                self.authors.push((*device, author));
            }
            Row::Before => self.window.begin(d)?,
            Row::Leaves(at) => self.window.leaves(*at, d)?,
            row => {
                let size = self.log.size;
                let known = self.members.take(row, value)? || self.base.take(row, value, size)?;
                debug_assert!(known, "each kind of row is about members or files");
            }
        }
        self.last = Some(row);
        Ok(())
    }

    /// What the rows say, if they fit together.
    ///
    /// # Errors
    /// [`Reject::Malformed`]; [`Reject::BadHistory`] when the hashes of leaves do not lead to the root of the log.
    pub fn finish(self) -> Result<Parts, Reject> {
        self.base.check()?;
        Ok(Parts {
            policy: self.policy.ok_or(Reject::Malformed {
                what: "checkpoint",
                why: "no policy",
            })?,
            authors: self.authors,
            members: self.members.finish()?,
            base: self.base,
            window: self.window.finish(&self.log)?,
        })
    }
}
