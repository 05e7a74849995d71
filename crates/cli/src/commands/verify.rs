//! `bulla verify SOURCE [PATH]`: reads and verifies every block, and reports the damaged files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reader::Fetch;
use serde_json::json;
use volume::verify::{self, Report, Tally};

use crate::args::Verify;
use crate::commands::files;
use crate::config::Config;
use crate::entry;
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::session::{Session, about, not_found};
use crate::{sharing, text, units};

/// Verifies.
pub fn run(args: &Verify, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return files::verify::run(args, home, config, output);
    }
    args.past.refuse()?;
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let volume = session.open_toward(config, &args.reading, &path, output)?;
    let tally = Arc::new(Tally::default());
    let mut bar = Progress::start(output, "verifying");
    let (report, version) = session.run(async {
        let snapshot = volume.current()?;
        let how = Fetch::Until(volume.deadline());
        let top = snapshot
            .resolve(&path, how)
            .await
            .map_err(about(&path))?
            .ok_or_else(|| not_found(&path))?;
        if path.is_empty() {
            bar.signed(&snapshot.record().totals);
        }
        let work = verify::verify(&volume, &snapshot, &path, &top, &tally);
        let report = bar.during(&tally, work).await?;
        Ok((report, snapshot.record().version))
    })?;
    bar.end();
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
    for damage in &report.damages {
        let mut one = serde_json::Map::new();
        text::put_name(&mut one, "path", &damage.path);
        one.insert("why".to_owned(), damage.why.to_string().into());
        if output.json() {
            output.record("damage", one)?;
        } else {
            output.warn(&format!(
                "{}: {}",
                text::printable(&damage.path),
                damage.why
            ));
        }
    }
    if let Some(gravest) = report.gravest() {
        let mut failure = Failure::from(gravest.why.clone());
        let count = report.damage_count;
        failure.push_cause(match count {
            1 => "one problem was found".to_owned(),
            _ => format!("{count} problems were found; this is the most serious one"),
        });
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        output.line(&format!(
            "version {version} is complete: {}; verified {} ({})",
            units::totals(totals),
            units::count(report.data_blocks, "distinct block", "distinct blocks"),
            units::size(report.data_bytes)
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
