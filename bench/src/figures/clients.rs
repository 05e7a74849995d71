//! Figure 9 (SFSRO Fig. 8): a compile's requests, replayed by up to 3,000 clients at once.
//!
//! A reader with empty caches reads the files of a compile (`compile`), and its requests are recorded.
//! The total number of requests is the same for any number of clients. Each client has a connection and
//! one request in flight. Only the server is measured. Every measurement starts a server, and one client
//! first sends all requests to it, so that memory kept for all clients is not counted per client. Servers
//! of different builds serve the same repository and get the same requests.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Result, ensure};
use tokio::task::LocalSet;

use crate::dataset;
use crate::field::{Field, Scale};
use crate::figure::{Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading};
use crate::load::{self, Clients};
use crate::outcome::Outcome;
use crate::protocol::{self, Call, runtime};
use crate::subject::Published;
use crate::{compile, cpu, memory, process, stats};

const BOUND: &str = "what we said";
/// Number of clients with which larger numbers are compared, at both scales.
const FEW: &str = "10 clients";
const UNPINNED: Placement = Placement::Unpinned;
/// Open files of this program besides connections.
const OTHER_FILES: u64 = 256;
/// How often one client requests everything before the measurement. The server caches answers that were
/// requested more than once.
const WARMING: usize = 3;

const CPU: Metric = Metric::server_cpu("cpu");
/// The load generator's own processor time. If it is as long as a request, it limits the rate.
const LOAD: Metric = Metric::count("load", "client µs each");
const RATE: Metric = Metric::rate("rate");
const PEAK: Metric = Metric::rate("peak");
const BUSY: Metric = Metric::count("busy", "bytes a client");
const IDLE: Metric = Metric::count("idle", "bytes a client");
const KERNEL: Metric = Metric::count("kernel", "bytes a client, both ends");

/// Many clients.
pub const FIGURE: Figure = Figure {
    number: 9,
    title: "a compile's requests from 1 to 3,000 clients",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[CPU, LOAD, RATE, PEAK, BUSY, IDLE, KERNEL],
    reaches: &[
        Reach::new("cpu", UNPINNED, FEW, Bound::AtMost(1.1)),
        Reach::new("rate", UNPINNED, OURS, Bound::AtLeast(0.9)).beside("peak"),
        Reach::new("busy", UNPINNED, BOUND, Bound::AtMost(1.0)),
    ],
    derive: worst,
    line_up,
};

const fn clients(scale: Scale) -> &'static [u32] {
    match scale {
        Scale::Full => &[1, 10, 100, 300, 1000, 3000],
        Scale::Quick => &[1, 10, 50],
    }
}

fn name_of(clients: u32) -> String {
    let plural = if clients == 1 { "" } else { "s" };
    format!("{clients} client{plural}")
}

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::linux(field)?;
    let mut line_up = LineUp::new();
    line_up.add(BOUND, Ok(|_| Ok(vec![(BUSY.name, f64::from(32 << 10))])));
    // One publication and one trace for all rows, so that every server gets the same requests.
    let replayed = Replayed::new(field, &tree);
    for build in field.builds() {
        let replayed = replayed.as_ref().map(|r| r.with_build(build).map(Rc::new));
        for count in clients(field.scale) {
            let name = build.row(&name_of(*count));
            match &replayed {
                Ok(Ok(replayed)) => {
                    let replayed = replayed.clone();
                    line_up.add(&name, Ok(move |_| replayed.measure(*count)));
                }
                Ok(Err(error)) => line_up.missing(&name, &format!("{error:#}")),
                Err(error) => line_up.missing(&name, &format!("{error:#}")),
            }
        }
    }
    Ok(line_up)
}

/// A volume, and the requests for it.
struct Replayed {
    field: Field,
    published: Published,
    trace: Vec<Call>,
}

impl Replayed {
    fn new(field: &Field, tree: &Path) -> Result<Replayed> {
        // The quick tree is that directory alone.
        let units = Path::new(field.pick(("lib", "")));
        let order = compile::order(tree, units)?;
        let published = Published::new(field, "compile", tree)?;
        let (_server, place) = protocol::serve_published(field, &published)?;
        let state = field.fresh("reader-state")?;
        let trace = runtime()?.block_on(place.record_all(&order, &state))?;
        eprintln!("  {} files, {} calls", order.len(), trace.len());
        Ok(Replayed {
            field: field.clone(),
            published,
            trace,
        })
    }

    /// The same requests for the server of a build.
    fn with_build(&self, build: Build) -> Result<Replayed> {
        Ok(Replayed {
            field: self.field.clone(),
            published: self.published.with_build(&self.field, build, "compile")?,
            trace: self.trace.clone(),
        })
    }

