//! The result of running a figure, as stored in `results/figure-NN.json`.
//!
//! All samples are kept, so that other statistics can be computed later without a new run. A contestant
//! without samples is listed with the reason.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::field::Scale;
use crate::metric::{Bound, Metric, OURS, Placement, Reach};
use crate::stats;

/// Number of this file format. A figure whose file has another number is measured again.
pub const SCHEMA: u32 = 1;

/// One figure, run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The figure's number.
    pub figure: u8,
    /// The figure's title.
    pub title: String,
    /// Full or quick; quick figures prove only that the bench works.
    pub scale: Scale,
    /// The machine and the programs.
    pub environment: Environment,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it took with all preparation.
    pub seconds: f64,
    /// Load average of the last minute at the start: above one, timings mean little.
    pub load_at_start: f64,
    /// Rounds that each contestant was to run.
    pub rounds: u32,
    /// The samples.
    pub series: Vec<Series>,
    /// The rows that were not measured.
    pub not_measured: Vec<NotMeasured>,
    /// The goals.
    pub verdicts: Vec<Verdict>,
    /// The build under test compared with an older one, if one took part.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
}

/// All samples of one contestant and metric, in the order of the rounds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Series {
    /// Row.
    pub contestant: String,
    /// Pinned or not.
    pub placement: Placement,
    /// Column.
    pub metric: String,
    /// Unit of the samples.
    pub unit: String,
    /// One per round.
    pub samples: Vec<f64>,
}

/// A row that was not measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct NotMeasured {
    /// Row.
    pub contestant: String,
    /// Pinned or not.
    pub placement: Placement,
    /// The reason.
    pub why: String,
}

/// One goal, judged.
#[derive(Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Our metric.
    pub metric: String,
    /// Pinned or not.
    pub placement: Placement,
    /// The peer.
    pub peer: String,
    /// The bound on the ratio of the medians.
    pub bound: Bound,
    /// That ratio, and its range over the rounds; absent if one of the two was not measured.
    pub ratio: Option<[f64; 3]>,
    /// Whether the bound is met; absent as above.
    pub met: Option<bool>,
    /// If equality is enough: the interval of the median of the rounds' ratios
    /// ([`stats::interval`]), if there are rounds enough.
    #[serde(default)]
    pub interval: Option<[f64; 2]>,
}

impl Verdict {
    /// Whether equality is enough, and no difference is proved.
    pub fn even(&self) -> bool {
        self.interval
            .is_some_and(|[low, high]| low <= 1.0 && 1.0 <= high)
    }
}

/// One metric of one row, compared with the older build's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The row of the build under test.
    pub row: String,
    /// Pinned or not.
    pub placement: Placement,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Median of the older build.
    pub before: Option<f64>,
    /// Median of the build under test.
    pub now: Option<f64>,
    /// Ratio of the medians as a cost: above 1 the build under test is worse. For a rate it is the
    /// older build's over the newer one's.
    pub ratio: Option<f64>,
    /// The interval of the rounds' ratios; their range if they are too few for that.
    pub spread: Option<[f64; 2]>,
    /// The ratio in the first run, where the figure was run again.
    pub first_ratio: Option<f64>,
    /// The result.
    pub finding: Finding,
}

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The ratio is within its bound.
    Ok,
    /// The ratio is beyond its bound, but the rounds, or the second run, do not prove a difference.
    Noise,
    /// The build under test is slower.
    Worse,
    /// One of the two has no samples.
    NotMeasured,
}

impl Outcome {
    /// An outcome without any samples yet.
    pub fn new(number: u8, title: &str, scale: Scale, environment: Environment) -> Outcome {
        Outcome {
            schema: SCHEMA,
            figure: number,
            title: title.to_owned(),
            scale,
            environment,
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            seconds: 0.0,
            load_at_start: 0.0,
            rounds: 0,
            series: Vec::new(),
            not_measured: Vec::new(),
            verdicts: Vec::new(),
            comparisons: Vec::new(),
        }
    }

    /// Every row of a pass: first the measured, then those that were not.
    pub fn rows(&self, placement: Placement) -> Vec<String> {
        let measured = self.series.iter().map(|s| (s.placement, &s.contestant));
        let missing = self
            .not_measured
            .iter()
            .map(|n| (n.placement, &n.contestant));
        let mut names: Vec<String> = Vec::new();
        for (where_, name) in measured.chain(missing) {
            if where_ == placement && !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Whether a row, or a part of it, could not be measured.
    pub fn failed(&self, contestant: &str, placement: Placement) -> bool {
        self.not_measured
            .iter()
            .any(|n| n.contestant == contestant && n.placement == placement)
    }

    /// The samples of a row and column.
    pub fn samples(&self, contestant: &str, placement: Placement, metric: &str) -> Option<&[f64]> {
        self.series
            .iter()
            .find(|s| s.contestant == contestant && s.placement == placement && s.metric == metric)
            .map(|s| s.samples.as_slice())
    }

    /// Adds metrics that are derived from other samples.
    pub fn derived(
        &mut self,
        contestant: &str,
        placement: Placement,
        metric: Metric,
        samples: Vec<f64>,
    ) {
        self.series.push(Series {
            contestant: contestant.to_owned(),
            placement,
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            samples,
        });
    }

    /// Judges every goal of a figure.
    pub fn judge(&mut self, reaches: &[Reach]) {
        let judged = reaches.iter().map(|reach| {
            let ours = self.samples(OURS, reach.placement, reach.metric);
            let peers = self.samples(reach.peer, reach.placement, reach.peer_metric);
            let ratio = ours.zip(peers).and_then(|(o, p)| stats::ratio(o, p));
            let interval = ratio.as_ref().and_then(|r| stats::interval(&r.rounds));
            let interval = interval.filter(|_| reach.or_even);
            Verdict {
                metric: reach.metric.to_owned(),
                placement: reach.placement,
                peer: reach.peer.to_owned(),
                bound: reach.bound,
                ratio: ratio.as_ref().map(|r| [r.of_medians, r.low, r.high]),
                met: ratio.map(|r| reach.bound.holds(r.of_medians)),
                interval: interval.map(|(low, high)| [low, high]),
            }
        });
        self.verdicts = judged.collect();
    }

    /// Writes the file atomically.
    pub fn save(&self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let half = path.with_extension("half");
        fs::write(&half, serde_json::to_vec_pretty(self)?)?;
        fs::rename(&half, path).with_context(|| format!("writing {}", path.display()))
    }

    /// Reads the file; none if it does not exist or has another format.
    pub fn load(path: &Path) -> Option<Outcome> {
        let outcome: Outcome = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        (outcome.schema == SCHEMA).then_some(outcome)
    }
}
