//! Arguments of `orderer` and `share`: volumes that several devices write.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use share::client::Location;
use trust::key::PublicKey;
use trust::statement::VolumeId;
use trust_shared::decision::{Label, Role};
use wire::shared::ServerAddress;

use super::conflicts::ShareConflicts;
use super::devices::{DeviceName, parse_device};
use super::labels::{parse_label, parse_new_label};
use super::local::parse_place;
use super::publishing::{KeyNew, Passphrase, parse_key};
use super::reading::Past;
use super::snapshots::{ShareRetain, ShareSnapshot};
use super::waiting::Waiting;
use crate::units::parse_duration;

/// `bulla orderer`.
#[derive(Debug, Subcommand)]
pub enum OrdererCommand {
    /// Create the key with which a server signs the order of writes; prints its public key
    New(KeyNew),
}

/// `bulla share`.
#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// Begin a shared volume; this machine becomes its first device
    Init(ShareInit),
    /// Invite a device: prints one line for it, and answers its request
    Invite(ShareInvite),
    /// Join a shared volume with the line of an invitation; prints six words
    Join(ShareJoin),
    /// Admit, remove and list devices
    #[command(subcommand)]
    Device(ShareDeviceCommand),
    /// Add and list users
    #[command(subcommand)]
    User(ShareUserCommand),
    /// Add, remove and list groups
    #[command(subcommand)]
    Group(ShareGroupCommand),
    /// Give a user a role in a group
    Grant(ShareGrant),
    /// Take a user's role in a group away
    Revoke(ShareRole),
    /// Show how far all devices agree, who is silent, and what nobody has confirmed
    Status(ShareVolume),
    /// Run the engine of this device for all programs of this user, until SIGTERM or Ctrl-C
    Run(ShareRun),
    /// Require that a device writes again and again, and use nothing while it is silent
    Beacon(ShareBeacon),
    /// Compare what two devices have seen, by a short text over any channel
    Compare(ShareCompare),
    /// Check a file of evidence: whether it convicts a server or a device, and of what
    Check(ShareCheck),
    /// Go on after a fork: an owner signs which log stands
    Recover(ShareRecover),
    /// Go over to the log that the owners let stand after a fork
    Follow(ShareFollow),
    /// Accept what a silent device wrote, as far as this device has seen it
    Accept(ShareDevice),
    /// Sign what the log comes to, so that new devices begin there
    Checkpoint(ShareCheckpoint),
    /// Give the volume as it is a name for `--at`
    Snapshot(ShareSnapshot),
    /// List the snapshots
    Snapshots(ShareVolume),
    /// Show or set for how long the server keeps what was replaced
    Retain(ShareRetain),
    /// List what devices wrote at the same time as others, and choose what stays
    Conflicts(ShareConflicts),
    /// Publish the files of a shared volume as the next version of a published volume
    Export(ShareExport),
    /// Remove this device's key and memory of a shared volume from this machine
    Forget(ShareForget),
}

impl ShareCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            ShareCommand::Init(_) => "share init",
            ShareCommand::Invite(_) => "share invite",
            ShareCommand::Join(_) => "share join",
            ShareCommand::Device(ShareDeviceCommand::Add(_)) => "share device add",
            ShareCommand::Device(ShareDeviceCommand::Remove(_)) => "share device remove",
            ShareCommand::Device(ShareDeviceCommand::Name(_)) => "share device name",
            ShareCommand::Device(ShareDeviceCommand::List(_)) => "share device list",
            ShareCommand::User(ShareUserCommand::Add(_)) => "share user add",
            ShareCommand::User(ShareUserCommand::List(_)) => "share user list",
            ShareCommand::Group(ShareGroupCommand::Add(_)) => "share group add",
            ShareCommand::Group(ShareGroupCommand::Remove(_)) => "share group remove",
            ShareCommand::Group(ShareGroupCommand::List(_)) => "share group list",
            ShareCommand::Grant(_) => "share grant",
            ShareCommand::Revoke(_) => "share revoke",
            ShareCommand::Status(_) => "share status",
            ShareCommand::Run(_) => "share run",
            ShareCommand::Beacon(_) => "share beacon",
            ShareCommand::Compare(_) => "share compare",
            ShareCommand::Check(_) => "share check",
            ShareCommand::Recover(_) => "share recover",
            ShareCommand::Follow(_) => "share follow",
            ShareCommand::Accept(_) => "share accept",
            ShareCommand::Checkpoint(_) => "share checkpoint",
            ShareCommand::Snapshot(_) => "share snapshot",
            ShareCommand::Snapshots(_) => "share snapshots",
            ShareCommand::Retain(_) => "share retain",
            ShareCommand::Conflicts(_) => "share conflicts",
            ShareCommand::Export(_) => "share export",
            ShareCommand::Forget(_) => "share forget",
        }
    }
}

