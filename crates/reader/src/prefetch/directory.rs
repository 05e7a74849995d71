//! Prefetch of the neighbours of a directory entry. Pure: it is told which names readers look up and how long
//! they wait, and answers with requests; [`super`] carries them out.
//!
//! A program that starts opens some files of each of some directories. Over a long link each file
//! costs a round trip. When a reader has waited long for two files of a directory, the directory's
//! other small files are requested, those that follow in name order first. When it has waited for
//! two directories inside a directory, the first nodes of the others are requested.
//!
//! Records of use decide how often this happens, as for read-around: while many prefetched bytes are wanted,
//! one wait is enough; while few are, only every sixteenth occasion counts.
//! So a reader that wants little of each directory does not download the tree. Requests in progress
//! are bounded by an eighth of the cache's budget.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trust::inode::Inode;
use trust::map::MapRoot;

use super::batch::{Batch, Coming, EntryKind, top_of};
use crate::read_around::{Expect, ReadAroundPolicy, Usage, Worth};

/// Entries that are remembered.
const MAX_KNOWN: usize = 8192;
/// Directories that are remembered.
const MAX_DIRECTORIES: usize = 64;
/// Waits in one directory before its other entries are requested.
const PROVEN_WAITS: u32 = 2;
/// A shorter wait is no reason to prefetch.
pub(super) const LONG_WAIT: Duration = Duration::from_millis(5);
/// Most bytes in progress, if the cache has room for them.
const MOST_IN_PROGRESS_BYTES: u64 = 16 << 20;
/// Bytes that one request brings at most.
const BATCH_BYTES: u64 = 4 << 20;

/// A request for the entries of one kind in a directory, those after `behind` first.
///
/// Each request that the policy gives out must be given back by [`DirectoryPrefetch::finished`].
#[derive(Debug, Clone)]
pub(super) struct SiblingRequest {
    pub(super) directory: MapRoot,
    pub(super) kind: EntryKind,
    pub(super) behind: Bytes,
}

/// An entry that a reader looked up, or that was prefetched.
#[derive(Debug)]
struct KnownEntry {
    /// The request for the entries beside it.
    siblings: SiblingRequest,
    /// The prefetch that brought it and its length in bytes, until a reader wants it.
    prefetched: Option<(Arc<Usage>, u64)>,
}

/// The waits in one directory for entries of one kind.
#[derive(Debug)]
struct Waits {
    directory: MapRoot,
    kind: EntryKind,
    count: u32,
    in_progress: bool,
}

/// Decides which entries of a directory to prefetch.
#[derive(Debug)]
pub(super) struct DirectoryPrefetch {
    /// By the top block of a file's content or of a directory's tree.
    known: HashMap<[u8; 32], KnownEntry>,
    /// The keys of `known`, oldest first.
    order: VecDeque<[u8; 32]>,
    /// Newest first.
    waits: VecDeque<Waits>,
    /// How many of the prefetched bytes were wanted.
    policy: ReadAroundPolicy,
    in_progress_bytes: u64,
    most_bytes: u64,
    batch_bytes: u64,
}

