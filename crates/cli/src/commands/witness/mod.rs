//! `bulla witness new | run | sign | list | key`: a small independent witness of volumes' logs (C2SP `tlog-witness`). It cosigns a
//! log only if it continues the one that it cosigned before, so nobody can show two histories to readers that demand its
//! cosignature.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use keys::elsewhere::Reach;
use serde_json::json;
use state::witness::{CosignError, Cosigned, MemoryError, WitnessState};
use state::{Clock, witness};
use trust::checkpoint;
use trust::key::PublicKey;
use trust::signer::{self, NoSignature};
use trust::statement::VolumeId;
use trust::witness::{Refusal, Submission, verifier_key};

use super::key::{self, AnyKey};
use crate::args::{Global, Witness, WitnessCommand, WitnessKey, WitnessList, WitnessNew};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::text;

mod run;
mod sign;

/// How long another process may keep the lock of the state.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs one of the commands.
pub fn run(
    command: &WitnessCommand,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    match command {
        WitnessCommand::New(args) => new(args, config, output),
        WitnessCommand::Run(args) => run::run(args, global, config, output),
        WitnessCommand::Sign(args) => sign::run(args, global, config, output),
        WitnessCommand::List(args) => list(args, config, output),
        WitnessCommand::Key(args) => show_key(args, output),
    }
}

/// A witness at work: its key, what it follows, and what it has cosigned.
struct Cosigner {
    name: String,
    key: AnyKey,
    volumes: HashMap<VolumeId, Vec<PublicKey>>,
    state: WitnessState,
    clock: Clock,
}

impl Cosigner {
    /// Loads the key, which signs within `reach`, and takes the lock of the state.
    fn open(args: &Witness, global: &Global, config: &Config, reach: &Reach) -> Outcome<Cosigner> {
        let key = key::signer_within(&args.key, &args.passphrase, global, reach)?;
        let mut volumes: HashMap<VolumeId, Vec<PublicKey>> = HashMap::new();
        for (volume, key) in &args.volume {
            volumes.entry(*volume).or_default().push(*key);
        }
        let directory = directory(args.state.as_ref(), config)?;
        let state = WitnessState::open(&directory, &key.public(), Instant::now() + PATIENCE);
        Ok(Cosigner {
            name: args.name.clone(),
            key,
            volumes,
            state: state.map_err(|error| about_memory(error, &directory))?,
            clock: Clock::system(),
        })
    }

    /// The keys of the volume's log; none if this witness does not follow the volume.
    fn keys(&self, submission: &Submission) -> &[PublicKey] {
        let keys = self.volumes.get(&submission.note.volume);
        keys.map(Vec::as_slice).unwrap_or_default()
    }

    /// Cosigns if the rules allow it.
    fn cosign(&self, submission: &Submission) -> Result<Cosigned, CosignError<NoSignature>> {
        let keys = self.keys(submission);
        self.state.cosign(submission, keys, &self.name, |text| {
            let time = self.clock.now();
            let message = checkpoint::cosigned_message(text, time);
            let signature = signer::signature(&*self.key, message.as_bytes())?;
            let public = self.key.public();
            Ok(checkpoint::cosignature_line(
                &self.name, &public, time, &signature,
            ))
        })
    }
}

/// The directory of a witness's memory.
fn directory(named: Option<&PathBuf>, config: &Config) -> Outcome<PathBuf> {
    let default = || config.path("state-dir").map(|dir| dir.join("witness"));
    named.cloned().or_else(default).ok_or_else(|| {
        let hint = "name it with --state DIR";
        Failure::new(
            Kind::Usage,
            "there is no directory for the witness's memory",
        )
        .with_hint(hint)
    })
}

/// Makes an empty memory.
fn new(args: &WitnessNew, config: &Config, output: &mut Output) -> Outcome<Done> {
    let key = key::public(&args.key)?;
    let directory = directory(args.state.as_ref(), config)?;
    witness::create(&directory, &key, Instant::now() + PATIENCE)
        .map_err(|error| about_memory(error, &directory))?;
    if !output.json() {
        output.line(&key.to_string())?;
        output.note(&format!(
            "The witness with this key remembers in {} what it has cosigned. Keep this directory for as long as the key is \
             used, never restore it from a backup, and never make a second one.",
            directory.display()
        ));
    }
    let mut told = fields(json!({"key": key.to_string()}));
    text::put_name(&mut told, "state", directory.as_os_str().as_encoded_bytes());
    Ok(Done::ok(told))
}

