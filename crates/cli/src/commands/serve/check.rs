//! `bulla verify DIR` of a shared volume's server: what is damaged where; with `--repair`, mending it.

use std::path::Path;

use serde_json::{Map, Value, json};
use share_server::host::{Examined, Host, RepairSource, Repaired};

use crate::args::Verify;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::directories::open_device;
use crate::units;

/// Whether the source is such a directory, also one whose format file is damaged.
pub fn is_server(source: &str) -> bool {
    let path = Path::new(source);
    path.is_dir()
        && match Host::is_at(path) {
            Ok(is_shared) => {
                is_shared
                    || !path.join(store::names::FORMAT_FILE).exists() && Host::looks_like(path)
            }
            Err(_) => Host::looks_like(path),
        }
}

/// Checks the directory, or mends it.
pub fn run(args: &Verify, output: &mut Output) -> Outcome<Done> {
    let source = &args.reading.source;
    let dir = Path::new(source);
    let bar = Progress::start(output, "verifying").counting("leaf", "leaves");
    let mut watch = |found: &Examined| {
        bar.of(found.segment_bytes);
        bar.at(found.block_bytes, found.leaves);
    };
    let reads_blocks = !args.skip_blocks;
    if args.repair {
        let from = args
            .from
            .as_deref()
            .map(|path| RepairSource { path, open_device });
        let repaired = Host::repair(dir, from, reads_blocks, &mut watch);
        bar.end();
        return tell_repaired(source, &repaired?, output);
    }
    let found = Host::examine(dir, reads_blocks, &mut watch);
    bar.end();
    let found = found?;
    let record = record(&found);
    if found.fault_count > 0 {
        tell_faults(&found, output)?;
        let damages = units::count(found.fault_count, "damage", "damages");
        let mut failure = Failure::new(Kind::ServerDamaged, format!("{source} has {damages}"));
        if found.fault_count == found.wrong_blocks {
            failure = failure.with_hint(format!(
                "the log is whole, and the server can start. `bulla verify {source} --repair` puts the damaged blocks aside, and with \
                 --from COPY takes them from a backup; a device that puts the same content again stores them too"
            ));
        }
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        let blocks = match args.skip_blocks {
            true => "blocks were not read".to_owned(),
            false => format!(
                "{} ({}) that are what their names say",
                units::count(found.blocks, "block", "blocks"),
                units::size(found.block_bytes),
            ),
        };
        output.line(&format!(
            "the directory of the server is whole: {}, {} with the signature of its author; {blocks}",
            units::leaves(found.leaves),
            units::count(found.entries, "entry", "entries"),
        ))?;
    }
    Ok(Done::ok(record))
}

fn record(found: &Examined) -> Map<String, Value> {
    fields(json!({
        "volume": found.volume.map(|volume| volume.to_string()),
        "leaves": found.leaves,
        "entries": found.entries,
        "blocks": found.blocks,
        "block_bytes": found.block_bytes,
        "damages": found.fault_count,
    }))
}

fn tell_faults(found: &Examined, output: &mut Output) -> Outcome<()> {
    for fault in &found.faults {
        if output.json() {
            let block = fault.block.map(|block| block.to_string());
            let path = fault.path.display().to_string();
            let one = json!({"path": path, "block": block, "why": fault.why});
            output.record("damage", fields(one))?;
        } else {
            output.line(&fault.why)?;
        }
    }
    Ok(())
}

fn tell_repaired(source: &str, repaired: &Repaired, output: &mut Output) -> Outcome<Done> {
    for (path, how) in &repaired.mended {
        let path = path.display();
        if output.json() {
            let one = json!({"path": path.to_string(), "how": how});
            output.record("mended", fields(one))?;
        } else {
            output.line(&format!("{path}: {how}"))?;
        }
    }
    for path in &repaired.kept {
        output.note(&format!("{} is the damaged file", path.display()));
    }
    for block in &repaired.lost {
        if output.json() {
            output.record("lost", fields(json!({"block": block.to_string()})))?;
        } else {
            output.line(&format!("block {block} is lost"))?;
        }
    }
    let mut record = record(&repaired.left);
    let kept = repaired.kept.iter();
    let kept: Vec<String> = kept.map(|path| path.display().to_string()).collect();
    record.extend(fields(json!({
        "mended": repaired.mended.len(),
        "own_leaves": repaired.own_leaves,
        "taken_leaves": repaired.taken_leaves,
        "lost_blocks": repaired.lost_count,
        "destroyed_bytes": repaired.destroyed_bytes,
        "kept": kept,
    })));
    let left = &repaired.left;
    if left.fault_count > 0 {
        tell_faults(left, output)?;
        let damages = units::count(left.fault_count, "damage", "damages");
        let error = format!("{source} still has {damages}");
        let mut failure = Failure::new(Kind::ServerDamaged, error);
        failure.fields = record;
        return Err(failure);
    }
    let mut lost = Vec::new();
    if repaired.lost_count > 0 {
        let blocks = units::count(repaired.lost_count, "block is", "blocks are");
        lost.push(format!("{blocks} lost"));
    }
    if repaired.destroyed_bytes > 0 {
        lost.push(format!(
            "{} of the temporary log are destroyed, and the blocks there may be lost: let devices put again what they put last",
            units::size(repaired.destroyed_bytes)
        ));
    }
    if !lost.is_empty() {
        let mut failure = Failure::new(Kind::BlocksLost, lost.join("; "));
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        output.line(match repaired.mended.is_empty() {
            true => "nothing was damaged",
            false => "the directory of the server is whole again",
        })?;
    }
    Ok(Done::ok(record))
}
