//! Beacons: devices that sign an entry again and again. A device that gets no new entry of its beacon for too long may be
//! on another branch than the beacon. It then uses nothing until such an entry comes (decision 0053).
//!
//! Time is this machine's monotonic clock, and begins with the engine. Nothing depends on what a clock of the day says,
//! neither here nor at the beacon. A connection that was just made gets a moment to bring what was missed, until it has
//! brought all of it; calls wait that long, and are not answered in the meantime.

use std::time::{Duration, Instant};

use trust::device::DeviceKey;

use super::error::ClientError;
use crate::home::{Beacon, Home};

/// How long calls wait for a beacon after a connection was made, at most; never longer than it may be silent.
const GRACE: Duration = Duration::from_secs(5);

/// How a beacon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeaconStatus {
    /// The device.
    pub device: DeviceKey,
    /// How long it may be silent.
    pub within: Duration,
    /// How long it has been silent.
    pub age: Duration,
}

impl BeaconStatus {
    /// Whether it is silent for too long.
    pub fn is_overdue(&self) -> bool {
        self.age > self.within
    }
}

#[derive(Debug)]
struct Row {
    beacon: Beacon,
    /// Position of its newest entry.
    newest: Option<u64>,
    /// Since when nothing new has come.
    since: Instant,
}

/// The beacons of a home.
#[derive(Debug, Default)]
pub(super) struct Beacons {
    home: Option<Home>,
    rows: Vec<Row>,
    connected: Option<Instant>,
    /// The connection has brought all that the server had.
    caught_up: bool,
}

/// Whether calls may be taken.
pub(super) enum Verdict {
    Fresh,
    /// Not now. Until when, if that is known.
    Waits(Option<Instant>),
    Overdue(ClientError),
}

impl Beacons {
    /// Those that the home asks for. Their time begins now.
    pub(super) fn of(home: &Home) -> Beacons {
        let mut beacons = Beacons {
            home: Some(home.clone()),
            ..Beacons::default()
        };
        beacons.read_again(Instant::now());
        beacons
    }

    /// Reads the home again. The time of those that it had already goes on.
    pub(super) fn read_again(&mut self, now: Instant) {
        let Some(home) = &self.home else { return };
        match home.beacons() {
            Ok(list) => self.set(list, now),
            // Those that are known stay.
            Err(error) => tracing::error!(%error, "the list of beacons cannot be read"),
        }
    }

    fn set(&mut self, list: Vec<Beacon>, now: Instant) {
        let mut before = std::mem::take(&mut self.rows);
        let row = |beacon: Beacon| {
            let known = before
                .iter()
                .position(|row| row.beacon.device == beacon.device);
            let known = known.map(|place| before.swap_remove(place));
            Row {
                newest: known.as_ref().and_then(|row| row.newest),
                since: known.map_or(now, |row| row.since),
                beacon,
            }
        };
        self.rows = list.into_iter().map(row).collect();
    }

    /// There is a connection to the server.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connected = Some(now);
        self.caught_up = false;
    }

    /// The server says that this device has all that it has.
    pub(super) fn caught_up(&mut self) {
        self.caught_up = true;
    }

    /// There is none any more.
    pub(super) fn disconnected(&mut self) {
        self.connected = None;
    }

    /// Looks for new entries. `newest` gives the position of a device's newest entry, if it is not the known one.
    pub(super) fn meet(
        &mut self,
        now: Instant,
        newest: impl Fn(DeviceKey, Option<u64>) -> Option<u64>,
    ) {
        for row in &mut self.rows {
            let Some(at) = newest(row.beacon.device, row.newest) else {
                continue;
            };
            // What the log had at the start may be old.
            if row.newest.is_some_and(|known| at > known) {
                row.since = now;
            }
            row.newest = Some(row.newest.map_or(at, |known| known.max(at)));
        }
    }

    /// Whether calls may be taken now.
    pub(super) fn verdict(&self, now: Instant) -> Verdict {
        let Some(beacon) = self.most_overdue(now) else {
            return Verdict::Fresh;
        };
        let (grace, why) = (GRACE.min(beacon.within), late(beacon));
        match self.connected.and_then(|since| since.checked_add(grace)) {
            None => Verdict::Waits(None),
            Some(until) if now < until && !self.caught_up => Verdict::Waits(Some(until)),
            Some(_) => Verdict::Overdue(why),
        }
    }

    /// Why nothing is answered.
    pub(super) fn overdue(&self, now: Instant) -> Option<ClientError> {
        self.most_overdue(now).map(late)
    }

    fn most_overdue(&self, now: Instant) -> Option<BeaconStatus> {
        let rows = self.status(now).into_iter();
        let overdue = rows.filter(BeaconStatus::is_overdue);
        overdue.max_by_key(|beacon| beacon.within.min(GRACE))
    }

    /// How they are.
    pub(super) fn status(&self, now: Instant) -> Vec<BeaconStatus> {
        let rows = self.rows.iter().map(|row| BeaconStatus {
            device: row.beacon.device,
            within: row.beacon.within,
            age: now.saturating_duration_since(row.since),
        });
        rows.collect()
    }
}

