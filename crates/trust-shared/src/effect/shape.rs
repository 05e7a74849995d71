//! The shape of an op: the guards that its changes need, and those that it may have. Judged from the op alone.
//!
//! Without the needed guards a member could leave the tree in a state that no program can repair: a circle of
//! directories, entries of a directory that is gone, a fold that hides changes. Guards about other things than the
//! op would make every reader of one file read others.

use crate::change::Change;
use crate::guard::Guard;
use crate::key::Key;
use crate::principal::{FileId, Name, Target};
use trust::tree::inode::FileKind;

/// Changes of one kind. An op has one kind of changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Files,
    Fold,
    Decision,
}

fn kind(change: &Change) -> Kind {
    match change {
        Change::Fold { .. } => Kind::Fold,
        Change::Decide(_) => Kind::Decision,
        _ => Kind::Files,
    }
}

/// Whether the op has all guards that it needs, and none that it may not have. `changes` are those that its outline
/// names.
pub(super) fn is_right(guards: &[Guard], changes: &[&Change], root: &FileId) -> bool {
    let Some((first, others)) = changes.split_first() else {
        return false;
    };
    if others.iter().any(|change| kind(change) != kind(first)) {
        return false;
    }
    let shape = Shape {
        guards,
        changes,
        root,
    };
    match kind(first) {
        Kind::Files => {}
        Kind::Fold if others.is_empty() => {}
        Kind::Fold | Kind::Decision => return false,
    }
    guards.iter().all(|guard| shape.concerns(guard))
        && changes.iter().all(|change| shape.is_guarded(change))
}

/// The directories that the op moves to another parent.
pub(super) fn moved<'a>(
    guards: &'a [Guard],
    changes: &'a [&Change],
) -> impl Iterator<Item = FileId> + 'a {
    changes.iter().filter_map(move |change| {
        let (directory, _, target) = linked_directory(change)?;
        let (from, _) = source(guards, &target.file)?;
        (from != directory).then_some(target.file)
    })
}

fn linked_directory(change: &Change) -> Option<(&FileId, &Name, &Target)> {
    match change {
        Change::Link {
            directory,
            name,
            target,
        } if target.kind == FileKind::Directory => Some((directory, name, target)),
        _ => None,
    }
}

/// The entry that led to the directory before the op, as its guards say.
fn source<'a>(guards: &'a [Guard], moved: &FileId) -> Option<(&'a FileId, &'a Name)> {
    guards.iter().find_map(|guard| match guard {
        Guard::EntryIs {
            directory,
            name,
            is: Some(target),
        } if target.file == *moved && target.kind == FileKind::Directory => Some((directory, name)),
        _ => None,
    })
}

struct Shape<'a> {
    guards: &'a [Guard],
    changes: &'a [&'a Change],
    root: &'a FileId,
}

impl Shape<'_> {
    fn changes_key(&self, key: &Key) -> bool {
        self.changes.iter().any(|change| change.key() == *key)
    }

    /// Whether the op changes the file's inode, its lock, what is held of it, or its entries.
    fn changes_file(&self, file: &FileId) -> bool {
        self.changes.iter().any(|change| match change.key() {
            Key::Inode(changed)
            | Key::Lock(changed)
            | Key::Entry(changed, _)
            | Key::Hold(changed, ..) => changed == *file,
            _ => false,
        })
    }

    /// Whether a guard is about something that the op changes, or about its path.
    fn concerns(&self, guard: &Guard) -> bool {
        match guard {
            Guard::HashIs { file, .. }
            | Guard::Unlocked { file }
            | Guard::Holds { file }
            | Guard::HolderLast { file, .. }
            | Guard::HeldSince { file, .. } => self.changes_file(file),
            Guard::HoldLast {
                file,
                family,
                device,
                ..
            } => self.changes_key(&Key::Hold(*file, *family, *device)),
            Guard::EntryIs {
                directory, name, ..
            } => self.changes_key(&Key::Entry(*directory, name.clone())),
            Guard::Empty { directory } => {
                self.changes_file(directory) || source(self.guards, directory).is_some()
            }
            Guard::Linked { directory, .. } => {
                self.changes_file(directory) || self.is_above(directory)
            }
            Guard::FoldIs { principal, .. } => self.changes_key(&Key::Fold(*principal)),
        }
    }

    /// Whether another guard says that something lies in the directory.
    fn is_above(&self, directory: &FileId) -> bool {
        self.guards
            .iter()
            .any(|guard| matches!(guard, Guard::Linked { parent, .. } if parent == directory))
    }

    /// Whether the change has the guards without which it may do harm.
    fn is_guarded(&self, change: &Change) -> bool {
        match change {
            Change::Link {
                directory, name, ..
            }
            | Change::Unlink { directory, name } => {
                self.guards_entry(directory, name) && self.places_directory(change)
            }
            // Entries must not appear in a directory that the same op removes, and no times stay.
            Change::Remove { file } => !self.changes.iter().any(|other| {
                matches!(other.key(), Key::Entry(directory, _) | Key::Times(directory)
                    if directory == *file)
            }),
            // A server that keeps no files judges folds from folds alone. A circle of Linked guards would concern each
            // other, and hold in the i-table of a member who made it up.
            Change::Fold { principal, .. } => {
                let is_fold = |guard: &Guard| matches!(guard, Guard::FoldIs { .. });
                let of = |guard: &Guard| matches!(guard, Guard::FoldIs { principal: p, .. } if p == principal);
                self.guards.iter().all(is_fold) && self.guards.iter().any(of)
            }
            _ => true,
        }
    }

    fn guards_entry(&self, at: &FileId, called: &Name) -> bool {
        self.guards.iter().any(|guard| {
            matches!(guard, Guard::EntryIs { directory, name, .. }
                if directory == at && name == called)
        })
    }

    /// A directory has one name. An op that links one either makes it, or takes its name away and shows that the new
    /// parent does not lie below it.
    fn places_directory(&self, change: &Change) -> bool {
        let Some((parent, _, target)) = linked_directory(change) else {
            return true;
        };
        let links = self.changes.iter().filter(|change| {
            linked_directory(change).is_some_and(|(.., other)| other.file == target.file)
        });
        if links.count() != 1 {
            return false;
        }
        if self.makes(&target.file) {
            return true;
        }
        // The op changes the old name, because its guards are about names that it changes; and it links no second
        // name to the directory.
        let Some((from, _)) = source(self.guards, &target.file) else {
            return false;
        };
        from == parent || self.leads_to_root(parent)
    }

    fn makes(&self, file: &FileId) -> bool {
        let absent = |guard: &Guard| matches!(guard, Guard::HashIs { file: guarded, is: None } if guarded == file);
        let set =
            |change: &&Change| matches!(change, Change::Set { file: made, .. } if made == file);
        self.guards.iter().any(absent) && self.changes.iter().any(set)
    }

    /// Whether guards hold each link from the directory up to the root, through no directory that the op moves.
    fn leads_to_root(&self, directory: &FileId) -> bool {
        let mut here = *directory;
        for _ in 0..=self.guards.len() {
            if moved(self.guards, self.changes).any(|moved| moved == here) {
                return false;
            }
            if here == *self.root {
                return true;
            }
            let above = self.guards.iter().find_map(|guard| match guard {
                Guard::Linked {
                    directory, parent, ..
                } if *directory == here => Some(*parent),
                _ => None,
            });
            match above {
                Some(parent) => here = parent,
                None => return false,
            }
        }
        false
    }
}
