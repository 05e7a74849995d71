//! Finds the paths of files that a log entry names by number.
//!
//! Inodes do not name their directories. So paths are found from the other end: the names of today, by a walk through
//! directories as far as it is needed, and the entries, which are read from the newest to the oldest. An entry by which
//! a file lost a name says what its name was before.

use std::collections::{HashMap, VecDeque};

use ::share::files::Place;
use trust::inode::FileKind;
use trust_shared::guard::Guard;
use trust_shared::ops::Op;
use trust_shared::principal::{FileId, Name};

use super::entry_words::{Spot, losses};
use crate::failure::{Failure, Kind, Outcome};
use bulla::shared::SharedVolume;

/// Most names that are kept. Files beyond are shown by their numbers.
const MAX_NAMES: usize = 1 << 18;
/// Longest path, names.
const MAX_DEPTH: usize = 4096;

/// Where files are, at the time of the entry that is looked at.
pub struct Ways<'a> {
    shared: &'a SharedVolume,
    root: FileId,
    names: HashMap<FileId, (FileId, Name)>,
    /// Size of the log where the walk and the list of entries begin.
    size: Option<u64>,
    /// Directories of then that the walk has not listed yet.
    waiting: VecDeque<FileId>,
}

impl<'a> Ways<'a> {
    /// At the end of the log.
    pub fn now(shared: &'a SharedVolume) -> Ways<'a> {
        let root = shared.client().root();
        Ways {
            shared,
            root,
            names: HashMap::new(),
            size: None,
            waiting: VecDeque::from([root]),
        }
    }

    /// The first entry that is looked at: what came after it does not count.
    pub fn begin(&mut self, entry: u64) {
        self.size.get_or_insert(entry.saturating_add(1));
    }

    /// The path of a name.
    pub async fn path(&mut self, at: Spot<'_>) -> Outcome<Vec<u8>> {
        let mut path = self.file(at.directory).await?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(at.name.as_bytes());
        Ok(path)
    }

    /// The path of a file; of one that has no name any more, its number.
    pub async fn file(&mut self, file: FileId) -> Outcome<Vec<u8>> {
        let (mut here, mut parts) = (file, Vec::new());
        while here != self.root && parts.len() < MAX_DEPTH {
            let Some((directory, name)) = self.name(here).await? else {
                parts.push(format!("({})", shown(here)).into_bytes());
                break;
            };
            parts.push(name.as_bytes().to_vec());
            here = directory;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    async fn name(&mut self, file: FileId) -> Outcome<Option<(FileId, Name)>> {
        while !self.names.contains_key(&file) && self.names.len() < MAX_NAMES {
            let Some(directory) = self.waiting.pop_front() else {
                break;
            };
            self.list(directory).await?;
        }
        Ok(self.names.get(&file).cloned())
    }

    /// Notes the names of a directory of today.
    async fn list(&mut self, directory: FileId) -> Outcome<()> {
        let place = Place {
            start: directory,
            path: Vec::new(),
        };
        let mut after = None;
        loop {
            let page = self.shared.list_at(self.size, &place, after, false);
            let page = match page.await.map_err(Failure::from) {
                // Directories that this user may not read, or that are gone meanwhile.
                Err(failure) if is_hidden(failure.kind) => return Ok(()),
                page => page?,
            };
            for listed in page.names {
                let file = listed.target.file;
                if listed.target.kind == FileKind::Directory {
                    self.waiting.push_back(file);
                }
                let name = (directory, listed.name);
                // What an entry has said is about the time that is looked at.
                self.names.entry(file).or_insert(name);
            }
            if page.next.is_none() || self.names.len() >= MAX_NAMES {
                return Ok(());
            }
            after = page.next;
        }
    }

    /// Learns the names of directories that an op states. They are those of its time.
    pub fn learn(&mut self, op: &Op) {
        for guard in &op.guards {
            if let Guard::Linked {
                directory,
                parent,
                name,
            } = guard
                && self.names.len() < MAX_NAMES
            {
                let name = (*parent, name.clone());
                self.names.entry(*directory).or_insert(name);
            }
        }
    }

    /// Goes back behind an op that had effect.
    pub fn undo(&mut self, op: &Op) {
        for (file, at) in losses(op) {
            if self.names.len() < MAX_NAMES || self.names.contains_key(&file) {
                self.names.insert(file, (at.directory, at.name.clone()));
            }
        }
    }
}

fn is_hidden(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NoPermission | Kind::NotFound | Kind::Overtaken | Kind::Malformed | Kind::Misfit
    )
}

/// A file by its number.
fn shown(file: FileId) -> String {
    let number = file.number;
    format!("file {}:{}", number.device.0, number.counter)
}
