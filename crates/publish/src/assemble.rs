//! The assembler builds directories from the bottom up, out of what the gatherer and the readers send in the
//! order of the tree. The root comes last.
//!
//! Blocks go into segments in the order in which a tree is read: a node of a directory, the array nodes of
//! the files in it, then the content of its small files. So one read-around brings `ls -l`, the small
//! files, and the first nodes of the larger ones. The content of large files is stored earlier. Memory is
//! bounded by the entries of finished sub-directories, the blocks that follow one node, and the files with
//! further names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::iter::Peekable;
use std::rc::Rc;

use bytes::Bytes;
use crossbeam_channel::Receiver;
use trust::array;
use trust::change::Change;
use trust::handle::{ArrayNode, InodeBlock, MapNode};
use trust::inode::{Content, Entry, FileContent, Inode};
use trust::root::Totals;
use trust::{Handle, Kind, map};

use crate::blocks_out::{Body, Cutter, Outgoing};
use crate::changes::Comparison;
use crate::destination::Destination;
use crate::limits;
use crate::progress::{MAX_SKIPPED_TOLD, Observer, Skipped};
use crate::publish_error::{PublishError, Unreadable};
use crate::statcache::CacheWriter;
use crate::work::{Done, Event, FileId, Link, Part, What};
use content::attributes::Stamp;

/// Largest file that is stored with its directory: the sum of its packed blocks, bytes.
const SMALL_FILE_BYTES: usize = 64 << 10;
/// Most bytes of small files that wait for their directory node.
const HELD_BYTES: usize = 8 << 20;

type MapBuilder = map::Builder<Box<dyn FnMut(Handle<MapNode>, &Bytes)>>;
type ArrayBuilder = array::Builder<Box<dyn FnMut(Handle<ArrayNode>, &Bytes)>>;
type NameAndEntry = (Box<[u8]>, Vec<u8>);
type Nodes = Rc<RefCell<Vec<Bytes>>>;

/// The result of assembling a tree.
pub(crate) struct Tree {
    pub root: Handle<InodeBlock>,
    pub totals: Totals,
    pub skipped_count: u64,
    pub skipped: Vec<Skipped>,
    pub names_elsewhere: Vec<(FileId, u32)>,
    /// The stat cache for the next publication.
    pub cache: Option<CacheWriter>,
    /// How it differs from the version before, if that was asked for.
    pub changes: Vec<Change>,
}

/// Assembles; see the module.
pub(crate) struct Assembler<'a, D> {
    cutter: Cutter<'a>,
    destination: &'a mut D,
    skip_unreadable: bool,
    observer: &'a dyn Observer,
    /// Name and entry of each sub-directory whose parent is not open yet, in the order of the walk.
    finished: Vec<NameAndEntry>,
    open: Option<Open>,
    long: Option<(ArrayBuilder, Nodes)>,
    links: HashMap<FileId, Inode>,
    root: Option<Handle<InodeBlock>>,
    totals: Totals,
    skipped_count: u64,
    skipped: Vec<Skipped>,
    cache: Option<CacheWriter>,
    comparison: Option<Comparison<'a>>,
}

/// The directory that is being assembled.
struct Open {
    path: Box<[u8]>,
    /// Names in the path of what is in it.
    names: usize,
    /// Its sub-directories that are not in the map yet.
    subdirectories: Peekable<std::vec::IntoIter<NameAndEntry>>,
    map: MapBuilder,
    nodes: Nodes,
    held: Vec<Outgoing>,
    held_bytes: usize,
}

impl Open {
    fn put(
        &mut self,
        name: &[u8],
        value: &[u8],
        comparison: &mut Option<Comparison<'_>>,
    ) -> Result<(), PublishError> {
        if let Some(comparison) = comparison {
            comparison.entry(name, value)?;
        }
        Ok(self.map.push(name, value)?)
    }
}

impl<'a, D: Destination> Assembler<'a, D> {
    pub(crate) fn new(
        cutter: Cutter<'a>,
        destination: &'a mut D,
        skip_unreadable: bool,
        observer: &'a dyn Observer,
        cache: Option<CacheWriter>,
        comparison: Option<Comparison<'a>>,
    ) -> Self {
        Assembler {
            cutter,
            destination,
            skip_unreadable,
            observer,
            finished: Vec::new(),
            open: None,
            long: None,
            links: HashMap::new(),
            root: None,
            totals: Totals::default(),
            skipped_count: 0,
            skipped: Vec::new(),
            cache,
            comparison,
        }
    }

