//! The head: the one small file of a replica that changes. It contains everything that a reader needs to
//! judge a volume; the blocks are fetched by handle.
//!
//! The head is the replica's claim. Errors in its form are that replica's fault, and its content counts only
//! after [`crate::published::floor::Floor::judge`].

use bytes::Bytes;

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::history::{Frontier, LogPoint};
use crate::published::checkpoint::MAX_CHECKPOINT_BYTES;
use crate::published::root::RootRecord;
use crate::statement::chain::{Link, MAX_POLICIES};
use crate::statement::policy::Policy;
use crate::statement::{Signed, VolumeId};

/// Largest head, bytes.
pub const MAX_HEAD_BYTES: usize = 1 << 20;

const FORMAT: u16 = 0;

/// A head. Only its form was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The genesis policy and the newest ones, at most [`MAX_POLICIES`] together. Those between are files of the
    /// repository.
    pub policies: Vec<Signed>,
    /// The root record.
    pub record: Signed,
    /// The timestamp, if the policy requires one.
    pub timestamp: Option<Signed>,
    /// A C2SP checkpoint of the log just after the record, with cosignatures.
    pub checkpoint: Option<Bytes>,
    /// The log just before the record. It lets a publisher append without reading the log.
    pub frontier: Frontier,
    /// The log just before the first policy that the head shows after the genesis, if policies between the record's
    /// and that one are not shown. It lets a publisher append without them.
    pub later_log: Option<Frontier>,
}

