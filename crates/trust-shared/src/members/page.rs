//! The members at one position as bytes (docs/formats/shared-local.md): a process that has replayed the log tells
//! another process of the same user. Nobody signs these bytes, and nothing is judged by them but what a person reads.
//!
//! ```text
//! page      = volume [32] | count | device * | count | principal * | count | role * | count | accepted *
//!             | count | pin * | 0, or 1 and retention varint, seconds
//! device    = number varint | key [32] | user [32] | span | 0, or 1 and name bytes    ascending by number
//! principal = id [32] | group u8 | name bytes | span               ascending by id
//! role      = group [32] | user [32] | role u8                     ascending by group and user
//! accepted  = device varint | size varint                          ascending by device
//! pin       = name bytes | size varint                             ascending by name
//! span      = since varint | 0, or 1 and until varint
//! ```

use std::collections::BTreeMap;

use super::{
    DeviceRow, MAX_DEVICES, MAX_PINS, MAX_PRINCIPALS, MAX_ROLES, Members, PrincipalRow, Role, Span,
    at,
};
use crate::decision::{Label, MAX_LABEL_BYTES};
use crate::principal::{Device, Principal};
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::key::PublicKey;

impl Members {
    /// Appends the members at a position. Earlier roles and decisions that wait are left out.
    pub fn encode_page(&self, position: u64, e: &mut Encoder) {
        e.raw(self.volume.as_bytes());
        e.varint(self.devices.len() as u64);
        for (device, row) in &self.devices {
            e.varint(device.0.into());
            e.raw(row.key.as_bytes()).raw(row.user.as_bytes());
            row.member.encode(e);
            match &row.label {
                None => e.u8(0),
                Some(label) => e.u8(1).bytes(label.as_str().as_bytes()),
            };
        }
        e.varint(self.principals.len() as u64);
        for (principal, row) in &self.principals {
            e.raw(principal.as_bytes()).u8(row.is_group.into());
            e.bytes(row.label.as_str().as_bytes());
            row.exists.encode(e);
        }
        let now = |steps| at(steps, position).flatten();
        let roles = || {
            let all = self.roles.iter();
            all.filter_map(|(key, steps)| Some((key, now(steps)?)))
        };
        e.varint(roles().count() as u64);
        for ((group, user), role) in roles() {
            e.raw(group.as_bytes()).raw(user.as_bytes()).u8(role as u8);
        }
        let accepted = || {
            let all = self.accepted.iter();
            all.filter_map(|(device, steps)| Some((device, at(steps, position)?)))
        };
        e.varint(accepted().count() as u64);
        for (device, size) in accepted() {
            e.varint(device.0.into()).varint(size);
        }
        e.varint(self.pins.len() as u64);
        for (label, size) in &self.pins {
            e.bytes(label.as_str().as_bytes()).varint(*size);
        }
        match self.retention_s {
            None => e.u8(0),
            Some(seconds) => e.u8(1).varint(seconds),
        };
    }

    /// Reads what [`Members::encode_page`] wrote. The roles count for all positions.
    ///
    /// # Errors
    /// [`Reject::Malformed`].
    pub fn decode_page(d: &mut Decoder<'_>) -> Result<Members, Reject> {
        let volume = Principal::from_bytes(d.array()?);
        let devices = rows(d, MAX_DEVICES, |d| {
            let number = read_device(d)?;
            let key = PublicKey::from_bytes(d.array()?)?;
            let user = Principal::from_bytes(d.array()?);
            let member = Span::decode(d)?;
            let label = match d.flag()? {
                false => None,
                true => Some(read_label(d)?),
            };
            let row = DeviceRow {
                key,
                user,
                member,
                label,
            };
            Ok((number, row))
        })?;
        let principals = rows(d, MAX_PRINCIPALS, |d| {
            let id = Principal::from_bytes(d.array()?);
            let is_group = d.flag()?;
            let row = PrincipalRow {
                is_group,
                label: read_label(d)?,
                exists: Span::decode(d)?,
            };
            Ok((id, row))
        })?;
        let roles = rows(d, MAX_ROLES, |d| {
            let group = Principal::from_bytes(d.array()?);
            let user = Principal::from_bytes(d.array()?);
            let role = Role::from_byte(d.u8()?).ok_or_else(|| d.bad("an unknown role"))?;
            Ok(((group, user), vec![(0, Some(role))]))
        })?;
        let accepted = rows(d, MAX_DEVICES, |d| {
            let number = read_device(d)?;
            Ok((number, vec![(0, d.varint()?)]))
        })?;
        let pins = rows(d, MAX_PINS, |d| Ok((read_label(d)?, d.varint()?)))?;
        let retention_s = match d.flag()? {
            false => None,
            true => Some(d.varint()?),
        };
        let numbers: BTreeMap<PublicKey, Device> = devices
            .iter()
            .map(|(number, row)| (row.key, *number))
            .collect();
        if numbers.len() != devices.len() {
            return Err(d.bad("two devices of one key"));
        }
        Ok(Members {
            volume,
            numbers,
            devices,
            principals,
            roles,
            accepted,
            pins,
            retention_s,
            late: Vec::new(),
        })
    }
}

impl Span {
    pub(super) fn encode(self, e: &mut Encoder) {
        e.varint(self.since);
        match self.until {
            None => e.u8(0),
            Some(until) => e.u8(1).varint(until),
        };
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<Span, Reject> {
        let since = d.varint()?;
        let until = match d.flag()? {
            false => None,
            true => Some(d.varint()?),
        };
        Ok(Span { since, until })
    }
}

fn read_label(d: &mut Decoder<'_>) -> Result<Label, Reject> {
    let name = d.bytes(MAX_LABEL_BYTES)?;
    let name = std::str::from_utf8(name).map_err(|_| d.bad("a name is not UTF-8"))?;
    Label::new(name)
}

fn read_device(d: &mut Decoder<'_>) -> Result<Device, Reject> {
    let number = d.bounded(u32::MAX.into(), "a device over 32 bits")?;
    Ok(Device(u32::try_from(number).unwrap_or(u32::MAX)))
}

/// Rows in ascending order of their keys.
fn rows<'a, K: Ord, T>(
    d: &mut Decoder<'a>,
    most: usize,
    mut read: impl FnMut(&mut Decoder<'a>) -> Result<(K, T), Reject>,
) -> Result<BTreeMap<K, T>, Reject> {
    let count = d.bounded(most as u64, "too many rows")?;
    let mut rows = BTreeMap::new();
    for _ in 0..count {
        let (key, row) = read(d)?;
        if rows.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return Err(d.bad("rows that do not ascend"));
        }
        rows.insert(key, row);
    }
    Ok(rows)
}
