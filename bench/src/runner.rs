//! Runs a figure: all contestants interleaved, round by round.
//!
//! Every contestant runs once per round. Each round begins with another one, and every second round
//! runs in the opposite order of the one before, so that a slow period of the machine, a drift and the
//! position in the order affect all of them equally. A contestant that fails is left out of the remaining
//! rounds and listed with the reason; the others continue.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::cpu::Pin;
use crate::environment::{self, Environment};
use crate::field::Field;
use crate::figure::{Entry, Figure, LineUp, Placement, Reading};
use crate::outcome::{NotMeasured, Outcome, Series};
use crate::{gate, process};

/// Runs all passes of a figure and judges it.
///
/// # Errors
/// When the data cannot be prepared or the user stops the run. A failing contestant is not an error.
pub fn run(figure: &Figure, field: &Field, environment: Environment) -> Result<Outcome> {
    let start = Instant::now();
    let rounds = field.rounds(figure.rounds);
    let mut outcome = Outcome::new(figure.number, figure.title, field.scale, environment);
    outcome.load_at_start = environment::load()?;
    outcome.rounds = rounds;
    for placement in figure.placements {
        let pin = match placement {
            Placement::Pinned => Some(Pin::to_one()?),
            Placement::Unpinned => None,
        };
        eprintln!("figure {}: {}", figure.number, describe(*placement));
        let line_up = (figure.line_up)(field)
            .with_context(|| format!("preparing figure {}", figure.number))?;
        pass(figure, *placement, rounds, line_up, &mut outcome)?;
        (figure.derive)(&mut outcome, *placement);
        drop(pin);
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    // A gate has no peers, so goals cannot be judged.
    if !field.gate() {
        outcome.judge(figure.reaches);
    }
    outcome.comparisons = gate::compare(figure, &outcome);
    Ok(outcome)
}

fn describe(placement: Placement) -> &'static str {
    match placement {
        Placement::Pinned => "pinned to one processor",
        Placement::Unpinned => "on all processors",
    }
}

fn pass(
    figure: &Figure,
    placement: Placement,
    rounds: u32,
    mut line_up: LineUp,
    outcome: &mut Outcome,
) -> Result<()> {
    let count = line_up.contestants.len();
    let mut readings: Vec<Vec<Reading>> = vec![Vec::new(); count];
    for round in 0..rounds {
        process::check_stop()?;
        (line_up.before_round)(round).with_context(|| format!("preparing round {round}"))?;
        for index in order(usize::try_from(round)?, count) {
            let (Some(entry), Some(kept)) =
                (line_up.contestants.get_mut(index), readings.get_mut(index))
            else {
                continue;
            };
            one(entry, round, kept)?;
        }
    }
    for (entry, readings) in line_up.contestants.into_iter().zip(readings) {
        record(figure, placement, entry, &readings, outcome);
    }
    Ok(())
}

