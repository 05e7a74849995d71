//! Who may read and write what, at each position of the log. Every device keeps this from the bodies of the entries
//! whose outline [`decides`](super::outline::Outline::decides). Relies on [`super::decision`] and
//! [`super::outcome`]; `apply` carries decisions out, `rows` gives members as rows of a checkpoint, `page` as bytes for a
//! process of the same user.
//!
//! A decision takes effect late: at its author's next entry that attests it (decision 0040). Until then the orderer
//! could show the decision to one device and a log without it to another. At that entry it is judged again, in the
//! order of the log. It counts for all positions after that entry.

use std::collections::BTreeMap;

use super::decision::{Decision, Label, Role};
use super::genesis::Founder;
use super::key::Key;
use super::ops::{Body, Op};
use super::outcome::{NoEffect, Outcome, Written};
use super::outline::Outline;
use super::principal::{Device, Principal};
use trust::error::Reject;
use trust::key::PublicKey;
use trust::volume_id::VolumeId;

mod apply;
mod page;
mod rows;
#[cfg(test)]
mod tests;

pub use rows::MemberRows;

/// Most devices of a volume, removed ones included.
pub const MAX_DEVICES: usize = 1 << 16;
/// Most users and groups of a volume, removed ones included.
pub const MAX_PRINCIPALS: usize = 1 << 16;
/// Most roles of a volume.
pub const MAX_ROLES: usize = 1 << 20;
/// Most snapshots with names.
pub const MAX_PINS: usize = 1 << 12;
/// Most decisions of one author that wait. Of more, the oldest lapse.
pub const MAX_LATE: usize = 256;

/// Name of the group that owns the root directory.
const VOLUME_LABEL: &str = "everybody";

/// Positions for which something is so: from the first on, before the second.
#[derive(Debug, Clone, Copy)]
struct Span {
    since: u64,
    until: Option<u64>,
}

impl Span {
    fn from(since: u64) -> Span {
        Span { since, until: None }
    }

    fn covers(self, position: u64) -> bool {
        self.since <= position && self.until.is_none_or(|until| position < until)
    }
}

#[derive(Debug, Clone)]
struct DeviceRow {
    key: PublicKey,
    user: Principal,
    member: Span,
    /// Its last name. It counts for all positions, because nothing is decided by it.
    label: Option<Label>,
}

#[derive(Debug, Clone)]
struct PrincipalRow {
    is_group: bool,
    label: Label,
    exists: Span,
}

/// A value and the position from which on it counts, ascending.
type Steps<T> = Vec<(u64, T)>;

fn at<T: Copy>(steps: &Steps<T>, position: u64) -> Option<T> {
    let after = steps.partition_point(|(since, _)| *since <= position);
    let index = after.checked_sub(1)?;
    steps.get(index).map(|(_, value)| *value)
}

/// A decision that waits for its author's next entry.
#[derive(Debug, Clone)]
struct Late {
    written: Written,
    op: usize,
    decision: Decision,
}

/// A decision that has waited, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// Position of the entry that holds the decision.
    pub position: u64,
    /// Number of the op in it.
    pub op: usize,
    /// The decision.
    pub decision: Decision,
    /// Whether it counts.
    pub result: Result<(), NoEffect>,
}

/// Devices, users, groups and roles of a volume, at every position of its log.
#[derive(Debug, Clone)]
pub struct Members {
    volume: Principal,
    devices: BTreeMap<Device, DeviceRow>,
    numbers: BTreeMap<PublicKey, Device>,
    principals: BTreeMap<Principal, PrincipalRow>,
    /// By group and user.
    roles: BTreeMap<(Principal, Principal), Steps<Option<Role>>>,
    accepted: BTreeMap<Device, Steps<u64>>,
    /// Sizes of the prefixes that have names. They are those after all decisions, because nothing is decided by them.
    pins: BTreeMap<Label, u64>,
    /// The same for the retention, seconds.
    retention_s: Option<u64>,
    late: Vec<Late>,
}

/// The members with whom a volume begins.
#[derive(Debug, Clone)]
pub struct FirstMembers {
    /// The group that owns the root directory. Its administrators are those of the volume.
    pub volume: Principal,
    /// Name of that group.
    pub volume_label: Label,
    /// The first administrator.
    pub user: Principal,
    /// Its name.
    pub user_label: Label,
    /// Key of its device, which has number 0.
    pub device: PublicKey,
}

