//! Arguments of the commands that create, show or use a signing key: `key`, `publish`, `sign`, `renew`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use trust::key::PublicKey;
use trust::version_name::VersionName;

use super::asking::{Asking, ByFile};
use super::examples;
use super::lock_wait::LockWait;
use crate::failure::{Failure, Kind, Outcome};
use crate::roles::{Expected, PolicyEnd};
use crate::units::{parse_duration, parse_validity};

/// `bulla key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and write it into a new file
    #[command(after_help = examples::of("key new"))]
    New(KeyNew),
    /// Write a file that refers to a key in a token, or with the ssh-agent
    Refer(KeyRefer),
    /// Show the public key of a key file
    Show(KeyShow),
    /// List key files: their public keys, and whether they have a passphrase or are references
    List(KeyList),
}

/// `bulla key new`.
#[derive(Debug, Args)]
pub struct KeyNew {
    /// The file to create; it must not exist
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Do not protect the key with a passphrase
    #[arg(long, conflicts_with_all = ["passphrase_file", "passphrase_fd", "passphrase_command"])]
    pub no_passphrase: bool,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// `bulla key refer`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("by").required(true).args(["ssh_agent", "command"])))]
pub struct KeyRefer {
    /// The public key, or its file: PEM, or a line of OpenSSH (id_ed25519.pub) [default: the only key of the ssh-agent]
    #[arg(value_name = "KEY|FILE")]
    pub key: Option<String>,
    /// The file to create; it must not exist
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The ssh-agent at SSH_AUTH_SOCK signs
    #[arg(long)]
    pub ssh_agent: bool,
    /// How long to wait for a signature [default: 5min]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub within: Option<Duration>,
    /// Do not ask for a signature now, to see that it works
    #[arg(long)]
    pub untried: bool,
    /// After `--`, the program that signs and its arguments: it gets the message as its stdin, and prints the signature
    #[arg(last = true, value_name = "PROGRAM")]
    pub command: Vec<String>,
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
    /// Key files and directories with key files [default: the settings `key-dir` and `key`]
    #[arg(value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,
}

/// Where a passphrase comes from. Without these flags, the command asks for it on the terminal.
#[derive(Debug, Clone, Args)]
pub struct Passphrase {
    /// Read the passphrase from the first line of FILE; of several keys, each from a line of its own, the last line for the
    /// rest
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// The same from the open file descriptor N
    #[arg(long, value_name = "N", conflicts_with = "passphrase_file")]
    pub passphrase_fd: Option<u32>,
    /// Run CMD and use the first line of its output as the passphrase
    #[arg(long, value_name = "CMD", conflicts_with_all = ["passphrase_file", "passphrase_fd"])]
    pub passphrase_command: Option<String>,
}

/// `bulla publish`.
#[derive(Debug, Args)]
pub struct Publish {
    /// The directory tree, or `-` for a tar archive on stdin; left out with --install
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The repository; created if it does not exist
    #[arg(value_name = "REPO", required_unless_present = "install")]
    pub repo: Option<PathBuf>,
    /// The publisher's key file (setting `key`); repeat it where several keys must sign, or for a timestamp key
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Store the tree without signing it, and write the file for `bulla sign` to --out
    #[arg(long, requires = "out", conflicts_with_all = ["key", "dry_run", "install"])]
    pub unsigned: bool,
    /// The file to write for `bulla sign`
    #[arg(long, value_name = "RECORD", requires = "unsigned")]
    pub out: Option<PathBuf>,
    /// The public key that will sign a new volume: its owner and publisher
    #[arg(long, value_name = "KEY", requires = "unsigned", value_parser = parse_key)]
    pub publisher: Option<PublicKey>,
    /// Publish the version that `bulla sign` signed into FILE; repeat it for copies that different keys have signed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "valid", "name", "tag"])]
    pub install: Vec<PathBuf>,
    /// With --install: use the timestamp that `bulla sign` signed into FILE on another machine (repeatable)
    #[arg(long, value_name = "FILE", requires = "install")]
    pub timestamp: Vec<PathBuf>,
    /// With --install: show nothing; write a request for that timestamp to FILE, for `bulla sign` on other machines. Where the
    /// policy demands witnesses, they cosign first
    #[arg(long, value_name = "FILE", requires = "install", conflicts_with_all = ["timestamp", "checkpoint_out"])]
    pub timestamp_out: Option<PathBuf>,
    /// Who may sign what in a new volume.
    #[command(flatten)]
    pub roles: NewRoles,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub valid: Option<Duration>,
    /// Give this version a name, by which readers find it: `bulla ls SOURCE --at NAME`
    #[arg(long, value_name = "NAME", value_parser = parse_tag)]
    pub tag: Option<VersionName>,
    /// The display name of a new volume [default: the directory's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Leave out paths that match PATTERN, written as in .gitignore (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Leave out paths that match a line of FILE, each a PATTERN; empty lines and lines that begin with # are
    /// skipped (repeatable)
    #[arg(long, value_name = "FILE")]
    pub exclude_file: Vec<PathBuf>,
    /// Do not descend into other file systems
    #[arg(long)]
    pub one_file_system: bool,
    /// Leave out what cannot be read, report it, and end with exit code 3
    #[arg(long)]
    pub skip_unreadable: bool,
    /// Include owner, group, access control lists and capabilities
    #[arg(long)]
    pub owner: bool,
    /// Read every file, even if its size and times are unchanged
    #[arg(long)]
    pub paranoid: bool,
    /// Write nothing; show the changes
    #[arg(long)]
    pub dry_run: bool,
    /// Go on although this machine's clock is behind the last version, which was signed with a clock that was ahead
    #[arg(long)]
    pub accept_clock: bool,
    /// Witnesses to ask.
    #[command(flatten)]
    pub asking: Asking,
    /// The same by files, with --install.
    #[command(flatten)]
    pub by_file: ByFile,
    /// Waiting for the lock.
    #[command(flatten)]
    pub lock_wait: LockWait,
}

impl Publish {
    /// The tree, or `-`.
    pub fn tree(&self) -> Outcome<&Path> {
        match &self.repo {
            Some(_) => Ok(&self.dir),
            None => Err(Failure::new(Kind::Usage, "DIR or REPO is missing")),
        }
    }

