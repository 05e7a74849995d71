//! A protected device on a simulated machine: the real engine, log, map and recovery, without threads. Each actor's work
//! is done in stages, begin, I/O and end, in the order that a schedule says.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protect::anchor::{Anchor, AnchorError, AnchorMode, Anchoring};
use protect::map::{Map, Root};
use protect::{
    Admission, BlockError, Commit, Committed, Cookie, Engine, EngineError, Homed, Homing, Limits,
    Redos, SettledDone, Settling, Shape, Watch,
};
use sim::device::{Machine, SimDevice};
use wal::{Client, Device, Geometry, Key, Lsn, Mark, VolumeId};

use crate::subject::{Attach, Subject};

const VOLUME: VolumeId = VolumeId([7; 16]);
const CLIENT: Client = Client(1);
const BLOCK: u64 = 4096;
/// A call that waits gives up after so many rounds of all background work.
const ROUNDS: usize = 1000;

/// So many failed writes to the data device in a row end in a device that is read-only.
const TRIES: usize = 10;

/// The actors, as schedules number them.
pub const COMMIT: usize = 0;
pub const HOME: usize = 1;
pub const HOME_TOO: usize = 2;
pub const SETTLE: usize = 3;
pub const CHECKPOINT: usize = 4;

/// How the device is attached.
#[derive(Clone, Copy)]
pub struct ProtectedDevice {
    pub limits: Limits,
    /// Whether the device `A` holds the newest mark of the log.
    pub anchored: bool,
    /// Whether it only follows when the log's tail moves, or the session ends.
    pub lags: bool,
}

impl ProtectedDevice {
    /// Everything happens early: runs of one block are logged as digests, and memory holds one block of the log.
    pub fn small() -> ProtectedDevice {
        ProtectedDevice {
            limits: Limits {
                staged_bytes: 3 * BLOCK as usize,
                frame_bytes: 2 * BLOCK as usize,
                cached_bytes: BLOCK as usize,
                unsettled_bytes: 4 * BLOCK as usize,
                relogged_bytes: BLOCK as usize,
                hash_run_blocks: 1,
                trims: 2,
                home_bytes: 2 * BLOCK as usize,
            },
            anchored: true,
            lags: false,
        }
    }
}

pub fn key() -> Key {
    Key::new([9; 32])
}

/// A machine whose device `D` has so many blocks of zeros, with a log of this ring on `L` and an anchor on `A`.
pub fn machine(blocks: u64, ring_bytes: u64) -> Machine {
    machine_of(blocks * BLOCK, ring_bytes)
}

/// The same with a device `D` of so many bytes.
pub fn machine_of(bytes: u64, ring_bytes: u64) -> Machine {
    let blocks = bytes.div_ceil(BLOCK);
    let area = Map::area_bytes(blocks).unwrap();
    let geometry = Geometry {
        ring_bytes,
        areas: vec![(CLIENT, area)],
    };
    let log_bytes = wal::Layout::new(&geometry).unwrap().device_bytes();
    let machine = Machine::new(&[("D", bytes), ("L", log_bytes), ("A", BLOCK)]);
    let device = machine.device("L");
    wal::prepare(&*device, &geometry, &mut |_| {}).unwrap();
    let cookie = Cookie {
        shape: Shape {
            bytes,
            sector_bytes: 512,
        },
        root: Root::ZERO,
    };
    let cookies = [(CLIENT, cookie.encode())];
    wal::format(&*device, &key(), VOLUME, &geometry, &cookies, b"").unwrap();
    // A superblock names its session, which is random, and ends in its MAC.
    for page in [0, 64 << 10, 128 << 10, 192 << 10] {
        let hidden = [page + 56..page + 72, page + 4064..page + 4096];
        device.mask(page..page + BLOCK, &hidden);
    }
    machine.device("A").set_atomic(BLOCK);
    // The anchor exists from the first session on.
    let enrolled = ProtectedDevice {
        anchored: false,
        ..ProtectedDevice::small()
    };
    let (engine, _) = enrolled.engine(&machine).unwrap();
    engine.say_detached().unwrap();
    engine.checkpoint().unwrap();
    SimAnchor(machine.device("A"))
        .advance(engine.log().durable())
        .unwrap();
    machine.forget();
    machine
}

/// The anchor, on a device of its own that nobody touches.
struct SimAnchor(Arc<SimDevice>);

impl Anchor for SimAnchor {
    fn mark(&self) -> Result<Mark, AnchorError> {
        let mut page = [0; BLOCK as usize];
        self.0.read(0, &mut page).map_err(anchor_failed)?;
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        Ok(Mark {
            epoch: number(0),
            lsn: Lsn(number(8)),
            tag: page[16..48].try_into().unwrap(),
        })
    }

