//! `bulla log SOURCE --seen` and `--compare FILE`: whether two readers of a published volume were shown one log. The first
//! prints a text, the second compares it with what this machine has seen. And `bulla check` of the evidence, if they were
//! shown two.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value, json};
use trust::Reject;
use trust::sighting::{MAX_SEEN_TEXT_BYTES, Seen, Sighting};
use trust::split_view::{Split, SplitView, Verdict};
use trust::statement::VolumeId;
use trust::text::{Noun, write};
use volume::compare::Compared;

use crate::args::Log;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::session::Session;
use crate::units;

/// Prints what this machine has seen.
pub fn print(args: &Log, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let volume = session.open(config, &args.reading, output)?;
    let sighting = session.run(async { Ok(volume.sighting().await?) })?;
    let malformed = |why: Reject| Failure::of(Kind::Malformed, "it cannot be written", &why);
    let text = sighting.to_text().map_err(malformed)?;
    let seen = sighting.verify(volume.id()).map_err(malformed)?;
    if !output.json() {
        output.raw(text.as_bytes())?;
    }
    let mut record = describe(&seen);
    record.insert("volume".to_owned(), volume.id().to_string().into());
    record.insert("seen".to_owned(), text.into());
    Ok(Done::ok(record))
}

/// Compares the text of another reader with what this machine has seen.
pub fn compare(args: &Log, file: &Path, config: &Config, output: &mut Output) -> Outcome<Done> {
    let text = read(file)?;
    let session = Session::start(config, &args.reading)?;
    let no_text = |why: Reject| {
        let kind = match why {
            Reject::Unsupported { .. } => Kind::Newer,
            _ => Kind::NoSighting,
        };
        Failure::of(kind, "this is no text to compare", &why)
    };
    let sighting = Sighting::from_text(&text).map_err(no_text)?;
    let volume = session.open(config, &args.reading, output)?;
    let claimed = sighting.volume().map_err(no_text)?;
    if claimed != volume.id() {
        let error = format!("the text is about the volume {claimed}");
        return Err(Failure::new(Kind::NoSighting, error));
    }
    let theirs = sighting.verify(volume.id()).map_err(|why| {
        let error = "the keys of this volume did not sign what the text says";
        Failure::of(Kind::BadSighting, error, &why)
    })?;
    let compared = session.run(async { Ok(volume.compare(&sighting, &theirs).await?) })?;
    let ours = volume.snapshot().record().version;
    let record = fields(json!({
        "volume": volume.id().to_string(),
        "version": ours,
        "theirs": describe(&theirs),
    }));
    let failure = match compared {
        Compared::Same => {
            if !output.json() {
                output.line(&format!(
                    "the same log: the other reader has seen version {}, this one version {ours}",
                    theirs.record.version
                ))?;
            }
            return Ok(Done::ok(record));
        }
        Compared::Behind => {
            let error = format!(
                "the other reader has seen version {}, this one version {ours}; no location shows how they stand",
                theirs.record.version
            );
            Failure::new(Kind::SeenMore, error)
        }
        Compared::Epochs => {
            let error =
                "the owners have begun the log again between what the two readers have seen";
            Failure::new(Kind::SeenEpochs, error)
        }
        Compared::Split {
            verdict,
            file,
            kept,
        } => split(&verdict, &file, kept),
    };
    let mut failure = failure;
    failure.fields.extend(record);
    Err(failure)
}

fn split(verdict: &Verdict, file: &Path, kept: bool) -> Failure {
    let error = format!("two readers were shown two histories: {}", offence(verdict));
    let kind = match verdict.removed() {
        None => Kind::SplitView,
        Some(_) => Kind::SplitByRemoved,
    };
    let mut failure = Failure::new(kind, error);
    for line in removed_lines(verdict) {
        failure.push_cause(line);
    }
    let shown = file.display().to_string();
    failure.push_cause(match kept {
        true => format!("the proof is in {shown}"),
        false => {
            let directory = file.parent().unwrap_or(file).display();
            format!(
                "the proof was not kept: {directory} is full. Move files away, and compare again"
            )
        }
    });
    failure.fields = fields(json!({
        "evidence": kept.then_some(shown),
        "removed": removed_field(verdict),
    }));
    failure
}

