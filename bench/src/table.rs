//! Results as text: a table per figure. A row that was not measured gives the reason.

use std::fmt::Write;

use crate::field::Scale;
use crate::figure::{Bound, Figure, Metric, Placement};
use crate::outcome::{Comparison, Finding, Outcome, Verdict};
use crate::stats;

/// A figure as text, or a note that it has not been run.
pub fn figure(figure: &Figure, outcome: Option<&Outcome>) -> String {
    let mut text = format!("Figure {}: {}\n", figure.number, figure.title);
    let Some(outcome) = outcome else {
        text.push_str("  not measured: has not been run\n");
        return text;
    };
    let scale = match outcome.scale {
        Scale::Full => "",
        Scale::Quick => " QUICK SIZES: not a measurement.",
    };
    let _ = writeln!(
        text,
        "  {} rounds, {}, load {:.2} at the start.{scale}",
        outcome.rounds, outcome.started, outcome.load_at_start
    );
    for placement in figure.placements {
        rows(&mut text, figure, outcome, *placement);
    }
    for verdict in &outcome.verdicts {
        let _ = writeln!(text, "  {}", judged(verdict));
    }
    if !outcome.comparisons.is_empty() {
        text.push_str(&comparisons(std::slice::from_ref(outcome)));
    }
    text
}

fn rows(text: &mut String, figure: &Figure, outcome: &Outcome, placement: Placement) {
    let names = outcome.rows(placement);
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let _ = write!(text, "  {:width$}", word(placement));
    for metric in figure.metrics {
        let _ = write!(
            text,
            "  {:>30}",
            format!("{}, {}", metric.name, metric.unit)
        );
    }
    text.push('\n');
    for name in names {
        let _ = write!(text, "  {name:width$}");
        let why = outcome
            .not_measured
            .iter()
            .find(|n| n.contestant == name && n.placement == placement);
        let samples = |metric: &Metric| outcome.samples(&name, placement, metric.name);
        // A row may be measured partly.
        if why.is_none()
            || figure
                .metrics
                .iter()
                .any(|metric| samples(metric).is_some())
        {
            for metric in figure.metrics {
                let cell = samples(metric).map_or_else(|| "-".to_owned(), cell);
                let _ = write!(text, "  {cell:>30}");
            }
        }
        if let Some(why) = why {
            let _ = write!(text, "  not measured: {}", why.why);
        }
        text.push('\n');
    }
}

/// A placement in words.
pub fn word(placement: Placement) -> &'static str {
    match placement {
        Placement::Pinned => "pinned",
        Placement::Unpinned => "all processors",
    }
}

fn cell(samples: &[f64]) -> String {
    match (stats::median(samples), stats::spread(samples)) {
        (Some(median), Some((low, high))) => {
            format!("{} ({}-{})", short(median), short(low), short(high))
        }
        _ => "-".to_owned(),
    }
}

/// About three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{:.2}G", value / 1e9),
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn judged(verdict: &Verdict) -> String {
    let bound = match verdict.bound {
        Bound::AtMost(bound) => format!("at most {bound:.2}"),
        Bound::AtLeast(bound) => format!("at least {bound:.2}"),
    };
    let what = format!(
        "{} ({}) over {}: {bound}",
        verdict.metric,
        word(verdict.placement),
        verdict.peer
    );
    match (verdict.ratio, verdict.met) {
        (Some([ratio, low, high]), Some(met)) => {
            let mark = match (met, verdict.even()) {
                (true, _) => "met   ",
                (false, true) => "even  ",
                (false, false) => "MISSED",
            };
            let interval = verdict.interval.map_or_else(String::new, |[low, high]| {
                format!(", 95% interval {low:.3}-{high:.3}")
            });
            format!("{mark} {what}; measured {ratio:.3} ({low:.3}-{high:.3}){interval}")
        }
        _ => format!("?      {what}; not measured"),
    }
}

/// The comparisons of some figures as a table.
pub fn comparisons(outcomes: &[Outcome]) -> String {
    let header = [
        "figure", "row", "metric", "before", "now", "ratio", "spread", "verdict",
    ];
    let mut lines = vec![header.map(str::to_owned)];
    for outcome in outcomes {
        lines.extend(
            outcome
                .comparisons
                .iter()
                .map(|c| comparison_line(outcome.figure, c)),
        );
    }
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if number == 0 {
            for width in &widths {
                let _ = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text.push_str("A ratio above 1 is worse than before, for rates as well.\n");
    text
}

fn comparison_line(figure: u8, comparison: &Comparison) -> [String; 8] {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
    let ratio = |value: f64| format!("{value:.3}");
    let verdict = match (comparison.finding, comparison.first_ratio) {
        (Finding::Ok, _) => "ok".to_owned(),
        (Finding::Noise, None) => "noise".to_owned(),
        (Finding::Noise, Some(first)) => format!("noise (first run {first:.3})"),
        (Finding::Worse, None) => "WORSE".to_owned(),
        (Finding::Worse, Some(first)) => format!("WORSE (first run {first:.3})"),
        (Finding::NotMeasured, _) => "NOT MEASURED".to_owned(),
    };
    [
        figure.to_string(),
        format!("{}, {}", comparison.row, word(comparison.placement)),
        format!("{}, {}", comparison.metric, comparison.unit),
        number(comparison.before),
        number(comparison.now),
        comparison.ratio.map_or_else(|| "-".to_owned(), ratio),
        comparison.spread.map_or_else(
            || "-".to_owned(),
            |[low, high]| format!("{low:.3}-{high:.3}"),
        ),
        verdict,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_about_three_digits() {
        let shown: Vec<String> = [0.1234, 3.456, 34.56, 345.6, 34567.0, 3.4567e6, 2e9]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(
            shown,
            ["0.123", "3.46", "34.6", "346", "35k", "3.46M", "2.00G"]
        );
    }

    #[test]
    fn goal_without_a_peer_is_never_met() {
        let verdict = Verdict {
            metric: "wall".to_owned(),
            placement: Placement::Unpinned,
            peer: "restic".to_owned(),
            bound: Bound::AtMost(0.4),
            ratio: None,
            met: None,
            interval: None,
        };
        let shown = judged(&verdict);
        assert!(
            shown.starts_with('?') && shown.ends_with("not measured"),
            "{shown}"
        );
    }

    #[test]
    fn even_needs_rounds_that_prove_no_difference() {
        let shown = |interval| {
            judged(&Verdict {
                metric: "warm".to_owned(),
                placement: Placement::Unpinned,
                peer: "ext4".to_owned(),
                bound: Bound::AtMost(1.02),
                ratio: Some([1.03, 0.99, 1.08]),
                met: Some(false),
                interval,
            })
        };
        assert!(shown(Some([0.99, 1.08])).starts_with("even  "));
        assert!(shown(Some([1.01, 1.08])).starts_with("MISSED"));
        assert!(shown(None).starts_with("MISSED"));
    }
}
