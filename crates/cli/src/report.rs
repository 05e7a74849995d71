//! The status report of a mount: as a JSON record, and as lines for people. docs/cli.md lists the fields.

pub mod shared;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::mount::Report;
use ::mount::report::{Disk, Refresh};
use serde_json::{Map, Value, json};
use store::mirrors::Status;

use crate::failure::Failure;
use crate::output::fields;
use crate::text::printable_message;
use crate::units;

/// The record of a mount that this process has served since `since`.
pub fn record(report: &Report, since: SystemTime) -> Map<String, Value> {
    let errors = report
        .errors
        .iter()
        .map(|(kind, n)| ((*kind).to_owned(), (*n).into()));
    let fetches = &report.fetches;
    let (used_bytes, limit_bytes) = report.memory_bytes;
    fields(json!({
        "dir": report.directory.display().to_string(),
        "device": report.device,
        "volume": report.volume.to_string(),
        "version": report.version,
        "pid": std::process::id(),
        "since": units::system_time(since),
        "signed": units::time(report.signed_unix_s),
        "valid_until": report.valid_until_unix_s.map(units::time),
        "age_s": report.now_unix_s.saturating_sub(report.signed_unix_s),
        "left_s": report.valid_until_unix_s.map(|end| end.saturating_sub(report.now_unix_s)),
        "policy_valid_until": report.policy_until_unix_s.map(units::time),
        "policy_left_s": report.policy_until_unix_s.map(|end| end.saturating_sub(report.now_unix_s)),
        "offline": report.is_offline,
        "outage": report.outage.as_ref().map(|outage| json!({
            "lasts_s": outage.lasts.as_secs(),
            "cause": outage.cause,
        })),
        "refresh": refresh(report),
        "mirrors": report.mirrors.iter().map(mirror).collect::<Vec<Value>>(),
        "memory": {"used_bytes": used_bytes, "limit_bytes": limit_bytes},
        "cache": report.disk.as_ref().map(disk),
        "blocks": {
            "requests": fetches.requests,
            "fetched": fetches.fetched,
            "around": fetches.around,
            "from_cache": fetches.from_disk,
            "wrong": fetches.wrong,
        },
        "errors": errors.collect::<Map<String, Value>>(),
        "known_files": report.known_files,
    }))
}

