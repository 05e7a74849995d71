//! Figure 22: 1 to 32 devices write one shared volume at once.
//!
//! Each device is a real client with a connection of its own, 20 ms round trip (`network`); the server is a process of
//! its own. For some seconds each device makes files, one after the other, in a directory of its own; then all in one
//! directory; then all give one file one more name each time, which changes the file's inode, so that all want the same
//! thing at the same time. In the end each directory has every file that was acknowledged, and the file counts every name:
//! a lost update fails the row. A round is a round trip of the farthest writer; *rounds* is that of the slowest operation
//! on the one file, as a share of the number of writers and 3.
//!
//! Every device takes part in everything that all write, so all devices on one machine are its load, and not the server's
//! alone: *busy* is the processor time of all devices and the server, as a share of what the machine has, for each of the
//! three kinds of work. A rate counts only while some of that is left.
//! Because processor time is much of 20 ms, the one file is also written over 100 ms. *Passed* is the most changes of others
//! that came into the log while one call waited: that is the protocol's, whatever the processors do.

use std::time::Duration;

use anyhow::{Result, ensure};
use share::client::Client;
use share::home::Home;

use crate::field::{Field, Scale};
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::network::Far;
use crate::outcome::Outcome;
use crate::process::Daemon;
use crate::shared::phase::{Kind, Phase, phase};
use crate::shared::volume::{FOUNDER, Volume};
use crate::shared::{device, server};
use crate::{cpu, stats};

const BOUND: &str = "what we said";
const ONE: &str = "1 writer";
const UNPINNED: Placement = Placement::Unpinned;
/// One way, milliseconds.
const ONE_WAY_MS: u64 = 10;
/// One way of the rows with a long round trip, where processor time is a small part of a turn.
const LONG_MS: u64 = 50;
/// Writers of the rows with a long round trip.
const LONG: &[u32] = &[1, 8, 32];
/// The far writer's way, and the near ones'.
const FAR_MS: u64 = 25;
const NEAR_MS: u64 = 1;
/// Writers of the row with a far one.
const AROUND_FAR: u32 = 8;
/// Work with more than this share of the processors in use is limited by the machine.
const FULL: f64 = 0.9;

const OWN: Metric = Metric::rate("own");
const ONE_DIR: Metric = Metric::rate("one-dir");
const ONE_FILE: Metric = Metric::rate("one-file");
const ROUNDS: Metric = Metric::count("rounds", "of N + 3");
const SLOWEST: Metric = Metric::count("slowest", "s, one file");
const PASSED: Metric = Metric::count("passed", "changes of others");
const CPU: Metric = Metric::server_cpu("cpu");
const OWN_BUSY: Metric = Metric::count("own-busy", "of all processors");
const DIR_BUSY: Metric = Metric::count("dir-busy", "of all processors");
const FILE_BUSY: Metric = Metric::count("file-busy", "of all processors");
const OWN_SHARE: Metric = Metric::count("own-linear", "of linear");
const DIR_SHARE: Metric = Metric::count("dir-linear", "of linear");
const FILE_SHARE: Metric = Metric::count("file-one", "of one writer");

/// Many writers.
pub const FIGURE: Figure = Figure {
    number: 22,
    title: "1 to 32 devices write one shared volume, 20 ms round trip",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[
        OWN, ONE_DIR, ONE_FILE, OWN_SHARE, DIR_SHARE, FILE_SHARE, ROUNDS, SLOWEST, PASSED, CPU,
        OWN_BUSY, DIR_BUSY, FILE_BUSY,
    ],
    reaches: &[
        reach("own-linear", Bound::AtLeast(0.9)),
        reach("dir-linear", Bound::AtLeast(0.8)),
        reach("file-one", Bound::AtLeast(0.7)),
        reach("rounds", Bound::AtMost(1.0)),
    ],
    derive: scaling,
    line_up,
};

const fn reach(metric: &'static str, bound: Bound) -> Reach {
    Reach::new(metric, UNPINNED, BOUND, bound)
}

const fn writers(scale: Scale) -> &'static [u32] {
    match scale {
        Scale::Full => &[1, 2, 4, 8, 16, 32],
        Scale::Quick => &[1, 2, 4],
    }
}

fn name_of(writers: u32) -> String {
    let plural = if writers == 1 { "" } else { "s" };
    format!("{writers} writer{plural}")
}

