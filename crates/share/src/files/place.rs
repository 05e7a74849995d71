//! From a place to a file: paths, with symbolic links in the middle. A link's target may begin at the volume's root
//! and may have `..`; a place cannot.

use std::collections::VecDeque;

use trust::tree::inode::{Content, FileKind};
use trust_shared::calls::{Directory, PathLink, Spot};
use trust_shared::principal::{FileId, Name, Target};

use super::answer::Refused;
use super::call::{FileRef, Place};
use super::sight::{Halt, Sight};

/// Most symbolic links on a path, as in Linux.
const MAX_LINKS: usize = 40;
/// Most steps that may be left of a path, links in it included.
const MAX_STEPS: usize = 8192;

/// The end of a path.
pub(super) enum End {
    /// The path is empty, or ends with `..`.
    Directory(Directory),
    /// A name in a directory, which may lead nowhere.
    Spot(Spot),
}

enum Step {
    Name(Name),
    Up,
}

/// A walk along a path. The links lead from the start to where it is.
struct Walk {
    start: FileId,
    links: Vec<PathLink>,
    steps: VecDeque<Step>,
    followed: usize,
}

impl Walk {
    fn here(&self) -> FileId {
        self.links.last().map_or(self.start, |link| link.directory)
    }

    fn directory(&self) -> Directory {
        Directory {
            id: self.here(),
            path: self.links.iter().rev().cloned().collect(),
        }
    }

    fn up(&mut self, root: FileId) -> Result<(), Halt> {
        if self.links.pop().is_none() && self.start != root {
            return Err(Refused::NeedsPath.into());
        }
        Ok(())
    }

    /// Goes on with the target of a symbolic link.
    fn follow(&mut self, target: &[u8], root: FileId) -> Result<(), Halt> {
        self.followed += 1;
        if self.followed > MAX_LINKS {
            return Err(Refused::Loop.into());
        }
        if target.first() == Some(&b'/') {
            self.links.clear();
            self.start = root;
        }
        let mut steps = Vec::new();
        for part in target.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => steps.push(Step::Up),
                // No file can have such a name.
                name => steps.push(Step::Name(Name::new(name).map_err(|_| Refused::NotFound)?)),
            }
        }
        if steps.len() + self.steps.len() > MAX_STEPS {
            return Err(Refused::TooLarge.into());
        }
        steps
            .into_iter()
            .rev()
            .for_each(|step| self.steps.push_front(step));
        Ok(())
    }
}

impl Sight<'_> {
    /// Walks a path. `follow`: a symbolic link at its end is followed too.
    pub fn walk(&mut self, place: &Place, follow: bool) -> Result<End, Halt> {
        let root = self.volume.root;
        let mut walk = Walk {
            start: place.start,
            links: Vec::new(),
            steps: place.path.iter().cloned().map(Step::Name).collect(),
            followed: 0,
        };
        while let Some(step) = walk.steps.pop_front() {
            let name = match step {
                Step::Up => {
                    walk.up(root)?;
                    continue;
                }
                Step::Name(name) => name,
            };
            let here = walk.here();
            let found = self.entry(&here, &name)?;
            let is_last = walk.steps.is_empty();
            match found {
                Some(target) if target.kind == FileKind::Symlink && (follow || !is_last) => {
                    let link = self.symlink(&target)?;
                    walk.follow(&link, root)?;
                }
                found if is_last => {
                    let directory = walk.directory();
                    return Ok(End::Spot(Spot {
                        directory,
                        name,
                        found,
                    }));
                }
                Some(target) if target.kind == FileKind::Directory => walk.links.push(PathLink {
                    directory: target.file,
                    parent: here,
                    name,
                }),
                Some(_) => return Err(Refused::NotADirectory.into()),
                None => return Err(Refused::NotFound.into()),
            }
        }
        Ok(End::Directory(walk.directory()))
    }

    fn symlink(&mut self, target: &Target) -> Result<bytes::Bytes, Halt> {
        let inode = self.inode(&target.file)?.ok_or(Refused::NotFound)?;
        match &inode.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Refused::Damaged("a name states another kind of file".to_owned()).into()),
        }
    }

    /// A place as a name in a directory.
    pub fn spot(&mut self, place: &Place) -> Result<Spot, Halt> {
        match self.walk(place, false)? {
            End::Spot(spot) => Ok(spot),
            End::Directory(_) => Err(Refused::Needed.into()),
        }
    }

    /// The file at a place.
    pub fn file_at(&mut self, place: &Place, follow: bool) -> Result<FileId, Halt> {
        match self.walk(place, follow)? {
            End::Directory(directory) => Ok(directory.id),
            End::Spot(Spot { found, .. }) => {
                let target = found.ok_or(Refused::NotFound)?;
                Ok(target.file)
            }
        }
    }

    /// The file that is meant.
    pub fn file(&mut self, which: &FileRef) -> Result<FileId, Halt> {
        match which {
            FileRef::File(file) => Ok(*file),
            FileRef::Place(place) => self.file_at(place, true),
        }
    }
}
