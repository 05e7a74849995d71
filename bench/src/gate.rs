//! The gate: is this build slower than an older one (`--before`)?
//!
//! Both builds run in the same rounds (`runner`). Each metric of processor or wall time is compared
//! as the ratio of the medians, with the interval of the single rounds' ratios ([`stats::interval`]).
//! A metric is worse if the ratio exceeds its bound *and* the interval excludes equality. A figure
//! with a worse metric is run again with new processes; only a metric that is worse in both runs fails the
//! gate. Decision 0031 has the reasons.

use anyhow::{Result, bail};

use crate::figure::{Figure, Kind, Metric, Placement, compared_with};
use crate::outcome::{Comparison, Finding, Outcome};
use crate::stats;

/// The largest ratio of processor times that counts as unchanged.
const PROCESSOR_BOUND: f64 = 1.03;
/// The same for wall time: the spread alone decides.
const WALL_BOUND: f64 = 1.0;

/// Compares all rows of the older build with those of the build under test.
pub fn compare(figure: &Figure, outcome: &Outcome) -> Vec<Comparison> {
    let mut found = Vec::new();
    for placement in figure.placements {
        for older in outcome.rows(*placement) {
            let Some(row) = compared_with(&older) else {
                continue;
            };
            let metrics = figure.metrics.iter().filter(|m| m.kind != Kind::Count);
            for metric in metrics {
                found.extend(compare_metric(outcome, *placement, (row, &older), metric));
            }
        }
    }
    found
}

/// None where the metric does not belong to the row.
fn compare_metric(
    outcome: &Outcome,
    placement: Placement,
    (row, older): (&str, &str),
    metric: &Metric,
) -> Option<Comparison> {
    let samples = |name| outcome.samples(name, placement, metric.name);
    let (now, before) = (samples(row), samples(older));
    let failed = |name| outcome.failed(name, placement);
    if now.is_none() && before.is_none() && !failed(row) && !failed(older) {
        return None;
    }
    let both = now.zip(before).filter(|(n, b)| n.len() == b.len());
    let ratio = both.and_then(|(now, before)| match metric.kind {
        Kind::Rate => stats::ratio(before, now),
        _ => stats::ratio(now, before),
    });
    Some(Comparison {
        row: row.to_owned(),
        placement,
        metric: metric.name.to_owned(),
        unit: metric.unit.to_owned(),
        before: before.and_then(stats::median),
        now: now.and_then(stats::median),
        ratio: ratio.as_ref().map(|r| r.of_medians),
        spread: ratio.as_ref().map(|r| {
            let (low, high) = stats::interval(&r.rounds).unwrap_or((r.low, r.high));
            [low, high]
        }),
        first_ratio: None,
        finding: ratio.map_or(Finding::NotMeasured, |r| judge(metric.kind, &r)),
    })
}

fn judge(kind: Kind, ratio: &stats::Ratio) -> Finding {
    let bound = match kind {
        Kind::Processor => PROCESSOR_BOUND,
        _ => WALL_BOUND,
    };
    if ratio.of_medians <= bound {
        return Finding::Ok;
    }
    match stats::interval(&ratio.rounds) {
        Some((low, _)) if low > 1.0 => Finding::Worse,
        _ => Finding::Noise,
    }
}

/// Runs a figure and compares; if something is worse, runs it again and keeps what is worse in both.
///
/// # Errors
/// When the figure cannot be run, or the older build takes no part in it.
pub fn measure(figure: &Figure, mut run: impl FnMut() -> Result<Outcome>) -> Result<Outcome> {
    let first = run()?;
    if first.comparisons.is_empty() {
        bail!("figure {} has no row of an older build", figure.number);
    }
    let worse = |c: &Comparison| c.finding == Finding::Worse;
    if !first.comparisons.iter().any(worse) {
        return Ok(first);
    }
    eprintln!(
        "figure {}: worse than before; running it again",
        figure.number
    );
    let mut second = run()?;
    for comparison in &mut second.comparisons {
        confirm(comparison, &first.comparisons);
    }
    Ok(second)
}

