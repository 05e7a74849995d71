//! Array trees that are edited in place, against their model, a vector of bytes. Also the cost of an edit,
//! and malformed trees.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use proptest::prelude::*;

use super::super::{Builder, Child, Leftover, Node, edges};
use super::*;
use crate::encode::{Decoder, Encoder};
use crate::handle::{Block, Data};

fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

/// How content is cut into blocks.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Fixed(usize),
    /// After a byte that is a multiple of 13, or after 40 bytes.
    ByContent,
}

/// A node's level, number of entries and handle.
type Row = (u8, usize, Handle<ArrayNode>);

#[derive(Default, Clone)]
struct Store {
    data: HashMap<Handle<Data>, Vec<u8>>,
    nodes: HashMap<Handle<ArrayNode>, Bytes>,
    loads: Cell<usize>,
}

impl Nodes for Store {
    type Error = Reject;

    fn node(&self, handle: &Handle<ArrayNode>) -> Result<Node, Reject> {
        self.loads.set(self.loads.get() + 1);
        Node::decode(&self.block(handle)?)
    }
}

impl Store {
    fn block(&self, handle: &Handle<ArrayNode>) -> Result<Block<ArrayNode>, Reject> {
        let bytes = self.nodes.get(handle).ok_or(Reject::WrongBlock)?;
        hasher().check(handle, bytes.clone())
    }

    /// Blocks for `bytes`; pieces of zeros are holes.
    fn cut(&mut self, mut bytes: &[u8], cut: Cut) -> Vec<Extent> {
        let mut extents = Vec::new();
        while !bytes.is_empty() {
            let len = match cut {
                Cut::Fixed(len) => len,
                Cut::ByContent => {
                    let end = bytes.iter().take(40).position(|b| b % 13 == 0);
                    end.map_or(40, |at| at + 1)
                }
            };
            let (piece, rest) = bytes.split_at(len.min(bytes.len()));
            bytes = rest;
            let len = piece.len() as u32;
            if piece.iter().all(|b| *b == 0) {
                extents.push(Extent::Hole { len: len.into() });
                continue;
            }
            let handle = hasher().handle::<Data>(piece);
            self.data.insert(handle, piece.to_vec());
            extents.push(Extent::Data { handle, len });
        }
        extents
    }

    /// The bytes of a leftover piece.
    fn piece(&self, leftover: &Option<Leftover>) -> Vec<u8> {
        leftover.as_ref().map_or(Vec::new(), |piece| {
            let block = &self.data[&piece.handle];
            assert_eq!(block.len(), piece.len as usize);
            block[piece.keep.start as usize..piece.keep.end as usize].to_vec()
        })
    }

    fn splice(
        &mut self,
        root: Option<&ArrayRoot>,
        range: Range<u64>,
        extents: &[Extent],
        fan_out: usize,
    ) -> (Option<ArrayRoot>, Vec<Handle<ArrayNode>>) {
        let mut made = Vec::new();
        let sink = |handle, bytes: &Bytes| made.push((handle, bytes.clone()));
        let root = splice_sized(&hasher(), root, range, extents, self, fan_out, sink).unwrap();
        let names = made.iter().map(|(handle, _)| *handle).collect();
        self.nodes.extend(made);
        (root, names)
    }

    /// Writes as a caller does: reads the leftover pieces, cuts, stores, splices.
    fn write(
        &mut self,
        root: Option<&ArrayRoot>,
        at: u64,
        bytes: &[u8],
        cut: Cut,
        fan_out: usize,
    ) -> (Option<ArrayRoot>, Vec<Handle<ArrayNode>>) {
        let len = root.map_or(0, |root| root.len);
        let (start, end) = (at.min(len), (at + bytes.len() as u64).min(len));
        let edges = edges(root, start..end, self).unwrap();
        let content = [
            &self.piece(&edges.left)[..],
            bytes,
            &self.piece(&edges.right),
        ]
        .concat();
        let mut extents = vec![Extent::Hole {
            len: at.saturating_sub(len),
        }];
        extents.extend(self.cut(&content, cut));
        self.splice(root, edges.range, &extents, fan_out)
    }

    /// Replaces a range by extents; leftover pieces get blocks of their own.
    fn replace(
        &mut self,
        root: Option<&ArrayRoot>,
        range: Range<usize>,
        middle: &[Extent],
        cut: Cut,
        fan_out: usize,
    ) -> (Option<ArrayRoot>, Vec<Handle<ArrayNode>>) {
        let edges = edges(root, range.start as u64..range.end as u64, self).unwrap();
        let (left, right) = (self.piece(&edges.left), self.piece(&edges.right));
        let mut extents = self.cut(&left, cut);
        extents.extend(middle);
        extents.extend(self.cut(&right, cut));
        self.splice(root, edges.range, &extents, fan_out)
    }

