//! The walk of a tree, depth first and in bounded memory: the steps that it gives and the blocks that it
//! takes. `expand` handles what lies below a block, `compare` what differs from a base.

use std::collections::{HashMap, HashSet, VecDeque};

use super::need::{Found, Need, Path, Task, Wanted};
use crate::error::Reject;
use crate::handle::{Handle, InodeBlock, MapNode};
use crate::tree::array;
use crate::tree::inode::Inode;
use crate::tree::map::{self, Diff, Interval};

/// Deepest nesting of directories that is walked. A path in Linux has at most 2,048 names.
pub const MAX_DEPTH: usize = 2048;
/// When waiting nodes weigh more than this, blocks are handed out one at a time.
const MANY_BYTES: usize = 16 << 20;
/// When waiting nodes weigh more than this, the tree is refused.
const TOO_MANY_BYTES: usize = 256 << 20;

/// One step of a walk.
#[derive(Debug)]
pub enum Step {
    /// A block is wanted.
    Need(Need),
    /// An entry of the tree; the root has an empty path. With a base, entries that are equal in both are left
    /// out. The needs of an entry follow after it.
    Entry(Path, Inode),
    /// Every entry below this directory has been reported or skipped. Comes once for each directory that was
    /// reported as an entry. Directories end in the order of the tree when the caller gives each node back
    /// before it asks for the next step; data blocks may come back later.
    End(Path),
}

/// A tree that breaks a rule, and where. The walk can go on without the refused part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.escape_ascii())]
pub struct Refused {
    /// The path that the refused block or entry belongs to.
    pub path: Vec<u8>,
    /// Which rule is broken.
    pub why: Reject,
}

/// Walks what one or several roots need. For each need of [`Reach::needs`], call [`Reach::supply`] with its block,
/// [`Reach::skip`] if the block was seen before, or [`Reach::lack`] if there is none. When no need is left,
/// [`Reach::is_proved`] says whether everything is there.
#[derive(Debug, Default)]
pub struct Reach {
    pub(super) stack: Vec<Frame>,
    pub(super) comparisons: HashMap<u64, Comparison>,
    /// Directories that have not ended.
    pub(super) open: HashMap<u64, Open>,
    pub(super) told: VecDeque<Step>,
    next_number: u64,
    pub(super) weight_bytes: usize,
    pub(super) under_way: usize,
    lacking: u64,
}

#[derive(Debug)]
pub(super) enum Frame {
    Need(Need),
    Map {
        node: map::Node,
        interval: Interval,
        next: usize,
        directory: u64,
        round: u32,
    },
    Array {
        node: array::Node,
        next: usize,
        path: Path,
        round: u32,
    },
    Comparison(u64),
}

/// A directory. Its nodes and the directories in it hold it open.
#[derive(Debug)]
pub(super) struct Open {
    pub path: Path,
    pub parent: Option<u64>,
    pub holders: usize,
}

/// A directory that is compared with its base.
#[derive(Debug)]
pub(super) struct Comparison {
    pub diff: Diff,
    /// The top node, until the comparison reaches its level.
    pub top: Option<(Handle<MapNode>, map::Node)>,
    pub asked: HashSet<Handle<MapNode>>,
    pub directory: u64,
    pub round: u32,
    pub weight_bytes: usize,
    /// Whether it is off the stack and waits for a block.
    pub waits: bool,
}

impl Reach {
    /// Adds a root. `base` is the inode of a root whose tree is known to be complete: then only the
    /// differences from it are walked.
    pub fn root(&mut self, root: Handle<InodeBlock>, base: Option<&Inode>) {
        self.stack.push(Frame::Need(Need {
            round: 0,
            wanted: Wanted::Inode(root),
            path: Path::default(),
            task: Task::Inode {
                base: base.cloned().map(Box::new),
                parent: None,
            },
        }));
    }

    /// Adds the file or directory `inode` at `path`, and the inode at the same path in a complete base. For
    /// walking a part of a tree: a [`super::Lookup`] finds the inode.
    ///
    /// # Errors
    /// [`Refused`] when the directory lies too deep.
    pub fn below(
        &mut self,
        path: Path,
        inode: Inode,
        base: Option<&Inode>,
        round: u32,
    ) -> Result<(), Refused> {
        let visited = self.visit(&path, inode, base, None, round);
        visited.map_err(|why| self.refuse(&path, why))
    }

    /// The next step. `None` while the walk waits for a block that is under way, and at the end
    /// ([`Reach::is_done`]).
    ///
    /// # Errors
    /// [`Refused`] for an entry that breaks a rule. The walk can go on, but it is no longer proved.
    pub fn next_step(&mut self) -> Result<Option<Step>, Refused> {
        loop {
            if let Some(step) = self.told.pop_front() {
                return Ok(Some(step));
            }
            if self.under_way > 0 && self.weight_bytes > MANY_BYTES {
                return Ok(None);
            }
            match self.stack.pop() {
                None => return Ok(None),
                Some(Frame::Need(need)) => {
                    self.under_way = self.under_way.saturating_add(1);
                    return Ok(Some(Step::Need(need)));
                }
                Some(Frame::Array {
                    node,
                    next,
                    path,
                    round,
                }) => self.array_child(node, next, path, round),
                Some(Frame::Map {
                    node,
                    interval,
                    next,
                    directory,
                    round,
                }) => self.map_item(node, interval, next, directory, round)?,
                Some(Frame::Comparison(number)) => self.compare(number)?,
            }
        }
    }

