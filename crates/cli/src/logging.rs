//! Logging to stderr. Daemons write log lines: warnings by default, more with each `-v`, errors only with `-q`.
//!
//! A command tells its user what happened in its own words, so it writes log lines only with `-v` or `BULLA_LOG`. Without
//! them its warnings and errors are kept here. At its end [`crate::output`] prints those that its result does not tell,
//! for example the lie of a mirror that an honest mirror made good. A warning that the command waits goes to a terminal at
//! once.

use std::fmt::{Debug, Write as _};
use std::io::{IsTerminal, Write as _};
use std::sync::Mutex;

use store::mirrors::outage::WAITS;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::text;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Which log lines are written.
#[derive(Debug, Clone, Copy)]
pub struct Logging {
    /// Their format.
    pub format: LogFormat,
    /// How often `-v` is given.
    pub verbose: u8,
    /// `-q` is given.
    pub quiet: bool,
    /// Whether they may be colored.
    pub color: bool,
    /// Whether the command runs until a signal ends it.
    pub is_daemon: bool,
}

/// The variable that sets levels by module (`wire=debug,info`); it overrides the flags.
const VARIABLE: &str = "BULLA_LOG";

/// Starts logging for the whole process.
pub fn start(how: Logging) {
    let by_variable = EnvFilter::try_from_env(VARIABLE).ok();
    if by_variable.is_none() && how.verbose == 0 && !how.is_daemon {
        let level = match how.quiet {
            true => LevelFilter::ERROR,
            false => LevelFilter::WARN,
        };
        let keep = Keep {
            shelf: &SHELF,
            tells_waits: !how.quiet && std::io::stderr().is_terminal(),
        };
        // A second start in one process (tests) keeps the first.
        let _ = tracing_subscriber::registry()
            .with(keep.with_filter(level))
            .try_init();
        return;
    }
    let level = match (how.quiet, how.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(by_variable.unwrap_or_else(|| EnvFilter::new(level)))
        .with_writer(std::io::stderr)
        // If a line cannot be written it is dropped: reporting that on stderr would panic.
        .log_internal_errors(false)
        .with_ansi(how.color && std::io::stderr().is_terminal());
    let started = match how.format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    drop(started);
}

/// A warning or an error of a library that a command has not written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    message: String,
    /// The fields that say what it is about, as `replica /srv/docs`.
    about: String,
    /// The place that is to blame.
    place: Option<String>,
    why: Option<String>,
    /// Whether it is an error, and not a warning.
    is_error: bool,
}

/// Limit of the number of events that are kept, so that a mirror cannot fill the memory or the screen.
const MAX_KEPT: usize = 16;
/// Limit of the length of one field of an event, bytes.
const MAX_PART_BYTES: usize = 1024;

/// What was kept, and the number of those that were too many to keep.
type Shelf = Mutex<(Vec<Kept>, u64)>;

/// What the command of this process has not written.
static SHELF: Shelf = empty();

const fn empty() -> Shelf {
    Mutex::new((Vec::new(), 0))
}

/// Takes what the command has not written, each once and errors first, and the number of those that were too many to
/// keep.
pub fn take_kept() -> (Vec<Kept>, u64) {
    taken_from(&SHELF)
}

fn taken_from(shelf: &Shelf) -> (Vec<Kept>, u64) {
    let kept = shelf.lock().map(|mut kept| std::mem::take(&mut *kept));
    let (mut kept, more) = kept.unwrap_or_default();
    kept.sort_by_key(|one| !one.is_error);
    (kept, more)
}

impl Kept {
    /// Whether `words` tell this already.
    pub fn is_told_by(&self, words: &str) -> bool {
        let reason = self.why.as_ref().unwrap_or(&self.message);
        let place = self.place.as_ref();
        words.contains(reason.as_str()) && place.is_none_or(|place| words.contains(place.as_str()))
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.about.is_empty() {
            write!(f, " ({})", self.about)?;
        }
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

/// Keeps events in the place of writing them.
struct Keep {
    shelf: &'static Shelf,
    /// Whether an event that says that the command waits is written at once.
    tells_waits: bool,
}

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut kept = Kept {
            is_error: *event.metadata().level() == Level::ERROR,
            ..Kept::default()
        };
        event.record(&mut kept);
        if self.tells_waits && event.metadata().target() == WAITS {
            let words = text::printable_message(&kept.to_string());
            // If the terminal is gone, nobody reads it.
            let _ = writeln!(std::io::stderr(), "warning: {words}");
            return;
        }
        let Ok(mut all) = self.shelf.lock() else {
            return;
        };
        if all.0.contains(&kept) {
            return;
        }
        match all.0.len() < MAX_KEPT {
            true => all.0.push(kept),
            false => all.1 = all.1.saturating_add(1),
        }
    }
}

impl Visit for Kept {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = format!("{value:?}");
        text.truncate(text.floor_char_boundary(MAX_PART_BYTES));
        match field.name() {
            "message" => self.message = text,
            "error" | "why" | "cause" | "failure" => self.why = Some(text),
            name => {
                let comma = if self.about.is_empty() { "" } else { ", " };
                // The value of `what` is a noun already.
                let label = match name {
                    "what" => String::new(),
                    name => format!("{} ", name.replace('_', " ")),
                };
                // Writing to a string cannot fail.
                let _ = write!(self.about, "{comma}{label}{text}");
                if matches!(field.name(), "replica" | "place") {
                    self.place = Some(text);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(shelf: &'static Shelf) -> Keep {
        let tells_waits = false;
        Keep { shelf, tells_waits }
    }

    fn kept(replica: &'static str) -> Kept {
        static OWN: Shelf = empty();
        let subscriber = tracing_subscriber::registry().with(keep(&OWN));
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..3 {
                let why = format_args!("does not hash to its handle");
                tracing::error!(replica, handle = 7, %why, "wrong block");
            }
            tracing::info!("not for users");
        });
        let (mut all, more) = taken_from(&OWN);
        assert_eq!((all.len(), more), (1, 0), "{all:?}");
        all.remove(0)
    }

    #[test]
    fn event_is_kept_once_and_told_in_one_line() {
        let kept = kept("/srv/bad");
        assert_eq!(
            kept.to_string(),
            "wrong block (replica /srv/bad, handle 7): does not hash to its handle"
        );
        assert!(kept.is_told_by("/srv/bad gave a block that does not hash to its handle"));
        assert!(!kept.is_told_by("/srv/worse gave a block that does not hash to its handle"));
        assert!(!kept.is_told_by("/srv/bad does not answer"));
    }

    #[test]
    fn number_and_length_of_kept_events_are_bounded() {
        static OWN: Shelf = empty();
        let subscriber = tracing_subscriber::registry().with(keep(&OWN));
        let long = "\u{e9}".repeat(MAX_PART_BYTES);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..100 {
                tracing::warn!(number, why = long, "flood");
            }
        });
        let (all, more) = taken_from(&OWN);
        assert_eq!((all.len(), more), (MAX_KEPT, 100 - MAX_KEPT as u64));
        for kept in all {
            assert!(kept.to_string().len() < 2 * MAX_PART_BYTES);
        }
    }
}
