//! Walks over trees that no program of bulla makes: a node that was marked as one thing is still entered as another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use share_server::collect::marking::{MAX_LOST, Marking, Seen, Source, Unmarked};
use trust::array::ArrayRoot;
use trust::encode::Encoder;
use trust::handle::InodeBlock;
use trust::inode::{Content, Entry, FileContent, Inode, Time};
use trust::map::{self, MapRoot, Salt};
use trust::reach::{Found, Wanted};
use trust::{Handle, Kind, Reject};
use trust_shared::itable::MAX_TABLE_INLINE_BYTES;
use trust_shared::row::Row;

use super::tree::{self, Made, directory_of};

/// All blocks that are here, and those that are marked.
struct Here<'a> {
    made: &'a Made,
    marked: BTreeSet<Handle>,
    read: usize,
}

impl Source for Here<'_> {
    type Error = String;

    fn mark(&mut self, block: &Handle) -> Result<Seen, String> {
        Ok(match self.made.contains_key(block) {
            false => Seen::Absent,
            true if self.marked.insert(*block) => Seen::New,
            true => Seen::Known,
        })
    }

    fn read(&mut self, wanted: &Wanted) -> Result<Result<Found, Reject>, String> {
        self.read += 1;
        let (_, bytes) = self.made.get(&wanted.handle()).ok_or("it is not here")?;
        Ok(wanted.prove(&tree::hasher(), bytes.clone()))
    }
}

fn marking(made: &Made) -> Marking<Here<'_>> {
    Marking::new(Here {
        made,
        marked: BTreeSet::new(),
        read: 0,
    })
}

fn lacks(marking: Marking<Here<'_>>, blocks: &[Handle]) -> Vec<Handle> {
    let marked = marking.into_source().marked;
    let lacking = blocks.iter().filter(|block| !marked.contains(*block));
    lacking.copied().collect()
}

/// A file with these bytes as content: the handle of anything.
fn naming(block: &Handle) -> Inode {
    let root = ArrayRoot {
        len: 800,
        height: 0,
        top: *block.as_bytes(),
    };
    let content = Content::Regular(FileContent::Array(root));
    Inode::new(0o644, Time::default(), content)
}

/// A fold of one file: its i-table, its blocks, and those of the file.
fn folded(made: &mut Made) -> (MapRoot, Vec<Handle>, Vec<Handle>) {
    let (inode, content) = tree::version(&tree::hasher(), 7, made);
    let files = BTreeMap::from([(0, inode)]);
    let (fold, blocks, _) = tree::folded(&tree::hasher(), None, &files, 1, made);
    (fold.root.unwrap(), blocks, content)
}

#[test]
fn node_that_somebody_named_as_content_is_entered_by_its_owner() {
    let mut made = Made::new();
    let (inode, blocks) = tree::version(&tree::hasher(), 1, &mut made);
    let (table, of_fold, of_file) = folded(&mut made);
    let mut marking = marking(&made);
    for block in blocks.iter().chain(&of_fold).chain(&of_file) {
        marking.inode(&naming(block)).unwrap();
    }
    marking.inode(&inode).unwrap();
    marking.table(&table).unwrap();
    assert_eq!(
        marking.source().read,
        3,
        "the node of each file, and the i-table"
    );
    // Once more there is nothing to do.
    marking.inode(&inode).unwrap();
    marking.table(&table).unwrap();
    assert_eq!((marking.source().read, marking.entered()), (3, 3));
    assert_eq!(lacks(marking, &[blocks, of_fold, of_file].concat()), []);
}

#[test]
fn only_a_mark_is_left_of_content() {
    let mut made = Made::new();
    let (_, blocks) = tree::version(&tree::hasher(), 1, &mut made);
    let node = *blocks.last().unwrap();
    let mut marking = marking(&made);
    marking.inode(&naming(&node)).unwrap();
    assert_eq!(lacks(marking, &blocks), blocks[..2]);
}

#[test]
fn absent_block_counts_once_and_not_all_of_them_are_remembered() {
    let made = Made::new();
    let absent = |number: u64| Handle::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let mut marking = marking(&made);
    for _ in 0..3 {
        marking.inode(&naming(&absent(0))).unwrap();
    }
    assert_eq!(marking.lost(), (1, Some(absent(0))));
    for number in 0..MAX_LOST as u64 + 10 {
        marking.inode(&naming(&absent(number))).unwrap();
    }
    assert_eq!(marking.lost().0, MAX_LOST as u64);
}

