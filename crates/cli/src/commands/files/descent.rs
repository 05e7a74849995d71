//! Which files of this machine `put` takes next, and how many at a time. Files of many directories go together, so that
//! they share round trips: a directory waits for the one above it, and a file for its directory.
//!
//! Memory and open files are bounded: [`AT_ONCE`] files, fewer if they are long, and [`DIRECTORIES`] directories with
//! their names.

use content::local::{Directory, Entry};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ::share::files::File;
use trust_shared::principal::{FileId, Name};

use super::unreadable;
use crate::failure::{Failure, Kind, Outcome};
use bulla::shared::places::Address;

/// Files that are put at a time.
const AT_ONCE: u64 = 192;
/// Directories that are made at a time, or whose names are known.
const DIRECTORIES: usize = 32;
/// Memory of the files that are put at a time, bytes, roughly.
const MEMORY_BYTES: u64 = 64 << 20;
/// Of a long file so much is in memory at a time, bytes; that is packed and stored.
const WINDOW_BYTES: u64 = 1 << 20;
/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// A directory that the user has named. It is opened when its turn comes.
struct Top {
    path: PathBuf,
    opened: OnceCell<Directory>,
}

/// A directory that is to be put.
pub struct Pending {
    top: Rc<Top>,
    /// Its names below the one that the user has named.
    names: Vec<OsString>,
    /// Where it goes.
    pub to: Address,
    /// What the volume has at that place.
    pub old: Old,
}

/// A directory that the volume has, and the names in it that were not taken yet.
pub struct Filling {
    pending: Pending,
    directory: Directory,
    into: FileId,
    there: There,
    left: std::vec::IntoIter<OsString>,
}

/// What is known of the names that a directory of the volume has.
#[derive(Default)]
pub struct There {
    /// Files by their names; without those that this user may not read.
    pub files: HashMap<Name, Option<File>>,
    /// Names up to this one are known, in their order.
    pub until: Option<Name>,
    /// All names are known.
    pub is_whole: bool,
}

/// The file that a name of the volume leads to.
pub enum Old {
    /// This one, or none.
    Known(Option<File>),
    /// It was not looked for.
    Unknown,
}

impl There {
    /// A directory without names.
    pub fn nothing() -> There {
        There {
            is_whole: true,
            ..There::default()
        }
    }

    fn of(&mut self, name: &Name) -> Old {
        let is_known = self.is_whole || self.until.as_ref().is_some_and(|until| name <= until);
        match self.files.remove(name) {
            Some(Some(file)) => Old::Known(Some(file)),
            None if is_known => Old::Known(None),
            _ => Old::Unknown,
        }
    }
}

/// A file that is to be put.
pub struct ToPut {
    /// The file.
    pub entry: Entry,
    /// Where it goes.
    pub to: Address,
    /// What the volume has at that place.
    pub old: Old,
    /// Memory that it takes while it is put, bytes.
    pub bytes: u64,
}

/// What is put next.
pub enum Next {
    /// A directory.
    Directory(Pending),
    /// Another file.
    File(ToPut),
}

/// Files, links and directories that are still to be put.
#[derive(Default)]
pub struct Descent {
    /// The last one is the next one.
    pending: Vec<Pending>,
    named: Vec<ToPut>,
    filling: Vec<Filling>,
    /// A file for which there was no room.
    next: Option<ToPut>,
    directories: usize,
    bytes: u64,
}

impl Pending {
    /// Opens the directory.
    pub fn open(&self) -> Outcome<Directory> {
        let path = self
            .names
            .iter()
            .fold(self.top.path.clone(), |at, name| at.join(name));
        if self.to.path.path.len() > MAX_DEPTH {
            let error = format!("{} is nested too deeply", path.display());
            return Err(Failure::new(Kind::Misfit, error));
        }
        let top = match self.top.opened.get() {
            Some(top) => top,
            None => {
                let top = Directory::named(&self.top.path);
                let top = top.map_err(|e| unreadable(&self.top.path, &e))?;
                self.top.opened.get_or_init(|| top)
            }
        };
        top.below(&self.names).map_err(|e| unreadable(&path, &e))
    }

    /// The directory is in the volume.
    pub fn filling(
        self,
        directory: Directory,
        names: Vec<OsString>,
        (into, there): (FileId, There),
    ) -> Filling {
        Filling {
            pending: self,
            directory,
            into,
            there,
            left: names.into_iter(),
        }
    }
}

impl Descent {
    /// A file that the user has named.
    pub fn file(&mut self, path: &Path, to: Address) -> Outcome<()> {
        let entry = Entry::named(path);
        // It is replaced, whatever is there.
        self.named.push(to_put(entry, to, Old::Known(None))?);
        Ok(())
    }

    /// A directory that the user has named.
    pub fn directory(&mut self, path: &Path, to: Address) {
        let top = Top {
            path: path.to_owned(),
            opened: OnceCell::new(),
        };
        self.pending.push(Pending {
            top: Rc::new(top),
            names: Vec::new(),
            to,
            old: Old::Unknown,
        });
    }

    /// What is put next, if there is room for it.
    pub fn next(&mut self) -> Outcome<Option<Next>> {
        let Some(file) = self.next_file()? else {
            return Ok(self.next_directory());
        };
        let has_room = self.bytes == 0 || self.bytes + file.bytes <= MEMORY_BYTES;
        if !has_room {
            self.next = Some(file);
            return Ok(self.next_directory());
        }
        self.bytes += file.bytes;
        Ok(Some(Next::File(file)))
    }

    fn next_directory(&mut self) -> Option<Next> {
        if self.directories + self.filling.len() >= DIRECTORIES {
            return None;
        }
        let next = self.pending.pop()?;
        self.directories += 1;
        Some(Next::Directory(next))
    }

    fn next_file(&mut self) -> Outcome<Option<ToPut>> {
        if let Some(next) = self.next.take().or_else(|| self.named.pop()) {
            return Ok(Some(next));
        }
        while let Some(filling) = self.filling.last_mut() {
            let Some(name) = filling.left.next() else {
                self.filling.pop();
                continue;
            };
            let entry = filling.directory.entry(&name);
            let valid = valid(name.as_bytes(), entry.path())?;
            let to = filling.pending.to.inside(filling.into, &valid);
            let old = filling.there.of(&valid);
            let is_directory = entry.is_directory();
            if !is_directory.map_err(|e| unreadable(entry.path(), &e))? {
                return to_put(entry, to, old).map(Some);
            }
            self.pending.push(Pending {
                top: Rc::clone(&filling.pending.top),
                names: [filling.pending.names.as_slice(), &[name]].concat(),
                to,
                old,
            });
        }
        Ok(None)
    }

    /// The volume has a directory now: what is in it may be put.
    pub fn filled(&mut self, filling: Filling) {
        self.directories -= 1;
        self.filling.push(filling);
    }

    /// A file has been put. `bytes`: the memory that it took.
    pub fn put(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }
}

fn to_put(entry: Entry, to: Address, old: Old) -> Outcome<ToPut> {
    let len = entry.size().map_err(|e| unreadable(entry.path(), &e))?;
    // It is read, packed, gathered with others, and sent.
    let bytes = 4 * len.min(WINDOW_BYTES);
    Ok(ToPut {
        entry,
        to,
        old,
        bytes: bytes.max(MEMORY_BYTES / AT_ONCE),
    })
}

/// A name of this machine as one of the volume.
pub fn valid(name: &[u8], path: &Path) -> Outcome<Name> {
    let shown = path.display();
    Name::new(name).map_err(|why| Failure::of(Kind::BadPath, format!("{shown}"), &why))
}
