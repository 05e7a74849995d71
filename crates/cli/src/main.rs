//! One binary `bulla`: arguments, configuration, output, exit codes. What it does lies in the crates
//! below; here is how a person or a script asks for it and what they are told.
//!
//! | module | what it settles |
//! |---|---|
//! | [`args`] | the spelling of the command line |
//! | [`config`] | where settings come from |
//! | [`report`], [`sockets`], [`metrics`] | what a mount tells of itself, and where it is asked |
//! | [`address`] | addresses to listen on |
//! | [`activation`], [`notify`] | sockets from a service manager, and what it is told |
//! | [`caching`] | what readers keep in memory and on disk |
//! | [`output`] | what goes to stdout and stderr, JSON records |
//! | [`failure`], [`exit`], [`errors`] | `error:`, `cause:`, `hint:` and the exit code of everything that can fail |
//! | [`commands`] | one module a command |
//!
//! Design: *Command line, configuration, output*.

// They panic where the stream cannot be written to.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

mod activation;
mod address;
mod args;
mod caching;
mod commands;
mod config;
mod entry;
mod errors;
mod exit;
mod failure;
mod fstab;
mod logging;
mod metrics;
mod notify;
mod output;
mod passphrase;
mod progress;
mod report;
mod session;
mod sockets;
mod text;
mod units;

use args::Cli;
use config::Config;
use failure::{Failure, Kind};
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
    match Cli::try_parse_from(&words) {
        Ok(cli) => run(cli),
        Err(error) => refuse(&error, &words),
    }
}

/// The words of the command line, those of mount(8) put into our own; `None` when it wants nothing done.
fn words_of_mount(words: Vec<OsString>) -> failure::Outcome<Option<Vec<OsString>>> {
    if fstab::called_by_mount(&words) {
        fstab::translate(&words)
    } else {
        Ok(Some(words))
    }
}

/// The words of this process's command line, once they have been understood.
fn words() -> Vec<OsString> {
    let words = words_of_mount(std::env::args_os().collect());
    words.ok().flatten().unwrap_or_default()
}

fn run(cli: Cli) -> ExitCode {
    let global = &cli.global;
    let name = cli.command.name();
    let config = match Config::load(global.config.as_deref()) {
        Ok(config) => config,
        // It is the doctor's matter to tell what is wrong with it, among other things.
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
    logging::start(format, global.verbose, global.quiet, color.on_stderr());
    let mut output = Output::new(name, global.json, global.quiet, color);
    let outcome = commands::run(&cli, &config, &mut output);
    ExitCode::from(output.close(outcome).code())
}

/// A command line that is none: usage, in the same words and records as every other error.
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
