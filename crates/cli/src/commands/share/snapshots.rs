//! `bulla share snapshot` and `bulla share snapshots`: names for a shared volume as it was. `bulla share retain`: for how
//! long the server keeps the rest.

use serde_json::json;
use share::files::Refused;
use trust_shared::decision::Decision;

use super::members::{decide, members};
use crate::args::{ShareRetain, ShareSnapshot, ShareVolume};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::units;
use bulla::Error;

/// Gives a state of the volume a name, or takes the name away.
pub fn snapshot(args: &ShareSnapshot, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (label, name) = (args.name.clone(), args.name.as_str());
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, members| {
        let about = || format!("snapshot `{name}`");
        if args.remove {
            let entry = members.snapshot(name);
            let name_of = name.to_owned();
            let entry = entry.ok_or(Error::NoSnapshot { name: name_of })?;
            shared.decide(Decision::Unpin { label }, &about).await?;
            return Ok(json!({"snapshot": name, "entry": entry, "removed": true}));
        }
        if let Some(entry) = members.snapshot(name) {
            let error = format!("the volume has a snapshot `{name}` already, after entry {entry}");
            let hint = "choose another name, or take this one away with --remove";
            return Err(Failure::new(Kind::Exists, error).with_hint(hint));
        }
        let size = match args.at {
            Some(entry) => entry.saturating_add(1),
            None => members.size(),
        };
        if size > members.size() {
            let (about, why) = (about(), Refused::Beyond);
            return Err(Error::Refused { about, why }.into());
        }
        let pin = Decision::Pin { label, size };
        shared.decide(pin, &about).await?;
        let entry = size.saturating_sub(1);
        Ok(json!({"snapshot": name, "entry": entry, "removed": false}))
    })
}

/// Lists the snapshots.
pub fn list(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (members, _) = members(args, config, output)?;
    let mut snapshots: Vec<(&str, u64)> = members.snapshots().collect();
    snapshots.sort_by_key(|(_, entry)| *entry);
    for (name, entry) in &snapshots {
        match output.json() {
            true => {
                let record = json!({"snapshot": name, "entry": entry});
                output.record("snapshot", fields(record))?;
            }
            false => output.line(&format!("{name}  after entry {entry}"))?,
        }
    }
    Ok(Done::ok(fields(json!({"snapshots": snapshots.len()}))))
}

/// For how long the server keeps what was replaced: shows it, or decides it.
pub fn retain(args: &ShareRetain, config: &Config, output: &mut Output) -> Outcome<Done> {
    let Some(keep) = args.keep else {
        let of = ShareVolume {
            volume: args.volume.clone(),
            waiting: args.waiting.clone(),
        };
        let (members, _) = members(&of, config, output)?;
        let seconds = members.retention_s();
        if !output.json() {
            output.line(&match seconds {
                Some(seconds) => told(seconds),
                None => "nobody has decided it: the server keeps to its own --keep".to_owned(),
            })?;
        }
        return Ok(Done::ok(fields(json!({"seconds": seconds}))));
    };
    let named = (args.volume.as_str(), &args.waiting);
    decide(config, output, named, async |shared, _| {
        let seconds = keep.as_secs();
        let about = || "the retention".to_owned();
        shared.decide(Decision::Retain { seconds }, &about).await?;
        Ok(json!({"seconds": seconds}))
    })
}

fn told(seconds: u64) -> String {
    const HOUR: u64 = 3600;
    let keep = match seconds {
        _ if seconds.is_multiple_of(24 * HOUR) => {
            units::count(seconds / (24 * HOUR), "day", "days")
        }
        _ if seconds.is_multiple_of(HOUR) => units::count(seconds / HOUR, "hour", "hours"),
        _ => units::count(seconds, "second", "seconds"),
    };
    format!("the server keeps what was replaced for {keep}")
}
