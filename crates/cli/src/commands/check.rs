//! `bulla check FILE`: judges a proof of a path, or a file of evidence. It needs no network. The volume id is trusted,
//! and the clock; what this machine remembers of the volume makes the judgement stricter.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use state::{Clock, VolumeState};
use trust::Reject;
use trust::floor::Floor;
use trust::path_proof::{Demands, MAX_PATH_PROOF_BYTES, PathProof, Shown};
use trust::reach::{Absence, Outcome as Reached};
use trust::split_view::{self, MAX_SPLIT_VIEW_BYTES};
use trust::statement::VolumeId;
use trust::text::{Noun, write};
use trust_shared::evidence;
use wire::location::Source;

use crate::args::{Check, Expected};
use crate::commands::{log_compare, share};
use crate::config::Config;
use crate::entry;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{text, units};

/// How long the lock of the state is waited for.
const STATE_PATIENCE: Duration = Duration::from_secs(10);

/// Judges the file.
pub fn run(args: &Check, config: &Config, output: &mut Output) -> Outcome<Done> {
    let named = args.volume.as_deref();
    let volume = named.map(|text| volume_of(text, config)).transpose()?;
    let bytes = read(&args.file)?;
    let of_shared = evidence::is_evidence(&bytes);
    if of_shared || split_view::is_split_view(&bytes) {
        for (is_given, flag) in [
            (args.path.is_some(), "--path"),
            (args.expect.is_some(), "--expect"),
            (args.at_time.is_some(), "--at-time"),
            (args.least_policy.is_some(), "--least-policy"),
        ] {
            refuse_for_evidence(is_given, flag)?;
        }
        return match of_shared {
            true => Ok(share::check::judge(&args.file, &bytes, volume, output)?
                .with("what", "shared-evidence")),
            false => log_compare::judge(&args.file, &bytes, volume, output),
        };
    }
    proof(args, &bytes, volume, config, output)
}

fn refuse_for_evidence(is_given: bool, flag: &str) -> Outcome<()> {
    if !is_given {
        return Ok(());
    }
    let error = format!("{flag} is for proofs of paths, and this is a file of evidence");
    let hint = "leave the flag out: what evidence shows does not depend on a path or a time";
    Err(Failure::new(Kind::Usage, error).with_hint(hint))
}

/// Judges a proof of a path.
fn proof(
    args: &Check,
    bytes: &[u8],
    volume: Option<VolumeId>,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let proof = PathProof::decode(bytes).map_err(|why| proves_nothing(args, &why))?;
    let claimed = proof.volume().map_err(|why| proves_nothing(args, &why))?;
    let volume = volume.ok_or_else(|| without_volume(args, claimed))?;
    let path = match &args.path {
        Some(path) => entry::clean(path),
        None => proof.path().to_vec(),
    };
    if path != proof.path() {
        let about = text::printable(proof.path());
        let error = format!("{} is about the path `{about}`", args.file.display());
        return Err(Failure::new(Kind::OtherProof, error));
    }
    let floor = match args.at_time {
        Some(_) => None,
        None => remembered(&volume, config)?,
    };
    let seen = floor.as_ref().map_or(0, Floor::newest_start);
    let demands = Demands {
        now: args
            .at_time
            .unwrap_or_else(|| Clock::system().now().max(seen)),
        least_policy: args.least_policy.unwrap_or(0),
    };
    let shown = match &floor {
        Some(floor) => proof.verify_after(floor, &path, &demands),
        None => proof.verify(volume, &path, &demands),
    };
    let shown = shown.map_err(|why| proves_nothing(args, &why))?;
    let mut record = describe(volume, &path, &shown);
    record.insert("judged_at".to_owned(), units::time(demands.now).into());
    let newest = floor.as_ref().and_then(Floor::adopted);
    if let Some(newest) = newest.filter(|it| it.version > shown.record.version) {
        record.insert("newer_version".to_owned(), newest.version.into());
        output.warn(&format!(
            "this machine has seen version {}; the proof is of version {}, which has not expired",
            newest.version, shown.record.version
        ));
    }
    if !output.json() {
        print(&path, &record, output)?;
    }
    as_expected(args.expect, &path, &shown, record)
}

/// The failure for a proof that is refused.
fn proves_nothing(args: &Check, why: &Reject) -> Failure {
    let kind = match why {
        Reject::Unsupported { .. } => Kind::Newer,
        Reject::WrongVolume => Kind::WrongVolume,
        Reject::Rollback { .. } => Kind::OldProof,
        Reject::Fork(_) | Reject::Refused(_) => Kind::ContradictedProof,
        Reject::Expired { .. } | Reject::NotYetValid { .. } => Kind::ProofOver,
        Reject::Revoked { .. } => Kind::Revoked,
        _ => Kind::NoProof,
    };
    Failure::of(kind, format!("{} proves nothing", args.file.display()), why)
}

/// The failure for a proof without a volume id. The hint has the id that the proof claims, for the user to compare.
fn without_volume(args: &Check, claimed: VolumeId) -> Failure {
    let file = args.file.display();
    let error = format!("{file}: the volume id is missing; without it a proof is worth nothing");
    let hint = format!(
        "the proof claims the volume id {claimed}. Compare it with the id that the publisher gives you over a channel that \
         you trust; if they are equal, add --volume {claimed}"
    );
    Failure::new(Kind::NoVolumeId, error).with_hint(hint)
}

