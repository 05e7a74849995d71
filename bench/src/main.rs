//! `bulla-bench`: our figures beside our peers', in the same run on the same machine.
//!
//! One command, resumable figure by figure: `bulla-bench all` runs what has no result for this build
//! yet, `run 1 2` runs these again, `table` prints what there is. Method: `docs/benchmarks.md`.

mod compile;
mod cpu;
mod dataset;
mod environment;
mod field;
mod figure;
mod figures;
mod load;
mod memory;
mod mounts;
mod network;
mod outcome;
mod peers;
mod process;
mod protocol;
mod runner;
mod stats;
mod subject;
mod table;
mod unverified;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::environment::Environment;
use crate::field::{Field, Scale};
use crate::figure::Figure;
use crate::outcome::Outcome;

#[derive(Parser)]
#[command(name = "bulla-bench", about = "Compares bulla with its peers", version)]
struct Arguments {
    /// Where data, repositories, mounts and results lie; some 30 GB at full scale.
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/work"))]
    work: PathBuf,
    /// The binary under test [default: `bulla` beside this program].
    #[arg(long, global = true)]
    bulla: Option<PathBuf>,
    /// Sizes and rounds; quick ones show that every part works and are no measurements.
    #[arg(long, global = true, value_enum, default_value = "full")]
    scale: Scale,
    /// How often each contestant runs [default: what suits the figure; at most 20 for figure 6].
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs every figure that has no result for this build of bulla yet, then prints all.
    All {
        /// Runs them even so.
        #[arg(long)]
        again: bool,
    },
    /// Runs these figures and prints them.
    Run {
        /// Their numbers.
        #[arg(required = true)]
        figures: Vec<u8>,
    },
    /// Prints what has been measured.
    Table,
    /// Makes the data sets, which the figures otherwise do when they first need them.
    Prepare,
}

fn main() -> ExitCode {
    match work(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if process::stopped() {
                return ExitCode::from(130);
            }
            ExitCode::FAILURE
        }
    }
}

fn work(arguments: Arguments) -> Result<()> {
    let beside = std::env::current_exe()?.with_file_name("bulla");
    let bulla = arguments.bulla.unwrap_or(beside);
    let field = Field::new(&arguments.work, arguments.scale, &bulla)?.with_rounds(arguments.rounds);
    let _claim = match arguments.command {
        Command::Table => None,
        _ => Some(field.claim()?),
    };
    process::stop_on_signals()?;
    match arguments.command {
        Command::All { again } => {
            let subject = environment::subject(&bulla);
            for figure in figures::ALL {
                let known = Outcome::load(&field.result_path(figure.number));
                let fresh = known.is_some_and(|o| o.environment.subject == subject);
                if again || !fresh {
                    run(figure, &field, &bulla)?;
                }
            }
            print(figures::ALL.iter(), &field);
        }
        Command::Run { figures } => {
            let mut chosen = Vec::new();
            for number in figures {
                let Some(figure) = figures::ALL.iter().find(|f| f.number == number) else {
                    bail!("there is no figure {number}");
                };
                chosen.push(figure);
            }
            for figure in &chosen {
                run(figure, &field, &bulla)?;
            }
            print(chosen.into_iter(), &field);
        }
        Command::Table => print(figures::ALL.iter(), &field),
        Command::Prepare => dataset::all(&field)?,
    }
    Ok(())
}

fn run(figure: &Figure, field: &Field, bulla: &std::path::Path) -> Result<()> {
    let environment = Environment::of(bulla, field.work())?;
    let outcome = runner::run(figure, field, environment)
        .with_context(|| format!("figure {}", figure.number))?;
    outcome.save(&field.result_path(figure.number))
}

fn print<'a>(chosen: impl Iterator<Item = &'a Figure>, field: &Field) {
    for figure in chosen {
        let outcome = Outcome::load(&field.result_path(figure.number));
        println!("{}", table::figure(figure, outcome.as_ref()));
    }
}
