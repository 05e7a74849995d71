//! Which files and names an entry may have changed, for the feed of changes (decision 0101).
//!
//! What an entry may change stands in its outline, so no body is needed. An op whose author may not make its changes
//! changes nothing; whether the guards of the others hold is not judged here, so more may be named than what changed.

use trust::device::DeviceKey;
use trust_shared::key::Key;
use trust_shared::principal::Device;

use super::Files;
use super::answer::Refused;
use super::feed::Thing;
use ordering::roster::{END, outline_of};
use ordering::signed::Entry;

impl Files {
    /// The device that asks for the feed, if its questions have answers at all.
    ///
    /// # Errors
    /// Why no question has one.
    pub(crate) fn reader(&self, me: DeviceKey) -> Result<Device, Refused> {
        match &self.mute {
            Some(why) => Err(why.clone()),
            None => self.roster.number(me).ok_or(Refused::NotPermitted),
        }
    }

    /// Whether a decision changed what the device may read or write, in one of the prefixes that are longer than the
    /// first size and not longer than the second one.
    pub(crate) fn roles_change(&self, device: Device, after: u64, upto: u64) -> bool {
        let first = self.deciding.partition_point(|at| *at < after);
        let is_decided = self.deciding.get(first).is_some_and(|at| *at < upto);
        is_decided && self.members().role_changes(device, after, upto)
    }

    /// What `reader` may see changed after the entry at a position. Its signature is verified by the caller.
    pub(crate) fn touched(&self, reader: Device, at: u64, entry: &Entry) -> Vec<Thing> {
        let author = self.roster.number(entry.signed().entry().device);
        // Nobody reads the ops of a malformed outline.
        let (Some(author), Ok(outline)) = (author, outline_of(entry)) else {
            return Vec::new();
        };
        let members = self.members();
        let may_change = |key: &Key| members.may_change(author, key, at);
        let may_read = |principal| members.may_read(reader, principal, END);
        let permitted = outline.ops().iter();
        let permitted = permitted.filter(|keys| keys.iter().all(may_change));
        let things = permitted.flatten().filter_map(|key| match key {
            Key::Inode(file) | Key::Times(file) if may_read(file.principal) => {
                Some(Thing::File(*file))
            }
            Key::Entry(directory, name) if may_read(directory.principal) => {
                Some(Thing::Name(*directory, name.clone()))
            }
            // This device folds what it reads, so that its own folds change nothing that it reads.
            Key::Fold(principal) if author != reader && may_read(*principal) => {
                Some(Thing::Owned(*principal))
            }
            // Nobody is shown locks and folds. Decisions about members are asked for with `roles_change`.
            _ => None,
        });
        things.collect()
    }
}
