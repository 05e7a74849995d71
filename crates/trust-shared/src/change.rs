//! What an op changes: one value for each key. Relies on [`super::key`], [`super::decision`] and
//! [`trust::tree::inode`].

use std::sync::Arc;

use super::decision::Decision;
use super::hold::{Family, Ranges};
use super::itable::{Fold, MAX_TABLE_INLINE_BYTES};
use super::key::Key;
use super::principal::{Device, FileId, Name, Principal, Reader, Target, Writer};
use trust::error::Reject;
use trust::tree::inode::{Content, Inode, MAX_INODE_BYTES, Time};

/// One change of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The file gets this inode. A directory gets its attributes and keeps its entries and its time of modification; its
    /// inode here has neither.
    Set {
        /// The file. A new one has a number of the author's device.
        file: FileId,
        /// Its inode.
        inode: Arc<Inode>,
    },
    /// The file is gone. A directory must be empty.
    Remove {
        /// The file.
        file: FileId,
    },
    /// The name leads to this file from now on.
    Link {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Name,
        /// What it leads to.
        target: Target,
    },
    /// The name is gone.
    Unlink {
        /// The directory.
        directory: FileId,
        /// The name in it.
        name: Name,
    },
    /// A new base for all files of a principal.
    Fold {
        /// The principal.
        principal: Principal,
        /// How far the fold goes, and its tree.
        fold: Fold,
    },
    /// The author's device takes the lock, or renews it.
    Lock {
        /// The file.
        file: FileId,
    },
    /// The author's device gives the lock up.
    Unlock {
        /// The file.
        file: FileId,
    },
    /// The author's device gives the lock to another device, which is to make its next change now.
    Pass {
        /// The file.
        file: FileId,
        /// The device that has the lock from now on.
        to: Device,
    },
    /// The author's device takes the lock for its next change of the file. While another device has the lock this has
    /// no effect, and says to everybody that the author waits for it.
    Claim {
        /// The file.
        file: FileId,
    },
    /// The directory gets these times. Without a guard, so that two devices that change names in one directory do not
    /// meet. It goes with each change of a name, and with the directory's first inode.
    Touch {
        /// The directory.
        directory: FileId,
        /// Last change of its names, or what a program set.
        mtime: Time,
        /// When this was changed.
        ctime: Time,
    },
    /// The author's device holds these ranges of the file for its programs, and nothing else of it.
    Hold {
        /// The file.
        file: FileId,
        /// The family of locks.
        family: Family,
        /// The author's device.
        device: Device,
        /// The ranges that the device then holds.
        ranges: Ranges,
        /// Since when the device has held something. None: it has held nothing.
        since: Option<u64>,
    },
    /// A device holds nothing of the file any more: the author's, or another one, which has not renewed it for its time to
    /// live ([`Guard::HoldLast`](super::guard::Guard::HoldLast)).
    Release {
        /// The file.
        file: FileId,
        /// The family of locks.
        family: Family,
        /// The device.
        device: Device,
    },
    /// A change of members, or an Accept. It takes effect at a later entry of its author.
    Decide(Decision),
}

impl Change {
    /// What it changes.
    pub fn key(&self) -> Key {
        match self {
            Change::Set { file, .. } | Change::Remove { file } => Key::Inode(*file),
            Change::Link {
                directory, name, ..
            }
            | Change::Unlink { directory, name } => Key::Entry(*directory, name.clone()),
            Change::Fold { principal, .. } => Key::Fold(*principal),
            Change::Lock { file }
            | Change::Unlock { file }
            | Change::Pass { file, .. }
            | Change::Claim { file } => Key::Lock(*file),
            Change::Touch { directory, .. } => Key::Times(*directory),
            Change::Hold {
                file,
                family,
                device,
                ..
            }
            | Change::Release {
                file,
                family,
                device,
            } => Key::Hold(*file, *family, *device),
            Change::Decide(decision) => decision.key(),
        }
    }

