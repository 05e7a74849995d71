//! What programs are told, and the entries that it rests on.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use trust::device::DeviceKey;
use trust::error::Reject;
use trust::tree::inode::Inode;
use trust_shared::hold::Ranges;
use trust_shared::members::Members;
use trust_shared::outcome::NoEffect;
use trust_shared::principal::{Device, FileId, Name, Target};

use super::feed::Feed;
use super::logged::History;

/// A file as it is after a prefix of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its number, with its owner.
    pub id: FileId,
    /// Its inode. That of a directory has no entries and size 0.
    pub inode: Arc<Inode>,
}

impl Hash for File {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id, self.inode.encode()).hash(state);
    }
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// Where it leads.
    pub target: Target,
    /// The file's inode, if the call asked for inodes. None too: the file is gone, or this user may not read it.
    pub file: Option<File>,
}

/// The entry that changed a file or its name last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Changed {
    /// Its position.
    pub at: u64,
    /// Its author.
    pub device: Device,
}

/// The members after a prefix of the log.
#[derive(Clone, Debug)]
pub struct Roll {
    /// Size of the prefix.
    pub at: u64,
    /// Members at every position.
    pub members: Arc<Members>,
}

/// Two rolls of one log are the same if they are of one size.
impl PartialEq for Roll {
    fn eq(&self, other: &Roll) -> bool {
        self.at == other.at
    }
}
impl Eq for Roll {}
impl Hash for Roll {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.at.hash(state);
    }
}

/// What a program is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To `Lookup`.
    Found(File),
    /// To `List`.
    Listed {
        /// The directory.
        directory: FileId,
        /// Its names.
        names: Vec<Listed>,
        /// There may be more after this name, which need not exist. None: these are the last ones.
        next: Option<Name>,
    },
    /// To `Members`.
    Members(Roll),
    /// To `History`.
    History(History),
    /// To `Changed`. None: this device does not know, because a fold has the change, or the checkpoint with which the
    /// device began.
    Changed(Option<Changed>),
    /// To `Root`. None: the log is shorter, or this device does not have its beginning.
    Root(Option<[u8; 32]>),
    /// To `Feed`.
    Feed(Feed),
    /// The call had effect on this file: a new one for `Create`, the one that was changed, moved or locked.
    Done(FileId),
    /// As `Done`, to `Create` and `Rename`: the name was taken from a file that another device had changed last.
    Replaced(FileId, Changed),
    /// To `Hold`: this device holds the ranges.
    Held {
        /// The file.
        file: FileId,
        /// Position since which the device has held something of the file without a gap.
        since: u64,
    },
    /// To `Holders`: each device that holds something of the file, and what.
    Holders(Vec<(Device, Ranges)>),
    /// A decision is made, or a fold.
    Settled,
    /// The call had no effect.
    Refused(Refused),
    /// The answer rests on an entry for which nobody speaks: the server or the device is silent.
    Silent {
        /// Position of the entry.
        position: u64,
        /// Its author.
        device: DeviceKey,
    },
}

/// Why a call has no effect, or no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// ENOENT.
    #[error("no such file, directory or member")]
    NotFound,
    /// EEXIST.
    #[error("it exists already")]
    Exists,
    /// ENOTEMPTY.
    #[error("it is not empty")]
    NotEmpty,
    /// ENOTDIR.
    #[error("it is not a directory")]
    NotADirectory,
    /// EISDIR.
    #[error("it is a directory")]
    IsADirectory,
    /// EINVAL: content can be set only of regular files.
    #[error("it is not a regular file")]
    NotRegular,
    /// EACCES.
    #[error("this device's user has no permission")]
    NotPermitted,
    /// EINVAL.
    #[error("a directory cannot be moved below itself")]
    BelowItself,
    /// EBUSY.
    #[error("the volume needs it")]
    Needed,
    /// ELOOP.
    #[error("too many symbolic links")]
    Loop,
    /// ESTALE: the file is not what the call expects, or its number leads nowhere any more.
    #[error("the file has changed since it was read")]
    Stale,
    /// EWOULDBLOCK.
    #[error("another device has the lock")]
    Locked,
    /// ENOLCK.
    #[error("this device does not have the lock")]
    NotLocked,
    /// EFBIG, EINVAL: no entry can hold what the call sets.
    #[error("the call is too large for an entry, or breaks a rule of inodes")]
    TooLarge,
    /// ENOSPC.
    #[error("the volume has too many members, or a file too many names")]
    TooMany,
    /// EINVAL: a directory is moved to another parent, and the call's places do not begin at the root directory.
    #[error("the way from the root directory must be given")]
    NeedsPath,
    /// The volume is asked for as it was at a position that this device has forgotten.
    #[error(
        "this device knows the volume as it was after entry {0} and later, and not as it was before"
    )]
    Forgotten(u64),
    /// The volume is asked for as it was at a position that the log does not have.
    #[error("the log ends before that entry")]
    Beyond,
    /// EIO: something that a member signed breaks a rule.
    #[error("a member signed something malformed: {0}")]
    Damaged(String),
    /// EIO: an entry or a block of a later format.
    #[error("a newer bulla is needed: {0}")]
    Unsupported(String),
    /// ENOSPC: more changes since the last folds than a device keeps.
    #[error("too many changes since the last folds")]
    Full,
}

impl From<NoEffect> for Refused {
    fn from(why: NoEffect) -> Refused {
        match why {
            NoEffect::NotPermitted => Refused::NotPermitted,
            NoEffect::Exists => Refused::Exists,
            NoEffect::NotFound => Refused::NotFound,
            NoEffect::NotEmpty => Refused::NotEmpty,
            NoEffect::NotADirectory => Refused::NotADirectory,
            NoEffect::IsADirectory => Refused::IsADirectory,
            NoEffect::Needed => Refused::Needed,
            NoEffect::Stale => Refused::Stale,
            NoEffect::Locked => Refused::Locked,
            NoEffect::LockLost => Refused::NotLocked,
            NoEffect::BelowItself => Refused::BelowItself,
            NoEffect::TooMany => Refused::TooMany,
            NoEffect::Misformed => Refused::Damaged(why.to_string()),
            NoEffect::Damaged => Refused::Damaged(why.to_string()),
        }
    }
}

impl From<Reject> for Refused {
    fn from(why: Reject) -> Refused {
        match why {
            Reject::Unsupported { .. } => Refused::Unsupported(why.to_string()),
            why => Refused::Damaged(why.to_string()),
        }
    }
}

/// Entries that an answer rests on: positions, ascending, each with its author.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Basis(Vec<(u64, DeviceKey)>);

impl Basis {
    /// These entries.
    pub fn new(mut entries: Vec<(u64, DeviceKey)>) -> Basis {
        entries.sort_unstable();
        entries.dedup();
        Basis(entries)
    }

    /// The entries, by position.
    pub fn entries(&self) -> &[(u64, DeviceKey)] {
        &self.0
    }
}

impl ordering::volume::Basis<DeviceKey> for Basis {
    fn filter(&self, mut keep: impl FnMut(u64, DeviceKey) -> bool) -> Basis {
        let kept = self.0.iter().filter(|(at, author)| keep(*at, *author));
        Basis(kept.copied().collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
