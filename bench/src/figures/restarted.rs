//! Figure 25: the server of a shared volume with 10⁶ entries, killed under load, opened again until it answers a device.
//!
//! The figure checks that nothing acknowledged is lost: the new process must have the log of the newest note that a
//! device got before the kill.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trust::encode::{Decoder, Encoder};
use trust::history::Frontier;
use trust_shared::note::{NOTE_BYTES, SignedNote};

use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::ordering::{self, Devices, drive};

const BOUND: &str = "what we said";
const UNPINNED: Placement = Placement::Unpinned;
const RING_BYTES: u64 = 256 << 20;
const DEVICES: usize = 64;
/// Entries before the load.
const ENTRIES: (usize, usize) = (1_000_000, 10_000);
/// How long the load lasts.
const LOAD: Duration = Duration::from_secs(3);

/// A restart.
pub const FIGURE: Figure = Figure {
    number: 25,
    title: "the server of a shared volume opened again after kill -9",
    rounds: (5, 1),
    placements: &[UNPINNED],
    metrics: &[
        Metric::time("restart", "s until it answers"),
        Metric::count("leaves", "in its log"),
    ],
    reaches: &[Reach::new("restart", UNPINNED, BOUND, Bound::AtMost(1.0))],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let dir = field.fresh("restarted")?.join("server");
    let mut known = filled(&dir, field.pick(ENTRIES))?;
    let mut line_up = LineUp::new();
    line_up.add(BOUND, Ok(|_| Ok(vec![("restart", 2.0)])));
    let mut run = 0;
    let ours = move |_| {
        run += 1;
        let newest = killed(&dir, &known, run)?;
        let readings = restarted(&dir, &newest)?;
        known.catch_up(&dir, &newest)?;
        Ok(readings)
    };
    line_up.add(OURS, Ok(ours));
    Ok(line_up)
}

/// A log, and the note that names it.
struct Known {
    log: Frontier,
    note: SignedNote,
}

/// A server with so many entries.
fn filled(dir: &Path, entries: usize) -> Result<Known> {
    ordering::create(dir, RING_BYTES)?;
    let host = drive::open(dir)?;
    let mut devices = Devices::new(DEVICES)?;
    let mut sessions = drive::Sessions::none();
    sessions.begin(&host, &mut devices)?;
    for _ in 0..entries / DEVICES {
        let round = devices.writes()?;
        sessions.play(&round, devices.log().size())?;
    }
    Ok(Known {
        log: devices.log().clone(),
        note: sessions.note.context("no note")?,
    })
}

/// Runs a server under load in a process of its own, and kills it. The newest note that a device was sent.
fn killed(dir: &Path, known: &Known, run: u64) -> Result<SignedNote> {
    let mut child = Killed(
        Command::new(std::env::current_exe()?)
            .arg("load-server")
            .arg(dir)
            .arg(hex(|out| known.log.encode(out)))
            .arg(hex(|out| known.note.encode(out)))
            .arg(run.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a server")?,
    );
    let output = child.0.stdout.take().context("no output")?;
    let (mut newest, mut until) = (None, None);
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // The last line may be cut.
        newest = note(&line).ok().or(newest);
        let until = *until.get_or_insert_with(|| Instant::now() + LOAD);
        if Instant::now() > until {
            child.0.kill()?; // lines that it wrote before still count
        }
    }
    newest.context("the server acknowledged nothing")
}

/// A child that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds until the server answers a device that has this note.
fn restarted(dir: &Path, note: &SignedNote) -> Result<Vec<Reading>> {
    let start = Instant::now();
    let host = drive::open(dir)?;
    let mut sessions = drive::Sessions::none();
    sessions.connect(&host, 1, Some(*note))?;
    sessions.catch_up(note.note().log.size, &mut |_| Ok(()))?;
    let restart_s = start.elapsed().as_secs_f64();
    let leaves = host.status().leaves;
    ensure!(sessions.note.is_some(), "the server has sent nothing");
    ensure!(
        leaves >= note.note().log.size,
        "acknowledged entries are lost"
    );
    Ok(vec![("restart", restart_s), ("leaves", leaves as f64)])
}

impl Known {
    /// Takes what was written under load. The newest note must be on the way.
    fn catch_up(&mut self, dir: &Path, newest: &SignedNote) -> Result<()> {
        let host = drive::open(dir)?;
        let mut sessions = drive::Sessions::none();
        sessions.connect(&host, 1, Some(self.note))?;
        let newest = newest.note().log;
        let mut met = false;
        sessions.catch_up(host.status().leaves, &mut |delivery| {
            for leaf in &delivery.leaves {
                self.log.push(&leaf.leaf)?;
                met |= self.log.point(newest.epoch) == newest;
            }
            Ok(())
        })?;
        ensure!(met, "the log does not lead to what was acknowledged");
        self.note = sessions.note.context("no note")?;
        Ok(())
    }
}

/// The process that is killed: a server, and devices that write until then. Prints each note that they are sent.
///
/// # Errors
/// When the server does not do what it should.
pub fn load_server(dir: &Path, log: &str, newest: &str, run: u64) -> Result<()> {
    let log = Frontier::decode(&mut Decoder::new(&bytes(log)?, "log"))?;
    let host = drive::open(dir)?;
    let mut sessions = drive::Sessions::none();
    let mut devices = Devices::after(DEVICES, log, run)?;
    sessions.connect(&host, DEVICES, Some(note(newest)?))?;
    sessions.catch_up(host.status().leaves, &mut |delivery| {
        devices.extend(delivery.leaves.iter().map(|leaf| &leaf.leaf[..]))
    })?;
    let mut round = devices.resume(0..DEVICES)?;
    loop {
        sessions.play(&round, devices.log().size())?;
        let newest = sessions.note.as_ref().context("no note")?;
        writeln!(std::io::stdout(), "{}", hex(|out| newest.encode(out)))?;
        round = devices.writes()?;
    }
}

fn hex(encode: impl FnOnce(&mut Encoder)) -> String {
    let mut out = Encoder::new();
    encode(&mut out);
    let bytes = out.finish();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    ensure!(rest.is_empty(), "half a byte");
    let byte = |pair: &[u8; 2]| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?);
    pairs.iter().map(byte).collect()
}

fn note(hex: &str) -> Result<SignedNote> {
    let bytes = bytes(hex)?;
    ensure!(bytes.len() == NOTE_BYTES, "not a note");
    Ok(SignedNote::decode(&mut Decoder::new(&bytes, "note"))?)
}
