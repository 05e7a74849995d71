//! Publishing with the key on another machine: `bulla publish DIR REPO --unsigned --out RECORD` where the tree is,
//! `bulla sign RECORD --key FILE --out F` where the key is, then `bulla publish --install F REPO`.

use std::path::Path;

use publish::installing;
use publish::pipeline::PublishOptions;
use publish::progress::Published;
use publish::signing::{self, Received};
use publish::stamping;
use serde_json::{Map, Value, json};
use trust::key::PublicKey;
use trust::policy::Roles;
use trust::request::Request;
use trust::root::RootRecord;
use trust::text::{Noun, write};

use super::{expiry_notes, key, timestamp};
use crate::args::{Global, Publish, Sign};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{self, Done, Output, fields};
use crate::{asking, lock_wait, questions, roles, text, units};

/// Shows the request, asks for confirmation, and signs it.
pub fn sign(args: &Sign, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    expiry_notes::warn_of_clock(args.accept_clock, output);
    if stamping::is_one(&args.record)? {
        return timestamp::sign(args, global, config, output);
    }
    let valid = match args.valid {
        Some(valid) => valid,
        None => config.duration("valid")?,
    };
    let path = key::path(args.key.as_ref(), config)?;
    let options = PublishOptions {
        valid,
        state_dir: config.path("state-dir"),
        accept_skipped_versions: args.accept_skipped_versions,
        accept_clock: args.accept_clock,
        ..PublishOptions::default()
    };
    let received = signing::read(&args.record)?;
    let examined = &received.examined;
    check_validity(args, &received)?;
    consent(
        args,
        global,
        &received,
        key::public(&path)?,
        &options,
        output,
    )?;
    let key = key::signer(&path, &args.passphrase, global)?;
    let signed = signing::sign(&received, &*key, &options)?;
    let bytes = signing::write(&args.out, &signed.request)?;
    let record = write(Noun::Record, &signed.record_hash);
    let until = units::time(signed.valid_until);
    if !output.json() {
        let word = match (signed.signs_record, signed.again) {
            (false, _) => " (not signed: this key signed the policy)",
            (true, true) => " (signed before)",
            (true, false) => "",
        };
        output.line(&format!("record   {record}{word}"))?;
        output.line(&format!("valid to {until}"))?;
        output.line(&format!(
            "file     {} ({})",
            args.out.display(),
            units::size(bytes)
        ))?;
        for tally in &signed.missing {
            output.note(&format!("More keys must sign. {tally}"));
        }
    }
    let mut fields = fields(json!({
        "volume": examined.volume.to_string(),
        "version": examined.record.version,
        "record": record,
        "root": examined.record.root.to_string(),
        "files": examined.record.totals.files,
        "directories": examined.record.totals.directories,
        "other": examined.record.totals.other,
        "bytes": examined.record.totals.bytes,
        "previous": examined.previous.as_ref().map(|(_, hash)| write(Noun::Record, hash)),
        "signed": units::time(signed.start),
        "valid_until": until,
        "roles": roles::fields(&examined.roles),
        "again": signed.again,
        "signs_version": signed.signs_record,
        "missing": roles::missing(&signed.missing),
    }));
    text::put_name(&mut fields, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(fields))
}

/// Refuses `--valid` where the request says how long the version is valid: the signer would believe that it counts.
fn check_validity(args: &Sign, received: &Received) -> Outcome<()> {
    let examined = &received.examined;
    let asked = examined.record.duration;
    let is_other = |valid: &std::time::Duration| valid.as_secs() != asked;
    if examined.sets_validity() || !args.valid.as_ref().is_some_and(is_other) {
        return Ok(());
    }
    let asked = units::span(std::time::Duration::from_secs(asked));
    let error = format!("nothing was signed: the request asks for a validity of {asked}");
    Err(Failure::new(Kind::Usage, error).with_hint(
        "several keys sign this request, and must sign the same: leave out --valid, or ask for another request \
         (`bulla publish --unsigned --valid D`)",
    ))
}

/// Shows the request, and requires that the user wants to sign it.
fn consent(
    args: &Sign,
    global: &Global,
    received: &Received,
    own: PublicKey,
    options: &PublishOptions,
    output: &Output,
) -> Outcome<()> {
    signing::check_signer(received, &own)?;
    let examined = &received.examined;
    let is_expected = roles::are_expected(&examined.roles, own, &args.expect);
    if !is_expected && !args.expect.is_empty() {
        return Err(other_roles(&examined.roles, &own));
    }
    // A policy is asked about once, when this machine signs under it for the first time.
    let asks_about_roles = !is_expected && !signing::is_known_policy(received, options)?;
    let asks = asks_about_roles || !global.yes;
    let lines = describe(received, &own).into_iter();
    for (name, value) in lines.chain(roles::lines(&examined.roles, &own)) {
        let line = format!("{name:<10} {value}");
        // On stderr, because stdout is for the result. The roles are shown even with -q.
        match asks {
            true => output::say(&format!("{}\n", text::printable_message(&line))),
            false => output.note(&line),
        }
    }
    match asks_about_roles {
        true => confirm_roles(global),
        false => confirm(global),
    }
}

