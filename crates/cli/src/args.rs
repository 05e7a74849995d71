//! The command line, as clap derives it. Names of commands and flags are a contract with scripts
//! (docs/cli.md). The doc comments are the help texts and the manual.

mod asking;
mod conflicts;
mod devices;
mod examples;
mod forks;
mod labels;
pub mod local;
mod lock_wait;
mod naming;
mod places;
mod policy;
mod protecting;
mod proving;
mod publishing;
mod reading;
mod shared_files;
mod sharing;
mod snapshots;
mod waiting;
mod witnessing;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::logging::LogFormat;
use crate::output::Color;

pub use asking::*;
pub use conflicts::*;
pub use devices::*;
pub use forks::*;
pub use labels::parse_new_label;
pub use lock_wait::*;
pub use naming::*;
pub use places::*;
pub use policy::*;
pub use protecting::*;
pub use proving::*;
pub use publishing::*;
pub use reading::*;
pub use shared_files::*;
pub use sharing::*;
pub use snapshots::*;
pub use waiting::*;
pub use witnessing::*;

/// File systems on storage that nobody has to trust.
///
/// A publisher signs a directory tree. Any machine can serve it. Readers mount it, and verify each byte
/// before they use it. A SOURCE is written VOLUMEID@LOCATION. You trust the volume id only; the location
/// says where to look (a directory, `bulla://host[:port]`, or `http(s)://host[:port]/path`).
#[derive(Debug, Parser)]
#[command(name = "bulla", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 10 not found, 11 locked, \
    12 wrong key, 13 unsupported, 14 conflict, 20 integrity, 21 rollback, 22 fork, 23 refused, 24 expired, 30 unavailable, \
    31 mount, 130 interrupted. `bulla man` prints the manual."
)]
pub struct Cli {
    /// The flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print JSON records, one per line; the last has the type `result`
    #[arg(long, global = true)]
    pub json: bool,
    /// Print errors and warnings only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print log lines; repeat for more. Without it only daemons write them
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to color messages [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<Color>,
    /// Read this file instead of ~/.config/bulla/config.toml (variable BULLA_CONFIG)
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Format of log lines [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Answer yes to every question, except that of `sign` about the keys of others
    #[arg(long, global = true)]
    pub yes: bool,
    /// Never ask a question; fail if a passphrase is needed
    #[arg(long, global = true)]
    pub no_input: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create and show signing keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Publish a directory tree as a new signed version
    #[command(after_help = examples::of("publish"))]
    Publish(Box<Publish>),
    /// Sign a version for a machine that has the tree but not the key
    Sign(Sign),
    /// Extend the validity of the newest version
    #[command(after_help = examples::of("renew"))]
    Renew(Renew),
    /// Change who may sign for a volume: other keys, a later end, or the end of the volume
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show and settle forks: signed statements that contradict each other
    #[command(subcommand)]
    Fork(ForkCommand),
    /// Cosign the logs of volumes, so that nobody can show two histories
    #[command(subcommand)]
    Witness(WitnessCommand),
    /// Serve repositories over the network
    #[command(after_help = examples::of("serve"))]
    Serve(Serve),
    /// Create or update a replica of a volume
    #[command(after_help = examples::of("pull"))]
    Pull(Pull),
    /// Free the disk space of old versions
    Prune(Prune),
    /// Mount a volume; each byte is verified when it is read
    #[command(after_help = examples::of("mount"))]
    Mount(Mount),
    /// Unmount a volume, even if its daemon has died
    Umount(Umount),
    /// Protect an existing file system on a disk that may lie: every block is checked
    #[command(
        subcommand,
        after_help = "In this order: `enrol DEVICE --log LOG` once, while DEVICE is not in use. `attach DEVICE --log \
            LOG` prints a loop device; mount that, and never DEVICE itself. After `umount` and `detach DEVICE`, DEVICE \
            is a plain disk again."
    )]
    Protect(ProtectCommand),
    /// Create the key of a server of shared volumes
    #[command(subcommand)]
    Orderer(OrdererCommand),
    /// Work with shared volumes, which several devices write
    #[command(subcommand)]
    Share(ShareCommand),
    /// Put files of this machine into a shared volume
    #[command(after_help = examples::of("put"))]
    Put(Put),
    /// Make directories in a shared volume
    Mkdir(Mkdir),
    /// Move or rename files and directories of a shared volume
    Mv(Mv),
    /// Remove files of a shared volume
    Rm(Rm),
    /// Bring back what a shared volume had, as new versions of its files
    Restore(Restore),
    /// Name sources, so that nobody has to type a volume id
    #[command(subcommand)]
    Source(SourceCommand),
    /// Show the state of this user's mounts
    #[command(after_help = examples::of("status"))]
    Status(Status),
    /// Look for problems on this machine and say how to fix them
    Doctor(Doctor),
    /// List a directory of a volume
    #[command(after_help = examples::of("ls"))]
    Ls(Ls),
    /// Print a file of a volume
    #[command(after_help = examples::of("cat"))]
    Cat(Cat),
    /// Show the metadata of a file of a volume
    Stat(Stat),
    /// Copy a volume into a directory
    #[command(after_help = examples::of("extract"))]
    Extract(Extract),
    /// Read and verify every block of a volume, or the directory of a server
    #[command(after_help = examples::of("verify"))]
    Verify(Verify),
    /// Fetch a volume into the disk cache, to read it later without a network
    Prefetch(Prefetch),
    /// List the versions of a volume, or what was done in a shared volume
    Log(Log),
    /// Show the differences between two versions of a published or shared volume
    Diff(Diff),
    /// Prove in one file that a path is in a volume, or that it is not
    Prove(Prove),
    /// Check a proof or a file of evidence; needs no network
    Check(Check),
    /// Show the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page
    Man(Man),
    /// Print the version of this program
    Version,
}