    /// The principals that the change names.
    pub fn principals(&self) -> impl Iterator<Item = Principal> {
        let other = match self {
            Change::Link { target, .. } => Some(target.file.principal),
            Change::Decide(Decision::AdmitDevice { user, .. }) => Some(*user),
            _ => None,
        };
        self.key().principals().chain(other)
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        match self {
            Change::Set { file, inode } => {
                w.out.u8(1);
                w.file(file);
                w.out.bytes(&inode.encode());
            }
            Change::Remove { file } => {
                w.out.u8(2);
                w.file(file);
            }
            Change::Link {
                directory,
                name,
                target,
            } => {
                w.out.u8(3);
                w.file(directory);
                name.encode(&mut w.out);
                w.target(target);
            }
            Change::Unlink { directory, name } => {
                w.out.u8(4);
                w.file(directory);
                name.encode(&mut w.out);
            }
            Change::Lock { file } => {
                w.out.u8(5);
                w.file(file);
            }
            Change::Unlock { file } => {
                w.out.u8(6);
                w.file(file);
            }
            Change::Fold { principal, fold } => {
                w.out.u8(7);
                w.principal(principal);
                fold.encode(&mut w.out);
            }
            Change::Pass { file, to } => {
                w.out.u8(16);
                w.file(file);
                to.encode(&mut w.out);
            }
            Change::Claim { file } => {
                w.out.u8(17);
                w.file(file);
            }
            Change::Touch {
                directory,
                mtime,
                ctime,
            } => {
                w.out.u8(19);
                w.file(directory);
                mtime.encode(&mut w.out);
                ctime.encode(&mut w.out);
            }
            Change::Hold {
                file,
                family,
                device,
                ranges,
                since,
            } => {
                w.out.u8(if since.is_some() { 21 } else { 20 });
                w.held((file, *family), *device);
                ranges.encode(&mut w.out);
                if let Some(since) = since {
                    w.out.varint(*since);
                }
            }
            Change::Release {
                file,
                family,
                device,
            } => {
                w.out.u8(22);
                w.held((file, *family), *device);
            }
            Change::Decide(decision) => decision.encode(w),
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Change, Reject> {
        Ok(match r.rest.u8()? {
            1 => Change::Set {
                file: r.file()?,
                inode: decode_inode(r)?,
            },
            2 => Change::Remove { file: r.file()? },
            3 => Change::Link {
                directory: r.file()?,
                name: Name::decode(&mut r.rest)?,
                target: r.target()?,
            },
            4 => Change::Unlink {
                directory: r.file()?,
                name: Name::decode(&mut r.rest)?,
            },
            5 => Change::Lock { file: r.file()? },
            6 => Change::Unlock { file: r.file()? },
            7 => Change::Fold {
                principal: r.principal()?,
                fold: Fold::decode(&mut r.rest)?,
            },
            16 => Change::Pass {
                file: r.file()?,
                to: Device::decode(&mut r.rest)?,
            },
            17 => Change::Claim { file: r.file()? },
            19 => Change::Touch {
                directory: r.file()?,
                mtime: Time::decode(&mut r.rest)?,
                ctime: Time::decode(&mut r.rest)?,
            },
            tag @ (20 | 21) => {
                let ((file, family), device) = r.held()?;
                Change::Hold {
                    file,
                    family,
                    device,
                    ranges: Ranges::decode(&mut r.rest)?,
                    since: if tag == 21 {
                        Some(r.rest.varint()?)
                    } else {
                        None
                    },
                }
            }
            22 => {
                let ((file, family), device) = r.held()?;
                Change::Release {
                    file,
                    family,
                    device,
                }
            }
            tag => Change::Decide(Decision::decode(tag, r)?),
        })
    }
}

/// An inode as a Set holds it. The entries of a directory and its time of modification are other keys, so its inode here
/// has none.
fn decode_inode(r: &mut Reader<'_>) -> Result<Arc<Inode>, Reject> {
    let bytes = r.rest.bytes(MAX_INODE_BYTES)?;
    let inode = Inode::decode_within(bytes, MAX_TABLE_INLINE_BYTES)?;
    match inode.content {
        Content::Directory {
            map: None,
            opaque: false,
        } if inode.mtime != Time::default() => {
            let why = "a directory's inode with a time of modification";
            return Err(r.rest.bad(why));
        }
        Content::Directory {
            map: None,
            opaque: false,
        } => {}
        Content::Directory { .. } => {
            return Err(r.rest.bad("a directory's inode with entries, or opaque"));
        }
        _ => {}
    }
    Ok(Arc::new(inode))
}
