//! What users write in the histories of the explorer. Two of them write files and fold them, at once or later, so that
//! entries come between a fold's position and its own. The third one also names what belongs to the others: their nodes as
//! content, their trees as its own, their i-tables as names of a directory, and as its own i-table.

use std::collections::BTreeMap;
use std::sync::Arc;

use trust::array::{ArrayRoot, Builder, Extent};
use trust::inode::{Content, FileContent, Inode, Time, Xattrs};
use trust::{Handle, Kind};
use trust_shared::calls;
use trust_shared::itable::Fold;
use trust_shared::ops::Body;

use super::spec::{Entry, RELIES};
use super::tree::{self, USERS, file_of};
use super::world::World;

const FILES: u64 = 2;
/// A user who does this too.
const HOSTILE: usize = 2;
/// A file of the hostile user that no entry sets: it is only in its folds.
const PLANTED: u64 = 9;

/// A version of a file, and its blocks.
type Version = (Arc<Inode>, Vec<Handle>);

/// A user, and what is in the log of its files.
#[derive(Clone, Default)]
pub struct Author {
    newest: BTreeMap<u64, Version>,
    /// Positions of entries that are in no fold, and what they set.
    since_fold: Vec<(u64, u64, Version)>,
    last_fold: Option<Fold>,
    /// What is in the last fold: blocks of its tree, and the files.
    tree: Vec<Handle>,
    folded: BTreeMap<u64, Version>,
    /// A fold that is computed and not ordered.
    prepared: Option<Prepared>,
}

/// See [`Author::prepared`].
#[derive(Clone)]
struct Prepared {
    at: u64,
    before: Option<Fold>,
    upto: u64,
    files: BTreeMap<u64, Version>,
}

impl Author {
    /// All blocks that its last fold needs.
    fn fold_blocks(&self) -> Vec<Handle> {
        let files = self.folded.values().flat_map(|(_, blocks)| blocks);
        self.tree.iter().chain(files).copied().collect()
    }
}