impl FirstMembers {
    /// Those that a genesis policy names.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a name that no user may have.
    pub fn founded(volume: VolumeId, founder: &Founder) -> Result<FirstMembers, Reject> {
        Ok(FirstMembers {
            volume: Principal::from_bytes(*volume.as_bytes()),
            volume_label: Label::new(VOLUME_LABEL)?,
            user: Principal::from_bytes(founder.user),
            user_label: Label::new(&founder.name)?,
            device: founder.device,
        })
    }
}

impl Members {
    /// The members before the first entry.
    pub fn new(first: FirstMembers) -> Members {
        let row = |is_group, label| PrincipalRow {
            is_group,
            label,
            exists: Span::from(0),
        };
        let device = DeviceRow {
            key: first.device,
            user: first.user,
            member: Span::from(0),
            label: None,
        };
        let users = (first.user, row(false, first.user_label));
        let groups = (first.volume, row(true, first.volume_label));
        let admin = (0, Some(Role::Admin));
        Members {
            volume: first.volume,
            numbers: BTreeMap::from([(device.key, Device(0))]),
            devices: BTreeMap::from([(Device(0), device)]),
            principals: BTreeMap::from([users, groups]),
            roles: BTreeMap::from([((first.volume, first.user), vec![admin])]),
            accepted: BTreeMap::new(),
            pins: BTreeMap::new(),
            retention_s: None,
            late: Vec::new(),
        }
    }

    /// The group whose administrators are those of the volume.
    pub fn volume(&self) -> Principal {
        self.volume
    }

    /// The number of the device with a key, also of a removed one.
    pub fn number(&self, key: &PublicKey) -> Option<Device> {
        self.numbers.get(key).copied()
    }

    /// The key of a device, also of a removed one.
    pub fn key(&self, device: Device) -> Option<&PublicKey> {
        self.devices.get(&device).map(|row| &row.key)
    }

    /// Number and key of every device, also of a removed one.
    pub fn keys(&self) -> impl Iterator<Item = (Device, &PublicKey)> {
        self.devices.iter().map(|(device, row)| (*device, &row.key))
    }

    /// The user of a device, also of a removed one.
    pub fn user(&self, device: Device) -> Option<Principal> {
        self.devices.get(&device).map(|row| row.user)
    }

    /// The name that an administrator has given a device for people, also of a removed one. Other devices may have it too.
    pub fn device_label(&self, device: Device) -> Option<&Label> {
        self.devices.get(&device)?.label.as_ref()
    }

    /// The name of a user or group, also of a removed one.
    pub fn label(&self, principal: Principal) -> Option<&Label> {
        self.principals.get(&principal).map(|row| &row.label)
    }

    /// The lowest number that no device has had.
    pub fn next_device(&self) -> Option<Device> {
        let last = self.devices.keys().next_back()?;
        last.0.checked_add(1).map(Device)
    }

    /// Whether an entry of the device may stand at this position.
    pub fn active(&self, device: Device, position: u64) -> bool {
        self.devices
            .get(&device)
            .is_some_and(|row| row.member.covers(position))
    }

    /// Size of the log from which on the device is a member: its first entry must have seen that much.
    pub fn admitted(&self, device: Device) -> Option<u64> {
        self.devices.get(&device).map(|row| row.member.since)
    }

