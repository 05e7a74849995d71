//! A shared volume as it was, and its log.

use ::share::files::{
    Answer, Call, Changed, File, FileRef, History, Listed, MAX_LISTED, MAX_LISTED_INODES,
    MAX_LOGGED, Place, Refused,
};
use trust_shared::principal::Name;

use super::places;
use super::session::{Page, SharedVolume, defect, refused};
use crate::failure::Outcome;

/// The size of the prefix of the log that ends with an entry.
pub fn prefix(entry: u64) -> u64 {
    entry.saturating_add(1)
}

impl SharedVolume {
    /// From now on files are those after this entry, for the commands that read.
    pub fn at(mut self, entry: Option<u64>) -> SharedVolume {
        self.past = entry.map(prefix);
        self
    }

    /// The call about the state that the command asks for.
    pub(super) fn in_time(&self, call: Call) -> Call {
        match (self.past, &call) {
            (Some(size), Call::Lookup { .. } | Call::List { .. }) => Call::At {
                size,
                call: Box::new(call),
            },
            _ => call,
        }
    }

    /// A page of the log: the newest entries, or those before an earlier page.
    pub async fn history(&self, before: Option<u64>) -> Outcome<History> {
        let call = Call::History {
            before,
            most: MAX_LOGGED,
        };
        let answered = self.client().look(call, self.until()).await?;
        self.is_here()?;
        match answered.answer {
            Answer::History(page) => Ok(page),
            Answer::Refused(why) => Err(refused(&why, "the log")),
            _ => Err(defect()),
        }
    }

    /// The file at a place after an entry, if there was one. A symbolic link at the end is not followed.
    pub async fn look_back(&self, entry: u64, place: &Place) -> Outcome<Option<File>> {
        let lookup = Call::Lookup {
            place: place.clone(),
            follow: false,
        };
        let call = Call::At {
            size: prefix(entry),
            call: Box::new(lookup),
        };
        match self.call(call).await? {
            Answer::Found(file) => Ok(Some(file)),
            // A directory above it was not there, or was something else.
            Answer::Refused(Refused::NotFound | Refused::NotADirectory | Refused::Stale) => {
                Ok(None)
            }
            Answer::Refused(why) => Err(refused(&why, &places::shown(place))),
            _ => Err(defect()),
        }
    }

    /// The entry that changed a name or its file last, as far as this device has seen the log. None: it is not known.
    pub async fn changed(&self, place: &Place) -> Outcome<Option<Changed>> {
        let call = Call::Changed {
            place: place.clone(),
        };
        match self.client().look(call, self.until()).await?.answer {
            Answer::Changed(changed) => Ok(changed),
            Answer::Refused(_) => Ok(None),
            _ => Err(defect()),
        }
    }

    /// A page of a directory after a prefix of the log of this size. None: the end of the log.
    pub async fn list_at(
        &self,
        size: Option<u64>,
        place: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Outcome<Page> {
        let list = Call::List {
            directory: FileRef::Place(place.clone()),
            after,
            most: match inodes {
                true => MAX_LISTED_INODES,
                false => MAX_LISTED,
            },
            inodes,
        };
        let call = match size {
            Some(size) => Call::At {
                size,
                call: Box::new(list),
            },
            None => list,
        };
        match self.call(call).await? {
            Answer::Listed { names, next, .. } => Ok(Page { names, next }),
            Answer::Refused(why) => Err(refused(&why, &places::shown(place))),
            _ => Err(defect()),
        }
    }
}

/// The names of a directory after a prefix of the log, one after the other. Keeps one page of them in memory.
pub struct Names<'a> {
    shared: &'a SharedVolume,
    size: Option<u64>,
    place: Place,
    after: Option<Name>,
    page: std::iter::Peekable<std::vec::IntoIter<Listed>>,
    more: bool,
}

impl<'a> Names<'a> {
    /// The names of the directory at a place.
    pub fn of(shared: &'a SharedVolume, size: Option<u64>, place: Place) -> Names<'a> {
        Names {
            shared,
            size,
            place,
            after: None,
            page: Vec::new().into_iter().peekable(),
            more: true,
        }
    }

    /// The next name. It stays the next one.
    pub async fn peek(&mut self) -> Outcome<Option<&Listed>> {
        while self.page.peek().is_none() && self.more {
            let page = self
                .shared
                .list_at(self.size, &self.place, self.after.take(), true);
            let page = page.await?;
            self.more = page.next.is_some();
            self.after = page.next;
            self.page = page.names.into_iter().peekable();
        }
        Ok(self.page.peek())
    }

    /// Takes the name that was looked at.
    pub fn take(&mut self) -> Option<Listed> {
        self.page.next()
    }
}
