//! Each prefix of flushes, replayed: ext4 works on a protected device over simulated disks, and whenever the kernel is
//! told that a flush is done, the power is cut on copies of the disks: what was not synced is lost, kept or mixed. From
//! each the device is attached, the file system recovers, its checker finds nothing, and all files that were synced before
//! are there. The control is a data disk that ignores syncs.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mount::device::{DeviceOptions, serve};
use protect::{Attach, Block, BlockError, Limits, Pace, Protected};
use sim::device::{Fault, Lie, Machine, Stop};

use crate::crashing::{Told, format_log, is_ready, key, log_bytes};
use crate::fixture::noise;
use crate::looped::{Loop, Places, sh};

const DATA_BYTES: u64 = 32 << 20;
/// Small, so that the log's tail moves again and again.
const RING_BYTES: u64 = 2 << 20;
const FILES: u64 = 30;
const PIECE: u64 = 1 << 20;
/// A write may tear into so many parts.
const PIECES: usize = 4;

/// A protected device. At the end of a flush the power is cut on copies of its disks.
struct Copied {
    device: Protected,
    machine: Machine,
    /// So many files are synced.
    synced: AtomicU64,
    flushes: AtomicU64,
    /// Every so many flushes.
    every: u64,
    /// So many outcomes of each power cut.
    outcomes: u64,
    place: PathBuf,
    /// How many power cuts were survived, or what was found after one.
    survived: Mutex<Result<u64, String>>,
}

impl Copied {
    /// `synced`: so many files had been synced before the flush.
    fn cut(&self, flush: u64, synced: u64) {
        let mut survived = self.survived.lock().unwrap();
        let Ok(count) = &mut *survived else {
            return;
        };
        let copy = self.machine.fork();
        for cut in copy.outcomes(Stop::Power, PIECES, self.outcomes, flush) {
            let machine = copy.restart(Stop::Power, PIECES, &cut);
            if let Err(told) = survives(&machine, synced, &self.place) {
                *survived = Err(format!("flush {flush}, cut {cut}: {told}"));
                return;
            }
            *count += 1;
        }
        self.machine.forget();
    }
}

impl Block for Copied {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        self.device.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        self.device.write(offset, from)
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        self.device.zero(offset, bytes)
    }

    fn flush(&self) -> Result<(), BlockError> {
        let synced = self.synced.load(Ordering::SeqCst);
        self.device.flush()?;
        let number = self.flushes.fetch_add(1, Ordering::SeqCst);
        // Not while the file system is made.
        if synced > 0 && number.is_multiple_of(self.every) {
            self.cut(number, synced);
        }
        Ok(())
    }
}

