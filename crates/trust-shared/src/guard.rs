//! What must hold at an op's position for the op to have effect. Relies on [`super::principal`] for names; that a
//! guard holds is judged in [`super::effect`].

use super::hold::Family;
use super::itable::Fold;
use super::principal::{Device, FileId, Name, Principal, Reader, Target, Writer};
use trust::error::Reject;
use trust::handle::{Handle, InodeBlock};

/// A condition on one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// The file's inode has this hash, or there is no such file. A directory is hashed without its entries.
    HashIs {
        /// The file.
        file: FileId,
        /// Hash of its inode.
        is: Option<Handle<InodeBlock>>,
    },
    /// The name leads there, or nowhere.
    EntryIs {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Name,
        /// What it leads to.
        is: Option<Target>,
    },
    /// The directory has no entries.
    Empty {
        /// The directory.
        directory: FileId,
    },
    /// The name leads to the directory: it has not been moved or removed.
    Linked {
        /// The directory.
        directory: FileId,
        /// The directory above it.
        parent: FileId,
        /// Its name there.
        name: Name,
    },
    /// The principal's last fold is this one.
    FoldIs {
        /// The principal.
        principal: Principal,
        /// Its fold; none: there is none yet.
        is: Option<Fold>,
    },
    /// Nobody has the lock of the file.
    Unlocked {
        /// The file.
        file: FileId,
    },
    /// The author's device has the lock of the file.
    Holds {
        /// The file.
        file: FileId,
    },
    /// Somebody has the lock, and has renewed it at this position for the last time.
    HolderLast {
        /// The file.
        file: FileId,
        /// The position of the Lock change.
        position: u64,
    },
    /// The device holds something of the file, and has set or renewed it at this position for the last time.
    HoldLast {
        /// The file.
        file: FileId,
        /// The family of locks.
        family: Family,
        /// The device.
        device: Device,
        /// The position of the Hold change.
        position: u64,
    },
    /// The device has held something of the file without a gap since this position.
    HeldSince {
        /// The file.
        file: FileId,
        /// The family of locks.
        family: Family,
        /// The device.
        device: Device,
        /// The position of the Hold change that began it.
        position: u64,
    },
}

impl Guard {
    /// The principals that the guard names.
    pub fn principals(&self) -> impl Iterator<Item = Principal> {
        let (first, second) = match self {
            Guard::HashIs { file, .. }
            | Guard::Unlocked { file }
            | Guard::Holds { file }
            | Guard::HolderLast { file, .. }
            | Guard::HoldLast { file, .. }
            | Guard::HeldSince { file, .. } => (file.principal, None),
            Guard::EntryIs { directory, is, .. } => {
                (directory.principal, is.map(|target| target.file.principal))
            }
            Guard::Empty { directory } => (directory.principal, None),
            Guard::Linked {
                directory, parent, ..
            } => (directory.principal, Some(parent.principal)),
            Guard::FoldIs { principal, .. } => (*principal, None),
        };
        [first].into_iter().chain(second)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        match self {
            Guard::HashIs { file, is: Some(is) } => {
                w.out.u8(1);
                w.file(file);
                w.out.raw(is.as_bytes());
            }
            Guard::HashIs { file, is: None } => {
                w.out.u8(2);
                w.file(file);
            }
            Guard::EntryIs {
                directory,
                name,
                is,
            } => {
                w.out.u8(if is.is_some() { 3 } else { 4 });
                w.file(directory);
                name.encode(&mut w.out);
                if let Some(target) = is {
                    w.target(target);
                }
            }
            Guard::Empty { directory } => {
                w.out.u8(5);
                w.file(directory);
            }
            Guard::Linked {
                directory,
                parent,
                name,
            } => {
                w.out.u8(6);
                w.file(directory);
                w.file(parent);
                name.encode(&mut w.out);
            }
            Guard::FoldIs { principal, is } => {
                w.out.u8(if is.is_some() { 7 } else { 8 });
                w.principal(principal);
                if let Some(fold) = is {
                    fold.encode(&mut w.out);
                }
            }
            Guard::Unlocked { file } => {
                w.out.u8(9);
                w.file(file);
            }
            Guard::Holds { file } => {
                w.out.u8(10);
                w.file(file);
            }
            Guard::HolderLast { file, position } => {
                w.out.u8(11);
                w.file(file);
                w.out.varint(*position);
            }
            Guard::HoldLast {
                file,
                family,
                device,
                position,
            } => {
                w.out.u8(12);
                w.held((file, *family), *device);
                w.out.varint(*position);
            }
            Guard::HeldSince {
                file,
                family,
                device,
                position,
            } => {
                w.out.u8(13);
                w.held((file, *family), *device);
                w.out.varint(*position);
            }
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Guard, Reject> {
        Ok(match r.rest.u8()? {
            1 => Guard::HashIs {
                file: r.file()?,
                is: Some(Handle::from_bytes(r.rest.array()?)),
            },
            2 => Guard::HashIs {
                file: r.file()?,
                is: None,
            },
            tag @ (3 | 4) => Guard::EntryIs {
                directory: r.file()?,
                name: Name::decode(&mut r.rest)?,
                is: if tag == 3 { Some(r.target()?) } else { None },
            },
            5 => Guard::Empty {
                directory: r.file()?,
            },
            6 => Guard::Linked {
                directory: r.file()?,
                parent: r.file()?,
                name: Name::decode(&mut r.rest)?,
            },
            tag @ (7 | 8) => Guard::FoldIs {
                principal: r.principal()?,
                is: if tag == 7 {
                    Some(Fold::decode(&mut r.rest)?)
                } else {
                    None
                },
            },
            9 => Guard::Unlocked { file: r.file()? },
            10 => Guard::Holds { file: r.file()? },
            11 => Guard::HolderLast {
                file: r.file()?,
                position: r.rest.varint()?,
            },
            tag @ (12 | 13) => {
                let ((file, family), device) = r.held()?;
                let position = r.rest.varint()?;
                match tag {
                    12 => Guard::HoldLast {
                        file,
                        family,
                        device,
                        position,
                    },
                    _ => Guard::HeldSince {
                        file,
                        family,
                        device,
                        position,
                    },
                }
            }
            _ => return Err(r.rest.bad("an unknown kind of guard")),
        })
    }
}
