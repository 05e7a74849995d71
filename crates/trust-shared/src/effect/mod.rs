//! Which ops have effect, and the values after them (design `share.md`, *The log*).
//!
//! An op has effect if its author may make its changes and all its guards hold at its position; else nothing of it
//! happens. Permission is judged here, for each op, and is no part of an entry's form: who may write depends on state
//! that devices do not have when they judge form.
//!
//! | module | what it does |
//! |---|---|
//! | `shape` | the guards that a change needs, and those that it may have |
//! | `judge` | permission, guards and implied conditions of one op, over any source of values |
//! | [`replay`] | keeps outlines, and evaluates only what a question depends on |
//!
//! Evaluation does not wait: what is not here is named in [`Missing`], and the caller fetches it and asks again. The
//! tests compare it with an evaluation of every op in the order of the log (`tests/effect/state.rs`), which has the same
//! judge.

use std::sync::Arc;

use super::fold::first_root_directory;
use super::hold::{Family, Hold};
use super::itable::{Fold, Known, Tables, attributes};
use super::ops::Body;
use super::principal::{Device, FileId, Name, Principal, Target};
use trust::error::Reject;
use trust::handle::{Handle, Hasher, InodeBlock};
use trust::reach::Wanted;
use trust::tree::inode::Inode;
use trust::tree::map::MapRoot;
use trust::volume_id::VolumeId;

mod judge;
pub mod replay;
mod shape;
#[cfg(feature = "reference")]
#[path = "../../tests/effect/state.rs"]
pub mod state;

pub use super::itable::{Blocks, Times};
pub use replay::{About, Replay};
#[cfg(feature = "reference")]
pub use state::State;

/// What is fixed for a volume.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Hashes inodes and nodes.
    pub hasher: Hasher,
    /// The root directory. It exists from the beginning.
    pub root: FileId,
}

impl Volume {
    /// A volume by its id. Its group, which owns the root directory, has the id's bytes.
    pub fn new(id: VolumeId, hasher: Hasher) -> Volume {
        let root = FileId::first_of(Principal::from_bytes(*id.as_bytes()));
        Volume { hasher, root }
    }

    /// The hash of a file's inode that a guard names; of a directory's, without its entries and times.
    pub fn inode_hash(&self, inode: &Inode) -> Handle<InodeBlock> {
        let inode = attributes(inode.clone());
        self.hasher.handle(&inode.encode())
    }
}

/// The lock of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The device that has it.
    pub holder: Device,
    /// Position at which the holder took or renewed it last.
    pub last: u64,
}

/// The bodies of entries, for evaluation that reads only some of them.
pub trait Bodies {
    /// The body of the entry at a position, if it is here. Its hash is that of the entry.
    ///
    /// # Errors
    /// Those of [`Body::decode`]. A malformed body has no ops.
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject>;
}

/// What evaluation needs and does not have. With it, the same question gets further.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Nodes and inodes.
    pub blocks: Vec<Wanted>,
    /// Positions of entries whose bodies are needed.
    pub bodies: Vec<u64>,
}