    /// Takes events until the tree ends.
    pub(crate) fn run(mut self, events: &Receiver<Event>) -> Result<Tree, PublishError> {
        for event in events {
            match event {
                Event::Open {
                    path,
                    subdirectories,
                } => self.open(path, subdirectories)?,
                Event::Entries(entries) => self.entries(entries)?,
                Event::Coming(answer) => self.entries(received(answer.recv())?)?,
                Event::Part(answer) => self.part(received(answer.recv())?)?,
                Event::Hole(len) => self.extend_long(array::Extent::Hole { len })?,
                Event::Restart => self.long = None,
                Event::EndOfFile(done) => self.end_of_file(done)?,
                Event::Close { inode, blocks } => self.close(*inode, blocks)?,
                Event::Unreadable { path, why } => self.leave_out(&path, why)?,
                Event::End(names_elsewhere) => {
                    return Ok(Tree {
                        root: self.root.ok_or(PublishError::WorkerDied)?,
                        totals: self.totals,
                        skipped_count: self.skipped_count,
                        skipped: self.skipped,
                        names_elsewhere,
                        cache: self.cache,
                        changes: self.comparison.map_or_else(Vec::new, |c| c.found),
                    });
                }
                Event::Failed(error) => return Err(error),
            }
        }
        Err(PublishError::WorkerDied)
    }

    fn open(&mut self, path: Box<[u8]>, subdirectories: usize) -> Result<(), PublishError> {
        if let Some(cache) = &mut self.cache {
            cache.directory(&path);
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.enter(&path)?;
        }
        let at = self.finished.len().saturating_sub(subdirectories);
        let subdirectories = self.finished.split_off(at).into_iter().peekable();
        let nodes = Nodes::default();
        let sink = nodes.clone();
        let sink = Box::new(move |_, node: &Bytes| sink.borrow_mut().push(node.clone()));
        let names = 1 + path
            .split(|b| *b == b'/')
            .filter(|name| !name.is_empty())
            .count();
        self.open = Some(Open {
            path,
            names,
            subdirectories,
            map: map::Builder::new(self.cutter.hasher(), map::Salt::default(), sink),
            nodes,
            held: Vec::new(),
            held_bytes: 0,
        });
        Ok(())
    }

    fn entries(&mut self, entries: Vec<Done>) -> Result<(), PublishError> {
        entries.into_iter().try_for_each(|done| self.entry(done))
    }

    fn entry(&mut self, done: Done) -> Result<(), PublishError> {
        let Done { name, what, stamp } = done;
        if let Err(why) = self.check_path(&name) {
            return self.leave_out(&self.path_of(&name), why);
        }
        match what {
            What::Vanished => Ok(()),
            What::Unreadable(why) => self.leave_out(&self.path_of(&name), why),
            What::Value { value, totals } => {
                self.count(totals);
                self.remember(&name, stamp, false, &value);
                self.push(&name, &value)
            }
            What::Link(link) => match self.linked(&link) {
                Some(inode) => {
                    // The content was counted with the first name.
                    let bytes = 0;
                    self.count(Totals {
                        bytes,
                        ..Totals::of(&inode)
                    });
                    let value = self.place(&name, &inode)?;
                    self.push(&name, &value)
                }
                // The first name was left out, or vanished during the walk.
                None => self.leave_out(&self.path_of(&name), Unreadable::Replaced),
            },
            What::File {
                inode,
                blocks,
                link,
            } => {
                self.count(Totals::of(&inode));
                self.store_file(blocks)?;
                if let Some(link) = link {
                    self.links.insert(link.file, (*inode).clone());
                }
                let value = self.place(&name, &inode)?;
                self.remember(&name, stamp, inode.links > 1, &value);
                self.push(&name, &value)
            }
        }
    }

    fn remember(&mut self, name: &[u8], stamp: Option<Stamp>, linked: bool, value: &[u8]) {
        if let (Some(cache), Some(stamp)) = (&mut self.cache, stamp) {
            cache.entry(name, &stamp, linked, value);
        }
    }

    fn count(&mut self, entry: Totals) {
        self.totals.add(entry);
        self.observer.finished(1, entry.bytes);
    }