    /// Reads the whole tree with all checks of a reader. Returns the nodes with their level and number of
    /// entries, in order, and the extents.
    fn read(&self, root: Option<&ArrayRoot>) -> (Vec<Row>, Vec<Extent>) {
        let (mut nodes, mut extents) = (Vec::new(), Vec::new());
        let Some(root) = root else {
            return (nodes, extents);
        };
        let mut e = Encoder::new();
        root.encode(&mut e);
        let bytes = e.finish();
        assert_eq!(
            ArrayRoot::decode(&mut Decoder::new(&bytes, "root")),
            Ok(*root)
        );
        let mut stack = vec![root.top()];
        while let Some(child) = stack.pop() {
            match child {
                Child::Extent(extent) => extents.push(extent),
                Child::Node { handle, len, level } => {
                    let bytes = self.nodes[&handle].clone();
                    let node = Node::decode(&hasher().check(&handle, bytes).unwrap()).unwrap();
                    node.check(level, len).unwrap();
                    nodes.push((level, node.count(), handle));
                    let children: Vec<Child> = node.children().collect();
                    stack.extend(children.into_iter().rev());
                }
            }
        }
        (nodes, extents)
    }

    fn bytes(&self, root: Option<&ArrayRoot>) -> Vec<u8> {
        let mut out = Vec::new();
        for extent in self.read(root).1 {
            match extent {
                Extent::Hole { len } => out.resize(out.len() + len as usize, 0),
                Extent::Data { handle, len } => {
                    assert_eq!(self.data[&handle].len(), len as usize);
                    out.extend_from_slice(&self.data[&handle]);
                }
            }
        }
        out
    }

    /// Checks the shape that the module's head promises.
    fn check_shape(&self, root: Option<&ArrayRoot>, fan_out: usize) {
        let (nodes, extents) = self.read(root);
        let holes = |pair: &[Extent]| pair.iter().all(|e| matches!(e, Extent::Hole { .. }));
        assert!(!extents.windows(2).any(holes), "two holes in a row");
        let height = nodes.iter().map(|(level, ..)| *level).max().unwrap_or(0);
        for level in 1..=height {
            let row: Vec<usize> = nodes
                .iter()
                .filter(|(is, ..)| *is == level)
                .map(|(_, count, _)| *count)
                .collect();
            assert!(row.iter().all(|count| *count <= fan_out));
            let (_, inner) = row.split_last().unwrap();
            assert!(
                inner.iter().all(|count| *count >= fan_out / 4),
                "level {level} of {height}: {row:?}"
            );
        }
        if let Some((_, count, _)) = nodes.first() {
            assert!(*count > 1, "a top node with one child");
        }
    }
}

#[derive(Debug, Clone)]
enum Edit {
    Write(prop::sample::Index, Vec<u8>),
    Append(Vec<u8>),
    Truncate(prop::sample::Index),
    Extend(u16),
    Punch(prop::sample::Index, u16),
    Insert(prop::sample::Index, Vec<u8>),
}

fn edit() -> impl Strategy<Value = Edit> {
    let bytes = || prop::collection::vec(prop_oneof![any::<u8>(), Just(0)], 0..700);
    let at = any::<prop::sample::Index>;
    prop_oneof![
        6 => (at(), bytes()).prop_map(|(at, bytes)| Edit::Write(at, bytes)),
        4 => bytes().prop_map(Edit::Append),
        1 => at().prop_map(Edit::Truncate),
        1 => (0..2000u16).prop_map(Edit::Extend),
        3 => (at(), 0..900u16).prop_map(|(at, len)| Edit::Punch(at, len)),
        2 => (at(), bytes()).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
    ]
}

