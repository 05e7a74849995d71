//! `bulla prune REPO`: frees the disk space of blocks that no kept version uses.

use std::sync::Arc;

use replica::prune::{self, PruneOptions, Pruned};
use serde_json::{Map, Value, json};
use store::disk::{Disk, Local};

use crate::args::Prune;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::{lock_wait, units};

/// Prunes.
pub fn run(args: &Prune, output: &mut Output) -> Outcome<Done> {
    let defaults = PruneOptions::default();
    let options = PruneOptions {
        keep: args.keep.unwrap_or(defaults.keep),
        grace: args.grace.unwrap_or(defaults.grace),
        dry_run: args.dry_run,
        ..defaults
    };
    let disk: Arc<dyn Disk> = Arc::new(Local::new(&args.repo));
    let pruned = lock_wait::until_free(&args.lock_wait, &|| false, output, || {
        Ok(prune::prune(disk.clone(), &options)?)
    })?;
    if !output.json() {
        let kept: Vec<String> = pruned.kept.iter().map(u64::to_string).collect();
        let collected = &pruned.collected;
        output.line(&format!("kept     version {}", kept.join(", ")))?;
        let dropped = units::count(pruned.dropped, "version", "versions");
        output.line(&format!("dropped  {dropped}"))?;
        let word = if args.dry_run {
            "would be freed"
        } else {
            "freed"
        };
        output.line(&format!(
            "space    {} {word}; {} of unused blocks stay in segments with used ones",
            units::size(collected.freed_bytes),
            units::size(collected.dead_bytes)
        ))?;
        if !args.dry_run && collected.freed_bytes > 0 && !options.grace.is_zero() {
            output.note(&format!(
                "the removed files stay for {}, for readers of the previous index; the first pull, publish or \
                 prune after that deletes them",
                units::span(options.grace)
            ));
        }
    }
    let mut record = told(&pruned);
    record.insert("dry_run".to_owned(), args.dry_run.into());
    Ok(Done::ok(record))
}

/// The fields of a result record after pruning.
pub fn told(pruned: &Pruned) -> Map<String, Value> {
    let collected = &pruned.collected;
    fields(json!({
        "kept": pruned.kept,
        "dropped": pruned.dropped,
        "freed_bytes": collected.freed_bytes,
        "dead_bytes": collected.dead_bytes,
        "live_blocks": collected.live_blocks,
        "segments": collected.segments,
        "segments_dropped": collected.dropped,
        "segments_rewritten": collected.rewritten,
    }))
}
