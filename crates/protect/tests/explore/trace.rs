//! What was done, as text: a failure prints it, and `replay` does it again.
//!
//! `w0-8 s0 f ! 7 power 0.1.1 ! 3 kill 0`: write the sectors 0 to 7, one stage of actor 0, flush; stop the machine
//! while the operation 7 of the session is in flight, with this outcome; the next session stops at its operation 3.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use sim::device::{Outcome, Stop};

/// One thing that a test does to an attached device. Ranges are sectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Write(Range<u64>),
    Zero(Range<u64>),
    Flush,
    /// One stage of an actor's work.
    Step(usize),
    /// All actors until nobody has anything to do.
    Drain,
    /// A bit flips in a page of the log's device, counted from its end.
    Rot(u64),
}

/// A stop at an operation of a session, counted from 0, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    pub operation: usize,
    pub stop: Stop,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub schedule: Vec<Action>,
    pub crashes: Vec<Crash>,
}

impl Trace {
    /// This trace, and then another crash.
    pub fn then(&self, operation: usize, stop: Stop, outcome: &Outcome) -> Trace {
        let mut trace = self.clone();
        trace.crashes.push(Crash {
            operation,
            stop,
            outcome: outcome.clone(),
        });
        trace
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Write(sectors) => write!(f, "w{}-{}", sectors.start, sectors.end),
            Action::Zero(sectors) => write!(f, "z{}-{}", sectors.start, sectors.end),
            Action::Flush => f.write_str("f"),
            Action::Step(actor) => write!(f, "s{actor}"),
            Action::Drain => f.write_str("d"),
            Action::Rot(page) => write!(f, "r{page}"),
        }
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(word: &str) -> Result<Action, String> {
        let error = || format!("{word} is no action");
        let kind = word.get(..1).ok_or_else(error)?;
        let rest = &word[1..];
        let range = || {
            let (start, end) = rest.split_once('-')?;
            Some(start.parse().ok()?..end.parse().ok()?)
        };
        match kind {
            "w" => range().map(Action::Write).ok_or_else(error),
            "z" => range().map(Action::Zero).ok_or_else(error),
            "f" => Ok(Action::Flush),
            "d" => Ok(Action::Drain),
            "s" => rest.parse().map(Action::Step).map_err(|_| error()),
            "r" => rest.parse().map(Action::Rot).map_err(|_| error()),
            _ => Err(error()),
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.schedule.iter().map(Action::to_string).collect();
        f.write_str(&words.join(" "))?;
        self.crashes.iter().try_for_each(|crash| {
            let stop = match crash.stop {
                Stop::Kill => "kill",
                Stop::Power => "power",
            };
            write!(f, " ! {} {stop} {}", crash.operation, crash.outcome)
        })
    }
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(text: &str) -> Result<Trace, String> {
        let mut parts = text.split('!');
        let schedule = parts.next().unwrap_or_default().split_whitespace();
        let schedule = schedule.map(str::parse).collect::<Result<_, _>>()?;
        let crashes = parts.map(crash).collect::<Result<_, _>>()?;
        Ok(Trace { schedule, crashes })
    }
}

fn crash(text: &str) -> Result<Crash, String> {
    let error = || format!("{text} is no crash");
    let mut words = text.split_whitespace();
    let operation = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or_else(error)?;
    let stop = match words.next() {
        Some("kill") => Stop::Kill,
        Some("power") => Stop::Power,
        _ => return Err(error()),
    };
    let outcome = words
        .next()
        .unwrap_or_default()
        .parse()
        .map_err(|_| error())?;
    Ok(Crash {
        operation,
        stop,
        outcome,
    })
}

#[test]
fn trace_is_read_back_as_it_was_printed() {
    let text = "w0-8 s0 f z8-16 r3 d ! 7 power 0.1.1 ! 3 kill ";
    let trace: Trace = text.parse().unwrap();
    assert_eq!(trace.to_string(), text);
    assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
    assert!("w0 ! 7".parse::<Trace>().is_err());
}