/// Removes a finding that the first run does not confirm.
fn confirm(comparison: &mut Comparison, first: &[Comparison]) {
    let same = first.iter().find(|c| {
        c.row == comparison.row
            && c.placement == comparison.placement
            && c.metric == comparison.metric
    });
    comparison.first_ratio = same.and_then(|c| c.ratio);
    let shared = same.is_some_and(|c| c.finding == Finding::Worse);
    if comparison.finding == Finding::Worse && !shared {
        comparison.finding = Finding::Noise;
    }
}

/// Passes if every comparison was made and none is worse.
///
/// # Errors
/// Otherwise, with the number of either.
pub fn pass(outcomes: &[Outcome]) -> Result<()> {
    let count = |finding| {
        let all = outcomes.iter().flat_map(|outcome| &outcome.comparisons);
        all.filter(|c| c.finding == finding).count()
    };
    let (worse, missing) = (count(Finding::Worse), count(Finding::NotMeasured));
    if worse + missing > 0 {
        bail!("the gate fails: {worse} metrics are worse than before, {missing} are not measured");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::environment::Environment;
    use crate::field::{Field, Scale};
    use crate::figure::{Build, LineUp, OURS, Reading, nothing};
    use crate::runner;
    use crate::table;

    const FIGURE: Figure = Figure {
        number: 98,
        title: "test",
        rounds: (7, 7),
        placements: &[Placement::Unpinned],
        metrics: &[Metric::WALL, Metric::CPU, Metric::rate("rate"), GROWN],
        reaches: &[],
        derive: nothing,
        line_up: |_| Ok(LineUp::new()),
    };
    const GROWN: Metric = Metric::count("grown", "bytes");
    /// How one round differs from another: the same for both builds.
    const WEATHER: [f64; 7] = [1.0, 1.3, 0.9, 1.1, 1.0, 1.6, 0.95];
    /// A few percent more, for one build only.
    const JITTER: [f64; 7] = [1.0, 0.96, 1.03, 0.98, 1.04, 0.97, 1.02];

    fn times(factor: f64) -> Vec<f64> {
        WEATHER.iter().map(|w| w * factor).collect()
    }

    fn jittered(factor: f64) -> Vec<f64> {
        let both = WEATHER.iter().zip(JITTER);
        both.map(|(w, j)| w * j * factor).collect()
    }

    /// The findings for these samples of the two builds.
    fn found(metric: Metric, before: Vec<f64>, now: Vec<f64>) -> Vec<Finding> {
        let mut outcome = Outcome::new(
            FIGURE.number,
            FIGURE.title,
            Scale::Full,
            Environment::default(),
        );
        let older = Build::Before.row(OURS);
        outcome.derived(OURS, Placement::Unpinned, metric, now);
        outcome.derived(&older, Placement::Unpinned, metric, before);
        let compared = compare(&FIGURE, &outcome);
        compared.into_iter().map(|c| c.finding).collect()
    }

    #[test]
    fn slower_build_is_worse_and_equal_build_is_not() {
        let rate = Metric::rate("rate");
        assert_eq!(found(Metric::CPU, times(1.0), times(1.0)), [Finding::Ok]);
        assert_eq!(
            found(Metric::CPU, times(1.0), times(1.05)),
            [Finding::Worse]
        );
        assert_eq!(found(Metric::CPU, times(1.05), times(1.0)), [Finding::Ok]);
        assert_eq!(
            found(Metric::WALL, times(1.0), times(1.05)),
            [Finding::Worse]
        );
        assert_eq!(found(rate, times(1.0), times(0.95)), [Finding::Worse]);
        assert_eq!(found(rate, times(0.95), times(1.0)), [Finding::Ok]);
    }

    #[test]
    fn processor_time_has_three_percent_and_wall_time_its_spread() {
        assert_eq!(found(Metric::CPU, times(1.0), times(1.02)), [Finding::Ok]);
        assert_eq!(
            found(Metric::WALL, times(1.0), times(1.02)),
            [Finding::Worse]
        );
        let wall = found(Metric::WALL, times(1.0), jittered(1.02));
        assert_eq!(wall, [Finding::Noise]);
        let far = found(Metric::WALL, times(1.0), jittered(1.1));
        assert_eq!(far, [Finding::Worse]);
    }

    #[test]
    fn too_few_rounds_prove_nothing() {
        let few = |factor| times(factor).into_iter().take(5).collect();
        assert_eq!(found(Metric::CPU, few(1.0), few(2.0)), [Finding::Noise]);
    }

    #[test]
    fn counts_are_not_judged() {
        assert!(found(GROWN, times(1.0), times(9.0)).is_empty());
    }

    #[test]
    fn missing_or_unequal_samples_are_not_measured() {
        let one = |samples: Vec<f64>| samples.into_iter().take(6).collect();
        let unequal = found(Metric::CPU, times(1.0), one(times(1.0)));
        assert_eq!(unequal, [Finding::NotMeasured]);
        let mut outcome = Outcome::new(
            FIGURE.number,
            FIGURE.title,
            Scale::Full,
            Environment::default(),
        );
        let older = Build::Before.row(OURS);
        outcome.derived(&older, Placement::Unpinned, Metric::CPU, times(1.0));
        outcome.comparisons = compare(&FIGURE, &outcome);
        assert_eq!(outcome.comparisons.len(), 1);
        assert!(
            pass(&[outcome])
                .unwrap_err()
                .to_string()
                .contains("1 are not")
        );
    }

    /// A figure whose build under test takes `factor` times as long as the older one.
    fn run(factor: f64) -> Result<Outcome> {
        thread_local! {
            static FACTOR: Cell<f64> = const { Cell::new(1.0) };
        }
        FACTOR.set(factor);
        fn line_up(field: &Field) -> Result<LineUp> {
            let mut line_up = LineUp::new();
            for build in field.builds() {
                let factor = if build == Build::Now {
                    FACTOR.get()
                } else {
                    1.0
                };
                let measure = move |round: u32| -> Result<Vec<Reading>> {
                    let weather = WEATHER.get(round as usize).copied().unwrap_or(1.0);
                    Ok(vec![("wall", weather * factor), ("cpu", weather)])
                };
                line_up.add(&build.row(OURS), Ok(measure));
            }
            Ok(line_up)
        }
        let dir = tempfile::tempdir()?;
        let older = dir.path().join("older");
        std::fs::write(&older, "")?;
        let field = Field::new(dir.path(), Scale::Quick, &older)?;
        let field = field.with_before(Some(older))?.for_gate()?;
        let figure = Figure { line_up, ..FIGURE };
        runner::run(&figure, &field, Environment::default())
    }

    #[test]
    fn slowed_contestant_fails_the_gate() {
        let runs = Rc::new(Cell::new(0));
        let count = |factor: f64| {
            runs.set(runs.get() + 1);
            run(factor)
        };
        let slow = [measure(&FIGURE, || count(1.1)).unwrap()];
        assert_eq!(runs.get(), 2, "a worse figure is run again");
        let shown = table::comparisons(&slow);
        assert!(shown.contains("WORSE (first run 1.100)"), "{shown}");
        let error = pass(&slow).unwrap_err().to_string();
        assert!(error.contains("1 metrics are worse"), "{error}");

        let equal = [measure(&FIGURE, || count(1.0)).unwrap()];
        assert_eq!(runs.get(), 3, "an equal figure is run once");
        pass(&equal).unwrap();
        assert!(!table::comparisons(&equal).contains("WORSE"));

        // The findings are in the result's JSON.
        let json = serde_json::to_string(&slow).unwrap();
        let read: Vec<Outcome> = serde_json::from_str(&json).unwrap();
        assert!(pass(&read).is_err());
    }

    #[test]
    fn slowness_of_one_run_only_is_noise() {
        let mut factors = [1.1, 1.0].into_iter();
        let outcome = measure(&FIGURE, || run(factors.next().unwrap())).unwrap();
        pass(&[outcome]).unwrap();
        let mut factors = [1.1, 1.0, 1.0, 1.1].into_iter();
        let mut first = run(factors.next().unwrap()).unwrap();
        let equal = run(factors.next().unwrap()).unwrap();
        for comparison in &mut first.comparisons {
            confirm(comparison, &equal.comparisons);
        }
        assert!(
            first
                .comparisons
                .iter()
                .any(|c| c.finding == Finding::Noise)
        );
        pass(&[first]).unwrap();
    }

    #[test]
    fn figure_without_an_older_build_is_refused() {
        let none = || {
            Ok(Outcome::new(
                FIGURE.number,
                FIGURE.title,
                Scale::Full,
                Environment::default(),
            ))
        };
        assert!(measure(&FIGURE, none).is_err());
    }
}
