//! The protocol's nouns with symbolic hashes and signatures: what clients sign, what servers order, what travels.
//!
//! A hash is the 128-bit fingerprint of what is hashed, so two things have one hash only if they are equal. A signature
//! is the name of the key in the thing that is signed.

use std::fmt;
use std::hash::Hash;
use std::rc::Rc;

use trust_shared::form::Point as PointOf;

use crate::symbolic::Symbolic;
use crate::wide::Wide;

/// Number of a device. Device 0 is the administrator.
pub type Device = u8;
pub const ADMIN: Device = 0;

pub fn letter(device: Device) -> char {
    char::from(b'A' + device)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Id(pub u128);

impl Id {
    pub fn of(thing: &impl Hash) -> Id {
        let mut wide = Wide::default();
        thing.hash(&mut wide);
        Id(wide.finish128())
    }
}

/// Number of a device's run. The product draws it at random; here the world gives a fresh one.
pub type Incarnation = u8;
pub type Point = PointOf<Id>;
pub type Heading = trust_shared::form::Heading<Id, Incarnation>;

/// A system call of one device: its number names both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u8);

/// System calls that one device can make.
pub const CALLS: u8 = 7;

impl CallId {
    pub fn new(device: Device, number: u8) -> CallId {
        assert!(number < CALLS && device < 4);
        CallId(device * CALLS + number)
    }

    pub fn device(self) -> Device {
        self.0 / CALLS
    }

    pub fn bit(self) -> u32 {
        1 << self.0
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", letter(self.device()), self.0 % CALLS + 1)
    }
}

/// What a program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// Appends the call's name to a file; answers with the content.
    Append(u8),
    /// Replaces a file's content by the call's name.
    Put(u8),
    /// Opens and reads a file.
    Read(u8),
    /// Creates a name in the root directory; fails if it exists.
    Create(u8),
    /// Moves directory `.0` into directory `.1`. Directory 0 is the root.
    Move(u8, u8),
    /// Only the administrator may write the file from now on.
    Close(u8),
    /// Admits or removes a device.
    Admit(Device),
    Remove(Device),
    /// Counts what a silent device wrote.
    Accept(Device),
    /// Folds all that is attested.
    Fold,
    /// Takes a file's lock for the program, or renews it.
    Lock(u8),
    /// Gives it up.
    Unlock(u8),
    /// Replaces a file's content by the call's name, if the caller still has the lock.
    PutLocked(u8),
    /// Gives on a lock that the device has for one change. No program calls this, the engine does.
    GiveUp(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Content(Content),
    Done,
    Exists,
    Invalid,
    Denied,
    /// The server or a device is silent.
    Io,
    /// The lock was taken over.
    Lost,
    /// Another device has the lock. Programs are never told so: their calls wait.
    Locked,
}

/// Content of a file: the calls that wrote it, five bits each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Content(pub u128);

impl Content {
    pub fn with(self, call: CallId) -> Content {
        assert!(self.0 >> 123 == 0, "a file of more than 24 appends");
        Content(self.0 << 5 | u128::from(call.0 + 1))
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = (0..25).rev().map(|at| (self.0 >> (5 * at)) as u8 & 31);
        let calls = parts.filter(|part| *part != 0).map(|part| CallId(part - 1));
        f.debug_list().entries(calls).finish()
    }
}

/// What guards look at and changes set. All values are numbers; what nobody set is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Key {
    /// Content of a file.
    File(u8),
    /// A name in the root directory: 1 if it is there.
    Name(u8),
    /// The directory that a directory lies in. 0: the root.
    Parent(u8),
    /// Who has locked a file: device + 1.
    Lock(u8),
    /// Where the lock was taken or renewed last: position + 1.
    Renewed(u8),
    /// 1 if only the administrator may write the file.
    Closed(u8),
    /// How far the last fold goes.
    Folded,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    pub key: Key,
    pub is: u128,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    Set(Key, u128),
    Member {
        device: Device,
        active: bool,
    },
    Accept(Device),
    Fold {
        upto: u64,
    },
    /// The author takes a file's lock, or renews it.
    Lock(u8),
    /// The author gives it up.
    Unlock(u8),
    /// The author gives it to another device.
    Pass(u8, Device),
    /// The author takes the lock for a write. While another device has it, this only says that the author waits.
    Claim(u8),
}

/// One system call in an entry: all of it happens at the entry's position, or nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    pub call: CallId,
    /// The call is done when this has effect. Not so for an op that only takes a lock.
    pub completes: bool,
    pub guards: Vec<Guard>,
    pub changes: Vec<Change>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Body {
    /// The epoch of the log: 0, or 1 after a recovery.
    pub epoch: u8,
    pub device: Device,
    /// Whose key signed it.
    pub signed_by: Device,
    pub heading: Heading,
    pub ops: Vec<Op>,
}

#[derive(Debug)]
pub struct Entry {
    pub body: Body,
    pub id: Id,
}

impl Entry {
    pub fn new(body: Body) -> Rc<Entry> {
        let id = Id::of(&body);
        Rc::new(Entry { body, id })
    }
}

/// A nonce under a group commit's leaf: it has no author that anybody could check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Mark {
    pub device: Device,
    pub number: u8,
}

/// "I have seen this prefix, and my last entry is in it."
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Attest {
    pub epoch: u8,
    pub device: Device,
    pub size: u64,
    pub root: Id,
}

pub type Leaf = ordering::scheme::Leaf<Symbolic>;
pub type Request = ordering::engine::Request<Symbolic>;
pub type Reply = ordering::engine::Reply<Symbolic>;

/// Different for different leaves.
pub fn leaf_id(leaf: &Leaf) -> Id {
    match leaf {
        Leaf::Entry(entry) => entry.id,
        Leaf::Marks(marks) => Id::of(marks),
    }
}

/// The leaf of a group commit with one mark.
pub fn marked(mark: Mark) -> Leaf {
    Leaf::Marks(Rc::from([mark]))
}
