//! `bulla rm VOLUME PATH...`: removes files, and with `-r` directories with all that is in them.
//!
//! A directory that is being removed is known by its number, and not by its path. A member that makes its name a
//! symbolic link meanwhile does not lead the command to other files.

use ::share::files::Call;
use serde_json::json;
use trust::inode::FileKind;
use trust::shared::principal::FileId;

use crate::args::Rm;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::places::{Address, shown};
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
                    let (id, at) = (file.id, Address::of(place));
                    let top = Doomed { id, at };
                    directory(&shared, top, &mut removed).await?;
                }
                FileKind::Directory => {
                    let error = format!("{}: it is a directory", shown(&place));
                    let hint = "give -r to remove it with all that is in it";
                    return Err(Failure::new(Kind::Misfit, error).with_hint(hint));
                }
                _ => {
                    unlink(&shared, &Address::of(place)).await?;
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

/// A directory that is being removed.
#[derive(Clone)]
struct Doomed {
    id: FileId,
    at: Address,
}

async fn unlink(shared: &Shared, at: &Address) -> Outcome<()> {
    let place = at.name.clone();
    shared.change(Call::Unlink { place }, &|| at.shown()).await
}

/// Removes a directory from the bottom up.
async fn directory(shared: &Shared, top: Doomed, removed: &mut Removed) -> Outcome<()> {
    let mut stack = vec![top];
    while let Some(Doomed { id, at }) = stack.last().cloned() {
        let names = shared.names_in(id, &at.path).await?.names;
        if names.is_empty() {
            let place = at.name.clone();
            shared.change(Call::Rmdir { place }, &|| at.shown()).await?;
            removed.directories += 1;
            stack.pop();
            continue;
        }
        for listed in names {
            let at = at.inside(id, &listed.name);
            if listed.target.kind != FileKind::Directory {
                unlink(shared, &at).await?;
                removed.files += 1;
            } else if at.path.path.len() >= MAX_DEPTH {
                let error = format!("{} is nested too deeply", at.shown());
                return Err(Failure::new(Kind::Malformed, error));
            } else {
                let id = listed.target.file;
                stack.push(Doomed { id, at });
            }
        }
    }
    Ok(())
}
