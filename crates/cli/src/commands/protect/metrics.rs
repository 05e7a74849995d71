//! The metrics of an attached device. docs/metrics.md lists them.

use ::serve::metrics::{Kind, Page};
use serde_json::Value;

use super::attached::Attached;

/// Name, kind, place in the report, help.
const METRICS: &[(&str, Kind, &str, &str)] = &[
    (
        "bulla_device_bytes",
        Kind::Gauge,
        "/bytes",
        "Length of the device",
    ),
    (
        "bulla_device_log_bytes",
        Kind::Gauge,
        "/log_ring_bytes",
        "Space of the log for writes that are not on the device",
    ),
    (
        "bulla_device_log_used_bytes",
        Kind::Gauge,
        "/log_used_bytes",
        "Space of the log that is in use",
    ),
    (
        "bulla_device_unsettled_bytes",
        Kind::Gauge,
        "/unsettled_bytes",
        "Written and not on the device durably",
    ),
    (
        "bulla_device_bad_blocks",
        Kind::Gauge,
        "/bad_blocks",
        "Blocks that could not be read because they are not what was written",
    ),
    (
        "bulla_device_lost_blocks_total",
        Kind::Counter,
        "/lost_blocks",
        "Blocks whose part of the log was changed or lost",
    ),
    (
        "bulla_device_repaired_blocks_total",
        Kind::Counter,
        "/repaired_blocks",
        "Blocks that the device had lost and that the log still had",
    ),
    (
        "bulla_device_errors_total",
        Kind::Counter,
        "/device_errors",
        "Errors of the disks",
    ),
    (
        "bulla_device_read_bytes_total",
        Kind::Counter,
        "/read_bytes",
        "Read by programs",
    ),
    (
        "bulla_device_written_bytes_total",
        Kind::Counter,
        "/written_bytes",
        "Written by programs",
    ),
    (
        "bulla_device_homed_bytes_total",
        Kind::Counter,
        "/homed_bytes",
        "Written to the data device",
    ),
    (
        "bulla_device_flushes_total",
        Kind::Counter,
        "/flushes",
        "Flushes",
    ),
    (
        "bulla_device_checkpoints_total",
        Kind::Counter,
        "/checkpoints",
        "Moves of the tail of the log",
    ),
];

/// Writes the metrics of a device.
pub fn device(page: &mut Page, attached: &Attached) {
    let volume = attached.names.volume.to_string();
    let labels = [("volume", &*volume)];
    let record = Value::Object(attached.record());
    let number = |pointer: &str| record.pointer(pointer).and_then(Value::as_u64);
    for (name, kind, pointer, help) in METRICS {
        page.family(name, *kind, help);
        page.sample(&labels, number(pointer).unwrap_or_default());
    }
    let read_only = record.pointer("/read_only").is_some_and(|it| !it.is_null());
    let help = "1 when the device takes no more writes";
    page.family("bulla_device_read_only", Kind::Gauge, help);
    page.sample(&labels, u64::from(read_only));
    let help = "1 when an anchor shows whether the devices were put back";
    page.family("bulla_device_anchored", Kind::Gauge, help);
    let behind = number("/anchor/behind_ms");
    page.sample(&labels, u64::from(behind.is_some()));
    let help = "How long the anchor has been behind; no sample without an anchor";
    page.family("bulla_device_anchor_behind_seconds", Kind::Gauge, help);
    if let Some(ms) = behind {
        page.sample(&labels, ms as f64 / 1000.0);
    }
}
