//! Attaching: from two devices and a key to an engine (PFS 5.3; design `protect.md`, *recover*).
//!
//! Both devices are synced first: data that can be read may not be durable yet. Then the log is read; blocks whose version
//! only the data device can tell are read there; the choices are durable in the log before anything is served, so
//! that a second crash cannot reverse them.

use std::sync::Arc;

use wal::{
    ClaimOptions, Client, Device, DigestKey, Fenced, Key, Log, LogError, OpenOptions, Record,
    Recovery,
};

use crate::anchor::Anchoring;
use crate::core::{BLOCK_BYTES, Core, Limits};
use crate::engine::{CLIENT, Engine, Parts, Watch};
use crate::error::AttachError;
use crate::hosts::Held;
use crate::likeness;
use crate::map::{Map, MapError, Value};
use crate::reading::Reading;
use crate::records::{Adoption, Entry, MAX_ADOPTED};
use crate::replay::{Last, Prior, Replay, choose};
use crate::volume::Cookie;

/// What an attachment needs.
pub struct Attach {
    /// The data device.
    pub data: Arc<dyn Device>,
    /// The device with log and map.
    pub log: Arc<dyn Device>,
    /// The volume's key.
    pub key: Key,
    /// The anchor, if there is one. A log that does not pass through its mark is refused.
    pub anchor: Option<Anchoring>,
    /// Take a position of the log that cannot be read for its end. What lies behind is lost.
    pub cut_at_error: bool,
    /// Attach although many blocks of the data device are not what the log says. What waits in the log is written to it.
    pub accept_changed: bool,
    /// The claim of the host that attaches. Without one, nothing keeps other hosts away from the devices.
    pub claim: Option<ClaimOptions>,
    /// Bounds on memory.
    pub limits: Limits,
    /// Bytes of the map's pages that are kept in memory.
    pub map_cache_bytes: usize,
    /// Told what an operator must know.
    pub watch: Arc<dyn Watch>,
}

/// What recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// How often the device has been attached, this time included.
    pub epoch: u64,
    /// Blocks whose content was only in the log.
    pub from_log: usize,
    /// Blocks of which the data device had to tell which version it has.
    pub judged: usize,
    /// Blocks of which nothing is left that fits: neither device has them. Reads of them fail until they are written.
    pub bad: usize,
    /// Pages of the log that are not what was written. Their blocks are `bad`, unless a newer version is in the log or
    /// the data device has them.
    pub wrong_pages: usize,
    /// Blocks that were compared with what the log says, and those of them that it does not explain. Either the data
    /// device lies, or something wrote to it beside this program.
    pub sampled: usize,
    /// See `sampled`.
    pub changed: usize,
    /// Whether the last session ended in order, or this is the first one.
    pub was_detached: bool,
}

impl Attach {
    /// Recovers, and takes the device for this process.
    ///
    /// # Errors
    /// See [`AttachError`]. Before the log is taken nothing has changed, but for the claims on it.
    pub fn attach(mut self) -> Result<(Engine, Recovered), AttachError> {
        let Some(options) = self.claim.take() else {
            return self.recover(None);
        };
        let lease = wal::claim::claim(Arc::clone(&self.log), &self.key, &options)?;
        let lease = Arc::new(lease);
        self.log = Arc::new(Fenced::new(self.log, Arc::clone(&lease)));
        self.data = Arc::new(Fenced::new(self.data, Arc::clone(&lease)));
        let held = Held::new(Arc::clone(&lease), options.keep);
        let held = held.map_err(AttachError::Threads);
        let attached = held.and_then(|held| self.recover(Some(held)));
        if attached.is_err()
            && let Err(error) = lease.release()
        {
            tracing::warn!(%error, "cannot give back the claim on the log");
        }
        attached
    }

    fn recover(self, held: Option<Held>) -> Result<(Engine, Recovered), AttachError> {
        let synced = self.data.sync();
        synced.map_err(|source| AttachError::Data {
            action: "synced",
            source,
        })?;
        let options = OpenOptions {
            cut_at_error: self.cut_at_error,
            ..OpenOptions::default()
        };
        let mark = self.anchor.as_ref().map(|anchor| anchor.recorded());
        let mut recovery = wal::open(Arc::clone(&self.log), &self.key, mark, options)?;
        let cookie = Cookie::decode(recovery.cookie(CLIENT)).map_err(AttachError::Format)?;
        let shape = cookie.shape;
        if self.data.bytes() != shape.bytes {
            return Err(AttachError::OtherDevice {
                expected: shape.bytes,
                found: self.data.bytes(),
            });
        }
        let map = Map::open(
            Arc::clone(&self.log),
            recovery.area(CLIENT),
            &self.key,
            recovery.volume(),
            shape.blocks(),
            cookie.root,
            self.map_cache_bytes,
        )?;
        let digests = DigestKey::new(&self.key, recovery.volume());
        let (mut replay, last) = replay(&recovery, shape.blocks())?;
        let reading = Reading {
            data: &*self.data,
            digests: &digests,
            map: &map,
            bytes: shape.bytes,
        };
        let likeness = likeness::compare(&reading, &replay)?;
        let (sampled, changed) = (likeness.compared, likeness.wrong);
        if likeness.is_none() {
            return Err(AttachError::OtherContent { sampled });
        }
        if likeness.is_doubtful() && !self.accept_changed {
            return Err(AttachError::ChangedContent { sampled, changed });
        }
        let wrong_pages = recovery.wrong_pages().len();
        replay.lose(recovery.wrong_pages(), |block| reading.digest(block));
        let adoptions = judge(&reading, &replay)?;
        let mut recovered = Recovered {
            epoch: recovery.epoch(),
            judged: adoptions.len(),
            sampled,
            changed,
            wrong_pages,
            was_detached: last.as_ref().is_none_or(|last| *last == Entry::Detached),
            ..Recovered::default()
        };
        if held.as_ref().is_some_and(|held| held.lease().took_over()) {
            recovery.leave_gap();
        }
        let session = recovery.session();
        let log = take(recovery, last.as_ref(), &adoptions)?;
        if let Some(held) = &held {
            held.lease().has_opened(session);
        }
        let replay = with_choices(replay, &adoptions, log.end())?;
        let core = self.apply(&replay, &log, &map, shape.bytes, &mut recovered)?;
        let engine = Engine::new(Parts {
            core,
            log,
            map,
            data: self.data,
            shape,
            digests,
            anchor: self.anchor,
            watch: self.watch,
            held,
        });
        engine.anchor().map_err(AttachError::Engine)?;
        Ok((engine, recovered))
    }

