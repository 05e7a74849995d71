//! Figure 16: a reader alone, and beside 100 hostile connections of 64 addresses.
//!
//! The reader requests a file of 1 GiB block by block, as a verified reader did that was recorded. The hostile
//! clients (`hostile`) ask for much and read nothing, or little, or come and go. Each measurement starts a server.
//! Reader, server and hostile clients share the machine, so their processor times are shown.

use std::rc::Rc;

use anyhow::Result;
use tokio::task::LocalSet;

use crate::field::Field;
use crate::figure::{
    Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing,
};
use crate::hostile::{self, Crowd};
use crate::load::{self, Clients, Step};
use crate::protocol::{self, Call, runtime};
use crate::subject::Published;
use crate::{cpu, dataset};

const ALONE: &str = "alone";
const UNPINNED: Placement = Placement::Unpinned;

const SPEED: Metric = Metric::rate_in("speed", "MB/s");
const SERVER: Metric = Metric::processor("server", "s/GB");
/// The reader's own processor time.
const READER: Metric = Metric::count("reader", "s/GB");
const HOSTILE: Metric = Metric::count("hostile", "% of one processor");
const CONNECTED: Metric = Metric::count("connected", "hostile connections/s");

/// Beside hostile clients.
pub const FIGURE: Figure = Figure {
    number: 16,
    title: "a reader alone, and beside 100 hostile connections of 64 addresses",
    rounds: (7, 1),
    placements: &[UNPINNED],
    metrics: &[SPEED, SERVER, READER, HOSTILE, CONNECTED],
    reaches: &[Reach::new("speed", UNPINNED, ALONE, Bound::AtLeast(0.5))],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::large(field)?;
    let mut line_up = LineUp::new();
    let read = Read::new(field, &tree);
    for build in field.builds() {
        let of_build = read
            .as_ref()
            .map(|read| read.with_build(build).map(Rc::new));
        for (name, beside) in [(OURS, true), (ALONE, false)] {
            let name = build.row(name);
            match &of_build {
                Ok(Ok(read)) => {
                    let read = read.clone();
                    line_up.add(&name, Ok(move |_| read.measure(beside)));
                }
                Ok(Err(error)) => line_up.missing(&name, &format!("{error:#}")),
                Err(error) => line_up.missing(&name, &format!("{error:#}")),
            }
        }
    }
    Ok(line_up)
}

/// A volume, and the requests of a reader of its file.
struct Read {
    field: Field,
    published: Published,
    trace: Vec<Call>,
}

impl Read {
    fn new(field: &Field, tree: &std::path::Path) -> Result<Read> {
        let published = Published::new(field, "beside", tree)?;
        let (_server, place) = protocol::serve_published(field, &published)?;
        let state = field.fresh("reader-state")?;
        let trace = runtime()?.block_on(place.record_file("random", &state))?;
        Ok(Read {
            field: field.clone(),
            published,
            trace,
        })
    }

    /// The same requests for the server of a build.
    fn with_build(&self, build: Build) -> Result<Read> {
        Ok(Read {
            field: self.field.clone(),
            published: self.published.with_build(&self.field, build, "beside")?,
            trace: self.trace.clone(),
        })
    }

    fn measure(&self, beside: bool) -> Result<Vec<Reading>> {
        let (server, place) = protocol::serve_published(&self.field, &self.published)?;
        let runtime = runtime()?;
        let tasks = LocalSet::new();
        let (script, reader) = tasks.block_on(&runtime, async {
            let script = load::script(&place, &self.trace).await?;
            anyhow::Ok((script, Clients::connect(&place, 1).await?))
        })?;
        // Several windows in which the server measures the pace of a client.
        let steps = script.len() * self.field.pick((20, 40));
        let bytes: usize = script.iter().map(Step::bytes).sum();
        let gigabytes = (bytes * (steps / script.len())) as f64 / 1e9;
        let read = || {
            let (server_before_s, before_s) = (server.cpu_s()?, cpu::own_s());
            let seconds = tasks.block_on(&runtime, reader.play(&script, steps))?;
            let (server_s, own_s) = (server.cpu_s()? - server_before_s, cpu::own_s() - before_s);
            Ok(vec![
                (SPEED.name, gigabytes * 1e3 / seconds),
                (SERVER.name, server_s / gigabytes),
                (READER.name, own_s / gigabytes),
            ])
        };
        if !beside {
            return read();
        }
        let crowd = Crowd::start(&place, hostile::segment(&self.published.repo)?)?;
        let (mut readings, seen) = crowd.beside(read)?;
        readings.push((HOSTILE.name, seen.cpu * 100.0));
        readings.push((CONNECTED.name, seen.connections));
        Ok(readings)
    }
}
