//! What an op of a shared volume does, in the words of the commands: put, mkdir, mv, rm. Relies on
//! [`trust_shared::calls`], which builds ops; an op of another shape is called `other`.

use trust::inode::{Content, FileKind, Inode};
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::guard::Guard;
use trust_shared::ops::Op;
use trust_shared::principal::{Device, FileId, Name, Principal, Target};

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot<'a> {
    /// The directory.
    pub directory: FileId,
    /// The name.
    pub name: &'a Name,
}

/// What an op does.
#[derive(Debug, Clone, PartialEq)]
pub enum Act<'a> {
    /// A new file under a name, which may have led to another one.
    Make {
        /// The name.
        at: Spot<'a>,
        /// The file.
        inode: &'a Inode,
    },
    /// One more name for a file.
    Link {
        /// The name.
        at: Spot<'a>,
        /// The file.
        file: FileId,
    },
    /// The name is gone.
    Remove {
        /// The name.
        at: Spot<'a>,
        /// The kind of the file that the name led to.
        kind: FileKind,
    },
    /// A file moves.
    Move {
        /// Its old name.
        from: Spot<'a>,
        /// Its new name.
        to: Spot<'a>,
    },
    /// Two names change places.
    Exchange {
        /// One.
        one: Spot<'a>,
        /// The other.
        other: Spot<'a>,
    },
    /// Content or attributes of a file.
    Set {
        /// The file.
        file: FileId,
        /// Its inode after the change.
        inode: &'a Inode,
    },
    /// The times of a directory.
    Touch(FileId),
    /// The author's device takes the lock of a file.
    Lock(FileId),
    /// It gives the lock up.
    Unlock(FileId),
    /// It takes the lock for its next change. Without effect, because another device has the lock: it waits for its turn.
    Claim(FileId),
    /// It gives the lock to a device that waits.
    Pass {
        /// The file.
        file: FileId,
        /// The device.
        to: Device,
    },
    /// It holds parts of the file, or all of it, for its programs.
    Hold(FileId),
    /// A device holds nothing of the file any more.
    Release(FileId),
    /// What has changed of a principal's files is put together.
    Fold {
        /// The principal.
        principal: Principal,
        /// Up to this position.
        upto: u64,
    },
    /// A decision about members.
    Decide(&'a Decision),
    /// Something that no command of this bulla does.
    Other,
}

impl<'a> Act<'a> {
    /// What an op does.
    pub fn of(op: &'a Op) -> Act<'a> {
        let (links, unlinks) = (links(op), unlinks(op));
        match (links.as_slice(), unlinks.as_slice()) {
            ([(at, target)], []) => linked(op, *at, target),
            ([], [at]) => Act::Remove {
                at: *at,
                kind: led_to(op, *at).map_or(FileKind::Regular, |target| target.kind),
            },
            ([(to, _)], [from]) => Act::Move {
                from: *from,
                to: *to,
            },
            ([(one, _), (other, _)], []) => Act::Exchange {
                one: *one,
                other: *other,
            },
            ([], []) => unnamed(op),
            _ => Act::Other,
        }
    }
}

fn links(op: &Op) -> Vec<(Spot<'_>, Target)> {
    let links = op.changes.iter().filter_map(|change| match change {
        Change::Link {
            directory,
            name,
            target,
        } => {
            let directory = *directory;
            Some((Spot { directory, name }, *target))
        }
        _ => None,
    });
    links.collect()
}

fn unlinks(op: &Op) -> Vec<Spot<'_>> {
    let unlinks = op.changes.iter().filter_map(|change| match change {
        Change::Unlink { directory, name } => {
            let directory = *directory;
            Some(Spot { directory, name })
        }
        _ => None,
    });
    unlinks.collect()
}

/// What a name led to before the op.
pub fn led_to(op: &Op, at: Spot<'_>) -> Option<Target> {
    op.guards.iter().find_map(|guard| match guard {
        Guard::EntryIs {
            directory,
            name,
            is,
        } if *directory == at.directory && name == at.name => *is,
        _ => None,
    })
}