    /// Writes what recovery knows to the places where reads look.
    fn apply(
        &self,
        replay: &Replay,
        log: &Log,
        map: &Map,
        bytes: u64,
        recovered: &mut Recovered,
    ) -> Result<Core, AttachError> {
        let mut core = Core::new(self.limits.within(log.max_frame_bytes()), log.end());
        // Trims first: their blocks have no newer record.
        for trim in replay.trims.iter() {
            let offset = trim.start * BLOCK_BYTES as u64;
            let end = (trim.end * BLOCK_BYTES as u64).min(bytes);
            self.data.zero(offset, end - offset).map_err(not_written)?;
        }
        self.data.sync().map_err(|source| AttachError::Data {
            action: "synced",
            source,
        })?;
        for (block, last) in &replay.blocks {
            match last {
                Last::Redo(redo) => {
                    recovered.from_log += 1;
                    core.recover_redo(*block, redo.lsn, redo.payload, redo.digest);
                }
                Last::Bad => {
                    recovered.bad += 1;
                    self.watch.bad_block(*block, block * BLOCK_BYTES as u64);
                }
                Last::Hash { .. } | Last::Adopted(_) => {}
            }
        }
        let mut lost = |blocks| self.watch.lost_blocks(blocks);
        map.change(&|map| settle(replay, map), &mut lost)?;
        Ok(core)
    }
}

/// Gives the map what the log says about settled blocks.
fn settle(replay: &Replay, map: &Map) -> Result<(), MapError> {
    for trim in replay.trims.iter() {
        map.set_range(trim, Value::Zero)?;
    }
    for (block, last) in &replay.blocks {
        match last {
            Last::Hash { digest, .. } | Last::Adopted(digest) => {
                map.set(*block, Value::Digest(*digest))?;
            }
            Last::Bad => map.set(*block, Value::Bad)?,
            Last::Redo(_) => {}
        }
    }
    Ok(())
}

fn not_written(source: std::io::Error) -> AttachError {
    AttachError::Data {
        action: "written",
        source,
    }
}

/// Replays the records, and returns the last one too.
fn replay(recovery: &Recovery, blocks: u64) -> Result<(Replay, Option<Entry>), AttachError> {
    let mut replay = Replay::default();
    let mut last = None;
    for record in recovery.cursor(CLIENT) {
        let record = record?;
        let pages = record.digests.len();
        let entry = Entry::decode(record.kind, &record.body, pages, blocks);
        let entry = entry.map_err(AttachError::Format)?;
        replay.apply(&entry, record.frame, record.payload, &record.digests)?;
        last = Some(entry);
    }
    Ok((replay, last))
}

/// Takes the log. Recovered comes into the log, unless it is the last record already: where the data device takes nothing
/// the tail does not move, and each attachment would cost a frame of the reserve, until the log is full.
fn take(recovery: Recovery, last: Option<&Entry>, adoptions: &[Adoption]) -> Result<Log, LogError> {
    if adoptions.is_empty() && matches!(last, Some(Entry::Recovered(_))) {
        return recovery.finish_without_frame();
    }
    let records = records(recovery.epoch(), adoptions);
    recovery.finish(&records)
}

/// The choices take effect as any reader of the log will see them.
fn with_choices(
    mut replay: Replay,
    adoptions: &[Adoption],
    end: wal::Lsn,
) -> Result<Replay, AttachError> {
    let choices = Entry::Adopted(adoptions.to_vec());
    replay.apply(&choices, end, end, &[])?;
    Ok(replay)
}

fn records(epoch: u64, adoptions: &[Adoption]) -> Vec<(Client, Record)> {
    let recovered = Entry::Recovered(epoch).record(Vec::new());
    let mut records = vec![(CLIENT, recovered)];
    for some in adoptions.chunks(MAX_ADOPTED) {
        records.push((CLIENT, Entry::Adopted(some.to_vec()).record(Vec::new())));
    }
    records
}

/// Which version the blocks have of which only the data device can tell.
fn judge(reading: &Reading<'_>, replay: &Replay) -> Result<Vec<Adoption>, AttachError> {
    let mut adoptions = Vec::new();
    for (block, digest, prior) in replay.unsettled() {
        let mapped = match prior {
            Prior::Map => reading.mapped(block)?,
            _ => Value::Bad,
        };
        let choice = choose(digest, prior, mapped, reading.digest(block));
        adoptions.push(Adoption { block, choice });
    }
    Ok(adoptions)
}