    fn linked(&mut self, link: &Link) -> Option<Inode> {
        if link.last {
            self.links.remove(&link.file)
        } else {
            self.links.get(&link.file).cloned()
        }
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match &self.open {
            Some(open) if !open.path.is_empty() => [&open.path, &b"/"[..], name].concat(),
            _ => name.to_vec(),
        }
    }

    fn check_path(&self, name: &[u8]) -> Result<(), Unreadable> {
        match &self.open {
            Some(open) => limits::check_path(open.path.len() + 1 + name.len(), open.names),
            None => Ok(()),
        }
    }

    fn leave_out(&mut self, path: &[u8], why: Unreadable) -> Result<(), PublishError> {
        let path = trust::change::path(path);
        if let Unreadable::OwnFile(what) = why {
            return Err(PublishError::OwnFile { path, what });
        }
        if !self.skip_unreadable {
            return Err(PublishError::Unreadable { path, why });
        }
        tracing::warn!(path = %path.display(), %why, "left out");
        self.observer.skipped(&path, &why);
        self.skipped_count += 1;
        if self.skipped.len() < MAX_SKIPPED_TOLD {
            let why = why.to_string();
            self.skipped.push(Skipped { path, why });
        }
        Ok(())
    }

    /// The entry of an inode in the open directory; a large one gets a block of its own.
    fn place(&mut self, name: &[u8], inode: &Inode) -> Result<Vec<u8>, PublishError> {
        let (value, block) = Entry::place(name, inode, self.cutter.hasher());
        let block_bytes = block.as_ref().map(|(_, bytes)| bytes.as_ref());
        limits::check_entry(&value, block_bytes).map_err(|why| PublishError::Unreadable {
            path: trust::change::path(&self.path_of(name)),
            why,
        })?;
        if let Some((_, block)) = block {
            let (_, outgoing) = self.cutter.block::<InodeBlock>(&block)?;
            self.hold(vec![outgoing])?;
        }
        Ok(value)
    }

    /// Puts an entry into the open directory, and the sub-directories that come before it.
    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<(), PublishError> {
        trust::inode::check_name(name)?;
        let open = self.open.as_mut().ok_or(PublishError::WorkerDied)?;
        while let Some((before, value)) = open
            .subdirectories
            .next_if(|(subdirectory, _)| &**subdirectory < name)
        {
            open.put(&before, &value, &mut self.comparison)?;
        }
        open.put(name, value, &mut self.comparison)?;
        self.store_nodes()
    }

