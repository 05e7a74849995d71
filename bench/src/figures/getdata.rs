//! Figure 11: objects of 8 KB over 64 persistent connections, one and sixteen requests in flight.
//!
//! nginx's row for sixteen is HTTP pipelining, which clients do not use. Both goals refer to its row for one
//! request in flight. Servers of different builds serve the same repository and get the same
//! requests.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use trust::Handle;

use crate::dataset::{self, OBJECT_BYTES, OBJECTS};
use crate::field::Field;
use crate::figure::{
    Bound, Build, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing,
};
use crate::peers::http;
use crate::peers::nginx::Nginx;
use crate::process::Daemon;
use crate::protocol::{self, Place, runtime};
use crate::subject::Published;

const NGINX: &str = "nginx";
const CONNECTIONS: u32 = 64;

/// Getting data.
pub const FIGURE: Figure = Figure {
    number: 11,
    title: "objects of 8 KB, 64 connections",
    rounds: (5, 1),
    placements: &[Placement::Unpinned],
    metrics: &[
        Metric::server_cpu("one"),
        Metric::server_cpu("sixteen"),
        Metric::rate("one-rate"),
        Metric::rate("sixteen-rate"),
    ],
    reaches: &[
        Reach::new("one", Placement::Unpinned, NGINX, Bound::AtMost(0.65)),
        Reach::new("sixteen", Placement::Unpinned, NGINX, Bound::AtMost(0.35)).beside("one"),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::objects(field)?;
    dataset::warm(&tree)?;
    let mut line_up = LineUp::new();
    let requests = field.pick((3200, 64));
    let objects = Objects::new(field, &tree);
    for build in field.builds() {
        let name = build.row(OURS);
        match &objects {
            Ok(objects) => {
                let served = objects.serve(field, build);
                line_up.add(
                    &name,
                    served.map(|served| move |_| served.measure(requests)),
                );
            }
            Err(error) => line_up.missing(&name, &format!("{error:#}")),
        }
    }
    if field.gate() {
        return Ok(line_up);
    }
    let nginx = Nginx::start(field, "objects", &tree);
    line_up.add(
        NGINX,
        nginx.map(|nginx| move |_| over_http(&nginx, requests)),
    );
    Ok(line_up)
}

const LOADS: [(u32, &str, &str); 2] = [(1, "one", "one-rate"), (16, "sixteen", "sixteen-rate")];

/// The published objects and their handles. The servers of all builds get the same requests.
struct Objects {
    published: Published,
    handles: Arc<[Handle]>,
}

impl Objects {
    fn new(field: &Field, tree: &Path) -> Result<Objects> {
        let published = Published::new(field, "objects", tree)?;
        let (_server, place) = protocol::serve_published(field, &published)?;
        let state = field.fresh("reader-state")?;
        let handles = runtime()?.block_on(place.blocks(OBJECTS as usize, &state))?;
        ensure!(
            handles.len() == OBJECTS as usize,
            "{} objects",
            handles.len()
        );
        Ok(Objects {
            published,
            handles: handles.into(),
        })
    }

    fn serve(&self, field: &Field, build: Build) -> Result<Served> {
        let published = self.published.with_build(field, build, "objects")?;
        let (daemon, place) = protocol::serve_published(field, &published)?;
        Ok(Served {
            daemon,
            place,
            handles: self.handles.clone(),
        })
    }
}

/// A server, its address, and the requests for it.
struct Served {
    daemon: Daemon,
    place: Place,
    handles: Arc<[Handle]>,
}

impl Served {
    fn measure(&self, requests: u32) -> Result<Vec<Reading>> {
        let runtime = runtime()?;
        let mut readings = Vec::new();
        for (in_flight, cpu, rate) in LOADS {
            let load = protocol::Load {
                connections: CONNECTIONS,
                in_flight,
                requests,
            };
            let before_s = self.daemon.cpu_s()?;
            let seconds = runtime.block_on(self.place.keep_alive(load, self.handles.clone()))?;
            let cpu_s = self.daemon.cpu_s()? - before_s;
            let count = f64::from(CONNECTIONS * requests);
            readings.push((cpu, cpu_s * 1e6 / count));
            readings.push((rate, count / seconds));
        }
        Ok(readings)
    }
}

fn over_http(nginx: &Nginx, requests: u32) -> Result<Vec<Reading>> {
    let runtime = runtime()?;
    let mut readings = Vec::new();
    for (in_flight, cpu, rate) in LOADS {
        let load = http::Load {
            connections: CONNECTIONS,
            in_flight,
            requests,
            body_bytes: OBJECT_BYTES,
        };
        let before_s = nginx.cpu_s()?;
        let seconds = runtime.block_on(http::keep_alive(nginx.http, load, object))?;
        let cpu_s = nginx.cpu_s()? - before_s;
        let count = f64::from(CONNECTIONS * requests);
        readings.push((cpu, cpu_s * 1e6 / count));
        readings.push((rate, count / seconds));
    }
    Ok(readings)
}

/// Spreads the requests of all connections over all objects.
fn object(connection: u32, request: u32) -> String {
    let number = connection
        .wrapping_mul(61)
        .wrapping_add(request.wrapping_mul(37));
    format!("{:04}", number % OBJECTS)
}
