//! The op of each system call: which guards it carries and what it changes. Relies on [`super::ops`].
//!
//! A call is built on values that its device has seen. The guards say so. When another device was first, the op has
//! no effect, and the call is built again on the values at the op's position. Then an error of building is the call's
//! answer. So is the op's error if the same op comes out. Another op is sent.
//!
//! [`Calls::create`] makes files of all kinds: its inode decides between create, mkdir, symlink and mknod.

use std::sync::Arc;

use super::change::Change;
use super::decision::Decision;
use super::effect::{Lock, Volume};
use super::guard::Guard;
use super::hold::{Family, Hold, Ranges};
use super::itable::{Fold, attributes};
use super::ops::Op;
use super::outcome::NoEffect;
use super::principal::{Device, FileId, Name, Principal, Target};
use trust::tree::inode::{Content, FileKind, Inode, Time};

/// A link of a path: the directory and its name in the directory above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathLink {
    /// The directory.
    pub directory: FileId,
    /// The directory above.
    pub parent: FileId,
    /// Its name there.
    pub name: Name,
}

/// A directory and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// The directory.
    pub id: FileId,
    /// The links from it up to the root; none for the root.
    pub path: Vec<PathLink>,
}

impl Directory {
    /// Whether the path goes through a directory, or ends there.
    pub fn lies_below(&self, directory: &FileId) -> bool {
        self.id == *directory || self.path.iter().any(|link| link.directory == *directory)
    }
}

/// A name in a directory, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The directory.
    pub directory: Directory,
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub found: Option<Target>,
}

/// Whose turn it is to change a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nobody has its lock.
    Free,
    /// The caller's device has its lock.
    Mine,
}

/// A file that the caller may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The file.
    pub file: FileId,
    /// Its inode as the caller has seen it.
    pub inode: Arc<Inode>,
    /// Whether the caller has its lock.
    pub turn: Turn,
}

/// What happens to the file that the new name of a rename leads to.
#[derive(Debug, Clone, Copy)]
pub enum Replaced<'a> {
    /// The rename fails if there is one.
    Refused,
    /// The name is lost, and the file with its last name.
    Dropped(&'a Held),
    /// The name is lost. The file stays in the i-table of its owner, whose files the caller cannot write.
    Left,
}

/// Builds ops for one volume.
#[derive(Debug, Clone, Copy)]
pub struct Calls<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// When the program called, by the clock of its device. The same each time that the call is built.
    pub time: Time,
}