    fn advance(&self, mark: Mark) -> Result<(), AnchorError> {
        let mut page = [0; BLOCK as usize];
        page[..8].copy_from_slice(&mark.epoch.to_le_bytes());
        page[8..16].copy_from_slice(&mark.lsn.0.to_le_bytes());
        page[16..48].copy_from_slice(&mark.tag);
        self.0.write(0, &page).map_err(anchor_failed)?;
        self.0.sync().map_err(anchor_failed)
    }
}

fn anchor_failed(source: io::Error) -> AnchorError {
    AnchorError::Io {
        path: "A".into(),
        doing: "written",
        source,
    }
}

/// Keeps alarms.
#[derive(Default)]
pub struct Alarms(Mutex<Vec<String>>);

impl Alarms {
    fn add(&self, alarm: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(alarm);
    }

    pub fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Watch for Alarms {
    fn bad_block(&self, block: u64, _offset: u64) {
        self.add(format!("block {block} is bad"));
    }

    fn repaired_block(&self, block: u64, _offset: u64) {
        self.add(format!("block {block} was written again"));
    }

    fn lost_blocks(&self, blocks: Range<u64>) {
        self.add(format!("blocks {blocks:?} are lost"));
    }

    fn device_failed(&self, device: &'static str, error: &io::Error) {
        self.add(format!("{device} failed: {error}"));
    }

    fn became_read_only(&self, why: &str) {
        self.add(format!("read-only: {why}"));
    }
}

impl ProtectedDevice {
    /// Attaches the device of a machine.
    pub fn engine(&self, machine: &Machine) -> Result<(Engine, Arc<Alarms>), String> {
        let anchor = self.anchored.then(|| {
            let anchor = SimAnchor(machine.device("A"));
            // So long that no thread meets a schedule.
            let lag = AnchorMode::Lag(Duration::from_secs(3600));
            let mode = if self.lags { lag } else { AnchorMode::Sync };
            Anchoring::start(Box::new(anchor), mode)
        });
        let anchor = anchor.transpose().map_err(|error| error.to_string())?;
        let alarms = Arc::new(Alarms::default());
        let attach = protect::Attach {
            data: machine.device("D"),
            log: machine.device("L"),
            key: key(),
            anchor,
            cut_at_error: false,
            accept_changed: false,
            claim: None,
            limits: self.limits,
            map_cache_bytes: BLOCK as usize,
            watch: alarms.clone(),
        };
        let (engine, recovered) = attach.attach().map_err(|error| told(&error))?;
        if recovered.bad > 0 {
            alarms.add(format!("{} blocks fit no version", recovered.bad));
        }
        if recovered.wrong_pages > 0 {
            alarms.add(format!(
                "{} pages of the log are wrong",
                recovered.wrong_pages
            ));
        }
        if recovered.changed > 0 {
            alarms.add(format!("{} blocks have changed", recovered.changed));
        }
        Ok((engine, alarms))
    }
}

impl Attach for ProtectedDevice {
    fn attach(&self, machine: &Machine) -> Result<Box<dyn Subject>, String> {
        let (engine, alarms) = self.engine(machine)?;
        Ok(Box::new(Attached {
            engine,
            alarms,
            commit: None,
            homes: [None, None],
            settle: None,
            failures: 0,
            settled: true,
        }))
    }
}

/// An error and its causes.
fn told(error: &dyn std::error::Error) -> String {
    let source = error.source().map(|source| format!(": {}", told(source)));
    format!("{error}{}", source.unwrap_or_default())
}

/// How far an actor's work is.
enum Stage<B, R> {
    Begun(B),
    Ran(R),
}

/// What became of a write home, unless it failed, comes with it.
type HomeStage = Stage<Homing, (Homing, Option<Homed>)>;

struct Attached {
    engine: Engine,
    alarms: Arc<Alarms>,
    commit: Option<Stage<Commit, Committed>>,
    homes: [Option<HomeStage>; 2],
    settle: Option<Stage<Settling, SettledDone>>,
    /// Writes to the data device that failed one after the other.
    failures: usize,
    /// Something was settled since the last checkpoint.
    settled: bool,
}

impl Attached {
    fn fail(&self, error: &EngineError) {
        self.engine.fail(&told(error));
    }

    /// One stage. True: something was done.
    fn step_commit(&mut self, flush: Option<u64>) -> Result<bool, EngineError> {
        self.commit = match self.commit.take() {
            None => match self.engine.commit_begin(flush) {
                None => return Ok(false),
                Some(commit) => Some(Stage::Begun(commit)),
            },
            Some(Stage::Begun(commit)) => match self.engine.commit_run(&commit) {
                Ok(done) => Some(Stage::Ran(done)),
                Err(error) => {
                    self.engine.commit_abort(&commit);
                    return Err(error);
                }
            },
            Some(Stage::Ran(done)) => {
                self.engine.commit_end(&done);
                None
            }
        };
        Ok(true)
    }

