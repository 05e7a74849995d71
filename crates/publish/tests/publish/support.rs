//! A reader that is as simple as can be, so that publishing is tested against something else than the
//! product's own reader: every block is checked, nothing is cached, everything lies in memory.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use store::blocking::Blocking;
use store::repository::Repository;
use trust::floor::Floor;
use trust::head::Head;
use trust::inode::{Content, Entry, FileContent, Inode, Xattrs};
use trust::judge::{Offer, Terms};
use trust::map::{ChildRef, Item};
use trust::signatures::Signatures;
use trust::statement::VolumeId;
use trust::{Block, BlockKind, Handle, Hasher, Record, array, map};

/// One version of a volume, read whole.
pub struct Read {
    pub offer: Offer,
    /// By path; the top is the empty one.
    pub inodes: BTreeMap<Vec<u8>, Inode>,
    repository: Repository,
    hasher: Hasher,
}

impl Read {
    /// Reads and verifies the newest version.
    pub fn newest(path: &Path, now: u64) -> Read {
        let repository = Repository::open(path).unwrap();
        let repository = repository.with_blocking(Blocking::Inline);
        let head = Head::decode(&repository.statements()).unwrap();
        let volume = VolumeId::from_bytes(head.policies[0].hash());
        let offer = Floor::new(volume)
            .judge(&head, &Terms::strict(now), &mut Signatures::default())
            .unwrap();
        let hasher = offer.chain.hasher();
        let mut read = Read {
            offer,
            inodes: BTreeMap::new(),
            repository,
            hasher,
        };
        let root = Inode::from_block(&read.block(&read.offer.record.root)).unwrap();
        read.directory(b"", root);
        read
    }

    fn records(&self, handle: Handle, around: usize) -> Vec<Record> {
        let want = [handle];
        let get = store::BlockStore::get_many(&self.repository, &want, around);
        let records = futures_util::future::FutureExt::now_or_never(get);
        records.expect("a local repository waited").unwrap()
    }

    /// What one answer brings with the first node of a directory, for this much read-around in bytes.
    pub fn beside(&self, directory: &str, around: usize) -> Vec<Handle> {
        let Content::Directory { map: Some(map), .. } = &self.at(directory).content else {
            panic!("{directory} is no directory with entries");
        };
        let records = self.records(map.handle.any(), around);
        records.iter().map(|record| record.handle).collect()
    }

    /// The handle of the top of a file's content.
    pub fn top(&self, path: &str) -> Handle {
        let Content::Regular(FileContent::Array(root)) = &self.at(path).content else {
            panic!("{path} has no array tree");
        };
        Handle::from_bytes(root.top)
    }

    fn block<K: BlockKind>(&self, handle: &Handle<K>) -> Block<K> {
        let mut records = self.records(handle.any(), 0).into_iter();
        let record = records.next().expect("a block is missing");
        let plaintext = record.frame.plaintext::<K>().unwrap();
        self.hasher.check(handle, plaintext).unwrap()
    }

    fn directory(&mut self, path: &[u8], inode: Inode) {
        let Content::Directory { map, opaque: false } = &inode.content else {
            panic!("not a directory: {inode:?}");
        };
        let mut entries = Vec::new();
        if let Some(map) = map {
            self.entries(&map.child_ref(), &mut entries);
            assert_eq!(entries.len() as u64, map.entries);
        }
        for (name, value) in entries {
            trust::inode::check_name(&name).unwrap();
            let inode = match Entry::decode(&value).unwrap() {
                Entry::Inode(inode) => inode,
                Entry::Block(handle) => Inode::from_block(&self.block(&handle)).unwrap(),
            };
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let path = [path, slash, &name].concat();
            if matches!(inode.content, Content::Directory { .. }) {
                self.directory(&path, inode);
            } else {
                self.inodes.insert(path, inode);
            }
        }
        self.inodes.insert(path.to_vec(), inode);
    }

    fn entries(&self, child: &ChildRef, out: &mut Vec<(Bytes, Bytes)>) {
        let node = map::Node::decode(&self.block(&child.handle)).unwrap();
        node.check(child).unwrap();
        for item in node.items(&child.interval) {
            match item {
                Item::Entry(key, value) => out.push((key, value)),
                Item::Child(child) => self.entries(&child, out),
            }
        }
    }

    /// The inode at a path.
    pub fn at(&self, path: &str) -> &Inode {
        &self.inodes[path.as_bytes()]
    }

    /// The content of a regular file.
    pub fn content(&self, path: &str) -> Vec<u8> {
        match &self.at(path).content {
            Content::Regular(FileContent::Empty) => Vec::new(),
            Content::Regular(FileContent::Inline(bytes)) => bytes.to_vec(),
            Content::Regular(FileContent::Array(root)) => self.array(root),
            other => panic!("{path} is {other:?}"),
        }
    }

    /// Lengths of a file's extents, holes negative.
    pub fn layout(&self, path: &str) -> Vec<i64> {
        let Content::Regular(FileContent::Array(root)) = &self.at(path).content else {
            panic!("{path} has no array tree");
        };
        let mut extents = Vec::new();
        self.extents(root.top(), &mut extents);
        let signed = |e: &array::Extent| match e {
            array::Extent::Data { len, .. } => i64::from(*len),
            array::Extent::Hole { len } => -(*len as i64),
        };
        extents.iter().map(signed).collect()
    }

    /// The extended attributes.
    pub fn xattrs(&self, path: &str) -> Vec<(Bytes, Bytes)> {
        match &self.at(path).xattrs {
            Xattrs::None => Vec::new(),
            Xattrs::Inline(list) => list.clone(),
            Xattrs::Stored(root) => trust::inode::decode_xattrs(&self.array(root)).unwrap(),
        }
    }

    fn array(&self, root: &array::ArrayRoot) -> Vec<u8> {
        let mut extents = Vec::new();
        self.extents(root.top(), &mut extents);
        let mut out = Vec::new();
        for extent in extents {
            match extent {
                array::Extent::Hole { len } => out.resize(out.len() + len as usize, 0),
                array::Extent::Data { handle, len } => {
                    let block = self.block(&handle);
                    assert_eq!(block.bytes().len(), len as usize);
                    out.extend_from_slice(block.bytes());
                }
            }
        }
        assert_eq!(out.len() as u64, root.len);
        out
    }

    fn extents(&self, child: array::Child, out: &mut Vec<array::Extent>) {
        match child {
            array::Child::Extent(extent) => out.push(extent),
            array::Child::Node { handle, level, len } => {
                let node = array::Node::decode(&self.block(&handle)).unwrap();
                node.check(level, len).unwrap();
                for child in node.children() {
                    self.extents(child, out);
                }
            }
        }
    }
}
