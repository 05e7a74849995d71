//! `bulla restore VOLUME PATH --at N`: brings back what a shared volume had, as new versions of its files.

use bulla::restore::Skipped;
use serde_json::{Map, json};
use std::os::unix::ffi::OsStrExt;

use crate::args::Restore;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::text;

/// Restores.
pub fn run(args: &Restore, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let restored = shared.run(async {
        let entry = shared.entry(&args.at).await?;
        let (path, to) = (args.path.as_bytes(), args.to.as_ref());
        let to = to.map_or(path, |to| to.as_bytes());
        Ok((entry, shared.restore(entry, path, to).await?))
    });
    let (entry, restored) = shared.close(restored, output)?;
    for (path, why) in &restored.skipped {
        let why = words(*why);
        match output.json() {
            true => {
                let mut one = Map::new();
                text::put_name(&mut one, "path", path);
                one.insert("why".to_owned(), why.into());
                output.record("skipped", one)?;
            }
            false => {
                let path = text::printable(path);
                output.warn(&format!("left as it is: {path}: {why}"));
            }
        }
    }
    let exit = match restored.skipped_count {
        0 => Exit::Ok,
        _ => Exit::Partial,
    };
    let fields = fields(json!({
        "entry": entry,
        "files": restored.files,
        "directories": restored.directories,
        "other": restored.other,
        "unchanged": restored.unchanged,
        "bytes": restored.bytes,
        "skipped": restored.skipped_count,
    }));
    Ok(Done { exit, fields })
}

fn words(why: Skipped) -> &'static str {
    match why {
        Skipped::OtherKind => "a directory has its name now, or it was a directory and is none now",
        Skipped::Changed => "somebody has changed it meanwhile",
        Skipped::NotPermitted => "you may not write it",
        Skipped::Unlisted => "you may not read it",
        Skipped::Collected => "the server does not have all of its old content any more",
    }
}
