//! Finds the paths of files that a fork has taken, for people. Uses the entries that made a directory or wrote into it;
//! otherwise searches the directories of the log that stands from the root.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use trust::inode::FileKind;
use trust_shared::principal::{FileId, Name};

use super::Client;
use crate::files::{Answer, Call, FileRef, MAX_LISTED};

/// Most names that a search for a path visits. A file that is not found among them gets the part of its path that is known.
const MOST: usize = 1 << 16;
/// Longest path, names.
const MAX_DEPTH: usize = 256;

/// Where directories are.
pub(super) struct Paths {
    root: FileId,
    /// A directory is in another one, under a name.
    places: HashMap<FileId, (FileId, Name)>,
    /// Directories that were not listed yet.
    waiting: VecDeque<FileId>,
    listed: usize,
}

impl Paths {
    /// `places`: what lost entries say.
    pub(super) fn of(root: FileId, places: HashMap<FileId, (FileId, Name)>) -> Paths {
        Paths {
            root,
            places,
            waiting: VecDeque::from([root]),
            listed: 0,
        }
    }

    /// The path of a name in a directory. If nobody says where one of its directories is, it begins with `.../`.
    pub(super) async fn path(
        &mut self,
        client: &Client,
        (directory, name): (FileId, &Name),
        until: Instant,
    ) -> Vec<u8> {
        let mut parts = vec![name.as_bytes().to_vec()];
        let mut here = directory;
        while here != self.root {
            while !self.places.contains_key(&here) && self.listed < MOST {
                let Some(directory) = self.waiting.pop_front() else {
                    break;
                };
                self.list(client, directory, until).await;
            }
            match self.places.get(&here).filter(|_| parts.len() < MAX_DEPTH) {
                Some((parent, name)) => {
                    parts.push(name.as_bytes().to_vec());
                    here = *parent;
                }
                None => {
                    parts.push(b"...".to_vec());
                    break;
                }
            }
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// Notes where the directories in a directory are. What cannot be listed is left out.
    async fn list(&mut self, client: &Client, directory: FileId, until: Instant) {
        let mut after = None;
        while self.listed < MOST {
            let call = Call::List {
                directory: FileRef::File(directory),
                after: after.take(),
                most: MAX_LISTED,
                inodes: false,
            };
            let Ok(answered) = client.call(call, until).await else {
                self.waiting.clear();
                return;
            };
            let Answer::Listed { names, next, .. } = answered.answer else {
                return;
            };
            self.listed = self.listed.saturating_add(names.len());
            for listed in names {
                if listed.target.kind == FileKind::Directory {
                    let place = (directory, listed.name);
                    self.places.entry(listed.target.file).or_insert(place);
                    self.waiting.push_back(listed.target.file);
                }
            }
            if next.is_none() {
                return;
            }
            after = next;
        }
    }
}