    /// Stores the directory nodes that are finished, each followed by the small files that wait.
    fn store_nodes(&mut self) -> Result<(), PublishError> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let nodes = std::mem::take(&mut *open.nodes.borrow_mut());
        if nodes.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut open.held);
        open.held_bytes = 0;
        for node in nodes {
            let (_, outgoing) = self.cutter.block::<MapNode>(&node)?;
            self.store(outgoing)?;
        }
        self.store_held(held)
    }

    /// Stores what belongs to a directory node: array nodes first.
    fn store_held(&mut self, held: Vec<Outgoing>) -> Result<(), PublishError> {
        let is_node = |block: &Outgoing| block.kind == Kind::Array;
        let (nodes, files): (Vec<_>, Vec<_>) = held.into_iter().partition(is_node);
        let mut all = nodes.into_iter().chain(files);
        all.try_for_each(|block| self.store(block))
    }

    /// Stores the blocks of a file: now, or with its directory when they are small.
    fn store_file(&mut self, blocks: Vec<Outgoing>) -> Result<(), PublishError> {
        let bytes: usize = blocks.iter().map(packed_bytes).sum();
        if bytes <= SMALL_FILE_BYTES {
            return self.hold(blocks);
        }
        for block in blocks {
            match block.kind {
                Kind::Array => self.hold(vec![block])?,
                _ => self.store(block)?,
            }
        }
        Ok(())
    }

    fn hold(&mut self, blocks: Vec<Outgoing>) -> Result<(), PublishError> {
        let open = self.open.as_mut().ok_or(PublishError::WorkerDied)?;
        for block in blocks {
            open.held_bytes += packed_bytes(&block);
            open.held.push(block);
        }
        if open.held_bytes <= HELD_BYTES {
            return Ok(());
        }
        open.held_bytes = 0;
        let held = std::mem::take(&mut open.held);
        self.store_held(held)
    }

    fn store(&mut self, block: Outgoing) -> Result<(), PublishError> {
        self.cutter.store(block, self.destination)
    }

    fn part(&mut self, part: Part) -> Result<(), PublishError> {
        for block in part.blocks {
            self.store(block)?;
        }
        for extent in part.extents {
            self.extend_long(extent)?;
        }
        Ok(())
    }

    fn extend_long(&mut self, extent: array::Extent) -> Result<(), PublishError> {
        let hasher = self.cutter.hasher();
        let (builder, nodes) = self.long.get_or_insert_with(|| {
            let nodes = Nodes::default();
            let sink = nodes.clone();
            let sink = Box::new(move |_, node: &Bytes| sink.borrow_mut().push(node.clone()));
            (ArrayBuilder::new(hasher, sink), nodes)
        });
        builder.push(extent)?;
        let nodes = std::mem::take(&mut *nodes.borrow_mut());
        self.store_array_nodes(nodes)
    }

    fn store_array_nodes(&mut self, nodes: Vec<Bytes>) -> Result<(), PublishError> {
        for node in nodes {
            let (_, outgoing) = self.cutter.block::<ArrayNode>(&node)?;
            self.store(outgoing)?;
        }
        Ok(())
    }

    fn end_of_file(&mut self, mut done: Done) -> Result<(), PublishError> {
        let root = match self.long.take() {
            None => None,
            Some((builder, nodes)) => {
                let root = builder.finish()?;
                // The last nodes of each level: a reader fetches them first.
                for node in nodes.take() {
                    let (_, outgoing) = self.cutter.block::<ArrayNode>(&node)?;
                    self.hold(vec![outgoing])?;
                }
                root
            }
        };
        if let What::File { inode, .. } = &mut done.what {
            inode.content = Content::Regular(root.map_or(FileContent::Empty, FileContent::Array));
            inode.size = inode.content.size();
            // An entry without a stamp is not remembered: if the system reported a wrong size, the file
            // is read again next time.
            let size = inode.size;
            done.stamp = done.stamp.filter(|stamp| stamp.size == size);
        }
        self.entry(done)
    }

    /// Finishes the open directory.
    fn close(&mut self, mut inode: Inode, blocks: Vec<Outgoing>) -> Result<(), PublishError> {
        let mut open = self.open.take().ok_or(PublishError::WorkerDied)?;
        while let Some((name, value)) = open.subdirectories.next() {
            open.put(&name, &value, &mut self.comparison)?;
        }
        if let Some(comparison) = &mut self.comparison {
            comparison.leave()?;
        }
        let map = open.map.finish()?;
        for node in open.nodes.take() {
            let (_, outgoing) = self.cutter.block::<MapNode>(&node)?;
            self.store(outgoing)?;
        }
        self.store_held(open.held.into_iter().chain(blocks).collect())?;
        inode.content = Content::Directory { map, opaque: false };
        inode.size = inode.content.size();
        self.totals.add(Totals::of(&inode));
        if open.path.is_empty() {
            if let Some(comparison) = &mut self.comparison {
                comparison.top(&inode);
            }
            let (root, outgoing) = self.cutter.block::<InodeBlock>(&inode.encode())?;
            self.root = Some(root);
            return self.store(outgoing);
        }
        let name: Box<[u8]> = match open.path.iter().rposition(|b| *b == b'/') {
            Some(slash) => open.path.get(slash + 1..).unwrap_or_default().into(),
            None => open.path,
        };
        let (value, block) = Entry::place(&name, &inode, self.cutter.hasher());
        if let Some((_, block)) = block {
            let (_, outgoing) = self.cutter.block::<InodeBlock>(&block)?;
            self.store(outgoing)?;
        }
        self.finished.push((name, value));
        Ok(())
    }
}

fn received<T>(
    answer: Result<Result<T, PublishError>, crossbeam_channel::RecvError>,
) -> Result<T, PublishError> {
    answer.unwrap_or(Err(PublishError::WorkerDied))
}

fn packed_bytes(block: &Outgoing) -> usize {
    match &block.body {
        Body::Stored => 0,
        Body::Packed(frame) => frame.as_bytes().len(),
        Body::SeenBefore(plaintext) => plaintext.len(),
    }
}
