//! `bulla rm VOLUME PATH...`: removes files, and with `-r` directories with all that is in them.
//!
//! A directory that is being removed is known by its number, and not by its path. A member that makes its name a
//! symbolic link meanwhile does not lead the command to other files.
//!
//! Files and directories that do not wait for one another are removed at the same time, so that they share entries of
//! the log and round trips. A directory follows what is in it.

use std::collections::HashMap;

use ::share::files::{Call, Listed, Place};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::json;
use trust::inode::FileKind;
use trust_shared::principal::{FileId, Name};

use crate::args::Rm;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use bulla::shared::places::{Address, shown};
use bulla::shared::{Names, SharedVolume};

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;
/// Calls under way at a time.
const AT_ONCE: usize = 64;

/// How many files and directories were removed.
#[derive(Default)]
struct Removed {
    files: u64,
    directories: u64,
}

/// What a user has named.
enum Named {
    Directory(FileId, Address),
    Other(Address),
}

/// Removes.
pub fn run(args: &Rm, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let removed = shared.run(async {
        // What cannot be done is refused before the first change.
        let mut all = Vec::new();
        let mut places: Vec<Place> = Vec::new();
        for path in &args.path {
            let place = shared.place(path.as_encoded_bytes())?;
            let named = named(&shared, args, place.clone()).await?;
            // What was named before, or lies in what was named before, goes with that.
            if !places
                .iter()
                .any(|other| place.path.starts_with(&other.path))
            {
                places.push(place);
                all.push(named);
            }
        }
        let mut removed = Removed::default();
        for named in all {
            match named {
                Named::Directory(id, at) => {
                    Removal::new(&shared, &mut removed).tree(id, at).await?
                }
                Named::Other(at) => {
                    unlink(&shared, &at).await?;
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

async fn named(shared: &SharedVolume, args: &Rm, place: Place) -> Outcome<Named> {
    let file = shared.find(&place, false).await?;
    if file.inode.kind() != FileKind::Directory {
        return Ok(Named::Other(Address::of(place)));
    }
    let refused = |error: &str, hint| {
        let error = format!("{}: {error}", shown(&place));
        Err(Failure::new(Kind::Misfit, error).with_hint(hint))
    };
    if !args.recursive {
        let hint = "give -r to remove it with all that is in it";
        return refused("it is a directory", hint);
    }
    if place.path.is_empty() {
        let hint = "name what is in it: `bulla ls VOLUME` lists that";
        return refused("it stays as long as the volume", hint);
    }
    Ok(Named::Directory(file.id, Address::of(place)))
}

async fn unlink(shared: &SharedVolume, at: &Address) -> Outcome<()> {
    let place = at.name.clone();
    Ok(shared
        .change(Call::Unlink { place }, &|| at.shown())
        .await?)
}

/// Names a directory among those that are being removed.
type Number = u64;

/// A directory that is being removed.
struct Doomed {
    id: FileId,
    at: Address,
    /// The directory that it is in; none for the one that the user has named.
    above: Option<Number>,
    /// Names of the last page that are still there.
    left: usize,
    /// The page of its names after this one was not asked for yet.
    next: Option<Name>,
    /// Why it could not be removed. It must have names then.
    refused: Option<Failure>,
}

/// The next step of a removal.
enum Step {
    /// The page of a directory's names after one of them.
    List(Number, Option<Name>),
    /// Removes a name that leads to no directory.
    Unlink(Number, Name),
    /// Removes a directory without names.
    Rmdir(Number),
}

/// What came of a step.
enum Became {
    Listed(Number, Names),
    Unlinked(Number),
    Gone(Number),
    Refused(Number, Failure),
}

/// The removal of a directory with all that is in it.
struct Removal<'a> {
    shared: &'a SharedVolume,
    removed: &'a mut Removed,
    doomed: HashMap<Number, Doomed>,
    last: Number,
    /// The last one is the next one, so few directories are begun at a time.
    steps: Vec<Step>,
}

impl<'a> Removal<'a> {
    fn new(shared: &'a SharedVolume, removed: &'a mut Removed) -> Removal<'a> {
        Removal {
            shared,
            removed,
            doomed: HashMap::new(),
            last: 0,
            steps: Vec::new(),
        }
    }

    async fn tree(mut self, id: FileId, at: Address) -> Outcome<()> {
        self.begin(id, at, None)?;
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < AT_ONCE
                && let Some(step) = self.steps.pop()
            {
                under_way.extend(self.start(step));
            }
            match under_way.next().await {
                Some(became) => self.take(became?)?,
                None => return Ok(()),
            }
        }
    }

    /// Begins with a directory.
    fn begin(&mut self, id: FileId, at: Address, above: Option<Number>) -> Outcome<()> {
        if at.path.path.len() > MAX_DEPTH {
            let error = format!("{} is nested too deeply", at.shown());
            return Err(Failure::new(Kind::Malformed, error));
        }
        self.last += 1;
        self.doomed.insert(
            self.last,
            Doomed {
                id,
                at,
                above,
                left: 0,
                next: None,
                refused: None,
            },
        );
        self.steps.push(Step::List(self.last, None));
        Ok(())
    }

    fn start(&self, step: Step) -> Option<impl Future<Output = Outcome<Became>> + use<'a>> {
        let (Step::List(number, _) | Step::Unlink(number, _) | Step::Rmdir(number)) = &step;
        let Doomed { id, at, .. } = self.doomed.get(number)?;
        let (shared, id, number) = (self.shared, *id, *number);
        let at = match &step {
            Step::Unlink(_, name) => at.inside(id, name),
            _ => at.clone(),
        };
        Some(async move {
            match step {
                Step::List(_, after) => {
                    let page = shared.names_in(id, &at.path, after, false).await?;
                    Ok(Became::Listed(number, page))
                }
                Step::Unlink(..) => {
                    unlink(shared, &at).await?;
                    Ok(Became::Unlinked(number))
                }
                Step::Rmdir(_) => {
                    let place = at.name.clone();
                    let call = Call::Rmdir { place };
                    let done = shared.change(call, &|| at.shown()).await;
                    match done.map_err(Failure::from) {
                        Err(why) if why.kind == Kind::Misfit => Ok(Became::Refused(number, why)),
                        done => done.map(|()| Became::Gone(number)),
                    }
                }
            }
        })
    }

    fn take(&mut self, became: Became) -> Outcome<()> {
        match became {
            Became::Listed(number, page) => self.listed(number, page)?,
            Became::Unlinked(number) => {
                self.removed.files += 1;
                self.without_one(number);
            }
            Became::Gone(number) => {
                self.removed.directories += 1;
                let above = self.doomed.remove(&number).and_then(|doomed| doomed.above);
                above.into_iter().for_each(|above| self.without_one(above));
            }
            Became::Refused(number, why) => {
                let Some(doomed) = self.doomed.get_mut(&number) else {
                    return Ok(());
                };
                if doomed.refused.is_some() {
                    return Err(why);
                }
                // Somebody has made a name there meanwhile.
                doomed.refused = Some(why);
                self.steps.push(Step::List(number, None));
            }
        }
        Ok(())
    }

    fn listed(&mut self, number: Number, page: Names) -> Outcome<()> {
        let Some(doomed) = self.doomed.get_mut(&number) else {
            return Ok(());
        };
        doomed.next = page.next;
        doomed.left = page.names.len();
        if page.names.is_empty() {
            let step = doomed.next_step(number);
            self.steps.push(step);
            return Ok(());
        }
        doomed.refused = None;
        let (id, at) = (doomed.id, doomed.at.clone());
        let is_directory = |listed: &Listed| listed.target.kind == FileKind::Directory;
        let (directories, others): (Vec<Listed>, Vec<Listed>) =
            page.names.into_iter().partition(is_directory);
        for listed in directories.into_iter().rev() {
            let at = at.inside(id, &listed.name);
            self.begin(listed.target.file, at, Some(number))?;
        }
        let unlink = |listed: Listed| Step::Unlink(number, listed.name);
        self.steps.extend(others.into_iter().rev().map(unlink));
        Ok(())
    }

    /// One name fewer is in a directory.
    fn without_one(&mut self, number: Number) {
        let Some(doomed) = self.doomed.get_mut(&number) else {
            return;
        };
        doomed.left = doomed.left.saturating_sub(1);
        if doomed.left > 0 {
            return;
        }
        let step = doomed.next_step(number);
        self.steps.push(step);
    }
}

impl Doomed {
    /// The step when all names of the last page are gone.
    fn next_step(&mut self, number: Number) -> Step {
        match self.next.take() {
            Some(after) => Step::List(number, Some(after)),
            None => Step::Rmdir(number),
        }
    }
}
