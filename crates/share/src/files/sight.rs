//! The values that a call reads, at one position of the log, with the reader's permission. Notes what an answer
//! rests on. Relies on [`trust_shared::effect::Replay`].

use std::collections::BTreeSet;
use std::sync::Arc;

use trust::tree::inode::{FileKind, Inode, Time};
use trust_shared::calls::{Held, Turn};
use trust_shared::effect::replay::{Names, Sources};
use trust_shared::effect::{About, Lock, Missing, Replay, Stop, Volume};
use trust_shared::fold::Changes;
use trust_shared::hold::{Family, Hold};
use trust_shared::itable::Fold;
use trust_shared::key::Key;
use trust_shared::members::Members;
use trust_shared::principal::{Device, FileId, Name, Principal, Target};

use super::answer::Refused;
use super::shelf::Shelf;

/// Why a call comes to nothing yet.
pub(super) enum Halt {
    /// Fetch this first.
    Missing(Missing),
    /// The call is refused.
    Refused(Refused),
    /// Another device has the lock of the file and renewed it last at this position.
    Locked(FileId, Lock),
}

impl From<Refused> for Halt {
    fn from(why: Refused) -> Halt {
        Halt::Refused(why)
    }
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Halt {
        match stop {
            Stop::Missing(missing) => Halt::Missing(missing),
            Stop::Refused(why) => Halt::Refused(why.into()),
            Stop::NoPosition => Halt::Refused(Refused::Stale),
            Stop::Full => Halt::Refused(Refused::Full),
        }
    }
}

/// The values before a position, for one device.
pub(super) struct Sight<'a> {
    pub replay: &'a mut Replay,
    pub volume: &'a Volume,
    pub members: &'a Arc<Members>,
    pub shelf: &'a Shelf,
    /// The position.
    pub at: u64,
    /// The position whose members decide about permission.
    pub members_at: u64,
    /// Who reads.
    pub device: Device,
    /// When the call was made.
    pub time: Time,
    /// What has been read.
    pub about: Vec<About>,
}

impl<'a> Sight<'a> {
    pub(super) fn sources(&self) -> Sources<'a, Shelf> {
        Sources {
            members: self.members,
            stored: self.shelf,
        }
    }

    fn may_read(&self, owner: Principal) -> Result<(), Halt> {
        match self.members.may_read(self.device, owner, self.members_at) {
            true => Ok(()),
            false => Err(Refused::NotPermitted.into()),
        }
    }

    /// Whether the reader may write a principal's files.
    pub fn may_write(&self, owner: Principal) -> bool {
        self.members.may_write(self.device, owner, self.members_at)
    }

    /// The inode of a file as programs see it: a directory's with its times, and without its entries. The answer does not
    /// rest on the times: who made the last name in a directory and is silent would hold up all paths through it.
    pub fn shown(&mut self, file: &FileId) -> Result<Option<Arc<Inode>>, Halt> {
        let inode = self.inode(file)?;
        if !inode.is_some_and(|inode| inode.kind() == FileKind::Directory) {
            return Ok(self.replay.inode(self.at, file, self.sources())?);
        }
        Ok(self.replay.shown(self.at, file, self.sources())?)
    }

    /// The inode of a file, a directory's without its entries and times.
    pub fn inode(&mut self, file: &FileId) -> Result<Option<Arc<Inode>>, Halt> {
        self.may_read(file.principal)?;
        self.about.push(About::Key(Key::Inode(*file)));
        Ok(self.replay.inode(self.at, file, self.sources())?)
    }

    /// Where a name leads.
    pub fn entry(&mut self, directory: &FileId, name: &Name) -> Result<Option<Target>, Halt> {
        self.may_read(directory.principal)?;
        let key = Key::Entry(*directory, name.clone());
        self.about.push(About::Key(key));
        let sources = self.sources();
        Ok(self.replay.entry(self.at, directory, name, sources)?)
    }

    /// The lock of a file.
    pub fn lock(&mut self, file: &FileId) -> Result<Option<Lock>, Halt> {
        self.about.push(About::Key(Key::Lock(*file)));
        Ok(self.replay.lock(self.at, file, self.sources())?)
    }

    /// What a device holds of a file. That of all devices has been noted ([`Sight::holders`]).
    pub fn hold(&mut self, of: (&FileId, Family), device: Device) -> Result<Option<Hold>, Halt> {
        let of = (of.0, of.1, device);
        Ok(self.replay.hold(self.at, of, self.sources())?)
    }

    /// The devices that may hold something of a file.
    pub fn holders(&mut self, (file, family): (&FileId, Family)) -> BTreeSet<Device> {
        self.about.push(About::Holds(*file, family));
        self.replay.holders(file, family)
    }

    /// Names of a directory.
    pub fn list(
        &mut self,
        directory: &FileId,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Names, Halt> {
        self.may_read(directory.principal)?;
        self.about.push(About::Entries(*directory));
        let sources = self.sources();
        Ok(self.replay.list(self.at, directory, after, most, sources)?)
    }

    /// Number of names of a directory.
    pub fn entries(&mut self, directory: &FileId) -> Result<u64, Halt> {
        self.may_read(directory.principal)?;
        self.about.push(About::Entries(*directory));
        let sources = self.sources();
        Ok(self.replay.entries(self.at, directory, sources)?)
    }

    /// The last fold of a principal.
    pub fn last_fold(&mut self, principal: Principal) -> Result<Option<Fold>, Halt> {
        self.about.push(About::Key(Key::Fold(principal)));
        let sources = self.sources();
        Ok(self.replay.last_fold(self.at, principal, sources)?)
    }

    /// What a fold at an earlier position puts into a principal's i-table.
    pub fn changes(&mut self, upto: u64, principal: Principal) -> Result<Arc<Changes>, Halt> {
        let sources = self.sources();
        Ok(self.replay.changes(upto, principal, sources)?)
    }

    /// A file that the call changes, if it is this device's turn.
    pub fn held(&mut self, file: FileId) -> Result<Held, Halt> {
        let (inode, lock) = (self.inode(&file)?, self.lock(&file)?);
        let inode = inode.ok_or(Refused::Stale)?;
        let turn = match lock {
            None => Turn::Free,
            Some(lock) if lock.holder == self.device => Turn::Mine,
            Some(lock) => return Err(Halt::Locked(file, lock)),
        };
        Ok(Held { file, inode, turn })
    }
}