fn long_name_of(writers: u32) -> String {
    format!("{}, {} ms", name_of(writers), 2 * LONG_MS)
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let bounds = [OWN_SHARE, DIR_SHARE, FILE_SHARE, ROUNDS].map(|metric| (metric.name, 1.0));
    line_up.add(BOUND, Ok(move |_| Ok(bounds.to_vec())));
    for count in writers(field.scale) {
        let ways = vec![ONE_WAY_MS; *count as usize];
        let field = field.clone();
        line_up.add(&name_of(*count), Ok(move |_| measure(&field, &ways, false)));
    }
    for count in LONG.iter().filter(|_| field.scale == Scale::Full) {
        let ways = vec![LONG_MS; *count as usize];
        let field = field.clone();
        line_up.add(
            &long_name_of(*count),
            Ok(move |_| measure(&field, &ways, true)),
        );
    }
    let mut ways = vec![NEAR_MS; AROUND_FAR as usize];
    ways[0] = FAR_MS;
    let (name, field) = (format!("{AROUND_FAR} writers, one far"), field.clone());
    line_up.add(&name, Ok(move |_| measure(&field, &ways, true)));
    Ok(line_up)
}

/// The volume, its server, and a home for each writer at the end of a path of its own.
struct Stage {
    volume: Volume,
    daemon: Daemon,
    homes: Vec<Home>,
}

impl Stage {
    fn set(field: &Field, ways: &[u64]) -> Result<Stage> {
        let volume = Volume::create(&field.fresh("writers")?)?;
        let (daemon, port) = server::start(field, &volume.server_dir())?;
        let mut homes = Vec::new();
        for (number, way) in (FOUNDER..).zip(ways) {
            let far = Far::new(port, *way)?;
            homes.push(volume.home(number, far.port)?);
        }
        Ok(Stage {
            volume,
            daemon,
            homes,
        })
    }

    async fn clients(&self) -> Result<Vec<Client>> {
        let mut clients = Vec::new();
        for home in &self.homes {
            clients.push(device::start(home).await?);
        }
        prepare(&clients).await?;
        Ok(clients)
    }
}

fn measure(field: &Field, ways: &[u64], only_one_file: bool) -> Result<Vec<Reading>> {
    let stage = Stage::set(field, ways)?;
    let span = Duration::from_millis(field.pick((6000, 1000)));
    let runtime = device::runtime()?;
    runtime.block_on(async {
        let clients = stage.clients().await?;
        let mut readings = Vec::new();
        let server_before_s = stage.daemon.cpu_s()?;
        let mut done = 0;
        if !only_one_file {
            let own = phase(&clients, span, |number, n| {
                (format!("own-{number}/{n}"), Kind::Create)
            });
            let own = own.await?;
            let shared = phase(&clients, span, |number, n| {
                (format!("all/{number}-{n}"), Kind::Create)
            });
            let shared = shared.await?;
            done += own.done() + shared.done();
            readings.extend([(OWN.name, own.rate()), (ONE_DIR.name, shared.rate())]);
            readings.extend([(OWN_BUSY.name, own.busy), (DIR_BUSY.name, shared.busy)]);
            check(&clients[0], ways.len(), own.done(), shared.done()).await?;
        }
        let file = one_file(&clients, span).await?;
        done += file.done();
        let server_s = stage.daemon.cpu_s()? - server_before_s;
        readings.extend(readings_of(&file, ways));
        readings.push((CPU.name, server_s * 1e6 / done as f64));
        for client in clients {
            client.close(device::soon()).await?;
        }
        Ok(readings)
    })
}

/// All give one file one more name each time. No update may be lost.
async fn one_file(clients: &[Client], span: Duration) -> Result<Phase> {
    let file = phase(clients, span, |number, n| {
        (format!("names-{number}/{n}"), Kind::Link)
    });
    let file = file.await?;
    let links = device::look_up(&clients[0], "file").await?.links;
    let (counted, done) = (u64::from(links).saturating_sub(1), file.done());
    ensure!(counted == done, "lost updates: {counted} of {done}");
    Ok(file)
}

fn readings_of(file: &Phase, ways: &[u64]) -> [Reading; 5] {
    let farthest_ms = 2 * ways.iter().max().copied().unwrap_or(1);
    let slowest_s = file.slowest().map_or(0.0, |call| call.took_s);
    let rounds = slowest_s * 1000.0 / farthest_ms as f64;
    [
        (ONE_FILE.name, file.rate()),
        (ROUNDS.name, rounds / (ways.len() + 3) as f64),
        (SLOWEST.name, slowest_s),
        (PASSED.name, file.most_passed() as f64),
        (FILE_BUSY.name, file.busy),
    ]
}

