//! `bulla protect scrub`: every block of an attached device is read and checked, at a bounded rate. Where it was
//! interrupted it goes on.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::protect::scrub::{Defect, News, Reads, Scrub};
use ::protect::{BLOCK_BYTES, Block, BlockError};
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
    let ended = all(&mut scrub, attached, record);
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
        "seconds": began.elapsed().as_secs(),
    }));
    if bad == 0 {
        return Ok(fields);
    }
    let bad = units::count(bad, "block is", "blocks are");
    let mut failure = Failure::new(Kind::DeviceDamaged, format!("{bad} not what was written"));
    failure.fields = fields;
    Err(failure)
}

fn all(
    scrub: &mut Scrub,
    attached: &Attached,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<()> {
    let device = Reads(&*attached.device);
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
        let ended = |error: BlockError| Failure::of(Kind::Stopped, "the scrub ended early", &error);
        let Some(blocks) = step.map_err(ended)? else {
            return Ok(());
        };
        if told.elapsed() >= TELL {
            told = Instant::now();
            let done = scrub.report().next * BLOCK_BYTES as u64;
            let one = json!({"type": "progress", "done_bytes": done,
                "bytes": attached.device.bytes()});
            record(fields(one)).map_err(|e| stopped(&e))?;
        }
        if kept.elapsed() >= KEEP {
            kept = Instant::now();
            keep_position(attached, scrub.report().next);
        }
        std::thread::sleep(scrub.pause(blocks, began.elapsed()));
    }
}

fn defect_record(block: u64, offset: u64, defect: &Defect) -> Map<String, Value> {
    let why = match defect {
        Defect::Bad => "it is not what was written".to_owned(),
        Defect::Unreadable(error) => error.to_string(),
    };
    fields(json!({"type": "bad", "block": block, "offset": offset, "why": why}))
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
            _ => {
                progress.of(number("bytes"));
                progress.bytes(number("done_bytes"));
                Ok(())
            }
        }
    });
    progress.end();
    let record = done?;
    let checked = record.get("checked_bytes").and_then(Value::as_u64);
    output.note(&format!(
        "{} were checked, every block is what was written",
        units::size(checked.unwrap_or_default())
    ));
    Ok(Done::ok(record))
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
    output.line(&format!("bad block {block} at offset {offset}"))
}
