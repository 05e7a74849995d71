//! `bulla verify SOURCE [PATH]`: reads and verifies every block, and reports the damaged files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulla::verify::Report;
use reader::{Reads, Tally};
use serde_json::json;

use crate::args::Verify;
use crate::commands::{damage_report, serve};
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::states::State;
use crate::{sharing, units};

/// Verifies.
pub fn run(args: &Verify, config: &Config, output: &mut Output) -> Outcome<Done> {
    let is_shared = sharing::named(config, &args.reading)?.is_some();
    if !is_shared && serve::check::is_server(&args.reading.source) {
        return serve::check::run(args, output);
    }
    args.refuse_for_servers()?;
    let path = entry::clean(&args.path);
    let state = State::of(&args.reading, &args.past, &path).with(Reads::Everything);
    let bar = Progress::start(output, "verifying");
    let verified = state.read(config, output, async |tree, _| {
        let tally = Arc::new(Tally::default());
        let report = damage_report::read(tree, &path, &tally, &mut bar.clone()).await?;
        let version = tree.snapshot().map(|snapshot| snapshot.record().version);
        Ok((report, version, tree.volume().to_string()))
    });
    bar.end();
    let (report, version, volume) = verified?;
    tell(&report, version, &volume, output)
}

fn tell(report: &Report, version: Option<u64>, volume: &str, output: &mut Output) -> Outcome<Done> {
    let totals = &report.totals;
    let mut record = fields(json!({
        "volume": volume,
        "files": totals.files,
        "other": totals.other,
        "directories": totals.directories,
        "bytes": totals.bytes,
        "data_blocks": report.data_blocks,
        "data_bytes": report.data_bytes,
        "damages": report.damage_count,
    }));
    match version {
        Some(version) => record.insert("version".to_owned(), version.into()),
        None => record.insert("hidden".to_owned(), report.hidden.into()),
    };
    damage_report::tell_hidden(report.hidden, output);
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
        let what = match version {
            Some(version) => format!("version {version} is complete"),
            None => "complete".to_owned(),
        };
        output.line(&format!(
            "{what}: {}; verified all metadata with the content of small files{blocks}",
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