/// The order of a round. Two contestants run as A B, B A, B A, A B, and so on.
fn order(round: usize, count: usize) -> Vec<usize> {
    let first = (round / 2) % count.max(1);
    let mut order: Vec<usize> = (first..count).chain(0..first).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// Runs one contestant once. If it fails, the error replaces it in the line-up.
fn one(entry: &mut Entry, round: u32, kept: &mut Vec<Reading>) -> Result<()> {
    let Ok(contestant) = &mut entry.state else {
        return Ok(());
    };
    let start = Instant::now();
    let measured = contestant.measure(round);
    process::check_stop()?;
    match measured {
        Ok(new) => {
            let took_s = start.elapsed().as_secs_f64();
            eprintln!("  round {}: {} ({took_s:.1} s)", round + 1, entry.name);
            kept.extend(new);
        }
        Err(error) => {
            eprintln!("  round {}: {} failed: {error:#}", round + 1, entry.name);
            entry.state = Err(error.context(format!("round {}", round + 1)));
        }
    }
    Ok(())
}

fn record(
    figure: &Figure,
    placement: Placement,
    entry: Entry,
    readings: &[Reading],
    outcome: &mut Outcome,
) {
    // A row with fewer rounds than the others would not be comparable: it counts as not measured.
    if let Err(error) = entry.state {
        outcome.not_measured.push(NotMeasured {
            contestant: entry.name,
            placement,
            why: format!("{error:#}"),
        });
        return;
    }
    for metric in figure.metrics {
        let samples: Vec<f64> = readings
            .iter()
            .filter(|(name, _)| *name == metric.name)
            .map(|(_, value)| *value)
            .collect();
        if !samples.is_empty() {
            outcome.series.push(Series {
                contestant: entry.name.clone(),
                placement,
                metric: metric.name.to_owned(),
                unit: metric.unit.to_owned(),
                samples,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::field::Scale;
    use crate::figure::{Bound, Metric, OURS, Reach, nothing};

    thread_local! {
        static ORDER: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn runner(name: &'static str, value: f64) -> impl FnMut(u32) -> Result<Vec<Reading>> {
        move |round| {
            ORDER.with_borrow_mut(|order| order.push(format!("{name}{round}")));
            anyhow::ensure!(name != "bad" || round == 0, "tired");
            Ok(vec![("wall", value)])
        }
    }

    fn line_up(_: &Field) -> Result<LineUp> {
        let mut line_up = LineUp::new();
        line_up.add(OURS, Ok(runner("a", 1.0)));
        line_up.add("good", Ok(runner("b", 2.0)));
        line_up.add("bad", Ok(runner("bad", 1.0)));
        line_up.missing("absent", "not installed");
        Ok(line_up)
    }

    const fn reach(peer: &'static str, bound: Bound) -> Reach {
        Reach::new("wall", Placement::Unpinned, peer, bound)
    }

    const FIGURE: Figure = Figure {
        number: 99,
        title: "test",
        rounds: (2, 2),
        placements: &[Placement::Unpinned],
        metrics: &[Metric::WALL],
        reaches: &[
            reach("good", Bound::AtMost(0.5)),
            reach("good", Bound::AtMost(0.4)),
            reach("bad", Bound::AtMost(9.0)),
        ],
        derive: nothing,
        line_up,
    };

    #[test]
    fn each_contestant_runs_as_often_before_another_as_after_it() {
        for count in [2, 3, 12] {
            let mut first_wins = 0;
            for round in 0..2 * count {
                let order = order(round, count);
                let place = |of| order.iter().position(|index| *index == of).unwrap();
                first_wins += usize::from(place(0) < place(1));
            }
            assert_eq!(first_wins, count);
        }
        let beginners: Vec<_> = (0..6).map(|round| order(round, 3)[0]).collect();
        assert_eq!(beginners, [0, 2, 1, 0, 2, 1]);
    }

    #[test]
    fn rounds_interleave_failures_are_reported_and_goals_judged() {
        let dir = tempfile::tempdir().unwrap();
        let field = Field::new(dir.path(), Scale::Quick, dir.path()).unwrap();
        let outcome = run(&FIGURE, &field, Environment::default()).unwrap();

        // The second round runs in the opposite order.
        let order = ORDER.with_borrow(|order| order.join(" "));
        assert_eq!(order, "a0 b0 bad0 bad1 b1 a1");
        let why: Vec<_> = outcome
            .not_measured
            .iter()
            .map(|n| (n.contestant.as_str(), n.why.as_str()))
            .collect();
        assert_eq!(
            why,
            [("bad", "round 2: tired"), ("absent", "not installed")]
        );
        let met: Vec<_> = outcome.verdicts.iter().map(|v| v.met).collect();
        assert_eq!(met, [Some(true), Some(false), None]);

        // A written file is read back unchanged, and another format is refused.
        let path = field.result_path(99);
        outcome.save(&path).unwrap();
        assert_eq!(Outcome::load(&path).unwrap().verdicts.len(), 3);
        let other = std::fs::read_to_string(&path)
            .unwrap()
            .replace("\"schema\": 1", "\"schema\": 0");
        std::fs::write(&path, other).unwrap();
        assert!(Outcome::load(&path).is_none());
    }
}
