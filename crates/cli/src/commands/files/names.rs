//! `bulla mkdir VOLUME PATH...` and `bulla mv VOLUME FROM... TO`.

use std::os::unix::ffi::OsStrExt;

use ::share::files::{Call, File, Over, Place};
use serde_json::json;
use trust::inode::{Content, FileKind, Inode};
use trust_shared::principal::{FileId, Principal};

use crate::args::{Mkdir, Mv};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use bulla::shared::places::{Address, below, shown};
use bulla::shared::{SharedVolume, now};

/// Permissions of a new directory.
const DIRECTORY_MODE: u16 = 0o755;

/// Makes directories.
pub fn mkdir(args: &Mkdir, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let made = shared.run(async {
        let owner = match &args.group {
            None => None,
            Some(group) => Some(shared.members().await?.group(group)?),
        };
        let mut made = 0;
        for path in &args.path {
            let place = shared.place(path.as_encoded_bytes())?;
            made += make(&shared, &place, owner, args.parents).await?;
        }
        Ok(made)
    });
    let made = shared.close(made, output)?;
    Ok(Done::ok(fields(json!({"directories": made}))))
}

/// Makes a directory, and with `parents` those above it. Returns how many were made.
async fn make(
    shared: &SharedVolume,
    place: &Place,
    owner: Option<Principal>,
    parents: bool,
) -> Outcome<u64> {
    if !parents {
        let inode = directory(DIRECTORY_MODE);
        let place = Address::of(place.clone());
        shared.create(&place, inode, owner).await?;
        return Ok(1);
    }
    let mut made = 0;
    for depth in 1..=place.path.len() {
        let above = Place {
            start: place.start,
            path: place.path.iter().take(depth).cloned().collect(),
        };
        let there = shared.look(&above, true).await?;
        let (inode, above) = (directory(DIRECTORY_MODE), Address::of(above));
        let (_, is_new) = ensure(shared, &above, there, inode, owner).await?;
        made += u64::from(is_new);
    }
    Ok(made)
}

/// Makes a directory unless `there` is one. Returns the directory, and whether it was made.
pub async fn ensure(
    shared: &SharedVolume,
    place: &Address,
    there: Option<File>,
    inode: Inode,
    owner: Option<Principal>,
) -> Outcome<(FileId, bool)> {
    match there {
        Some(file) if file.inode.kind() == FileKind::Directory => Ok((file.id, false)),
        Some(_) => {
            let error = format!("{}: it is not a directory", place.shown());
            Err(Failure::new(Kind::Misfit, error))
        }
        None => {
            let made = shared.create(place, inode, owner).await?;
            Ok((made, true))
        }
    }
}

/// A new directory with these permissions.
pub fn directory(mode: u16) -> Inode {
    let content = Content::Directory {
        map: None,
        opaque: false,
    };
    Inode::new(mode, now(), content)
}

/// Moves files and directories.
pub fn mv(args: &Mv, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let moved = shared.run(async {
        let Some((last, files)) = args.path.split_last() else {
            return Ok(());
        };
        let to = shared.place(last.as_encoded_bytes())?;
        let needs_directory = files.len() > 1 || last.as_bytes().ends_with(b"/");
        // What cannot be moved is refused before the first change.
        let mut moves = Vec::new();
        for file in files {
            let from = shared.place(file.as_encoded_bytes())?;
            let to = target(&shared, &from, &to, needs_directory).await?;
            shared.find(&from, false).await?;
            if from.path.len() < to.path.len() && to.path.starts_with(&from.path) {
                let error = format!("{} cannot be moved into itself", shown(&from));
                return Err(Failure::new(Kind::Misfit, error));
            }
            if let Some((other, _)) = moves.iter().find(|(_, taken)| *taken == to) {
                let (one, two) = (shown(other), shown(&from));
                let error = format!("{one} and {two} would both become {}", shown(&to));
                let hint = "move one of them under another name";
                return Err(Failure::new(Kind::Usage, error).with_hint(hint));
            }
            moves.push((from, to));
        }
        for (from, to) in moves {
            let call = Call::Rename {
                from: from.clone(),
                to,
                over: Over::Replace,
            };
            shared.change(call, &|| shown(&from)).await?;
        }
        Ok(())
    });
    shared.close(moved, output)?;
    Ok(Done::ok(fields(json!({}))))
}

/// Where a file goes: into a directory that is there, or to the place itself.
async fn target(
    shared: &SharedVolume,
    from: &Place,
    to: &Place,
    needs_directory: bool,
) -> Outcome<Place> {
    let is_directory = |file: &File| file.inode.kind() == FileKind::Directory;
    let there = shared.look(to, true).await?;
    let into = there.as_ref().is_some_and(is_directory);
    match from.path.last() {
        Some(name) if into => Ok(below(to, name)),
        Some(_) if needs_directory => {
            let error = format!("there is no directory {} in the volume", shown(to));
            let hint = "make it with `bulla mkdir VOLUME PATH`";
            Err(Failure::new(Kind::NotFound, error).with_hint(hint))
        }
        Some(_) => Ok(to.clone()),
        None => {
            let error = "the root directory cannot be moved";
            Err(Failure::new(Kind::Misfit, error))
        }
    }
}
