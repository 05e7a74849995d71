//! Logging to stderr: warnings by default, more with each `-v`, errors only with `-q`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging for the whole process; `BULLA_LOG` (as `wire=debug,info`) overrides the flags.
pub fn start(format: LogFormat, verbose: u8, quiet: bool, color: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let filter = EnvFilter::try_from_env("BULLA_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // If a line cannot be written it is dropped: reporting that on stderr would panic.
        .log_internal_errors(false)
        .with_ansi(color && std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    // A second start in one process (tests) keeps the first.
    drop(started);
}