impl Calls<'_> {
    /// create, mkdir, symlink, mknod: a new file under a new name. Its number is a new one of the caller's device.
    ///
    /// # Errors
    /// [`NoEffect::Exists`] when the name exists.
    pub fn create(&self, spot: &Spot, file: FileId, inode: Inode) -> Result<Op, NoEffect> {
        if spot.found.is_some() {
            return Err(NoEffect::Exists);
        }
        let mut guards = vec![entry_is(spot), Guard::HashIs { file, is: None }];
        guards.extend(linked(&spot.directory));
        Ok(Op::new(guards, self.made(spot, file, inode)))
    }

    /// The changes of a new file under a name. The times of a directory are no part of its inode.
    fn made(&self, spot: &Spot, file: FileId, mut inode: Inode) -> Vec<Change> {
        let kind = inode.kind();
        let mut changes = vec![link(spot, Target { file, kind }), self.touch(spot)];
        if kind == FileKind::Directory {
            changes.push(Change::Touch {
                directory: file,
                mtime: inode.mtime,
                ctime: self.time,
            });
            inode = attributes(inode);
        } else {
            inode.ctime = Some(self.time);
        }
        let inode = Arc::new(inode);
        changes.push(Change::Set { file, inode });
        changes
    }

    /// A name of the directory changes.
    fn touch(&self, spot: &Spot) -> Change {
        Change::Touch {
            directory: spot.directory.id,
            mtime: self.time,
            ctime: self.time,
        }
    }

    /// Names of both directories change, which may be one.
    fn touches(&self, one: &Spot, other: &Spot) -> impl Iterator<Item = Change> + use<> {
        let second = (one.directory.id != other.directory.id).then(|| self.touch(other));
        [self.touch(one)].into_iter().chain(second)
    }

    fn ctime(&self, before: Option<Time>) -> Option<Time> {
        Some(ctime_after(before, self.time))
    }

    /// As [`Calls::create`], over a file that the name leads to: that file loses the name, like the one that a rename
    /// replaces.
    ///
    /// # Errors
    /// [`NoEffect::IsADirectory`] when the name leads to a directory; [`NoEffect::Exists`] for a new directory, and
    /// when the caller refuses to replace a file.
    pub fn create_over(
        &self,
        spot: &Spot,
        file: FileId,
        inode: Inode,
        replaced: Replaced<'_>,
    ) -> Result<Op, NoEffect> {
        let Some(over) = spot.found else {
            return self.create(spot, file, inode);
        };
        let kind = inode.kind();
        if kind == FileKind::Directory || matches!(replaced, Replaced::Refused) {
            return Err(NoEffect::Exists);
        }
        if over.kind == FileKind::Directory {
            return Err(NoEffect::IsADirectory);
        }
        let mut guards = vec![entry_is(spot), Guard::HashIs { file, is: None }];
        guards.extend(linked(&spot.directory));
        let mut changes = self.made(spot, file, inode);
        self.replace(false, over, replaced, &mut guards, &mut changes)?;
        Ok(Op::new(guards, changes))
    }

    /// link: one more name for a file.
    ///
    /// # Errors
    /// [`NoEffect::Exists`] when the name exists; [`NoEffect::IsADirectory`] for a directory, which has one name.
    pub fn link(&self, spot: &Spot, held: &Held) -> Result<Op, NoEffect> {
        let kind = held.inode.kind();
        if spot.found.is_some() {
            return Err(NoEffect::Exists);
        }
        if kind == FileKind::Directory {
            return Err(NoEffect::IsADirectory);
        }
        let mut inode = Inode::clone(&held.inode);
        inode.links = inode.links.checked_add(1).ok_or(NoEffect::TooMany)?;
        inode.ctime = self.ctime(inode.ctime);
        let mut guards = vec![entry_is(spot)];
        guards.extend(self.unchanged(held));
        guards.extend(linked(&spot.directory));
        let (file, inode) = (held.file, Arc::new(inode));
        let changes = vec![
            Change::Set { file, inode },
            link(spot, Target { file, kind }),
            self.touch(spot),
        ];
        Ok(Op::new(guards, changes))
    }

    /// unlink. `held` is the file; none when the caller cannot write the files of its owner. Then it stays in the
    /// owner's i-table, with its count of links.
    ///
    /// # Errors
    /// [`NoEffect::NotFound`] when the name does not exist; [`NoEffect::IsADirectory`] for a directory.
    pub fn unlink(&self, spot: &Spot, held: Option<&Held>) -> Result<Op, NoEffect> {
        match spot.found {
            None => return Err(NoEffect::NotFound),
            Some(target) if target.kind == FileKind::Directory => {
                return Err(NoEffect::IsADirectory);
            }
            Some(_) => {}
        }
        let mut guards = vec![entry_is(spot)];
        let mut changes = vec![unlink(spot), self.touch(spot)];
        if let Some(held) = held {
            guards.extend(self.unchanged(held));
            changes.push(self.without_name(held));
        }
        Ok(Op::new(guards, changes))
    }

    /// rmdir. `removes`: the caller can write the files of the directory's owner.
    ///
    /// # Errors
    /// [`NoEffect::NotFound`] when the name does not exist; [`NoEffect::NotADirectory`] for another file.
    pub fn rmdir(&self, spot: &Spot, removes: bool) -> Result<Op, NoEffect> {
        let target = spot.found.ok_or(NoEffect::NotFound)?;
        if target.kind != FileKind::Directory {
            return Err(NoEffect::NotADirectory);
        }
        let directory = target.file;
        let guards = vec![entry_is(spot), Guard::Empty { directory }];
        let mut changes = vec![unlink(spot), self.touch(spot)];
        if removes {
            changes.push(Change::Remove { file: directory });
        }
        Ok(Op::new(guards, changes))
    }

    /// rename, also over another file, and RENAME_NOREPLACE. None: both names lead to the same file, and nothing
    /// happens.
    ///
    /// # Errors
    /// [`NoEffect::NotFound`], [`NoEffect::Exists`], [`NoEffect::IsADirectory`], [`NoEffect::NotADirectory`],
    /// [`NoEffect::NotEmpty`] and [`NoEffect::BelowItself`] as in POSIX.
    pub fn rename(
        &self,
        from: &Spot,
        to: &Spot,
        replaced: Replaced<'_>,
    ) -> Result<Option<Op>, NoEffect> {
        let moved = from.found.ok_or(NoEffect::NotFound)?;
        let refuses = matches!(replaced, Replaced::Refused);
        if refuses && to.found.is_some() {
            return Err(NoEffect::Exists);
        }
        let moves_directory = moved.kind == FileKind::Directory;
        if moves_directory && to.directory.lies_below(&moved.file) {
            return Err(NoEffect::BelowItself);
        }
        let mut guards = vec![entry_is(from), entry_is(to)];
        let mut changes = vec![unlink(from), link(to, moved)];
        changes.extend(self.touches(from, to));
        if let Some(over) = to.found {
            if over.file == moved.file {
                return Ok(None);
            }
            if moves_directory && from.directory.lies_below(&over.file) {
                return Err(NoEffect::NotEmpty);
            }
            self.replace(moves_directory, over, replaced, &mut guards, &mut changes)?;
        }
        guards.extend(path(from, to, moves_directory));
        Ok(Some(Op::new(guards, changes)))
    }

    fn replace(
        &self,
        moves_directory: bool,
        over: Target,
        replaced: Replaced<'_>,
        guards: &mut Vec<Guard>,
        changes: &mut Vec<Change>,
    ) -> Result<(), NoEffect> {
        match (moves_directory, over.kind == FileKind::Directory) {
            (false, true) => return Err(NoEffect::IsADirectory),
            (true, false) => return Err(NoEffect::NotADirectory),
            (true, true) => {
                guards.push(Guard::Empty {
                    directory: over.file,
                });
                if let Replaced::Dropped(_) = replaced {
                    changes.push(Change::Remove { file: over.file });
                }
            }
            (false, false) => {
                if let Replaced::Dropped(held) = replaced {
                    guards.extend(self.unchanged(held));
                    changes.push(self.without_name(held));
                }
            }
        }
        Ok(())
    }

    /// RENAME_EXCHANGE: two names change places. None: they lead to the same file.
    ///
    /// # Errors
    /// [`NoEffect::NotFound`] when one does not exist; [`NoEffect::BelowItself`] when one is a directory and the
    /// other lies below it.
    pub fn exchange(&self, one: &Spot, other: &Spot) -> Result<Option<Op>, NoEffect> {
        let first = one.found.ok_or(NoEffect::NotFound)?;
        let second = other.found.ok_or(NoEffect::NotFound)?;
        if first.file == second.file {
            return Ok(None);
        }
        let is_directory = |target: Target| target.kind == FileKind::Directory;
        let below = |directory: &Directory, target: Target| {
            is_directory(target) && directory.lies_below(&target.file)
        };
        if below(&other.directory, first) || below(&one.directory, second) {
            return Err(NoEffect::BelowItself);
        }
        let mut guards = vec![entry_is(one), entry_is(other)];
        guards.extend(path(one, other, is_directory(first)));
        for guard in path(other, one, is_directory(second)) {
            if !guards.contains(&guard) {
                guards.push(guard);
            }
        }
        let mut changes = vec![link(one, second), link(other, first)];
        changes.extend(self.touches(one, other));
        Ok(Some(Op::new(guards, changes)))
    }

    /// chmod, chown, utimes, setxattr: the inode with other attributes and the same content. `mtime`: the time that
    /// utimes sets. Of a directory that is a change of its own, which meets no change of attributes or names.
    pub fn set_attributes(&self, held: &Held, mut inode: Inode, mtime: Option<Time>) -> Op {
        inode.content = held.inode.content.clone();
        inode.size = held.inode.size;
        if held.inode.kind() != FileKind::Directory {
            inode.mtime = mtime.unwrap_or(inode.mtime);
            return self.set(held, inode);
        }
        let touch = mtime.map(|mtime| Change::Touch {
            directory: held.file,
            mtime,
            ctime: self.time,
        });
        if touch.is_some() && inode == *held.inode {
            return Op::new(Vec::new(), touch.into_iter().collect());
        }
        let mut op = self.set(held, inode);
        op.changes.extend(touch);
        Op::new(op.guards, op.changes)
    }

    /// write, append, truncate: the inode with other content, made of the content that the caller has seen.
    pub fn write(&self, held: &Held, content: Content, mtime: Time) -> Op {
        let mut inode = Inode::clone(&held.inode);
        inode.size = content.size();
        inode.content = content;
        inode.mtime = mtime;
        self.set(held, inode)
    }

    fn set(&self, held: &Held, mut inode: Inode) -> Op {
        inode.ctime = self.ctime(held.inode.ctime);
        let (file, inode) = (held.file, Arc::new(inode));
        Op::new(
            self.unchanged(held).into(),
            vec![Change::Set { file, inode }],
        )
    }

    /// Nobody has changed the file, and it is the caller's turn.
    fn unchanged(&self, held: &Held) -> [Guard; 2] {
        let file = held.file;
        let is = Some(self.volume.inode_hash(&held.inode));
        let turn = match held.turn {
            Turn::Free => Guard::Unlocked { file },
            Turn::Mine => Guard::Holds { file },
        };
        [Guard::HashIs { file, is }, turn]
    }

    /// The file with one name less.
    fn without_name(&self, held: &Held) -> Change {
        let file = held.file;
        if held.inode.links <= 1 {
            return Change::Remove { file };
        }
        let mut inode = Inode::clone(&held.inode);
        inode.links -= 1;
        inode.ctime = self.ctime(inode.ctime);
        let inode = Arc::new(inode);
        Change::Set { file, inode }
    }
}

