//! Figure 10 (SFSRO Fig. 9): a certificate is looked up over a new connection each time.
//!
//! Server processor time per look-up, for a name of one component and of four. Peers serve the same file
//! at the same path; HTTPS clients do not resume sessions, because new clients have none.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, ensure};

use crate::dataset::{self, FOUR_COMPONENTS, ONE_COMPONENT};
use crate::field::Field;
use crate::figure::{
    Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing,
};
use crate::peers::http;
use crate::peers::nginx::Nginx;
use crate::process::{self, Daemon};
use crate::protocol::{self, Call, Place, runtime};
use crate::subject::Published;

/// bulla, when a reader requests no read-around: fewer bytes, one call more.
const NO_AROUND: &str = "bulla, no read-around";
const HTTP: &str = "nginx HTTP";
const HTTPS: &str = "nginx HTTPS";
const FILE_BYTES: usize = 1 << 10;

const fn reach(metric: &'static str, peer: &'static str, at_most: f64) -> Reach {
    Reach::new(metric, Placement::Unpinned, peer, Bound::AtMost(at_most))
}

/// Look-ups.
pub const FIGURE: Figure = Figure {
    number: 10,
    title: "look-ups of a certificate, a new connection each",
    rounds: (5, 1),
    placements: &[Placement::Unpinned],
    metrics: &[
        Metric::server_cpu("one"),
        Metric::server_cpu("four"),
        Metric::rate("one-rate"),
        Metric::rate("four-rate"),
    ],
    reaches: &[
        reach("one", HTTP, 0.6),
        reach("four", HTTP, 0.6),
        reach("one", HTTPS, 0.12),
        reach("four", HTTPS, 0.12),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::names(field)?;
    dataset::warm(&tree)?;
    let mut line_up = LineUp::new();
    let field = field.clone();
    let count = field.pick((20_000, 200));
    // One publication for all rows, and one server for both rows of a build.
    let published = Published::new(&field, "names", &tree);
    for build in field.builds() {
        let rows = [(OURS, usize::MAX), (NO_AROUND, 0)];
        let server = match &published {
            Ok(published) => serve(&field, build, published),
            Err(error) => Err(anyhow!("{error:#}")),
        };
        match server {
            Ok(server) => {
                let server = Rc::new(server);
                for (name, around_bytes) in rows {
                    let calls = server.record(&field, around_bytes);
                    let server = server.clone();
                    line_up.add(
                        &build.row(name),
                        calls.map(|calls| move |_| server.measure(&calls, count)),
                    );
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                rows.iter()
                    .for_each(|(name, _)| line_up.missing(&build.row(name), &why));
            }
        }
    }
    if field.gate() {
        return Ok(line_up);
    }
    match Nginx::start(&field, "names", &tree) {
        Ok(nginx) => {
            let nginx = Rc::new(nginx);
            let (plain, secure) = (nginx.clone(), nginx);
            let seconds = field.pick((3, 1));
            line_up.add(HTTP, Ok(move |_| over_http(&plain, count)));
            line_up.add(HTTPS, Ok(move |_| over_https(&secure, seconds)));
        }
        Err(error) => {
            let why = format!("{error:#}");
            line_up.missing(HTTP, &why);
            line_up.missing(HTTPS, &why);
        }
    }
    Ok(line_up)
}

/// Our server and how it is reached.
struct Served {
    daemon: Daemon,
    place: Place,
}

fn serve(field: &Field, build: Build, published: &Published) -> Result<Served> {
    let published = published.with_build(field, build, "names")?;
    let (daemon, place) = protocol::serve_published(field, &published)?;
    Ok(Served { daemon, place })
}

impl Served {
    /// The requests of a reader for each of the two names, in the order of [`kinds`].
    fn record(&self, field: &Field, max_around_bytes: usize) -> Result<Vec<Vec<Call>>> {
        let runtime = runtime()?;
        let mut recorded = Vec::new();
        for (path, ..) in kinds() {
            // Each has its own state, because a reader that has seen the volume requests less.
            let state = field.fresh("reader-state")?;
            let calls = self
                .place
                .record(path, FILE_BYTES, max_around_bytes, &state);
            recorded.push(runtime.block_on(calls)?);
        }
        Ok(recorded)
    }

    fn measure(&self, recorded: &[Vec<Call>], count: u32) -> Result<Vec<Reading>> {
        let runtime = runtime()?;
        let mut readings = Vec::new();
        for (calls, (_, cpu, rate)) in recorded.iter().zip(kinds()) {
            let before_s = self.daemon.cpu_s()?;
            let seconds = runtime.block_on(self.place.new_connections(calls, count))?;
            let cpu_s = self.daemon.cpu_s()? - before_s;
            readings.push((cpu, cpu_s * 1e6 / f64::from(count)));
            readings.push((rate, f64::from(count) / seconds));
        }
        Ok(readings)
    }
}

fn over_http(nginx: &Nginx, count: u32) -> Result<Vec<Reading>> {
    let runtime = runtime()?;
    let mut readings = Vec::new();
    for (path, cpu, rate) in kinds() {
        let before_s = nginx.cpu_s()?;
        let load = http::new_connections(nginx.http, path, count, FILE_BYTES);
        let seconds = runtime.block_on(load)?;
        let cpu_s = nginx.cpu_s()? - before_s;
        readings.push((cpu, cpu_s * 1e6 / f64::from(count)));
        readings.push((rate, f64::from(count) / seconds));
    }
    Ok(readings)
}

/// The client is `openssl s_time`; its own cost is not measured.
fn over_https(nginx: &Nginx, seconds: u32) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    for (path, cpu, rate) in kinds() {
        let before_s = nginx.cpu_s()?;
        let mut command = Command::new("openssl");
        command.args(["s_time", "-new", "-time", &seconds.to_string()]);
        command.args(["-connect", &format!("127.0.0.1:{}", nginx.https)]);
        command.args(["-www", &format!("/{path}")]);
        let cost = process::run(&mut command, Path::new("/"))?;
        let cpu_s = nginx.cpu_s()? - before_s;
        let count = handshakes(&cost.stdout)?;
        readings.push((cpu, cpu_s * 1e6 / count));
        readings.push((rate, count / cost.ran_s));
    }
    Ok(readings)
}

fn kinds() -> [(&'static str, &'static str, &'static str); 2] {
    [
        (ONE_COMPONENT, "one", "one-rate"),
        (FOUR_COMPONENTS, "four", "four-rate"),
    ]
}

/// Connections that `openssl s_time` made, each of which must have brought the file.
fn handshakes(printed: &str) -> Result<f64> {
    let line = printed
        .lines()
        .find(|line| line.contains("real seconds"))
        .context("openssl s_time printed no result")?;
    let count: f64 = line.split(' ').next().unwrap_or_default().parse()?;
    let bytes = line
        .split(", ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .context("openssl s_time printed no size")?;
    ensure!(count > 0.0, "no connection was made");
    ensure!(
        bytes.parse::<usize>()? > FILE_BYTES,
        "the file did not come: {line}"
    );
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_is_read_and_an_answer_without_the_file_refused() {
        let line = |bytes| {
            format!(
                "\n\n12 connections in 0.9s\n34 connections in 2 real seconds, {bytes} bytes read per connection\n"
            )
        };
        assert_eq!(handshakes(&line(1282)).unwrap(), 34.0);
        assert!(handshakes(&line(150)).is_err());
        assert!(handshakes("").is_err());
    }
}
