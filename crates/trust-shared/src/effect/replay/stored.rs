//! A replay as bytes, for a device that starts again: all that it has, also what nobody has judged yet. What is read is
//! the same replay, and gives the same answers.
//!
//! ```text
//! replay    = from varint | size varint | entries varint | entry * entries | keys varint | key * keys |
//!             directories varint | directory * directories | folds varint | fold * folds | (1 | row)* | 0
//! entry     = position - position before varint | device varint | position - seen, wrapped varint |
//!             position - kept, wrapped varint | ops varint | outcome u8 * ops
//! key       = key of a row bytes | versions varint | version * versions
//! version   = op - op before varint | (last + 2, 0: not known, 1: none) * 4 + made varint
//! directory = key of a row bytes | steps varint | step * steps
//! step      = op - op before varint | added i64 | 0, or 1 and sum i64
//! fold      = op varint | fold
//! row       = key bytes | value bytes           locks, last folds, and changes from before the first entry that is kept
//! ```
//!
//! Keys, rows and folds have the bytes that they have in checkpoints. It is written in pieces, each whole, so that
//! neither side has all of it in memory.

use super::checkpoint::{
    value_of_entry, value_of_fold, value_of_hold, value_of_inode, value_of_lock, value_of_times,
};
use super::{Base, Last, MAX_KEPT_OPS, Replay, Rows, Step, Version, Volume};
use crate::decision::Label;
use crate::hold::Family;
use crate::itable::Fold;
use crate::key::Key;
use crate::outcome::{Outcome, Written};
use crate::principal::{Device, Name, Principal};
use crate::row::Row;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;

/// Takes the pieces of something long, in order.
pub trait Sink {
    /// Takes the next piece.
    fn put(&mut self, write: impl FnOnce(&mut Encoder) -> &mut Encoder);
}

/// Gives the pieces again.
pub trait Source {
    /// Reads the next piece.
    ///
    /// # Errors
    /// What `read` says; [`Reject::Malformed`] when there are no more.
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, Reject>,
    ) -> Result<T, Reject>;
}

/// Versions, steps or outcomes in a piece.
const PART: usize = 1024;
/// What a version may have made of its value.
const MADE: u64 = 4;
/// Longest key of a row, and longest value.
const MAX_ROW_BYTES: usize = 4096;

impl Replay {
    /// Gives all of it.
    pub fn store(&self, to: &mut impl Sink) {
        to.put(|e| e.varint(self.from).varint(self.size));
        self.store_entries(to);
        to.put(|e| e.varint(self.keys.len() as u64));
        for (key, versions) in &self.keys {
            to.put(|e| e.bytes(&row_of(key).encode()).varint(versions.len() as u64));
            let mut before = 0;
            for part in versions.chunks(PART) {
                to.put(|e| {
                    part.iter()
                        .for_each(|one| store_version(one, &mut before, e));
                    e
                });
            }
        }
        to.put(|e| e.varint(self.directories.len() as u64));
        for (directory, steps) in &self.directories {
            let key = Row::Inode((*directory).into()).encode();
            to.put(|e| e.bytes(&key).varint(steps.len() as u64));
            let mut before = 0;
            for part in steps.chunks(PART) {
                to.put(|e| {
                    part.iter().for_each(|one| store_step(one, &mut before, e));
                    e
                });
            }
        }
        to.put(|e| e.varint(self.folds.len() as u64));
        for (op, fold) in &self.folds {
            to.put(|e| {
                e.varint((*op).into());
                fold.encode(e);
                e
            });
        }
        self.store_base(to);
    }

    fn store_entries(&self, to: &mut impl Sink) {
        to.put(|e| e.varint(self.rows.len() as u64));
        let mut before = 0;
        for index in 0..self.rows.len() {
            let Some(row) = self.rows.get(index) else {
                break;
            };
            let end = self.rows.get(index.saturating_add(1));
            let end = end.map_or(self.kept_ops() as u32, |next| next.first_op);
            to.put(|e| {
                let at = row.written.position;
                e.varint(at.wrapping_sub(before));
                row.written.device.encode(e);
                e.varint(at.wrapping_sub(row.written.seen));
                e.varint(at.wrapping_sub(row.written.kept));
                e.varint(end.saturating_sub(row.first_op).into());
                for op in row.first_op..end {
                    e.u8(Outcome::to_byte(self.rows.outcome(op)));
                }
                before = at;
                e
            });
        }
    }

