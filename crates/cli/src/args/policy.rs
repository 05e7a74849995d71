//! Arguments of `policy`: the next policy of a volume, from its proposal to its installation.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use trust::key::PublicKey;
use trust::statement::VolumeId;
use trust::text::{Noun, read};

use super::asking::{Asking, ByFile};
use super::publishing::{Passphrase, parse_end, parse_expected};
use crate::roles::{Expected, PolicyEnd, Role};
use crate::units::parse_validity;

/// `bulla policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Show the newest policy of a repository, or a proposed one and what it changes
    Show(PolicyShow),
    /// Propose the next policy: other keys, a later end, a way back, or the end of the volume
    New(PolicyNew),
    /// Sign a proposed policy with an owner's key
    Sign(PolicySign),
    /// Make a signed policy the newest one of a repository
    Install(PolicyInstall),
}

impl PolicyCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            PolicyCommand::Show(_) => "policy show",
            PolicyCommand::New(_) => "policy new",
            PolicyCommand::Sign(_) => "policy sign",
            PolicyCommand::Install(_) => "policy install",
        }
    }
}

/// `bulla policy show`.
#[derive(Debug, Args)]
pub struct PolicyShow {
    /// A repository, or a file of `bulla policy new` or `bulla policy sign`
    #[arg(value_name = "REPO|FILE")]
    pub path: PathBuf,
}

/// `bulla policy new`.
#[derive(Debug, Args)]
#[command(
    after_help = "ROLE is owners, publishers, timestamps, log or witnesses. Without flags for keys, the roles stay as they are \
        and the policy is renewed."
)]
pub struct PolicyNew {
    /// The repository with the newest version that is to stay
    pub repo: PathBuf,
    /// The file to write for `bulla policy sign`
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the key OLD by NEW in every role (repeatable)
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_pair)]
    pub replace_key: Vec<(PublicKey, PublicKey)>,
    /// Add a key to a role (repeatable)
    #[arg(long, value_name = "ROLE=KEY", value_parser = parse_role_key)]
    pub add: Vec<(Role, PublicKey)>,
    /// Remove a key from a role, or from every role (repeatable)
    #[arg(long, value_name = "KEY|ROLE=KEY", value_parser = parse_removal)]
    pub remove: Vec<(Option<Role>, PublicKey)>,
    /// How many keys of a role must sign (repeatable)
    #[arg(long, value_name = "ROLE=K", value_parser = parse_role_needed)]
    pub needed: Vec<(Role, u8)>,
    /// The longest validity of a version
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub record_max: Option<Duration>,
    /// The longest validity of a timestamp [default for the first timestamp key: 1day]
    #[arg(long, value_name = "D", value_parser = parse_validity)]
    pub timestamp_max: Option<Duration>,
    /// How long the policy is valid: a duration or `none` [default: 2y; `none` if the policy before has no end]
    #[arg(long, value_name = "D", value_parser = parse_end)]
    pub policy_valid: Option<PolicyEnd>,
    /// Take readers back to the version of the repository, from any later one: after a stolen key has signed versions
    #[arg(long)]
    pub lower: bool,
    /// End the volume. Nothing of it is believed any more, and no policy can follow
    #[arg(long)]
    pub revoke: bool,
    /// The volume that readers should use instead; they are told, and never led there
    #[arg(long, value_name = "VOLUMEID", requires = "revoke")]
    pub successor_volume: Option<VolumeId>,
    /// Refuse the other policy of a fork that `bulla fork show` shows (repeatable)
    #[arg(long, value_name = "pol1...", value_parser = parse_policy)]
    pub refuse: Vec<[u8; 32]>,
}

/// `bulla policy sign`.
#[derive(Debug, Args)]
pub struct PolicySign {
    /// The file of `bulla policy new` or of another `bulla policy sign`
    pub file: PathBuf,
    /// The file to write the signed policy to
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The key file of an owner: of the policy before, or of this one (setting `key`)
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// The keys of a role that the policy changes, without a question: ROLE=KEY, ROLE=K/KEY,KEY,... or ROLE=none
    /// (repeatable). Other keys are refused
    #[arg(long, value_name = "ROLE=KEYS", value_parser = parse_expected)]
    pub expect: Vec<Expected>,
    /// The last version that counts, whoever signed it; another one is refused. `--yes` needs it where the policy takes a
    /// publisher's key away or takes readers back
    #[arg(long, value_name = "VERSION")]
    pub expect_last: Option<u64>,
    /// The policy takes readers back, ends the volume (at once or within 30 days), settles a fork, or has no end where
    /// there was one; sign it without a question
    #[arg(long)]
    pub expect_drastic: bool,
    /// Sign although this machine has signed another policy of this number, which will never be installed
    #[arg(long)]
    pub replace: bool,
    /// Sign although policies lie between the last one that this machine signed and this one, and nothing here proves
    /// that they continue it
    #[arg(long)]
    pub accept_skipped_policies: bool,
}

/// `bulla policy install`.
#[derive(Debug, Args)]
pub struct PolicyInstall {
    /// The signed file, or several copies that different owners have signed; then the repository
    #[arg(value_name = "FILE... REPO", required = true, num_args = 2..)]
    pub paths: Vec<PathBuf>,
    /// The key file of a timestamp key or of one that signs the log's checkpoints, if the policy needs them (repeatable)
    #[arg(long, value_name = "FILE")]
    pub key: Vec<PathBuf>,
    /// Use the timestamp that `bulla sign` signed into FILE on another machine (repeatable)
    #[arg(long, value_name = "FILE")]
    pub timestamp: Vec<PathBuf>,
    /// Install nothing; write a request for that timestamp to FILE, for `bulla sign` on other machines. Where the policy
    /// demands witnesses, they cosign first
    #[arg(long, value_name = "FILE", conflicts_with_all = ["timestamp", "checkpoint_out"])]
    pub timestamp_out: Option<PathBuf>,
    /// Where the keys' passphrases come from.
    #[command(flatten)]
    pub passphrase: Passphrase,
    /// Witnesses to ask.
    #[command(flatten)]
    pub asking: Asking,
    /// The same by files.
    #[command(flatten)]
    pub by_file: ByFile,
}

fn key(text: &str) -> Result<PublicKey, String> {
    text.parse().map_err(|e| format!("`{text}`: {e}"))
}

fn parse_pair(text: &str) -> Result<(PublicKey, PublicKey), String> {
    let (old, new) = text
        .split_once('=')
        .ok_or("write OLD=NEW, two public keys")?;
    Ok((key(old)?, key(new)?))
}

fn parse_role_key(text: &str) -> Result<(Role, PublicKey), String> {
    let (role, named) = text.split_once('=').ok_or("write ROLE=KEY")?;
    Ok((role.parse()?, key(named)?))
}

fn parse_removal(text: &str) -> Result<(Option<Role>, PublicKey), String> {
    match text.contains('=') {
        true => parse_role_key(text).map(|(role, key)| (Some(role), key)),
        false => Ok((None, key(text)?)),
    }
}

fn parse_role_needed(text: &str) -> Result<(Role, u8), String> {
    let (role, needed) = text.split_once('=').ok_or("write ROLE=K")?;
    let needed = needed
        .parse()
        .map_err(|_| format!("`{needed}` is not a number of keys"))?;
    Ok((role.parse()?, needed))
}

fn parse_policy(text: &str) -> Result<[u8; 32], String> {
    read(Noun::Policy, text).map_err(|e| format!("`{text}`: {e}"))
}