fn about_memory(error: MemoryError, directory: &Path) -> Failure {
    let hint = match &error {
        MemoryError::Missing { .. } => {
            "name the directory with the witness's memory (--state DIR), and see that its disk is mounted. Only a key that has \
             never cosigned anything gets a new memory: `bulla witness new --key FILE --state DIR`"
        }
        MemoryError::OtherKey { .. } => {
            "each witness has a key and a memory of its own: name those that belong together (--key FILE, --state DIR)"
        }
        MemoryError::Exists { .. } => {
            "nothing is left to do if this is the witness's key; another witness needs another directory (--state DIR)"
        }
        MemoryError::State(error) => return about_state(error.clone(), directory),
    };
    Failure::from_error(Kind::WitnessMemory, &error).with_hint(hint)
}

fn about_state(error: state::StateError, directory: &Path) -> Failure {
    if error.is_locked() {
        return error.into();
    }
    let what = format!(
        "the memory of the witness in {} cannot be used",
        directory.display()
    );
    Failure::of(Kind::WitnessMemory, what, &error)
}

/// The failure for a refusal. `size` is that of the checkpoint.
fn refused(refusal: &Refusal, size: u64) -> Failure {
    let (kind, hint) = match refusal {
        Refusal::UnknownVolume => (
            Kind::Usage,
            Some("name it with --volume VOLUMEID=KEY".to_owned()),
        ),
        Refusal::Ended { .. } => (Kind::WitnessSawMore, None),
        Refusal::NotSigned => (Kind::NotTheLog, None),
        Refusal::OtherSize { size: seen } if *seen > size => (Kind::WitnessSawMore, None),
        Refusal::OtherSize { size } => {
            let hint = format!("write the file again with --checkpoint-from {size}");
            (Kind::NoConsistency, Some(hint))
        }
        Refusal::OtherRoot { .. } => (Kind::TwoHistories, None),
        Refusal::Malformed(_) | Refusal::BadProof { .. } => (Kind::NoConsistency, None),
    };
    let failure = Failure::of(kind, "the witness does not cosign this checkpoint", refusal);
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Lists what was cosigned.
fn list(args: &WitnessList, config: &Config, output: &mut Output) -> Outcome<Done> {
    let directory = directory(args.state.as_ref(), config)?;
    let owner = witness::owner(&directory).map_err(|error| about_memory(error, &directory))?;
    let failed = |error| about_state(error, &directory);
    let notes = witness::cosigned(&directory).map_err(failed)?;
    let evidence = witness::evidence(&directory).map_err(failed)?;
    for note in &notes {
        let log = &note.log;
        if output.json() {
            output.record(
                "log",
                fields(json!({
                    "volume": note.volume.to_string(),
                    "epoch": log.epoch,
                    "size": log.size,
                    "root": text::base64(&log.root),
                    "note": note.encode(),
                })),
            )?;
            continue;
        }
        let (volume, root) = (note.volume, text::base64(&log.root));
        output.line(&format!(
            "{volume} log {}: {} entries, {root}",
            log.epoch, log.size
        ))?;
    }
    for file in &evidence {
        let name = file.as_os_str().as_encoded_bytes();
        if output.json() {
            let mut one = serde_json::Map::new();
            text::put_name(&mut one, "file", name);
            output.record("evidence", one)?;
            continue;
        }
        output.raw(b"refused ")?;
        output.name(name)?;
        output.raw(b"\n")?;
    }
    if notes.is_empty() {
        output.note("This witness has cosigned nothing yet.");
    }
    if !evidence.is_empty() {
        output.warn(
            "checkpoints were refused that do not continue what was cosigned. A `conflict` is proof of two histories; beside \
             each file is the checkpoint that was cosigned (.cosigned)",
        );
    }
    Ok(Done::ok(fields(json!({
        "key": owner.to_string(),
        "logs": notes.len(),
        "evidence": evidence.len(),
    }))))
}

/// Shows the key.
fn show_key(args: &WitnessKey, output: &mut Output) -> Outcome<Done> {
    let public = key::public(&args.key)?;
    let verifier = verifier_key(&args.name, &public);
    if !output.json() {
        output.line(&public.to_string())?;
        output.line(&verifier)?;
    }
    Ok(Done::ok(fields(json!({
        "key": public.to_string(),
        "name": args.name,
        "verifier_key": verifier,
    }))))
}
