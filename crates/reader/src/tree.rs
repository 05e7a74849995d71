//! A tree of verified blocks: names, attributes and content below one root inode (SFSRO 4.2).
//!
//! Every read is one async fn that takes a [`Fetch`]. Under [`Fetch::Cached`] it never waits and
//! [`crate::now`] can drive it from any thread; under [`Fetch::Until`] it asks replicas. A name is
//! reported absent only when the map tree proves it. Relies on [`crate::entries`] and
//! [`crate::extents`] for the two kinds of trees, and on [`crate::prefetch`] for fetching ahead.
//!
//! | module | what it reads |
//! |---|---|
//! | here | names, listings, extended attributes |
//! | `content` | the bytes of files |
//! | `path` | paths of several names, with and without symbolic links |

mod content;
mod path;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use trust::inode::{Content, Inode, Time, Xattrs, decode_xattrs};
use trust::map::{Find, MapRoot};
use trust::{Handle, InodeBlock, Reject};

use crate::ahead::{Ahead, Here, Reads, Selection};
use crate::blocks::{Blocks, Fetch};
use crate::entries;
use crate::error::ReadError;
use crate::prefetch::Prefetcher;
use crate::read_around::Expect;
use crate::spawner::Spawner;
pub use content::Runs;

/// Longest list of extended attributes that is read, bytes: what Linux itself can hold, with room.
const MAX_XATTR_BYTES: u64 = 2 << 20;

/// The tree below one root directory; every byte of it is verified as it is read.
#[derive(Debug, Clone)]
pub struct Tree {
    prefetcher: Arc<Prefetcher>,
    root: Arc<Inode>,
    /// Data blocks leave memory when they were read.
    reads_once: bool,
}

impl Tree {
    /// Reads the root directory's inode from the blocks of `prefetcher`.
    ///
    /// # Errors
    /// [`ReadError::Malformed`] when it is not a directory; else as [`Blocks::get_many`].
    pub async fn open(
        prefetcher: Arc<Prefetcher>,
        root: &Handle<InodeBlock>,
        how: Fetch,
    ) -> Result<Tree, ReadError> {
        let root = prefetcher.blocks().get(root, Expect::Near, how).await?;
        if !matches!(root.content, Content::Directory { .. }) {
            let why = Reject::BadTree {
                what: "root",
                why: "the root is not a directory",
            };
            return Err(ReadError::of_signed(why));
        }
        Ok(Tree {
            prefetcher,
            root,
            reads_once: false,
        })
    }

    /// A reader for the content of files whose inodes the caller has verified on another way: those of a shared volume
    /// are in its log. Its root directory is empty.
    pub fn of_contents(prefetcher: Arc<Prefetcher>) -> Tree {
        let content = Content::Directory {
            map: None,
            opaque: false,
        };
        let root = Arc::new(Inode::new(0o755, Time::default(), content));
        Tree {
            prefetcher,
            root,
            reads_once: false,
        }
    }

    /// The root directory.
    pub fn root(&self) -> &Arc<Inode> {
        &self.root
    }

    /// The blocks below it.
    pub fn blocks(&self) -> &Arc<Blocks> {
        self.prefetcher.blocks()
    }

    /// What fetches blocks before they are read; another version of the volume shares it.
    pub fn prefetcher(&self) -> &Arc<Prefetcher> {
        &self.prefetcher
    }

    /// Begins to fetch what is below `top`, the inode at `path` (names with `/` between them), for a reader that is
    /// going to read all of it, depth first and in order of the names.
    pub fn ahead(&self, path: &[u8], top: &Inode, reads: Reads) -> Ahead {
        let spawner = self.prefetcher.spawner().clone();
        Ahead::begin(self.blocks(), spawner, (path, top), (reads, None))
    }

    /// The same for a reader of everything that has some of the files already: `here` says which.
    pub fn rest_ahead(&self, path: &[u8], top: &Inode, here: Here) -> Ahead {
        let spawner = self.prefetcher.spawner().clone();
        let reads = (Reads::Everything, Some(here));
        Ahead::begin(self.blocks(), spawner, (path, top), reads)
    }

    /// Begins to fetch parts of the tree, for readers that may want them in any order.
    pub fn parts_ahead(&self, selection: Selection) -> Ahead {
        let spawner = self.prefetcher.spawner().clone();
        Ahead::parts(self.blocks(), spawner, &self.root, selection)
    }

    /// The same tree for a reader that reads each file once, while all of it is fetched ahead. Its reads start no
    /// read-ahead of their own. A data block leaves memory once it is read: otherwise the cache keeps it, because it was
    /// used, and drops a block that was fetched ahead.
    pub fn read_once(&self) -> Tree {
        Tree {
            prefetcher: Prefetcher::new(Arc::clone(self.blocks()), Spawner::none()),
            root: Arc::clone(&self.root),
            reads_once: true,
        }
    }

    /// The inode of `name` in `directory`; `None` is proved absence.
    ///
    /// # Errors
    /// [`ReadError::WrongKind`] when it is not a directory; else as [`Blocks::get_many`].
    pub async fn lookup(
        &self,
        directory: &Inode,
        name: &[u8],
        how: Fetch,
    ) -> Result<Option<Inode>, ReadError> {
        let Some(root) = entries::map_of(directory)? else {
            return Ok(None);
        };
        let found = self.find(root, name, how).await?;
        if let Some(inode) = &found {
            self.prefetcher.entry_found(root, name, inode);
        }
        Ok(found)
    }

    async fn find(
        &self,
        root: &MapRoot,
        name: &[u8],
        how: Fetch,
    ) -> Result<Option<Inode>, ReadError> {
        let began = Instant::now();
        self.prefetcher.directory_wanted(root, how);
        let mut child = root.child_ref();
        loop {
            let node = entries::node(self.blocks(), &child, how).await?;
            if child.handle == root.handle {
                let waited = began.elapsed();
                self.prefetcher.directory_arrived(root, name, waited);
            }
            child = match node.find(name, &child.interval) {
                Find::Absent => return Ok(None),
                Find::Value(value) => {
                    return entries::entry(self.blocks(), &value, how).await.map(Some);
                }
                Find::Child(next) => next,
            };
        }
    }

    /// Up to `max` entries of `directory` in order of their names, those after `after`.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    pub async fn list(
        &self,
        directory: &Inode,
        after: Option<&[u8]>,
        max: usize,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Inode)>, ReadError> {
        match entries::map_of(directory)? {
            Some(root) => entries::list(self.blocks(), root, after, max, how).await,
            None => Ok(Vec::new()),
        }
    }

    /// Extended attributes, sorted by name.
    ///
    /// # Errors
    /// As [`Blocks::get_many`].
    pub async fn xattrs(
        &self,
        inode: &Inode,
        how: Fetch,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        match &inode.xattrs {
            Xattrs::None => Ok(Vec::new()),
            Xattrs::Inline(list) => Ok(list.clone()),
            Xattrs::Stored(root) => {
                if root.len > MAX_XATTR_BYTES {
                    let why = "extended attributes over 2 MiB";
                    return Err(ReadError::Malformed(Reject::BadTree { what: "inode", why }));
                }
                let bytes = self
                    .read_array(root, 0, root.len as usize, how)
                    .await?
                    .concat();
                decode_xattrs(&bytes).map_err(ReadError::of_signed)
            }
        }
    }
}
