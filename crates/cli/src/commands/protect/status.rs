//! `bulla protect status` and `detach`: what other processes have attached.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::attached::NO_ANCHOR;
use super::front;
use crate::args::{ProtectDetach, ProtectStatus};
use crate::config::Config;
use crate::control::{self, Ask, Told};
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sockets;
use crate::text::printable_message;
use crate::units;

/// How long the daemon may say nothing while it detaches.
const SILENCE: Duration = Duration::from_secs(120);

/// Whether a report is about the device that the user names: the device, its log, what it is shown as, or its volume.
pub fn names(record: &Map<String, Value>, named: &Path) -> bool {
    let text = |key| record.get(key).and_then(Value::as_str);
    if text("volume").is_some_and(|volume| named == Path::new(volume)) {
        return true;
    }
    let whole = |path: &Path| {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        std::fs::canonicalize(path).unwrap_or(absolute)
    };
    let wanted = whole(named);
    let places = ["device", "log", "place"].into_iter().filter_map(text);
    places
        .map(Path::new)
        .any(|place| place == named || whole(place) == wanted)
}

/// The socket and the report of the attached device that the user names.
pub fn find(config: &Config, named: &Path) -> Outcome<(PathBuf, Map<String, Value>)> {
    let mut silent = None;
    for (socket, told) in control::survey(&control::directory(config))? {
        match told {
            Told::Record(record) if names(&record, named) => return Ok((socket, record)),
            Told::Silent(why) => silent = Some(why),
            Told::Record(_) | Told::Dead | Told::Gone => {}
        }
    }
    let what = format!("{} is not attached", named.display());
    match silent {
        None => Err(Failure::new(Kind::NotAttached, what)),
        Some(why) => {
            let mut failure = Failure::new(Kind::DeviceSilent, what);
            failure.push_cause(format!("an attached device does not answer: {why}"));
            Err(failure)
        }
    }
}

/// Shows the attached devices.
pub fn status(args: &ProtectStatus, config: &Config, output: &mut Output) -> Outcome<Done> {
    let directory = control::directory(config);
    let wanted = args.device.as_deref();
    let mut live = BTreeSet::new();
    let (mut devices, mut mute, mut cleared, mut read_only) = (0_u64, 0_u64, 0_u64, 0_u64);
    for (socket, told) in control::survey(&directory)? {
        match told {
            Told::Record(record) => {
                let volume = record.get("volume").and_then(Value::as_str);
                live.insert(volume.unwrap_or_default().to_owned());
                if wanted.is_none_or(|named| names(&record, named)) {
                    devices += 1;
                    read_only +=
                        u64::from(record.get("read_only").is_some_and(|why| !why.is_null()));
                    show(&record, output)?;
                }
            }
            Told::Dead if sockets::clear(&socket).is_ok() => {
                cleared += 1;
                output.note(&format!(
                    "removed {}: its daemon has died; attach the device again, it recovers by itself",
                    socket.display()
                ));
            }
            Told::Dead => mute += silent(&socket, "its daemon has died", output)?,
            Told::Silent(why) => mute += silent(&socket, &why, output)?,
            Told::Gone => {}
        }
    }
    // Behind a device that does not answer there may be a process that is still alive.
    let stale = match mute {
        0 => stale_loops(&directory, &live, wanted, output)?,
        _ => 0,
    };
    if let (Some(device), 0, 0, 0) = (wanted, devices, mute, stale) {
        let what = format!("{} is not attached", device.display());
        return Err(Failure::new(Kind::NotAttached, what));
    }
    if devices == 0 && mute == 0 && stale == 0 {
        output.note("no device is attached");
    }
    Ok(Done {
        exit: if mute + stale + read_only == 0 {
            Exit::Ok
        } else {
            Exit::Partial
        },
        fields: fields(
            json!({"devices": devices, "mute": mute, "stale": stale, "cleared": cleared, "read_only": read_only}),
        ),
    })
}

