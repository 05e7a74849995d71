//! `bulla protect scrub`: the log's disk and every block of an attached device are read and checked, at a bounded rate,
//! and what can be repaired is. The log comes first, and always from its beginning; in the blocks a scrub goes on where
//! it was interrupted.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::protect::scrub::{Defect, News, Scrub};
use ::protect::{BLOCK_BYTES, Block, BlockError, Blocks, LogDefect, LogScrub, Part};
use serde_json::{Map, Value, json};

use super::attached::Attached;
use super::status;
use crate::args::ProtectScrub;
use crate::config::Config;
use crate::control::{self, Ask};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::units;

/// How often progress is told and the position is kept.
const TELL: Duration = Duration::from_millis(250);
const KEEP: Duration = Duration::from_secs(2);
/// Bad blocks that are told one by one.
const MAX_TOLD: u64 = 10_000;
/// A pause is interrupted so often, to see whether the client is still there.
const LIFE: Duration = Duration::from_secs(2);
/// How long the daemon may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// Scrubs, in the daemon.
pub fn run(
    attached: &Attached,
    bwlimit: Option<u64>,
    restart: bool,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<Map<String, Value>> {
    let Ok(_turn) = attached.scrubbing.try_lock() else {
        let failure = Failure::new(Kind::Attached, "the device is being scrubbed already");
        return Err(failure.with_hint("wait for the other scrub, or stop it with Ctrl-C"));
    };
    let blocks = attached.device.bytes().div_ceil(BLOCK_BYTES as u64);
    let kept = read_position(attached).filter(|next| !restart && *next < blocks);
    let first = kept.unwrap_or(0);
    let began = Instant::now();
    let mut scrub = Scrub::new(first, bwlimit);
    let mut log = LogReport::default();
    let ended = all_of_log(&mut log, &scrub, attached, record)
        .and_then(|()| all(&mut scrub, attached, record));
    let report = scrub.report();
    if let Err(failure) = ended {
        keep_position(attached, report.next);
        return Err(failure);
    }
    // Nothing to go on with.
    let _ = std::fs::remove_file(position_file(attached));
    let bad = report.bad + report.unreadable;
    let fields = fields(json!({
        "device": attached.names.device.display().to_string(),
        "volume": attached.names.volume.to_string(),
        "first_block": first,
        "checked_bytes": attached.device.bytes() - first * BLOCK_BYTES as u64,
        "bad_blocks": bad,
        "unreadable_blocks": report.unreadable,
        "repaired_blocks": report.repaired,
        "log_checked_bytes": log.bytes,
        "log_defects": log.defects,
        "log_repaired": log.repaired,
        "seconds": began.elapsed().as_secs(),
    }));
    let lost = log.defects - log.repaired;
    let what = match (bad, lost) {
        (0, 0) => return Ok(fields),
        (0, _) => format!("{} not repaired", defects(lost)),
        (_, 0) => format!("{} not what was written", blocks_are(bad)),
        _ => format!(
            "{} not what was written, and {} not repaired",
            blocks_are(bad),
            defects(lost)
        ),
    };
    let mut failure = Failure::new(Kind::DeviceDamaged, what);
    failure.fields = fields;
    Err(failure)
}

fn blocks_are(count: u64) -> String {
    units::count(count, "block is", "blocks are")
}

fn defects(count: u64) -> String {
    units::count(
        count,
        "defect of the log's disk is",
        "defects of the log's disk are",
    )
}

/// What was found on the log's disk.
#[derive(Default)]
struct LogReport {
    bytes: u64,
    defects: u64,
    repaired: u64,
}

fn all_of_log(
    report: &mut LogReport,
    rate: &Scrub,
    attached: &Attached,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<()> {
    let mut scrub = LogScrub::new(&attached.device);
    let mut told = Instant::now();
    loop {
        let began = Instant::now();
        let mut gone = None;
        let step = scrub.step(rate.step_bytes(), &mut |defect| {
            report.defects += 1;
            report.repaired += u64::from(defect.is_repaired);
            if report.defects <= MAX_TOLD && gone.is_none() {
                tell_operator(&defect);
                gone = record(log_record(&defect)).err();
            }
        });
        if let Some(error) = gone {
            return Err(stopped(&error));
        }
        let Some(bytes) = step.map_err(|error| ended(&error))? else {
            return Ok(());
        };
        report.bytes += bytes;
        if told.elapsed() >= TELL {
            told = Instant::now();
            record(progress(0, attached)).map_err(|e| stopped(&e))?;
        }
        rest(
            rate.pause_after(bytes, began.elapsed()),
            0,
            attached,
            record,
        )?;
    }
}

/// The daemon's log names it too.
fn tell_operator(defect: &LogDefect) {
    tracing::warn!(
        part = name(defect.part),
        offset = defect.offset,
        repaired = defect.is_repaired,
        "a part of the log's disk was not what was written"
    );
}

fn ended(error: &BlockError) -> Failure {
    Failure::of(Kind::Stopped, "the scrub ended early", error)
}

fn all(
    scrub: &mut Scrub,
    attached: &Attached,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<()> {
    let device = Blocks(&attached.device);
    let (mut told, mut kept) = (Instant::now(), Instant::now());
    let mut count = 0;
    loop {
        let began = Instant::now();
        let mut gone = None;
        let step = scrub.step(&device, &mut |news| {
            if let News::Defect {
                block,
                offset,
                defect,
            } = news
            {
                count += 1;
                if count <= MAX_TOLD && gone.is_none() {
                    gone = record(defect_record(block, offset, defect)).err();
                }
            }
        });
        if let Some(error) = gone {
            return Err(stopped(&error));
        }
        let Some(blocks) = step.map_err(|error| ended(&error))? else {
            return flush(scrub, attached);
        };
        let done = scrub.report().next * BLOCK_BYTES as u64;
        if told.elapsed() >= TELL {
            told = Instant::now();
            record(progress(done, attached)).map_err(|e| stopped(&e))?;
        }
        if kept.elapsed() >= KEEP {
            kept = Instant::now();
            keep_position(attached, scrub.report().next);
        }
        rest(scrub.pause(blocks, began.elapsed()), done, attached, record)?;
    }
}

/// Makes durable what was repaired.
fn flush(scrub: &Scrub, attached: &Attached) -> Outcome<()> {
    match scrub.report().repaired {
        0 => Ok(()),
        _ => attached.device.flush().map_err(|error| ended(&error)),
    }
}

fn progress(done: u64, attached: &Attached) -> Map<String, Value> {
    let all = attached.device.bytes();
    fields(json!({"type": "progress", "done_bytes": done, "bytes": all}))
}

/// Waits, so that the rate is kept.
fn rest(
    pause: Duration,
    done: u64,
    attached: &Attached,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<()> {
    let mut left = pause;
    while left > LIFE {
        std::thread::sleep(LIFE);
        left -= LIFE;
        record(progress(done, attached)).map_err(|e| stopped(&e))?;
    }
    std::thread::sleep(left);
    Ok(())
}

fn name(part: Part) -> &'static str {
    match part {
        Part::Superblock => "superblock",
        Part::KeySlots => "key_slots",
        Part::MapPage => "map_page",
        Part::Frame => "frame",
        Part::Content => "content",
    }
}

fn log_record(defect: &LogDefect) -> Map<String, Value> {
    let lost = &defect.lost;
    fields(json!({
        "type": "log_defect",
        "part": name(defect.part),
        "offset": defect.offset,
        "repaired": defect.is_repaired,
        "lost_blocks": lost.end - lost.start,
        "first_lost_block": (!lost.is_empty()).then_some(lost.start),
    }))
}

fn defect_record(block: u64, offset: u64, defect: &Defect) -> Map<String, Value> {
    let why = match defect {
        Defect::Bad => "it is not what was written".to_owned(),
        Defect::Unreadable(error) => error.to_string(),
        Defect::NotZero { .. } => "it reads as zeros, and the device had something else".to_owned(),
    };
    let repaired = matches!(defect, Defect::NotZero { is_repaired: true });
    fields(
        json!({"type": "bad", "block": block, "offset": offset, "why": why, "repaired": repaired}),
    )
}

/// Keeps the position. If it is lost, the next scrub begins at an earlier one.
fn keep_position(attached: &Attached, next: u64) {
    let path = position_file(attached);
    let new = path.with_extension("tmp");
    let kept =
        std::fs::write(&new, format!("next {next}\n")).and_then(|()| std::fs::rename(&new, &path));
    if let Err(error) = kept {
        tracing::warn!(%error, "the position of the scrub cannot be kept");
    }
}

fn stopped(error: &io::Error) -> Failure {
    Failure::of(Kind::Stopped, "nobody waits for the scrub any more", error)
}

fn position_file(attached: &Attached) -> PathBuf {
    let name = format!("{}.scrub", attached.names.volume);
    attached.names.state.join(name)
}

fn read_position(attached: &Attached) -> Option<u64> {
    let text = std::fs::read_to_string(position_file(attached)).ok()?;
    text.strip_prefix("next ")?.strip_suffix('\n')?.parse().ok()
}

/// Asks the daemon for a scrub and shows what it finds.
pub fn ask(args: &ProtectScrub, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (socket, _) = status::find(config, &args.device)?;
    let ask = Ask::Scrub {
        bwlimit: args.bwlimit,
        restart: args.restart,
    };
    let progress = Progress::start(output, "checking");
    let done = control::ask(&socket, &ask, Some(SILENCE), &mut |record| {
        let number = |key: &str| record.get(key).and_then(Value::as_u64).unwrap_or_default();
        match record.get("type").and_then(Value::as_str) {
            Some("bad") => show_bad(record, number("block"), number("offset"), output),
            Some("log_defect") => show_log_defect(record, number("offset"), output),
            _ => {
                progress.of(number("bytes"));
                progress.bytes(number("done_bytes"));
                Ok(())
            }
        }
    });
    progress.end();
    let record = done?;
    let number = |key: &str| record.get(key).and_then(Value::as_u64).unwrap_or_default();
    let checked = number("checked_bytes") + number("log_checked_bytes");
    let checked = units::size(checked);
    let repaired = number("repaired_blocks") + number("log_repaired");
    output.note(&match repaired {
        0 => format!("{checked} were checked, everything is what was written"),
        n => format!(
            "{checked} were checked; {} found and repaired",
            units::count(n, "defect was", "defects were")
        ),
    });
    if number("log_checked_bytes") == 0 {
        output.warn("the device takes no writes, so the log was not checked");
    }
    Ok(Done::ok(record))
}

fn is_repaired(record: &Map<String, Value>) -> bool {
    record.get("repaired") == Some(&Value::Bool(true))
}

fn show_log_defect(record: &Map<String, Value>, offset: u64, output: &mut Output) -> Outcome<()> {
    if output.json() {
        let mut one = record.clone();
        one.remove("type");
        return output.record("log_defect", one);
    }
    let part = match record.get("part").and_then(Value::as_str) {
        Some("superblock") => "a copy of the superblock",
        Some("key_slots") => "a copy of the key slots",
        Some("map_page") => "a page of the map of digests",
        Some("frame") => "a frame of the ring",
        _ => "a page of content in the ring",
    };
    let number = |key: &str| record.get(key).and_then(Value::as_u64);
    let lost = match (number("first_lost_block"), number("lost_blocks")) {
        (Some(first), Some(count)) if count > 1 => {
            format!("; blocks {first} to {} are lost", first + count - 1)
        }
        (Some(first), _) => format!("; block {first} is lost"),
        _ => String::new(),
    };
    let end = match is_repaired(record) {
        true => "repaired",
        false => "NOT repaired",
    };
    output.line(&format!(
        "log: {part} at offset {offset} is wrong: {end}{lost}"
    ))
}

fn show_bad(
    record: &Map<String, Value>,
    block: u64,
    offset: u64,
    output: &mut Output,
) -> Outcome<()> {
    if output.json() {
        let mut one = record.clone();
        one.remove("type");
        return output.record("bad", one);
    }
    if is_repaired(record) {
        return output.line(&format!(
            "block {block} at offset {offset} is not zeros: repaired"
        ));
    }
    output.line(&format!("bad block {block} at offset {offset}"))
}
