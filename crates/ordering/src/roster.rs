//! The members of a volume after a prefix of its log, and the product's operations.
//!
//! The orderer uses a [`Roster`] as it is: it judges who may write, and refuses entries that cannot be read. Clients
//! use it as a part of [`Files`](crate::files::Files). Relies on [`trust_shared::members`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use trust::device::DeviceKey;
use trust::error::Reject;
use trust::volume_id::VolumeId;
use trust_shared::decision::Decision;
use trust_shared::genesis::Founder;
use trust_shared::members::{FirstMembers, Members};
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{NoEffect, Written};
use trust_shared::outline::{MAX_OPS, Outline};
use trust_shared::principal::Device;

use crate::signed::{Codec, Entry, Signed};
use crate::volume::Roll;

/// The product's hashes, signatures and operations.
pub type Product = Signed<OpsCodec>;

/// The operations of [`trust_shared::ops`].
#[derive(Clone, Copy, Debug)]
pub struct OpsCodec;

impl Codec for OpsCodec {
    type Op = Op;

    fn encode(ops: Vec<Op>) -> Option<(Bytes, Bytes)> {
        let body = Body::new(ops).ok()?;
        Some((body.outline().encode().into(), body.encode().into()))
    }
}

/// A position that the log never reaches: the members there are those after all entries.
pub const END: u64 = u64::MAX;

/// The members of a volume after a prefix of its log.
///
/// Copies share the members until one of them changes.
#[derive(Clone, Debug)]
pub struct Roster {
    members: Arc<Members>,
    /// Numbers of devices. To read a key as a point of the curve, as [`Members`] has them, costs microseconds.
    numbers: Arc<HashMap<DeviceKey, Device>>,
    /// The last decisions that came to nothing when they were to count: position and number of the op, and why.
    lapsed: VecDeque<(u64, usize, NoEffect)>,
    /// Position of an entry that decides and came without its body.
    lost: Option<u64>,
}

impl Roster {
    /// The members before the first entry.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a founder whose name no user may have.
    pub fn new(volume: VolumeId, founder: &Founder) -> Result<Roster, Reject> {
        let first = FirstMembers::founded(volume, founder)?;
        let device = DeviceKey::from(&first.device);
        Ok(Roster {
            members: Arc::new(Members::new(first)),
            numbers: Arc::new(HashMap::from([(device, Device(0))])),
            lapsed: VecDeque::new(),
            lost: None,
        })
    }

    /// The members that a checkpoint names.
    pub fn resume(members: Members) -> Roster {
        let numbers = members.keys();
        let numbers = numbers.map(|(device, key)| (DeviceKey::from(key), device));
        Roster {
            numbers: Arc::new(numbers.collect()),
            members: Arc::new(members),
            lapsed: VecDeque::new(),
            lost: None,
        }
    }

    /// The members, at every position.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The number of a device, also of a removed one.
    pub fn number(&self, device: DeviceKey) -> Option<Device> {
        self.numbers.get(&device).copied()
    }

    /// Position of an entry that decides and that was added without its body. Nobody is a member then: whoever reads
    /// a stored log must have the bodies of all entries that [`Roster::concerns`] says yes to.
    pub fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Why a decision that was to count does not, if it is one of the last ones.
    pub fn lapsed(&self, at: u64, op: usize) -> Option<NoEffect> {
        let found = self.lapsed.iter().find(|row| (row.0, row.1) == (at, op));
        found.map(|(.., why)| *why)
    }

    /// Whether the entry, as the next one, changes the roster or may do so. A copy that was given only such entries
    /// is the same as one that was given all.
    pub fn concerns(&self, entry: &Entry) -> bool {
        let author = self.number(entry.signed().entry().device);
        let waits = |author| self.members.waits(author);
        author.is_some_and(waits) || outline_of(entry).is_ok_and(|outline| outline.decides())
    }

    /// As [`Roster::concerns`], of an entry that is read already.
    pub fn is_concerned(&self, written: &Written, outline: &Outline) -> bool {
        outline.decides() || self.members.waits(written.device)
    }

