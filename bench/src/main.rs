//! `bulla-bench`: compares bulla with its peers and with an older build, in the same run on the same
//! machine.
//!
//! `all` runs the figures that have no result for this build yet, `run 1 2` runs these again, `table`
//! prints the results, `gate` fails if this build is slower than an older one. Method:
//! `docs/benchmarks.md`.

mod compile;
mod cpu;
mod dataset;
mod disks;
mod environment;
mod field;
mod figure;
mod figures;
mod gate;
mod hostile;
mod load;
mod loops;
mod memory;
mod metric;
mod mounts;
mod network;
mod ordering;
mod outcome;
mod peers;
mod process;
mod protocol;
mod runner;
mod shared;
mod stats;
mod subject;
mod table;
mod unverified;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::environment::Environment;
use crate::field::{Field, Scale};
use crate::figure::Figure;
use crate::outcome::Outcome;

#[derive(Parser)]
#[command(name = "bulla-bench", about = "Compares bulla with its peers", version)]
struct Arguments {
    /// Directory of data, repositories, mounts and results; some 30 GB at full scale.
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/work"))]
    work: PathBuf,
    /// The binary under test [default: `bulla` beside this program].
    #[arg(long, global = true)]
    bulla: Option<PathBuf>,
    /// An older build of bulla that takes part in figures 1 to 12, 15, 16 and 40 to 47.
    #[arg(long, global = true, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Sizes and rounds; quick ones show that every part works, but measure nothing.
    #[arg(long, global = true, value_enum, default_value = "full")]
    scale: Scale,
    /// How often each contestant runs [default: what suits the figure; at most 20 for figure 6].
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// A directory on another disk than the work directory's, for a log in figure 43.
    #[arg(long, global = true, value_name = "DIR")]
    other_disk: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs every figure that has no result for this build of bulla yet, then prints all.
    All {
        /// Runs also figures that have a result.
        #[arg(long)]
        again: bool,
    },
    /// Runs these figures and prints them.
    Run {
        /// Numbers of the figures.
        #[arg(required = true)]
        figures: Vec<u8>,
    },
    /// Runs only this build and the older one (`--before`), and fails if this one is slower.
    Gate {
        /// Numbers of the figures.
        #[arg(default_values_t = figures::GATE)]
        figures: Vec<u8>,
    },
    /// Prints the results.
    Table,
    /// The process that figure 25 kills.
    #[command(hide = true)]
    LoadServer {
        /// The server's directory.
        dir: PathBuf,
        /// The log that is known, in hexadecimal.
        log: String,
        /// The note that names it.
        note: String,
        /// Which run of the devices this is.
        run: u64,
    },
    /// Runs one row of figure 22 once, the one file only, and prints what its calls took: for a profile, or to compare two
    /// builds.
    OneFile {
        /// Number of devices.
        #[arg(long, default_value_t = 8)]
        writers: usize,
        /// One way between each device and the server, milliseconds.
        #[arg(long, default_value_t = 10)]
        one_way_ms: u64,
        /// How long they write, seconds.
        #[arg(long, default_value_t = 6)]
        seconds: u64,
        /// Prints each call.
        #[arg(long)]
        trace: bool,
    },
    /// Makes the data sets, which figures otherwise make when they first need them.
    Prepare,
    /// Serves the shared volume of a figure. Figures call it.
    #[command(hide = true)]
    ServeShared {
        /// The server's directory.
        dir: PathBuf,
        /// A port of 127.0.0.1.
        port: u16,
    },
    /// Starts the client of a machine of a shared volume, and says how long that takes. Figures call it.
    #[command(hide = true)]
    CatchUp {
        /// The machine's state directory.
        state: PathBuf,
        /// `from-checkpoint`: it begins with one.
        how: Option<String>,
    },
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
    match &arguments.command {
        Command::LoadServer {
            dir,
            log,
            note,
            run,
        } => return figures::restarted::load_server(dir, log, note, *run),
        Command::ServeShared { dir, port } => return shared::server::run(dir, *port),
        Command::CatchUp { state, how } => {
            return shared::catch_up::run(state, how.as_deref());
        }
        _ => {}
    }
    let beside = std::env::current_exe()?.with_file_name("bulla");
    let bulla = arguments.bulla.unwrap_or(beside);
    let mut field = Field::new(&arguments.work, arguments.scale, &bulla)?
        .with_rounds(arguments.rounds)
        .with_other_disk(arguments.other_disk)
        .with_before(arguments.before)?;
    if let Command::Gate { .. } = arguments.command {
        field = field.for_gate()?;
    }
    let _claim = match arguments.command {
        Command::Table => None,
        _ => Some(field.claim()?),
    };
    process::stop_on_signals()?;
    match arguments.command {
        Command::All { again } => {
            for figure in figures::ALL {
                if again || !fresh(figure, &field, &bulla) {
                    run(figure, &field, &bulla)?;
                }
            }
            print(figures::ALL.iter(), &field);
        }
        Command::Run { figures } => {
            let chosen = chosen(&figures)?;
            for figure in &chosen {
                run(figure, &field, &bulla)?;
            }
            print(chosen.into_iter(), &field);
        }
        Command::Gate { figures } => {
            let mut outcomes = Vec::new();
            for figure in chosen(&figures)? {
                let outcome = gate::measure(figure, || measure(figure, &field, &bulla))?;
                outcome.save(&field.result_path(figure.number))?;
                println!("{}", table::figure(figure, Some(&outcome)));
                outcomes.push(outcome);
            }
            println!("{}", table::comparisons(&outcomes));
            gate::pass(&outcomes)?;
        }
        Command::Table => print(figures::ALL.iter(), &field),
        Command::OneFile {
            writers,
            one_way_ms,
            seconds,
            trace,
        } => {
            let span = Duration::from_secs(seconds);
            figures::writers::one_row(&field, writers, one_way_ms, span, trace)?;
        }
        Command::Prepare => dataset::all(&field)?,
        // Above: they work in the directory of the run that started them.
        Command::LoadServer { .. } | Command::ServeShared { .. } | Command::CatchUp { .. } => {}
    }
    Ok(())
}

fn chosen(numbers: &[u8]) -> Result<Vec<&'static Figure>> {
    let figure = |number: &u8| {
        let found = figures::ALL.iter().find(|f| f.number == *number);
        found.with_context(|| format!("there is no figure {number}"))
    };
    numbers.iter().map(figure).collect()
}

/// Whether a figure has a result for these builds.
fn fresh(figure: &Figure, field: &Field, bulla: &Path) -> bool {
    let Some(known) = Outcome::load(&field.result_path(figure.number)) else {
        return false;
    };
    let before = field.before().map(environment::subject);
    known.environment.subject == environment::subject(bulla)
        && (before.is_none() || known.environment.before == before)
}

fn run(figure: &Figure, field: &Field, bulla: &Path) -> Result<()> {
    measure(figure, field, bulla)?.save(&field.result_path(figure.number))
}

fn measure(figure: &Figure, field: &Field, bulla: &Path) -> Result<Outcome> {
    let environment = Environment::of(bulla, field.before(), field.work())?;
    runner::run(figure, field, environment).with_context(|| format!("figure {}", figure.number))
}

fn print<'a>(chosen: impl Iterator<Item = &'a Figure>, field: &Field) {
    for figure in chosen {
        let outcome = Outcome::load(&field.result_path(figure.number));
        println!("{}", table::figure(figure, outcome.as_ref()));
    }
}
