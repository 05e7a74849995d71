//! `bulla extract SOURCE DIR [PATH]`: copies a volume, or what is at a path of it, into a directory.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bulla::extract::{self, ExtractOptions, Extracted, Refused};
use reader::{Reads, Tally};
use serde_json::{Map, json};

use crate::args::Extract;
use crate::commands::damage_report;
use crate::config::Config;
use crate::entry;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::states::State;
use crate::{sharing, text, units};

/// Extracts.
pub fn run(args: &Extract, config: &Config, output: &mut Output) -> Outcome<Done> {
    let is_shared = sharing::named(config, &args.reading)?.is_some();
    let options = ExtractOptions {
        owner: args.owner && !is_shared,
        // A member of a shared volume is a stranger.
        skip_special: args.skip_special || is_shared,
        ..ExtractOptions::default()
    };
    let path = entry::clean(&args.path);
    let state = State::of(&args.reading, &args.past, &path).with(Reads::Everything);
    let tally = Arc::new(Tally::default());
    let bar = Progress::start(output, "extracting");
    let extracted = state.read(config, output, async |tree, output| {
        let mut bar = bar.clone();
        let top = tree.find(&path).await?;
        if let (b"", Some(snapshot)) = (&path[..], tree.snapshot()) {
            bar.signed(&snapshot.record().totals);
        }
        output.lasts();
        let work = extract::extract(tree, &top, &args.dir, &options, &tally);
        let made = bar.during(&tally, work).await?;
        Ok((made, tree.snapshot().map(|it| it.record().version)))
    });
    bar.end();
    let (made, version) = extracted.map_err(|failure| cut_off(failure, &args.dir))?;
    tell(&made, version, output)
}

/// An interrupted extraction goes on where it was.
fn cut_off(failure: Failure, dir: &Path) -> Failure {
    match failure.kind {
        Kind::Interrupted => failure.with_hint(format!(
            "the files extracted so far are in {}; run the same command again to go on there",
            text::printable(dir.as_os_str().as_bytes())
        )),
        _ => failure,
    }
}

/// Tells of what was left out, was refused, or lies there besides.
fn tell_partly(made: &Extracted, output: &mut Output) -> Outcome<()> {
    for (path, why) in &made.skipped {
        let name = path.as_os_str().as_bytes();
        if output.json() {
            let mut one = Map::new();
            text::put_name(&mut one, "path", name);
            one.insert("why".to_owned(), why.clone().into());
            output.record("skipped", one)?;
        } else {
            output.warn(&format!("left out: {}: {why}", text::printable(name)));
        }
    }
    let Refused {
        modes,
        owners,
        times,
        first,
    } = &made.refused;
    if let (Some((path, why)), false) = (first, output.json()) {
        let name = text::printable(path.as_os_str().as_bytes());
        output.warn(&format!(
            "the file system refused {}, {} and {}; the first of {name}: {why}",
            units::count(*modes, "mode", "modes"),
            units::count(*owners, "owner", "owners"),
            units::count(*times, "time", "times"),
        ));
    }
    damage_report::tell_hidden(made.hidden, output);
    if let (Some(first), false) = (made.extra.first(), output.json()) {
        output.warn(&format!(
            "{} that the volume does not have {} left alone; the first is {}",
            units::count(made.extra_count, "entry", "entries"),
            if made.extra_count == 1 { "is" } else { "are" },
            text::printable(first.as_os_str().as_bytes())
        ));
    }
    if output.json() {
        for path in &made.extra {
            let mut one = Map::new();
            text::put_name(&mut one, "path", path.as_os_str().as_bytes());
            output.record("extra", one)?;
        }
    }
    Ok(())
}

fn tell(made: &Extracted, version: Option<u64>, output: &mut Output) -> Outcome<Done> {
    tell_partly(made, output)?;
    let refused = &made.refused;
    if !output.json() {
        let kept = match made.went_on {
            true => format!(
                "; {} there already",
                units::count(made.kept, "file was", "files were")
            ),
            false => String::new(),
        };
        let version = match version {
            Some(version) => format!("version {version}: "),
            None => String::new(),
        };
        output.line(&format!("{version}{}{kept}", units::totals(&made.totals)))?;
    }
    let exit = if made.skipped_count > 0 || refused.first.is_some() || made.extra_count > 0 {
        Exit::Partial
    } else {
        Exit::Ok
    };
    let mut record = fields(json!({
        "files": made.totals.files,
        "directories": made.totals.directories,
        "other": made.totals.other,
        "bytes": made.totals.bytes,
        "skipped": made.skipped_count,
        "refused_modes": refused.modes,
        "refused_owners": refused.owners,
        "refused_times": refused.times,
        "went_on": made.went_on,
        "kept": made.kept,
        "extra": made.extra_count,
    }));
    match version {
        Some(version) => record.insert("version".to_owned(), version.into()),
        None => record.insert("hidden".to_owned(), made.hidden.into()),
    };
    Ok(Done {
        exit,
        fields: record,
    })
}
