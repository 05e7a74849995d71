//! Arguments of the commands that need a key, or know of one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use trust::key::PublicKey;

use crate::failure::{Failure, Kind, Outcome};
use crate::units::parse_duration;

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
    /// The tree, or `-` for a tar archive on stdin; left out with --install
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The repository; made when it is missing
    #[arg(value_name = "REPO", required_unless_present = "install")]
    pub repo: Option<PathBuf>,
    /// The publisher's key file (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Store the tree and sign nothing: what `bulla sign` needs goes into the file --out
    #[arg(long, requires = "out", conflicts_with_all = ["key", "dry_run", "install"])]
    pub unsigned: bool,
    /// The file for `bulla sign`
    #[arg(long, value_name = "RECORD", requires = "unsigned")]
    pub out: Option<PathBuf>,
    /// Whose a new volume will be: the public name of the key that will sign it
    #[arg(long, value_name = "KEY", requires = "unsigned", value_parser = parse_key)]
    pub publisher: Option<PublicKey>,
    /// Make the version that `bulla sign` signed the newest of REPO
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "dry_run", "valid", "name"])]
    pub install: Option<PathBuf>,
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

impl Publish {
    /// The tree.
    pub fn tree(&self) -> Outcome<&Path> {
        match &self.repo {
            Some(_) => Ok(&self.dir),
            None => Err(Failure::new(Kind::Usage, "DIR or REPO is missing")),
        }
    }

    /// The repository; with --install, the only path.
    pub fn repository(&self) -> Outcome<&Path> {
        match (&self.repo, &self.install) {
            (Some(repo), None) => Ok(repo),
            (None, Some(_)) => Ok(&self.dir),
            (Some(_), Some(_)) => Err(Failure::new(
                Kind::Usage,
                "with --install the tree is not named: it is in the repository already",
            )),
            (None, None) => Err(Failure::new(Kind::Usage, "DIR or REPO is missing")),
        }
    }
}

fn parse_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

/// `bulla sign`.
#[derive(Debug, Args)]
pub struct Sign {
    /// The file that `bulla publish --unsigned` left
    pub record: PathBuf,
    /// Where to write it, signed
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The publisher's key file (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid, from now on [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub valid: Option<Duration>,
}

/// `bulla renew`.
#[derive(Debug, Args)]
pub struct Renew {
    /// The repository
    pub repo: PathBuf,
    /// The key file of the publisher, or of one who signs timestamps (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long it is valid, from now on [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub valid: Option<Duration>,
}
