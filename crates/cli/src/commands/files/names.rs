//! `bulla mkdir VOLUME PATH...` and `bulla mv VOLUME FROM TO`.

use ::share::files::{Call, File, Over, Place};
use serde_json::json;
use trust::inode::{Content, FileKind, Inode};
use trust::shared::principal::Principal;

use crate::args::{Mkdir, Mv};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::places::{below, shown};
use crate::sharing::session::{Shared, now};

/// Permissions of a new directory.
const DIRECTORY_MODE: u16 = 0o755;

/// Makes directories.
pub fn mkdir(args: &Mkdir, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open(config, &args.volume, &args.waiting)?;
    let made = shared.run(async {
        let owner = match &args.group {
            None => None,
            Some(group) => Some(shared.members().await?.group(group)?),
        };
        let mut made = 0;
        for path in &args.path {
            let place = shared.place(path)?;
            made += make(&shared, &place, owner, args.parents).await?;
        }
        Ok(made)
    });
    let made = shared.close(made, output)?;
    Ok(Done::ok(fields(json!({"directories": made}))))
}

/// Makes a directory, and with `parents` those above it. Returns how many were made.
async fn make(
    shared: &Shared,
    place: &Place,
    owner: Option<Principal>,
    parents: bool,
) -> Outcome<u64> {
    if !parents {
        create(shared, place, DIRECTORY_MODE, owner).await?;
        return Ok(1);
    }
    let mut made = 0;
    for depth in 1..=place.path.len() {
        let above = Place {
            start: place.start,
            path: place.path.iter().take(depth).cloned().collect(),
        };
        let there = shared.look(&above, true).await?;
        made += u64::from(ensure(shared, &above, there, (DIRECTORY_MODE, owner)).await?);
    }
    Ok(made)
}

/// Makes a directory unless `there` is one. Returns whether it was made.
pub async fn ensure(
    shared: &Shared,
    place: &Place,
    there: Option<File>,
    (mode, owner): (u16, Option<Principal>),
) -> Outcome<bool> {
    match there {
        Some(file) if file.inode.kind() == FileKind::Directory => Ok(false),
        Some(_) => {
            let error = format!("{}: it is not a directory", shown(place));
            Err(Failure::new(Kind::Misfit, error))
        }
        None => create(shared, place, mode, owner).await.map(|()| true),
    }
}

async fn create(
    shared: &Shared,
    place: &Place,
    mode: u16,
    owner: Option<Principal>,
) -> Outcome<()> {
    let content = Content::Directory {
        map: None,
        opaque: false,
    };
    let inode = Inode::new(mode, now(), content);
    shared.create(place, inode, owner, false).await
}

/// Moves a file or directory.
pub fn mv(args: &Mv, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open(config, &args.volume, &args.waiting)?;
    let moved = shared.run(async {
        let from = shared.place(&args.from)?;
        let to = target(&shared, &from, shared.place(&args.to)?).await?;
        let call = Call::Rename {
            from: from.clone(),
            to,
            over: Over::Replace,
        };
        shared.change(call, &|| shown(&from)).await
    });
    shared.close(moved, output)?;
    Ok(Done::ok(fields(json!({}))))
}

/// Where a file goes: into a directory that is there, or to the place itself.
async fn target(shared: &Shared, from: &Place, to: Place) -> Outcome<Place> {
    let is_directory = |file: &File| file.inode.kind() == FileKind::Directory;
    let into = shared
        .look(&to, true)
        .await?
        .as_ref()
        .is_some_and(is_directory);
    match from.path.last() {
        Some(name) if into => Ok(below(&to, name)),
        Some(_) => Ok(to),
        None => {
            let error = "the root directory cannot be moved";
            Err(Failure::new(Kind::Misfit, error))
        }
    }
}
