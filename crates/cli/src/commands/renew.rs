//! `bulla renew REPO --key FILE`: extends the validity of the newest version.

use std::path::Path;

use publish::pipeline::PublishOptions;
use publish::renewal::{self, What};
use publish::signing;
use publish::stamping;
use serde_json::json;
use trust::text::{Noun, write};

use super::{expiry_notes, key, timestamp};
use crate::args::{Global, Renew};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{asking, lock_wait, text, units};

/// Renews.
pub fn run(args: &Renew, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    let valid = match args.valid {
        Some(valid) => valid,
        None => config.duration("valid")?,
    };
    let options = PublishOptions {
        valid,
        state_dir: config.path("state-dir"),
        cosigning: asking::cosigning(&args.asking, None, config)?,
        timestamps: args.timestamp.clone(),
        accept_clock: args.accept_clock,
        ..PublishOptions::default()
    };
    expiry_notes::warn_of_clock(args.accept_clock, output);
    if args.unsigned && !args.asking.witness.is_empty() {
        let error = "--witness does not go with --unsigned: no witness is asked before the version is signed";
        let hint = "give --witness to `bulla publish --install`";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    if let Some(out) = &args.out {
        return request(args, out, &options, output);
    }
    if let Some(out) = &args.timestamp_out {
        let request = stamping::request(&args.repo, &options)?;
        return timestamp::requested(&request, out, output);
    }
    let files = match args.timestamp.is_empty() {
        true => key::paths(&args.key, config)?,
        // They may be enough.
        false => args.key.clone(),
    };
    let keys = key::signers(&files, &args.passphrase, global, key::reach())?;
    let renewed = lock_wait::until_free(&args.lock_wait, &|| false, output, || {
        Ok(renewal::renew_with(
            &args.repo,
            &key::borrowed(&keys),
            &options,
        )?)
    })?;
    let what = match renewed.what {
        What::Record => "record",
        What::Timestamp => "timestamp",
    };
    let record = write(Noun::Record, &renewed.record_hash);
    let until = units::time(renewed.valid_until);
    if !output.json() {
        output.line(&format!("volume   {}", renewed.volume))?;
        output.line(&format!("version  {} (a new {what})", renewed.version))?;
        output.line(&format!("record   {record}"))?;
        output.line(&format!("valid to {until}"))?;
    }
    expiry_notes::warn_of_end(&args.repo, output);
    Ok(Done::ok(fields(json!({
        "volume": renewed.volume.to_string(),
        "version": renewed.version,
        "record": record,
        "renewed": what,
        "valid_until": until,
    }))))
}

/// Writes the request for publishers on other machines.
fn request(
    args: &Renew,
    out: &Path,
    options: &PublishOptions,
    output: &mut Output,
) -> Outcome<Done> {
    let (request, previous) = lock_wait::until_free(&args.lock_wait, &|| false, output, || {
        Ok(renewal::propose(&args.repo, options)?)
    })?;
    let bytes = signing::write(out, &request)?;
    let received = signing::read(out)?;
    let examined = &received.examined;
    if !output.json() {
        output.line(&format!("volume   {}", examined.volume))?;
        output.line(&format!(
            "version  {} (the tree of version {})",
            examined.record.version, previous.version
        ))?;
        let size = units::size(bytes);
        output.line(&format!("request  {} ({size})", out.display()))?;
        output.note(
            "Run `bulla sign` on this file where the keys are, then `bulla publish --install` with what `sign` writes.",
        );
    }
    let mut fields = fields(json!({
        "volume": examined.volume.to_string(),
        "version": examined.record.version,
        "renewed": "request",
    }));
    text::put_name(&mut fields, "request", out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(fields))
}
