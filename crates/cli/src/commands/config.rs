//! `bulla config show`: prints every setting, its value and its origin.

use serde_json::json;

use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};

/// Prints all settings and named sources.
pub fn show(config: &Config, output: &mut Output) -> Outcome<Done> {
    for (key, value) in config.values() {
        if output.json() {
            let record = json!({"key": key, "value": value.text, "origin": value.origin});
            output.record("setting", fields(record))?;
        } else {
            let text = if value.text.is_empty() {
                "(none)"
            } else {
                &value.text
            };
            output.line(&format!("{key:<15} {text:<40} {}", value.origin))?;
        }
    }
    for (name, source, origin) in config.sources() {
        if output.json() {
            let record = json!({
                "name": name,
                "source": source.source,
                "mirrors": source.mirrors,
                "freshness": source.freshness,
                "policy": source.policy,
                "origin": origin,
            });
            output.record("source", fields(record))?;
        } else {
            output.line(&format!("source {name:<8} {} {origin}", source.source))?;
        }
    }
    Ok(Done::ok(fields(json!({}))))
}
