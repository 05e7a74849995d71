//! All homes of this machine, also those that cannot be read: a damaged one must not keep its user from the others.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use trust::volume_id::VolumeId;

use super::{Home, HomeError, MAX_HOMES, SHARED, damaged, read_about};

/// The homes, by their local names.
pub(super) struct Homes {
    pub(super) whole: Vec<Home>,
    pub(super) damaged: Vec<Damaged>,
}

/// A home that cannot be read.
pub(super) struct Damaged {
    volume: VolumeId,
    /// Its local name, if that can be read.
    name: Option<String>,
    why: HomeError,
}

impl Damaged {
    /// Tells the user that it is left out.
    pub(super) fn warn(&self) {
        let (volume, why) = (self.volume, &self.why);
        let name = self.name.as_deref().unwrap_or("?");
        tracing::warn!(%volume, name, %why, "a shared volume of this machine cannot be used");
    }
}

impl Homes {
    /// Reads all.
    pub(super) fn of(state_directory: &Path) -> Result<Homes, HomeError> {
        let all = state_directory.join(SHARED);
        let mut homes = Homes {
            whole: Vec::new(),
            damaged: Vec::new(),
        };
        let entries = match fs::read_dir(&all) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(homes),
            Err(e) => return Err(damaged(&all, e)),
        };
        for entry in entries.take(MAX_HOMES) {
            let entry = entry.map_err(|e| damaged(&all, e))?;
            let name = entry.file_name();
            // Others are homes that were never finished.
            let Some(volume) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match Home::open(state_directory, volume) {
                Ok(home) => homes.whole.extend(home),
                Err(why) => homes.damaged.push(Damaged {
                    volume,
                    name: read_about(&entry.path()).ok().map(|about| about.name),
                    why,
                }),
            }
        }
        homes.whole.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(homes)
    }

    /// The home with a name. Warns of the homes that may be meant and cannot be read.
    pub(super) fn named(self, name: &str) -> Result<Option<Home>, HomeError> {
        let mut named = self.whole.into_iter().filter(|home| home.name() == name);
        let found = named.next();
        if let Some(home) = found.as_ref().and(named.next()) {
            let (name, volume) = (name.to_owned(), home.volume());
            return Err(HomeError::Ambiguous { name, volume });
        }
        for damaged in self.damaged {
            match &damaged.name {
                Some(known) if known == name && found.is_none() => return Err(damaged.why),
                _ => damaged.warn(),
            }
        }
        Ok(found)
    }

    /// Refuses a name that another volume than this one has.
    pub(super) fn is_free(&self, name: &str, volume: VolumeId) -> Result<(), HomeError> {
        let whole = self.whole.iter().map(|home| (home.name(), home.volume()));
        let damaged = self.damaged.iter();
        let damaged = damaged.filter_map(|it| Some((it.name.as_deref()?, it.volume)));
        let mut others = whole.chain(damaged);
        let taken = others.find(|(known, other)| *known == name && *other != volume);
        match taken {
            None => Ok(()),
            Some((_, volume)) => Err(HomeError::NameTaken {
                name: name.to_owned(),
                volume,
            }),
        }
    }
}