    /// The parts of an entry that decide what it does. None: its author was never a member.
    pub fn written(&self, at: u64, entry: &Entry) -> Option<Written> {
        let entry = entry.signed().entry();
        Some(Written {
            position: at,
            device: self.number(entry.device)?,
            seen: entry.seen.size,
            kept: entry.kept,
        })
    }

    /// Adds an entry. `outline` is the entry's, unless it is malformed.
    pub fn take(&mut self, written: &Written, entry: &Entry, outline: &Outline) {
        self.carry_out(written);
        if !outline.decides() {
            return;
        }
        match entry.body().map(|body| Body::decode(body)) {
            Some(Ok(body)) => {
                let members = Arc::make_mut(&mut self.members);
                let lapsed = members.propose(written, outline, &body);
                for (position, op) in lapsed {
                    self.note_lapsed(position, op, NoEffect::TooMany);
                }
            }
            Some(Err(Reject::Malformed { .. })) => {}
            // Decisions that a later bulla knows, or that are not here: this one cannot tell who is a member.
            Some(Err(_)) | None => self.lost = self.lost.or(Some(written.position)),
        }
    }

    /// Carries out what the entry's author has decided before, and attests with the entry.
    fn carry_out(&mut self, written: &Written) {
        // Others share the members: they are copied only where they change.
        if !self.members.is_due(written) {
            return;
        }
        for decided in Arc::make_mut(&mut self.members).take_effect(written) {
            match (decided.result, &decided.decision) {
                (Ok(()), Decision::AdmitDevice { device, key, .. }) => {
                    let numbers = Arc::make_mut(&mut self.numbers);
                    numbers.insert(DeviceKey::from(key), *device);
                }
                (Ok(()), _) => {}
                (Err(why), _) => self.note_lapsed(decided.position, decided.op, why),
            }
        }
    }

    /// Those of one entry are all kept until its author is told.
    fn note_lapsed(&mut self, position: u64, op: usize, why: NoEffect) {
        self.lapsed.push_back((position, op, why));
        if self.lapsed.len() > MAX_OPS {
            self.lapsed.pop_front();
        }
    }
}

/// The outline of an entry; a Resume has an empty one.
pub fn outline_of(entry: &Entry) -> Result<Outline, Reject> {
    match entry.signed().entry().ops() {
        Some(ops) => Outline::decode(&ops.outline),
        None => Ok(Outline::default()),
    }
}

/// Whether the entry says something about members, and its body is not here.
pub fn lacks_decision(entry: &Entry) -> bool {
    entry.body().is_none() && outline_of(entry).is_ok_and(|outline| outline.decides())
}

impl Roll<Product> for Roster {
    fn active(&self, device: DeviceKey) -> bool {
        let active = |device| self.members.active(device, END);
        self.lost.is_none() && self.number(device).is_some_and(active)
    }

    fn admitted(&self, device: DeviceKey) -> u64 {
        let number = self.number(device);
        number
            .and_then(|number| self.members.admitted(number))
            .unwrap_or(0)
    }

    /// An orderer gives out bodies, so it takes no entry without one, and none that says other things than its
    /// outline.
    fn malformed(&self, entry: &Entry) -> Option<&'static str> {
        if entry.signed().entry().is_resume() {
            return None;
        }
        let Ok(outline) = outline_of(entry) else {
            return Some("the outline is malformed");
        };
        let Some(body) = entry.body() else {
            return Some("the body is missing");
        };
        match Body::decode(body) {
            Ok(body) if body.is_outlined_by(&outline) => None,
            Ok(_) => Some("the outline is another body's"),
            Err(_) => Some("the body is malformed"),
        }
    }

    fn extend(&mut self, at: u64, entry: &Entry) {
        let Some(written) = self.written(at, entry) else {
            return;
        };
        let outline = outline_of(entry).unwrap_or_default();
        self.take(&written, entry, &outline);
    }
}

#[cfg(test)]
mod tests;
