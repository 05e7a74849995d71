//! Arguments of `witness`: who it is, what it follows, what it cosigns.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use trust::key::PublicKey;
use trust::statement::VolumeId;

use super::publishing::{Passphrase, parse_key};

/// `bulla witness`.
#[derive(Debug, Subcommand)]
pub enum WitnessCommand {
    /// Make the empty memory of a witness whose key has cosigned nothing yet. Once for each key
    New(WitnessNew),
    /// Cosign the logs of volumes for everybody who asks over HTTP
    Run(WitnessRun),
    /// Cosign the log in a file, for a witness without a network
    Sign(WitnessSign),
    /// List what this witness has cosigned, and the evidence of what it refused
    List(WitnessList),
    /// Show the key of a witness, also as programs for other transparency logs name it
    Key(WitnessKey),
}

impl WitnessCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            WitnessCommand::New(_) => "witness new",
            WitnessCommand::Run(_) => "witness run",
            WitnessCommand::Sign(_) => "witness sign",
            WitnessCommand::List(_) => "witness list",
            WitnessCommand::Key(_) => "witness key",
        }
    }
}

/// A witness's key and name, its memory, and the volumes that it follows.
#[derive(Debug, Args)]
pub struct Witness {
    /// The witness's key file. Use it for nothing else, and on one machine only
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The name of the witness in its signatures: a host name and path, for example witness.example/1
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Where the witness remembers what it has cosigned, as `witness new` made it. Never restore it from a backup [default:
    /// `witness` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// A volume to follow, and the public key that signs its log: a key of the role `log`, or of `publishers` where that role
    /// is empty (repeatable, also for several keys of a volume)
    #[arg(long, value_name = "VOLUMEID=KEY", required = true, value_parser = parse_volume)]
    pub volume: Vec<(VolumeId, PublicKey)>,
    /// Where the key's passphrase comes from.
    #[command(flatten)]
    pub passphrase: Passphrase,
}

/// `bulla witness new`.
#[derive(Debug, Args)]
pub struct WitnessNew {
    /// The witness's key file. Its passphrase is not needed
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The directory for what the witness will cosign [default: `witness` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `bulla witness run`.
#[derive(Debug, Args)]
pub struct WitnessRun {
    /// The witness.
    #[command(flatten)]
    pub witness: Witness,
    /// The address to listen on, by HTTP; a reverse proxy can add TLS [default: 127.0.0.1:28554]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
}

/// `bulla witness sign`.
#[derive(Debug, Args)]
#[command(
    override_usage = "bulla witness sign [OPTIONS] --out <FILE> --key <FILE> --name <NAME>\n       \
    --volume <VOLUMEID=KEY> <FILE>"
)]
pub struct WitnessSign {
    /// The file of `bulla publish --install --checkpoint-out` or `bulla policy install --checkpoint-out`
    pub file: PathBuf,
    /// The file to write the cosigned checkpoint to; it may be the same
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// The witness.
    #[command(flatten)]
    pub witness: Witness,
}

/// `bulla witness list`.
#[derive(Debug, Args)]
pub struct WitnessList {
    /// Where the witness remembers what it has cosigned [default: `witness` in the state directory]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `bulla witness key`.
#[derive(Debug, Args)]
pub struct WitnessKey {
    /// The witness's key file
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The name of the witness in its signatures
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: String,
}

fn parse_name(text: &str) -> Result<String, String> {
    match trust::witness::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a name has no spaces and no `+`, and at most 256 bytes".to_owned()),
    }
}

fn parse_volume(text: &str) -> Result<(VolumeId, PublicKey), String> {
    let (volume, key) = text.split_once('=').ok_or("write VOLUMEID=KEY")?;
    let volume = volume.parse().map_err(|e| format!("`{volume}`: {e}"))?;
    Ok((volume, parse_key(key)?))
}