fn attach(machine: &Machine) -> Attach {
    Attach {
        data: machine.device("D"),
        log: machine.device("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: None,
        limits: Limits::default(),
        map_cache_bytes: 1 << 20,
        watch: Arc::new(Told),
    }
}

fn copied(every: u64, outcomes: u64, lie: Option<Lie>, place: PathBuf) -> Arc<Copied> {
    let machine = Machine::new(&[("D", DATA_BYTES), ("L", log_bytes(DATA_BYTES, RING_BYTES))]);
    format_log(&*machine.device("L"), DATA_BYTES, RING_BYTES);
    let pace = Pace {
        settle: Duration::from_millis(50),
        ..Pace::default()
    };
    let (engine, _) = attach(&machine).attach().unwrap();
    if let Some(lie) = lie {
        machine.device("D").inject(Fault::always(lie));
    }
    Arc::new(Copied {
        device: Protected::start(engine, pace).unwrap(),
        machine,
        synced: AtomicU64::new(0),
        flushes: AtomicU64::new(0),
        every,
        outcomes,
        place,
        survived: Mutex::new(Ok(0)),
    })
}

fn content(number: u64) -> Vec<u8> {
    noise(number, 1000 + (number * 7919 % 60_000) as usize)
}

/// Files that are synced, beside some that are not and some that are removed and trimmed.
fn work(copied: &Copied, places: &Places, device: &Loop) -> Result<(), String> {
    sh("mkfs.ext4 -q -F -b 4096 -E nodiscard $1", &device.path())?;
    places.mount(device)?;
    let files = places.at("files");
    for number in 0..FILES {
        let written = (|| {
            let mut file = File::create(files.join(format!("f{number}")))?;
            file.write_all(&content(number))?;
            file.sync_all()?;
            File::open(&files)?.sync_all()?;
            copied.synced.store(number + 1, Ordering::SeqCst);
            let bulk = files.join(format!("bulk{}", number % 4));
            fs::write(&bulk, noise(number, 300_000))
        })();
        written.map_err(|error: std::io::Error| error.to_string())?;
        if number % 10 == 9 {
            sh("rm $1/bulk1 && fstrim $1", &places.files())?;
        }
    }
    places.unmount()
}

/// What a program finds after the power was cut.
fn survives(machine: &Machine, synced: u64, place: &Path) -> Result<(), String> {
    let (engine, recovered) = attach(machine).attach().map_err(|e| e.to_string())?;
    if (recovered.bad, recovered.changed) != (0, 0) {
        return Err(format!("{recovered:?}"));
    }
    let image = place.join("image");
    let file = File::create(&image).unwrap();
    let mut piece = vec![0; PIECE as usize];
    for offset in (0..DATA_BYTES).step_by(PIECE as usize) {
        engine.read(offset, &mut piece).map_err(|e| e.to_string())?;
        file.write_all_at(&piece, offset).unwrap();
    }
    let image = image.to_str().unwrap();
    sh("fsck.ext4 -p $1 >/dev/null || [ $? = 1 ]", image)?;
    sh("fsck.ext4 -f -n $1", image)?;
    let found = place.join("found");
    fs::create_dir_all(&found).unwrap();
    let dump = format!("debugfs -R 'rdump / {}' $1 2>/dev/null", found.display());
    sh(&dump, image)?;
    for number in 0..synced {
        let is_there = fs::read(found.join(format!("f{number}")));
        if is_there.map_err(|error| format!("file {number}: {error}"))? != content(number) {
            return Err(format!("file {number} is another"));
        }
    }
    fs::remove_dir_all(&found).unwrap();
    Ok(())
}

/// How many power cuts were survived.
async fn replay(every: u64, outcomes: u64, lie: Option<Lie>) -> Result<u64, String> {
    let places = Places::new();
    let copied = copied(every, outcomes, lie, places.at("."));
    let options = DeviceOptions::new(places.name(), "bulla#test");
    let served = serve(copied.clone(), &places.at("served"), options).await;
    let served = served.unwrap();
    let worked = tokio::task::spawn_blocking(move || {
        let device = Loop::new(&places.file(), 512);
        work(&copied, &places, &device)?;
        drop(device);
        copied.survived.lock().unwrap().clone()
    });
    let survived = worked.await.unwrap();
    served.finish(Duration::from_secs(60)).await.unwrap();
    survived
}

/// The disks in memory make each flush slow.
fn is_long() -> bool {
    let is_long = std::env::var_os("BULLA_LONG").is_some();
    if !is_long {
        eprintln!("SKIPPED prefixes of flushes: BULLA_LONG is not set");
    }
    is_long && is_ready(&["mkfs.ext4", "debugfs"])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_prefix_of_flushes_is_a_whole_file_system() {
    if is_long() {
        let survived = replay(1, 4, None).await.unwrap();
        eprintln!("{survived} power cuts");
        assert!(survived > 50);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_of_a_disk_that_ignores_syncs_are_not_whole() {
    if is_long() {
        let told = replay(4, 2, Some(Lie::SyncIgnored)).await.unwrap_err();
        // Found by a power cut, not by something that the test itself cannot do.
        assert!(told.starts_with("flush "), "{told}");
    }
}
