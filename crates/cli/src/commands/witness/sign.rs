//! `bulla witness sign FILE`: cosigns the checkpoint in a file, for a witness that no network reaches.

use serde_json::json;
use state::witness::CosignError;
use trust::witness::{MAX_SUBMISSION_BYTES, Submission};

use super::{Cosigner, key, refused};
use crate::args::{Global, WitnessSign};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::text;

/// Cosigns.
pub fn run(
    args: &WitnessSign,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let bytes = publish::signing_files::read_file(&args.file, MAX_SUBMISSION_BYTES)?;
    let submission = Submission::decode(&bytes).map_err(|why| {
        let what = format!("{} is not a checkpoint for witnesses", args.file.display());
        Failure::of(Kind::BadNote, what, &why)
    })?;
    let cosigner = Cosigner::open(&args.witness, global, config, &key::reach())?;
    let asked = adapted(&submission, &cosigner);
    let cosigned = cosigner.cosign(&asked).map_err(|error| match error {
        CosignError::Refused { why, not_kept } => {
            if let Some(error) = not_kept {
                output.warn(&format!("the checkpoint was not kept as evidence: {error}"));
            }
            refused(&why, submission.note.log.size)
        }
        CosignError::State(error) => error.into(),
        CosignError::Key(error) => Failure::from_error(Kind::NoSignature, &error),
    })?;
    let mut signed = submission.clone();
    signed.note.add(&cosigned.line);
    // As those who take the file read it.
    if Submission::decode(signed.encode().as_bytes()).is_err() {
        signed.note = submission.note.signed_by(cosigner.keys(&submission));
        signed.note.add(&cosigned.line);
        output.warn(
            "the file has no room for another line, so the lines of other witnesses were left out; give both files with \
             --cosigned",
        );
    }
    publish::signing_files::write_checkpoint(&args.out, &signed.encode())?;
    let note = &submission.note;
    let (volume, log) = (note.volume, note.log);
    if !output.json() {
        output.line(&format!("volume   {volume}"))?;
        output.line(&format!("log      {}, {} entries", log.epoch, log.size))?;
        output.line(&format!("file     {}", args.out.display()))?;
    }
    let before = cosigned.before.filter(|before| before.epoch == log.epoch);
    let mut told = fields(json!({
        "volume": volume.to_string(),
        "epoch": log.epoch,
        "size": log.size,
        "before": before.map_or(0, |before| before.size),
        "name": cosigner.name,
        "key": cosigner.key.public().to_string(),
    }));
    text::put_name(&mut told, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(told))
}

/// The file as this witness needs it: where it has cosigned nothing of this log, or exactly this size, there is nothing to
/// prove, whatever the proof in the file is for.
fn adapted(submission: &Submission, cosigner: &Cosigner) -> Submission {
    let note = &submission.note;
    let last = cosigner.state.last(&note.volume);
    let last = last.filter(|last| last.epoch == note.log.epoch);
    let seen = last.map_or(0, |last| last.size);
    match seen == 0 || seen == note.log.size {
        true => Submission {
            old: seen,
            proof: Vec::new(),
            note: note.clone(),
        },
        false => submission.clone(),
    }
}