impl DirectoryPrefetch {
    /// A policy that has at most an eighth of `cache_bytes` in progress.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let most_bytes = (cache_bytes / 8).min(MOST_IN_PROGRESS_BYTES);
        DirectoryPrefetch {
            known: HashMap::new(),
            order: VecDeque::new(),
            waits: VecDeque::new(),
            policy: ReadAroundPolicy::default(),
            in_progress_bytes: 0,
            most_bytes,
            batch_bytes: most_bytes.min(BATCH_BYTES),
        }
    }

    /// A reader found `inode` under `name`.
    pub(super) fn found(&mut self, directory: &MapRoot, name: &[u8], inode: &Inode) {
        let Some((top, kind)) = top_of(inode) else {
            return;
        };
        if self.known.contains_key(&top) {
            return;
        }
        let siblings = SiblingRequest {
            directory: *directory,
            kind,
            behind: Bytes::copy_from_slice(name),
        };
        self.remember(top, siblings, None);
    }

    /// A reader wants the entry with this top block. Gives a request when the reader is going to wait
    /// and many of the bytes prefetched lately were wanted.
    pub(super) fn wanted(&mut self, top: &[u8; 32], will_wait: bool) -> Option<SiblingRequest> {
        let known = self.known.get_mut(top)?;
        if let Some((usage, bytes)) = known.prefetched.take() {
            usage.wanted(bytes);
        }
        if !will_wait || self.policy.worth() != Worth::Much {
            return None;
        }
        let siblings = known.siblings.clone();
        self.start(siblings)
    }

    /// A reader waited [`LONG_WAIT`] or longer for the entry with this top block.
    pub(super) fn waited(&mut self, top: &[u8; 32]) -> Option<SiblingRequest> {
        let siblings = self.known.get(top)?.siblings.clone();
        let waits = self.waits_in(&siblings);
        waits.count += 1;
        if waits.count < PROVEN_WAITS || self.policy.budget(Expect::Near) == 0 {
            return None;
        }
        self.start(siblings)
    }

    /// A reader waited [`LONG_WAIT`] or longer for a directory, in order to look `name` up in it.
    /// Gives a request for the directory's files.
    pub(super) fn entered(&mut self, directory: &MapRoot, name: &[u8]) -> Option<SiblingRequest> {
        if self.policy.worth() != Worth::Much {
            return None;
        }
        self.start(SiblingRequest {
            directory: *directory,
            kind: EntryKind::Files,
            behind: Bytes::copy_from_slice(name),
        })
    }

    /// An empty batch for a request.
    pub(super) fn batch(&self, request: &SiblingRequest) -> Batch {
        Batch::new(request.kind, self.batch_bytes)
    }

    /// These entries are going to be fetched for `request`. Gives the record of their use, to be
    /// given back with the request.
    pub(super) fn coming(&mut self, request: &SiblingRequest, coming: &[Coming]) -> Arc<Usage> {
        let usage = Arc::new(Usage::default());
        for entry in coming {
            usage.brought(entry.len_bytes);
            let siblings = SiblingRequest {
                behind: entry.name.clone(),
                ..request.clone()
            };
            let prefetched = Some((usage.clone(), entry.len_bytes));
            self.remember(entry.top, siblings, prefetched);
        }
        usage
    }

    /// A request has ended, whether or not it succeeded; `usage` when it did.
    pub(super) fn finished(&mut self, request: &SiblingRequest, usage: Option<Arc<Usage>>) {
        self.in_progress_bytes = self.in_progress_bytes.saturating_sub(self.batch_bytes);
        self.waits_in(request).in_progress = false;
        if let Some(usage) = usage {
            self.policy.keep(usage);
        }
    }

    fn start(&mut self, request: SiblingRequest) -> Option<SiblingRequest> {
        let in_progress_bytes = self.in_progress_bytes.saturating_add(self.batch_bytes);
        if in_progress_bytes > self.most_bytes {
            return None;
        }
        let waits = self.waits_in(&request);
        if waits.in_progress {
            return None;
        }
        waits.in_progress = true;
        waits.count = 0;
        self.in_progress_bytes = in_progress_bytes;
        Some(request)
    }

    fn remember(
        &mut self,
        top: [u8; 32],
        siblings: SiblingRequest,
        prefetched: Option<(Arc<Usage>, u64)>,
    ) {
        let entry = KnownEntry {
            siblings,
            prefetched,
        };
        if self.known.insert(top, entry).is_none() {
            self.order.push_back(top);
        }
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn waits_in(&mut self, request: &SiblingRequest) -> &mut Waits {
        let same = |w: &Waits| w.directory == request.directory && w.kind == request.kind;
        let at = self.waits.iter().position(same);
        let waits = at.and_then(|at| self.waits.remove(at));
        let waits = waits.unwrap_or(Waits {
            directory: request.directory,
            kind: request.kind,
            count: 0,
            in_progress: false,
        });
        self.waits.truncate(MAX_DIRECTORIES - 1);
        self.waits.push_front(waits);
        &mut self.waits[0]
    }
}

#[cfg(test)]
mod tests {
    use trust::Handle;
    use trust::array::ArrayRoot;
    use trust::inode::{Content, FileContent, Time};

    use super::*;

    fn directory(number: u8) -> MapRoot {
        MapRoot {
            handle: Handle::from_bytes([number; 32]),
            height: 1,
            entries: 9,
            salt: Default::default(),
        }
    }