    /// The second one prefers what is in memory.
    fn step_home(&mut self, which: usize) -> bool {
        let home = &mut self.homes[which];
        *home = match home.take() {
            None => {
                let cached = (which == 1).then(|| self.engine.home_begin(Redos::Cached));
                match cached
                    .flatten()
                    .or_else(|| self.engine.home_begin(Redos::All))
                {
                    None => return false,
                    Some(homing) => Some(Stage::Begun(homing)),
                }
            }
            Some(Stage::Begun(homing)) => {
                let ran = self.engine.home_run(&homing);
                self.failures = if ran.is_ok() { 0 } else { self.failures + 1 };
                if let Err(error) = &ran
                    && (is_full(error) || self.failures > TRIES)
                {
                    self.engine.fail(&told(error));
                }
                Some(Stage::Ran((homing, ran.ok())))
            }
            Some(Stage::Ran((homing, homed))) => {
                self.engine.home_end(&homing, homed.as_ref());
                None
            }
        };
        true
    }

    fn step_settle(&mut self) -> bool {
        self.settle = match self.settle.take() {
            None => match self.engine.settle_begin() {
                None => return false,
                Some(settling) => Some(Stage::Begun(settling)),
            },
            Some(Stage::Begun(settling)) => match self.engine.settle_run(&settling) {
                Ok(done) => Some(Stage::Ran(done)),
                Err(error) => {
                    self.fail(&error);
                    None
                }
            },
            Some(Stage::Ran(done)) => {
                self.engine.settle_end(&done);
                self.settled = true;
                None
            }
        };
        true
    }

    /// A checkpoint is not beside a settle.
    fn step_checkpoint(&mut self) -> bool {
        if self.settle.is_some() || !self.settled {
            return false;
        }
        self.settled = false;
        if let Err(error) = self.engine.checkpoint() {
            self.fail(&error);
        }
        true
    }

    /// Everything that the log waits for, once.
    fn make_room(&mut self) -> bool {
        self.go_home(&[HOME, HOME_TOO, SETTLE, CHECKPOINT])
    }

    fn go_home(&mut self, actors: &[usize]) -> bool {
        let mut worked = false;
        for &actor in actors {
            while self.engine.failure().is_none() && self.step(actor) {
                worked = true;
                if actor == SETTLE && self.settle.is_none() {
                    break;
                }
            }
        }
        worked
    }

    fn admit(
        &mut self,
        request: impl Fn(&Engine) -> Result<Admission, BlockError>,
    ) -> Result<(), BlockError> {
        for _ in 0..ROUNDS {
            if request(&self.engine)? == Admission::Accepted {
                return Ok(());
            }
            while self.step(COMMIT) {}
            self.make_room();
        }
        Err(stuck("a request is never accepted"))
    }
}

fn is_full(error: &EngineError) -> bool {
    matches!(error, EngineError::Data { source, .. } if source.kind() == io::ErrorKind::StorageFull)
}

fn stuck(why: &str) -> BlockError {
    BlockError::Io {
        device: "nobody",
        source: io::Error::other(why.to_owned()),
    }
}

impl Subject for Attached {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.admit(|engine| engine.write(offset, bytes))
    }

    fn zero(&mut self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.admit(|engine| engine.zero(offset, bytes))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.engine.read(offset, into)
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        let seq = self.engine.newest();
        for _ in 0..ROUNDS {
            if let Some(why) = self.engine.failure() {
                return Err(BlockError::ReadOnly { why });
            }
            if self.engine.is_durable(seq) {
                return self.engine.anchor().map_err(|error| {
                    self.fail(&error);
                    BlockError::ReadOnly { why: told(&error) }
                });
            }
            match self.step_commit(Some(seq)) {
                Ok(true) => {}
                Ok(false) => {
                    self.go_home(&[HOME, HOME_TOO, SETTLE]);
                }
                Err(EngineError::Full) => {
                    self.make_room();
                }
                Err(error) => self.fail(&error),
            }
        }
        Err(stuck("a flush does not end"))
    }

    fn step(&mut self, actor: usize) -> bool {
        if self.engine.failure().is_some() {
            return false;
        }
        match actor {
            COMMIT => match self.step_commit(None) {
                Ok(worked) => worked,
                Err(EngineError::Full) => false,
                Err(error) => {
                    self.fail(&error);
                    false
                }
            },
            HOME => self.step_home(0),
            HOME_TOO => self.step_home(1),
            SETTLE => self.step_settle(),
            _ => self.step_checkpoint(),
        }
    }

    fn actors(&self) -> usize {
        CHECKPOINT + 1
    }

    fn alarms(&self) -> Vec<String> {
        self.alarms.all()
    }

    fn log_end(&self) -> u64 {
        self.engine.log().end().0
    }

    fn detach(mut self: Box<Self>) -> Result<(), String> {
        self.flush().map_err(|error| told(&error))?;
        for _ in 0..ROUNDS {
            if !self.make_room() {
                break;
            }
        }
        if !self.engine.is_settled() {
            return Err("not everything is settled".to_owned());
        }
        let said = self.engine.say_detached();
        said.and_then(|()| self.engine.checkpoint())
            .map_err(|error| told(&error))
    }
}