#[test]
fn i_table_that_was_entered_as_names_or_rows_is_entered_as_files() {
    let mut made = Made::new();
    let (table, of_fold, of_file) = folded(&mut made);
    let all = [of_fold, of_file].concat();
    let mut as_names = marking(&made);
    as_names.inode(&directory_of(&table)).unwrap();
    as_names.table(&table).unwrap();
    assert_eq!(lacks(as_names, &all), []);
    let mut as_old = marking(&made);
    as_old.names(&table).unwrap();
    as_old.inode(&directory_of(&table)).unwrap();
    as_old.table(&table).unwrap();
    assert_eq!(lacks(as_old, &all), []);
}

#[test]
fn old_fold_keeps_names_and_attributes_and_no_content() {
    let mut made = Made::new();
    let hasher = tree::hasher();
    let (file, of_file) = tree::version(&hasher, 7, &mut made);
    // A directory with one name, and a file whose inode does not fit into the i-table.
    let mut names = Vec::new();
    let value = [0xf0; 46];
    let mut builder = map::Builder::new(&hasher, Salt::default(), |handle, bytes| {
        names.push(handle.any());
        made.insert(handle.any(), (Kind::Map, bytes.clone()));
    });
    builder.push(b"name", &value).unwrap();
    let directory = builder.finish().unwrap().unwrap();
    let long = vec![5; MAX_TABLE_INLINE_BYTES + 1];
    let content = Content::Regular(FileContent::Inline(long.into()));
    let large = Inode::new(0o644, Time::default(), content);
    let inodes = [file, Arc::new(directory_of(&directory)), Arc::new(large)];
    let files = (0..).zip(inodes).collect();
    let (table, of_table) = tree::table(0, &files, &mut made);
    assert_eq!(of_table.len(), 2, "a node, and an inode");
    let mut marking = marking(&made);
    marking.names(&table).unwrap();
    assert_eq!(marking.lost().0, 0);
    let all = [of_table, names, of_file.clone()].concat();
    assert_eq!(lacks(marking, &all), of_file);
}

#[test]
fn what_is_missing_or_malformed_stops_a_walk_of_the_window_and_no_walk_of_an_old_fold() {
    let mut made = Made::new();
    let (root, blocks, content) = folded(&mut made);
    let wrong = MapRoot {
        entries: root.entries + 1,
        ..root
    };
    let mut in_window = marking(&made);
    let why = in_window.table(&wrong);
    assert!(matches!(why, Err(Unmarked::Malformed(..))), "{why:?}");
    let mut old = marking(&made);
    old.names(&wrong).unwrap();
    // What was passed over was not entered.
    old.table(&root).unwrap();
    assert_eq!(lacks(old, &[blocks, content].concat()), []);
    let nothing = Made::new();
    let why = marking(&nothing).table(&root);
    assert!(matches!(why, Err(Unmarked::Missing(_))), "{why:?}");
    let mut old = marking(&nothing);
    old.names(&root).unwrap();
    assert_eq!(old.lost().0, 1);
    // The bytes of a node, under the name of another kind.
    let (inode, _) = tree::version(&tree::hasher(), 1, &mut made);
    let (Content::Regular(FileContent::Array(node)), mut made) = (&inode.content, made) else {
        panic!("a file of blocks");
    };
    let (_, bytes) = made[&Handle::from_bytes(node.top)].clone();
    let handle = tree::hasher().name(Kind::Map, &bytes);
    made.insert(handle, (Kind::Map, bytes));
    let other = MapRoot {
        handle: Handle::from_bytes(*handle.as_bytes()),
        ..root
    };
    let why = marking(&made).table(&other);
    assert!(matches!(why, Err(Unmarked::Malformed(..))), "{why:?}");
    marking(&made).names(&other).unwrap();
}

/// A node of a map.
fn node(level: u8, items: &[(&[u8], Item)], made: &mut Made) -> Handle {
    let mut e = Encoder::new();
    e.u8(0).u8(level).varint(items.len() as u64);
    for (key, item) in items {
        e.bytes(key);
        match item {
            Item::Value(value) => drop(e.bytes(value)),
            Item::File(inode) => drop(e.bytes(&Entry::Block(*inode).encode())),
            Item::Child(child, entries) => drop(e.raw(child.as_bytes()).varint(*entries)),
        }
    }
    let bytes = Bytes::from(e.finish());
    let handle = tree::hasher().name(Kind::Map, &bytes);
    made.insert(handle, (Kind::Map, bytes));
    handle
}

