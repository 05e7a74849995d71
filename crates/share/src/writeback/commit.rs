//! Local changes of a file on their way into the log.
//!
//! One commit of a file at a time. It is guarded by the content that it was made of: if another device was first, the
//! changes move onto that content, as often as it takes. A commit whose outcome is unknown is never begun again before it is
//! known: else appended bytes would be there twice. Once a program was told that its bytes are lost, they go onto unchanged
//! content only, and into a conflict copy otherwise: what others wrote since is newer.
//!
//! Blocks travel with the op that names them (decision 0113). If the server refuses them, the op had no effect; from then
//! on the blocks of this file are stored before the op, until a commit has succeeded.

use std::sync::Arc;

use trust::inode::{Content, Inode};
use trust_shared::calls::ctime_after;

use super::cached::Cached;
use super::effect::{Effect, Found, Kinds, NotSent, NotStored, Timer, Why, Work};

impl<K: Kinds> Cached<K> {
    /// Begins a commit, unless there is nothing that the log should have or work is under way.
    pub fn begin(&mut self) -> Vec<Effect<K>> {
        if self.work.is_some() {
            return Vec::new();
        }
        self.is_due = false;
        // Before it is sent again, it must be known what became of it.
        let sent = self.local.as_ref().and_then(|local| local.sent.as_ref());
        match sent {
            Some(_) => self.look(),
            None => self.cut_again(),
        }
    }

    fn cut_again(&mut self) -> Vec<Effect<K>> {
        let Some(taken) = self.taken() else {
            self.work = None;
            return self.wake(None);
        };
        self.work = Some(Work::Cutting);
        let stored = self.stores_first;
        vec![Effect::Cut { taken, stored }]
    }

    fn rest(&mut self, work: Work) -> Vec<Effect<K>> {
        self.work = Some(work);
        vec![Effect::Wait(Timer::Again)]
    }

    /// The new content, and those of its blocks that are not stored; or there is none.
    pub fn cut(&mut self, cut: Result<(Content, K::Blocks), NotStored<K::Loss>>) -> Vec<Effect<K>> {
        let (Some(Work::Cutting), Some(local)) = (&self.work, &self.local) else {
            return Vec::new();
        };
        match cut {
            Ok((content, blocks)) => {
                let send = Effect::Send {
                    content: content.clone(),
                    blocks,
                    mtime: local.mtime,
                    expect: local.base.content.clone(),
                };
                self.work = Some(Work::Sending(content));
                vec![send]
            }
            Err(why) => self.unstored(why),
        }
    }

    fn unstored(&mut self, why: NotStored<K::Loss>) -> Vec<Effect<K>> {
        match why {
            NotStored::Now(_) => self.rest(Work::RestingToCut),
            NotStored::Ever(loss) => self.failed(loss),
        }
    }

    /// The content is set, at the end of this prefix of the log; or not.
    pub fn sent(&mut self, sent: Result<u64, NotSent<K::Loss>>) -> Vec<Effect<K>> {
        let Some(Work::Sending(content)) = &self.work else {
            return Vec::new();
        };
        let content = content.clone();
        let Some(local) = &mut self.local else {
            return Vec::new();
        };
        match sent {
            Ok(at) => {
                // The guard was for the content: attributes may be newer than those of the base.
                let mut inode = Inode::clone(&self.inode);
                inode.size = content.size();
                (inode.content, inode.mtime) = (content, local.mtime);
                inode.ctime = Some(ctime_after(inode.ctime, local.mtime));
                self.committed(&Arc::new(inode), at)
            }
            Err(NotSent::Stale) => self.look(),
            Err(NotSent::Unknown) => {
                local.sent = Some(content.clone());
                self.rest(Work::RestingToLook)
            }
            Err(NotSent::Unstored(why)) => {
                self.stores_first = true;
                self.unstored(why)
            }
            Err(NotSent::Refused(loss)) => self.failed(loss),
            Err(NotSent::Unlocked(loss)) => {
                self.owe(loss);
                self.look()
            }
        }
    }

    fn look(&mut self) -> Vec<Effect<K>> {
        self.work = Some(Work::Looking);
        vec![Effect::Look]
    }

    /// What the file is now.
    pub fn found(&mut self, found: Found<K::Loss>) -> Vec<Effect<K>> {
        let Some(Work::Looking) = &self.work else {
            return Vec::new();
        };
        let newest = match found {
            Found::File(inode, at) => Some((inode, at)),
            Found::Nothing => None,
            Found::Unknown => return self.rest(Work::RestingToLook),
            Found::Failed(loss) => return self.failed(loss),
        };
        let Some(local) = &mut self.local else {
            return Vec::new();
        };
        if let (Some(sent), Some((newest, at))) = (&local.sent, &newest) {
            if *sent == newest.content {
                // The commit whose outcome was unknown.
                let (newest, at) = (newest.clone(), *at);
                return self.committed(&newest, at);
            }
            if *newest == local.base {
                // It had no effect so far. Only what nobody has changed since says so: the same content may have come back.
                // It is still recognised if it has effect later.
                return self.cut_again();
            }
        }
        match newest {
            // Nobody would find a copy of what has no name, unless somebody was told that it is lost.
            None if !local.is_lost => self.gone(),
            newest if self.is_held() => {
                let Some(taken) = self.every_change() else {
                    return Vec::new();
                };
                self.work = Some(Work::Copying(newest));
                vec![Effect::Copy(taken)]
            }
            None => self.gone(),
            Some((newest, at)) => {
                self.see(&newest, at);
                self.rebase(&newest, Why::Commit)
            }
        }
    }