    /// The repository; with --install, the only path.
    pub fn repository(&self) -> Outcome<&Path> {
        match (&self.repo, self.install.is_empty()) {
            (Some(repo), true) => Ok(repo),
            (None, false) => Ok(&self.dir),
            (Some(_), false) => Err(Failure::new(
                Kind::Usage,
                "--install takes REPO only: the tree is in the repository already",
            )),
            (None, true) => Err(Failure::new(Kind::Usage, "DIR or REPO is missing")),
        }
    }
}

fn parse_tag(text: &str) -> Result<VersionName, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

/// Parses a public key.
pub fn parse_key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

/// Who may sign what in a new volume. Keys are named by public key, so that they can stay offline.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Roles of a new volume")]
pub struct NewRoles {
    /// The public key of an owner, who signs changes of the keys (repeatable) [default: the publisher's]
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub owner_key: Vec<PublicKey>,
    /// How many owners must sign [default: more than half of them]
    #[arg(long, value_name = "K", requires = "owner_key")]
    pub owners_needed: Option<u8>,
    /// The public key of a publisher, who signs versions (repeatable) [default: that of --key or --publisher]
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub publisher_key: Vec<PublicKey>,
    /// How many publishers must sign [default: 1]
    #[arg(long, value_name = "K", requires = "publisher_key")]
    pub publishers_needed: Option<u8>,
    /// The public key of a machine that confirms hourly that a version is the newest (repeatable) [default: none]
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub timestamp_key: Vec<PublicKey>,
    /// How many timestamp keys must sign [default: 1]
    #[arg(long, value_name = "K", requires = "timestamp_key")]
    pub timestamps_needed: Option<u8>,
    /// The longest validity of a timestamp [default: 1day]
    #[arg(long, value_name = "D", requires = "timestamp_key", value_parser = parse_validity)]
    pub timestamp_max: Option<Duration>,
    /// The longest validity of a version [default: 1y; with separate roles 3months]
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub record_max: Option<Duration>,
    /// How long the policy is valid before owners must renew it: a duration or `none` [default: none; with separate
    /// roles 2y]
    #[arg(long, value_name = "D", value_parser = parse_end)]
    pub policy_valid: Option<PolicyEnd>,
}

pub(super) fn parse_end(text: &str) -> Result<PolicyEnd, String> {
    match text {
        "none" => Ok(PolicyEnd::Never),
        _ => parse_validity(text).map(PolicyEnd::After),
    }
}

/// `bulla sign`.
#[derive(Debug, Args)]
pub struct Sign {
    /// The file that `bulla publish --unsigned`, a command with --timestamp-out, or another `bulla sign` wrote
    pub record: PathBuf,
    /// The file to write the signed version to
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The key file of a publisher, of an owner of a new volume, or of a timestamp key (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid from now on [default: 7d, setting `valid`]. Where several publishers must sign, the
    /// request says it
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub valid: Option<Duration>,
    /// Refuse a policy that gives ROLE (owners, publishers, timestamps, log, witnesses) to other keys, or lets
    /// fewer of them sign: ROLE=KEY, ROLE=K/KEY,KEY,... or ROLE=none (repeatable)
    #[arg(long, value_name = "ROLE=KEYS", value_parser = parse_expected)]
    pub expect: Vec<Expected>,
    /// Sign although other versions follow the last one that this machine signed, and nothing here proves
    /// that they continue it
    #[arg(long)]
    pub accept_skipped_versions: bool,
    /// Go on although this machine's clock is behind the last version, which was signed with a clock that was ahead
    #[arg(long)]
    pub accept_clock: bool,
}

pub(super) fn parse_expected(text: &str) -> Result<Expected, String> {
    text.parse()
}

/// `bulla renew`.
#[derive(Debug, Args)]
pub struct Renew {
    /// The repository to renew
    pub repo: PathBuf,
    /// The publisher's key file, or one of a timestamp signer (setting `key`); repeat it where several keys must sign
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Sign nothing; write a request to renew the newest version, for `bulla sign` on other machines, to --out
    #[arg(long, requires = "out", conflicts_with = "key")]
    pub unsigned: bool,
    /// The file to write for `bulla sign`
    #[arg(long, value_name = "RECORD", requires = "unsigned")]
    pub out: Option<PathBuf>,
    /// Use the timestamp that `bulla sign` signed into FILE on another machine (repeatable)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unsigned", "valid"])]
    pub timestamp: Vec<PathBuf>,
    /// Sign nothing; write a request for a timestamp of the newest version to FILE, for `bulla sign` on other machines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["key", "unsigned", "timestamp", "witness", "accept_clock"])]
    pub timestamp_out: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid from now on [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub valid: Option<Duration>,
    /// Go on although this machine's clock is behind the last version, which was signed with a clock that was ahead
    #[arg(long)]
    pub accept_clock: bool,
    /// Witnesses to ask.
    #[command(flatten)]
    pub asking: Asking,
    /// Waiting for the lock.
    #[command(flatten)]
    pub lock_wait: LockWait,
}
