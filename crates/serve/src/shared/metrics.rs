//! The state of shared volumes' servers as metrics; docs/metrics.md lists every name.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use share_server::host::{Host, Status};

use crate::metrics::{Kind, Page};
use crate::net::{Counter, Counters};

/// Name, value and help of a metric of the connections.
type Plain<'a> = (&'static str, &'a Counter, &'static str);

/// Adds what is told of the connections, and of each volume.
pub fn write(page: &mut Page, net: &Counters, hosts: &[Arc<Host>]) {
    connections(page, net);
    let volumes: Vec<(String, Status)> = hosts
        .iter()
        .map(|host| (host.volume().to_string(), host.status()))
        .collect();
    gauges(page, &volumes);
    counters(page, &volumes);
}

fn connections(page: &mut Page, net: &Counters) {
    let gauges: [Plain<'_>; 2] = [
        (
            "bulla_shared_connections",
            &net.connections,
            "Connections open now",
        ),
        (
            "bulla_shared_held_bytes",
            &net.held_bytes,
            "Answers held in memory now",
        ),
    ];
    let counters: [Plain<'_>; 6] = [
        (
            "bulla_shared_accepted_total",
            &net.accepted,
            "Connections admitted",
        ),
        (
            "bulla_shared_turned_away_total",
            &net.turned_away,
            "Connections turned away: too many",
        ),
        (
            "bulla_shared_accept_errors_total",
            &net.accept_errors,
            "Failed accept calls",
        ),
        (
            "bulla_shared_sent_bytes_total",
            &net.sent_bytes,
            "Bytes sent",
        ),
        (
            "bulla_shared_received_bytes_total",
            &net.received_bytes,
            "Bytes received",
        ),
        (
            "bulla_shared_idle_total",
            &net.idle,
            "Connections closed: nothing was heard for long",
        ),
    ];
    for (kind, metrics) in [(Kind::Gauge, &gauges[..]), (Kind::Counter, &counters[..])] {
        for &(name, counter, help) in metrics {
            page.family(name, kind, help).sample(&[], counter.get());
        }
    }
    let help = "Connections closed and requests refused, by the reason";
    page.family("bulla_shared_errors_total", Kind::Counter, help);
    for (reason, counter) in [
        ("malformed", &net.malformed),
        ("busy", &net.busy),
        ("too_slow", &net.too_slow),
    ] {
        page.sample(&[("reason", reason)], counter.get());
    }
}

/// Name, value and help of a metric of a volume.
type OfVolume = (&'static str, fn(&Status) -> u64, &'static str);

const GAUGES: [OfVolume; 12] = [
    (
        "bulla_shared_log_leaves",
        |status| status.leaves,
        "Leaves of the log",
    ),
    (
        "bulla_shared_unmoved_leaves",
        |status| status.waiting_to_move,
        "Leaves in the temporary log only",
    ),
    (
        "bulla_shared_devices",
        |status| status.sessions as u64,
        "Devices that are connected",
    ),
    (
        "bulla_shared_temporary_free_bytes",
        |status| status.log_bytes.0,
        "Free bytes of the temporary log",
    ),
    (
        "bulla_shared_temporary_bytes",
        |status| status.log_bytes.1,
        "Length of the temporary log",
    ),
    (
        "bulla_shared_stopped",
        |status| status.stopped.is_some().into(),
        "1 if the server orders no entries any more and must be started anew",
    ),
    (
        "bulla_shared_stuck",
        |status| status.failure.is_some().into(),
        "1 while blocks or leaves cannot move out of the temporary log",
    ),
    (
        "bulla_shared_collected_timestamp_seconds",
        |status| {
            let at = status.collected.as_ref().map(|last| last.at);
            let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            since.map_or(0, |since| since.as_secs())
        },
        "When the last collection ended, 0 before the first since the start",
    ),
    (
        "bulla_shared_collection_removed_blocks",
        |status| {
            status
                .collected
                .as_ref()
                .map_or(0, |last| last.removed_blocks)
        },
        "Blocks that the last collection removed",
    ),
    (
        "bulla_shared_collection_removed_bytes",
        |status| {
            status
                .collected
                .as_ref()
                .map_or(0, |last| last.removed_bytes)
        },
        "Space that they had",
    ),
    (
        "bulla_shared_collection_hindered",
        |status| {
            let last = status.collected.as_ref();
            last.is_some_and(|last| last.hindered.is_some()).into()
        },
        "1 if something stood in the way of the last collection; the log of the server names it",
    ),
    (
        "bulla_shared_collection_damaged_segments",
        |status| {
            status
                .collected
                .as_ref()
                .map_or(0, |last| last.damaged_segments)
        },
        "Segments that the last collection left as they are, because they are damaged",
    ),
];

const COUNTERS: [OfVolume; 4] = [
    (
        "bulla_shared_entries_total",
        |status| status.counts.entries,
        "Entries ordered",
    ),
    (
        "bulla_shared_marks_total",
        |status| status.counts.marks,
        "Marks ordered",
    ),
    (
        "bulla_shared_attests_total",
        |status| status.counts.attests,
        "Attests taken",
    ),
    (
        "bulla_shared_commits_total",
        |status| status.counts.commits,
        "Commits",
    ),
];

fn gauges(page: &mut Page, volumes: &[(String, Status)]) {
    for (name, value, help) in GAUGES {
        page.family(name, Kind::Gauge, help);
        for (volume, status) in volumes {
            page.sample(&[("volume", volume)], value(status));
        }
    }
}

fn counters(page: &mut Page, volumes: &[(String, Status)]) {
    for (name, value, help) in COUNTERS {
        page.family(name, Kind::Counter, help);
        for (volume, status) in volumes {
            page.sample(&[("volume", volume)], value(status));
        }
    }
    let help = "Time that commits took";
    page.family("bulla_shared_commit_seconds_total", Kind::Counter, help);
    for (volume, status) in volumes {
        let seconds = status.counts.commit_time.as_secs_f64();
        page.sample(&[("volume", volume)], seconds);
    }
    let help = "Messages of devices that were turned away, by the reason";
    page.family("bulla_shared_refused_total", Kind::Counter, help);
    for (volume, status) in volumes {
        let counts = &status.counts;
        for (reason, count) in [
            ("busy", counts.busy),
            ("quota", counts.quota),
            ("forged", counts.forged),
            ("unstored", counts.unstored),
        ] {
            page.sample(&[("volume", volume), ("reason", reason)], count);
        }
    }
}