    fn file(number: u8) -> Inode {
        let root = ArrayRoot {
            len: 3000,
            height: 1,
            top: [number; 32],
        };
        let content = Content::Regular(FileContent::Array(root));
        Inode::new(0o644, Time::default(), content)
    }

    /// Two waits in each of four directories; readers want all that is prefetched then, or nothing.
    fn teach(policy: &mut DirectoryPrefetch, all_wanted: bool) {
        for round in 0..4u8 {
            let directory = directory(100 + round);
            let first = 10 * round;
            policy.found(&directory, b"a", &file(first));
            policy.found(&directory, b"b", &file(first + 1));
            policy.waited(&[first; 32]);
            let Some(request) = policy.waited(&[first + 1; 32]) else {
                continue;
            };
            let coming = [first + 2, first + 3].map(|n| Coming {
                top: [n; 32],
                name: Bytes::new(),
                len_bytes: 3000,
            });
            let usage = policy.coming(&request, &coming);
            policy.finished(&request, Some(usage));
            for entry in coming.iter().filter(|_| all_wanted) {
                policy.wanted(&entry.top, false);
            }
        }
    }

    #[test]
    fn second_wait_in_a_directory_gives_a_request() {
        let mut policy = DirectoryPrefetch::new(256 << 20);
        policy.found(&directory(1), b"a", &file(1));
        policy.found(&directory(1), b"b", &file(2));
        policy.found(&directory(2), b"c", &file(3));
        assert!(policy.waited(&[1; 32]).is_none());
        assert!(policy.waited(&[3; 32]).is_none(), "another directory");
        let request = policy.waited(&[2; 32]).unwrap();
        assert_eq!(request.directory, directory(1));
        assert_eq!(request.kind, EntryKind::Files);
        assert_eq!(request.behind, b"b".as_slice());
    }

    #[test]
    fn entering_a_directory_requests_its_files_while_files_are_wanted() {
        let mut policy = DirectoryPrefetch::new(256 << 20);
        let at_first = policy.entered(&directory(1), b"m");
        assert!(at_first.is_none(), "nothing is known yet");
        teach(&mut policy, true);
        let request = policy.entered(&directory(1), b"m").unwrap();
        assert_eq!(request.directory, directory(1));
        assert_eq!(request.kind, EntryKind::Files);
        assert_eq!(request.behind, b"m".as_slice());
        let again = policy.entered(&directory(1), b"n");
        assert!(again.is_none(), "it is in progress");
        policy.finished(&request, None);
        assert!(policy.entered(&directory(1), b"n").is_some());
    }

    #[test]
    fn unwanted_prefetch_stops_further_requests() {
        let mut policy = DirectoryPrefetch::new(256 << 20);
        teach(&mut policy, false);
        assert!(policy.entered(&directory(1), b"m").is_none());
        policy.found(&directory(1), b"a", &file(90));
        assert!(policy.wanted(&[90; 32], true).is_none());
    }

    #[test]
    fn requests_in_progress_are_bounded_and_given_back() {
        let mut policy = DirectoryPrefetch::new(256 << 20);
        teach(&mut policy, true);
        let mut taken = Vec::new();
        for number in 1..=20 {
            taken.extend(policy.entered(&directory(number), b"m"));
        }
        assert_eq!(taken.len() as u64, MOST_IN_PROGRESS_BYTES / BATCH_BYTES);
        for request in &taken {
            policy.finished(request, None);
        }
        assert!(policy.entered(&directory(30), b"m").is_some());
    }

    #[test]
    fn entries_and_directories_that_are_remembered_are_bounded() {
        let mut policy = DirectoryPrefetch::new(256 << 20);
        for number in 0..20_000u32 {
            let mut inode = file(0);
            let mut top = [0; 32];
            top[..4].copy_from_slice(&number.to_le_bytes());
            inode.content = Content::Regular(FileContent::Array(ArrayRoot {
                len: 3000,
                height: 1,
                top,
            }));
            policy.found(&directory((number % 251) as u8), b"a", &inode);
            policy.waited(&top);
        }
        assert_eq!(policy.known.len(), MAX_KNOWN);
        assert_eq!(policy.order.len(), MAX_KNOWN);
        assert_eq!(policy.waits.len(), MAX_DIRECTORIES);
    }
}