    fn store_base(&self, to: &mut impl Sink) {
        let mut put = |row: &Row, value: &[u8]| {
            to.put(|e| e.u8(1).bytes(&row.encode()).bytes(value));
        };
        for (file, lock) in &self.old_locks {
            put(&Row::Lock((*file).into()), &value_of_lock(lock));
        }
        for ((file, family, device), hold) in &self.old_holds {
            let row = Row::Hold((*file).into(), family.to_byte(), device.0);
            put(&row, &value_of_hold(hold));
        }
        for (principal, fold) in &self.old_folds {
            put(&Row::Fold(*principal.as_bytes()), &value_of_fold(fold));
        }
        for (file, (at, kept)) in &self.base.inodes {
            let row = Row::Inode((*file).into());
            // What came out of a row fits into one.
            let (value, _) = value_of_inode(&row, *at, kept, &self.volume.hasher);
            put(&row, &value);
        }
        for ((file, name), (at, target)) in &self.base.entries {
            let name = bytes::Bytes::copy_from_slice(name.as_bytes());
            let row = Row::Entry((*file).into(), name);
            put(&row, &value_of_entry(*at, target.as_ref()));
        }
        for (file, all) in &self.base.added {
            for (at, added) in all {
                put(&Row::Added((*file).into(), *at), &added.to_le_bytes());
            }
        }
        for (file, (at, times)) in &self.base.times {
            put(&Row::Times((*file).into()), &value_of_times(*at, times));
        }
        to.put(|e| e.u8(0));
    }

    /// Reads what [`Replay::store`] gave.
    ///
    /// # Errors
    /// [`Reject`] for what no replay gives. Values are not verified again.
    pub fn restore(volume: Volume, from: &mut impl Source) -> Result<Replay, Reject> {
        let mut replay = Replay::new(volume);
        (replay.from, replay.size) = from.take(|d| {
            let size = (d.varint()?, d.varint()?);
            ordered(size.0 <= size.1, d).map(|()| size)
        })?;
        replay.rows = restore_entries(replay.size, from)?;
        let ops = replay.kept_ops() as u32;
        for _ in 0..from.take(|d| d.bounded(MAX_KEPT_OPS as u64, "too many keys"))? {
            let (key, versions) = restore_list(ops, from, restore_version)?;
            let key = key_of(key)?;
            replay.keys.insert(key, versions);
        }
        for _ in 0..from.take(|d| d.bounded(MAX_KEPT_OPS as u64, "too many directories"))? {
            let (key, steps) = restore_list(ops, from, restore_step)?;
            let Row::Inode(file) = key else {
                return Err(malformed("a directory that is none"));
            };
            replay.directories.insert(file.into(), steps);
        }
        for _ in 0..from.take(|d| d.bounded(ops.into(), "too many folds"))? {
            let (op, fold) = from.take(|d| Ok((op(d, ops)?, Fold::decode(d)?)))?;
            replay.folds.insert(op, fold);
        }
        replay.restore_base(from)?;
        Ok(replay)
    }

    fn restore_base(&mut self, from: &mut impl Source) -> Result<(), Reject> {
        let (size, mut base) = (self.size, Base::default());
        while from.take(|d| {
            if !d.flag()? {
                return Ok(false);
            }
            let row = Row::decode(d.bytes(MAX_ROW_BYTES)?)?;
            match base.take(&row, d.bytes(MAX_ROW_BYTES)?, size)? {
                true => Ok(true),
                false => Err(d.bad("a row that is not about files")),
            }
        })? {}
        self.old_folds = std::mem::take(&mut base.folds);
        self.old_locks = std::mem::take(&mut base.locks);
        self.old_holds = std::mem::take(&mut base.holds);
        self.base = base;
        Ok(())
    }
}

fn restore_entries(size: u64, from: &mut impl Source) -> Result<Rows, Reject> {
    let mut rows = Rows::default();
    let mut before: Option<u64> = None;
    for _ in 0..from.take(|d| d.bounded(size, "too many entries"))? {
        from.take(|d| {
            let position = before.unwrap_or(0).wrapping_add(d.varint()?);
            ordered(
                position < size && before.is_none_or(|before| before < position),
                d,
            )?;
            let device = Device::decode(d)?;
            let seen = position.wrapping_sub(d.varint()?);
            let kept = position.wrapping_sub(d.varint()?);
            let written = Written {
                position,
                device,
                seen,
                kept,
            };
            let room = MAX_KEPT_OPS.saturating_sub(rows.ops()) as u64;
            let ops = d.bounded(room, "too many ops")?;
            if !rows.push(&written) {
                return Err(d.bad("entries too far from one another"));
            }
            for byte in d.raw(ops as usize)? {
                let outcome = Outcome::from_byte(*byte);
                rows.push_op(outcome.ok_or_else(|| d.bad("an unknown outcome"))?);
            }
            before = Some(position);
            Ok(())
        })?;
    }
    Ok(rows)
}