/// Shows the loop devices of killed processes: all, or the one that the user names. Returns how many.
fn stale_loops(
    directory: &Path,
    live: &BTreeSet<String>,
    wanted: Option<&Path>,
    output: &mut Output,
) -> Outcome<u64> {
    let mut loops = front::stale_loops(directory, live)?;
    loops.retain(|attached| wanted.is_none_or(|named| named == attached.device));
    for attached in &loops {
        let (place, why) = (
            attached.device.display().to_string(),
            front::stale_loop(attached),
        );
        let hint = front::stale_loop_hint(attached);
        if output.json() {
            let one = json!({"place": place, "why": why, "hint": hint});
            output.record("stale", fields(one))?;
        } else {
            output.line(&printable_message(&place))?;
            output.line(&printable_message(&format!("  STALE    {why}; {hint}")))?;
        }
    }
    Ok(loops.len() as u64)
}

fn silent(socket: &Path, why: &str, output: &mut Output) -> Outcome<u64> {
    let (place, hint) = (socket.display().to_string(), Kind::DeviceSilent.hint());
    if output.json() {
        let one = json!({"place": place, "why": why, "hint": hint});
        output.record("mute", fields(one))?;
    } else {
        output.line(&printable_message(&place))?;
        output.line(&printable_message(&format!("  MUTE     {why}; {hint}")))?;
    }
    Ok(1)
}

fn show(record: &Map<String, Value>, output: &mut Output) -> Outcome<()> {
    if output.json() {
        return output.record("device", record.clone());
    }
    let record = Value::Object(record.clone());
    lines(&record).iter().try_for_each(|line| output.line(line))
}

fn number(record: &Value, pointer: &str) -> u64 {
    let value = record.pointer(pointer).and_then(Value::as_u64);
    value.unwrap_or_default()
}

fn word(record: &Value, pointer: &str) -> String {
    let value = record.pointer(pointer).and_then(Value::as_str);
    printable_message(value.unwrap_or("?"))
}

/// The report for people.
fn lines(record: &Value) -> Vec<String> {
    let size = |pointer: &str| units::size(number(record, pointer));
    let is_set = |pointer: &str| {
        record
            .pointer(pointer)
            .is_some_and(|value| !value.is_null())
    };
    let mut lines = vec![
        format!("{} as {}", word(record, "/device"), word(record, "/place")),
        format!("  volume   {}, {}", word(record, "/volume"), size("/bytes")),
        format!(
            "  log      {}: {} of {} in use",
            word(record, "/log"),
            size("/log_used_bytes"),
            size("/log_ring_bytes")
        ),
        format!(
            "  daemon   process {}, since {}",
            number(record, "/pid"),
            word(record, "/since")
        ),
        format!(
            "  rates    {}/s read, {}/s written, {}/s written home",
            size("/read_rate"),
            size("/write_rate"),
            size("/home_rate")
        ),
        format!("  pending  {} not home yet", size("/unsettled_bytes")),
    ];
    lines.push(match is_set("/anchor") {
        true => format!(
            "  anchor   {} ({}), {} ms behind",
            word(record, "/anchor/file"),
            word(record, "/anchor/mode"),
            number(record, "/anchor/behind_ms")
        ),
        false => format!("  anchor   NONE: {NO_ANCHOR}"),
    });
    let bad = number(record, "/bad_blocks");
    lines.push(match is_set("/last_bad") {
        true => format!(
            "  BAD      {}; the last was block {} (offset {} of the device) at {}",
            units::count(bad, "block cannot be read", "blocks cannot be read"),
            number(record, "/last_bad/block"),
            number(record, "/last_bad/offset"),
            word(record, "/last_bad/at")
        ),
        false => "  blocks   none that was read is bad".to_owned(),
    });
    if number(record, "/lost_blocks") > 0 {
        lines.push(format!(
            "  LOST     {}: the part of the log that knows them was changed; they read as errors until they are written",
            units::count(number(record, "/lost_blocks"), "block", "blocks")
        ));
    }
    if number(record, "/repaired_blocks") > 0 {
        lines.push(format!(
            "  REPAIRED {}: the disk did not have what was written",
            units::count(number(record, "/repaired_blocks"), "block", "blocks")
        ));
    }
    if is_set("/last_device_error") {
        lines.push(format!(
            "  ERRORS   {}; the last: {}",
            number(record, "/device_errors"),
            word(record, "/last_device_error")
        ));
    }
    if is_set("/read_only") {
        lines.push(format!("  READ-ONLY  {}", word(record, "/read_only")));
    }
    if is_set("/unprepared") {
        lines.push(format!("  MEMORY   {}", word(record, "/unprepared")));
    }
    lines
}

