//! The binary `bulla`: arguments, configuration, output, exit codes. The library crates do the work; this
//! crate parses the command line, calls them, and reports the result to people and scripts.
//!
//! | module | content |
//! |---|---|
//! | [`args`] | the command line: commands, arguments, flags |
//! | [`config`] | settings: files, variables, defaults |
//! | [`sources`] | names that stand for sources |
//! | [`daemon`] | commands that go to the background |
//! | [`descriptors`] | which inherited descriptors a daemon keeps |
//! | [`control`] | what other commands ask of an attached device, over a socket |
//! | [`report`], [`sockets`], [`metrics`] | the status report and metrics of a mount, and the sockets that serve them |
//! | [`address`] | addresses to listen on |
//! | [`activation`], [`notify`] | sockets from a service manager, and readiness notification |
//! | [`asking`] | witnesses that a publisher asks for cosignatures |
//! | [`changes`] | how two states of a volume differ, one path a line |
//! | [`lock_wait`] | waits for the lock of a repository |
//! | [`caching`] | the caches of reading commands, in memory and on disk |
//! | [`output`] | stdout, stderr and JSON records |
//! | [`failure`], [`exit`], [`errors`] | `error:`, `cause:`, `hint:` and the exit code of each failure |
//! | [`commands`] | one module for each command |
//!
//! Design: *Command line, configuration, output*.

// These macros panic if the stream cannot be written.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

mod activation;
mod address;
mod args;
mod asking;
mod caching;
mod changes;
mod commands;
mod config;
mod control;
mod daemon;
mod descriptors;
mod entry;
mod errors;
mod exit;
mod failure;
mod fstab;
mod lock_wait;
mod logging;
mod metrics;
mod notify;
mod output;
mod passphrase;
mod profiles;
mod progress;
mod questions;
mod report;
mod roles;
mod session;
mod sharing;
mod sockets;
mod sources;
mod states;
mod text;
mod units;

use args::Cli;
use config::Config;
use failure::{Failure, Kind};
use logging::Logging;
use output::{Color, Output};

fn main() -> ExitCode {
    let words = match words_of_mount(std::env::args_os().collect()) {
        Ok(Some(words)) => words,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => {
            let exit = Output::new("mount", false, false, Color::Auto).close(Err(failure));
            return ExitCode::from(exit.code());
        }
    };
    match parse(&words) {
        Ok((cli, checked)) => {
            if cli.command.is_daemon() {
                descriptors::close_others(&words);
            }
            run(cli, checked)
        }
        Err(error) => refuse(&error, &words),
    }
}

/// The command line, and whether its paths are paths.
fn parse(words: &[OsString]) -> Result<(Cli, failure::Outcome<()>), clap::Error> {
    let matches = Cli::command().try_get_matches_from(words)?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut Cli::command()))?;
    Ok((cli, args::local::check(&matches)))
}

/// Translates a command line from mount(8) into one of `bulla mount`; others stay as they are. `None` if
/// mount(8) asks for a check only (`-f`).
fn words_of_mount(words: Vec<OsString>) -> failure::Outcome<Option<Vec<OsString>>> {
    if fstab::called_by_mount(&words) {
        fstab::translate(&words)
    } else {
        Ok(Some(words))
    }
}

/// The translated command line of this process. Empty if it is not valid.
fn words() -> Vec<OsString> {
    let words = words_of_mount(std::env::args_os().collect());
    words.ok().flatten().unwrap_or_default()
}

fn run(cli: Cli, checked: failure::Outcome<()>) -> ExitCode {
    let global = &cli.global;
    let name = cli.command.name();
    let config = match Config::load(global.config.as_deref()) {
        Ok(config) => config,
        // `bulla doctor` reports a wrong configuration as one of its findings.
        Err(failure) if matches!(cli.command, args::Command::Doctor(_)) => {
            Config::built_in().with_fault(failure)
        }
        Err(failure) => {
            let color = global.color.unwrap_or_default();
            let mut output = Output::new(name, global.json, global.quiet, color);
            return ExitCode::from(output.close(Err(failure)).code());
        }
    };
    let color = global.color.unwrap_or_else(|| config.choice("color"));
    let format = global
        .log_format
        .unwrap_or_else(|| config.choice("log-format"));
    logging::start(Logging {
        format,
        verbose: global.verbose,
        quiet: global.quiet,
        color: color.on_stderr(),
        is_daemon: cli.command.is_daemon(),
    });
    let mut output = Output::new(name, global.json, global.quiet, color);
    let outcome = descriptors::check_limit().and(checked);
    let outcome = outcome.and_then(|()| commands::run(&cli, &config, &mut output));
    ExitCode::from(output.close(outcome).code())
}

/// Reports a command line that is not valid, in the same format as every other error.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let rendered = error.render().to_string();
    let json = words.iter().any(|word| word == "--json");
    if !json && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::say(&rendered);
        return ExitCode::from(exit::Exit::Usage.code());
    }
    let mut lines = rendered
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let first = lines.next().unwrap_or_default();
    let mut failure = Failure::new(Kind::Usage, first.trim_start_matches("error: "));
    for line in lines {
        failure.push_cause(line.to_owned());
    }
    let exit = Output::new("", json, false, Color::Auto).close(Err(failure));
    ExitCode::from(exit.code())
}