/// Reads a key and a list of items about ascending ops.
fn restore_list<T>(
    ops: u32,
    from: &mut impl Source,
    read: impl Fn(u32, &mut Decoder<'_>) -> Result<T, Reject>,
) -> Result<(Row, Vec<T>), Reject> {
    let (key, count) = from.take(|d| {
        let key = Row::decode(d.bytes(MAX_ROW_BYTES)?)?;
        Ok((key, d.bounded(ops.into(), "too many items")? as usize))
    })?;
    let mut items = Vec::with_capacity(count);
    let mut before: Option<u32> = None;
    while items.len() < count {
        let part = PART.min(count - items.len());
        from.take(|d| {
            for _ in 0..part {
                let op = before.unwrap_or(0).saturating_add(op(d, ops)?);
                ordered(op < ops && before.is_none_or(|before| before < op), d)?;
                items.push(read(op, d)?);
                before = Some(op);
            }
            Ok(())
        })?;
    }
    Ok((key, items))
}

fn store_version(version: &Version, before: &mut u32, e: &mut Encoder) {
    e.varint(version.op.wrapping_sub(*before).into());
    let last = match version.last() {
        Last::UNKNOWN => 0,
        Last::NONE => 1,
        Last(index) => u64::from(index).saturating_add(2),
    };
    e.varint(
        last.saturating_mul(MADE)
            .saturating_add(version.made() as u64),
    );
    *before = version.op;
}

fn restore_version(op: u32, d: &mut Decoder<'_>) -> Result<Version, Reject> {
    let state = d.varint()?;
    let mut version = Version::new(op);
    version.set_last(match state / MADE {
        0 => Last::UNKNOWN,
        1 => Last::NONE,
        index => Last(
            u32::try_from(index - 2)
                .ok()
                .filter(|index| (*index as usize) < MAX_KEPT_OPS)
                .ok_or_else(|| d.bad("a version that is none"))?,
        ),
    });
    version.set_made(match state % MADE {
        0 => super::Made::Nothing,
        1 => super::Made::Put,
        2 => super::Made::Gone,
        _ => super::Made::Passed,
    });
    Ok(version)
}

fn store_step(step: &Step, before: &mut u32, e: &mut Encoder) {
    e.varint(step.op.wrapping_sub(*before).into());
    e.raw(&step.added.to_le_bytes());
    e.u8(u8::from(step.sum.is_some()));
    if let Some(sum) = step.sum {
        e.raw(&sum.to_le_bytes());
    }
    *before = step.op;
}

fn restore_step(op: u32, d: &mut Decoder<'_>) -> Result<Step, Reject> {
    let added = i64::from_le_bytes(d.array()?);
    let sum = match d.flag()? {
        true => Some(i64::from_le_bytes(d.array()?)),
        false => None,
    };
    Ok(Step { op, added, sum })
}

/// An op, or a number of ops.
fn op(d: &mut Decoder<'_>, ops: u32) -> Result<u32, Reject> {
    Ok(d.bounded(ops.into(), "an op that is none")? as u32)
}

fn ordered(is_so: bool, d: &Decoder<'_>) -> Result<(), Reject> {
    match is_so {
        true => Ok(()),
        false => Err(d.bad("out of order")),
    }
}

fn malformed(why: &'static str) -> Reject {
    let what = "stored replay";
    Reject::Malformed { what, why }
}

/// A key has the bytes of the row that a checkpoint has for it.
fn row_of(key: &Key) -> Row {
    match key {
        Key::Inode(file) => Row::Inode((*file).into()),
        Key::Entry(file, name) => Row::Entry(
            (*file).into(),
            bytes::Bytes::copy_from_slice(name.as_bytes()),
        ),
        Key::Lock(file) => Row::Lock((*file).into()),
        Key::Fold(principal) => Row::Fold(*principal.as_bytes()),
        Key::Device(device) => Row::Device(device.0),
        Key::Principal(principal) => Row::Principal(*principal.as_bytes()),
        Key::Role(group, user) => Row::Role(*group.as_bytes(), *user.as_bytes()),
        Key::Accepted(device) => Row::Accepted(device.0),
        Key::Times(directory) => Row::Times((*directory).into()),
        Key::Pin(label) => Row::Pin(bytes::Bytes::copy_from_slice(label.as_str().as_bytes())),
        Key::Retention => Row::Retention,
        Key::Hold(file, family, device) => Row::Hold((*file).into(), family.to_byte(), device.0),
    }
}

fn key_of(row: Row) -> Result<Key, Reject> {
    let principal = Principal::from_bytes;
    Ok(match row {
        Row::Inode(file) => Key::Inode(file.into()),
        Row::Entry(file, name) => Key::Entry(file.into(), Name::new(&name)?),
        Row::Lock(file) => Key::Lock(file.into()),
        Row::Fold(of) => Key::Fold(principal(of)),
        Row::Device(number) => Key::Device(Device(number)),
        Row::Principal(of) => Key::Principal(principal(of)),
        Row::Role(group, user) => Key::Role(principal(group), principal(user)),
        Row::Accepted(number) => Key::Accepted(Device(number)),
        Row::Pin(name) => {
            let name = std::str::from_utf8(&name).map_err(|_| malformed("a name is not UTF-8"))?;
            Key::Pin(Label::new(name)?)
        }
        Row::Retention => Key::Retention,
        Row::Times(directory) => Key::Times(directory.into()),
        Row::Hold(file, family, device) => {
            let family = Family::from_byte(family);
            let family = family.ok_or_else(|| malformed("an unknown family of locks"))?;
            Key::Hold(file.into(), family, Device(device))
        }
        _ => return Err(malformed("a key that no op has")),
    })
}
