//! `bulla rm VOLUME PATH...`: removes files, and with `-r` directories with all that is in them.

use ::share::files::{Call, Place};
use serde_json::json;
use trust::inode::FileKind;

use crate::args::Rm;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::places::{below, shown};
use crate::sharing::session::Shared;

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// How many files and directories were removed.
#[derive(Default)]
struct Removed {
    files: u64,
    directories: u64,
}

/// Removes.
pub fn run(args: &Rm, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open(config, &args.volume, &args.waiting)?;
    let removed = shared.run(async {
        let mut removed = Removed::default();
        for path in &args.path {
            let place = shared.place(path)?;
            let file = shared.find(&place, false).await?;
            match file.inode.kind() {
                FileKind::Directory if args.recursive => {
                    directory(&shared, place, &mut removed).await?;
                }
                FileKind::Directory => {
                    let error = format!("{}: it is a directory", shown(&place));
                    let hint = "give -r to remove it with all that is in it";
                    return Err(Failure::new(Kind::Misfit, error).with_hint(hint));
                }
                _ => {
                    unlink(&shared, place).await?;
                    removed.files += 1;
                }
            }
        }
        Ok(removed)
    });
    let removed = shared.close(removed, output)?;
    let (files, directories) = (removed.files, removed.directories);
    Ok(Done::ok(fields(
        json!({"files": files, "directories": directories}),
    )))
}

async fn unlink(shared: &Shared, place: Place) -> Outcome<()> {
    let call = Call::Unlink {
        place: place.clone(),
    };
    shared.change(call, &|| shown(&place)).await
}

/// Removes a directory from the bottom up.
async fn directory(shared: &Shared, top: Place, removed: &mut Removed) -> Outcome<()> {
    let mut stack = vec![top];
    while let Some(place) = stack.last().cloned() {
        let names = shared.list(&place, None, false).await?.names;
        if names.is_empty() {
            let call = Call::Rmdir {
                place: place.clone(),
            };
            shared.change(call, &|| shown(&place)).await?;
            removed.directories += 1;
            stack.pop();
            continue;
        }
        for listed in names {
            let inside = below(&place, &listed.name);
            if listed.target.kind != FileKind::Directory {
                unlink(shared, inside).await?;
                removed.files += 1;
            } else if inside.path.len() >= MAX_DEPTH {
                let error = format!("{} is nested too deeply", shown(&inside));
                return Err(Failure::new(Kind::Malformed, error));
            } else {
                stack.push(inside);
            }
        }
    }
    Ok(())
}
