//! The nouns: a figure, its contestants, what each repetition reads off, and what we must reach.
//!
//! A figure is data plus one function that lines up its contestants; the runner (`runner`) does the
//! rest, so that every figure is interleaved, repeated, judged and written in the same way.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::field::Field;
use crate::outcome::Outcome;

/// The name under which our own rows stand in every figure.
pub const OURS: &str = "bulla";

/// One comparison: a workload and those who run it.
pub struct Figure {
    /// Its number in `docs/benchmarks.md`.
    pub number: u8,
    /// A few words.
    pub title: &'static str,
    /// How often each contestant runs at full scale and at the quick one.
    pub rounds: (u32, u32),
    /// Whether it is run pinned to one processor, with all of them, or both.
    pub placements: &'static [Placement],
    /// What is read off, in the order of the table.
    pub metrics: &'static [Metric],
    /// What we must reach, by metric and peer.
    pub reaches: &'static [Reach],
    /// Reads off what only follows from several rows, once all have run.
    pub derive: fn(&mut Outcome, Placement),
    /// Prepares the data and lines up the contestants of one pass.
    pub line_up: fn(&Field) -> Result<LineUp>,
}

/// For figures where nothing is derived.
pub const fn nothing(_: &mut Outcome, _: Placement) {}

/// Who runs, and what happens before each round.
pub struct LineUp {
    /// In the order of the table; one that could not start says why.
    pub contestants: Vec<Entry>,
    /// Brings the data into the state that the round begins with.
    pub before_round: Box<dyn FnMut(u32) -> Result<()>>,
}

impl LineUp {
    /// Nobody yet, and nothing to do before a round.
    pub fn new() -> LineUp {
        LineUp {
            contestants: Vec::new(),
            before_round: Box::new(|_| Ok(())),
        }
    }

    /// Adds a contestant, or the reason why there is none. A name that stands here several times, each
    /// with metrics of its own, is one row.
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

/// Somebody who can run the workload once.
pub trait Contestant {
    /// Runs it once and says what was read off.
    ///
    /// # Errors
    /// The row is then "not measured", with this reason.
    fn measure(&mut self, round: u32) -> Result<Vec<Reading>>;
}

impl<F: FnMut(u32) -> Result<Vec<Reading>>> Contestant for F {
    fn measure(&mut self, round: u32) -> Result<Vec<Reading>> {
        self(round)
    }
}

/// One number of one repetition: the metric's name and its value in that metric's unit.
pub type Reading = (&'static str, f64);

/// Something that is read off.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Short name, the key in the JSON.
    pub name: &'static str,
    /// Unit for people.
    pub unit: &'static str,
}

impl Metric {
    /// Time by the clock on the wall.
    pub const WALL: Metric = Metric {
        name: "wall",
        unit: "s",
    };
    /// Processor time of all processes of a run.
    pub const CPU: Metric = Metric {
        name: "cpu",
        unit: "s",
    };

    /// Processor time of a server for one request.
    pub const fn server_cpu(name: &'static str) -> Metric {
        let unit = "server µs each";
        Metric { name, unit }
    }

    /// Requests a second.
    pub const fn rate(name: &'static str) -> Metric {
        Metric { name, unit: "/s" }
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