#[derive(Clone, Copy)]
enum Item {
    Value(&'static [u8]),
    File(Handle<InodeBlock>),
    Child(Handle, u64),
}

/// An inode in a block of its own.
fn sealed(seconds: i64, made: &mut Made) -> Handle<InodeBlock> {
    let content = Content::Regular(FileContent::Empty);
    let mtime = Time { seconds, nanos: 0 };
    let inode = Inode::new(0o644, mtime, content);
    let (handle, block) = tree::hasher().seal::<InodeBlock>(Bytes::from(inode.encode()));
    made.insert(handle.any(), (Kind::Inode, block.into_bytes()));
    handle
}

#[test]
fn wrong_neighbour_in_one_old_fold_hides_nothing_of_another() {
    let mut made = Made::new();
    let keys: Vec<[u8; 2]> = (0..32_u8).map(|number| [number / 4, number % 4]).collect();
    let (mut leaves, mut inodes): (Vec<(&[u8], Item)>, Vec<Handle>) = Default::default();
    for keys in keys.chunks(4) {
        let inode = sealed(leaves.len() as i64, &mut made);
        inodes.push(inode.any());
        let files = keys.iter().map(|key| (key.as_slice(), Item::File(inode)));
        let files: Vec<(&[u8], Item)> = files.collect();
        leaves.push((files[0].0, Item::Child(node(1, &files, &mut made), 4)));
    }
    let first = node(2, &leaves[..4], &mut made);
    let second = node(2, &leaves[4..], &mut made);
    let good = MapRoot {
        handle: Handle::from_bytes(*first.as_bytes()),
        height: 2,
        entries: 16,
        salt: Salt::default(),
    };
    // The second node begins within the last leaf of the first one, so that leaf breaks a rule there.
    let halves: [(&[u8], Item); 2] = [
        (&[0, 0], Item::Child(first, 16)),
        (&[3, 1], Item::Child(second, 16)),
    ];
    let bad = MapRoot {
        handle: Handle::from_bytes(*node(3, &halves, &mut made).as_bytes()),
        height: 3,
        entries: 32,
        salt: Salt::default(),
    };
    let why = marking(&made).inode(&directory_of(&bad));
    assert!(matches!(why, Err(Unmarked::Malformed(..))), "{why:?}");
    let mut marking = marking(&made);
    marking.names(&bad).unwrap();
    marking.names(&good).unwrap();
    assert_eq!(lacks(marking, &inodes[..4]), []);
}

#[test]
fn inode_that_only_a_row_names_is_marked_with_its_content() {
    let mut made = Made::new();
    let hasher = tree::hasher();
    let (inode, content) = tree::version(&hasher, 3, &mut made);
    let (handle, block) = hasher.seal::<InodeBlock>(Bytes::from(inode.encode()));
    made.insert(handle.any(), (Kind::Inode, block.into_bytes()));
    let rows = [
        (Row::Policy, vec![1]),
        (Row::Inode(tree::file(1).into()), {
            let mut e = Encoder::new();
            e.varint(9).u8(1);
            e.raw(&Entry::Block(handle).encode());
            e.finish()
        }),
        (Row::Inode(tree::file(2).into()), vec![9, 0]),
    ];
    let mut nodes = Vec::new();
    let mut builder = map::Builder::new(&hasher, Salt::default(), |handle, bytes| {
        nodes.push((handle.any(), bytes.clone()));
    });
    for (row, value) in &rows {
        builder.push(&row.encode(), value).unwrap();
    }
    let root = builder.finish().unwrap().unwrap();
    for (handle, bytes) in nodes {
        made.insert(handle, (Kind::Map, bytes));
    }
    let mut marking = marking(&made);
    marking.rows(&root).unwrap();
    let all = [vec![root.handle.any(), handle.any()], content].concat();
    assert_eq!(lacks(marking, &all), []);
}

#[test]
fn later_format_stops_a_walk_of_an_old_fold_too() {
    let mut made = Made::new();
    let table = |value: &'static [u8], made: &mut Made| MapRoot {
        handle: {
            let leaf = node(1, &[(b"file", Item::Value(value))], made);
            Handle::from_bytes(*leaf.as_bytes())
        },
        height: 1,
        entries: 1,
        salt: Salt::default(),
    };
    let malformed = table(b"\0", &mut made);
    let later = table(b"\x01", &mut made);
    marking(&made).names(&malformed).unwrap();
    let why = marking(&made).names(&later);
    assert!(matches!(why, Err(Unmarked::Entry(_))), "{why:?}");
}
