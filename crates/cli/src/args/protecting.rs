//! Arguments of `protect`: devices that are checked block by block against a log.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::publishing::Passphrase;
use crate::units::{parse_duration, parse_rate, parse_size};

/// `bulla protect`.
#[derive(Debug, Subcommand)]
pub enum ProtectCommand {
    /// Record every block of a device in a new log; the device itself is not changed
    Enrol(ProtectEnrol),
    /// Show an enrolled device, with every block checked; prints what to use instead of it
    Attach(ProtectAttach),
    /// Write everything home and end; the device then is what a raw disk would be
    Detach(ProtectDetach),
    /// Show the attached devices
    Status(ProtectStatus),
    /// Check an attached device and its log, and repair what can be repaired
    Scrub(ProtectScrub),
    /// Add, remove and list the ways to open a log
    #[command(subcommand)]
    Key(ProtectKeyCommand),
    /// Keep the newest state of a log in a file on a disk that you trust
    #[command(subcommand)]
    Anchor(ProtectAnchorCommand),
}

impl ProtectCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            ProtectCommand::Enrol(_) => "protect enrol",
            ProtectCommand::Attach(_) => "protect attach",
            ProtectCommand::Detach(_) => "protect detach",
            ProtectCommand::Status(_) => "protect status",
            ProtectCommand::Scrub(_) => "protect scrub",
            ProtectCommand::Key(ProtectKeyCommand::Add(_)) => "protect key add",
            ProtectCommand::Key(ProtectKeyCommand::Remove(_)) => "protect key remove",
            ProtectCommand::Key(ProtectKeyCommand::List(_)) => "protect key list",
            ProtectCommand::Anchor(ProtectAnchorCommand::Set(_)) => "protect anchor set",
        }
    }
}

/// `bulla protect key`.
#[derive(Debug, Subcommand)]
pub enum ProtectKeyCommand {
    /// Add a way to open the log
    Add(ProtectKeyAdd),
    /// Remove a way to open the log; old copies of the log keep it
    Remove(ProtectKeyRemove),
    /// List the ways to open the log; needs no key
    List(ProtectKeyList),
}

/// `bulla protect anchor`.
#[derive(Debug, Subcommand)]
pub enum ProtectAnchorCommand {
    /// Write the state of a log into an anchor file; an earlier state than the file's needs --yes
    Set(ProtectAnchorSet),
}

/// What opens a log. Without these flags, the command asks for a passphrase.
#[derive(Debug, Args)]
pub struct Unlock {
    /// Open the log with the bytes of this file
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Run CMD and open the log with the bytes of its output
    #[arg(long, value_name = "CMD", conflicts_with = "key_file")]
    pub key_command: Option<String>,
    /// Open the log with the recovery key. It is asked for like a passphrase, and read where the flags
    /// for passphrases say
    #[arg(long, conflicts_with_all = ["key_file", "key_command"])]
    pub recovery: bool,
    /// Try only this slot
    #[arg(long, value_name = "N")]
    pub slot: Option<u8>,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// How far the anchor may be behind.
#[derive(Debug, Args)]
pub struct AnchorFlags {
    /// A file on a disk that you trust, which keeps the newest state of the log. Without it nobody notices
    /// that both devices were put back to an earlier state together
    #[arg(long, value_name = "FILE")]
    pub anchor: Option<PathBuf>,
    /// When the anchor is written: `sync` (before each flush is answered) or `lag=D` (at most D later; so much
    /// can be taken back unnoticed) [default: sync]
    #[arg(long, value_name = "MODE", requires = "anchor", value_parser = parse_anchor_mode)]
    pub anchor_mode: Option<AnchorWhen>,
}

/// When an anchor is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnchorWhen {
    /// Before each flush is answered.
    Sync,
    /// At most so much later.
    Lag(Duration),
}

fn parse_anchor_mode(text: &str) -> Result<AnchorWhen, String> {
    if text == "sync" {
        return Ok(AnchorWhen::Sync);
    }
    let wrong = || format!("`{text}` is not sync or lag=D, for example lag=10s");
    let lag = text.strip_prefix("lag=").ok_or_else(wrong)?;
    parse_duration(lag).map(AnchorWhen::Lag)
}

/// `bulla protect enrol`.
#[derive(Debug, Args)]
pub struct ProtectEnrol {
    /// The device or file to protect. It must not be mounted or written meanwhile
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// The device or file for the log, on another disk if speed matters. A file is created if it does not
    /// exist; everything on it is overwritten
    #[arg(long, value_name = "LOG")]
    pub log: PathBuf,
    /// Space for writes that are not on the device yet [default: 1GiB, less for small devices]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub ring: Option<u64>,
    /// Also create this anchor file: it keeps the newest state of the log, on a disk that you trust
    #[arg(long, value_name = "FILE")]
    pub anchor: Option<PathBuf>,
    /// Use the bytes of this file as the key; it is created with random bytes if it does not exist
    #[arg(long, value_name = "FILE", conflicts_with = "key_command")]
    pub key_file: Option<PathBuf>,
    /// Run CMD and use the bytes of its output as the key
    #[arg(long, value_name = "CMD")]
    pub key_command: Option<String>,
    /// Begin anew, even if an interrupted enrolment of the device could go on
    #[arg(long)]
    pub restart: bool,
    /// Make no recovery key
    #[arg(long)]
    pub no_recovery_key: bool,
    /// Where the passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// Write nothing; show what would be used
    #[arg(long)]
    pub dry_run: bool,
}

