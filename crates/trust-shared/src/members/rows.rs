//! Members as rows of a checkpoint, and members from such rows (docs/formats/shared.md, *Checkpoint*).
//!
//! The rows say how members are at the end of a log, not how they were before. Of users without a role that had one
//! there is a row too: it counts among the roles that a volume may have.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{
    DeviceRow, Late, MAX_DEVICES, MAX_LATE, MAX_PINS, MAX_PRINCIPALS, MAX_ROLES, Members,
    PrincipalRow, Span, at,
};
use crate::change::Change;
use crate::decision::{Label, MAX_LABEL_BYTES, MIN_RETENTION_S, Role};
use crate::ops::{Body, Op};
use crate::outcome::Written;
use crate::principal::{Device, Principal};
use crate::row::Row;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::key::PublicKey;

const WHAT: &str = "row of a checkpoint";
/// A position that the log never reaches: the members there are those after all entries.
const END: u64 = u64::MAX;

impl Span {
    /// A span of a log of `size` leaves.
    fn within(d: &mut Decoder<'_>, size: u64) -> Result<Span, Reject> {
        let span = Span::decode(d)?;
        if span.since > size || span.until.is_some_and(|until| until > size) {
            return Err(d.bad("a position that the log does not have"));
        }
        if span.until.is_some_and(|until| until < span.since) {
            return Err(d.bad("an end before its beginning"));
        }
        Ok(span)
    }
}

impl Members {
    /// The rows about members, in the order of their keys. Snapshots, the retention and decisions that wait are not among
    /// them: their keys come after those of files ([`Members::last_rows`]).
    pub fn rows(&self) -> Vec<(Row, Vec<u8>)> {
        let devices = self.devices.iter().map(|(device, row)| {
            let mut e = Encoder::new();
            e.raw(row.key.as_bytes()).raw(row.user.as_bytes());
            row.member.encode(&mut e);
            // A device without a name has the row that it had before there were names.
            if let Some(label) = &row.label {
                e.bytes(label.as_str().as_bytes());
            }
            (Row::Device(device.0), e.finish())
        });
        let principals = self.principals.iter().map(|(principal, row)| {
            let mut e = Encoder::new();
            e.u8(u8::from(row.is_group));
            row.exists.encode(&mut e);
            e.bytes(row.label.as_str().as_bytes());
            (Row::Principal(*principal.as_bytes()), e.finish())
        });
        let roles = self.roles.iter().map(|((group, user), steps)| {
            let role = at(steps, END).flatten();
            let value = vec![role.map_or(0, |role| role as u8)];
            (Row::Role(*group.as_bytes(), *user.as_bytes()), value)
        });
        let accepted = self.accepted.iter().map(|(device, steps)| {
            let mut e = Encoder::new();
            e.varint(at(steps, END).unwrap_or(0));
            (Row::Accepted(device.0), e.finish())
        });
        let all = devices.chain(principals).chain(roles).chain(accepted);
        all.collect()
    }

    /// The rows of snapshots, of the retention, and of decisions that wait for their authors' next entries.
    ///
    /// # Errors
    /// [`Reject::Malformed`] never: each decision was in a body.
    pub fn last_rows(&self) -> Result<Vec<(Row, Vec<u8>)>, Reject> {
        let number = |number: u64| {
            let mut e = Encoder::new();
            e.varint(number);
            e.finish()
        };
        let pins = self.pins.iter().map(|(label, size)| {
            let label = Bytes::copy_from_slice(label.as_str().as_bytes());
            (Row::Pin(label), number(*size))
        });
        let retention = self.retention_s.into_iter();
        let retention = retention.map(|seconds| (Row::Retention, number(seconds)));
        let row = |late: &Late| {
            let mut e = Encoder::new();
            late.written.device.encode(&mut e);
            e.varint(late.written.seen).varint(late.written.kept);
            let decide = Change::Decide(late.decision.clone());
            let body = Body::new(vec![Op::new(Vec::new(), vec![decide])])?;
            e.raw(&body.encode());
            // An entry has fewer ops.
            let op = u32::try_from(late.op).unwrap_or(u32::MAX);
            Ok((Row::Late(late.written.position, op), e.finish()))
        };
        let late: Result<BTreeMap<Row, Vec<u8>>, Reject> = self.late.iter().map(row).collect();
        Ok(pins.chain(retention).chain(late?).collect())
    }
}

/// Members that rows of a checkpoint give.
#[derive(Debug, Clone)]
pub struct MemberRows {
    members: Members,
    size: u64,
}

impl MemberRows {
    /// No rows yet of a log of `size` leaves. `volume` is the group that owns the root directory.
    pub fn new(volume: Principal, size: u64) -> MemberRows {
        let members = Members {
            volume,
            devices: BTreeMap::new(),
            numbers: BTreeMap::new(),
            principals: BTreeMap::new(),
            roles: BTreeMap::new(),
            accepted: BTreeMap::new(),
            pins: BTreeMap::new(),
            retention_s: None,
            late: Vec::new(),
        };
        MemberRows { members, size }
    }

