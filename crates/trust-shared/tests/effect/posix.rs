//! A file system of one machine, call after call. It knows nothing of entries, guards, positions or folds, and
//! shares no code with evaluation but the names of files and of errors.

use std::collections::BTreeMap;

use trust::inode::Time;
use trust_shared::effect::Times;
use trust_shared::hold::Ranges;
use trust_shared::outcome::NoEffect;
use trust_shared::principal::{FileId, Principal};

use crate::world::{EVERYBODY, TEAM, user};

/// A call, with the files that the device found when it made it.
#[derive(Clone, Debug)]
pub enum Call {
    Create {
        at: FileId,
        name: String,
        new: FileId,
        is_directory: bool,
    },
    Link {
        at: FileId,
        name: String,
        file: FileId,
    },
    Unlink {
        at: FileId,
        name: String,
    },
    Rmdir {
        at: FileId,
        name: String,
    },
    Rename {
        from: FileId,
        old: String,
        to: FileId,
        new: String,
        replaces: bool,
    },
    Exchange {
        from: FileId,
        old: String,
        to: FileId,
        new: String,
    },
    Write {
        file: FileId,
        text: String,
    },
    Chmod {
        file: FileId,
        mode: u16,
    },
    Utimes {
        file: FileId,
        mtime: Time,
    },
    Lock {
        file: FileId,
    },
    Unlock {
        file: FileId,
    },
    Claim {
        file: FileId,
    },
    Pass {
        file: FileId,
        to: u32,
    },
    Hold {
        file: FileId,
        ranges: Ranges,
    },
    Release {
        file: FileId,
    },
    /// Nothing that a program sees.
    Fold,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Directory {
        entries: BTreeMap<String, FileId>,
        mode: u16,
        times: Times,
    },
    File {
        text: String,
        mode: u16,
        links: u32,
        times: Times,
    },
}

impl Node {
    /// A change of content or attributes. A file's time only grows.
    fn change(&mut self, now: Time) {
        match self {
            Node::Directory { times, .. } => times.ctime = Some(now),
            Node::File { times, .. } => {
                times.ctime = Some(now).max(times.ctime.and_then(Time::next))
            }
        }
    }
}

#[derive(Clone)]
pub struct Posix {
    pub nodes: BTreeMap<FileId, Node>,
    pub locks: BTreeMap<FileId, u32>,
    pub holds: BTreeMap<(FileId, u32), Ranges>,
    root: FileId,
    /// When the call is made that runs.
    now: Time,
}

type Done = Result<(), NoEffect>;

/// Whether a device may write the files of an owner.
pub fn writes(device: u32, owner: Principal) -> bool {
    match owner {
        EVERYBODY => device <= 2,
        TEAM => device <= 1,
        _ => owner == user(device),
    }
}

impl Posix {
    pub fn new(root: FileId) -> Posix {
        let node = Node::Directory {
            entries: BTreeMap::new(),
            mode: 0o755,
            times: Times::default(),
        };
        Posix {
            nodes: BTreeMap::from([(root, node)]),
            locks: BTreeMap::new(),
            holds: BTreeMap::new(),
            root,
            now: Time::default(),
        }
    }

