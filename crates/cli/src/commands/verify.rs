//! `bulla verify SOURCE [PATH]`: reads and verifies every block, and reports the damaged files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reader::Reads;
use serde_json::json;
use volume::verify::{Report, Tally};

use crate::args::Verify;
use crate::commands::{damage_report, files, serve};
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::session::Session;
use crate::{sharing, units};

/// Verifies.
pub fn run(args: &Verify, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        args.refuse_for_servers()?;
        return files::verify::run(args, home, config, output);
    }
    if serve::check::is_server(&args.reading.source) {
        return serve::check::run(args, output);
    }
    args.refuse_for_servers()?;
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let (at, reads) = ((args.past.at.as_ref(), &path[..]), Some(Reads::Everything));
    let volume = session.open_at(config, &args.reading, at, reads, output)?;
    let tally = Arc::new(Tally::default());
    let mut bar = Progress::start(output, "verifying");
    let snapshot = volume.current()?;
    let report = session.run(damage_report::read(
        &volume, &snapshot, &path, &tally, &mut bar,
    ))?;
    bar.end();
    let version = snapshot.record().version;
    tell(&report, version, &volume.id().to_string(), output)
}

fn tell(report: &Report, version: u64, volume: &str, output: &mut Output) -> Outcome<Done> {
    let totals = &report.totals;
    let record = fields(json!({
        "volume": volume,
        "version": version,
        "files": totals.files,
        "other": totals.other,
        "directories": totals.directories,
        "bytes": totals.bytes,
        "data_blocks": report.data_blocks,
        "data_bytes": report.data_bytes,
        "damages": report.damage_count,
    }));
    if let Some(mut failure) =
        damage_report::tell(damage_report::of(report), report.damage_count, output)?
    {
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        // Small files have no blocks of their own.
        let blocks = match report.data_blocks {
            0 => String::new(),
            n => format!(
                ", and {} of larger files ({})",
                units::count(n, "distinct block", "distinct blocks"),
                units::size(report.data_bytes)
            ),
        };
        output.line(&format!(
            "version {version} is complete: {}; verified all metadata with the content of small files{blocks}",
            units::totals(totals),
        ))?;
    }
    Ok(Done::ok(record))
}

impl Progress {
    /// Shows the progress of `work`, which counts in `tally`.
    pub async fn during<T>(&self, tally: &Tally, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(200));
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => {
                    match tally.total_bytes.load(Ordering::Relaxed) {
                        0 => {}
                        total => self.of(total),
                    }
                    self.at(
                        tally.bytes.load(Ordering::Relaxed),
                        tally.leaves.load(Ordering::Relaxed),
                    );
                }
            }
        }
    }
}