/// The ctime of a file that changes at a time by its device's clock, and has changed at `before` for the last time: later
/// than that, whatever the clocks say.
pub fn ctime_after(before: Option<Time>, now: Time) -> Time {
    let later = before.map(|before| before.next().unwrap_or(before));
    later.map_or(now, |later| later.max(now))
}

/// Takes the lock of a file, or renews it. `lock` is what the caller has seen; one of another device is taken over,
/// which the caller does only when the holder has not renewed it for its time to live.
pub fn lock(file: FileId, lock: Option<Lock>, caller: Device) -> Op {
    let guard = match lock {
        None => Guard::Unlocked { file },
        Some(lock) if lock.holder == caller => Guard::Holds { file },
        Some(Lock { last, .. }) => Guard::HolderLast {
            file,
            position: last,
        },
    };
    Op::new(vec![guard], vec![Change::Lock { file }])
}

/// Takes the lock of a file for the caller's next change, or says that the caller waits for it. `lapsed`: the lock of
/// another device that is taken over, because its holder has not renewed it for its time to live.
pub fn claim(file: FileId, lapsed: Option<Lock>) -> Op {
    let guard = lapsed.map(|Lock { last, .. }| Guard::HolderLast {
        file,
        position: last,
    });
    Op::new(guard.into_iter().collect(), vec![Change::Claim { file }])
}