impl World {
    /// Commits a version of a file: its blocks are asked for or stored, and then the entry is ordered.
    pub(super) fn write(&mut self, session: usize) -> &'static str {
        let user = self.random.below(USERS.len() as u64) as usize;
        let number = self.random.below(FILES);
        if user == HOSTILE && self.random.below(2) == 0 {
            return self.write_of_others(session, number);
        }
        // Sometimes an old version comes back.
        let version = match self.random.below(3) {
            0 if self.versions > 0 => self.random.below(self.versions),
            _ => {
                self.versions += 1;
                self.versions - 1
            }
        };
        let version = tree::version(&tree::hasher(), version, &mut self.made);
        let base = self.authors[user].newest.get(&number);
        let base = base.map(|(_, blocks)| blocks.clone()).unwrap_or_default();
        self.provide(session, &version.1, &base);
        if self.random.below(4) == 0 {
            return "blocks are stored";
        }
        self.set(user, number, version);
        "a version is ordered"
    }

    fn set(&mut self, user: usize, number: u64, version: Version) {
        let at = self.spec.log.len() as u64;
        let file = file_of(user, number);
        let body = tree::set_of(file, &version.0);
        let entry = Entry::Set(file, version.1.clone());
        self.order(user, body, entry, &version.1);
        let author = &mut self.authors[user];
        author.newest.insert(number, version.clone());
        author.since_fold.push((at, number, version));
    }

    /// A file of the hostile user that names what others have now.
    fn write_of_others(&mut self, session: usize, number: u64) -> &'static str {
        let victim = self.random.below(HOSTILE as u64) as usize;
        let theirs = self.authors[victim].newest.get(&number).cloned();
        let Some((inode, blocks)) = theirs else {
            return "";
        };
        let version = match self.random.below(4) {
            // Their file, and the same as attributes of another one.
            0 => (inode, blocks),
            1 => {
                let mut with = Inode::new(0o644, Time::default(), inode.content.clone());
                if let Content::Regular(FileContent::Array(root)) = &inode.content {
                    with.xattrs = Xattrs::Stored(*root);
                    with.content = Content::Regular(FileContent::Empty);
                }
                (Arc::new(with), blocks)
            }
            what => self.naming(session, victim, &blocks, what == 2),
        };
        self.set(HOSTILE, number, version);
        "what others have is named"
    }

    /// A file whose content are nodes of others: one of them, or two below a node.
    fn naming(&mut self, session: usize, victim: usize, blocks: &[Handle], one: bool) -> Version {
        let all = [blocks, &self.authors[victim].tree].concat();
        let pick = |world: &mut World| all[world.random.below(all.len() as u64) as usize];
        let picked = [pick(self), pick(self)];
        let (root, mut blocks) = match one {
            true => {
                let top = *picked[0].as_bytes();
                let (len, height) = (800, 0);
                (ArrayRoot { len, height, top }, vec![picked[0]])
            }
            false => self.node_of(picked),
        };
        let own = blocks.split_off(blocks.len().min(2));
        self.provide(session, &own, &[]);
        let content = Content::Regular(FileContent::Array(root));
        let inode = Inode::new(0o644, Time::default(), content);
        (Arc::new(inode), [blocks, own].concat())
    }

    /// A node with these two blocks as content; the blocks, and then itself.
    fn node_of(&mut self, blocks: [Handle; 2]) -> (ArrayRoot, Vec<Handle>) {
        let (hasher, mut nodes) = (tree::hasher(), Vec::new());
        let mut builder = Builder::new(&hasher, |handle, bytes| {
            nodes.push((handle.any(), bytes.clone()));
        });
        for block in blocks {
            let handle = Handle::from_bytes(*block.as_bytes());
            builder.push(Extent::Data { handle, len: 800 }).unwrap();
        }
        let root = builder.finish().unwrap().unwrap();
        let mut all = blocks.to_vec();
        for (handle, bytes) in nodes {
            self.made.insert(handle, (Kind::Array, bytes));
            all.push(handle);
        }
        (root, all)
    }

    pub(super) fn fold(&mut self, session: usize) -> &'static str {
        let user = self.random.below(USERS.len() as u64) as usize;
        if user == HOSTILE && self.random.below(3) > 0 {
            return self.fold_of_others(session);
        }
        let prepared = self.authors[user].prepared.take();
        let is_good = |prepared: &Prepared| {
            prepared.before == self.authors[user].last_fold && prepared.at + RELIES >= self.spec.now
        };
        if let Some(prepared) = prepared.filter(is_good) {
            return self.order_fold(session, user, prepared);
        }
        let upto = self.spec.log.len() as u64;
        let author = &self.authors[user];
        if author.since_fold.is_empty() {
            return "";
        }
        let changed = author.since_fold.iter();
        let prepared = Prepared {
            at: self.spec.now,
            before: author.last_fold,
            upto,
            files: changed
                .map(|(_, number, version)| (*number, version.clone()))
                .collect(),
        };
        if self.random.below(2) == 0 {
            self.authors[user].prepared = Some(prepared);
            return "a fold is computed";
        }
        self.order_fold(session, user, prepared)
    }

    fn order_fold(&mut self, session: usize, user: usize, prepared: Prepared) -> &'static str {
        let Prepared {
            before,
            upto,
            files,
            ..
        } = prepared;
        let inodes = files.iter();
        let inodes = inodes.map(|(number, (inode, _))| (*number, Arc::clone(inode)));
        let from = (&tree::hasher(), before);
        let made = &mut self.made;
        let (fold, blocks, body) = tree::folded_of(user, from, &inodes.collect(), upto, made);
        self.provide(session, &blocks, &[]);
        let author = &mut self.authors[user];
        // A tree that did not change has the blocks of the one before.
        if !blocks.is_empty() {
            author.tree = blocks;
        }
        author.folded.extend(files);
        author.since_fold.retain(|(at, ..)| *at >= upto);
        author.last_fold = Some(fold);
        let all = author.fold_blocks();
        let entry = Entry::Fold(USERS[user], upto, all.clone());
        self.order(user, body, entry, &all);
        "a fold is ordered"
    }

    /// A fold of the hostile user: the i-table of somebody else, or one in which that is the names of a directory.
    fn fold_of_others(&mut self, session: usize) -> &'static str {
        let victim = self.random.below(HOSTILE as u64) as usize;
        let theirs = self.authors[victim].clone();
        let (Some(table), upto) = (
            theirs.last_fold.and_then(|fold| fold.root),
            self.spec.log.len() as u64,
        ) else {
            return "";
        };
        let before = self.authors[HOSTILE].last_fold;
        let (root, own, files, what) = match self.random.below(2) {
            0 => {
                let mut files = self.authors[HOSTILE].folded.clone();
                let directory = Arc::new(tree::directory_of(&table));
                files.insert(PLANTED, (directory, theirs.tree));
                let inodes = files.iter();
                let inodes = inodes.map(|(number, (inode, _))| (*number, Arc::clone(inode)));
                let (root, own) = tree::table(HOSTILE, &inodes.collect(), &mut self.made);
                self.provide(session, &own, &[]);
                (root, own, files, "an i-table is named as a directory")
            }
            _ => (
                table,
                theirs.tree,
                theirs.folded,
                "the i-table of another user is a fold",
            ),
        };
        let root = Some(root);
        let fold = Fold { upto, root };
        let body = Body::new(vec![calls::fold(USERS[HOSTILE], before, fold)]).unwrap();
        let author = &mut self.authors[HOSTILE];
        (author.last_fold, author.tree, author.folded) = (Some(fold), own, files);
        author.since_fold.clear();
        // The tree does not have them: nobody who writes a file now has them as its base.
        author.newest.clear();
        let all = author.fold_blocks();
        let entry = Entry::Fold(USERS[HOSTILE], upto, all.clone());
        self.order(HOSTILE, body, entry, &all);
        what
    }
}
