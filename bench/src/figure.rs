//! The types that describe a figure: its contestants, and with `metric` the measurements and goals.
//!
//! A figure is data plus one function that prepares its contestants. The runner (`runner`) does the
//! rest, so every figure is interleaved, repeated, judged and written in the same way.

use anyhow::Result;

use crate::field::Field;
use crate::outcome::Outcome;

pub use crate::metric::{
    Bound, Build, Kind, Metric, OURS, Placement, Reach, Reading, compared_with,
};

/// One comparison: a workload and the programs that run it.
pub struct Figure {
    /// Its number in `docs/benchmarks.md`.
    pub number: u8,
    /// Title.
    pub title: &'static str,
    /// How often each contestant runs at full scale and at the quick one.
    pub rounds: (u32, u32),
    /// Whether it is run pinned to one processor, with all of them, or both.
    pub placements: &'static [Placement],
    /// What is measured, in the order of the table.
    pub metrics: &'static [Metric],
    /// The goals, by metric and peer.
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
    /// In the order of the table; a contestant that cannot run has the reason.
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
