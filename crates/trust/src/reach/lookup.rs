//! Follows one path from a root to an inode, or to the node that proves that there is none. Relies on
//! [`crate::tree::map::Node::find`] and on checking each node against its parent.

use super::need::{Found, Wanted};
use crate::error::Reject;
use crate::handle::{Handle, InodeBlock};
use crate::tree::inode::{Content, Entry, Inode, check_name};
use crate::tree::map::{ChildRef, Find};

/// Most names in a path.
pub const MAX_COMPONENTS: usize = 256;

/// The end of a path. Symbolic links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// At this inode.
    Present(Box<Inode>),
    /// The path does not exist.
    Absent(Absence),
}

/// Why a path does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// The path leads to a directory that does not have the next name.
    NoEntry {
        /// Number of names that lead to the directory.
        found: usize,
    },
    /// The path leads to a file that is not a directory, and more names follow.
    NotADirectory {
        /// Number of names that lead to the file.
        found: usize,
    },
}

/// Follows a path. Wants one block at a time: prove the block that [`Lookup::wants`] names, give it to
/// [`Lookup::supply`], and repeat until it wants none. Then [`Lookup::outcome`] has the result.
#[derive(Debug, Clone)]
pub struct Lookup {
    /// The remaining names, the last one first.
    rest: Vec<Box<[u8]>>,
    found: usize,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Inode(Handle<InodeBlock>),
    Node(Box<ChildRef>),
    Ended(Outcome),
}

impl Lookup {
    /// Follows `path` (names joined by slashes; empty for the root itself) from the root `root`.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an impossible name, or more than [`MAX_COMPONENTS`].
    pub fn new(root: Handle<InodeBlock>, path: &[u8]) -> Result<Lookup, Reject> {
        Ok(Lookup {
            rest: names(path)?,
            found: 0,
            state: State::Inode(root),
        })
    }

    /// Follows `path` from a directory whose inode is known.
    ///
    /// # Errors
    /// As [`Lookup::new`].
    pub fn below(inode: Inode, path: &[u8]) -> Result<Lookup, Reject> {
        let mut lookup = Lookup::new(Handle::from_bytes([0; 32]), path)?;
        lookup.enter(inode);
        Ok(lookup)
    }

    /// The block that is wanted next; `None` at the end.
    pub fn wants(&self) -> Option<Wanted> {
        match &self.state {
            State::Inode(handle) => Some(Wanted::Inode(*handle)),
            State::Node(child) => Some(Wanted::Map(child.handle)),
            State::Ended(_) => None,
        }
    }

    /// Takes the block that [`Lookup::wants`] names.
    ///
    /// # Errors
    /// [`Reject::BadTree`] when it is not what its parent promised; [`Reject::WrongBlock`] for a block
    /// of another kind, or when no block is wanted.
    pub fn supply(&mut self, found: Found) -> Result<(), Reject> {
        match (&self.state, found) {
            (State::Inode(_), Found::Inode(inode)) => self.enter(inode),
            (State::Node(child), Found::Map(node)) => {
                node.check(child)?;
                let name = self.rest.last().map_or(&[][..], |name| name);
                match node.find(name, &child.interval) {
                    Find::Child(child) => self.state = State::Node(Box::new(child)),
                    Find::Absent => self.end(Absence::NoEntry { found: self.found }),
                    Find::Value(value) => {
                        let entry = Entry::decode(&value).map_err(Reject::signed)?;
                        self.rest.pop();
                        self.found = self.found.saturating_add(1);
                        match entry {
                            Entry::Inode(inode) => self.enter(inode),
                            Entry::Block(handle) => self.state = State::Inode(handle),
                        }
                    }
                }
            }
            _ => return Err(Reject::WrongBlock),
        }
        Ok(())
    }

    /// The end of the path; `None` while a block is wanted.
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            State::Ended(outcome) => Some(outcome),
            State::Inode(_) | State::Node(_) => None,
        }
    }

    fn enter(&mut self, inode: Inode) {
        if self.rest.is_empty() {
            self.state = State::Ended(Outcome::Present(Box::new(inode)));
            return;
        }
        let found = self.found;
        match &inode.content {
            Content::Directory { map: Some(map), .. } => {
                self.state = State::Node(Box::new(map.child_ref()));
            }
            Content::Directory { map: None, .. } => self.end(Absence::NoEntry { found }),
            _ => self.end(Absence::NotADirectory { found }),
        }
    }

    fn end(&mut self, absence: Absence) {
        self.state = State::Ended(Outcome::Absent(absence));
    }
}

/// The names of a path, the last one first.
fn names(path: &[u8]) -> Result<Vec<Box<[u8]>>, Reject> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        if names.len() >= MAX_COMPONENTS {
            return Err(Reject::Malformed {
                what: "path",
                why: "more than 256 names",
            });
        }
        check_name(name)?;
        names.push(name.into());
    }
    names.reverse();
    Ok(names)
}
