//! The command line: nouns to manage, verbs for daily use. What stands here is a contract with
//! scripts (docs/cli.md); commands that this version does not have do not appear.

mod places;
mod publishing;
mod reading;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::logging::LogFormat;
use crate::output::Color;

pub use places::*;
pub use publishing::*;
pub use reading::*;

/// File systems on storage that nobody has to trust.
///
/// A publisher signs a tree once; any machine may serve it; readers mount it, and every byte is
/// checked on the way. SOURCE is written VOLUMEID@LOCATION: the volume id is what you trust, the
/// location only a hint (a directory, bulla://host[:port], or http(s)://host[:port]/path).
#[derive(Debug, Parser)]
#[command(name = "bulla", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 10 not found, 11 locked, \
    12 wrong key, 20 integrity, 21 rollback, 22 fork, 24 expired, 30 unavailable, 31 mount, \
    130 interrupted. `bulla man` prints the manual."
)]
pub struct Cli {
    /// What every command understands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub struct Global {
    /// Print JSON records, one a line, the last of type `result`
    #[arg(long, global = true)]
    pub json: bool,
    /// Say only what went wrong
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more; twice for more still
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// When to colour messages [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<Color>,
    /// Read this file instead of ~/.config/bulla/config.toml (variable BULLA_CONFIG)
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How log lines look [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Answer yes to every question
    #[arg(long, global = true)]
    pub yes: bool,
    /// Never ask; fail where a passphrase would be asked for
    #[arg(long, global = true)]
    pub no_input: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make and look at signing keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Sign a directory tree into a repository
    Publish(Publish),
    /// Sign a version for a machine that has the tree but not the key
    Sign(Sign),
    /// Make the newest version valid for longer
    Renew(Renew),
    /// Serve repositories to anyone, trusted by nobody
    Serve(Serve),
    /// Make or update a replica of a volume
    Pull(Pull),
    /// Give back the room of versions that are not kept
    Prune(Prune),
    /// Mount a volume; every byte that is read is checked
    Mount(Mount),
    /// Unmount a volume, also one whose daemon has died
    Umount(Umount),
    /// Tell how the mounts of this user do
    Status(Status),
    /// Look for what is wrong on this machine, and tell what to do
    Doctor(Doctor),
    /// List a directory of a volume
    Ls(Ls),
    /// Write a file of a volume to stdout
    Cat(Cat),
    /// Tell everything about a file of a volume
    Stat(Stat),
    /// Copy a volume into a new directory
    Extract(Extract),
    /// Read and check every block of a volume
    Verify(Verify),
    /// List the versions of a volume
    Log(Log),
    /// Tell how two versions of a volume differ
    Diff(Diff),
    /// Look at the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print completions for a shell
    Completions(Completions),
    /// Print the manual page
    Man(Man),
    /// Tell which bulla this is
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
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `bulla man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write a page for each command into DIR instead
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

impl Command {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Key(KeyCommand::New(_)) => "key new",
            Command::Key(KeyCommand::Show(_)) => "key show",
            Command::Key(KeyCommand::List(_)) => "key list",
            Command::Publish(_) => "publish",
            Command::Sign(_) => "sign",
            Command::Renew(_) => "renew",
            Command::Log(_) => "log",
            Command::Diff(_) => "diff",
            Command::Serve(_) => "serve",
            Command::Pull(_) => "pull",
            Command::Prune(_) => "prune",
            Command::Mount(_) => "mount",
            Command::Umount(_) => "umount",
            Command::Status(_) => "status",
            Command::Doctor(_) => "doctor",
            Command::Ls(_) => "ls",
            Command::Cat(_) => "cat",
            Command::Stat(_) => "stat",
            Command::Extract(_) => "extract",
            Command::Verify(_) => "verify",
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
}
