//! Metrics, the builds and placements for which they are measured, and the ratios that are our goals.

use serde::{Deserialize, Serialize};

/// The name of our own rows in every figure.
pub const OURS: &str = "bulla";

/// A build of bulla that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The build under test.
    Now,
    /// The older build that it is compared with (`--before`).
    Before,
}

/// End of the names of the older build's rows.
const BEFORE: &str = ", before";

impl Build {
    /// The name of this build's row that corresponds to the row `name` of the build under test.
    pub fn row(self, name: &str) -> String {
        match self {
            Build::Now => name.to_owned(),
            Build::Before => format!("{name}{BEFORE}"),
        }
    }

    /// Prefix of the names of this build's directories.
    pub fn directory(self) -> &'static str {
        match self {
            Build::Now => "bulla",
            Build::Before => "bulla-before",
        }
    }
}

/// The row of the build under test that a row of the older build is compared with; none for other rows.
pub fn compared_with(row: &str) -> Option<&str> {
    row.strip_suffix(BEFORE)
}

/// One number of one repetition: the metric's name and its value in that metric's unit.
pub type Reading = (&'static str, f64);

/// A quantity that is measured in each repetition.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Short name, the key in the JSON.
    pub name: &'static str,
    /// Unit for people.
    pub unit: &'static str,
    /// How the gate judges it.
    pub kind: Kind,
}

/// How the gate (`gate`) judges a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Processor time: less is better.
    Processor,
    /// Wall time: less is better.
    Time,
    /// Work per wall time: more is better.
    Rate,
    /// Anything else: the gate ignores it.
    Count,
}

impl Metric {
    /// Wall time of a run.
    pub const WALL: Metric = Metric::time("wall", "s");
    /// Processor time of all processes of a run.
    pub const CPU: Metric = Metric::processor("cpu", "s");

    /// Processor time.
    pub const fn processor(name: &'static str, unit: &'static str) -> Metric {
        let kind = Kind::Processor;
        Metric { name, unit, kind }
    }

    /// Wall time.
    pub const fn time(name: &'static str, unit: &'static str) -> Metric {
        let kind = Kind::Time;
        Metric { name, unit, kind }
    }

    /// Work per wall time.
    pub const fn rate_in(name: &'static str, unit: &'static str) -> Metric {
        let kind = Kind::Rate;
        Metric { name, unit, kind }
    }

    /// A quantity that the gate ignores.
    pub const fn count(name: &'static str, unit: &'static str) -> Metric {
        let kind = Kind::Count;
        Metric { name, unit, kind }
    }

    /// Processor time of a server for one request.
    pub const fn server_cpu(name: &'static str) -> Metric {
        Metric::processor(name, "server µs each")
    }

    /// Requests per second.
    pub const fn rate(name: &'static str) -> Metric {
        Metric::rate_in(name, "/s")
    }
}

/// Which processors the run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Everything, servers included, on one processor: FUSE comparisons are bimodal otherwise.
    Pinned,
    /// All processors of the machine.
    Unpinned,
}

/// A goal: a bound on the ratio of our median to a peer's.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// The metric of ours.
    pub metric: &'static str,
    /// The placement for which it holds.
    pub placement: Placement,
    /// The peer.
    pub peer: &'static str,
    /// The peer's metric, if it is not the same.
    pub peer_metric: &'static str,
    /// The bound.
    pub bound: Bound,
    /// Whether it is enough that no difference can be proved.
    pub or_even: bool,
}

impl Reach {
    /// A goal for one metric, the same for both.
    pub const fn new(
        metric: &'static str,
        placement: Placement,
        peer: &'static str,
        bound: Bound,
    ) -> Reach {
        Reach {
            metric,
            placement,
            peer,
            peer_metric: metric,
            bound,
            or_even: false,
        }
    }

    /// The same with another metric of the peer.
    pub const fn beside(self, peer_metric: &'static str) -> Reach {
        Reach {
            peer_metric,
            ..self
        }
    }

    /// The same; also met if the rounds do not prove a difference.
    pub const fn or_even(self) -> Reach {
        Reach {
            or_even: true,
            ..self
        }
    }
}

/// The bound of the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Bound {
    /// Whether a ratio meets it.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(bound) => ratio <= bound,
            Bound::AtLeast(bound) => ratio >= bound,
        }
    }
}
