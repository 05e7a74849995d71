//! `bulla prefetch SOURCE [PATH]`: fetches a volume, or what is below a path, into the disk cache. It reads like
//! `verify` (`bulla::verify`) and waits until the disk has taken each block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulla::Tree;
use bulla::verify::Report;
use reader::{Reads, Tally};
use serde_json::json;
use store::cache::DiskCache;
use volume::{Snapshot, Volume};

use crate::args::Prefetch;
use crate::commands::damage_report;
use crate::config::Config;
use crate::entry;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::session::Session;
use crate::units;

/// Fills the cache.
pub fn run(args: &Prefetch, config: &Config, output: &mut Output) -> Outcome<Done> {
    if args.reading.caching.directory(config).is_none() {
        let failure = Failure::new(Kind::Usage, "prefetch needs a disk cache, and none is set");
        return Err(failure.with_hint("name a directory with --cache DIR or the setting `cache`"));
    }
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let (at, reads) = ((args.at.as_ref(), &path[..]), Some(Reads::Everything));
    let volume = session.open_at(config, &args.reading, at, reads, output)?;
    let snapshot = volume.current()?;
    let disk = disk_of(&snapshot)?;
    disk.wait_for_the_disk();
    let tally = Arc::new(Tally::default());
    let mut bar = Progress::start(output, "fetching");
    let report = session.run(async {
        let tree = Tree::published(&volume, Arc::clone(&snapshot));
        damage_report::read(&tree, &path, &tally, &mut bar).await
    })?;
    disk.finish_writing();
    bar.end();
    tell(&report, (&volume, &snapshot), &disk, output)
}

/// The disk cache of a volume that is read over a network.
fn disk_of(snapshot: &Snapshot) -> Outcome<Arc<DiskCache>> {
    let blocks = snapshot.blocks();
    let is_local = blocks
        .mirrors()
        .replicas()
        .all(|replica| replica.is_local());
    match blocks.disk() {
        Some(disk) if !is_local => Ok(disk.clone()),
        _ => {
            let error = "the repository is on this machine, and its blocks are not cached";
            let hint = "name a location on a network: bulla://host, http://host/path";
            Err(Failure::new(Kind::Usage, error).with_hint(hint))
        }
    }
}

fn tell(
    report: &Report,
    (volume, snapshot): (&Volume, &Snapshot),
    disk: &DiskCache,
    output: &mut Output,
) -> Outcome<Done> {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counters = disk.counters();
    let (new, missing) = (
        count(&counters.written),
        count(&counters.refused) + count(&counters.lost),
    );
    let (totals, version) = (&report.totals, snapshot.record().version);
    let record = fields(json!({
        "volume": volume.id().to_string(),
        "version": version,
        "files": totals.files,
        "other": totals.other,
        "directories": totals.directories,
        "bytes": totals.bytes,
        "new_blocks": new,
        "not_kept": missing,
        "used_bytes": disk.used_bytes(),
        "damages": report.damage_count,
    }));
    if let Some(mut failure) =
        damage_report::tell(damage_report::of(report), report.damage_count, output)?
    {
        failure.push_cause(
            "a part of the tree could not be fetched; the rest is in the cache".to_owned(),
        );
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        output.line(&format!(
            "version {version}: {} in the cache; {} new",
            units::totals(totals),
            units::count(new, "block", "blocks"),
        ))?;
    }
    if missing == 0 {
        return Ok(Done::ok(record));
    }
    output.warn(&format!(
        "{} did not stay in the cache: raise --cache-size ({}), free space on its disk, or lower --cache-keep-free ({})",
        units::count(missing, "block", "blocks"),
        units::size(disk.limits().quota_bytes),
        units::size(disk.limits().keep_free_bytes),
    ));
    Ok(Done {
        exit: Exit::Partial,
        fields: record,
    })
}
