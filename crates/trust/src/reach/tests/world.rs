//! Trees in memory for the tests of the walk: a model, the blocks that it becomes, and walks over them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{Need, Reach, Refused, Step};
use crate::handle::{ArrayNode, Data, Handle, Hasher, InodeBlock, Kind, MapNode};
use crate::tree::array::{Builder as ArrayBuilder, Extent};
use crate::tree::inode::{Content, Entry, FileContent, Inode, Time, Xattrs, encode_xattrs};
use crate::tree::map::{self, MapRoot};

pub fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Model {
    /// Content: number of extents, seed of their bytes, and size of the attributes.
    File(u16, u8, Attributes),
    Symlink,
    Directory(BTreeMap<Vec<u8>, Model>, Attributes),
}

/// Size of an inode's extended attributes. It decides where they and the inode are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes {
    None,
    /// In the inode; long enough that a directory of a few entries has several nodes.
    Inline,
    /// In an array tree.
    Stored,
}

pub type Names = BTreeMap<Vec<u8>, Model>;

fn attributes() -> impl Strategy<Value = Attributes> {
    prop_oneof![
        3 => Just(Attributes::None),
        4 => Just(Attributes::Inline),
        1 => Just(Attributes::Stored),
    ]
}

/// Trees of up to four levels.
pub fn names() -> impl Strategy<Value = Names> {
    let leaf = prop_oneof![
        6 => (0..4u16, 0..4u8, attributes()).prop_map(|(n, s, a)| Model::File(n, s, a)),
        1 => (250..600u16, 0..4u8, attributes()).prop_map(|(n, s, a)| Model::File(n, s, a)),
        1 => Just(Model::Symlink),
    ];
    let tree = leaf.prop_recursive(3, 120, 40, |inner| {
        let names = prop::collection::btree_map("[a-f]{1,3}", inner, 0..40);
        (names, attributes()).prop_map(|(names, a)| {
            let names = names.into_iter().map(|(k, v)| (k.into_bytes(), v));
            Model::Directory(names.collect(), a)
        })
    });
    prop::collection::btree_map("[a-f]{1,3}", tree, 0..30).prop_map(|names| {
        names
            .into_iter()
            .map(|(k, v)| (k.into_bytes(), v))
            .collect()
    })
}

#[derive(Default, Clone)]
pub struct World {
    pub blocks: HashMap<Handle, (Kind, Bytes)>,
}

impl World {
    pub fn put(&mut self, kind: Kind, bytes: Bytes) -> Handle {
        let handle = hasher().name(kind, &bytes);
        self.blocks.insert(handle, (kind, bytes));
        handle
    }

    pub fn root(&mut self, names: &Names) -> Handle<InodeBlock> {
        let inode = self.inode(&Model::Directory(names.clone(), Attributes::None));
        self.inode_block(&inode)
    }

    pub fn inode_block(&mut self, inode: &Inode) -> Handle<InodeBlock> {
        Handle::from_bytes(*self.put(Kind::Inode, inode.encode().into()).as_bytes())
    }

    pub fn inode(&mut self, model: &Model) -> Inode {
        let (content, attributes) = match model {
            Model::Symlink => (Content::Symlink(Bytes::from_static(b"x")), Attributes::None),
            Model::File(extents, seed, attributes) => {
                (Content::Regular(self.file(*extents, *seed)), *attributes)
            }
            Model::Directory(names, attributes) => {
                let entries: Vec<(Vec<u8>, Inode)> = names
                    .iter()
                    .map(|(name, model)| (name.clone(), self.inode(model)))
                    .collect();
                let map = self.map(&entries);
                (Content::Directory { map, opaque: false }, *attributes)
            }
        };
        let mut inode = Inode::new(0o644, Time::default(), content);
        inode.xattrs = self.xattrs(attributes);
        inode
    }

    fn xattrs(&mut self, attributes: Attributes) -> Xattrs {
        let name = Bytes::from_static(b"user.a");
        match attributes {
            Attributes::None => Xattrs::None,
            Attributes::Inline => Xattrs::Inline(vec![(name, vec![1; 900].into())]),
            Attributes::Stored => {
                let list = encode_xattrs(&[(name, vec![1; 3000].into())]);
                let len = list.len() as u32;
                let handle = self.put(Kind::Data, list.into());
                let handle = Handle::from_bytes(*handle.as_bytes());
                Xattrs::Stored(self.array(&[Extent::Data { handle, len }]))
            }
        }
    }

