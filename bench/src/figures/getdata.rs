//! Figure 11: objects of 8 KB over 64 connections that stay, one and sixteen requests in flight.
//!
//! The peer's row for sixteen is HTTP pipelining, which no client in the field uses: the bounds are
//! on its keep-alive figure, one request after the other.

use anyhow::Result;

use crate::dataset::{self, OBJECT_BYTES, OBJECTS};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::peers::http::{self, Load};
use crate::peers::nginx::Nginx;

const NGINX: &str = "nginx";

const fn cpu(name: &'static str) -> Metric {
    Metric {
        name,
        unit: "server µs each",
    }
}

const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "/s" }
}

/// Getting data.
pub const FIGURE: Figure = Figure {
    number: 11,
    title: "objects of 8 KB, 64 connections",
    rounds: (5, 1),
    placements: &[Placement::Unpinned],
    metrics: &[
        cpu("one"),
        cpu("sixteen"),
        rate("one-rate"),
        rate("sixteen-rate"),
    ],
    reaches: &[
        Reach::new("one", Placement::Unpinned, NGINX, Bound::AtMost(0.65)),
        Reach {
            metric: "sixteen",
            placement: Placement::Unpinned,
            peer: NGINX,
            peer_metric: "one",
            bound: Bound::AtMost(0.35),
        },
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let tree = dataset::objects(field)?;
    dataset::warm(&tree)?;
    let mut line_up = LineUp::new();
    line_up.missing(OURS, "the protocol's client is not part of this bench yet");
    let nginx = Nginx::start(field, "objects", &tree);
    let requests = field.pick((3000, 50));
    line_up.add(NGINX, nginx.map(|nginx| move |_| measure(&nginx, requests)));
    Ok(line_up)
}

fn measure(nginx: &Nginx, requests: u32) -> Result<Vec<Reading>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut readings = Vec::new();
    for (in_flight, cpu, rate) in [(1, "one", "one-rate"), (16, "sixteen", "sixteen-rate")] {
        let load = Load {
            connections: 64,
            in_flight,
            requests,
            body_bytes: OBJECT_BYTES,
        };
        let before_s = nginx.cpu_s()?;
        let seconds = runtime.block_on(http::keep_alive(nginx.http, load, object))?;
        let cpu_s = nginx.cpu_s()? - before_s;
        let count = f64::from(load.connections * load.requests);
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