impl Missing {
    /// Most things that are named at a time.
    const MOST: usize = 256;

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.bodies.is_empty()
    }

    fn is_long(&self) -> bool {
        self.blocks.len() + self.bodies.len() >= Missing::MOST
    }

    /// Notes what a question misses. The error: it has no answer, or so much is missing that it is fetched first.
    fn unless<T>(&mut self, asked: Result<T, Stop>) -> Result<Option<T>, Stop> {
        match asked {
            Err(Stop::Missing(more)) => {
                self.add(more);
                match self.is_long() {
                    true => Err(Stop::Missing(std::mem::take(self))),
                    false => Ok(None),
                }
            }
            other => other.map(Some),
        }
    }

    /// The answer, if nothing is missing.
    fn or<T>(self, answer: T) -> Result<T, Stop> {
        match self.is_empty() {
            true => Ok(answer),
            false => Err(Stop::Missing(self)),
        }
    }

    /// Adds what else is missing.
    pub fn add(&mut self, other: Missing) {
        for wanted in other.blocks {
            if !self.blocks.contains(&wanted) {
                self.blocks.push(wanted);
            }
        }
        for position in other.bodies {
            self.add_body(position);
        }
    }

    /// Adds the body of the entry at a position. Many ops of one entry miss the same one.
    fn add_body(&mut self, position: u64) {
        if self.bodies.last() != Some(&position) && !self.bodies.contains(&position) {
            self.bodies.push(position);
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Fetch this, and ask again.
    #[error("blocks or bodies are missing")]
    Missing(Missing),
    /// The value lies in a tree that a member signed and that breaks a rule, or that needs a newer bulla.
    #[error(transparent)]
    Refused(#[from] Reject),
    /// The entry is not after the last one, or the position that is asked about is not kept.
    #[error("no such position")]
    NoPosition,
    /// More ops than are kept at a time. Fold, and forget what is folded.
    #[error("too many ops since the last folds")]
    Full,
}

/// The times of a directory as the last fold has them.
fn folded_times<B: Blocks>(
    tables: &mut Tables<'_, B>,
    volume: &Volume,
    fold: Option<&Fold>,
    directory: &FileId,
) -> Known<Times> {
    let inode = folded_inode(tables, volume, fold, directory);
    inode.map(|inode| inode.as_ref().map_or(Times::default(), Times::of))
}

/// The inode of a file as the last fold has it, a directory's with its entries.
fn folded_inode<B: Blocks>(
    tables: &mut Tables<'_, B>,
    volume: &Volume,
    fold: Option<&Fold>,
    file: &FileId,
) -> Known<Option<Inode>> {
    match fold {
        Some(fold) => tables.inode(fold.root.as_ref(), &file.number),
        None => Known::Is((*file == volume.root).then(first_root_directory)),
    }
}

/// Where a name leads as the last fold has it.
fn folded_entry<B: Blocks>(
    tables: &mut Tables<'_, B>,
    fold: Option<&Fold>,
    directory: &FileId,
    name: &Name,
) -> Known<Option<Target>> {
    let table = fold.and_then(|fold| fold.root.as_ref());
    tables.entry(table, &directory.number, name)
}

/// Names of a directory as the last fold has them.
fn folded_names<B: Blocks>(
    tables: &mut Tables<'_, B>,
    fold: Option<&Fold>,
    directory: &FileId,
    after: Option<&Name>,
    most: usize,
) -> Known<Vec<(Name, Target)>> {
    let table = fold.and_then(|fold| fold.root.as_ref());
    tables.names(table, &directory.number, after, most)
}

/// The entries of a directory as the last fold has them.
fn folded_entries<B: Blocks>(
    tables: &mut Tables<'_, B>,
    fold: Option<&Fold>,
    directory: &FileId,
) -> Known<Option<MapRoot>> {
    let table = fold.and_then(|fold| fold.root.as_ref());
    tables.directory(table, &directory.number)
}

/// The answer to a question whose tasks are done.
fn answer<T, B>(known: Known<T>, tables: Tables<'_, B>, bodies: Vec<u64>) -> Result<T, Stop> {
    match known {
        Known::Is(value) => Ok(value),
        Known::Damaged(why) => Err(why.into()),
        Known::NotYet => Err(match tables.unsupported {
            Some(why) => why.into(),
            None => Stop::Missing(Missing {
                blocks: tables.missing,
                bodies,
            }),
        }),
    }
}

/// The values before an op.
trait Values {
    /// A directory's inode comes without its entries and times.
    fn inode(&mut self, file: &FileId) -> Known<Option<Arc<Inode>>>;
    fn entry(&mut self, directory: &FileId, name: &Name) -> Known<Option<Target>>;
    /// Number of entries of a directory.
    fn entries(&mut self, directory: &FileId) -> Known<i64>;
    fn lock(&mut self, file: &FileId) -> Known<Option<Lock>>;
    /// What a device holds of a file.
    fn hold(&mut self, file: &FileId, family: Family, device: Device) -> Known<Option<Hold>>;
    /// The devices that may hold something of a file: all that do, and some that did.
    fn holders(&mut self, file: &FileId, family: Family) -> Vec<Device>;
    fn fold(&mut self, principal: &Principal) -> Known<Option<Fold>>;
}