/// What says that one of the two histories does not count any more, because the owners have changed the publishers.
fn removed_lines(verdict: &Verdict) -> Vec<String> {
    let Some((number, keys)) = verdict.removed() else {
        return Vec::new();
    };
    let line =
        |key| format!("{key} has signed one of them, and is no publisher under policy {number}");
    match keys.is_empty() {
        true => vec![format!(
            "too few publishers under policy {number} have signed one of them"
        )],
        false => keys.iter().map(line).collect(),
    }
}

fn removed_field(verdict: &Verdict) -> Vec<Value> {
    let (_, keys) = verdict.removed().unwrap_or_default();
    keys.iter().map(|key| key.to_string().into()).collect()
}

/// Reads the text, from stdin for `-`.
fn read(path: &Path) -> Outcome<String> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
    let mut bytes = Vec::new();
    let limit = MAX_SEEN_TEXT_BYTES as u64 + 1;
    match path.as_os_str() == "-" {
        true => std::io::stdin().take(limit).read_to_end(&mut bytes),
        false => File::open(path)
            .map_err(failed)?
            .take(limit)
            .read_to_end(&mut bytes),
    }
    .map_err(failed)?;
    String::from_utf8(bytes)
        .map_err(|why| Failure::of(Kind::NoSighting, "this is no text to compare", &why))
}

/// Judges a file of evidence that begins as that of two histories. It must be about `volume`, if that is given.
pub fn judge(
    path: &Path,
    bytes: &[u8],
    volume: Option<VolumeId>,
    output: &mut Output,
) -> Outcome<Done> {
    let shown = path.display();
    let convicts_nobody = |why: Reject| {
        let kind = match why {
            Reject::Unsupported { .. } => Kind::Newer,
            _ => Kind::NoEvidence,
        };
        Failure::of(kind, format!("{shown} convicts nobody"), &why)
    };
    let evidence = SplitView::decode(bytes).map_err(convicts_nobody)?;
    let claimed = evidence.volume().map_err(convicts_nobody)?;
    // Before its signatures are verified, which may be thousands.
    if volume.is_some_and(|volume| volume != claimed) {
        let error = format!("{shown} is about the volume {claimed}");
        return Err(Failure::new(Kind::OtherEvidence, error));
    }
    let verdict = evidence.verify().map_err(convicts_nobody)?;
    let sides = [("first", &verdict.first), ("second", &verdict.second)];
    if !output.json() {
        output.line(&format!("volume   {}", verdict.volume))?;
        output.line(&format!("offence  {}", offence(&verdict)))?;
        for (name, seen) in sides {
            tell(name, seen, output)?;
        }
        for line in removed_lines(&verdict) {
            output.line(&format!("removed  {line}"))?;
        }
    }
    let mut record = fields(json!({
        "what": "split-view",
        "volume": verdict.volume.to_string(),
        "offence": offence(&verdict),
        "policy_number": match verdict.split {
            Split::Policies(number) => Some(number),
            Split::Logs => None,
        },
        "removed": removed_field(&verdict),
    }));
    for (name, seen) in sides {
        record.insert(name.to_owned(), describe(seen).into());
    }
    Ok(Done::ok(record))
}

fn offence(verdict: &Verdict) -> String {
    match verdict.split {
        Split::Logs => "the publishers signed two logs".to_owned(),
        Split::Policies(number) => format!("the owners signed two policies with number {number}"),
    }
}

fn describe(seen: &Seen) -> Map<String, Value> {
    let signers = seen.signers.iter().map(|key| Value::from(key.to_string()));
    fields(json!({
        "version": seen.record.version,
        "record": write(Noun::Record, &seen.record_hash),
        "signed": units::time(seen.record.start),
        "signers": signers.collect::<Vec<Value>>(),
        "epoch": seen.log.epoch,
        "size": seen.log.size,
    }))
}

fn tell(name: &str, seen: &Seen, output: &mut Output) -> Outcome<()> {
    let (version, size) = (seen.record.version, seen.log.size);
    let record = write(Noun::Record, &seen.record_hash);
    let signed = units::time(seen.record.start);
    output.line(&format!(
        "{name:<8} version {version}, a log of {size} entries, signed {signed}"
    ))?;
    output.line(&format!("record   {record}"))?;
    for signer in &seen.signers {
        output.line(&format!("signer   {signer}"))?;
    }
    Ok(())
}
