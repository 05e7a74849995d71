//! The types that describe a figure: contestants, metrics, and the ratios that we promise.
//!
//! A figure is data plus one function that prepares its contestants. The runner (`runner`) does the
//! rest, so every figure is interleaved, repeated, judged and written in the same way.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::field::Field;
use crate::outcome::Outcome;

/// The name under which our own rows stand in every figure.
pub const OURS: &str = "bulla";

/// A build of bulla that takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The build under test.
    Now,
    /// The older build that it is compared with (`--before`).
    Before,
}

/// What the rows of the older build end with.
const BEFORE: &str = ", before";

impl Build {
    /// The name of this build's row beside the row `name` of the build under test.
    pub fn row(self, name: &str) -> String {
        match self {
            Build::Now => name.to_owned(),
            Build::Before => format!("{name}{BEFORE}"),
        }
    }

    /// What the names of this build's directories begin with.
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

/// One comparison: a workload and the programs that run it.
pub struct Figure {
    /// Its number in `docs/benchmarks.md`.
    pub number: u8,
    /// A few words.
    pub title: &'static str,
    /// How often each contestant runs at full scale and at the quick one.
    pub rounds: (u32, u32),
    /// Whether it is run pinned to one processor, with all of them, or both.
    pub placements: &'static [Placement],
    /// What is measured, in the order of the table.
    pub metrics: &'static [Metric],
    /// What we must reach, by metric and peer.
    pub reaches: &'static [Reach],
    /// Computes the metrics that depend on several rows, after all have run.
    pub derive: fn(&mut Outcome, Placement),
    /// Prepares the data and the contestants of one pass.
    pub line_up: fn(&Field) -> Result<LineUp>,
}

/// For figures where nothing is derived.
pub const fn nothing(_: &mut Outcome, _: Placement) {}

/// The contestants of a pass, and what happens before each round.
pub struct LineUp {
    /// In the order of the table; those that cannot run hold the reason.
    pub contestants: Vec<Entry>,
    /// Prepares the data for the round.
    pub before_round: Box<dyn FnMut(u32) -> Result<()>>,
}

impl LineUp {
    /// No contestants, and nothing to prepare before a round.
    pub fn new() -> LineUp {
        LineUp {
            contestants: Vec::new(),
            before_round: Box::new(|_| Ok(())),
        }
    }

    /// Adds a contestant, or the reason why it cannot run. Contestants of the same name, each with
    /// metrics of its own, form one row.
    pub fn add<C: Contestant + 'static>(&mut self, name: &str, contestant: Result<C>) {
        self.contestants.push(Entry {
            name: name.to_owned(),
            state: contestant.map(|c| Box::new(c) as Box<dyn Contestant>),
        });
    }

    /// Adds a row that cannot be measured yet, with the reason.
    pub fn missing(&mut self, name: &str, why: &str) {
        self.contestants.push(Entry {
            name: name.to_owned(),
            state: Err(anyhow::anyhow!("{why}")),
        });
    }
}

/// A row of the table.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Ready to run, or the reason why not.
    pub state: Result<Box<dyn Contestant>>,
}

/// Runs the workload.
pub trait Contestant {
    /// Runs the workload once and returns its measurements.
    ///
    /// # Errors
    /// The row is then listed as not measured, with this reason.
    fn measure(&mut self, round: u32) -> Result<Vec<Reading>>;
}

impl<F: FnMut(u32) -> Result<Vec<Reading>>> Contestant for F {
    fn measure(&mut self, round: u32) -> Result<Vec<Reading>> {
        self(round)
    }
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
    /// What the gate makes of it.
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
    /// All that the machine has.
    Unpinned,
}

/// A bound on the ratio of our median to somebody's.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// The metric of ours.
    pub metric: &'static str,
    /// Which placement it is asked for.
    pub placement: Placement,
    /// Whose.
    pub peer: &'static str,
    /// The metric of theirs, where it is not the same.
    pub peer_metric: &'static str,
    /// The bound.
    pub bound: Bound,
    /// Whether it is enough that no difference can be proved.
    pub or_even: bool,
}

impl Reach {
    /// A reach on one metric, the same for both.
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

    /// The same beside another metric of theirs.
    pub const fn beside(self, peer_metric: &'static str) -> Reach {
        Reach {
            peer_metric,
            ..self
        }
    }

    /// The same, kept as well where the rounds do not prove any difference.
    pub const fn or_even(self) -> Reach {
        Reach {
            or_even: true,
            ..self
        }
    }
}

/// What the ratio must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Bound {
    /// Whether a ratio keeps it.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(bound) => ratio <= bound,
            Bound::AtLeast(bound) => ratio >= bound,
        }
    }
}