/// Applies an edit to the model and to the tree; returns the new root and the new nodes.
fn apply(
    store: &mut Store,
    root: Option<&ArrayRoot>,
    model: &mut Vec<u8>,
    edit: &Edit,
    cut: Cut,
    fan_out: usize,
) -> (Option<ArrayRoot>, Vec<Handle<ArrayNode>>) {
    let len = model.len();
    match edit {
        Edit::Write(at, bytes) => {
            // Up to a little beyond the end.
            let at = at.index(len + 50);
            model.resize(len.max(at + bytes.len()), 0);
            model[at..at + bytes.len()].copy_from_slice(bytes);
            store.write(root, at as u64, bytes, cut, fan_out)
        }
        Edit::Append(bytes) => {
            model.extend_from_slice(bytes);
            let extents = store.cut(bytes, cut);
            store.splice(root, len as u64..len as u64, &extents, fan_out)
        }
        Edit::Extend(by) => {
            model.resize(len + usize::from(*by), 0);
            let hole = Extent::Hole {
                len: u64::from(*by),
            };
            store.splice(root, len as u64..len as u64, &[hole], fan_out)
        }
        Edit::Truncate(at) => {
            let at = at.index(len + 1);
            model.truncate(at);
            store.replace(root, at..len, &[], cut, fan_out)
        }
        Edit::Punch(at, by) => {
            let at = at.index(len + 1);
            let end = (at + usize::from(*by)).min(len);
            model[at..end].fill(0);
            let len = (end - at) as u64;
            store.replace(root, at..end, &[Extent::Hole { len }], cut, fan_out)
        }
        Edit::Insert(at, bytes) => {
            let at = at.index(len + 1);
            model.splice(at..at, bytes.iter().copied());
            let extents = store.cut(bytes, cut);
            store.replace(root, at..at, &extents, cut, fan_out)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 3 / 8))]

    #[test]
    fn edited_tree_equals_the_model(
        edits in prop::collection::vec(edit(), 1..40),
        cut in prop_oneof![Just(Cut::Fixed(16)), Just(Cut::Fixed(3)), Just(Cut::ByContent)],
        fan_out in prop::sample::select(vec![4usize, 8, 16, FAN_OUT]),
    ) {
        let mut store = Store::default();
        let (mut root, mut model) = (None, Vec::new());
        for edit in &edits {
            let height = root.as_ref().map_or(0, |root: &ArrayRoot| root.height % HOLE);
            store.loads.set(0);
            let (new, made) = apply(&mut store, root.as_ref(), &mut model, edit, cut, fan_out);
            root = new;
            prop_assert!(store.bytes(root.as_ref()) == model, "after {edit:?}");
            prop_assert_eq!(root.map_or(0, |root| root.len), model.len() as u64);
            store.check_shape(root.as_ref(), fan_out);
            let (nodes, _) = store.read(root.as_ref());
            let reached: HashSet<_> = nodes.iter().map(|(.., handle)| *handle).collect();
            prop_assert!(made.iter().all(|handle| reached.contains(handle)), "a node too many");
            // Two edges, a neighbour each, and the search for the leftover pieces.
            let most = 7 * usize::from(height) + 3;
            prop_assert!(store.loads.get() <= most, "{} loads, height {height}", store.loads.get());
        }
    }

    #[test]
    fn appending_and_truncating_give_what_building_gives(
        counts in prop::collection::vec(0..700usize, 1..6), keep in any::<prop::sample::Index>(),
    ) {
        let mut store = Store::default();
        let extent = |n: usize| match n % 7 {
            3 => Extent::Hole { len: n as u64 },
            _ => Extent::Data {
                handle: hasher().handle(&n.to_le_bytes()),
                len: 1 + n as u32 % 999,
            },
        };
        let build = |list: &[Extent]| {
            let mut builder = Builder::new(&hasher(), |_, _: &Bytes| {});
            list.iter().for_each(|extent| builder.push(*extent).unwrap());
            builder.finish().unwrap()
        };
        let (mut root, mut list) = (None, Vec::new());
        for count in counts {
            let more: Vec<Extent> = (list.len()..list.len() + count).map(extent).collect();
            let len = root.map_or(0, |root: ArrayRoot| root.len);
            (root, _) = store.splice(root.as_ref(), len..len, &more, FAN_OUT);
            list.extend(more);
            prop_assert_eq!(root, build(&list));
        }
        let len = root.map_or(0, |root| root.len);
        list.truncate(keep.index(list.len() + 1));
        let new_len = list.iter().map(Extent::len).sum();
        let (root, _) = store.splice(root.as_ref(), new_len..len, &[], FAN_OUT);
        prop_assert_eq!(root, build(&list));
    }

    #[test]
    fn damaged_nodes_are_refused_or_harmless(
        at in any::<prop::sample::Index>(), mask in 1..=255u8, victim in any::<prop::sample::Index>(),
        start in any::<prop::sample::Index>(), len in 0..3000u64, insert in 0..40u64,
    ) {
        let mut store = Store::default();
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8).collect();
        let extents = store.cut(&bytes, Cut::Fixed(16));
        let (root, _) = store.splice(None, 0..0, &extents, 8);
        let root = root.unwrap();
        let mut names: Vec<_> = store.nodes.keys().copied().collect();
        names.sort();
        let liar = Liar { honest: store, victim: *victim.get(&names), at, mask };
        let start = start.index(9001) as u64;
        let range = start..(start + len).min(9000);
        let hole = [Extent::Hole { len: insert }];
        let Ok(edges) = edges(Some(&root), range, &liar) else {
            return Ok(());
        };
        let _ = splice_sized(&hasher(), Some(&root), edges.range, &hole, &liar, 8, |_, _| {});
    }
}

/// Returns one node with a byte flipped, as if it matched its handle.
struct Liar {
    honest: Store,
    victim: Handle<ArrayNode>,
    at: prop::sample::Index,
    mask: u8,
}