/// The files that lose a name by the op, each with that name.
pub fn losses(op: &Op) -> Vec<(FileId, Spot<'_>)> {
    let names = links(op).into_iter().map(|(at, _)| at);
    let names = names.chain(unlinks(op));
    let losses = names.filter_map(|at| Some((led_to(op, at)?.file, at)));
    losses.collect()
}

fn linked<'a>(op: &'a Op, at: Spot<'a>, target: &Target) -> Act<'a> {
    let is_new = op
        .guards
        .iter()
        .any(|guard| matches!(guard, Guard::HashIs { file, is: None } if *file == target.file));
    let set = op.changes.iter().find_map(|change| match change {
        Change::Set { file, inode } if *file == target.file => Some(inode),
        _ => None,
    });
    match set {
        Some(inode) if is_new => Act::Make { at, inode },
        _ => Act::Link {
            at,
            file: target.file,
        },
    }
}

/// An op that changes no name.
fn unnamed(op: &Op) -> Act<'_> {
    let decision = op.decisions().next();
    // It may release what devices hold whose time is over.
    let held = op.changes.iter().find_map(|change| match change {
        Change::Hold { file, .. } => Some(*file),
        _ => None,
    });
    if let Some(file) = held {
        return Act::Hold(file);
    }
    match (op.changes.as_slice(), decision) {
        (_, Some(decision)) => Act::Decide(decision),
        ([Change::Fold { principal, fold }], _) => Act::Fold {
            principal: *principal,
            upto: fold.upto,
        },
        ([Change::Lock { file }], _) => Act::Lock(*file),
        ([Change::Unlock { file }], _) => Act::Unlock(*file),
        ([Change::Claim { file }], _) => Act::Claim(*file),
        ([Change::Pass { file, to }], _) => Act::Pass {
            file: *file,
            to: *to,
        },
        ([Change::Touch { directory, .. }], _) => Act::Touch(*directory),
        ([Change::Release { file, .. }], _) => Act::Release(*file),
        ([Change::Set { file, inode }, rest @ ..], _)
            if rest.iter().all(|it| {
                matches!(
                    it,
                    Change::Unlock { .. } | Change::Pass { .. } | Change::Touch { .. }
                )
            }) =>
        {
            Act::Set { file: *file, inode }
        }
        _ => Act::Other,
    }
}