    /// The devices that are members at this position.
    pub fn devices(&self, position: u64) -> impl Iterator<Item = Device> + '_ {
        let rows = self.devices.iter();
        rows.filter(move |(_, row)| row.member.covers(position))
            .map(|(device, _)| *device)
    }

    /// The users and groups at this position, each with its name, in the order of their bytes.
    pub fn principals(&self, position: u64) -> impl Iterator<Item = (Principal, &Label)> + '_ {
        let rows = self.principals.iter();
        rows.filter(move |(_, row)| row.exists.covers(position))
            .map(|(principal, row)| (*principal, &row.label))
    }

    /// Whether it is a group and no user. Also of one that was removed.
    pub fn is_group(&self, principal: Principal) -> bool {
        let row = self.principals.get(&principal);
        row.is_some_and(|row| row.is_group)
    }

    /// The users with a role in the group at this position.
    pub fn roles(
        &self,
        group: Principal,
        position: u64,
    ) -> impl Iterator<Item = (Principal, Role)> + '_ {
        let first = Principal::from_bytes([0; 32]);
        let last = Principal::from_bytes([0xff; 32]);
        let steps = self.roles.range((group, first)..=(group, last));
        steps.filter_map(move |((_, user), steps)| Some((*user, at(steps, position)??)))
    }

    /// Size of the prefix in which entries of the device count by an administrator's decision.
    pub fn accepted(&self, device: Device, position: u64) -> u64 {
        let steps = self.accepted.get(&device);
        steps.and_then(|steps| at(steps, position)).unwrap_or(0)
    }

    /// Names of snapshots, each with the size of its prefix.
    pub fn pins(&self) -> &BTreeMap<Label, u64> {
        &self.pins
    }

    /// Sizes of the prefixes that snapshots name, also of those that are decided and have no effect yet.
    pub fn pinned(&self) -> impl Iterator<Item = u64> + '_ {
        let waiting = self.late.iter().filter_map(|late| match &late.decision {
            Decision::Pin { size, .. } => Some(*size),
            _ => None,
        });
        self.pins.values().copied().chain(waiting)
    }

    /// For how long the server is asked to keep what was replaced, seconds. None: nobody has decided it.
    pub fn retention_s(&self) -> Option<u64> {
        self.retention_s
    }

    /// What the device may do with the files of a user or group. A user's own devices may do everything.
    pub fn role(&self, device: Device, principal: Principal, position: u64) -> Option<Role> {
        let row = self.devices.get(&device)?;
        if !row.member.covers(position) {
            return None;
        }
        let owner = self.principals.get(&principal)?;
        if !owner.exists.covers(position) {
            return None;
        }
        if !owner.is_group {
            return (row.user == principal).then_some(Role::Admin);
        }
        at(self.roles.get(&(principal, row.user))?, position)?
    }

    /// Whether the device may read the principal's files.
    pub fn may_read(&self, device: Device, principal: Principal, position: u64) -> bool {
        self.role(device, principal, position).is_some()
    }

    /// Whether the device may change the principal's files.
    pub fn may_write(&self, device: Device, principal: Principal, position: u64) -> bool {
        self.role(device, principal, position) >= Some(Role::Writer)
    }

    /// Whether the device may change the members of the volume.
    pub fn is_admin(&self, device: Device, position: u64) -> bool {
        self.role(device, self.volume, position) == Some(Role::Admin)
    }

    /// Whether what the device may do with some user's or group's files changed at a position after the first one, up
    /// to the second one.
    pub fn role_changes(&self, device: Device, after: u64, upto: u64) -> bool {
        let Some(row) = self.devices.get(&device) else {
            return false;
        };
        let is_within = |at: u64| after < at && at <= upto;
        let changes = |span: Span| is_within(span.since) || span.until.is_some_and(is_within);
        let exists = |principal: &Principal| {
            let row = self.principals.get(principal);
            row.is_some_and(|row| changes(row.exists))
        };
        let own = self.roles.iter().filter(|((_, user), _)| *user == row.user);
        let mut roles = own.map(|((group, _), steps)| (group, steps));
        let role_of = |(group, steps): (&Principal, &Steps<Option<Role>>)| {
            steps.iter().any(|(since, _)| is_within(*since)) || exists(group)
        };
        changes(row.member) || exists(&row.user) || roles.any(role_of)
    }

    /// Whether the author of an entry at this position may change the key. The outline alone says which keys: nobody
    /// reads the bodies of authors without permission.
    pub fn may_change(&self, device: Device, key: &Key, position: u64) -> bool {
        match key {
            Key::Inode(file) | Key::Entry(file, _) | Key::Lock(file) | Key::Times(file) => {
                self.may_write(device, file.principal, position)
            }
            // Of a device that never was, nothing is held: else one entry could name thousands, and everybody would
            // look for what they hold.
            Key::Hold(file, _, of) => {
                let is_known = self.devices.get(of);
                is_known.is_some_and(|row| row.member.since <= position)
                    && self.may_write(device, file.principal, position)
            }
            Key::Fold(principal) => self.may_write(device, *principal, position),
            Key::Role(group, _) => {
                let of_group = self.role(device, *group, position) == Some(Role::Admin);
                of_group || self.is_admin(device, position)
            }
            Key::Device(_)
            | Key::Principal(_)
            | Key::Accepted(_)
            | Key::Pin(_)
            | Key::Retention => self.is_admin(device, position),
        }
    }

    /// Whether the author of an entry at this position may make the decision.
    pub fn may_decide(&self, device: Device, decision: &Decision, position: u64) -> bool {
        self.may_change(device, &decision.key(), position)
    }

    /// Carries out the decisions of an entry's author that the entry attests. For each entry of the log in order,
    /// before [`Members::propose`]. Needs no body.
    pub fn take_effect(&mut self, written: &Written) -> Vec<Decided> {
        let attests = written.attests();
        let due =
            |late: &Late| late.written.device == written.device && late.written.position < attests;
        let (now, later) = std::mem::take(&mut self.late).into_iter().partition(due);
        self.late = later;
        let since = written.position.saturating_add(1);
        let decide = |late: Late| Decided {
            position: late.written.position,
            op: late.op,
            result: self.apply(&late.decision, &late.written, since),
            decision: late.decision,
        };
        now.into_iter().map(decide).collect()
    }

    /// Whether a decision of the device waits for its next entry.
    pub fn waits(&self, device: Device) -> bool {
        self.late.iter().any(|late| late.written.device == device)
    }

    /// Whether [`Members::take_effect`] carries something out for the entry.
    pub fn is_due(&self, written: &Written) -> bool {
        let mut own = self.late.iter().map(|late| &late.written);
        own.any(|late| late.device == written.device && late.position < written.attests())
    }

    /// Takes in the decisions of an entry, which take effect later. For each entry whose outline
    /// [`decides`](Outline::decides). Gives those that lapse because their author has made [`MAX_LATE`] since: position
    /// of the entry, and number of the op.
    pub fn propose(
        &mut self,
        written: &Written,
        outline: &Outline,
        body: &Body,
    ) -> Vec<(u64, usize)> {
        for (number, op) in body.ops().iter().enumerate() {
            let listed = |key: &Key| outline.has(number, key);
            if self.judge(written, op, &listed) != Some(Outcome::Late) {
                continue;
            }
            for decision in op.decisions() {
                self.late.push(Late {
                    written: *written,
                    op: number,
                    decision: decision.clone(),
                });
            }
        }
        let own = |late: &Late| late.written.device == written.device;
        let mut surplus = self.late.iter().filter(|late| own(late)).count();
        surplus = surplus.saturating_sub(MAX_LATE);
        let mut lapsed = Vec::new();
        self.late.retain(|late| {
            let lapses = surplus > 0 && own(late);
            if lapses {
                surplus -= 1;
                lapsed.push((late.written.position, late.op));
            }
            !lapses
        });
        lapsed
    }

    /// What becomes of an op that decides, which has one change and no guards; `None` for another op.
    pub(super) fn judge(
        &self,
        written: &Written,
        op: &Op,
        listed: &dyn Fn(&Key) -> bool,
    ) -> Option<Outcome> {
        let decision = op.decisions().next()?;
        let is_alone = op.changes.len() == 1;
        if !is_alone || !op.guards.is_empty() || !listed(&decision.key()) {
            return Some(Outcome::None(NoEffect::Misformed));
        }
        let may = self.may_decide(written.device, decision, written.position);
        Some(match may {
            true => Outcome::Late,
            false => Outcome::None(NoEffect::NotPermitted),
        })
    }

    /// Forgets how members were before this position. Questions about earlier positions get other answers then.
    pub fn forget_before(&mut self, position: u64) {
        fn cut<T>(steps: &mut Steps<T>, position: u64) {
            let after = steps.partition_point(|(since, _)| *since <= position);
            steps.drain(..after.saturating_sub(1));
        }
        self.roles
            .values_mut()
            .for_each(|steps| cut(steps, position));
        self.accepted
            .values_mut()
            .for_each(|steps| cut(steps, position));
        self.roles
            .retain(|_, steps| !matches!(steps.as_slice(), [(since, None)] if *since <= position));
    }
}