/// A shared volume, and how long to wait for its server and its devices.
#[derive(Debug, Clone, Args)]
pub struct ShareVolume {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share init`.
#[derive(Debug, Args)]
#[command(
    override_usage = "bulla share init [OPTIONS] --orderer <KEY> --server <LOCATION> --owner-key <FILE>\n       \
    --user <NAME> --out <GENESIS> <NAME>"
)]
pub struct ShareInit {
    /// The name of the volume, on this machine and for those who join
    pub name: String,
    /// The public key of the server, which `bulla orderer new` printed there
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub orderer: PublicKey,
    /// Where devices find the server: bulla://host[:port]
    #[arg(long, value_name = "LOCATION", value_parser = parse_server)]
    pub server: ServerAddress,
    /// The owner's key file (`bulla key new --out FILE` makes one). It signs the rules of the volume, now and when they
    /// change; keep it apart from devices. Several owners: repeat it
    #[arg(long, value_name = "FILE", required = true)]
    pub owner_key: Vec<PathBuf>,
    /// How many of the owners must sign the rules when they change [default: all of them]
    #[arg(long, value_name = "N")]
    pub owners_need: Option<u8>,
    /// The name of the first user, whose device this machine is
    #[arg(long, value_name = "NAME", value_parser = parse_new_label)]
    pub user: Label,
    /// Use what a silent device wrote, and mark it, instead of refusing it
    #[arg(long)]
    pub relaxed: bool,
    /// How long readers wait for a silent device [default: 5s]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub patience: Option<Duration>,
    /// The public key of a checkpointer, or `this` for this machine's device; may be given several times. Checkpointers
    /// sign what the log comes to (`bulla share checkpoint`), and new devices begin there
    #[arg(long, value_name = "KEY", value_parser = parse_checkpointer)]
    pub checkpointer: Vec<Checkpointer>,
    /// How many checkpointers must sign [default: 2, or 1 of one]. With 1, a checkpoint counts only for devices whose users
    /// name its signer's key
    #[arg(long, value_name = "N", requires = "checkpointer")]
    pub checkpoints_need: Option<u8>,
    /// The file to write for the server: `bulla serve REPO --accept GENESIS`
    #[arg(long, value_name = "GENESIS")]
    pub out: PathBuf,
    /// Where the owner key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// `bulla share invite`.
#[derive(Debug, Args)]
pub struct ShareInvite {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The user whose device it becomes. With it, at a terminal, the command asks for the words and admits the device
    #[arg(long, value_name = "NAME", value_parser = parse_label)]
    pub user: Option<Label>,
    /// The name of the device for people, for example `laptop`
    #[arg(long, value_name = "NAME", value_parser = parse_new_label)]
    pub device_name: Option<Label>,
    /// How long to wait for the device that is invited [default: 10m]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share join`.
#[derive(Debug, Args)]
pub struct ShareJoin {
    /// The line that `bulla share invite` printed, or `-` to read it from stdin
    pub line: String,
    /// The name of the volume on this machine [default: that of the volume]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long to wait for the admission [default: 10m]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Replay the whole log, and believe no checkpoint
    #[arg(long, conflicts_with = "checkpoint_by")]
    pub replay: bool,
    /// Believe a checkpoint that this key signed, that of another device of yours
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub checkpoint_by: Option<PublicKey>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share checkpoint`.
#[derive(Debug, Args)]
pub struct ShareCheckpoint {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The checkpointer's key file [default: the key of this device]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Sign nothing: compare the newest checkpoint with what this device has replayed
    #[arg(long, conflicts_with = "key")]
    pub check: bool,
    /// Propose the log as it is now, also if another checkpointer has proposed something that this device's log does not
    /// come to
    #[arg(long, conflicts_with = "check")]
    pub anew: bool,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// A checkpointer of a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpointer {
    /// The device of this machine.
    This,
    /// The holder of this key.
    Key(PublicKey),
}

fn parse_checkpointer(text: &str) -> Result<Checkpointer, String> {
    match text {
        "this" => Ok(Checkpointer::This),
        text => parse_key(text).map(Checkpointer::Key),
    }
}

/// `bulla share device`.
#[derive(Debug, Subcommand)]
pub enum ShareDeviceCommand {
    /// Admit the device that shows these six words
    Add(ShareDeviceAdd),
    /// Remove a device; what it wrote stays
    Remove(ShareDevice),
    /// Give a device a name for people, or another one
    Name(ShareDeviceRename),
    /// List the devices
    List(ShareVolume),
}

/// `bulla share device add`.
#[derive(Debug, Args)]
pub struct ShareDeviceAdd {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The six words that the device shows
    #[arg(required = true, num_args = 1..=6)]
    pub words: Vec<String>,
    /// The user whose device it becomes
    #[arg(long, value_name = "NAME", value_parser = parse_label)]
    pub user: Label,
    /// The name of the device for people, for example `laptop`
    #[arg(long, value_name = "NAME", value_parser = parse_new_label)]
    pub device_name: Option<Label>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// A device of a shared volume.
#[derive(Debug, Args)]
pub struct ShareDevice {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The device: its number, USER/NAME, or its key; `bulla share device list VOLUME` shows them
    #[arg(value_parser = parse_device)]
    pub device: DeviceName,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share device name`.
#[derive(Debug, Args)]
pub struct ShareDeviceRename {
    /// Which device.
    #[command(flatten)]
    pub of: ShareDevice,
    /// Its name for people, for example `laptop`. The devices of a user should have different names
    #[arg(value_parser = parse_new_label)]
    pub name: Label,
}

/// `bulla share user`.
#[derive(Debug, Subcommand)]
pub enum ShareUserCommand {
    /// Add a user, who has no device yet
    Add(ShareUserAdd),
    /// List the users, their devices and their roles
    List(ShareVolume),
}

/// `bulla share user add`.
#[derive(Debug, Args)]
pub struct ShareUserAdd {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The name of the user
    #[arg(value_parser = parse_new_label)]
    pub name: Label,
    /// The role in the group `everybody`, which owns the root directory [default: writer]
    #[arg(long, value_name = "ROLE", value_parser = parse_role)]
    pub role: Option<Role>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share group`.
#[derive(Debug, Subcommand)]
pub enum ShareGroupCommand {
    /// Add a group; its first administrator is the user who adds it
    Add(ShareGroup),
    /// Remove a group; nobody can write its files any more
    Remove(ShareGroup),
    /// List the groups and their members
    List(ShareVolume),
}

/// A group of a shared volume.
#[derive(Debug, Args)]
pub struct ShareGroup {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The name of the group
    #[arg(value_parser = parse_label)]
    pub group: Label,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// A user's role in a group: `bulla share revoke`.
#[derive(Debug, Args)]
pub struct ShareRole {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The group; `everybody` owns the root directory, and its administrators are those of the volume
    #[arg(value_parser = parse_label)]
    pub group: Label,
    /// The user
    #[arg(value_parser = parse_label)]
    pub user: Label,
    /// Also take the role of the group's last administrator: then only those of `everybody` can change its members
    #[arg(long)]
    pub without_admin: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share grant`.
#[derive(Debug, Args)]
pub struct ShareGrant {
    /// Of whom, and where.
    #[command(flatten)]
    pub of: ShareRole,
    /// `reader`, `writer` or `admin`
    #[arg(value_parser = parse_role)]
    pub role: Role,
}

/// `bulla share run`.
#[derive(Debug, Args)]
pub struct ShareRun {
    /// The shared volumes: their names on this machine, or their ids
    #[arg(required = true)]
    pub volume: Vec<String>,
    /// Serve metrics for Prometheus over HTTP at this address
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Make this device a beacon of the volume: write a small file again and again, after this time
    #[arg(long, value_name = "INTERVAL", value_parser = parse_duration, requires = "write")]
    pub beacon: Option<Duration>,
    /// The file in the volume that a beacon writes. It is created if it does not exist
    #[arg(long, value_name = "FILE", requires = "beacon")]
    pub write: Option<OsString>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share beacon`.
#[derive(Debug, Args)]
pub struct ShareBeacon {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The device: its number, USER/NAME, or its key; `bulla share device list VOLUME` shows them
    #[arg(value_parser = parse_device)]
    pub device: DeviceName,
    /// How long it may be silent: longer than its interval, and the time that a message takes
    #[arg(long, value_name = "D", value_parser = parse_duration, required_unless_present = "none")]
    pub within: Option<Duration>,
    /// Do not require it any more
    #[arg(long, conflicts_with = "within")]
    pub none: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share compare`.
#[derive(Debug, Args)]
pub struct ShareCompare {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// A file with the text that this command printed on the other device, or `-` for stdin [default: print the text]
    pub seen: Option<PathBuf>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share recover`.
#[derive(Debug, Args)]
pub struct ShareRecover {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The owner's key file, that of `bulla share init`; repeat it if the rules demand several owners
    #[arg(long, value_name = "FILE", required = true)]
    pub owner_key: Vec<PathBuf>,
    /// How many entries and marks of this device's log stand [default: all that it has seen]
    #[arg(long, value_name = "SIZE")]
    pub at: Option<u64>,
    /// The public key of another server, which orders from then on [default: the same key]
    #[arg(long, value_name = "KEY", value_parser = parse_key)]
    pub orderer: Option<PublicKey>,
    /// Where devices find the server from then on: bulla://host[:port] [default: where it was]
    #[arg(long, value_name = "LOCATION", value_parser = parse_server)]
    pub server: Option<ServerAddress>,
    /// A text of `bulla share compare` on another device: tells whether that device has seen the log of this one; repeat it
    #[arg(long, value_name = "FILE")]
    pub seen: Vec<PathBuf>,
    /// The file to write, for `bulla serve REPO --accept RULES` and `bulla share follow VOLUME RULES`
    #[arg(long, value_name = "RULES")]
    pub out: PathBuf,
    /// Where the owner key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share follow`.
#[derive(Debug, Args)]
pub struct ShareFollow {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The file that `bulla share recover` wrote [default: ask the server]
    pub rules: Option<PathBuf>,
    /// Where the server is now: bulla://host[:port]
    #[arg(long, value_name = "LOCATION", value_parser = parse_server)]
    pub server: Option<ServerAddress>,
    /// Where content of lost work can be reached that neither this device nor the server has: the directory of another
    /// server, or its address (bulla://host[:port])
    #[arg(long, value_name = "LOCATION", value_parser = OsStringValueParser::new().try_map(parse_place))]
    pub from: Option<Location>,
    /// Give up the files of this device whose content nobody gives
    #[arg(long)]
    pub give_up: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share export`.
#[derive(Debug, Args)]
pub struct ShareExport {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The repository of the published volume; created if it does not exist
    pub repo: PathBuf,
    /// The directory to export [default: the root directory]
    #[arg(default_value = "", hide_default_value = true)]
    pub path: OsString,
    /// The publisher's key file (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// How long the version is valid [default: 7d, setting `valid`]
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub valid: Option<Duration>,
    /// Publish key files and other files of bulla's own too, which every reader then has
    #[arg(long)]
    pub publish_keys: bool,
    /// The display name of a new published volume [default: the name of the shared one]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The flags.
    #[command(flatten)]
    pub past: Past,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share forget`.
#[derive(Debug, Args)]
pub struct ShareForget {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// Also give up what this device has not sent to its end, and evidence that it keeps
    #[arg(long)]
    pub discard: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla share check`.
#[derive(Debug, Args)]
pub struct ShareCheck {
    /// The file of evidence
    pub evidence: PathBuf,
    /// Refuse evidence about another volume than this one
    #[arg(long, value_name = "VOLUMEID", value_parser = parse_volume)]
    pub volume: Option<VolumeId>,
}

fn parse_volume(text: &str) -> Result<VolumeId, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

fn parse_server(text: &str) -> Result<ServerAddress, String> {
    text.parse().map_err(|e| format!("{e}"))
}

/// A role by its word.
pub fn parse_role(text: &str) -> Result<Role, String> {
    match text {
        "reader" => Ok(Role::Reader),
        "writer" => Ok(Role::Writer),
        "admin" => Ok(Role::Admin),
        _ => Err(format!("`{text}` is not one of reader, writer and admin")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_three_words() {
        assert_eq!(parse_role("writer"), Ok(Role::Writer));
        assert!(parse_role("owner").is_err());
    }
}