/// Gives a lock to the device that waits for it, or up.
pub fn give_up(file: FileId, to: Option<Device>) -> Change {
    match to {
        Some(to) => Change::Pass { file, to },
        None => Change::Unlock { file },
    }
}

/// Gives a lock up.
pub fn unlock(file: FileId) -> Op {
    Op::new(vec![Guard::Holds { file }], vec![Change::Unlock { file }])
}

/// What the caller's device holds of a file from now on, and nothing else of it. `own`: what it holds. `lapsed`: devices
/// whose holds clash and which have not renewed them for their time to live, each with the position of its last Hold.
pub fn hold(
    (file, family, caller): (FileId, Family, Device),
    ranges: Ranges,
    own: Option<&Hold>,
    lapsed: &[(Device, u64)],
) -> Op {
    let Op { guards, changes } = take_over((file, family), lapsed);
    let hold = Change::Hold {
        file,
        family,
        device: caller,
        ranges,
        since: own.map(|own| own.since),
    };
    Op::new(guards, [hold].into_iter().chain(changes).collect())
}

/// What devices that are in the way hold of a file is given up, because they have not renewed it for their time to live.
/// Each with the position of its last Hold.
pub fn take_over((file, family): (FileId, Family), lapsed: &[(Device, u64)]) -> Op {
    let (mut guards, mut changes) = (Vec::new(), Vec::new());
    for (device, position) in lapsed.iter().copied() {
        guards.push(Guard::HoldLast {
            file,
            family,
            device,
            position,
        });
        changes.push(Change::Release {
            file,
            family,
            device,
        });
    }
    Op::new(guards, changes)
}

/// The device holds nothing of a file any more.
pub fn release(file: FileId, family: Family, caller: Device) -> Op {
    let release = Change::Release {
        file,
        family,
        device: caller,
    };
    Op::new(Vec::new(), vec![release])
}

/// Makes a fold the base of a principal's files. `before` is its last one.
pub fn fold(principal: Principal, before: Option<Fold>, fold: Fold) -> Op {
    let is = before;
    let guards = vec![Guard::FoldIs { principal, is }];
    Op::new(guards, vec![Change::Fold { principal, fold }])
}

/// Decides about members, or accepts a silent device's entries.
pub fn decide(decision: Decision) -> Op {
    Op::new(Vec::new(), vec![Change::Decide(decision)])
}

fn entry_is(spot: &Spot) -> Guard {
    Guard::EntryIs {
        directory: spot.directory.id,
        name: spot.name.clone(),
        is: spot.found,
    }
}

fn link(spot: &Spot, target: Target) -> Change {
    Change::Link {
        directory: spot.directory.id,
        name: spot.name.clone(),
        target,
    }
}

fn unlink(spot: &Spot) -> Change {
    Change::Unlink {
        directory: spot.directory.id,
        name: spot.name.clone(),
    }
}

/// The directory has not been removed from the one above it.
fn linked(directory: &Directory) -> Option<Guard> {
    directory.path.first().map(link_guard)
}

fn link_guard(link: &PathLink) -> Guard {
    Guard::Linked {
        directory: link.directory,
        parent: link.parent,
        name: link.name.clone(),
    }
}

/// The guards of a move on the way to its new parent. A directory that gets another parent guards each link up to the
/// root, else two moves could make a circle.
fn path(from: &Spot, to: &Spot, moves_directory: bool) -> Vec<Guard> {
    if moves_directory && from.directory.id != to.directory.id {
        return to.directory.path.iter().map(link_guard).collect();
    }
    linked(&to.directory).into_iter().collect()
}