    /// Takes the next row, in the order of keys. Gives whether it is about members.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for a value that is not the one encoding of a value that the row can have.
    pub fn take(&mut self, row: &Row, value: &[u8]) -> Result<bool, Reject> {
        let mut d = Decoder::new(value, WHAT);
        let members = &mut self.members;
        match row {
            Row::Device(number) => {
                let row = DeviceRow {
                    key: PublicKey::from_bytes(d.array()?)?,
                    user: Principal::from_bytes(d.array()?),
                    member: Span::within(&mut d, self.size)?,
                    label: match d.remaining() {
                        0 => None,
                        _ => Some(label(&mut d)?),
                    },
                };
                if members.numbers.insert(row.key, Device(*number)).is_some() {
                    return Err(d.bad("two devices with one key"));
                }
                members.devices.insert(Device(*number), row);
            }
            Row::Principal(principal) => {
                let is_group = d.flag()?;
                let exists = Span::within(&mut d, self.size)?;
                let row = PrincipalRow {
                    is_group,
                    exists,
                    label: label(&mut d)?,
                };
                members
                    .principals
                    .insert(Principal::from_bytes(*principal), row);
            }
            Row::Role(group, user) => {
                let role = match d.u8()? {
                    0 => None,
                    byte => Some(Role::from_byte(byte).ok_or_else(|| d.bad("an unknown role"))?),
                };
                let of = (Principal::from_bytes(*group), Principal::from_bytes(*user));
                members.roles.insert(of, vec![(0, role)]);
            }
            Row::Accepted(number) => {
                let size = d.bounded(self.size, "a position that the log does not have")?;
                members.accepted.insert(Device(*number), vec![(0, size)]);
            }
            Row::Pin(name) => {
                let name = std::str::from_utf8(name).map_err(|_| d.bad("a name is not UTF-8"))?;
                let size = d.bounded(self.size, "a position that the log does not have")?;
                if size == 0 {
                    return Err(d.bad("a snapshot of nothing"));
                }
                members.pins.insert(Label::new(name)?, size);
            }
            Row::Retention => {
                let seconds = d.varint()?;
                if seconds < MIN_RETENTION_S {
                    return Err(d.bad("a retention of less than a day"));
                }
                members.retention_s = Some(seconds);
            }
            Row::Late(position, op) => {
                let late = late(*position, *op, &mut d, self.size)?;
                members.late.push(late);
                return Ok(true);
            }
            _ => return Ok(false),
        }
        d.finish()?;
        Ok(true)
    }

    /// The members, if the rows fit together.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for rows that no log gives.
    pub fn finish(self) -> Result<Members, Reject> {
        let bad = |why| Err(Reject::Malformed { what: WHAT, why });
        let members = self.members;
        let is = |principal: &Principal, is_group: bool| {
            let row = members.principals.get(principal);
            row.is_some_and(|row| row.is_group == is_group)
        };
        if !is(&members.volume, true) {
            return bad("no group that owns the root directory");
        }
        if !members.devices.values().all(|row| is(&row.user, false)) {
            return bad("a device of nobody");
        }
        // Who never had a role in a group can be said to have none.
        let has = |steps| at(steps, END).flatten().is_some();
        let mut roles = members.roles.iter();
        if !roles.all(|((group, user), steps)| is(group, true) && (!has(steps) || is(user, false)))
        {
            return bad("a role of nobody, or in no group");
        }
        let known = |device: &Device| members.devices.contains_key(device);
        let authors = members.late.iter().map(|late| &late.written.device);
        if !members.accepted.keys().chain(authors).all(known) {
            return bad("an unknown device");
        }
        let many = members.devices.len() > MAX_DEVICES
            || members.principals.len() > MAX_PRINCIPALS
            || members.roles.len() > MAX_ROLES
            || members.pins.len() > MAX_PINS;
        let mut counts: BTreeMap<Device, usize> = BTreeMap::new();
        for late in &members.late {
            let count = counts.entry(late.written.device).or_default();
            *count = count.saturating_add(1);
        }
        if many || counts.values().any(|count| *count > MAX_LATE) {
            return bad("more members than a volume may have");
        }
        let labels: Vec<&Label> = members
            .principals
            .values()
            .filter(|row| row.exists.until.is_none())
            .map(|row| &row.label)
            .collect();
        if labels.iter().collect::<BTreeSet<_>>().len() != labels.len() {
            return bad("two principals of one name");
        }
        Ok(members)
    }
}

fn label(d: &mut Decoder<'_>) -> Result<Label, Reject> {
    let label = d.bytes(MAX_LABEL_BYTES)?;
    let label = std::str::from_utf8(label).map_err(|_| d.bad("a name is not UTF-8"))?;
    Label::new(label)
}

fn late(position: u64, op: u32, d: &mut Decoder<'_>, size: u64) -> Result<Late, Reject> {
    let device = Device::decode(d)?;
    let (seen, kept) = (d.varint()?, d.varint()?);
    if position >= size || seen > position || kept > seen {
        return Err(d.bad("a position that the log does not have"));
    }
    let body = Body::decode(d.raw(d.remaining())?)?;
    let [only] = body.ops() else {
        return Err(d.bad("not one op"));
    };
    let mut decisions = only.decisions();
    let decision = decisions.next().filter(|_| only.changes.len() == 1);
    let Some(decision) = decision.filter(|_| only.guards.is_empty()) else {
        return Err(d.bad("an op that is no decision"));
    };
    let written = Written {
        position,
        device,
        seen,
        kept,
    };
    Ok(Late {
        written,
        op: op as usize,
        decision: decision.clone(),
    })
}