    fn file(&mut self, extents: u16, seed: u8) -> FileContent {
        if extents == 0 {
            return FileContent::Empty;
        }
        let mut list = vec![Extent::Hole { len: 1 << 20 }];
        for n in 0..extents {
            let bytes = Bytes::from(vec![seed; 300 + usize::from(n)]);
            let len = bytes.len() as u32;
            let handle = self.put(Kind::Data, bytes);
            list.push(Extent::Data {
                handle: Handle::<Data>::from_bytes(*handle.as_bytes()),
                len,
            });
        }
        FileContent::Array(self.array(&list))
    }

    pub fn array(&mut self, list: &[Extent]) -> crate::tree::array::ArrayRoot {
        let mut nodes = Vec::new();
        let sink = |_: Handle<ArrayNode>, bytes: &Bytes| nodes.push(bytes.clone());
        let mut builder = ArrayBuilder::new(&hasher(), sink);
        list.iter()
            .for_each(|extent| builder.push(*extent).unwrap());
        let root = builder.finish().unwrap().unwrap();
        for node in nodes {
            self.put(Kind::Array, node);
        }
        root
    }

    pub fn map(&mut self, entries: &[(Vec<u8>, Inode)]) -> Option<MapRoot> {
        let mut values = Vec::new();
        for (name, inode) in entries {
            // Some names have their inode in a block of its own.
            let value = if name.len() % 3 == 2 && name[0] == b'a' {
                Entry::Block(self.inode_block(inode)).encode()
            } else {
                inode.encode()
            };
            values.push((name, value));
        }
        let mut nodes = Vec::new();
        let sink = |_: Handle<MapNode>, bytes: &Bytes| nodes.push(bytes.clone());
        let mut builder = map::Builder::new(&hasher(), [0; 16], sink);
        for (name, value) in &values {
            builder.push(name, value).unwrap();
        }
        let root = builder.finish().unwrap();
        for node in nodes {
            self.put(Kind::Map, node);
        }
        root
    }

    pub fn read(&self, root: &Handle<InodeBlock>) -> Inode {
        Inode::decode(&self.blocks[&root.any()].1).unwrap()
    }
}

/// The result of a walk.
#[derive(Default)]
pub struct Walked {
    pub named: BTreeSet<Handle>,
    pub entries: Vec<(Vec<u8>, Inode)>,
    pub ends: Vec<Vec<u8>>,
    pub refused: Vec<Refused>,
    pub most_weight_bytes: usize,
    pub needs: usize,
}

/// Walks to the end with up to `batch` blocks under way, which come back in an order that `order` chooses.
/// Skips by key; blocks that the world does not have are given back as lacking.
pub fn walk(world: &World, reach: &mut Reach, batch: usize, mut order: u64) -> Walked {
    let mut walked = Walked::default();
    let mut seen = HashSet::new();
    let mut under_way: Vec<Need> = Vec::new();
    loop {
        while under_way.len() < batch {
            walked.most_weight_bytes = walked.most_weight_bytes.max(reach.weight_bytes());
            match reach.next_step() {
                Ok(None) => break,
                Ok(Some(Step::Entry(path, inode))) => walked.entries.push((path.to_bytes(), inode)),
                Ok(Some(Step::End(path))) => walked.ends.push(path.to_bytes()),
                Ok(Some(Step::Need(need))) => {
                    walked.needs += 1;
                    if need.key().is_some_and(|key| !seen.insert(key)) {
                        reach.skip(need);
                    } else {
                        walked.named.insert(need.handle());
                        under_way.push(need);
                    }
                }
                Err(refused) => walked.refused.push(refused),
            }
        }
        if under_way.is_empty() {
            assert!(
                reach.is_done(),
                "the walk waits for nothing and is not done"
            );
            return walked;
        }
        order = order
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let need = under_way.swap_remove((order >> 33) as usize % under_way.len());
        let Some((_, bytes)) = world.blocks.get(&need.handle()) else {
            reach.lack(need);
            continue;
        };
        let path = need.path().to_bytes();
        match need.wanted().prove(&hasher(), bytes.clone()) {
            Ok(found) => walked.refused.extend(reach.supply(need, found).err()),
            Err(why) => {
                reach.lack(need);
                walked.refused.push(Refused { path, why });
            }
        }
    }
}
