//! The list of beacons in a home: one line each, `device milliseconds`.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use state::private;
use trust::device::DeviceKey;
use trust::key::PublicKey;

use super::{Home, HomeError, damaged, read};

const BEACONS: &str = "beacons";
/// Longest list, bytes.
const MAX_BYTES: u64 = 16 << 10;
/// Most beacons of a home.
const MAX_BEACONS: usize = 64;
/// How long another process may keep the list, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// A device of which something new must come again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beacon {
    /// The device.
    pub device: DeviceKey,
    /// How long it may be silent.
    pub within: Duration,
}

impl Beacon {
    fn parse(line: &str) -> Option<Beacon> {
        let (device, ms) = line.split_once(' ')?;
        Some(Beacon {
            device: DeviceKey::from(&device.parse::<PublicKey>().ok()?),
            within: Duration::from_millis(ms.parse().ok()?),
        })
    }
}

impl Home {
    /// The beacons that this home asks for.
    ///
    /// # Errors
    /// [`HomeError`] when the list cannot be read.
    pub fn beacons(&self) -> Result<Vec<Beacon>, HomeError> {
        let path = self.directory.join(BEACONS);
        match path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(damaged(&path, e)),
            Ok(_) => {}
        }
        let bytes = read(&path, MAX_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged(&path, "not text"))?;
        let beacons = text.lines().map(Beacon::parse).collect();
        let beacons: Option<Vec<Beacon>> = beacons;
        beacons.ok_or_else(|| damaged(&path, "not a list of beacons"))
    }

    /// Asks for a beacon, with another time if it is one already; or does not any more. Durable.
    ///
    /// # Errors
    /// [`HomeError`]; then the list is as before.
    pub fn set_beacon(&self, device: DeviceKey, within: Option<Duration>) -> Result<(), HomeError> {
        let _alone = alone(&self.directory)?;
        let mut beacons = self.beacons()?;
        beacons.retain(|beacon| beacon.device != device);
        beacons.extend(within.map(|within| Beacon { device, within }));
        let path = self.directory.join(BEACONS);
        if beacons.len() > MAX_BEACONS {
            return Err(damaged(&path, "over 64 beacons"));
        }
        let line = |beacon: &Beacon| format!("{} {}\n", beacon.device, beacon.within.as_millis());
        let text: String = beacons.iter().map(line).collect();
        private::replace(&path, text.as_bytes())?;
        Ok(())
    }
}

/// Keeps other processes from changing the list, so that none takes the change of another one back.
fn alone(home: &Path) -> Result<File, HomeError> {
    let directory = File::open(home).map_err(|e| damaged(home, e))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(PAUSE),
            Err(error) => return Err(damaged(home, error)),
        }
    }
}
