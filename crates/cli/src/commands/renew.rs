//! `bulla renew REPO --key FILE`: extends the validity of the newest version.

use publish::pipeline::PublishOptions;
use publish::renewal::{self, What};
use serde_json::json;
use trust::text::{Noun, write};

use super::key;
use crate::args::{Global, Renew};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::units;

/// Renews.
pub fn run(args: &Renew, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    let valid = match args.valid {
        Some(valid) => valid,
        None => config.duration("valid")?,
    };
    let path = key::path(args.key.as_ref(), config)?;
    let key = key::load(&path, &args.passphrase, global.no_input)?;
    let options = PublishOptions {
        valid,
        state_dir: config.path("state-dir"),
        ..PublishOptions::default()
    };
    let renewed = renewal::renew(&args.repo, &key, &options)?;
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
    Ok(Done::ok(fields(json!({
        "volume": renewed.volume.to_string(),
        "version": renewed.version,
        "record": record,
        "renewed": what,
        "valid_until": until,
    }))))
}
