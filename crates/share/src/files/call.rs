//! What programs ask of a volume. The bytes of a call, for the journal, are in `codec`.

use std::hash::{Hash, Hasher};
use std::time::SystemTime;

use bytes::Bytes;
use trust::array::ArrayRoot;
use trust::handle::{Handle, InodeBlock};
use trust::tree::inode::{Content, FileContent, Inode, Owner, Time, Xattrs};
use trust_shared::decision::Decision;
use trust_shared::hold::{Family, Ranges};
use trust_shared::principal::{FileId, Name, Principal};

use super::feed::Cursor;

/// Most names of a place.
pub const MAX_PLACE_NAMES: usize = 4096;
/// Longest call that changes something, bytes: the journal keeps it with its entry. A path of 1,100 names can be
/// longer, and it is others who choose names.
pub const MAX_CALL_BYTES: usize = 64 << 10;
/// Most names that one call lists.
pub const MAX_LISTED: u32 = 1024;
/// Most names that one call lists with their inodes.
pub const MAX_LISTED_INODES: u32 = 256;

/// A file by a path. Symbolic links in the middle are followed within the volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Where the path begins: mostly the root directory of the volume.
    pub start: FileId,
    /// The names. Without any, the place is the start.
    pub path: Vec<Name>,
}

/// A file by its number, or by a path. A symbolic link at the end of the path is followed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileRef {
    /// This file, whatever its names are.
    File(FileId),
    /// The file at this place.
    Place(Place),
}

/// What rename does with the new name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// A file that the new name led to loses the name.
    Replace,
    /// The new name must be free.
    Refuse,
    /// Both names change places.
    Exchange,
    /// As `Replace`, if the new name leads to what the caller has seen. Otherwise the call is refused as stale.
    Seen(Seen),
}

/// What a new file may take the name from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The name must be free.
    Nothing,
    /// A file that the name led to loses the name. A directory does not.
    Any,
    /// As `Any`, if the name leads to what the caller has seen. Otherwise the call is refused as stale.
    Seen(Seen),
}

impl From<bool> for Replace {
    fn from(replaces: bool) -> Replace {
        match replaces {
            true => Replace::Any,
            false => Replace::Nothing,
        }
    }
}

/// What a caller has seen under a name: a file with its content, or nothing. Attributes of the file do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen(pub Option<(FileId, Content)>);