/// The word for making a file of a kind.
pub fn making(inode: &Inode) -> &'static str {
    match inode.content {
        Content::Regular(_) => "put",
        Content::Directory { .. } => "mkdir",
        Content::Symlink(_) => "symlink",
        _ => "mknod",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trust::Hasher;
    use trust::inode::{FileContent, Time};
    use trust::statement::VolumeId;
    use trust_shared::calls::{self, Calls, Directory, Held, Replaced, Turn};
    use trust_shared::effect::Volume;
    use trust_shared::itable::Fold;
    use trust_shared::principal::INumber;

    use super::*;

    fn volume() -> Volume {
        Volume::new(VolumeId::from_bytes([7; 32]), Hasher::new(&[7; 32]))
    }

    fn file(counter: u64) -> FileId {
        FileId {
            principal: Principal::from_bytes([7; 32]),
            number: INumber {
                device: Device(0),
                counter,
            },
        }
    }

    fn inode(content: Content) -> Inode {
        Inode::new(0o644, Time::default(), content)
    }

    fn text() -> Inode {
        inode(Content::Regular(FileContent::Inline("hello".into())))
    }

    fn spot(name: &str, found: Option<(u64, FileKind)>) -> calls::Spot {
        calls::Spot {
            directory: Directory {
                id: file(1),
                path: Vec::new(),
            },
            name: Name::new(name.as_bytes()).unwrap(),
            found: found.map(|(number, kind)| Target {
                file: file(number),
                kind,
            }),
        }
    }

    fn at(spot: &calls::Spot) -> Spot<'_> {
        Spot {
            directory: spot.directory.id,
            name: &spot.name,
        }
    }

    fn held(number: u64) -> Held {
        Held {
            file: file(number),
            inode: Arc::new(text()),
            turn: Turn::Free,
        }
    }

    #[test]
    fn ops_of_all_calls_have_their_words() {
        let volume = volume();
        let calls = Calls {
            volume: &volume,
            time: Time::default(),
        };
        let (a, b) = (spot("a", None), spot("b", Some((9, FileKind::Regular))));
        let made = calls.create(&a, file(10), text()).unwrap();
        assert!(matches!(Act::of(&made), Act::Make { at: it, .. } if it == at(&a)));
        let held = held(9);
        let over = Replaced::Dropped(&held);
        let over = calls.create_over(&b, file(10), text(), over).unwrap();
        assert!(matches!(Act::of(&over), Act::Make { at: it, .. } if it == at(&b)));
        assert_eq!(losses(&over), [(file(9), at(&b))]);
        let link = calls.link(&a, &held).unwrap();
        let expected = Act::Link {
            at: at(&a),
            file: file(9),
        };
        assert_eq!(Act::of(&link), expected);
        let unlinked = calls.unlink(&b, Some(&held)).unwrap();
        let kind = FileKind::Regular;
        assert_eq!(Act::of(&unlinked), Act::Remove { at: at(&b), kind });
        assert_eq!(losses(&unlinked), [(file(9), at(&b))]);
        let directory = spot("d", Some((5, FileKind::Directory)));
        let kind = FileKind::Directory;
        let removed = calls.rmdir(&directory, true).unwrap();
        let at_d = at(&directory);
        assert_eq!(Act::of(&removed), Act::Remove { at: at_d, kind });
        let renamed = calls.rename(&b, &a, Replaced::Left).unwrap().unwrap();
        let (from, to) = (at(&b), at(&a));
        assert_eq!(Act::of(&renamed), Act::Move { from, to });
        let exchanged = calls.exchange(&b, &directory).unwrap().unwrap();
        assert!(matches!(Act::of(&exchanged), Act::Exchange { .. }));
        let set = calls.set_attributes(&held, text(), None);
        assert!(matches!(Act::of(&set), Act::Set { file: it, .. } if it == file(9)));
        let held = Held {
            file: file(5),
            inode: Arc::new(inode(Content::Directory {
                map: None,
                opaque: false,
            })),
            turn: Turn::Free,
        };
        let mut mode = Inode::clone(&held.inode);
        let mtime = Some(Time::default());
        let touched = calls.set_attributes(&held, mode.clone(), mtime);
        assert_eq!(Act::of(&touched), Act::Touch(file(5)));
        mode.mode = 0o700;
        let both = calls.set_attributes(&held, mode, mtime);
        assert!(matches!(Act::of(&both), Act::Set { file: it, .. } if it == file(5)));
    }

    #[test]
    fn ops_that_are_about_no_name_have_their_words() {
        let lock = calls::lock(file(9), None, Device(0));
        assert_eq!(Act::of(&lock), Act::Lock(file(9)));
        assert_eq!(Act::of(&calls::unlock(file(9))), Act::Unlock(file(9)));
        assert_eq!(Act::of(&calls::claim(file(9), None)), Act::Claim(file(9)));
        let pass = calls::give_up(file(9), Some(Device(2)));
        let passed = Act::Pass {
            file: file(9),
            to: Device(2),
        };
        assert_eq!(Act::of(&Op::new(Vec::new(), vec![pass.clone()])), passed);
        // A device that changes a file whose lock it has gives the lock on with the change.
        let volume = volume();
        let calls = Calls {
            volume: &volume,
            time: Time::default(),
        };
        let mut set = calls.set_attributes(&held(9), text(), None);
        set.changes.push(pass);
        assert!(matches!(Act::of(&set), Act::Set { file: it, .. } if it == file(9)));
        let decision = Decision::RemoveDevice { device: Device(3) };
        let decided = calls::decide(decision.clone());
        assert_eq!(Act::of(&decided), Act::Decide(&decision));
        let principal = Principal::from_bytes([7; 32]);
        let fold = Fold {
            upto: 17,
            root: None,
        };
        let folded = calls::fold(principal, None, fold);
        let expected = Act::Fold {
            principal,
            upto: 17,
        };
        assert_eq!(Act::of(&folded), expected);
        let removes = Op::new(Vec::new(), vec![Change::Remove { file: file(9) }]);
        assert_eq!(Act::of(&removes), Act::Other);
    }
}