    fn measure(&self, count: u32) -> Result<Vec<Reading>> {
        process::raise_open_files(u64::from(count) + OTHER_FILES)?;
        let (server, place) = protocol::serve_published(&self.field, &self.published)?;
        let runtime = runtime()?;
        let tasks = LocalSet::new();
        let script = tasks.block_on(&runtime, async {
            let script = load::script(&place, &self.trace).await?;
            let first = Clients::connect(&place, 1).await?;
            first.play(&script, WARMING * script.len()).await?;
            anyhow::Ok(script)
        })?;
        let (before_bytes, before_pages) = (resident(server.pid()), pages());
        ensure!(before_bytes > 0, "the server's memory is unknown");
        let clients = tasks.block_on(&runtime, Clients::connect(&place, count))?;
        let idle_bytes = resident(server.pid()).saturating_sub(before_bytes);

        let requests = self.field.pick((200_000_u32, 600));
        let (before_s, load_before_s) = (server.cpu_s()?, cpu::own_s());
        let load = || tasks.block_on(&runtime, clients.play(&script, requests as usize));
        let pid = server.pid();
        let ((seconds, most_pages), most_bytes) =
            memory::most(|| resident(pid), || memory::most(pages, load));
        let (cpu_s, load_s) = (server.cpu_s()? - before_s, cpu::own_s() - load_before_s);
        let kernel_bytes = most_pages.saturating_sub(before_pages) * memory::page_bytes()?;
        let each = |bytes: u64| bytes as f64 / f64::from(count);
        Ok(vec![
            (CPU.name, cpu_s * 1e6 / f64::from(requests)),
            (LOAD.name, load_s * 1e6 / f64::from(requests)),
            (RATE.name, f64::from(requests) / seconds?),
            (BUSY.name, each(most_bytes.saturating_sub(before_bytes))),
            (IDLE.name, each(idle_bytes)),
            (KERNEL.name, each(kernel_bytes)),
        ])
    }
}

fn resident(pid: u32) -> u64 {
    memory::resident_bytes(pid).unwrap_or(0)
}

fn pages() -> u64 {
    memory::socket_pages().unwrap_or(0)
}

/// Our row: from ten clients up, the largest time per request and the lowest rate; the highest rate of all;
/// and the memory per client with the largest number of clients (with few, it is that of the whole server).
fn worst(outcome: &mut Outcome, placement: Placement) {
    let rows = clients(outcome.scale);
    let samples = |rows: &[u32], metric: Metric, choose: fn(f64, f64) -> f64| {
        let rows: Option<Vec<&[f64]>> = rows
            .iter()
            .map(|count| outcome.samples(&name_of(*count), placement, metric.name))
            .collect();
        stats::round_by_round(&rows.unwrap_or_default(), choose)
    };
    let many = rows.get(1..).unwrap_or_default();
    let most = rows.get(rows.len() - 1..).unwrap_or_default();
    let ours = [
        (CPU, samples(many, CPU, f64::max)),
        (LOAD, samples(many, LOAD, f64::max)),
        (RATE, samples(many, RATE, f64::min)),
        (PEAK, samples(rows, RATE, f64::max)),
        (BUSY, samples(most, BUSY, f64::max)),
        (IDLE, samples(most, IDLE, f64::max)),
        (KERNEL, samples(most, KERNEL, f64::max)),
    ];
    for (metric, samples) in ours {
        if !samples.is_empty() {
            outcome.derived(OURS, placement, metric, samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::runner;

    fn rows(field: &Field) -> Result<LineUp> {
        let mut line_up = LineUp::new();
        let told = [(9.0, 100.0), (2.0, 80.0), (3.0, 90.0)];
        for (count, (cpu, rate)) in clients(field.scale).iter().zip(told) {
            let readings = vec![(CPU.name, cpu), (RATE.name, rate), (BUSY.name, cpu)];
            line_up.add(&name_of(*count), Ok(move |_| Ok(readings.clone())));
        }
        Ok(line_up)
    }

    #[test]
    fn ours_is_the_worst_from_ten_clients_up() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), Scale::Quick, dir.path()).unwrap();
        let figure = Figure {
            line_up: rows,
            ..FIGURE
        };
        let outcome = runner::run(&figure, &field, Environment::default()).unwrap();
        let ours = |metric: Metric| outcome.samples(OURS, UNPINNED, metric.name);
        assert_eq!(ours(CPU), Some(&[3.0][..]));
        assert_eq!(ours(RATE), Some(&[80.0][..]));
        assert_eq!(ours(PEAK), Some(&[100.0][..]));
        assert_eq!(ours(BUSY), Some(&[3.0][..]));
        assert!(ours(KERNEL).is_none());
        let ratios: Vec<_> = outcome
            .verdicts
            .iter()
            .map(|v| v.ratio.map(|r| r[0]))
            .collect();
        assert_eq!(ratios, [Some(1.5), Some(0.8), None]);
    }

    #[test]
    fn both_scales_have_the_reference_row() {
        for scale in [Scale::Full, Scale::Quick] {
            assert_eq!(clients(scale).get(1).copied().map(name_of).unwrap(), FEW);
        }
        assert_eq!(name_of(1), "1 client");
    }
}