    /// Makes the call at a time by the clock of its device.
    pub fn run(&mut self, device: u32, call: &Call, now: Time) -> Done {
        self.now = now;
        self.permitted(device, call)?;
        match call {
            Call::Create {
                at,
                name,
                new,
                is_directory,
            } => self.create(*at, name, *new, *is_directory),
            Call::Link { at, name, file } => {
                if self.entries(*at)?.contains_key(name) {
                    return Err(NoEffect::Exists);
                }
                match self.nodes.get_mut(file).ok_or(NoEffect::NotFound)? {
                    Node::Directory { .. } => return Err(NoEffect::IsADirectory),
                    Node::File { links, .. } => *links += 1,
                }
                self.change(*file);
                self.names(*at)?.insert(name.clone(), *file);
                Ok(())
            }
            Call::Unlink { at, name } => {
                let file = self.find(*at, name)?;
                if self.is_directory(file) {
                    return Err(NoEffect::IsADirectory);
                }
                self.names(*at)?.remove(name);
                self.lose(device, file);
                Ok(())
            }
            Call::Rmdir { at, name } => {
                let file = self.find(*at, name)?;
                if !self.is_directory(file) {
                    return Err(NoEffect::NotADirectory);
                }
                self.must_be_empty(file)?;
                self.names(*at)?.remove(name);
                self.lose(device, file);
                Ok(())
            }
            Call::Rename {
                from,
                old,
                to,
                new,
                replaces,
            } => self.rename(device, (*from, old), (*to, new), *replaces),
            Call::Exchange { from, old, to, new } => self.exchange((*from, old), (*to, new)),
            Call::Write { file, text } => match self.nodes.get_mut(file) {
                Some(Node::File {
                    text: old, times, ..
                }) => {
                    old.clone_from(text);
                    times.mtime = now;
                    self.change(*file);
                    Ok(())
                }
                Some(Node::Directory { .. }) => Err(NoEffect::IsADirectory),
                None => Err(NoEffect::NotFound),
            },
            Call::Chmod { file, mode } => {
                let node = self.nodes.get_mut(file).ok_or(NoEffect::NotFound)?;
                let (Node::Directory { mode: old, .. } | Node::File { mode: old, .. }) = node;
                *old = *mode;
                self.change(*file);
                Ok(())
            }
            Call::Utimes { file, mtime } => {
                let node = self.nodes.get_mut(file).ok_or(NoEffect::NotFound)?;
                let (Node::Directory { times, .. } | Node::File { times, .. }) = node;
                times.mtime = *mtime;
                self.change(*file);
                Ok(())
            }
            Call::Lock { file } | Call::Claim { file } => match self.locks.get(file) {
                Some(holder) if *holder != device => Err(NoEffect::Locked),
                _ => {
                    self.locks.insert(*file, device);
                    Ok(())
                }
            },
            Call::Unlock { file } => match self.locks.get(file) {
                Some(holder) if *holder == device => {
                    self.locks.remove(file);
                    Ok(())
                }
                _ => Err(NoEffect::LockLost),
            },
            Call::Pass { file, to } => match self.locks.get(file) {
                Some(holder) if *holder == device => {
                    self.locks.insert(*file, *to);
                    Ok(())
                }
                _ => Err(NoEffect::LockLost),
            },
            Call::Hold { file, ranges } => {
                if !self.nodes.contains_key(file) {
                    return Err(NoEffect::NotFound);
                }
                let mut others = self.holds.iter();
                let clashes = |((of, by), held): (&(FileId, u32), &Ranges)| {
                    of == file && *by != device && held.clash(ranges)
                };
                if others.any(clashes) {
                    return Err(NoEffect::Locked);
                }
                self.holds.insert((*file, device), ranges.clone());
                Ok(())
            }
            Call::Release { file } => match self.holds.remove(&(*file, device)) {
                Some(_) => Ok(()),
                None => Err(NoEffect::LockLost),
            },
            Call::Fold => Ok(()),
        }
    }

    fn permitted(&self, device: u32, call: &Call) -> Done {
        let moved = |from: &FileId, name: &String, to: &FileId| {
            let found = self.nodes.get(from).and_then(|node| match node {
                Node::Directory { entries, .. } => entries.get(name).copied(),
                Node::File { .. } => None,
            });
            let changes = |found: &FileId| from != to && self.is_directory(*found);
            found.filter(changes)
        };
        let files = match call {
            Call::Create { at, new, .. } => vec![*at, *new],
            Call::Link { at, file, .. } => vec![*at, *file],
            Call::Unlink { at, .. } | Call::Rmdir { at, .. } => vec![*at],
            Call::Rename { from, old, to, .. } => {
                let moved = moved(from, old, to);
                [*from, *to].into_iter().chain(moved).collect()
            }
            Call::Exchange { from, old, to, new } => {
                let both = [moved(from, old, to), moved(to, new, from)];
                [*from, *to]
                    .into_iter()
                    .chain(both.into_iter().flatten())
                    .collect()
            }
            Call::Write { file, .. }
            | Call::Chmod { file, .. }
            | Call::Utimes { file, .. }
            | Call::Lock { file }
            | Call::Claim { file }
            | Call::Hold { file, .. }
            | Call::Release { file }
            | Call::Unlock { file } => vec![*file],
            Call::Pass { file, to } if !writes(*to, file.principal) => {
                return Err(NoEffect::NotPermitted);
            }
            Call::Pass { file, .. } => vec![*file],
            Call::Fold => Vec::new(),
        };
        match files.iter().all(|file| writes(device, file.principal)) {
            true => Ok(()),
            false => Err(NoEffect::NotPermitted),
        }
    }

    fn create(&mut self, at: FileId, name: &str, new: FileId, is_directory: bool) -> Done {
        if self.entries(at)?.contains_key(name) {
            return Err(NoEffect::Exists);
        }
        self.names(at)?.insert(name.to_owned(), new);
        let times = Times {
            mtime: Time::default(),
            ctime: Some(self.now),
        };
        let node = match is_directory {
            true => Node::Directory {
                entries: BTreeMap::new(),
                mode: 0o755,
                times,
            },
            false => Node::File {
                text: String::new(),
                mode: 0o644,
                links: 1,
                times,
            },
        };
        assert_eq!(self.nodes.insert(new, node), None);
        Ok(())
    }

