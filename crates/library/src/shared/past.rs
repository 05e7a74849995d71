//! A shared volume as it was, and its log.

use share::files::{
    Answer, Call, Changed, File, FileRef, History, MAX_LISTED, MAX_LISTED_INODES, MAX_LOGGED,
    Place, Refused,
};
use trust_shared::principal::{FileId, Name};

use super::{Names, SharedVolume, places};
use crate::error::Error;

/// The call about the end of a prefix of the log of this size. None: the newest.
fn at(size: Option<u64>, call: Call) -> Call {
    match size {
        Some(size) => Call::At {
            size,
            call: Box::new(call),
        },
        None => call,
    }
}

impl SharedVolume {
    /// A page of the log: the newest entries, or those before an earlier page.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn history(&self, before: Option<u64>) -> Result<History, Error> {
        let call = Call::History {
            before,
            most: MAX_LOGGED,
        };
        let answered = self.client().look(call, self.until()).await?;
        self.is_here()?;
        match answered.answer {
            Answer::History(page) => Ok(page),
            Answer::Refused(why) => Err(Error::refused("the log".to_owned(), why)),
            _ => Err(Error::Defect),
        }
    }

    /// The file at a place after a prefix of the log, if there is one. Size None: the whole log.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn look_at(
        &self,
        size: Option<u64>,
        place: &Place,
        follow: bool,
    ) -> Result<Option<File>, Error> {
        let call = Call::Lookup {
            place: place.clone(),
            follow,
        };
        match self.call(at(size, call)).await? {
            Answer::Found(file) => Ok(Some(file)),
            Answer::Refused(Refused::NotFound) => Ok(None),
            Answer::Refused(why) => Err(Error::refused(places::shown(place), why)),
            _ => Err(Error::Defect),
        }
    }

    /// The file at a place after a prefix of the log.
    ///
    /// # Errors
    /// [`Error::NotFound`] besides.
    pub async fn find_at(
        &self,
        size: Option<u64>,
        place: &Place,
        follow: bool,
    ) -> Result<File, Error> {
        let found = self.look_at(size, place, follow).await?;
        found.ok_or_else(|| Error::not_found(&places::path_of(place)))
    }

    /// The file at a place after an entry, if there was one. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn look_back(&self, entry: u64, place: &Place) -> Result<Option<File>, Error> {
        let size = Some(entry.saturating_add(1));
        match self.look_at(size, place, false).await {
            // A directory above it was something else.
            Err(Error::Refused {
                why: Refused::NotADirectory | Refused::Stale,
                ..
            }) => Ok(None),
            found => found,
        }
    }

    /// The entry that changed a name or its file last, as far as this device has seen the log. None: it is not known.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn changed(&self, place: &Place) -> Result<Option<Changed>, Error> {
        let call = Call::Changed {
            place: place.clone(),
        };
        match self.client().look(call, self.until()).await?.answer {
            Answer::Changed(changed) => Ok(changed),
            Answer::Refused(_) => Ok(None),
            _ => Err(Error::Defect),
        }
    }

    /// A page of a directory's names, those after `after`.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn list(
        &self,
        place: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Result<Names, Error> {
        self.list_at(None, place, after, inodes).await
    }

    /// The same after a prefix of the log of this size. None: the whole log.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn list_at(
        &self,
        size: Option<u64>,
        place: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Result<Names, Error> {
        let directory = FileRef::Place(place.clone());
        self.page(size, directory, place, after, inodes).await
    }

    /// A page of the names of this directory, those after `after`, whatever its own names lead to. `about` names it, for
    /// errors.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn names_in(
        &self,
        directory: FileId,
        about: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Result<Names, Error> {
        let directory = FileRef::File(directory);
        self.page(None, directory, about, after, inodes).await
    }

    pub(crate) async fn page(
        &self,
        size: Option<u64>,
        directory: FileRef,
        about: &Place,
        after: Option<Name>,
        inodes: bool,
    ) -> Result<Names, Error> {
        let call = Call::List {
            directory,
            after,
            most: match inodes {
                true => MAX_LISTED_INODES,
                false => MAX_LISTED,
            },
            inodes,
        };
        match self.call(at(size, call)).await? {
            Answer::Listed { names, next, .. } => Ok(Names { names, next }),
            Answer::Refused(why) => Err(Error::refused(places::shown(about), why)),
            _ => Err(Error::Defect),
        }
    }
}
