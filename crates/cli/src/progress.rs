//! Progress bars: bytes, files, rate, remaining time; on a terminal only, never in the result.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// How often a bar is drawn.
const TICK: Duration = Duration::from_millis(100);

/// A bar that counts bytes and files.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar, or none where nobody looks on.
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
        Progress { bar }
    }

    /// From now on the remaining time is shown.
    fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes);
        self.bar.set_style(style(
            "{prefix} {bar:30} {bytes}/{total_bytes} {msg} {binary_bytes_per_sec} {eta} left",
        ));
    }

    /// The whole is known so far to be this much.
    pub fn of(&self, bytes: u64) {
        if self.bar.length().is_none() {
            self.expect(bytes);
        } else {
            self.bar.set_length(bytes);
        }
    }

    /// How far it is.
    pub fn at(&self, bytes: u64, files: u64) {
        self.bar.set_position(bytes);
        self.bar.set_message(format!("{files} files"));
    }

    /// Takes the bar away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Default for Progress {
    /// No bar.
    fn default() -> Self {
        Progress {
            bar: ProgressBar::hidden(),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