/// Detaches.
pub fn detach(args: &ProtectDetach, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (socket, report) = find(config, &args.device)?;
    let progress = crate::progress::Progress::start(output, "writing home");
    let most = report.get("unsettled_bytes").and_then(Value::as_u64);
    progress.of(most.unwrap_or_default());
    let ask = Ask::Detach { force: args.force };
    let done = control::ask(&socket, &ask, Some(SILENCE), &mut |record| {
        let left = record.get("left_bytes").and_then(Value::as_u64);
        progress.bytes(
            most.unwrap_or_default()
                .saturating_sub(left.unwrap_or_default()),
        );
        Ok(())
    });
    progress.end();
    let record = done?;
    let bad = record.get("bad_blocks").and_then(Value::as_u64);
    let bad = bad.unwrap_or_default();
    let device = record
        .get("device")
        .and_then(Value::as_str)
        .unwrap_or_default();
    output.note(&format!(
        "{device} is detached; it is what a raw disk would be"
    ));
    if bad > 0 {
        let bad = units::count(bad, "block of it was bad", "blocks of it were bad");
        output.warn(&format!(
            "{bad}: what is there now was not written, and nothing checks it without bulla"
        ));
    }
    Ok(Done::ok(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Map<String, Value> {
        fields(json!({
            "device": "/d", "log": "/l", "place": "/dev/loop7", "volume": "00ff", "bytes": 1 << 20,
            "log_ring_bytes": 1 << 30, "log_used_bytes": 4096, "pid": 7, "since": "now",
            "anchor": null, "bad_blocks": 0, "last_bad": null, "read_only": null}))
    }

    #[test]
    fn device_is_named_by_itself_its_log_its_place_or_its_volume() {
        for name in ["/d", "/l", "/dev/loop7", "00ff"] {
            assert!(names(&report(), Path::new(name)), "{name}");
        }
        for name in ["/e", "/", "00f", "", "loop7"] {
            assert!(!names(&report(), Path::new(name)), "{name}");
        }
    }

    #[test]
    fn report_says_plainly_that_there_is_no_anchor_and_what_is_bad() {
        let mut record = report();
        let text = lines(&Value::Object(record.clone())).join("\n");
        assert!(text.contains(NO_ANCHOR), "{text}");
        assert!(
            !text.contains("BAD") && !text.contains("READ-ONLY"),
            "{text}"
        );
        record.extend(fields(json!({
            "anchor": {"file": "/a", "mode": "sync", "behind_ms": 3},
            "lost_blocks": 256, "bad_blocks": 2, "last_bad": {"block": 9, "offset": 36864, "at": "then"},
            "device_errors": 1, "last_device_error": "the disk: \u{1b}[31m", "read_only": "no space"})));
        let text = lines(&Value::Object(record)).join("\n");
        assert!(text.contains("/a (sync), 3 ms behind"), "{text}");
        assert!(
            text.contains("block 9 (offset 36864 of the device)"),
            "{text}"
        );
        assert!(text.contains("LOST     256 blocks"), "{text}");
        assert!(text.contains("READ-ONLY  no space"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