/// Attributes to set. Those that are not given stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Time of last modification.
    pub mtime: Option<Time>,
    /// Numeric user and group.
    pub owner: Option<Owner>,
    /// Extended attributes that get a value, or go.
    pub xattrs: Vec<(Bytes, Option<Bytes>)>,
}

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The file at a place.
    Lookup {
        /// The place.
        place: Place,
        /// A symbolic link at the end is followed.
        follow: bool,
    },
    /// The names of a directory, in the order of their bytes.
    List {
        /// The directory.
        directory: FileRef,
        /// The names after this one.
        after: Option<Name>,
        /// At most so many. [`MAX_LISTED`] and [`MAX_LISTED_INODES`] bound it.
        most: u32,
        /// With their inodes.
        inodes: bool,
    },
    /// Who is a member, and may do what.
    Members,
    /// What [`Call::Lookup`] or [`Call::List`] says at the end of an earlier prefix of the log. This device's user needs
    /// the permission that it has now.
    At {
        /// Size of the prefix.
        size: u64,
        /// The call.
        call: Box<Call>,
    },
    /// Entries of the log, newest first. Only [`Client::look`](crate::client::Client::look) answers it.
    History {
        /// Those before this position. None: the newest.
        before: Option<u64>,
        /// At most so many. [`MAX_LOGGED`](super::MAX_LOGGED) bounds it.
        most: u32,
    },
    /// Which entry changed the file at a place last, or its name.
    Changed {
        /// The place. A symbolic link at its end is not followed.
        place: Place,
    },
    /// The root of a prefix of the log. Only [`Client::look`](crate::client::Client::look) answers it.
    Root {
        /// Size of the prefix.
        size: u64,
    },
    /// What may have changed since a cursor. Only [`Client::look`](crate::client::Client::look) answers it.
    Feed {
        /// What the program has been told up to. None: it has been told nothing.
        since: Option<Cursor>,
        /// Waits until there is something to tell.
        wait: bool,
        /// How long an entry of another device for which nobody speaks is waited for, from when the question meets it,
        /// milliseconds. It and those after it are told of then. With 0 they are told of at once.
        hold_ms: u32,
    },
    /// A new file of any kind.
    Create {
        /// Its name.
        place: Place,
        /// Its number among those of this device: one that the device has never used.
        number: u64,
        /// Kind, attributes, content.
        inode: Box<Inode>,
        /// Whose file it is. None: the owner of the directory.
        owner: Option<Principal>,
        /// What it may take the name from.
        replace: Replace,
    },
    /// Other content of a regular file.
    SetContent {
        /// The file.
        file: FileRef,
        /// Its content.
        content: Content,
        /// Time of modification.
        mtime: Time,
        /// The content that this one was made of. When the file has another one, the call is refused as stale.
        expect: Option<Content>,
    },
    /// Other attributes.
    SetAttributes {
        /// The file.
        file: FileRef,
        /// What to set.
        attributes: Attributes,
        /// The inode that the caller has seen. When the file has another one, the call is refused as stale.
        expect: Option<Handle<InodeBlock>>,
    },
    /// Removes a name of a file that is no directory.
    Unlink {
        /// The name.
        place: Place,
    },
    /// Removes an empty directory.
    Rmdir {
        /// Its name.
        place: Place,
    },
    /// Moves a file, or renames it.
    Rename {
        /// Its name.
        from: Place,
        /// Its new name.
        to: Place,
        /// What happens to a file that the new name led to.
        over: Over,
    },
    /// One more name for a file.
    Link {
        /// The file.
        file: FileRef,
        /// The name.
        to: Place,
    },
    /// A decision about members.
    Decide(Decision),
    /// Folds the changes of a principal's files into its i-table.
    Fold(Principal),
    /// Takes the lock of a file for this device.
    Lock {
        /// The file.
        file: FileRef,
        /// Waits while another device has it. Else the call is refused then.
        wait: bool,
    },
    /// Gives a lock up.
    Unlock {
        /// The file.
        file: FileRef,
    },
    /// What this device holds of a file for its programs from now on, and nothing else of it. What another device holds
    /// that has not renewed it for its time to live is taken over.
    Hold {
        /// The file.
        file: FileRef,
        /// The family of locks.
        family: Family,
        /// The ranges that the device then holds.
        ranges: Ranges,
        /// Waits while another device holds what clashes. Else the call is refused then.
        wait: bool,
        /// Prefix of the log that the caller has known for the time to live of locks, 0 if it does not know. What was
        /// renewed before it for the last time may be taken over. A device sees by itself only which locks run out while
        /// a call waits.
        lapsed: u64,
    },
    /// This device holds nothing of a file any more.
    Release {
        /// The file.
        file: FileRef,
        /// The family of locks.
        family: Family,
    },
    /// What devices hold of a file for their programs.
    Holders {
        /// The file.
        file: FileRef,
        /// The family of locks.
        family: Family,
    },
    /// Sets content that was written under locks of programs: it has no effect unless this device has held the file since
    /// these positions without a gap.
    Under {
        /// The families, and since when. [`Answer::Held`](super::Answer::Held) says it.
        locks: Vec<(Family, u64)>,
        /// A [`Call::SetContent`].
        call: Box<Call>,
    },
}

/// A call, and when its program made it. However often it is built, its ops have this time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stamped {
    /// By the clock of the device.
    pub time: Time,
    /// The call.
    pub call: Call,
}

impl From<Call> for Stamped {
    /// A call that is made now.
    fn from(call: Call) -> Stamped {
        let time = SystemTime::now().into();
        Stamped { time, call }
    }
}

impl Call {
    /// The trees of blocks that the call names: content, and long extended attributes.
    pub fn arrays(&self) -> Vec<ArrayRoot> {
        let (content, xattrs) = match self {
            Call::Create { inode, .. } => (&inode.content, Some(&inode.xattrs)),
            Call::SetContent { content, .. } => (content, None),
            Call::Under { call, .. } => return call.arrays(),
            _ => return Vec::new(),
        };
        let mut roots = Vec::new();
        if let Content::Regular(FileContent::Array(root)) = content {
            roots.push(*root);
        }
        if let Some(Xattrs::Stored(root)) = xattrs {
            roots.push(*root);
        }
        roots
    }

    /// Whether the call never changes anything.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Call::Lookup { .. }
                | Call::List { .. }
                | Call::Members
                | Call::At { .. }
                | Call::Changed { .. }
                | Call::History { .. }
                | Call::Root { .. }
                | Call::Feed { .. }
                | Call::Holders { .. }
        )
    }
}

/// Inodes and contents have no hash of their own; their encodings do.
impl Hash for Call {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.encode().hash(state);
    }
}
