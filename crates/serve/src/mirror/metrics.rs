//! The mirror's counters as metrics; docs/metrics.md lists every name.

use crate::metrics::{Kind, Page};
use crate::mirror::counters::Counters;
use crate::net::Counter;

/// Adds all counters of a mirror.
pub fn write(page: &mut Page, counters: &Counters) {
    let (c, net) = (counters, &counters.net);
    let gauges: [(&'static str, &Counter, &str); 2] = [
        (
            "bulla_serve_connections",
            &net.connections,
            "Connections open now",
        ),
        (
            "bulla_serve_held_bytes",
            &net.held_bytes,
            "Answers held in memory now",
        ),
    ];
    for (name, counter, help) in gauges {
        page.family(name, Kind::Gauge, help)
            .sample(&[], counter.get());
    }
    let plain: [(&'static str, &Counter, &str); 12] = [
        (
            "bulla_serve_accepted_total",
            &net.accepted,
            "Connections admitted",
        ),
        (
            "bulla_serve_turned_away_total",
            &net.turned_away,
            "Connections turned away: too many",
        ),
        (
            "bulla_serve_accept_errors_total",
            &net.accept_errors,
            "Failed accept calls",
        ),
        (
            "bulla_serve_walks_total",
            &c.walks,
            "Walks into the tree for a new path",
        ),
        ("bulla_serve_handles_total", &c.handles, "Blocks asked for"),
        (
            "bulla_serve_disk_reads_total",
            &c.disk_reads,
            "Requests that waited for the disk",
        ),
        (
            "bulla_serve_sent_bytes_total",
            &net.sent_bytes,
            "Bytes sent",
        ),
        (
            "bulla_serve_received_bytes_total",
            &net.received_bytes,
            "Bytes received",
        ),
        (
            "bulla_serve_new_heads_total",
            &c.new_heads,
            "New heads picked up",
        ),
        (
            "bulla_serve_refresh_errors_total",
            &c.refresh_errors,
            "Heads that could not be read",
        ),
        (
            "bulla_serve_shortages_total",
            &net.shortages,
            "Periods in which accept failed",
        ),
        (
            "bulla_serve_idle_total",
            &net.idle,
            "Connections closed: no request for long",
        ),
    ];
    for (name, counter, help) in plain {
        page.family(name, Kind::Counter, help)
            .sample(&[], counter.get());
    }
    page.family(
        "bulla_serve_requests_total",
        Kind::Counter,
        "Requests, by what they ask for",
    );
    for (call, counter) in [
        ("head", &c.head_requests),
        ("data", &c.data_requests),
        ("range", &c.range_requests),
    ] {
        page.sample(&[("call", call)], counter.get());
    }
    page.family(
        "bulla_serve_errors_total",
        Kind::Counter,
        "Requests not answered, by the reason",
    );
    for (reason, counter) in [
        ("malformed", &net.malformed),
        ("no_volume", &c.no_volume),
        ("no_object", &c.no_object),
        ("storage", &c.storage_errors),
        ("busy", &net.busy),
        ("too_slow", &net.too_slow),
    ] {
        page.sample(&[("reason", reason)], counter.get());
    }
}
