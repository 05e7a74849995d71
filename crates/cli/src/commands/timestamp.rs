//! Timestamps by keys on several machines: a request where the repository is (`--timestamp-out` of `renew`, `publish
//! --install` and `policy install`), and `bulla sign` on it where a timestamp key is.

use std::path::Path;

use publish::pipeline::PublishOptions;
use publish::stamping::{self, ReceivedTimestamp};
use serde_json::json;
use trust::key::PublicKey;
use trust::text::{Noun, write};
use trust::timestamp_request::TimestampRequest;

use super::key;
use crate::args::{Global, Sign};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{self, Done, Output, fields};
use crate::{questions, roles, text, units};

/// Writes a request for `bulla sign`.
pub fn requested(request: &TimestampRequest, out: &Path, output: &mut Output) -> Outcome<Done> {
    let bytes = stamping::write(out, request)?;
    let received = stamping::read(out)?;
    let examined = &received.examined;
    let until = units::time(examined.timestamp.until);
    if !output.json() {
        output.line(&format!("volume   {}", examined.volume))?;
        output.line(&format!("version  {}", examined.record.version))?;
        output.line(&format!("valid to {until}"))?;
        let size = units::size(bytes);
        output.line(&format!("request  {} ({size})", out.display()))?;
        output.note(
            "Nothing has changed yet. Run `bulla sign` on this file where the timestamp keys are, then this command again \
             with --timestamp FILE and what `sign` has written.",
        );
    }
    let mut told = fields(json!({
        "volume": examined.volume.to_string(),
        "version": examined.record.version,
        "record": write(Noun::Record, &examined.record_hash),
        "valid_until": until,
        "missing": roles::missing(&examined.missing()),
    }));
    text::put_name(&mut told, "request", out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(told))
}

/// Shows the request, asks for confirmation, and signs it.
pub fn sign(args: &Sign, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    if args.valid.is_some() || !args.expect.is_empty() {
        let error = "nothing was signed: this is the request of a timestamp";
        return Err(Failure::new(Kind::Usage, error).with_hint(
            "it says how long it is valid, and gives nobody a role: leave out --valid and --expect",
        ));
    }
    let path = key::path(args.key.as_ref(), config)?;
    let received = stamping::read(&args.record)?;
    consent(global, &received, &key::public(&path)?, output)?;
    let key = key::signer(&path, &args.passphrase, global)?;
    let options = PublishOptions {
        state_dir: config.path("state-dir"),
        accept_skipped_versions: args.accept_skipped_versions,
        accept_clock: args.accept_clock,
        ..PublishOptions::default()
    };
    let (request, examined) = stamping::sign(&received, &*key, &options)?;
    let bytes = stamping::write(&args.out, &request)?;
    let record = write(Noun::Record, &examined.record_hash);
    let until = units::time(examined.timestamp.until);
    if !output.json() {
        output.line(&format!("record   {record} (a timestamp)"))?;
        output.line(&format!("valid to {until}"))?;
        let size = units::size(bytes);
        output.line(&format!("file     {} ({size})", args.out.display()))?;
        for tally in examined.missing() {
            output.note(&format!("More keys must sign. {tally}"));
        }
    }
    let mut told = fields(json!({
        "volume": examined.volume.to_string(),
        "version": examined.record.version,
        "record": record,
        "signs_version": false,
        "signs_timestamp": true,
        "signed": units::time(examined.timestamp.issued),
        "valid_until": until,
        "missing": roles::missing(&examined.missing()),
    }));
    text::put_name(&mut told, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(told))
}

/// Shows the request, and requires that the user wants to sign it.
fn consent(
    global: &Global,
    received: &ReceivedTimestamp,
    own: &PublicKey,
    output: &Output,
) -> Outcome<()> {
    stamping::check_signer(received, own)?;
    for line in lines(received) {
        match global.yes {
            true => output.note(&line),
            // On stderr, because stdout is for the result. Shown even with -q.
            false => output::say(&format!("{line}\n")),
        }
    }
    match global.yes {
        true => Ok(()),
        false => questions::sign(
            global,
            Kind::NotConfirmed,
            "Confirm that this version is the newest? Type yes: ",
        ),
    }
}

/// The lines that the signer should check.
fn lines(received: &ReceivedTimestamp) -> Vec<String> {
    let examined = &received.examined;
    let (record, timestamp) = (&examined.record, &examined.timestamp);
    let span = |from, until| format!("from {} to {}", units::time(from), units::time(until));
    let mut lines = vec![
        ("volume", format!("{} ({})", examined.volume, examined.name)),
        ("version", record.version.to_string()),
        ("record", write(Noun::Record, &examined.record_hash)),
        ("tree", units::totals(&record.totals)),
        ("valid", span(record.start, record.until())),
        ("timestamp", span(timestamp.issued, timestamp.until)),
    ];
    for key in &examined.keys.signed {
        lines.push(("signed", format!("already by {key}")));
    }
    lines.push((
        "signs",
        "this key confirms that the version is the newest".to_owned(),
    ));
    let shown = lines.into_iter();
    shown
        .map(|(name, value)| text::printable_message(&format!("{name:<10} {value}")))
        .collect()
}