impl Head {
    /// The canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when there would be more than [`MAX_HEAD_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.u16(FORMAT);
        // Incompatible flags: none in this format.
        e.u16(0);
        e.varint(self.policies.len() as u64);
        for policy in &self.policies {
            policy.encode(&mut e);
        }
        self.record.encode(&mut e);
        e.u8(u8::from(self.timestamp.is_some()));
        if let Some(timestamp) = &self.timestamp {
            timestamp.encode(&mut e);
        }
        e.bytes(self.checkpoint.as_deref().unwrap_or_default());
        self.frontier.encode(&mut e);
        e.u8(u8::from(self.later_log.is_some()));
        if let Some(later_log) = &self.later_log {
            later_log.encode(&mut e);
        }
        let bytes = e.finish();
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(bad("too long"));
        }
        Ok(bytes)
    }

    /// Takes bytes that claim to be a head.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format, [`Reject::Malformed`] for anything but the one
    /// encoding of a head.
    pub fn decode(bytes: &[u8]) -> Result<Head, Reject> {
        if bytes.len() > MAX_HEAD_BYTES {
            return Err(bad("too long"));
        }
        let mut d = Decoder::new(bytes, "head");
        let (format, incompatible) = (d.u16()?, d.u16()?);
        if format != FORMAT || incompatible != 0 {
            return Err(Reject::Unsupported {
                what: "head",
                why: format!("format {format}, flags {incompatible:#06x}"),
            });
        }
        let count = d.bounded(MAX_POLICIES as u64, "too many policies")?;
        let mut policies = Vec::new();
        for _ in 0..count {
            policies.push(Signed::decode(&mut d)?);
        }
        let record = Signed::decode(&mut d)?;
        let timestamp = match d.u8()? {
            0 => None,
            1 => Some(Signed::decode(&mut d)?),
            _ => return Err(d.bad("neither with nor without a timestamp")),
        };
        let checkpoint = d.bytes(MAX_CHECKPOINT_BYTES)?;
        let checkpoint = (!checkpoint.is_empty()).then(|| Bytes::copy_from_slice(checkpoint));
        let frontier = Frontier::decode(&mut d)?;
        let later_log = match d.flag()? {
            true => Some(Frontier::decode(&mut d)?),
            false => None,
        };
        d.finish()?;
        Ok(Head {
            policies,
            record,
            timestamp,
            checkpoint,
            frontier,
            later_log,
        })
    }

    /// The links after the genesis that can be read. Nothing is verified.
    fn later(&self) -> impl Iterator<Item = Link> {
        let volume = self.volume().ok();
        let read = move |signed: &Signed| Link::read(volume?, signed).ok();
        self.policies.iter().skip(1).filter_map(read)
    }

    /// Its policies with the numbers that they claim.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, Signed)> {
        let later = self.later().map(|link| (link.policy.number(), link.signed));
        self.policies
            .first()
            .map(|genesis| (0, genesis.clone()))
            .into_iter()
            .chain(later)
    }

    /// Number of the first policy that it claims to show after the genesis; 1 if it shows none.
    pub fn begins(&self) -> u64 {
        self.later().next().map_or(1, |link| link.policy.number())
    }

    /// Number of the newest policy that it claims to show.
    pub fn newest_policy(&self) -> u64 {
        self.later().last().map_or(0, |link| link.policy.number())
    }

    /// The head after a rotation: `policy` is the newest one, and the oldest ones make room for it. Nothing is
    /// verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a head or a policy that cannot be read.
    pub fn rotated(&self, policy: Signed) -> Result<Head, Reject> {
        let volume = self.volume()?;
        let record: RootRecord = self.record.statement().read(volume)?;
        let mut head = self.clone();
        head.policies.push(policy);
        while head.policies.len() > MAX_POLICIES
            || head.encode().is_err() && head.policies.len() > 2
        {
            let leaving = head.policies.remove(1);
            let policy = Link::read(volume, &leaving)?.policy;
            if policy.number() <= record.policy_number {
                continue;
            }
            let mut log = match head.later_log.take() {
                Some(log) => log,
                None => self.after_record(&record)?,
            };
            if policy
                .last()
                .is_some_and(|last| last.log.epoch != policy.log_epoch())
            {
                log = Frontier::new();
            }
            log.push(leaving.statement().bytes())?;
            head.later_log = Some(log);
        }
        Ok(head)
    }

    /// The volume id that the head claims: the hash of its first policy. Nothing is verified. A reader that
    /// expects a certain volume compares the id.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when there is no policy.
    pub fn volume(&self) -> Result<VolumeId, Reject> {
        let genesis = self.policies.first().ok_or_else(|| bad("no policy"))?;
        Ok(VolumeId::from_bytes(genesis.statement().hash()))
    }

    /// The log to which the next statement of this volume is appended: the log for the next record, and the
    /// frontier for the head that carries it.
    ///
    /// Signatures are not checked: judge the head first.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the frontier is not that of the log that the record names, and when policies
    /// after the record are neither shown nor in the later log.
    pub fn next_log(&self, volume: VolumeId) -> Result<(LogPoint, Frontier), Reject> {
        let record: RootRecord = self.record.statement().read(volume)?;
        let mut frontier = self.after_record(&record)?;
        let mut epoch = record.log.epoch;
        let mut number = record.policy_number;
        for signed in self.policies.iter().skip(1) {
            let policy = Link::read(volume, signed)?.policy;
            if policy.number() <= record.policy_number {
                continue;
            }
            if number.checked_add(1) != Some(policy.number()) {
                frontier = self.checked_later_log(&policy)?;
                epoch = policy.last().map_or(epoch, |last| last.log.epoch);
            }
            number = policy.number();
            if policy.log_epoch() != epoch {
                epoch = policy.log_epoch();
                frontier = Frontier::new();
            }
            frontier.push(signed.statement().bytes())?;
        }
        Ok((frontier.point(epoch), frontier))
    }

    /// The log before `policy`, whose owners signed which log that is.
    pub(crate) fn checked_later_log(&self, policy: &Policy) -> Result<Frontier, Reject> {
        let log = policy.last().map(|last| last.log);
        let of = |frontier: &&Frontier| log.is_some_and(|log| frontier.point(log.epoch) == log);
        let later_log = self.later_log.as_ref().filter(of).cloned();
        later_log.ok_or_else(|| bad("the policies after the record are not shown"))
    }

    /// The log with `record` (this head's) as its last leaf.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the frontier is not that of the log that the record names.
    pub(crate) fn after_record(&self, record: &RootRecord) -> Result<Frontier, Reject> {
        if self.frontier.point(record.log.epoch) != record.log {
            return Err(bad("the frontier is not that of the record's log"));
        }
        let mut frontier = self.frontier.clone();
        frontier.push(self.record.statement().bytes())?;
        Ok(frontier)
    }
}

/// The log of a new volume: its genesis policy is leaf 0.
///
/// # Errors
/// None in practice, because a log of one leaf is not full.
pub fn first_log(genesis: &Signed) -> Result<(LogPoint, Frontier), Reject> {
    let mut frontier = Frontier::new();
    frontier.push(genesis.statement().bytes())?;
    Ok((frontier.point(0), frontier))
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: "head", why }
}