    /// At most `most` blocks that are wanted next; the other steps are dropped. Empty when
    /// [`Reach::next_step`] is `None`.
    ///
    /// # Errors
    /// As [`Reach::next_step`]. Blocks that were found before the refusal come with the next call.
    pub fn needs(&mut self, most: usize) -> Result<Vec<Need>, Refused> {
        let mut needs = Vec::new();
        while needs.len() < most {
            match self.next_step() {
                Ok(None) => break,
                Ok(Some(Step::Need(need))) => needs.push(need),
                Ok(Some(Step::Entry(..) | Step::End(_))) => {}
                Err(refused) => {
                    self.under_way = self.under_way.saturating_sub(needs.len());
                    self.stack.extend(needs.into_iter().rev().map(Frame::Need));
                    return Err(refused);
                }
            }
        }
        Ok(needs)
    }

    /// Takes a wanted block and continues below it.
    ///
    /// # Errors
    /// [`Refused`] when it is not what its parent promised. The walk can go on without the part below it, but
    /// it is no longer proved.
    pub fn supply(&mut self, need: Need, found: Found) -> Result<(), Refused> {
        self.under_way = self.under_way.saturating_sub(1);
        let path = need.path.clone();
        let taken = self.take(need, found);
        taken.map_err(|why| self.refuse(&path, why))?;
        if self.weight_bytes > TOO_MANY_BYTES {
            let why = "more of it has to wait than a walk can hold";
            return Err(self.refuse(&path, bad("tree", why)));
        }
        Ok(())
    }

    /// Continues without a block and the part below it, because the caller knows that it is complete (or does
    /// not need it).
    pub fn skip(&mut self, need: Need) {
        self.under_way = self.under_way.saturating_sub(1);
        match need.task {
            Task::Data | Task::Array => {}
            Task::Inode { parent, .. } => self.release(parent),
            Task::Top { directory, .. } | Task::Node { directory, .. } => {
                self.release(Some(directory));
            }
            Task::Compared { comparison } => {
                if let Wanted::Map(handle) = need.wanted {
                    self.omit(comparison, &handle);
                }
            }
        }
    }

    /// Continues without a block that is not available. The walk is no longer proved.
    pub fn lack(&mut self, need: Need) {
        self.lacking = self.lacking.saturating_add(1);
        self.skip(need);
    }

    /// Whether every step was given and every wanted block came back.
    pub fn is_done(&self) -> bool {
        self.told.is_empty()
            && self.stack.is_empty()
            && self.comparisons.is_empty()
            && self.under_way == 0
    }

    /// Whether the walk is done and nothing was lacking or refused: every block that the roots reach was
    /// supplied or skipped.
    pub fn is_proved(&self) -> bool {
        self.is_done() && self.lacking == 0
    }

    /// How many blocks and entries were lacking or refused.
    pub fn lacking(&self) -> u64 {
        self.lacking
    }

    /// Blocks that were handed out and have not come back.
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Approximate memory of the waiting nodes, bytes.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
}

impl Reach {
    pub(super) fn push(&mut self, frame: Frame) {
        let weight_bytes = match &frame {
            Frame::Map { node, .. } => node.weight_bytes(),
            Frame::Array { node, .. } => node.weight_bytes(),
            Frame::Need(_) | Frame::Comparison(_) => 0,
        };
        self.weight_bytes = self.weight_bytes.saturating_add(weight_bytes);
        self.stack.push(frame);
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number = self.next_number.wrapping_add(1);
        self.next_number
    }

    pub(super) fn path_of(&self, directory: u64) -> Path {
        let open = self.open.get(&directory);
        open.map_or_else(Path::default, |open| open.path.clone())
    }

    pub(super) fn hold(&mut self, directory: u64) {
        if let Some(open) = self.open.get_mut(&directory) {
            open.holders = open.holders.saturating_add(1);
        }
    }

    /// Lets go of a directory. The last holder ends it and lets go of its parent.
    pub(super) fn release(&mut self, mut directory: Option<u64>) {
        while let Some(number) = directory.take() {
            let Some(open) = self.open.get_mut(&number) else {
                return;
            };
            open.holders = open.holders.saturating_sub(1);
            if open.holders > 0 {
                return;
            }
            if let Some(open) = self.open.remove(&number) {
                self.told.push_back(Step::End(open.path));
                directory = open.parent;
            }
        }
    }

    pub(super) fn refuse(&mut self, path: &Path, why: Reject) -> Refused {
        self.lacking = self.lacking.saturating_add(1);
        Refused {
            path: path.to_bytes(),
            why,
        }
    }
}

pub(super) fn bad(what: &'static str, why: &'static str) -> Reject {
    Reject::BadTree { what, why }
}