    fn rename(
        &mut self,
        device: u32,
        from: (FileId, &str),
        to: (FileId, &str),
        over: bool,
    ) -> Done {
        let moved = self.find(from.0, from.1)?;
        let found = self.entries(to.0)?.get(to.1).copied();
        if !over && found.is_some() {
            return Err(NoEffect::Exists);
        }
        if self.is_directory(moved) && self.lies_below(to.0, moved) {
            return Err(NoEffect::BelowItself);
        }
        if found == Some(moved) {
            return Ok(());
        }
        if let Some(found) = found {
            match (self.is_directory(moved), self.is_directory(found)) {
                (true, false) => return Err(NoEffect::NotADirectory),
                (false, true) => return Err(NoEffect::IsADirectory),
                (true, true) => self.must_be_empty(found)?,
                (false, false) => {}
            }
            self.lose(device, found);
        }
        self.names(from.0)?.remove(from.1);
        self.names(to.0)?.insert(to.1.to_owned(), moved);
        Ok(())
    }

    fn exchange(&mut self, from: (FileId, &str), to: (FileId, &str)) -> Done {
        let (one, other) = (self.find(from.0, from.1)?, self.find(to.0, to.1)?);
        for (moved, parent) in [(one, to.0), (other, from.0)] {
            if one != other && self.is_directory(moved) && self.lies_below(parent, moved) {
                return Err(NoEffect::BelowItself);
            }
        }
        if one == other {
            return Ok(());
        }
        self.names(from.0)?.insert(from.1.to_owned(), other);
        self.names(to.0)?.insert(to.1.to_owned(), one);
        Ok(())
    }

    /// A file lost a name. The files of others stay, with their count.
    fn lose(&mut self, device: u32, file: FileId) {
        if !writes(device, file.principal) {
            return;
        }
        if let Some(Node::File { links, .. }) = self.nodes.get_mut(&file)
            && *links > 1
        {
            *links -= 1;
            self.change(file);
            return;
        }
        self.nodes.remove(&file);
    }

    fn change(&mut self, file: FileId) {
        if let Some(node) = self.nodes.get_mut(&file) {
            node.change(self.now);
        }
    }

    /// The entries of a directory, to change them.
    fn names(&mut self, at: FileId) -> Result<&mut BTreeMap<String, FileId>, NoEffect> {
        if let Some(Node::Directory { times, .. }) = self.nodes.get_mut(&at) {
            times.mtime = self.now;
            times.ctime = Some(self.now);
        }
        self.entries(at)
    }

    fn entries(&mut self, at: FileId) -> Result<&mut BTreeMap<String, FileId>, NoEffect> {
        match self.nodes.get_mut(&at) {
            Some(Node::Directory { entries, .. }) => Ok(entries),
            Some(Node::File { .. }) => Err(NoEffect::NotADirectory),
            None => Err(NoEffect::NotFound),
        }
    }

    fn find(&mut self, at: FileId, name: &str) -> Result<FileId, NoEffect> {
        self.entries(at)?
            .get(name)
            .copied()
            .ok_or(NoEffect::NotFound)
    }

    fn is_directory(&self, file: FileId) -> bool {
        matches!(self.nodes.get(&file), Some(Node::Directory { .. }))
    }

    fn must_be_empty(&self, file: FileId) -> Done {
        match self.nodes.get(&file) {
            Some(Node::Directory { entries, .. }) if !entries.is_empty() => Err(NoEffect::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Whether a directory is `above` or lies somewhere in it.
    fn lies_below(&self, directory: FileId, above: FileId) -> bool {
        let mut here = directory;
        for _ in 0..=self.nodes.len() {
            if here == above {
                return true;
            }
            let parent = self.nodes.iter().find(|(_, node)| match node {
                Node::Directory { entries, .. } => entries.values().any(|entry| *entry == here),
                Node::File { .. } => false,
            });
            match parent {
                Some((parent, _)) => here = *parent,
                None => return false,
            }
        }
        panic!("a circle of directories")
    }

    /// The directories that can be reached from the root, and whether one is reached twice.
    pub fn is_a_tree(&self) -> bool {
        let (mut seen, mut next) = (Vec::new(), vec![self.root]);
        while let Some(directory) = next.pop() {
            if seen.contains(&directory) {
                return false;
            }
            seen.push(directory);
            if let Some(Node::Directory { entries, .. }) = self.nodes.get(&directory) {
                next.extend(entries.values().filter(|file| self.is_directory(**file)));
            }
        }
        true
    }
}
