//! Enrolment: a log for a data device that is honest and unused meanwhile (PFS, section 5.1: adopting an existing file
//! system). The data device is read once and not changed.
//!
//! The map is written while the device is read; the log's superblock comes last, so that a half-enrolled device is
//! no log. How far the work is lies beside the map (`progress`), so that it goes on after a crash. Memory: four MiB for
//! each thread, a cache of leaves, and the map's interior pages.
//!
//! | module | what lives there |
//! |---|---|
//! | `progress` | how far an enrolment is, on the log's device |
//! | `reading` | reads and digests the data device |
//! | `source` | what a data device has besides its bytes: holes, the time of its last change |
//! | `error` | [`EnrolError`] |

mod error;
mod progress;
mod reading;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wal::{Device, DigestKey, Geometry, Key, Layout, LogError, VolumeId};

use crate::core::BLOCK_BYTES;
use crate::engine::CLIENT;
use crate::map::{Map, Root, Value};
use crate::volume::{Cookie, Shape};

use progress::{Place, Record};
use reading::{Chunk, Reading};

pub use error::EnrolError;
pub use source::Source;

/// Memory for leaves: they are written in order, and none is read again.
const CACHE_BYTES: usize = 4 << 20;
/// Bytes of the log's device, from its start, that must be zeros if nobody allows overwriting.
const LOOK_BYTES: usize = 1 << 20;

/// An enrolment.
pub struct Enrol<'a> {
    /// The data device. Nobody may write to it before the enrolment has ended, over all its runs.
    pub data: &'a dyn Source,
    /// The device for log and map.
    pub log: Arc<dyn Device>,
    /// Length and sectors of the data device.
    pub shape: Shape,
    /// Bytes of the log's ring.
    pub ring_bytes: u64,
    /// The volume that is made, or the one of [`Unfinished`].
    pub volume: VolumeId,
    /// Its key.
    pub key: &'a Key,
    /// Its key slots, kept for the caller.
    pub slots: &'a [u8],
    /// Overwrite what is on the log's device. An unfinished enrolment is begun anew.
    pub overwrite: bool,
    /// Threads that read and digest.
    pub threads: usize,
    /// So much is read again after a crash, at most.
    pub checkpoint_bytes: u64,
    /// Set by the caller to end the run early; the next one goes on.
    pub stop: &'a AtomicBool,
}

/// Work that is done, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The log's device is filled with zeros.
    Preparing {
        /// Bytes of it.
        done: u64,
        /// Bytes that the log needs.
        all: u64,
    },
    /// The data device is read.
    Reading {
        /// Bytes of it, holes included.
        done: u64,
        /// Its length.
        all: u64,
    },
}

/// What was enrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enrolled {
    /// Blocks of the data device.
    pub blocks: u64,
    /// Of those that this run has read or skipped, the ones that are zero.
    pub zero_blocks: u64,
    /// Bytes of the data device that earlier runs had done.
    pub resumed_at: u64,
}

/// An enrolment that has not ended. Nothing of this is authentic: the key that opens the slots is proved by
/// [`Enrol::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The volume that is being made.
    pub volume: VolumeId,
    /// The key slots that its first run was given.
    pub slots: Vec<u8>,
    /// Bytes of the ring that the first run was given.
    pub ring_bytes: u64,
    /// Bytes of the data device that are done.
    pub done: u64,
}

/// What lies on a device that is to become a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros, as far as one looks.
    Nothing,
    /// The log of a volume.
    Log(VolumeId),
    /// Something else.
    Data,
    /// An enrolment of a data device of this length, to go on with.
    Unfinished(Unfinished),
}

/// Sizes of a log for a data device.
///
/// # Errors
/// [`EnrolError::Shape`] or [`EnrolError::Log`] if no log can have this size.
pub fn plan(shape: Shape, ring_bytes: u64) -> Result<(Geometry, Layout), EnrolError> {
    let sector = u64::from(shape.sector_bytes);
    let is_whole = matches!(sector, 512 | 4096) && shape.bytes.is_multiple_of(sector);
    let map = Map::area_bytes(shape.blocks()).filter(|_| is_whole);
    let map = map.ok_or(EnrolError::Shape { bytes: shape.bytes })?;
    let geometry = Geometry {
        ring_bytes,
        areas: vec![(CLIENT, map + progress::REGION_BYTES)],
    };
    let layout = Layout::new(&geometry)?;
    Ok((geometry, layout))
}