/// One row of the figure, the one file only, once: for a profile, or to compare two builds. `trace`: every call is
/// printed.
pub fn one_row(
    field: &Field,
    writers: usize,
    one_way_ms: u64,
    span: Duration,
    trace: bool,
) -> Result<()> {
    let ways = vec![one_way_ms; writers];
    let stage = Stage::set(field, &ways)?;
    device::runtime()?.block_on(async {
        let clients = stage.clients().await?;
        let (server_before_s, before_s) = (stage.daemon.cpu_s()?, cpu::all_threads_s());
        let file = one_file(&clients, span).await?;
        let server_s = stage.daemon.cpu_s()? - server_before_s;
        let clients_s = cpu::all_threads_s() - before_s;
        if trace {
            for call in &file.calls {
                println!(
                    "{:8.1} ms  device {:2}  at {:6}  {:6.1} ms  passed by {}",
                    call.began_s * 1000.0,
                    call.device,
                    call.at,
                    call.took_s * 1000.0,
                    file.passed(call)
                );
            }
        }
        for (name, value) in readings_of(&file, &ways) {
            println!("{name:10} {value:.3}");
        }
        let each = 1e6 / file.done() as f64;
        println!("server     {:.0} us a call", server_s * each);
        println!("clients    {:.0} us a call", clients_s * each);
        for client in clients {
            client.close(device::soon()).await?;
        }
        drop(stage.volume);
        Ok(())
    })
}

/// Admits the devices, and makes what they write to.
async fn prepare(clients: &[Client]) -> Result<()> {
    let Some((founder, others)) = clients.split_first() else {
        return Ok(());
    };
    founder.running(device::soon()).await?;
    for (number, _) in (FOUNDER + 1..).zip(others) {
        device::admit(founder, number).await?;
    }
    device::make_dir(founder, "all").await?;
    device::call(
        founder,
        device::create(founder, "file", 0o644, device::content(b"x"))?,
    )
    .await?;
    for number in 0..clients.len() {
        device::make_dir(founder, &format!("own-{number}")).await?;
        device::make_dir(founder, &format!("names-{number}")).await?;
    }
    for (number, client) in clients.iter().enumerate() {
        client.running(device::soon()).await?;
        // Each knows the others before the clock starts.
        device::look_up(client, &format!("own-{number}")).await?;
    }
    Ok(())
}

/// Every file that was acknowledged is there.
async fn check(client: &Client, writers: usize, own: u64, shared: u64) -> Result<()> {
    let mut found = 0;
    for number in 0..writers {
        found += device::names(client, &format!("own-{number}")).await?;
    }
    ensure!(found == own, "{found} of {own} files are there");
    let found = device::names(client, "all").await?;
    ensure!(found == shared, "{found} of {shared} files are there");
    Ok(())
}

/// Shares of linear growth; and our row: the smallest share of each kind of work that the machine does not limit, and the
/// most rounds of all rows.
fn scaling(outcome: &mut Outcome, placement: Placement) {
    let counts = writers(outcome.scale);
    for count in counts {
        for (rate, share, linear) in [
            (OWN, OWN_SHARE, f64::from(*count)),
            (ONE_DIR, DIR_SHARE, f64::from(*count)),
            (ONE_FILE, FILE_SHARE, 1.0),
        ] {
            let many = outcome.samples(&name_of(*count), placement, rate.name);
            let one = outcome.samples(ONE, placement, rate.name);
            let samples: Vec<f64> = many
                .zip(one)
                .map(|(many, one)| many.iter().zip(one).map(|(m, o)| m / o / linear).collect())
                .unwrap_or_default();
            if !samples.is_empty() {
                outcome.derived(&name_of(*count), placement, share, samples);
            }
        }
    }
    for count in LONG {
        let one = outcome.samples(&long_name_of(1), placement, ONE_FILE.name);
        let name = long_name_of(*count);
        let many = outcome.samples(&name, placement, ONE_FILE.name);
        if let Some((many, one)) = many.zip(one) {
            let samples = many.iter().zip(one).map(|(m, o)| m / o).collect();
            outcome.derived(&name, placement, FILE_SHARE, samples);
        }
    }
    let free = |busy: Metric| -> Vec<String> {
        let is_free = |row: &String| {
            let busy = outcome.samples(row, placement, busy.name);
            busy.and_then(stats::median)
                .is_some_and(|busy| busy <= FULL)
        };
        counts.iter().map(|c| name_of(*c)).filter(is_free).collect()
    };
    let mut all: Vec<String> = outcome.rows(placement);
    all.retain(|row| row != BOUND);
    let mut ours = Vec::new();
    for (metric, rows, choose) in [
        (OWN_SHARE, free(OWN_BUSY), f64::min as fn(f64, f64) -> f64),
        (DIR_SHARE, free(DIR_BUSY), f64::min),
        (FILE_SHARE, free(FILE_BUSY), f64::min),
        (ROUNDS, all, f64::max),
    ] {
        let rows: Vec<&[f64]> = rows
            .iter()
            .filter_map(|row| outcome.samples(row, placement, metric.name))
            .collect();
        ours.push((metric, stats::round_by_round(&rows, choose)));
    }
    for (metric, samples) in ours {
        if !samples.is_empty() && outcome.not_measured.is_empty() {
            outcome.derived(OURS, placement, metric, samples);
        }
    }
}
