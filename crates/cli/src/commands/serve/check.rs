//! `bulla verify DIR` of a shared volume's server: what its log says, and what is damaged where.

use std::path::Path;

use ::share::host::Host;
use serde_json::json;

use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::units;

/// Whether the source is such a directory.
pub fn is_server(source: &str) -> bool {
    let path = Path::new(source);
    path.is_dir() && matches!(Host::is_at(path), Ok(true))
}

/// Checks the directory.
pub fn run(source: &str, output: &mut Output) -> Outcome<Done> {
    let found = Host::examine(Path::new(source))?;
    let record = fields(json!({
        "volume": found.volume.to_string(),
        "leaves": found.leaves,
        "entries": found.entries,
        "damages": found.fault_count,
    }));
    if found.fault_count == 0 {
        if !output.json() {
            output.line(&format!(
                "the log of the server is complete: {}, {} with the signature of its author; blocks were not read",
                units::leaves(found.leaves),
                units::count(found.entries, "entry", "entries"),
            ))?;
        }
        return Ok(Done::ok(record));
    }
    for fault in &found.faults {
        if output.json() {
            output.record(
                "damage",
                fields(json!({"path": fault.path.display().to_string(), "why": fault.why})),
            )?;
        } else {
            output.line(&fault.why)?;
        }
    }
    let damages = units::count(found.fault_count, "damage", "damages");
    let mut failure = Failure::new(Kind::ServerDamaged, format!("{source} has {damages}"));
    failure.fields = record;
    Err(failure)
}