impl Nodes for Liar {
    type Error = Reject;

    fn node(&self, handle: &Handle<ArrayNode>) -> Result<Node, Reject> {
        let mut bytes = self.honest.block(handle)?.bytes().to_vec();
        if *handle == self.victim {
            let at = self.at.index(bytes.len());
            bytes[at] ^= self.mask;
        }
        Node::decode(&hasher().seal(bytes.into()).1)
    }
}

fn data(n: u64) -> Extent {
    Extent::Data {
        handle: hasher().handle(&n.to_le_bytes()),
        len: 65_536,
    }
}

#[test]
fn edit_touches_one_path() {
    let mut store = Store::default();
    let extents: Vec<Extent> = (0..70_000).map(data).collect();
    let (root, made) = store.splice(None, 0..0, &extents, FAN_OUT);
    let mut root = root.unwrap();
    assert_eq!((root.height, made.len()), (3, 274 + 2 + 1));
    for i in 0..200u64 {
        let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 70_000 * 65_536;
        let (range, new) = match i % 4 {
            0 => (at..at + 65_536, vec![data(1_000_000 + i)]),
            1 => (at + 5..at + 5, vec![]),
            2 => (at..at + 65_536, vec![Extent::Hole { len: 65_536 }]),
            _ => (root.len..root.len, vec![data(1_000_000 + i)]),
        };
        store.loads.set(0);
        let range = match i % 4 {
            1 => edges(Some(&root), range, &store).unwrap().range,
            _ => range,
        };
        let (new_root, made) = store.splice(Some(&root), range, &new, FAN_OUT);
        root = new_root.unwrap();
        // For a hole at the edge of a node its neighbours are loaded too.
        assert!(
            store.loads.get() <= 4 * 3 + 3,
            "{} loads",
            store.loads.get()
        );
        assert!(made.len() <= 3 * 3, "{} nodes", made.len());
    }
    store.check_shape(Some(&root), FAN_OUT);
}

#[test]
fn range_that_cuts_a_block_or_leaves_the_content_is_refused() {
    let mut store = Store::default();
    let list = [data(1), Extent::Hole { len: 100 }, data(2)];
    let (root, _) = store.splice(None, 0..0, &list, FAN_OUT);
    let root = root.unwrap();
    let len = root.len;
    let try_it = |range: Range<u64>, new: &[Extent]| {
        splice(&hasher(), Some(&root), range, new, &store, |_, _| {})
    };
    for range in [
        1..65_536,
        0..65_535,
        65_636..len - 1,
        len..len + 1,
        len + 1..len + 2,
    ] {
        let refused = try_it(range.clone(), &[]);
        assert!(
            matches!(refused, Err(Reject::Malformed { .. })),
            "{range:?}"
        );
    }
    assert!(try_it(7..7, &[data(9)]).is_err());
    let backwards = Range { start: 9, end: 8 };
    let over = Extent::Hole { len: MAX_LEN };
    assert!(try_it(backwards, &[]).is_err());
    assert!(try_it(0..0, &[over]).is_err(), "over the longest content");
    assert!(try_it(0..len, &[over]).unwrap().is_some());
    let Extent::Data { handle, .. } = data(1) else {
        panic!("data");
    };
    let block = Extent::Data {
        handle,
        len: (1 << 20) + 1,
    };
    assert!(try_it(0..0, &[block]).is_err());
    // Holes may be cut. The rest of a cut hole merges with the new one.
    let hole = [Extent::Hole { len: 5 }];
    let (cut, _) = store.splice(Some(&root), 65_540..65_550, &hole, FAN_OUT);
    let expected = [data(1), Extent::Hole { len: 95 }, data(2)];
    assert_eq!(store.read(cut.as_ref()).1, expected);
    assert_eq!(store.splice(Some(&root), 0..len, &[], FAN_OUT).0, None);
}

#[test]
fn node_that_is_not_what_its_parent_says_is_refused() {
    let mut store = Store::default();
    let extents: Vec<Extent> = (0..600).map(data).collect();
    let (root, _) = store.splice(None, 0..0, &extents, FAN_OUT);
    let root = root.unwrap();
    for liar in [
        ArrayRoot {
            len: root.len + 65_536,
            ..root
        },
        ArrayRoot {
            len: root.len - 65_536,
            ..root
        },
        ArrayRoot {
            height: root.height + 1,
            ..root
        },
        ArrayRoot { height: 1, ..root },
        ArrayRoot {
            height: 200,
            ..root
        },
    ] {
        for range in [0..65_536, liar.len..liar.len] {
            let spliced = splice(&hasher(), Some(&liar), range, &[data(9)], &store, |_, _| {});
            assert!(matches!(spliced, Err(Reject::BadTree { .. })), "{liar:?}");
        }
    }
}