/// `bulla protect attach`.
#[derive(Debug, Args)]
pub struct ProtectAttach {
    /// The device or file that was enrolled
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Its log
    #[arg(long, value_name = "LOG")]
    pub log: PathBuf,
    /// Serve it by the NBD protocol on this socket (a path) or address (IP:PORT), instead of a loop device
    #[arg(long, value_name = "SOCKET|ADDR", conflicts_with = "file")]
    pub nbd: Option<String>,
    /// Show it as the file DIR/device by FUSE, without a loop device
    #[arg(long, value_name = "DIR")]
    pub file: Option<PathBuf>,
    /// The anchor.
    #[command(flatten)]
    pub anchor: AnchorFlags,
    /// What opens the log.
    #[command(flatten)]
    pub unlock: Unlock,
    /// If the log cannot be read to its end, give up what lies behind the error. What was written last is lost,
    /// and nothing shows whether the disk or an attacker caused the error
    #[arg(long)]
    pub cut_at_error: bool,
    /// Attach although many blocks of DEVICE are not what the log says. What waits in the log is written to DEVICE,
    /// whatever it holds, and other changed blocks read as errors
    #[arg(long)]
    pub accept_changed_device: bool,
    /// Take the device from another host that has attached it. Programs there get errors, and what they have not
    /// flushed is lost
    #[arg(long)]
    pub force: bool,
    /// Serve Prometheus metrics at http://ADDR/metrics [default: off]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Stay in the foreground, for service managers
    #[arg(long)]
    pub foreground: bool,
    /// Read the volume key from stdin: how `attach` hands it to the process in the background.
    #[arg(long, hide = true, requires = "foreground")]
    pub volume_key_on_stdin: bool,
}

/// `bulla protect detach`.
#[derive(Debug, Args)]
pub struct ProtectDetach {
    /// The device, its log, or what `attach` printed
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Also if programs use the device: they get errors. What cannot be written home stays in the log
    #[arg(long)]
    pub force: bool,
}

/// `bulla protect status`.
#[derive(Debug, Args)]
pub struct ProtectStatus {
    /// Show only this device (the device, its log, or what `attach` printed)
    #[arg(value_name = "DEVICE")]
    pub device: Option<PathBuf>,
}

/// `bulla protect scrub`.
#[derive(Debug, Args)]
pub struct ProtectScrub {
    /// The device, its log, or what `attach` printed
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
    /// Read at most SIZE per second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub bwlimit: Option<u64>,
    /// Start at the first block, even if an earlier scrub was interrupted
    #[arg(long)]
    pub restart: bool,
}

/// `bulla protect key add`.
#[derive(Debug, Args)]
pub struct ProtectKeyAdd {
    /// The log
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// What opens the log now.
    #[command(flatten)]
    pub unlock: Unlock,
    /// Add the bytes of this file; it is created with random bytes if it does not exist
    #[arg(long, value_name = "FILE", group = "new")]
    pub new_key_file: Option<PathBuf>,
    /// Add the output of CMD
    #[arg(long, value_name = "CMD", group = "new")]
    pub new_key_command: Option<String>,
    /// Add a recovery key, and print it
    #[arg(long, group = "new")]
    pub new_recovery: bool,
    /// Add the passphrase in the first line of FILE [default: ask for a passphrase]
    #[arg(long, value_name = "FILE", group = "new")]
    pub new_passphrase_file: Option<PathBuf>,
    /// Add the passphrase in the first line of the open file descriptor N
    #[arg(long, value_name = "N", group = "new")]
    pub new_passphrase_fd: Option<u32>,
    /// Run CMD and add the first line of its output as a passphrase
    #[arg(long, value_name = "CMD", group = "new")]
    pub new_passphrase_command: Option<String>,
}

/// `bulla protect key remove`.
#[derive(Debug, Args)]
pub struct ProtectKeyRemove {
    /// The log
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// The number of the slot to remove
    #[arg(value_name = "N")]
    pub remove: u8,
    /// What opens the log through another slot, to prove that it is not lost.
    #[command(flatten)]
    pub unlock: Unlock,
}

/// `bulla protect key list`.
#[derive(Debug, Args)]
pub struct ProtectKeyList {
    /// The log
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
}

/// `bulla protect anchor set`.
#[derive(Debug, Args)]
pub struct ProtectAnchorSet {
    /// The anchor file; replaced if it exists
    #[arg(value_name = "FILE")]
    pub anchor: PathBuf,
    /// The log
    #[arg(long, value_name = "LOG")]
    pub log: PathBuf,
    /// What opens the log.
    #[command(flatten)]
    pub unlock: Unlock,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchor_mode_is_sync_or_a_lag() {
        assert_eq!(parse_anchor_mode("sync"), Ok(AnchorWhen::Sync));
        let lag = AnchorWhen::Lag(Duration::from_secs(10));
        assert_eq!(parse_anchor_mode("lag=10s"), Ok(lag));
        for bad in ["", "lag", "lag=", "lag=10", "lag=0s", "SYNC", "never"] {
            assert!(parse_anchor_mode(bad).is_err(), "{bad}");
        }
    }
}
