//! `bulla share conflicts`: what devices could not put into a file, because somebody else had changed it first, lies beside
//! it. Lists such copies, and settles them.

use std::os::unix::ffi::OsStrExt;

use ::share::conflict::Conflict;
use ::share::files::{Call, Over};
use bulla::members::Membership;
use bulla::shared::SharedVolume;
use bulla::shared::places::{path_of, shown};
use bulla::walk::{MAX_DEPTH, Step};
use bulla::{Entry, Error, Tree};
use reader::Reads;
use serde_json::json;
use trust_shared::principal::Name;

use crate::args::{ShareConflicts, Take};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::text;

/// Lists copies, or settles those that are named.
pub fn run(args: &ShareConflicts, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let done = shared.run(async {
        match args.take {
            Some(take) => settle(&shared, args, take).await,
            None => list(&shared, args, output).await,
        }
    });
    let copies = shared.close(done, output)?;
    Ok(Done::ok(fields(json!({"copies": copies}))))
}

/// What the name of an entry says, if it is a copy.
fn conflict_of(entry: &Entry) -> Option<Conflict> {
    let name = Name::new(entry.name()).ok()?;
    Conflict::of(&name).filter(|_| !entry.is_directory())
}

async fn list(shared: &SharedVolume, args: &ShareConflicts, output: &mut Output) -> Outcome<u64> {
    let tree = Tree::shared(shared, None);
    let members = shared.known_members().await?;
    let root = vec![std::ffi::OsString::new()];
    let paths = if args.path.is_empty() {
        &root
    } else {
        &args.path
    };
    let mut copies = 0;
    for path in paths {
        let top = tree.find(path.as_bytes()).await?;
        if !top.is_directory() {
            copies += u64::from(show(shared, &members, &top, output).await?);
            continue;
        }
        let mut walk = tree.walk(&top, Reads::Names);
        loop {
            let entry = match walk.next().await {
                Ok(None) => break,
                Ok(Some(Step::Entry(entry))) => entry,
                Ok(Some(Step::Left(_))) => continue,
                Err(unlisted) if unlisted.is_hidden() => continue,
                Err(unlisted) => return Err(unlisted.why.into()),
            };
            copies += u64::from(show(shared, &members, &entry, output).await?);
            if entry.is_directory() {
                if walk.depth() >= MAX_DEPTH {
                    let path = text::printable(&entry.path);
                    return Err(Error::TooDeep { path }.into());
                }
                walk.enter(entry);
            }
        }
    }
    Ok(copies)
}

/// Shows an entry if it is a copy. Gives whether it is one.
async fn show(
    shared: &SharedVolume,
    members: &Membership,
    entry: &Entry,
    output: &mut Output,
) -> Outcome<bool> {
    let Some(conflict) = conflict_of(entry) else {
        return Ok(false);
    };
    let mut file = shared.place(&entry.path)?;
    file.path.pop();
    let file = conflict.of.map(|name| {
        file.path.push(name);
        file
    });
    let there = match &file {
        Some(file) => shared.look_at(None, file, false).await?,
        None => None,
    };
    let whose = members.whose(conflict.device);
    if !output.json() {
        let beside = match (&file, &there) {
            (Some(file), Some(there)) => {
                format!("{}, {} bytes", shown(file), there.inode.size)
            }
            (Some(file), None) => format!("{}, which is gone", shown(file)),
            (None, _) => "a file with a long name".to_owned(),
        };
        let path = text::printable(&entry.path);
        output.line(&path)?;
        let (size, date) = (entry.inode.size, &conflict.date);
        output.line(&format!("  {size} bytes by {whose}, {date}; of {beside}"))?;
        return Ok(true);
    }
    let mut record = fields(json!({
        "device": conflict.device.0,
        "whose": whose,
        "date": conflict.date,
        "bytes": entry.inode.size,
        "file_bytes": there.map(|there| there.inode.size),
    }));
    text::put_name(&mut record, "path", &entry.path);
    if let Some(file) = file {
        text::put_name(&mut record, "file", &path_of(&file));
    }
    output.record("conflict", record)?;
    Ok(true)
}

/// Settles the copies that are named. A path that is no copy is refused before the first change.
async fn settle(shared: &SharedVolume, args: &ShareConflicts, take: Take) -> Outcome<u64> {
    let tree = Tree::shared(shared, None);
    let mut all = Vec::new();
    for path in &args.path {
        let entry = tree.find(path.as_bytes()).await?;
        let Some(conflict) = conflict_of(&entry) else {
            let error = format!("{} is no conflict copy", text::printable(&entry.path));
            let hint = "`bulla share conflicts VOLUME` lists the copies";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        };
        let to = match (take, &conflict.of) {
            (Take::File, _) => None,
            (Take::Copy | Take::Both, None) => {
                let path = text::printable(&entry.path);
                let error = format!("{path}: the name was too long, and is cut");
                let hint = "rename the copy with `bulla mv`";
                return Err(Failure::new(Kind::Usage, error).with_hint(hint));
            }
            (Take::Copy, Some(of)) => Some((of.clone(), Over::Replace)),
            (Take::Both, Some(of)) => Some((kept_name(of, &conflict)?, Over::Refuse)),
        };
        all.push((shared.place(&entry.path)?, to));
    }
    let settled = all.len() as u64;
    for (from, to) in all {
        let about = || shown(&from);
        let call = match to {
            None => Call::Unlink {
                place: from.clone(),
            },
            Some((name, over)) => {
                let mut to = from.clone();
                to.path.pop();
                to.path.push(name);
                Call::Rename {
                    from: from.clone(),
                    to,
                    over,
                }
            }
        };
        shared.change(call, &about).await?;
    }
    Ok(settled)
}

/// The name of a copy that stays beside the file.
fn kept_name(of: &Name, conflict: &Conflict) -> Outcome<Name> {
    let tail = format!(" (device {} {})", conflict.device.0, conflict.date);
    let name = Name::new(&[of.as_bytes(), tail.as_bytes()].concat());
    name.map_err(|why| Failure::new(Kind::Usage, why.to_string()))
}
