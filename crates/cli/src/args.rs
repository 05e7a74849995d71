//! The command line: nouns to manage, verbs for daily use. What stands here is a contract with
//! scripts (docs/cli.md); commands that this version does not have do not appear.

use std::path::PathBuf;
use std::time::Duration;

use ::mount::Ownership;
use clap::{Args, Parser, Subcommand};

use crate::caching::Caching;
use crate::logging::LogFormat;
use crate::output::Color;
use crate::units::parse_duration;

/// File systems on storage that nobody has to trust.
///
/// A publisher signs a tree once; any machine may serve it; readers mount it, and every byte is
/// checked on the way. SOURCE is written VOLUMEID@LOCATION: the volume id is what you trust, the
/// location only a hint (a directory, or bulla://host[:port]).
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
    /// Read this file instead of ~/.config/bulla/config.toml
    #[arg(long, global = true, value_name = "FILE", env = "BULLA_CONFIG")]
    pub config: Option<PathBuf>,
    /// How log lines look [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Answer yes to every question (this version asks none but passphrases)
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
    /// Serve repositories to anyone, trusted by nobody
    Serve(Serve),
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

/// `bulla key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key and write it into a new file
    New(KeyNew),
    /// Show the public name of a key
    Show(KeyShow),
    /// List keys: their public names and whether they have a passphrase
    List(KeyList),
}

/// `bulla key new`.
#[derive(Debug, Args)]
pub struct KeyNew {
    /// The file to write; it must not exist
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Do not protect the key by a passphrase
    #[arg(long, conflicts_with_all = ["passphrase_file", "passphrase_fd", "passphrase_command"])]
    pub no_passphrase: bool,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// `bulla key show`.
#[derive(Debug, Args)]
pub struct KeyShow {
    /// The key file
    pub file: PathBuf,
}

/// `bulla key list`.
#[derive(Debug, Args)]
pub struct KeyList {
    /// Key files, and directories with key files; without any, the setting `key-dir` and the key that
    /// the setting `key` names
    #[arg(value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,
}

/// Where a passphrase comes from, if it is not asked for.
#[derive(Debug, Args)]
pub struct Passphrase {
    /// Take the passphrase from the first line of FILE
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Take the passphrase from the first line of the open file descriptor N
    #[arg(long, value_name = "N", conflicts_with = "passphrase_file")]
    pub passphrase_fd: Option<u32>,
    /// Take the passphrase from the first line that CMD prints
    #[arg(long, value_name = "CMD", conflicts_with_all = ["passphrase_file", "passphrase_fd"])]
    pub passphrase_command: Option<String>,
}

/// `bulla publish`.
#[derive(Debug, Args)]
pub struct Publish {
    /// The tree
    pub dir: PathBuf,
    /// The repository; made when it is missing
    pub repo: PathBuf,
    /// The publisher's key file (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub valid: Option<Duration>,
    /// The volume's name, for people; only for the first version [default: the directory's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Leave out what matches, as in .gitignore (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Do not descend into other file systems
    #[arg(long)]
    pub one_file_system: bool,
    /// Publish what can be read, report the rest, end with exit code 3
    #[arg(long)]
    pub skip_unreadable: bool,
    /// Publish owner and group, access lists and capabilities
    #[arg(long)]
    pub owner: bool,
    /// Read every file, also those that look unchanged
    #[arg(long)]
    pub paranoid: bool,
    /// Write nothing; show what would change
    #[arg(long)]
    pub dry_run: bool,
}

/// `bulla serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The repositories
    #[arg(required = true)]
    pub repo: Vec<PathBuf>,
    /// The address to listen on [default: 127.0.0.1:28552, setting `listen`]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Connections at a time; further ones are told to come back later [default: 16384]
    #[arg(long, value_name = "N")]
    pub max_connections: Option<usize>,
    /// Connections at a time of one client: an IPv4 address, an IPv6 /64 [default: 4096]
    #[arg(long, value_name = "N")]
    pub max_per_client: Option<usize>,
    /// Memory for answers that are asked for often, 0B for none [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    pub memory: Option<u64>,
    /// Hand out metrics at http://ADDR/metrics, for Prometheus [default: none]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
}

/// Where a volume is read from.
#[derive(Debug, Args)]
pub struct Reading {
    /// VOLUMEID@LOCATION, or a name from the configuration
    pub source: String,
    /// Another place that has the volume (repeatable)
    #[arg(long, value_name = "LOCATION")]
    pub mirror: Vec<String>,
    /// How long an answer may take, all places tried [default: 30s, setting `deadline`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// What is kept of what was read.
    #[command(flatten)]
    pub caching: Caching,
}

/// `bulla mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// What to mount.
    #[command(flatten)]
    pub reading: Reading,
    /// Where; what the directory holds is hidden meanwhile
    pub dir: PathBuf,
    /// How often to look for a new version [default: 30s, setting `refresh`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub refresh: Option<Duration>,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    pub foreground: bool,
    /// Hand out metrics at http://ADDR/metrics, for Prometheus [default: none]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Let other users read the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Who files belong to: `mounter`, `published`, or numbers `UID:GID`
    #[arg(long, value_name = "WHO", default_value = "mounter", value_parser = parse_owner)]
    pub owner: Ownership,
}

fn parse_owner(text: &str) -> Result<Ownership, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    match text {
        "mounter" => Ok(Ownership::Mounter),
        "published" => Ok(Ownership::Published),
        _ => text
            .split_once(':')
            .and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)))
            .map(|(uid, gid)| Ownership::Fixed { uid, gid })
            .ok_or_else(|| "expected mounter, published or UID:GID in numbers".to_owned()),
    }
}

/// `bulla umount`.
#[derive(Debug, Args)]
pub struct Umount {
    /// The mounted directory
    pub dir: PathBuf,
}

/// `bulla status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Only the mount on this directory
    pub dir: Option<PathBuf>,
}

/// `bulla doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Unmount what is dead, and remove what dead daemons left
    #[arg(long)]
    pub fix: bool,
}

/// `bulla ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
    /// One line with mode, size and time for each entry
    #[arg(short, long)]
    pub long: bool,
    /// Everything below, too
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// `bulla cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume
    pub path: std::ffi::OsString,
}

/// `bulla stat`.
#[derive(Debug, Args)]
pub struct Stat {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The path inside the volume; the volume itself without one
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
}

/// `bulla extract`.
#[derive(Debug, Args)]
pub struct Extract {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// The directory to fill; it is made when missing and must be empty
    pub dir: PathBuf,
    /// Set owner and group where the volume tells them (root only)
    #[arg(long)]
    pub owner: bool,
    /// Leave out device files and others that cannot be made, end with exit code 3
    #[arg(long)]
    pub skip_special: bool,
}

/// `bulla verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// What to read.
    #[command(flatten)]
    pub reading: Reading,
    /// Only this path and what lies below
    #[arg(default_value = "")]
    pub path: std::ffi::OsString,
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
            Command::Serve(_) => "serve",
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

    #[test]
    fn owners_are_words_or_two_numbers() {
        assert_eq!(parse_owner("published"), Ok(Ownership::Published));
        let fixed = Ownership::Fixed { uid: 7, gid: 8 };
        assert_eq!(parse_owner("7:8"), Ok(fixed));
        for wrong in [
            "",
            "7",
            "7:",
            ":8",
            "7:8:9",
            "-1:0",
            "root:root",
            "4294967296:0",
        ] {
            assert!(parse_owner(wrong).is_err(), "{wrong}");
        }
    }
}
