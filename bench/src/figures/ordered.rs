//! Figure 21 (SUNDR Fig. 8): entries and marks ordered by the server of a shared volume, durable, with 1 to 64 devices
//! that each wait for their receipt; beside rows of the same bytes that as many clients of PostgreSQL insert, each with
//! a commit of its own.
//!
//! The server is in this process, without a network. It verifies each entry, and sends each device what all have
//! written. Signing is the devices' work: its processor time is not the server's.

use std::sync::Arc;
use std::time::Duration;

use ::ordering::engine::Request;
use ::ordering::signed::Entry;
use anyhow::{Context, Result};
use share_server::host::Host;

use crate::cpu;
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::ordering::race::{Raced, race};
use crate::ordering::{self, Devices, drive};
use crate::peers::postgres::Postgres;

const PEER: &str = "PostgreSQL";
const BOUND: &str = "what we said";
const UNPINNED: Placement = Placement::Unpinned;

const RING_BYTES: u64 = 256 << 20;
/// Devices, and entries at full and at quick scale.
const CROWDS: [(&str, usize, (u64, u64)); 3] = [
    ("one", 1, (4_000, 100)),
    ("eight", 8, (16_000, 200)),
    ("crowd", 64, (64_000, 400)),
];
/// Devices that send marks, and marks of each.
const MARKING: ((usize, usize), (usize, usize)) = ((512, 32), (400, 5));
/// How long the peer runs with each number of clients.
const PEER_SECONDS: (u64, u64) = (8, 1);

/// Entries and marks ordered.
pub const FIGURE: Figure = Figure {
    number: 21,
    title: "entries and marks ordered by the server of a shared volume",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        Metric::rate_in("one", "entries/s, 1 device"),
        Metric::rate_in("eight", "entries/s, 8 devices"),
        Metric::rate_in("crowd", "entries/s, 64 devices"),
        Metric::rate_in("work", "entries a CPU second, 64 devices"),
        Metric::rate_in("marks", "marks a CPU second"),
        Metric::count("entry", "bytes in the log"),
        Metric::count("body", "bytes beside it"),
        Metric::count("mark", "bytes in the log"),
        Metric::processor("sign", "client µs each"),
        Metric::processor("verify", "µs each"),
    ],
    reaches: &[
        Reach::new("one", UNPINNED, PEER, Bound::AtLeast(2.0)),
        Reach::new("eight", UNPINNED, PEER, Bound::AtLeast(2.0)),
        Reach::new("crowd", UNPINNED, PEER, Bound::AtLeast(2.0)),
        Reach::new("work", UNPINNED, BOUND, Bound::AtLeast(1.0)),
        Reach::new("marks", UNPINNED, BOUND, Bound::AtLeast(1.0)),
        Reach::new("entry", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("mark", UNPINNED, BOUND, Bound::AtMost(1.0)),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let bounds = [
        ("work", 10_000.0),
        ("marks", 100_000.0),
        ("entry", 400.0),
        ("mark", 40.0),
    ];
    line_up.add(BOUND, Ok(move |_| Ok(bounds.to_vec())));
    let ours = field.clone();
    line_up.add(OURS, Ok(move |_| ordered(&ours)));
    let peer = field.clone();
    line_up.add(PEER, Ok(move |_| inserted(&peer)));
    Ok(line_up)
}

fn ordered(field: &Field) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for (name, devices, entries) in CROWDS {
        let raced = raced(field, devices, field.pick(entries))?;
        let entries = raced.entries as f64;
        readings.push((name, entries / raced.wall_s));
        if name == "crowd" {
            readings.push(("work", entries / raced.cpu_s));
            readings.push(("sign", 1e6 * raced.sign_s / entries));
            readings.push(("verify", 1e6 * verify_s(&raced.sample)?));
            readings.extend(bytes(&raced.sample)?);
        }
    }
    readings.extend(marked(field)?);
    Ok(readings)
}

/// So many devices write for themselves.
fn raced(field: &Field, devices: usize, entries: u64) -> Result<Raced> {
    let (host, sessions, devices) = begun(field, devices)?;
    let note = sessions.note.context("no note")?;
    drop(sessions);
    race(&host, devices, note, entries)
}

/// Seconds to verify a signature.
fn verify_s(sample: &[Entry]) -> Result<f64> {
    let (volume, _) = ordering::genesis_policy()?;
    let cpu_s = cpu::own_s();
    for entry in sample {
        entry.signed().verify(volume)?;
    }
    Ok((cpu::own_s() - cpu_s) / sample.len() as f64)
}

/// Mean bytes of an entry, and of its body.
fn bytes(sample: &[Entry]) -> Result<[Reading; 2]> {
    let (mut leaves, mut bodies) = (0, 0);
    for entry in sample {
        leaves += entry.signed().bytes().len();
        bodies += entry.body().context("an entry without body")?.len();
    }
    let each = |bytes: usize| bytes as f64 / sample.len() as f64;
    Ok([("entry", each(leaves)), ("body", each(bodies))])
}

/// A new server with so many devices that may write.
fn begun(field: &Field, devices: usize) -> Result<(Arc<Host>, drive::Sessions, Devices)> {
    let dir = field.fresh("ordering")?.join("server");
    ordering::create(&dir, RING_BYTES)?;
    let host = drive::open(&dir)?;
    let mut sessions = drive::Sessions::none();
    let mut devices = Devices::new(devices)?;
    sessions.begin(&host, &mut devices)?;
    Ok((host, sessions, devices))
}

/// Each of many devices sends a mark and waits for its proof, again and again.
fn marked(field: &Field) -> Result<Vec<Reading>> {
    let (devices, rounds) = (field.pick(MARKING.0), field.pick(MARKING.1));
    let (host, mut sessions, _) = begun(field, devices)?;
    let before = host.status().leaves;
    let mut count = 0;
    let cpu_s = cpu::all_threads_s();
    (0..rounds).try_for_each(|_| sessions.mark(&mut count))?;
    let cpu_s = cpu::all_threads_s() - cpu_s;
    let leaves = host.status().leaves - before;
    let marks = count as f64;
    let leaf = leaf_of_marks().len() as f64;
    Ok(vec![
        ("marks", marks / cpu_s),
        ("mark", leaf * leaves as f64 / marks),
    ])
}

/// A leaf of marks; all are equally long.
fn leaf_of_marks() -> Vec<u8> {
    let nonce = trust_shared::mark::Nonce::from_bytes([1; 32]);
    let tree = trust_shared::mark::MarkTree::new(vec![nonce]);
    tree.map_or(Vec::new(), |tree| tree.marks().encode().to_vec())
}

/// Rows of the same bytes inserted into PostgreSQL.
fn inserted(field: &Field) -> Result<Vec<Reading>> {
    let seconds = Duration::from_secs(field.pick(PEER_SECONDS));
    let mut devices = Devices::new(1)?;
    devices.beginning()?;
    let round = devices.writes()?;
    let Some((_, Request::Entry(entry))) = round.first() else {
        anyhow::bail!("no entry");
    };
    let body = entry.body().context("no body")?;
    let server = Postgres::start(field)?;
    server.make_log(entry.signed().bytes(), body)?;
    let mut readings = Vec::new();
    for (name, devices, _) in CROWDS {
        let before_s = server.cpu_s()?;
        let rows = server.insert(devices, seconds)?;
        readings.push((name, rows / seconds.as_secs_f64()));
        if name == "crowd" {
            readings.push(("work", rows / (server.cpu_s()? - before_s)));
        }
    }
    Ok(readings)
}
