//! What a call comes to at a position of the log: an answer, or an op. Relies on [`trust_shared::calls`] for ops and
//! on `sight` for values.

use std::sync::Arc;

use trust::tree::inode::{Content, FileKind, Inode};
use trust_shared::calls::{self, Calls, Held, Replaced, Spot};
use trust_shared::change::Change;
use trust_shared::guard::Guard;
use trust_shared::hold::{Family, Ranges};
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::NoEffect;
use trust_shared::outline::MAX_OP_CHANGES;
use trust_shared::principal::{FileId, INumber, Target};

use super::answer::{Answer, Changed, File, Refused, Roll};
use super::call::{Call, FileRef, MAX_CALL_BYTES, Over, Place, Replace, Seen};
use super::plan::{Made, Plan, Try};
use super::sight::{Halt, Sight};

type Planned = Result<Plan, Halt>;

impl From<NoEffect> for Halt {
    fn from(why: NoEffect) -> Halt {
        Halt::Refused(why.into())
    }
}

impl Sight<'_> {
    /// What a call comes to.
    pub fn plan(&mut self, call: &Call, attempt: Try) -> Planned {
        let made = match self.made(call, attempt) {
            Err(Halt::Locked(file, lock)) => self.waits(call, attempt, (file, lock)),
            made => made,
        };
        match made? {
            Plan::Op(op, blocks) => {
                let op = self.in_turn(call, attempt, op)?;
                self.checked(call, op, blocks)
            }
            plan => Ok(plan),
        }
    }

    /// An op that its author may make, and that fits into an entry.
    fn checked(&self, call: &Call, op: Op, blocks: Vec<Made>) -> Planned {
        let may = |change: &Change| {
            let key = change.key();
            self.members.may_change(self.device, &key, self.members_at)
        };
        if !op.changes.iter().all(may) {
            return Err(Refused::NotPermitted.into());
        }
        if Body::new(vec![op.clone()]).is_err() {
            return Err(Refused::TooLarge.into());
        }
        if call.encode().len() > MAX_CALL_BYTES {
            return Err(Refused::TooLarge.into());
        }
        Ok(Plan::Op(op, blocks))
    }

    fn made(&mut self, call: &Call, attempt: Try) -> Planned {
        match call {
            Call::Lookup { place, follow } => self.lookup(place, *follow),
            Call::List {
                directory,
                after,
                most,
                inodes,
            } => self.listing(directory, after.as_ref(), *most, *inodes),
            Call::Members => Ok(Plan::Says(Answer::Members(Roll {
                at: self.at,
                members: Arc::clone(self.members),
            }))),
            Call::At { size, call } => self.earlier(*size, call),
            Call::Changed { place } => {
                let spot = self.spot(place)?;
                Ok(Plan::Says(Answer::Changed(self.changed(&spot)?)))
            }
            // The client answers it from its leaves.
            Call::History { .. } | Call::Root { .. } | Call::Feed { .. } => {
                Err(Refused::NotFound.into())
            }
            Call::Create { .. } => self.create(call),
            Call::SetContent { .. } | Call::SetAttributes { .. } => self.set(call),
            Call::Unlink { place } => self.unlink(place),
            Call::Rmdir { place } => self.rmdir(place),
            Call::Rename { from, to, over } => self.rename(from, to, over),
            Call::Link { file, to } => self.link(file, to),
            Call::Decide(decision) => self.decide(decision),
            Call::Fold(principal) => self.fold(*principal, attempt),
            Call::Lock { file, .. } => self.take_lock(file),
            Call::Unlock { file } => self.give_up_lock(file),
            Call::Hold {
                file,
                family,
                ranges,
                wait,
                lapsed,
            } => {
                let lapsed = attempt.lapsed.max(*lapsed);
                self.take_hold((file, *family), ranges, *wait, lapsed)
            }
            Call::Release { file, family } => self.release((file, *family)),
            Call::Under { locks, call } => self.under(locks, call),
            Call::Holders { file, family } => self.list_holders((file, *family)),
        }
    }

    fn calls(&self) -> Calls<'_> {
        Calls {
            volume: self.volume,
            time: self.time,
        }
    }

    fn lookup(&mut self, place: &Place, follow: bool) -> Planned {
        let id = self.file_at(place, follow)?;
        let gone = match place.path.is_empty() {
            true => Refused::Stale,
            false => Refused::NotFound,
        };
        let inode = self.shown(&id)?.ok_or(gone)?;
        Ok(Plan::Says(Answer::Found(File { id, inode })))
    }

    /// A question about an earlier prefix.
    fn earlier(&mut self, size: u64, call: &Call) -> Planned {
        let begins = self.replay.begins();
        if size > self.at {
            return Err(Refused::Beyond.into());
        }
        if size < begins {
            return Err(Refused::Forgotten(begins.saturating_sub(1)).into());
        }
        self.at = size;
        match call {
            Call::Lookup { .. } | Call::List { .. } => self.made(call, Try::default()),
            _ => Err(Refused::NotFound.into()),
        }
    }

    fn create(&mut self, call: &Call) -> Planned {
        let Call::Create {
            place,
            number,
            inode,
            owner,
            replace,
        } = call
        else {
            return Err(Refused::NotFound.into());
        };
        let spot = self.spot(place)?;
        self.is_directory(&spot.directory.id)?;
        let file = FileId {
            principal: owner.unwrap_or(spot.directory.id.principal),
            number: INumber {
                device: self.device,
                counter: *number,
            },
        };
        if !self.may_write(file.principal) {
            return Err(Refused::NotPermitted.into());
        }
        if self.inode(&file)?.is_some() {
            return Err(Refused::Exists.into());
        }
        let inode = fresh(inode);
        if let Replace::Seen(seen) = replace {
            self.is_seen(&spot, seen)?;
        }
        let over = spot.found.filter(|_| *replace != Replace::Nothing);
        let held = match over.filter(|over| over.kind != FileKind::Directory) {
            Some(over) => self.writable(&over)?,
            None => None,
        };
        let replaced = match (&held, replace) {
            (_, Replace::Nothing) => Replaced::Refused,
            (Some(held), _) => Replaced::Dropped(held),
            (None, _) => Replaced::Left,
        };
        Plan::op(self.calls().create_over(&spot, file, inode, replaced)?)
    }

    /// Refuses a name that leads to something else than its caller has seen. The guards of the op that is built say the
    /// same at its position: where the name leads, and what the inode of the file is.
    fn is_seen(&mut self, spot: &Spot, seen: &Seen) -> Result<(), Halt> {
        let (found, (file, content)) = match (spot.found, &seen.0) {
            (None, None) => return Ok(()),
            (Some(found), Some(seen)) => (found, seen),
            _ => return Err(Refused::Stale.into()),
        };
        if found.file != *file {
            return Err(Refused::Stale.into());
        }
        // The op of a caller who may not write the file has no guard on its content.
        if !self.may_write(file.principal) {
            return Err(Refused::NotPermitted.into());
        }
        match self.inode(file)? {
            Some(inode) if inode.content == *content => Ok(()),
            _ => Err(Refused::Stale.into()),
        }
    }

    /// The entry that changed a name last, or the file to which the name leads.
    fn changed(&mut self, spot: &Spot) -> Result<Option<Changed>, Halt> {
        let file = spot.found.map(|target| target.file);
        if let Some(file) = file {
            // Notes that the answer rests on it.
            self.inode(&file)?;
        }
        let (at, sources) = (self.at, self.sources());
        let name = (&spot.directory.id, &spot.name);
        let changed = self.replay.last_change(at, name, file.as_ref(), sources)?;
        Ok(changed.map(|(at, device)| Changed { at, device }))
    }

    pub(super) fn is_directory(&mut self, file: &FileId) -> Result<(), Halt> {
        let inode = self.inode(file)?.ok_or(Refused::NotFound)?;
        match inode.kind() {
            FileKind::Directory => Ok(()),
            _ => Err(Refused::NotADirectory.into()),
        }
    }

    /// The file that a name leads to, if the caller may write it and it exists. Else the name alone is changed, and
    /// the file stays in the i-table of its owner.
    fn writable(&mut self, target: &Target) -> Result<Option<Held>, Halt> {
        if !self.may_write(target.file.principal) || self.inode(&target.file)?.is_none() {
            return Ok(None);
        }
        self.held(target.file).map(Some)
    }

    fn set(&mut self, call: &Call) -> Planned {
        match call {
            Call::SetContent {
                file,
                content,
                mtime,
                expect,
            } => {
                let file = self.file(file)?;
                let held = self.held(file)?;
                regular(&held.inode.content)?;
                if !matches!(content, Content::Regular(_)) {
                    return Err(Refused::NotRegular.into());
                }
                let seen = &held.inode.content;
                if expect.as_ref().is_some_and(|expect| expect != seen) {
                    return Err(Refused::Stale.into());
                }
                Plan::op(self.calls().write(&held, content.clone(), *mtime))
            }
            Call::SetAttributes {
                file,
                attributes,
                expect,
            } => {
                let file = self.file(file)?;
                let held = self.held(file)?;
                let seen = self.volume.inode_hash(&held.inode);
                if expect.is_some_and(|expect| expect != seen) {
                    return Err(Refused::Stale.into());
                }
                let inode = attributes.apply(&held.inode)?;
                let op = self.calls().set_attributes(&held, inode, attributes.mtime);
                Plan::op(op)
            }
            _ => Err(Refused::NotFound.into()),
        }
    }

    fn unlink(&mut self, place: &Place) -> Planned {
        let spot = self.spot(place)?;
        let target = spot.found.ok_or(Refused::NotFound)?;
        let held = match target.kind {
            FileKind::Directory => None,
            _ => self.writable(&target)?,
        };
        Plan::op(self.calls().unlink(&spot, held.as_ref())?)
    }

    fn rmdir(&mut self, place: &Place) -> Planned {
        let spot = self.spot(place)?;
        let target = spot.found.ok_or(Refused::NotFound)?;
        if target.kind == FileKind::Directory {
            self.is_empty(&target.file)?;
        }
        let removes = self.writable(&target)?.is_some();
        Plan::op(self.calls().rmdir(&spot, removes)?)
    }

    /// Refuses a directory with names. What this device cannot read, the op's guard decides.
    fn is_empty(&mut self, directory: &FileId) -> Result<(), Halt> {
        // The op's guard counts. A member's wrong fold may count less than there is.
        let names = match self.entries(directory) {
            Ok(0) => self
                .list(directory, None, 1)
                .map(|page| page.names.len() as u64),
            counted => counted,
        };
        match names {
            Ok(0) => Ok(()),
            Ok(_) => Err(Refused::NotEmpty.into()),
            Err(Halt::Refused(Refused::NotPermitted)) => Ok(()),
            Err(halt) => Err(halt),
        }
    }

    fn rename(&mut self, from: &Place, to: &Place, over: &Over) -> Planned {
        let (from, to) = (self.spot(from)?, self.spot(to)?);
        let moved = from.found.ok_or(Refused::NotFound)?;
        self.may_move(moved, &from, &to)?;
        self.is_directory(&to.directory.id)?;
        if let Over::Seen(seen) = over {
            self.is_seen(&to, seen)?;
        }
        if *over == Over::Exchange {
            let other = to.found.ok_or(Refused::NotFound)?;
            self.may_move(other, &to, &from)?;
            let op = self.calls().exchange(&from, &to)?;
            return op.map_or(Ok(Plan::Says(Answer::Done(moved.file))), Plan::op);
        }
        let target = to.found.filter(|target| target.file != moved.file);
        let held = match target.filter(|_| *over != Over::Refuse) {
            Some(target) => {
                let both = target.kind == FileKind::Directory && moved.kind == target.kind;
                if both && !from.directory.lies_below(&target.file) {
                    self.is_empty(&target.file)?;
                }
                self.writable(&target)?
            }
            None => None,
        };
        let replaced = match (over, &held) {
            (Over::Refuse, _) => Replaced::Refused,
            (_, Some(held)) => Replaced::Dropped(held),
            (_, None) => Replaced::Left,
        };
        let op = self.calls().rename(&from, &to, replaced)?;
        op.map_or(Ok(Plan::Says(Answer::Done(moved.file))), Plan::op)
    }

    /// A directory gets another parent only from who may write it, and with all links from there up to the root.
    fn may_move(&self, moved: Target, from: &Spot, to: &Spot) -> Result<(), Halt> {
        if moved.kind != FileKind::Directory || from.directory.id == to.directory.id {
            return Ok(());
        }
        if !self.may_write(moved.file.principal) {
            return Err(Refused::NotPermitted.into());
        }
        let rooted = |spot: &Spot| {
            let top = spot.directory.path.last().map(|link| link.parent);
            top.unwrap_or(spot.directory.id) == self.volume.root
        };
        match rooted(from) && rooted(to) {
            true => Ok(()),
            false => Err(Refused::NeedsPath.into()),
        }
    }

    fn link(&mut self, file: &FileRef, to: &Place) -> Planned {
        let file = match file {
            FileRef::File(file) => *file,
            FileRef::Place(place) => self.file_at(place, false)?,
        };
        let spot = self.spot(to)?;
        self.is_directory(&spot.directory.id)?;
        if spot.found.is_some() {
            return Err(Refused::Exists.into());
        }
        let held = self.held(file)?;
        Plan::op(self.calls().link(&spot, &held)?)
    }

    fn take_lock(&mut self, file: &FileRef) -> Planned {
        let file = self.file(file)?;
        self.inode(&file)?.ok_or(Refused::Stale)?;
        let lock = self.lock(&file)?;
        match lock.filter(|lock| lock.holder != self.device) {
            Some(lock) => Err(Halt::Locked(file, lock)),
            None => Plan::op(calls::lock(file, lock, self.device)),
        }
    }

    fn give_up_lock(&mut self, file: &FileRef) -> Planned {
        let file = self.file(file)?;
        match self.lock(&file)? {
            Some(lock) if lock.holder == self.device => {
                let queue = self.queue(&file)?.unwrap_or_default();
                let mut op = calls::unlock(file);
                op.changes = vec![self.given_up(file, &queue)];
                Plan::op(op)
            }
            _ => Err(Refused::NotLocked.into()),
        }
    }

    fn take_hold(
        &mut self,
        (file, family): (&FileRef, Family),
        ranges: &Ranges,
        wait: bool,
        lapses: u64,
    ) -> Planned {
        let file = self.file(file)?;
        self.inode(&file)?.ok_or(Refused::Stale)?;
        let (members, members_at) = (self.members, self.members_at);
        let may_write = |device| members.may_write(device, file.principal, members_at);
        // Also while others hold it: nobody waits for what it may never hold.
        if !may_write(self.device) {
            return Err(Refused::NotPermitted.into());
        }
        let of = (&file, family);
        let (mut lapsed, mut blocked) = (Vec::new(), None);
        for device in self.holders(of) {
            let Some(hold) = self.hold(of, device)? else {
                continue;
            };
            if device == self.device || !hold.ranges.clash(ranges) {
                continue;
            }
            // A device that may not write the file any more cannot use what it holds.
            match hold.last < lapses || !may_write(device) {
                true => lapsed.push((device, hold.last)),
                false => blocked = blocked.max(Some(hold.last)),
            }
        }
        match blocked {
            Some(last) if wait => Ok(Plan::Blocked(last)),
            Some(_) => Err(Refused::Locked.into()),
            None => {
                // Not all fit into one op beside the Hold: these first.
                if let Some(first) = lapsed.get(..MAX_OP_CHANGES) {
                    return Plan::op(calls::take_over((file, family), first));
                }
                let own = self.hold(of, self.device)?;
                let of = (file, family, self.device);
                Plan::op(calls::hold(of, ranges.clone(), own.as_ref(), &lapsed))
            }
        }
    }

    fn release(&mut self, (file, family): (&FileRef, Family)) -> Planned {
        let file = self.file(file)?;
        self.holders((&file, family));
        match self.hold((&file, family), self.device)? {
            Some(_) => Plan::op(calls::release(file, family, self.device)),
            None => Err(Refused::NotLocked.into()),
        }
    }

    fn list_holders(&mut self, (file, family): (&FileRef, Family)) -> Planned {
        let file = self.file(file)?;
        self.inode(&file)?.ok_or(Refused::Stale)?;
        let of = (&file, family);
        let mut all = Vec::new();
        for device in self.holders(of) {
            all.extend(self.hold(of, device)?.map(|hold| (device, hold.ranges)));
        }
        Ok(Plan::Says(Answer::Holders(all)))
    }

    /// Content that was written under locks: their loss comes before all else that may be wrong.
    fn under(&mut self, locks: &[(Family, u64)], call: &Call) -> Planned {
        let Call::SetContent { file, .. } = call else {
            return Err(Refused::NotRegular.into());
        };
        let file = self.file(file)?;
        let device = self.device;
        let mut guards = Vec::new();
        for (family, since) in locks.iter().copied() {
            self.holders((&file, family));
            let own = self.hold((&file, family), device)?;
            if own.is_none_or(|own| own.since != since) {
                return Err(Refused::NotLocked.into());
            }
            guards.push(Guard::HeldSince {
                file,
                family,
                device,
                position: since,
            });
        }
        Ok(match self.set(call)? {
            Plan::Op(op, blocks) => {
                guards.extend(op.guards);
                Plan::Op(Op::new(guards, op.changes), blocks)
            }
            plan => plan,
        })
    }
}

/// The inode of a new file: one name, and no entries.
fn fresh(inode: &Inode) -> Inode {
    let mut inode = inode.clone();
    inode.links = 1;
    inode.link_group = None;
    if let Content::Directory { map, .. } = &mut inode.content {
        *map = None;
    }
    inode.size = inode.content.size();
    inode
}

fn regular(content: &Content) -> Result<(), Refused> {
    match content.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Refused::IsADirectory),
        _ => Err(Refused::NotRegular),
    }
}
