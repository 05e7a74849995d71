//! `bulla extract SOURCE DIR`: copies a volume into a directory.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use reader::Reads;
use serde_json::{Map, json};
use volume::extract::{self, ExtractOptions, Extracted};
use volume::verify::Tally;

use crate::args::Extract;
use crate::commands::files;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::session::Session;
use crate::{sharing, text, units};

/// Extracts.
pub fn run(args: &Extract, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return files::extract::run(args, home, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let (at, reads) = ((args.past.at.as_ref(), &[][..]), Some(Reads::Everything));
    let volume = session.open_at(config, &args.reading, at, reads, output)?;
    let options = ExtractOptions {
        owner: args.owner,
        skip_special: args.skip_special,
        ..ExtractOptions::default()
    };
    let tally = Arc::new(Tally::default());
    let mut bar = Progress::start(output, "extracting");
    let extracted = session.run(async {
        let snapshot = volume.current()?;
        bar.signed(&snapshot.record().totals);
        let work = extract::extract(&volume, &snapshot, &args.dir, &options, &tally);
        let made = bar.during(&tally, work).await?;
        Ok((made, snapshot.record().version))
    });
    bar.end();
    let (made, version) = extracted.map_err(|failure| cut_off(failure, &args.dir))?;
    tell(&made, version, output)
}

/// An interrupted extraction cannot be continued, because the directory must be empty.
fn cut_off(failure: Failure, dir: &Path) -> Failure {
    match failure.kind {
        Kind::Interrupted => failure.with_hint(format!(
            "the files extracted so far are in {}; remove this directory and run the command again",
            text::printable(dir.as_os_str().as_bytes())
        )),
        _ => failure,
    }
}

fn tell(made: &Extracted, version: u64, output: &mut Output) -> Outcome<Done> {
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
    if !output.json() {
        output.line(&format!(
            "version {version}: {}",
            units::totals(&made.totals)
        ))?;
    }
    let exit = if made.skipped_count > 0 {
        Exit::Partial
    } else {
        Exit::Ok
    };
    let record = json!({
        "version": version,
        "files": made.totals.files,
        "directories": made.totals.directories,
        "other": made.totals.other,
        "bytes": made.totals.bytes,
        "skipped": made.skipped_count,
    });
    Ok(Done {
        exit,
        fields: fields(record),
    })
}
