//! The metrics of `bulla share run`; docs/metrics.md lists every name.

use std::time::Duration;

use ::serve::metrics::{Kind, Page};
use ::share::client::{Connection, Kept, Owed, Phase, Status, Stopped};

/// A volume, as it was seen last.
pub struct Seen {
    /// Its id.
    pub volume: String,
    /// Time since the server was connected.
    pub contact: Duration,
    /// The state of the engine.
    pub status: Status,
    /// Content that this device keeps of what it wrote. None: the directory cannot be listed.
    pub kept: Option<Kept>,
    /// Files that are not back after a fork.
    pub owed: Owed,
}

/// Name, value and help of a metric.
type Gauge = (&'static str, fn(&Seen) -> u64, &'static str);

const GAUGES: [Gauge; 14] = [
    (
        "bulla_share_connected",
        |seen| matches!(seen.status.connection, Connection::Online).into(),
        "1 while the server is connected",
    ),
    (
        "bulla_share_contact_age_seconds",
        |seen| seen.contact.as_secs(),
        "Time since the server was connected",
    ),
    (
        "bulla_share_log_leaves",
        |seen| seen.status.log.size,
        "Leaves of the log that this device has verified",
    ),
    (
        "bulla_share_agreed_leaves",
        |seen| seen.status.agreed(),
        "Leaves that all devices have attested",
    ),
    (
        "bulla_share_outlines",
        |seen| seen.status.outlines,
        "Changes in memory that are not folded and forgotten",
    ),
    (
        "bulla_share_unattested_devices",
        |seen| {
            let open = |row: &&_| is_open(row);
            seen.status.devices.iter().filter(open).count() as u64
        },
        "Devices that have not confirmed what they wrote last",
    ),
    (
        "bulla_share_silent_devices",
        |seen| seen.status.awaited.len() as u64,
        "Devices for whose confirmation an answer waits",
    ),
    (
        "bulla_share_differing_devices",
        |seen| seen.status.differing.len() as u64,
        "Devices that have seen another log",
    ),
    (
        "bulla_share_convicted",
        |seen| {
            let phase = &seen.status.phase;
            matches!(phase, Phase::Stopped(Stopped::Convicted { .. })).into()
        },
        "1 when there is proof that the server lies",
    ),
    (
        "bulla_share_stopped",
        |seen| matches!(seen.status.phase, Phase::Stopped(_)).into(),
        "1 when this device writes no more",
    ),
    (
        "bulla_share_own_bytes",
        |seen| seen.kept.map_or(0, |kept| kept.bytes),
        "Disk space that the content takes that this device keeps of what it wrote",
    ),
    (
        "bulla_share_own_limit_bytes",
        |seen| seen.kept.map_or(0, |kept| kept.limit_bytes),
        "Disk space that it may take",
    ),
    (
        "bulla_share_owed_files",
        |seen| seen.owed.files,
        "Files of this device that are not back after a fork",
    ),
    (
        "bulla_share_owed_bytes",
        |seen| seen.owed.bytes,
        "Bytes of their content",
    ),
];

fn is_open(row: &::share::client::DeviceStatus) -> bool {
    row.active && row.attested <= row.last_at
}

/// Adds what is known of each volume.
pub fn write(page: &mut Page, seen: &[Seen]) {
    for (name, value, help) in GAUGES {
        page.family(name, Kind::Gauge, help);
        for volume in seen {
            page.sample(&[("volume", &volume.volume)], value(volume));
        }
    }
    let help = "Time since something new of a beacon has come";
    page.family("bulla_share_beacon_age_seconds", Kind::Gauge, help);
    each_beacon(page, seen, |beacon| beacon.age.as_secs());
    let help = "1 while a beacon is silent for longer than it may be";
    page.family("bulla_share_beacon_overdue", Kind::Gauge, help);
    each_beacon(page, seen, |beacon| beacon.is_overdue().into());
}

fn each_beacon(page: &mut Page, seen: &[Seen], value: fn(&::share::client::BeaconStatus) -> u64) {
    for volume in seen {
        for beacon in &volume.status.beacons {
            let device = beacon.device.to_string();
            let labels = [("volume", volume.volume.as_str()), ("device", &device)];
            page.sample(&labels, value(beacon));
        }
    }
}
