//! `bulla share compare`: whether two devices were shown one log. The first prints a text, the orderer's newest note that
//! it has seen; the second compares it with its own log. The text goes over any channel: it is signed and no secret.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ::share::client::Compared;
use serde_json::json;
use trust::Reject;
use trust::key::PublicKey;
use trust::statement::VolumeId;
use trust_shared::note::{MAX_NOTE_TEXT_BYTES, SignedNote, VerifiedNote};

use crate::args::ShareCompare;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::units;
use bulla::shared::SharedVolume;

/// What the device with the shorter log does: the longer log proves a fork.
const BEHIND: &str = "compare the other way round: run `bulla share compare` here, and give its text to the other device. Or \
                      try again later: the server may not have answered yet";

/// Prints the text, or compares one.
pub fn run(args: &ShareCompare, config: &Config, output: &mut Output) -> Outcome<Done> {
    let text = args.seen.as_deref().map(read).transpose()?;
    // What this device has seen can be compared without the server.
    let shared = Opened::alone(config, &args.volume, &args.waiting)?;
    match text {
        None => print(shared, output),
        Some(text) => compare(shared, &text, output),
    }
}

/// Prints the newest note. Without a connection it says what was seen before.
fn print(shared: Opened, output: &mut Output) -> Outcome<Done> {
    let asked = shared.run(async { Ok(shared.client().status(shared.until()).await?.note) });
    let (volume, orderer) = known(&shared);
    let note = shared.close(asked, output)?.ok_or_else(|| {
        let error = "this device has seen nothing of the log yet";
        Failure::new(Kind::Unavailable, error)
    })?;
    let text = note.to_text(volume, &orderer);
    if !output.json() {
        output.raw(text.as_bytes())?;
    }
    let size = note.note().log.size;
    Ok(Done::ok(fields(json!({"seen": text, "size": size}))))
}

fn known(shared: &SharedVolume) -> (VolumeId, PublicKey) {
    let policies = shared.client().policies();
    (shared.home().volume(), policies.newest_epoch().orderer)
}

fn compare(shared: Opened, text: &str, output: &mut Output) -> Outcome<Done> {
    let compared = shared.run(async {
        let (volume, orderer) = known(&shared);
        let note = *note_of(text, volume, &orderer)?.signed();
        Ok((shared.client().compare(note, shared.until()).await?, note))
    });
    let (compared, note) = shared.close(compared, output)?;
    let theirs = note.note().log.size;
    match compared {
        Compared::Same { size } => {
            if !output.json() {
                output.line(&format!(
                    "the same log: both devices have seen {}",
                    units::first(size)
                ))?;
            }
            Ok(Done::ok(fields(json!({"size": size}))))
        }
        Compared::Behind { size } => {
            let error = format!(
                "the other device has seen {}, and this one only {size}",
                units::leaves(theirs)
            );
            Err(Failure::new(Kind::NotSeenYet, error).with_hint(BEHIND))
        }
        Compared::Early { first } => {
            let error = format!(
                "the other device has seen {theirs} entries and marks; this one began with a checkpoint of {first}, and \
                 did not see those before"
            );
            let hint = "compare the other way round: run `bulla share compare` here, and give its text to the other device";
            Err(Failure::new(Kind::NotSeenYet, error).with_hint(hint))
        }
        Compared::Fork { evidence } => Err(forked(evidence)),
        Compared::NotSigned => {
            let error = "the server of this volume did not sign this text";
            Err(Failure::new(Kind::BadSeen, error))
        }
        Compared::Unreadable(why) => {
            let error = format!("the memory of this device cannot be read: {why}");
            Err(Failure::new(Kind::DeviceMemory, error))
        }
    }
}

fn forked(evidence: Result<std::path::PathBuf, String>) -> Failure {
    let error = "the server has shown the two devices different logs";
    let mut failure = Failure::new(Kind::Convicted, error);
    match evidence {
        Ok(path) => {
            let path = path.display().to_string();
            failure.push_cause(format!("the proof is in {path}"));
            let hint = format!(
                "nothing more is written to this volume by this device. Show the file to the other members: `bulla share \
                 check {path}` verifies it anywhere"
            );
            failure = failure.with_hint(hint);
            failure.fields = fields(json!({"evidence": path}));
        }
        Err(why) => failure.push_cause(format!("no file could be made that proves it: {why}")),
    }
    failure
}

/// The note of a text. One that is changed in a way that leaves it a note is not signed.
pub(super) fn note_of(text: &str, volume: VolumeId, orderer: &PublicKey) -> Outcome<VerifiedNote> {
    SignedNote::from_text(text, volume, orderer).map_err(|why| match why {
        Reject::NotSigned(_) => {
            let error = "the server of this volume did not sign this text";
            Failure::of(Kind::BadSeen, error, &why)
        }
        why => Failure::of(Kind::NoSeen, "this is no text to compare", &why),
    })
}

/// Reads the text from a file, or from stdin for `-`.
pub(super) fn read(path: &Path) -> Outcome<String> {
    let shown = path.display();
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {shown}"), &e);
    let source: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    let limit = MAX_NOTE_TEXT_BYTES as u64 + 1;
    source.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8(bytes).ok();
    text.filter(|text| text.len() <= MAX_NOTE_TEXT_BYTES)
        .ok_or_else(|| Failure::new(Kind::NoSeen, format!("{shown} is no text to compare")))
}