/// Refuses a valid proof of the opposite of what is expected.
fn as_expected(
    expected: Option<Expected>,
    path: &[u8],
    shown: &Shown,
    record: Map<String, Value>,
) -> Outcome<Done> {
    let path = text::printable(path);
    let is_present = matches!(shown.outcome, Reached::Present(_));
    let failure = match (expected, is_present) {
        (Some(Expected::Present), false) => {
            let error = format!("{path}: the proof shows that it is not in the volume");
            Failure::new(Kind::NotFound, error).with_hint(Kind::Unexpected.hint())
        }
        (Some(Expected::Absent), true) => {
            let error = format!("{path}: the proof shows that it is in the volume");
            Failure::new(Kind::Unexpected, error)
        }
        _ => return Ok(Done::ok(record)),
    };
    Err(Failure {
        fields: record,
        ..failure
    })
}

/// What this machine remembers of the volume, if it has ever read it.
fn remembered(volume: &VolumeId, config: &Config) -> Outcome<Option<Floor>> {
    let state = VolumeState::at(&config.path("state-dir").unwrap_or_default(), volume);
    if !state.is_known() {
        return Ok(None);
    }
    let locked = state.lock(Instant::now() + STATE_PATIENCE)?;
    Ok(Some(locked.load()?))
}

/// The volume that the user names: an id, a SOURCE, or a name from the configuration.
fn volume_of(text: &str, config: &Config) -> Outcome<VolumeId> {
    let named = config.source(text).map(|named| named.source.as_str());
    let text = named.unwrap_or(text);
    if text.contains('@') {
        return Ok(Source::from_str(text)?.volume);
    }
    VolumeId::from_str(text).map_err(|why| {
        let error = format!("`{text}` is no volume id: {why}");
        let hint = "write the whole volume id, or a name that `bulla config show` lists";
        Failure::new(Kind::BadSource, error).with_hint(hint)
    })
}

/// Reads at most what proofs and evidence may be long, and a byte more.
fn read(path: &Path) -> Outcome<Vec<u8>> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
    let mut bytes = Vec::new();
    let limit = MAX_PATH_PROOF_BYTES.max(MAX_SPLIT_VIEW_BYTES) as u64 + 1;
    let done = match path.as_os_str() == "-" {
        true => std::io::stdin().take(limit).read_to_end(&mut bytes),
        false => {
            let file = File::open(path).map_err(failed)?;
            file.take(limit).read_to_end(&mut bytes)
        }
    };
    done.map_err(failed)?;
    Ok(bytes)
}

/// The record of what a proof shows.
pub fn describe(volume: VolumeId, path: &[u8], shown: &Shown) -> Map<String, Value> {
    let record = &shown.record;
    let (mut out, why) = match &shown.outcome {
        Reached::Present(inode) => (entry::record(path, inode), None),
        Reached::Absent(absence) => {
            let mut out = Map::new();
            text::put_name(&mut out, "path", path);
            (out, Some(reason(path, absence)))
        }
    };
    let signers = shown.signers.iter().map(|key| Value::from(key.to_string()));
    out.extend(fields(json!({
        "what": "path-proof",
        "present": why.is_none(),
        "why": why,
        "volume": volume.to_string(),
        "version": record.version,
        "record": write(Noun::Record, &shown.record_hash),
        "signed": units::time(record.start),
        "valid_until": units::time(shown.valid_until),
        "signers": signers.collect::<Vec<Value>>(),
        "policy_number": shown.policy_number,
        "policy": write(Noun::Policy, &shown.policy_hash),
    })));
    out
}

/// Why a path is not there.
fn reason(path: &[u8], absence: &Absence) -> String {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let place = |found: usize| match found {
        0 => "the root directory".to_owned(),
        found => {
            let above = names.get(..found).unwrap_or_default().join(&b'/');
            format!("`{}`", text::printable(&above))
        }
    };
    match absence {
        Absence::NoEntry { found } => {
            let name = names.get(*found).copied().unwrap_or_default();
            format!("{} has no `{}`", place(*found), text::printable(name))
        }
        Absence::NotADirectory { found } => format!("{} is not a directory", place(*found)),
    }
}

/// Prints what a proof shows, one fact a line.
pub fn print(path: &[u8], record: &Map<String, Value>, output: &mut Output) -> Outcome<()> {
    let get = |key: &str| match record.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    output.raw(b"path     ")?;
    output.name(if path.is_empty() { b"." } else { path })?;
    output.raw(b"\n")?;
    match record.get("why").and_then(Value::as_str) {
        Some(why) => output.line(&format!("absent   {why}"))?,
        None => {
            let bytes = record
                .get("size")
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let (kind, mode, size) = (get("kind"), get("mode"), units::size(bytes));
            output.line(&format!(
                "present  {kind}, mode {mode}, {bytes} bytes ({size})"
            ))?;
            for key in ["mtime", "handle"] {
                if record.contains_key(key) {
                    output.line(&format!("{key:<8} {}", get(key)))?;
                }
            }
            if record.contains_key("target") {
                output.line(&format!(
                    "target   {}",
                    text::printable(get("target").as_bytes())
                ))?;
            }
        }
    }
    for key in ["volume", "version", "record", "signed"] {
        output.line(&format!("{key:<8} {}", get(key)))?;
    }
    output.line(&format!("valid to {}", get("valid_until")))?;
    let signers = record.get("signers").and_then(Value::as_array);
    for signer in signers.into_iter().flatten().filter_map(Value::as_str) {
        output.line(&format!("signer   {signer}"))?;
    }
    output.line(&format!(
        "policy   {} {}",
        get("policy_number"),
        get("policy")
    ))
}