fn late(beacon: BeaconStatus) -> ClientError {
    ClientError::Overdue {
        device: beacon.device,
        within: beacon.within,
        age: beacon.age,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEACON: DeviceKey = DeviceKey::from_bytes([3; 32]);
    const WITHIN: Duration = Duration::from_secs(60);

    fn beacons(now: Instant) -> Beacons {
        let mut beacons = Beacons::default();
        let (device, within) = (BEACON, WITHIN);
        beacons.set(vec![Beacon { device, within }], now);
        beacons
    }

    /// The log has an entry of the beacon at this position.
    fn log(at: u64) -> impl Fn(DeviceKey, Option<u64>) -> Option<u64> {
        move |_, known| (known != Some(at)).then_some(at)
    }

    fn seconds(since: Instant, seconds: u64) -> Instant {
        since + Duration::from_secs(seconds)
    }

    #[test]
    fn what_the_log_had_at_the_start_is_nothing_new() {
        let start = Instant::now();
        let mut beacons = beacons(start);
        beacons.connected(start);
        beacons.meet(seconds(start, 50), log(7));
        assert!(matches!(
            beacons.verdict(seconds(start, 60)),
            Verdict::Fresh
        ));
        assert!(matches!(
            beacons.verdict(seconds(start, 61)),
            Verdict::Overdue(_)
        ));
        beacons.meet(seconds(start, 62), log(9));
        assert!(matches!(
            beacons.verdict(seconds(start, 122)),
            Verdict::Fresh
        ));
        assert!(matches!(
            beacons.verdict(seconds(start, 123)),
            Verdict::Overdue(_)
        ));
    }

    #[test]
    fn new_connection_gets_a_moment_and_no_answer_meanwhile() {
        let start = Instant::now();
        let mut beacons = beacons(start);
        beacons.meet(start, log(7));
        let late = seconds(start, 1000);
        assert!(matches!(beacons.verdict(late), Verdict::Waits(None)));
        beacons.connected(late);
        let until = late + GRACE;
        assert!(matches!(beacons.verdict(late), Verdict::Waits(Some(at)) if at == until));
        assert!(matches!(beacons.verdict(until), Verdict::Overdue(_)));
        // A server that ends connections again and again gets no answer out of it.
        beacons.disconnected();
        beacons.connected(until);
        assert!(matches!(beacons.verdict(until), Verdict::Waits(Some(_))));
        assert!(beacons.overdue(until).is_some());
        beacons.caught_up();
        assert!(matches!(beacons.verdict(until), Verdict::Overdue(_)));
    }

    #[test]
    fn an_older_entry_is_nothing_new_and_the_list_may_change() {
        let start = Instant::now();
        let mut beacons = beacons(start);
        beacons.connected(start);
        beacons.meet(start, log(9));
        beacons.meet(seconds(start, 30), log(7));
        assert!(matches!(
            beacons.verdict(seconds(start, 61)),
            Verdict::Overdue(_)
        ));
        let (device, within) = (BEACON, WITHIN * 2);
        beacons.set(vec![Beacon { device, within }], seconds(start, 61));
        assert!(matches!(
            beacons.verdict(seconds(start, 61)),
            Verdict::Fresh
        ));
        assert!(matches!(
            beacons.verdict(seconds(start, 121)),
            Verdict::Overdue(_)
        ));
        beacons.set(Vec::new(), seconds(start, 121));
        assert!(matches!(
            beacons.verdict(seconds(start, 999)),
            Verdict::Fresh
        ));
    }
}