/// The lines that the signer should check.
fn describe(received: &Received, own: &PublicKey) -> Vec<(&'static str, String)> {
    let examined = &received.examined;
    let record = &examined.record;
    let mut lines = vec![
        (
            "volume",
            format!(
                "{} ({})",
                examined.volume,
                text::printable(examined.name.as_bytes())
            ),
        ),
        ("version", record.version.to_string()),
        ("root", record.root.to_string()),
        ("tree", units::totals(&record.totals)),
    ];
    match &examined.previous {
        None => lines.push(("previous", "none: this is a new volume".to_owned())),
        Some((previous, hash)) => {
            let same = if previous.root == record.root {
                ", the same tree"
            } else {
                ""
            };
            let hash = write(Noun::Record, hash);
            lines.push((
                "previous",
                format!("version {}, {hash}{same}", previous.version),
            ));
            lines.push(("", span(previous)));
        }
    }
    if let Some(name) = received.request.record.statement().version_name() {
        lines.push(("tag", name.to_string()));
    }
    lines.push(("asked", span(record)));
    for tally in examined.owners.iter().chain([&examined.publishers]) {
        for key in &tally.signed {
            lines.push(("signed", format!("already by {key} ({})", tally.role)));
        }
    }
    let is_owner = (examined.owners.as_ref()).is_some_and(|owners| owners.has(own));
    let what = match (examined.publishers.has(own), is_owner) {
        (true, true) => "the version, and the policy of the new volume",
        (true, false) => "the version",
        (false, _) => "the policy of the new volume, and no version",
    };
    lines.push(("signs", format!("this key signs {what}")));
    if examined.owners.is_some() {
        lines.push((
            "policy",
            format!("valid to {}", roles::end(examined.not_after)),
        ));
    }
    lines
}

fn span(record: &RootRecord) -> String {
    let (start, until) = (units::time(record.start), units::time(record.until()));
    format!("from {start} to {until}")
}

/// The failure for roles that contradict `--expect`.
fn other_roles(roles: &Roles, own: &PublicKey) -> Failure {
    let error = "nothing was signed: the policy has other roles than expected";
    let mut failure = Failure::new(Kind::OtherRoles, error);
    let shown = roles::lines(roles, own).into_iter();
    failure.causes = shown
        .map(|(name, value)| format!("{name:<10} {value}"))
        .collect();
    failure
}

/// Asks the user at the terminal to confirm.
fn confirm(global: &Global) -> Outcome<()> {
    if global.yes {
        return Ok(());
    }
    questions::sign(global, Kind::NotConfirmed, "Sign this? Type yes: ")
}

/// Asks about a policy that gives roles to other keys. `--yes` does not answer: a script that signs everything
/// would give the volume away.
fn confirm_roles(global: &Global) -> Outcome<()> {
    let question = "Other keys have power over this volume too. Sign this? Type yes: ";
    questions::sign(global, Kind::UnknownRoles, question)
}

/// Writes the request for `bulla sign`.
pub fn requested(
    request: &Request,
    published: &Published,
    out: &Path,
    record: &mut Map<String, Value>,
    output: &mut Output,
) -> Outcome<()> {
    let bytes = signing::write(out, request)?;
    text::put_name(record, "request", out.as_os_str().as_encoded_bytes());
    if !output.json() {
        let size = units::size(bytes);
        output.line(&format!("request  {} ({size})", out.display()))?;
        output.note(&format!(
            "Version {} is not published yet. Run `bulla sign` on this file where the key is, then \
             `bulla publish --install` with the file that `sign` writes.",
            published.version
        ));
    }
    Ok(())
}

/// Publishes a version that was signed on another machine.
pub fn install(
    args: &Publish,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let options = PublishOptions {
        valid: config.duration("valid")?,
        state_dir: config.path("state-dir"),
        cosigning: asking::cosigning(&args.asking, Some(&args.by_file), config)?,
        timestamps: args.timestamp.clone(),
        accept_clock: args.accept_clock,
        ..PublishOptions::default()
    };
    expiry_notes::warn_of_clock(args.accept_clock, output);
    let keys = key::signers(&args.key, &args.passphrase, global, key::reach())?;
    let keys = key::borrowed(&keys);
    let (files, repo) = (&args.install, args.repository()?);
    if let Some(out) = &args.timestamp_out {
        let request = installing::timestamp_request(files, repo, &keys, &options)?;
        return timestamp::requested(&request, out, output);
    }
    let installed = lock_wait::until_free(&args.lock_wait, &|| false, output, || {
        Ok(installing::install(files, repo, &keys, &options)?)
    })?;
    expiry_notes::warn_of_end(args.repository()?, output);
    let record = write(Noun::Record, &installed.record_hash);
    let until = units::time(installed.valid_until);
    if !output.json() {
        let word = match (installed.again, installed.waits_for_witnesses) {
            (true, _) => " (published already)",
            (false, true) => " (not published yet)",
            (false, false) => "",
        };
        output.line(&format!("volume   {}", installed.volume))?;
        output.line(&format!("version  {}{word}", installed.version))?;
        output.line(&format!("record   {record}"))?;
        output.line(&format!("valid to {until}"))?;
        if installed.waits_for_timestamp {
            output.note(expiry_notes::CONFIRM_FIRST);
        }
    }
    let waits = installed.waits_for_witnesses;
    let out = args.by_file.checkpoint_out.as_ref().filter(|_| waits);
    let mut fields = fields(json!({
        "volume": installed.volume.to_string(),
        "version": installed.version,
        "record": record,
        "valid_until": until,
        "again": installed.again,
        "waits_for_timestamp": installed.waits_for_timestamp,
        "waits_for_witnesses": waits,
    }));
    if let Some(out) = out {
        asking::written(out, "bulla publish --install", &mut fields, output)?;
    }
    Ok(Done::ok(fields))
}