    /// The conflict copy is made; those that wrote some of it and know nothing of it yet are told so. Or it is not made.
    pub fn copied(&mut self, copied: Result<K::Loss, K::Loss>) -> Vec<Effect<K>> {
        let Some(Work::Copying(newest)) = &self.work else {
            return Vec::new();
        };
        let newest = newest.clone();
        match copied {
            Ok(told) => {
                self.owe(told);
                match newest {
                    Some((newest, at)) => self.committed(&newest, at),
                    None => self.gone(),
                }
            }
            Err(loss) => self.failed(loss),
        }
    }

    /// Moves the local changes onto another version. Readers keep the bytes as they were until the move has ended.
    pub(super) fn rebase(&mut self, inode: &Arc<Inode>, why: Why) -> Vec<Effect<K>> {
        let Some(local) = &mut self.local else {
            return Vec::new();
        };
        let mut overlay = local.overlay.clone();
        let moved = match local.base.content == inode.content {
            true => None,
            false => overlay.rebase(inode.size),
        };
        let Some(moved) = moved else {
            (local.overlay, local.base) = (overlay, inode.clone());
            return match why {
                Why::Commit => self.cut_again(),
                Why::Shown => Vec::new(),
            };
        };
        let effect = Effect::Move {
            from: local.bytes.clone(),
            overlay: local.overlay.clone(),
            moved,
        };
        self.work = Some(Work::Moving(inode.clone(), overlay, why));
        vec![effect]
    }

    /// The local bytes lie here now, or cannot be moved: then nothing has moved.
    pub fn moved(&mut self, moved: Result<K::Bytes, K::Loss>) -> Vec<Effect<K>> {
        let (inode, overlay, why) = match self.work.take() {
            Some(Work::Moving(inode, overlay, why)) => (inode, overlay, why),
            other => {
                self.work = other;
                return Vec::new();
            }
        };
        let moved = match (moved, &mut self.local) {
            (Ok(bytes), Some(local)) => {
                (local.bytes, local.overlay, local.base) = (bytes, overlay, inode);
                Ok(())
            }
            (Err(loss), _) => Err(loss),
            (Ok(_), None) => Ok(()),
        };
        match (why, moved) {
            (Why::Commit, Ok(())) => self.cut_again(),
            (Why::Commit, Err(loss)) => self.failed(loss),
            // If it has not moved, the program sees the version before.
            (Why::Shown, _) => {
                let mut effects = self.wake(None);
                if self.wants_commit() {
                    effects.extend(self.begin());
                }
                effects
            }
        }
    }

    /// A time is over.
    pub fn rang(&mut self, timer: Timer) -> Vec<Effect<K>> {
        match timer {
            Timer::Dirty => {
                self.is_due = self.work.is_some();
                self.begin()
            }
            Timer::Retry => {
                self.is_planned = false;
                self.begin()
            }
            Timer::Again => match self.work.take() {
                Some(Work::RestingToCut) => self.cut_again(),
                Some(Work::RestingToLook) => self.look(),
                other => {
                    self.work = other;
                    Vec::new()
                }
            },
        }
    }

    /// All that is local is in the log.
    fn committed(&mut self, inode: &Arc<Inode>, at: u64) -> Vec<Effect<K>> {
        self.work = None;
        self.local = None;
        self.is_due = false;
        self.stores_first = false;
        self.see(inode, at);
        let mut effects = vec![Effect::Clean];
        effects.extend(self.wake(None));
        effects
    }

    /// The file has no name any more. What is local stays until nothing has the file open.
    fn gone(&mut self) -> Vec<Effect<K>> {
        self.work = None;
        self.is_removed = true;
        if let Some(local) = &mut self.local {
            (local.is_lost, local.sent) = (false, None);
        }
        let mut effects = Vec::new();
        if self.opens == 0 && self.local.take().is_some() {
            effects.push(Effect::Clean);
        }
        effects.extend(self.wake(None));
        effects
    }

    /// The commit has no effect. It is tried again later.
    fn failed(&mut self, loss: K::Loss) -> Vec<Effect<K>> {
        self.work = None;
        self.owe(loss.clone());
        let mut effects = self.wake(Some(&loss));
        if !std::mem::replace(&mut self.is_planned, true) {
            effects.push(Effect::Wait(Timer::Retry));
        }
        effects
    }
}
