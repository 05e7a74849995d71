//! `bulla diff VOLUME ENTRY [ENTRY]` on a shared volume: how it differs after one entry and after another, or now.
//!
//! It walks through both states, directory by directory, with one page of names of each in memory for each level.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::sync::Arc;

use ::share::files::{Listed, Place};
use ::share::home::Home;
use serde_json::json;
use trust::change::{Change, Difference, alike, path};
use trust::inode::FileKind;
use trust_shared::principal::Name;

use crate::args::{Diff, entry};
use crate::changes;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::past::{Names, prefix};
use crate::sharing::places::{below, path_of, shown};
use crate::sharing::reading::Opening;
use crate::sharing::session::SharedVolume;

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// Prints the differences.
pub fn run(args: &Diff, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let Some(old) = &args.old else {
        let error = "name the entry after which the volume is compared";
        let hint = "`bulla log VOLUME` shows the numbers; `bulla diff VOLUME N` compares the volume after entry N with now";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    };
    let (old, new) = (entry(old)?, args.new.as_ref().map(entry).transpose()?);
    let volume = home.volume().to_string();
    let opening = Opening::of(config, home, &args.reading);
    let [added, changed, removed] = opening.read(output, async |shared, output| {
        let mut comparing = Comparing {
            shared,
            sizes: [Some(prefix(old)), new.map(prefix)],
            counts: [0; 3],
            levels: Vec::new(),
            output,
        };
        comparing.all().await?;
        Ok(comparing.counts)
    })?;
    Ok(Done::ok(fields(json!({
        "volume": volume,
        "old": old,
        "new": new,
        "added": added,
        "changed": changed,
        "removed": removed,
    }))))
}

/// A directory in both states, or in one.
struct Level<'a> {
    place: Place,
    old: Option<Names<'a>>,
    new: Option<Names<'a>>,
}

struct Comparing<'a, 'o> {
    shared: &'a SharedVolume,
    sizes: [Option<u64>; 2],
    counts: [u64; 3],
    levels: Vec<Level<'a>>,
    output: &'o mut Output,
}

impl Comparing<'_, '_> {
    async fn all(&mut self) -> Outcome<()> {
        let top = self.shared.place(OsStr::new(""))?;
        self.enter(top, true, true)?;
        while let Some(level) = self.levels.last_mut() {
            let (before, after) = level.next().await?;
            match (before, after) {
                (None, None) => drop(self.levels.pop()),
                (before, after) => {
                    let place = self.levels.last().map(|level| level.place.clone());
                    if let Some(place) = place {
                        self.compare(&place, before, after)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, place: Place, old: bool, new: bool) -> Outcome<()> {
        if self.levels.len() >= MAX_DEPTH {
            let error = format!("{} is nested too deeply", shown(&place));
            return Err(Failure::new(Kind::Malformed, error));
        }
        let names = |is_there: bool, size: Option<u64>| {
            is_there.then(|| Names::of(self.shared, size, place.clone()))
        };
        let [old_size, new_size] = self.sizes;
        let (old, new) = (names(old, old_size), names(new, new_size));
        self.levels.push(Level { place, old, new });
        Ok(())
    }

    /// Compares what one name leads to. Files that this user may not read are left out.
    fn compare(
        &mut self,
        directory: &Place,
        before: Option<Listed>,
        after: Option<Listed>,
    ) -> Outcome<()> {
        let name = match (&before, &after) {
            (Some(listed), _) | (None, Some(listed)) => listed.name.clone(),
            (None, None) => return Ok(()),
        };
        let inode = |listed: Option<Listed>| listed.and_then(|it| it.file).map(|it| it.inode);
        let (before, after) = (inode(before), inode(after));
        let is_directory = |inode: &Option<Arc<_>>| {
            let kind = inode.as_deref().map(trust::inode::Inode::kind);
            kind == Some(FileKind::Directory)
        };
        let (old_is, new_is) = (is_directory(&before), is_directory(&after));
        let difference = match (&before, &after) {
            (None, None) => return Ok(()),
            (None, Some(_)) => Some(Difference::Added),
            (Some(_), None) => Some(Difference::Removed),
            (Some(before), Some(after)) => (!alike(before, after)).then_some(Difference::Changed),
        };
        let place = below(directory, &name);
        if let Some(difference) = difference {
            let change = Change {
                path: path(&path_of(&place)),
                difference,
                is_directory: if after.is_some() { new_is } else { old_is },
            };
            changes::tell(&change, &mut self.counts, self.output)?;
        }
        // As of published volumes: what is below a removed directory is not listed.
        if new_is {
            self.enter(place, old_is, true)?;
        }
        Ok(())
    }
}

impl Level<'_> {
    /// The next name, in one state or in both.
    async fn next(&mut self) -> Outcome<(Option<Listed>, Option<Listed>)> {
        let name = |listed: Option<&Listed>| listed.map(|listed| listed.name.clone());
        let old: Option<Name> = match &mut self.old {
            Some(names) => name(names.peek().await?),
            None => None,
        };
        let new: Option<Name> = match &mut self.new {
            Some(names) => name(names.peek().await?),
            None => None,
        };
        let order = match (&old, &new) {
            (Some(old), Some(new)) => old.cmp(new),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return Ok((None, None)),
        };
        let take = |names: &mut Option<Names<'_>>, wanted: bool| {
            names.as_mut().filter(|_| wanted).and_then(Names::take)
        };
        let before = take(&mut self.old, order != Ordering::Greater);
        let after = take(&mut self.new, order != Ordering::Less);
        Ok((before, after))
    }
}