/// `bulla config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every setting and where it comes from
    Show,
}

/// `bulla completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell to print the script for
    pub shell: clap_complete::Shell,
}

/// `bulla man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write one page for each command into DIR
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl Command {
    /// Whether it goes on until somebody ends it. Then it writes a log.
    pub fn is_daemon(&self) -> bool {
        match self {
            Command::Serve(_)
            | Command::Share(ShareCommand::Run(_))
            | Command::Witness(WitnessCommand::Run(_)) => true,
            Command::Mount(args) => args.foreground,
            Command::Protect(ProtectCommand::Attach(args)) => args.foreground,
            _ => false,
        }
    }

    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Key(KeyCommand::New(_)) => "key new",
            Command::Key(KeyCommand::Refer(_)) => "key refer",
            Command::Key(KeyCommand::Show(_)) => "key show",
            Command::Key(KeyCommand::List(_)) => "key list",
            Command::Publish(_) => "publish",
            Command::Sign(_) => "sign",
            Command::Renew(_) => "renew",
            Command::Policy(command) => command.name(),
            Command::Fork(ForkCommand::Show(_)) => "fork show",
            Command::Fork(ForkCommand::Settle(_)) => "fork settle",
            Command::Log(_) => "log",
            Command::Diff(_) => "diff",
            Command::Prove(_) => "prove",
            Command::Check(_) => "check",
            Command::Witness(command) => command.name(),
            Command::Serve(_) => "serve",
            Command::Pull(_) => "pull",
            Command::Prune(_) => "prune",
            Command::Mount(_) => "mount",
            Command::Umount(_) => "umount",
            Command::Protect(command) => command.name(),
            Command::Orderer(OrdererCommand::New(_)) => "orderer new",
            Command::Share(command) => command.name(),
            Command::Put(_) => "put",
            Command::Mkdir(_) => "mkdir",
            Command::Mv(_) => "mv",
            Command::Rm(_) => "rm",
            Command::Restore(_) => "restore",
            Command::Source(command) => command.name(),
            Command::Status(_) => "status",
            Command::Doctor(_) => "doctor",
            Command::Ls(_) => "ls",
            Command::Cat(_) => "cat",
            Command::Stat(_) => "stat",
            Command::Extract(_) => "extract",
            Command::Verify(_) => "verify",
            Command::Prefetch(_) => "prefetch",
            Command::Config(ConfigCommand::Show) => "config show",
            Command::Completions(_) => "completions",
            Command::Man(_) => "man",
            Command::Version => "version",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_of_every_command_has_at_most_100_columns() {
        let mut waiting = vec![Cli::command()];
        let mut seen = 0;
        while let Some(mut command) = waiting.pop() {
            command.build();
            let name = command.get_name().to_owned();
            for line in command.render_long_help().to_string().lines() {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
            seen += 1;
            waiting.extend(command.get_subcommands().cloned());
        }
        assert!(seen > 50, "{seen}");
    }
}