fn refresh(report: &Report) -> Value {
    let (count, failed) = report.refreshes;
    let last = report.last_refresh.as_ref();
    json!({
        "count": count,
        "failed": failed,
        "last": last.map(|last| units::system_time(last.at)),
        "last_unix_s": last.map(|last| last.at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        "error": last.and_then(error),
    })
}

fn error(refresh: &Refresh) -> Option<Value> {
    let failure = Failure::from(refresh.error.clone()?);
    let (kind, hint) = (failure.word(), failure.hint().to_owned());
    Some(json!({"kind": kind, "message": failure.error, "hint": hint}))
}

fn mirror(status: &Status) -> Value {
    let counts = &status.counts;
    let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let set_aside = status.set_aside.as_ref();
    json!({
        "place": status.place,
        "latency_ms": status.latency.map(millis),
        "set_aside": set_aside.map(|(left, why)| json!({"for_ms": millis(*left), "why": why})),
        "behind": status.behind,
        "requests": counts.requests,
        "failures": counts.failures,
        "wrong": counts.wrong,
        "denials": counts.denials,
        "hedges": counts.hedges,
        "last_fault": status.last_fault,
    })
}

fn disk(disk: &Disk) -> Value {
    json!({
        "dir": disk.directory.display().to_string(),
        "used_bytes": disk.used_bytes,
        "quota_bytes": disk.limits.quota_bytes,
        "keep_free_bytes": disk.limits.keep_free_bytes,
        "full": disk.is_full,
        "hits": disk.hits,
        "misses": disk.misses,
        "written": disk.written,
        "refused": disk.refused,
        "damaged": disk.damaged,
        "evicted": disk.evicted,
    })
}

fn word(record: &Value, path: &str) -> String {
    match record.pointer(path) {
        Some(Value::String(text)) => printable_message(text).replace('\n', " "),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

fn number(record: &Value, path: &str) -> u64 {
    record.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn size(record: &Value, path: &str) -> String {
    units::size(number(record, path))
}

fn is_set(record: &Value, path: &str) -> bool {
    record.pointer(path).is_some_and(|value| !value.is_null())
}

fn volume_words(record: &Value) -> String {
    let names = record.pointer("/names").and_then(Value::as_array);
    let names = names.into_iter().flatten().filter_map(Value::as_str);
    let names: Vec<&str> = names.collect();
    let volume = word(record, "/volume");
    match names.is_empty() {
        true => volume,
        false => format!("{} ({volume})", names.join(", ")),
    }
}

/// The record as lines for people. It comes from another process, which may have another version, so
/// missing fields are shown as `-`.
pub fn lines(record: &Value) -> Vec<String> {
    if record.pointer("/shared").and_then(Value::as_bool) == Some(true) {
        return shared::lines(record);
    }
    let validity = match record.pointer("/left_s").and_then(Value::as_u64) {
        None => "stays at this version, which does not expire".to_owned(),
        Some(left) => {
            let end = word(record, "/valid_until");
            match left {
                0 => format!("valid until {end} (EXPIRED)"),
                _ => {
                    let left = units::span(Duration::from_secs(left));
                    format!("valid until {end} ({left} left)")
                }
            }
        }
    };
    let age = units::span(Duration::from_secs(number(record, "/age_s")));
    let mut lines = vec![
        word(record, "/dir"),
        format!("  volume   {}", volume_words(record)),
        format!(
            "  version  {}, signed {age} ago, {validity}",
            word(record, "/version"),
        ),
        format!(
            "  daemon   process {}, since {}",
            word(record, "/pid"),
            word(record, "/since")
        ),
        format!("  refresh  {}", refresh_words(record)),
    ];
    let policy_left = record.pointer("/policy_left_s").and_then(Value::as_u64);
    if let Some(left) = policy_left.filter(|left| *left < units::POLICY_WARNING.as_secs()) {
        let left = units::span(Duration::from_secs(left));
        let end = word(record, "/policy_valid_until");
        lines.push(format!(
            "  policy   ends {end} ({left} left), and the volume with it, unless its owners renew it"
        ));
    }
    if record.pointer("/offline").and_then(Value::as_bool) == Some(true) {
        let words = "OFFLINE  opened from the cache; no location has confirmed this version yet";
        lines.push(format!("  {words}"));
    }
    if is_set(record, "/outage") {
        let (lasts, cause) = (
            units::span(Duration::from_secs(number(record, "/outage/lasts_s"))),
            word(record, "/outage/cause"),
        );
        lines.push(format!(
            "  OUTAGE   no location has answered for {lasts}, and reads wait for one: {cause}"
        ));
    }
    let mirrors = record.pointer("/mirrors").and_then(Value::as_array);
    for mirror in mirrors.into_iter().flatten() {
        lines.push(format!("  mirror   {}", mirror_words(mirror)));
    }
    lines.push(format!(
        "  memory   {} of {}",
        size(record, "/memory/used_bytes"),
        size(record, "/memory/limit_bytes")
    ));
    if is_set(record, "/cache") {
        lines.push(format!("  cache    {}", cache_words(record)));
    }
    let errors = record.pointer("/errors").and_then(Value::as_object);
    let errors = errors.into_iter().flatten();
    let errors: Vec<String> = errors
        .filter(|(_, n)| n.as_u64() != Some(0))
        .map(|(kind, n)| format!("{kind} {n}"))
        .collect();
    let errors = if errors.is_empty() {
        "none".to_owned()
    } else {
        errors.join(", ")
    };
    lines.push(format!("  errors   {}", printable_message(&errors)));
    lines
}

fn refresh_words(record: &Value) -> String {
    if !is_set(record, "/refresh/last") {
        return "not yet".to_owned();
    }
    let last = word(record, "/refresh/last");
    let (count, failed) = (
        number(record, "/refresh/count"),
        number(record, "/refresh/failed"),
    );
    let outcome = match is_set(record, "/refresh/error") {
        true => format!(
            "FAILED ({}): {}",
            word(record, "/refresh/error/kind"),
            word(record, "/refresh/error/message")
        ),
        false => "ok".to_owned(),
    };
    format!("last at {last}, {outcome}; {failed} of {count} failed")
}

fn mirror_words(mirror: &Value) -> String {
    let mut words = word(mirror, "/place");
    match mirror.pointer("/latency_ms").and_then(Value::as_f64) {
        Some(ms) => words.push_str(&format!(", {ms:.1} ms")),
        None => words.push_str(", no answer yet"),
    }
    words.push_str(", ");
    words.push_str(&units::count(
        number(mirror, "/requests"),
        "request",
        "requests",
    ));
    for (path, what) in [
        ("/failures", "failed"),
        ("/wrong", "wrong"),
        ("/denials", "denied"),
    ] {
        match number(mirror, path) {
            0 => {}
            n => words.push_str(&format!(", {n} {what}")),
        }
    }
    if mirror.pointer("/behind").and_then(Value::as_bool) == Some(true) {
        words.push_str(", BEHIND");
    }
    if is_set(mirror, "/set_aside") {
        words.push_str(&format!(", SET ASIDE: {}", word(mirror, "/set_aside/why")));
    } else if is_set(mirror, "/last_fault") {
        words.push_str(&format!("; last fault: {}", word(mirror, "/last_fault")));
    }
    words
}

fn cache_words(record: &Value) -> String {
    let full = record.pointer("/cache/full").and_then(Value::as_bool);
    format!(
        "{}: {} of {}{}, {} hits, {} misses, {} damaged",
        word(record, "/cache/dir"),
        size(record, "/cache/used_bytes"),
        size(record, "/cache/quota_bytes"),
        if full == Some(true) {
            " (NO SPACE LEFT ON THE DISK)"
        } else {
            ""
        },
        number(record, "/cache/hits"),
        number(record, "/cache/misses"),
        number(record, "/cache/damaged")
    )
}
