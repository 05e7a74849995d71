//! Progress bars with bytes, files, rate and remaining time. Drawn on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trust::root::Totals;

use crate::output::Output;
use crate::units;

/// How often a bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A bar that counts bytes and files.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
    /// The total number of files, if known.
    leaves: Option<u64>,
    /// The noun for what is counted besides bytes, in the singular and the plural.
    noun: (&'static str, &'static str),
}

const FILES: (&str, &str) = ("file", "files");

impl Progress {
    /// Draws a bar, if stderr is a terminal and the output is for people.
    pub fn start(output: &Output, verb: &str) -> Progress {
        let target = if output.progress() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_prefix(verb.to_owned());
        bar.set_style(style(
            "{prefix} {bytes} {msg} {binary_bytes_per_sec} {elapsed}",
        ));
        if output.progress() {
            bar.enable_steady_tick(TICK);
        }
        Progress {
            bar,
            leaves: None,
            noun: FILES,
        }
    }

    /// Counts something else than files.
    #[must_use]
    pub fn counting(self, one: &'static str, several: &'static str) -> Progress {
        let noun = (one, several);
        Progress { noun, ..self }
    }

    /// Sets the total and shows the remaining time from now on.
    fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes);
        self.bar.set_style(style(
            "{prefix} {bar:30} {bytes}/{total_bytes} {msg} {binary_bytes_per_sec} {eta} left",
        ));
    }

    /// Sets the total that is known so far.
    pub fn of(&self, bytes: u64) {
        if self.bar.length().is_none() {
            self.expect(bytes);
        } else {
            self.bar.set_length(bytes);
        }
    }

    /// Sets the signed totals: for `verify` and `extract` of a whole volume.
    pub fn signed(&mut self, totals: &Totals) {
        self.leaves = Some(totals.leaves());
        self.of(totals.bytes);
    }

    /// Sets the progress.
    pub fn at(&self, bytes: u64, files: u64) {
        self.bar.set_position(bytes);
        let (one, several) = self.noun;
        self.bar.set_message(match self.leaves {
            Some(leaves) => format!("{files}/{}", units::count(leaves, one, several)),
            None => units::count(files, one, several),
        });
    }

    /// Sets the progress, where there are no files.
    pub fn bytes(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Progress {
    /// No bar.
    fn default() -> Self {
        Progress {
            bar: ProgressBar::hidden(),
            leaves: None,
            noun: FILES,
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar() -> Progress {
        Progress::default()
    }

    #[test]
    fn signed_totals_show_how_much_is_left() {
        let mut progress = bar();
        progress.at(10, 1);
        assert_eq!(
            (progress.bar.length(), &*progress.bar.message()),
            (None, "1 file")
        );
        let totals = Totals {
            files: 3,
            directories: 9,
            other: 1,
            bytes: 1000,
        };
        progress.signed(&totals);
        progress.at(500, 2);
        assert_eq!(progress.bar.length(), Some(1000));
        assert_eq!(progress.bar.message(), "2/4 files");
    }

    #[test]
    fn impossible_totals_do_not_panic() {
        for bytes in [0, 1, u64::MAX] {
            let mut progress = bar();
            let files = u64::MAX;
            let other = u64::MAX;
            progress.signed(&Totals {
                files,
                other,
                bytes,
                directories: 0,
            });
            for at in [0, 1 << 40, u64::MAX] {
                progress.at(at, at);
                // The remaining time and the rate, as the bar asks for them.
                let _ = (progress.bar.eta(), progress.bar.per_sec());
                progress.bar.tick();
            }
            progress.end();
        }
    }
}