/// Looks what would be overwritten on the log's device, or what there is to go on with. Writes nothing.
///
/// # Errors
/// The device cannot be read, or no log can have this size.
pub fn look(log: &dyn Device, shape: Shape) -> Result<Found, EnrolError> {
    let (_, layout) = plan(shape, wal::MIN_RING_BYTES)?;
    if let Some(record) = Place::new(&layout).newest(log, None)?
        && record.shape == shape
    {
        return Ok(Found::Unfinished(Unfinished {
            done: record.done_bytes(),
            volume: record.volume,
            slots: record.slots,
            ring_bytes: record.ring_bytes,
        }));
    }
    match wal::key_slots(log) {
        Ok((volume, _)) => return Ok(Found::Log(volume)),
        Err(LogError::NotALog) => {}
        Err(LogError::Superblock { .. }) => return Ok(Found::Data),
        Err(error) => return Err(error.into()),
    }
    let mut start = wal::Buffer::zeroed(LOOK_BYTES.min(log.bytes() as usize));
    log.read(0, &mut start).map_err(EnrolError::log_read)?;
    Ok(match start.iter().all(|byte| *byte == 0) {
        true => Found::Nothing,
        false => Found::Data,
    })
}

impl Enrol<'_> {
    /// Looks whether [`run`](Enrol::run) can begin, and writes nothing: a dry run. Tells what is on the log's device.
    ///
    /// # Errors
    /// See [`EnrolError`].
    pub fn check(&self) -> Result<Found, EnrolError> {
        let (_, layout) = plan(self.shape, self.ring_bytes)?;
        if self.data.bytes() != self.shape.bytes {
            return Err(EnrolError::Shape {
                bytes: self.data.bytes(),
            });
        }
        let (needed, found) = (layout.device_bytes(), self.log.bytes());
        if found < needed {
            return Err(EnrolError::TooSmall { needed, found });
        }
        let found = look(&*self.log, self.shape)?;
        match &found {
            _ if self.overwrite => {}
            Found::Nothing => {}
            Found::Unfinished(unfinished) if unfinished.volume == self.volume => {
                if unfinished.ring_bytes != self.ring_bytes {
                    return Err(EnrolError::OtherRing {
                        ring_bytes: unfinished.ring_bytes,
                    });
                }
            }
            _ => return Err(EnrolError::Occupied { found }),
        }
        Ok(found)
    }

    /// Enrols, or goes on with an enrolment. Afterwards the log can be attached. What is told to `tell` only grows.
    ///
    /// # Errors
    /// See [`EnrolError`]. The same call goes on later.
    pub fn run(&self, tell: &mut dyn FnMut(Progress)) -> Result<Enrolled, EnrolError> {
        let found = self.check()?;
        let (geometry, layout) = plan(self.shape, self.ring_bytes)?;
        let place = Place::new(&layout);
        self.data.sync().map_err(EnrolError::data(0))?;
        let record = match found {
            Found::Unfinished(_) if !self.overwrite => {
                let record = place.newest(&*self.log, Some((self.key, self.volume)))?;
                let record = record.ok_or(EnrolError::WrongKey {
                    volume: self.volume,
                })?;
                if self.is_log()? {
                    place.clear(&*self.log)?;
                    return Ok(self.enrolled(self.shape.bytes, 0));
                }
                self.refuse_changed(&record)?;
                record
            }
            _ => self.begin(&geometry, &place, tell)?,
        };
        self.go_on(record, &geometry, &layout, tell)
    }

    /// Whether an earlier run ended after the log was formatted.
    fn is_log(&self) -> Result<bool, EnrolError> {
        let options = wal::OpenOptions {
            volume: Some(self.volume),
            ..wal::OpenOptions::default()
        };
        match wal::open(Arc::clone(&self.log), self.key, None, options) {
            Ok(_) => Ok(true),
            Err(LogError::NotALog | LogError::Superblock { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn begin(
        &self,
        geometry: &Geometry,
        place: &Place,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Record, EnrolError> {
        // An older record would be believed after a crash that leaves this work half done.
        place.clear(&*self.log)?;
        let all = place.layout_bytes;
        wal::prepare(&*self.log, geometry, &mut |done| {
            tell(Progress::Preparing { done, all });
        })?;
        let mut record = Record {
            volume: self.volume,
            shape: self.shape,
            ring_bytes: self.ring_bytes,
            generation: 0,
            done: 0,
            root: Root::ZERO,
            changed: self.data.changed().map_err(EnrolError::data(0))?,
            slots: self.slots.to_vec(),
        };
        place.store(&*self.log, self.key, &mut record)?;
        Ok(record)
    }

    fn go_on(
        &self,
        record: Record,
        geometry: &Geometry,
        layout: &Layout,
        tell: &mut dyn FnMut(Progress),
    ) -> Result<Enrolled, EnrolError> {
        let resumed_at = record.done_bytes();
        let place = Place::new(layout);
        let map = Map::open(
            Arc::clone(&self.log),
            layout.area(CLIENT),
            self.key,
            self.volume,
            self.shape.blocks(),
            record.root,
            CACHE_BYTES,
        )?;
        let digests = DigestKey::new(self.key, self.volume);
        let reading = Reading {
            data: self.data,
            digests: &digests,
            shape: self.shape,
            threads: self.threads,
        };
        let mut work = Work {
            enrol: self,
            place: &place,
            map,
            kept: record.done,
            record,
            zero_blocks: 0,
        };
        reading.run(work.record.done, &mut |chunk| {
            work.take(chunk)?;
            let done = work.record.done_bytes();
            let all = self.shape.bytes;
            tell(Progress::Reading { done, all });
            Ok(())
        })?;
        work.checkpoint()?;
        self.refuse_changed(&work.record)?;
        let cookie = Cookie {
            shape: self.shape,
            root: work.record.root,
        };
        wal::format(
            &*self.log,
            self.key,
            self.volume,
            geometry,
            &[(CLIENT, cookie.encode())],
            &work.record.slots,
        )?;
        place.clear(&*self.log)?;
        Ok(self.enrolled(resumed_at, work.zero_blocks))
    }

    fn enrolled(&self, resumed_at: u64, zero_blocks: u64) -> Enrolled {
        Enrolled {
            blocks: self.shape.blocks(),
            zero_blocks,
            resumed_at,
        }
    }

    fn refuse_changed(&self, record: &Record) -> Result<(), EnrolError> {
        if self.data.changed().map_err(EnrolError::data(0))? == record.changed {
            return Ok(());
        }
        Err(EnrolError::Changed)
    }
}

/// The map that grows.
struct Work<'a> {
    enrol: &'a Enrol<'a>,
    place: &'a Place,
    map: Map,
    record: Record,
    /// Blocks that a crash leaves done.
    kept: u64,
    zero_blocks: u64,
}

impl Work<'_> {
    /// Takes the next blocks of the device.
    fn take(&mut self, chunk: Chunk) -> Result<(), EnrolError> {
        for (block, value) in (chunk.blocks.start..).zip(&chunk.values) {
            self.map.set(block, *value)?;
        }
        let digests = chunk.values.iter().filter(|value| **value != Value::Zero);
        let blocks = chunk.blocks.end - chunk.blocks.start;
        self.zero_blocks += blocks.saturating_sub(digests.count() as u64);
        self.record.done = chunk.blocks.end;
        let new = (self.record.done - self.kept).saturating_mul(BLOCK_BYTES as u64);
        let stop = self.enrol.stop.load(Ordering::Relaxed);
        if stop || new >= self.enrol.checkpoint_bytes {
            self.checkpoint()?;
        }
        match stop {
            true => Err(EnrolError::Stopped {
                done: self.record.done_bytes(),
            }),
            false => Ok(()),
        }
    }

    /// Makes what is done durable.
    fn checkpoint(&mut self) -> Result<(), EnrolError> {
        let log = &*self.enrol.log;
        self.record.root = self.map.write_back()?;
        log.sync().map_err(EnrolError::log_write)?;
        self.place.store(log, self.enrol.key, &mut self.record)?;
        self.map.committed(self.record.root);
        self.kept = self.record.done;
        Ok(())
    }
}
