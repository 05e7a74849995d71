//! Chooses which entries of a directory one prefetch brings. Pure: the caller lists the directory,
//! says what is in memory already, and fetches what the batch holds.

use std::collections::HashSet;

use bytes::Bytes;
use trust::array::ArrayRoot;
use trust::inode::{Content, FileContent, Inode};
use trust::{Handle, MapNode};

/// Files longer than this are left to readahead, bytes.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;
/// Files that one request brings together, bytes.
const REQUEST_BYTES: u64 = 256 << 10;
/// What the first node of a directory counts for, bytes.
const NODE_BYTES: u64 = 8 << 10;

/// What a prefetch of a directory brings: the contents of files, or the first nodes of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Files,
    Directories,
}

/// The top block by which a file or directory is known, and its kind. `None` for an entry that has
/// no blocks.
pub(super) fn top_of(inode: &Inode) -> Option<([u8; 32], EntryKind)> {
    match &inode.content {
        Content::Regular(FileContent::Array(root)) => Some((root.top, EntryKind::Files)),
        Content::Directory { map: Some(map), .. } => {
            Some((*map.handle.as_bytes(), EntryKind::Directories))
        }
        _ => None,
    }
}

/// An entry that a batch may bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Candidate {
    File(ArrayRoot),
    Directory(Handle<MapNode>),
}

impl Candidate {
    fn top(&self) -> [u8; 32] {
        match self {
            Candidate::File(root) => root.top,
            Candidate::Directory(node) => *node.as_bytes(),
        }
    }

    fn len_bytes(&self) -> u64 {
        match self {
            Candidate::File(root) => root.len,
            Candidate::Directory(_) => NODE_BYTES,
        }
    }
}

/// An entry that is being fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Coming {
    pub(super) top: [u8; 32],
    pub(super) name: Bytes,
    pub(super) len_bytes: u64,
}

/// The entries that one prefetch brings.
#[derive(Debug)]
pub(super) struct Batch {
    kind: EntryKind,
    limit_bytes: u64,
    bytes: u64,
    seen: HashSet<[u8; 32]>,
    pub(super) files: Vec<ArrayRoot>,
    pub(super) nodes: Vec<Handle<MapNode>>,
    pub(super) coming: Vec<Coming>,
}

impl Batch {
    /// An empty batch of at most `limit_bytes`.
    pub(super) fn new(kind: EntryKind, limit_bytes: u64) -> Batch {
        Batch {
            kind,
            limit_bytes,
            bytes: 0,
            seen: HashSet::new(),
            files: Vec::new(),
            nodes: Vec::new(),
            coming: Vec::new(),
        }
    }

    /// The entry as a candidate, if it is of the right kind and size and new to this batch.
    pub(super) fn candidate(&mut self, inode: &Inode) -> Option<Candidate> {
        let (top, kind) = top_of(inode)?;
        if kind != self.kind || !self.seen.insert(top) {
            return None;
        }
        match &inode.content {
            Content::Regular(FileContent::Array(root)) => {
                (root.len <= MAX_FILE_BYTES).then_some(Candidate::File(*root))
            }
            Content::Directory { map, .. } => map.map(|map| Candidate::Directory(map.handle)),
            _ => None,
        }
    }

    /// Adds a candidate; false when the batch is full.
    pub(super) fn add(&mut self, name: Bytes, candidate: Candidate) -> bool {
        let len_bytes = candidate.len_bytes();
        self.bytes = self.bytes.saturating_add(len_bytes);
        if self.bytes > self.limit_bytes {
            return false;
        }
        match candidate {
            Candidate::File(root) => self.files.push(root),
            Candidate::Directory(node) => self.nodes.push(node),
        }
        self.coming.push(Coming {
            top: candidate.top(),
            name,
            len_bytes,
        });
        true
    }

    /// The files in groups; one request fetches one group.
    pub(super) fn file_groups(&self) -> Vec<&[ArrayRoot]> {
        let (mut groups, mut rest) = (Vec::new(), self.files.as_slice());
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let many = rest.iter().take_while(|root| {
                bytes = bytes.saturating_add(root.len);
                bytes <= REQUEST_BYTES
            });
            let (group, later) = rest.split_at(many.count().max(1));
            groups.push(group);
            rest = later;
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::inode::Time;

    fn file(number: u8, len: u64) -> Inode {
        let top = [number; 32];
        let root = ArrayRoot {
            len,
            height: 1,
            top,
        };
        let content = Content::Regular(FileContent::Array(root));
        Inode::new(0o644, Time::default(), content)
    }

    fn fill(batch: &mut Batch, files: &[(u8, u64)]) {
        for (number, len) in files {
            let Some(candidate) = batch.candidate(&file(*number, *len)) else {
                continue;
            };
            if !batch.add(Bytes::from(vec![*number]), candidate) {
                break;
            }
        }
    }

    #[test]
    fn batch_ends_at_its_limit_and_skips_long_and_repeated_files() {
        let mut batch = Batch::new(EntryKind::Files, 10_000);
        let long = MAX_FILE_BYTES + 1;
        fill(
            &mut batch,
            &[(1, 4000), (2, long), (1, 4000), (3, 6000), (4, 1)],
        );
        let lens: Vec<u64> = batch.files.iter().map(|root| root.len).collect();
        assert_eq!(lens, [4000, 6000]);
        assert_eq!(batch.coming.len(), 2);
    }

    #[test]
    fn batch_of_directories_takes_no_file() {
        let mut batch = Batch::new(EntryKind::Directories, 10_000);
        assert_eq!(batch.candidate(&file(1, 100)), None);
    }

    #[test]
    fn groups_hold_every_file_once_and_no_more_than_one_request() {
        let mut batch = Batch::new(EntryKind::Files, 4 << 20);
        let files: Vec<(u8, u64)> = (1..=20).map(|n| (n, u64::from(n) * 20_000)).collect();
        fill(&mut batch, &files);
        let groups = batch.file_groups();
        let all: Vec<ArrayRoot> = groups.iter().flat_map(|group| group.to_vec()).collect();
        assert_eq!(all, batch.files);
        for group in groups {
            let bytes: u64 = group.iter().map(|root| root.len).sum();
            assert!(group.len() == 1 || bytes <= REQUEST_BYTES, "{bytes}");
        }
    }
}
