//! A device that this process has attached, and its report.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Instant, SystemTime};

use ::protect::anchor::{AnchorMode, Anchoring};
use ::protect::{BLOCK_BYTES, Protected, Recovered};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;
use wal::VolumeId;

use super::watching::Watcher;
use crate::failure::Outcome;
use crate::output::fields;
use crate::units;

/// The warning of an attachment without an anchor.
pub const NO_ANCHOR: &str = "without an anchor, nobody notices when the device and its log are put back to an earlier state together";

/// What happens to an attached device.
#[derive(Debug)]
pub enum Event {
    /// A command asks for its end.
    Detach {
        /// Also while programs use it.
        force: bool,
        /// Where the outcome goes.
        reply: mpsc::Sender<Outcome<Map<String, Value>>>,
    },
    /// A signal asks for its end.
    Signal,
    /// Its front end has ended.
    Gone,
    /// Some seconds have passed.
    Tick,
}

/// The names of the parts.
#[derive(Debug, Clone)]
pub struct Names {
    /// The data device.
    pub device: PathBuf,
    /// The log.
    pub log: PathBuf,
    /// The anchor.
    pub anchor: Option<PathBuf>,
    /// The volume.
    pub volume: VolumeId,
    /// How it is shown.
    pub shown: &'static str,
    /// Where it is shown.
    pub place: String,
    /// Where the position of a scrub is kept.
    pub state: PathBuf,
}

/// An attached device.
pub struct Attached {
    pub names: Names,
    pub device: Arc<Protected>,
    pub watcher: Arc<Watcher>,
    pub recovered: Recovered,
    /// What its process lacks for times when memory is short.
    pub unprepared: Option<String>,
    pub since: SystemTime,
    pub events: UnboundedSender<Event>,
    /// Held by the one who scrubs.
    pub scrubbing: Mutex<()>,
    rates: Mutex<Rates>,
}

/// Bytes per second.
#[derive(Debug, Clone, Copy)]
struct Rates {
    at: Instant,
    read: u64,
    written: u64,
    homed: u64,
    /// Per second, over the last interval.
    last: [u64; 3],
}

impl Attached {
    /// A device that was attached just now.
    pub fn new(
        names: Names,
        device: Arc<Protected>,
        watcher: Arc<Watcher>,
        recovered: Recovered,
        unprepared: Option<String>,
        events: UnboundedSender<Event>,
    ) -> Attached {
        Attached {
            names,
            device,
            watcher,
            recovered,
            unprepared,
            since: SystemTime::now(),
            events,
            scrubbing: Mutex::new(()),
            rates: Mutex::new(Rates {
                at: Instant::now(),
                read: 0,
                written: 0,
                homed: 0,
                last: [0; 3],
            }),
        }
    }

    /// Computes the rates anew. Called every some seconds.
    pub fn tick(&self) {
        let traffic = self.device.traffic();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let now = [
            load(&traffic.read_bytes),
            load(&traffic.written_bytes),
            load(&traffic.homed_bytes),
        ];
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let before = [rates.read, rates.written, rates.homed];
        let ms = rates.at.elapsed().as_millis().max(1) as u64;
        for ((last, now), before) in rates.last.iter_mut().zip(now).zip(before) {
            *last = now.saturating_sub(before).saturating_mul(1000) / ms;
        }
        [rates.read, rates.written, rates.homed] = now;
        rates.at = Instant::now();
    }

    /// The report: what `status` and `--metrics` show.
    pub fn record(&self) -> Map<String, Value> {
        let engine = self.device.engine();
        let (shape, counts) = (engine.shape(), engine.counts());
        let pressure = engine.log().pressure();
        let traffic = self.device.traffic();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let seen = self.watcher.seen();
        let [read_rate, write_rate, home_rate] = self
            .rates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .last;
        let unsettled = (counts.staged_blocks + counts.redo_blocks + counts.hash_blocks) as u64;
        let last_bad = seen.last.map(|(block, offset, at)| {
            json!({"block": block, "offset": offset, "at": units::system_time(at)})
        });
        fields(json!({
            "device": self.names.device.display().to_string(),
            "log": self.names.log.display().to_string(),
            "volume": self.names.volume.to_string(),
            "shown": self.names.shown,
            "place": self.names.place,
            "pid": std::process::id(),
            "since": units::system_time(self.since),
            "bytes": shape.bytes,
            "sector_bytes": shape.sector_bytes,
            "epoch": self.recovered.epoch,
            "recovered": {
                "was_detached": self.recovered.was_detached,
                "from_log": self.recovered.from_log,
                "judged": self.recovered.judged,
                "bad": self.recovered.bad,
                "wrong_pages": self.recovered.wrong_pages,
                "sampled": self.recovered.sampled,
                "changed": self.recovered.changed,
            },
            "log_ring_bytes": pressure.ring_bytes,
            "log_used_bytes": pressure.used,
            "unsettled_bytes": unsettled * BLOCK_BYTES as u64,
            "unsettled": {
                "staged_blocks": counts.staged_blocks,
                "redo_blocks": counts.redo_blocks,
                "hash_blocks": counts.hash_blocks,
                "trims": counts.trims,
            },
            "anchor": engine.anchoring().map(|anchoring| self.anchor(anchoring)),
            "bad_blocks": seen.bad_blocks(),
            "last_bad": last_bad,
            "lost_blocks": seen.lost_blocks,
            "repaired_blocks": seen.repaired_blocks,
            "device_errors": seen.device_errors,
            "last_device_error": seen.last_device_error,
            "read_only": engine.failure(),
            "unprepared": self.unprepared,
            "read_bytes": load(&traffic.read_bytes),
            "written_bytes": load(&traffic.written_bytes),
            "homed_bytes": load(&traffic.homed_bytes),
            "flushes": load(&traffic.flushes),
            "checkpoints": load(&traffic.checkpoints),
            "read_rate": read_rate,
            "write_rate": write_rate,
            "home_rate": home_rate,
        }))
    }

    fn anchor(&self, anchoring: &Anchoring) -> Value {
        let mark = anchoring.recorded();
        let mode = match anchoring.mode() {
            AnchorMode::Sync => "sync".to_owned(),
            AnchorMode::Lag(lag) => format!("lag={}", units::span(lag).replace(' ', "")),
        };
        let behind_ms = anchoring
            .behind()
            .map_or(0, |behind| behind.as_millis() as u64);
        let path = self.names.anchor.as_ref();
        json!({
            "file": path.map(|path| path.display().to_string()),
            "mode": mode,
            "behind_ms": behind_ms,
            "epoch": mark.epoch,
            "lsn": mark.lsn.0,
        })
    }
}
