//! The status report of a mount of a shared volume.

use std::time::{Duration, SystemTime};

use ::mount::shared::Shows;
use ::mount::shared::report::{Locked, Report};
use ::share::client::{Connection, Phase};
use serde_json::{Map, Value, json};

use super::{is_set, number, size, volume_words, word};
use crate::output::fields;
use crate::units;

/// The record of a mount that this process has served since `since`.
pub fn record(report: &Report, since: SystemTime) -> Map<String, Value> {
    let (connection, why) = match &report.view.connection {
        Connection::Connecting => ("connecting", None),
        Connection::Online => ("connected", None),
        Connection::Offline(lost) => ("offline", Some(lost.to_string())),
    };
    let phase = match &report.view.phase {
        Phase::Outside => "outside",
        Phase::Resuming => "catching-up",
        Phase::Running => "running",
        Phase::Stopped(_) => "stopped",
    };
    let read_only = report.read_only.as_ref();
    let at = match report.shows {
        Shows::Newest => None,
        Shows::After(entry) => Some(entry),
    };
    fields(json!({
        "dir": report.directory.display().to_string(),
        "device": report.device,
        "shared": true,
        "volume": report.volume.to_string(),
        "name": report.name,
        "at": at,
        "pid": std::process::id(),
        "since": units::system_time(since),
        "connection": connection,
        "cause": why,
        "phase": phase,
        "entries": report.view.size,
        "read_only": read_only.map(|(why, since)| json!({
            "why": why.to_string(),
            "since": units::system_time(*since),
        })),
        "dirty": {
            "files": report.dirty_files,
            "bytes": report.dirty_bytes,
            "oldest_s": report.oldest.map(|oldest| oldest.as_secs()),
        },
        "known_files": report.known_files,
        "locks": report.locks.iter().map(lock).collect::<Vec<Value>>(),
    }))
}

fn lock(locked: &Locked) -> Value {
    let waiting = locked
        .waiting
        .iter()
        .map(|(pid, of)| json!({"pid": pid, "for": of}));
    json!({
        "path": locked.path,
        "kind": if locked.flock { "flock" } else { "fcntl" },
        "held_by": locked.held_by,
        "ranges": locked.ranges,
        "waiting": waiting.collect::<Vec<Value>>(),
    })
}

/// Locks of programs, a line for each file.
fn lock_lines(record: &Value) -> impl Iterator<Item = String> {
    let locks = record["locks"].as_array().into_iter().flatten();
    locks.map(|lock| {
        let pids = |key: &str| {
            let all = lock[key].as_array().into_iter().flatten();
            let pids = all.map(|one| number(if one.is_object() { &one["pid"] } else { one }, ""));
            pids.map(|pid| pid.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let held = match pids("held_by") {
            pids if pids.is_empty() => "by another device".to_owned(),
            pids => format!("by process {pids}"),
        };
        let waiting = match pids("waiting") {
            pids if pids.is_empty() => String::new(),
            pids => format!(", process {pids} waits"),
        };
        let (path, kind) = (word(lock, "/path"), word(lock, "/kind"));
        format!("  locked   {path} ({kind}) {held}{waiting}")
    })
}

/// The record as lines for people.
pub fn lines(record: &Value) -> Vec<String> {
    let mut server = word(record, "/connection");
    if is_set(record, "/cause") {
        server.push_str(&format!(": {}", word(record, "/cause")));
    }
    let mut lines = vec![
        word(record, "/dir"),
        format!(
            "  volume   {}, shared, {}",
            word(record, "/name"),
            volume_words(record)
        ),
        format!("  server   {server}"),
        format!("  log      {} entries", number(record, "/entries")),
        format!(
            "  daemon   process {}, since {}",
            word(record, "/pid"),
            word(record, "/since")
        ),
    ];
    if is_set(record, "/at") {
        lines.push(format!(
            "  shows    the state after entry {}, read-only",
            number(record, "/at")
        ));
        return lines;
    }
    let files = number(record, "/dirty/files");
    lines.push(match files {
        0 => "  dirty    nothing".to_owned(),
        _ => {
            let oldest = units::span(Duration::from_secs(number(record, "/dirty/oldest_s")));
            let files = units::count(files, "file", "files");
            let bytes = size(record, "/dirty/bytes");
            format!("  dirty    {files} with {bytes} that are not in the log yet, the oldest for {oldest}")
        }
    });
    lines.extend(lock_lines(record));
    if is_set(record, "/read_only") {
        lines.push(format!(
            "  READ-ONLY since {}: {}",
            word(record, "/read_only/since"),
            word(record, "/read_only/why")
        ));
    }
    lines
}
