//! The walk against a model of the tree and against malformed trees, and what it costs.

mod world;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use self::world::{Attributes, Model, Names, Walked, World, hasher, names, walk};
use super::*;
use crate::error::{Class, Reject};
use crate::frame::Packer;
use crate::handle::{Handle, Kind, MapNode};
use crate::published::root::Totals;
use crate::tree::array::{ArrayRoot, Extent};
use crate::tree::inode::{Content, FileContent, Inode, Time};
use crate::tree::map::MapRoot;

/// Every path of a model with its inode, directories included, and how many directories there are.
fn paths(
    world: &mut World,
    path: &[u8],
    model: &Model,
    out: &mut BTreeMap<Vec<u8>, Inode>,
) -> usize {
    out.insert(path.to_vec(), world.inode(model));
    let Model::Directory(names, _) = model else {
        return 0;
    };
    let mut directories = 1;
    for (name, model) in names {
        let path = match path {
            b"" => name.clone(),
            path => [path, b"/", name].concat(),
        };
        directories += paths(world, &path, model, out);
    }
    directories
}

fn whole(names: &Names) -> Model {
    Model::Directory(names.clone(), Attributes::None)
}

fn told(walked: &Walked) -> BTreeMap<Vec<u8>, Inode> {
    walked.entries.iter().cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    #[test]
    fn walk_names_every_block_and_reports_every_entry(
        names in names(), batch in 1..80usize, order in any::<u64>(),
    ) {
        let mut world = World::default();
        let root = world.root(&names);
        let blocks: BTreeSet<Handle> = world.blocks.keys().copied().collect();
        let mut reach = Reach::default();
        reach.root(root, None);
        let walked = walk(&world, &mut reach, batch, order);
        prop_assert!(reach.is_proved());
        prop_assert_eq!(walked.named.clone(), blocks);
        prop_assert_eq!(walked.entries.len(), walked.ends.len() + walked.entries.iter()
            .filter(|(_, inode)| !matches!(inode.content, Content::Directory { .. })).count());
        // Directories that are skipped as known are not entered. So without skipping every entry is reported.
        let mut reach = Reach::default();
        reach.root(root, None);
        let (mut all, mut ends) = (BTreeMap::new(), 0);
        while let Some(step) = reach.next_step().unwrap() {
            match step {
                Step::Need(need) => {
                    let bytes = world.blocks[&need.handle()].1.clone();
                    let found = need.wanted().prove(&hasher(), bytes).unwrap();
                    reach.supply(need, found).unwrap();
                }
                Step::Entry(path, inode) => {
                    prop_assert!(all.insert(path.to_bytes(), inode).is_none());
                }
                Step::End(_) => ends += 1,
            }
        }
        prop_assert!(reach.is_proved());
        let mut model = BTreeMap::new();
        let directories = paths(&mut world, b"", &whole(&names), &mut model);
        prop_assert_eq!(all, model);
        prop_assert_eq!(ends, directories);
    }

    #[test]
    fn walk_without_a_block_is_not_proved(
        names in names(), batch in 1..20usize, at in any::<prop::sample::Index>(),
    ) {
        let mut world = World::default();
        let root = world.root(&names);
        let mut handles: Vec<Handle> = world.blocks.keys().copied().collect();
        handles.sort();
        world.blocks.remove(&handles[at.index(handles.len())]);
        let mut reach = Reach::default();
        reach.root(root, None);
        walk(&world, &mut reach, batch, 1);
        prop_assert!(reach.is_done() && !reach.is_proved());
        prop_assert_eq!(reach.lacking(), 1);
    }

    #[test]
    fn walk_from_a_base_names_what_the_base_lacks(
        old in names(), mut new in names(), keep in any::<bool>(),
        batch in 1..80usize, order in any::<u64>(), at in any::<prop::sample::Index>(),
    ) {
        if keep {
            new.extend(old.iter().skip(1).map(|(k, v)| (k.clone(), v.clone())));
        }
        let mut before = World::default();
        let base = before.root(&old);
        let mut after = World::default();
        let root = after.root(&new);
        let missing: BTreeSet<Handle> = after.blocks.keys()
            .filter(|handle| !before.blocks.contains_key(handle)).copied().collect();
        let mut world = before.clone();
        world.blocks.extend(after.blocks.clone());
        let base = before.read(&base);
        let mut reach = Reach::default();
        reach.root(root, Some(&base));
        let walked = walk(&world, &mut reach, batch, order);
        prop_assert!(reach.is_proved());
        prop_assert!(missing.is_subset(&walked.named));
        prop_assert!(walked.named.iter().all(|handle| world.blocks.contains_key(handle)));
        let mut model = BTreeMap::new();
        paths(&mut after, b"", &whole(&new), &mut model);
        for (path, inode) in told(&walked) {
            prop_assert_eq!(&model[&path], &inode);
        }
        if !missing.is_empty() {
            let missing: Vec<Handle> = missing.into_iter().collect();
            world.blocks.remove(&missing[at.index(missing.len())]);
            let mut reach = Reach::default();
            reach.root(root, Some(&base));
            walk(&world, &mut reach, batch, order);
            prop_assert!(reach.is_done() && !reach.is_proved());
        }
    }

    #[test]
    fn lookup_finds_what_the_model_holds(names in names()) {
        let mut world = World::default();
        let root = world.root(&names);
        let mut model = BTreeMap::new();
        paths(&mut world, b"", &whole(&names), &mut model);
        for (path, inode) in &model {
            let present = Outcome::Present(Box::new(inode.clone()));
            prop_assert_eq!(follow(&world, root, path), Ok(present));
            let below = match path.as_slice() {
                b"" => b"zz/y".to_vec(),
                path => [path, b"/zz/y"].concat(),
            };
            let found = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).count();
            let absence = match inode.content {
                Content::Directory { .. } => Absence::NoEntry { found },
                _ => Absence::NotADirectory { found },
            };
            prop_assert_eq!(follow(&world, root, &below), Ok(Outcome::Absent(absence)));
        }
    }
}

fn follow(world: &World, root: Handle<crate::InodeBlock>, path: &[u8]) -> Result<Outcome, Reject> {
    let mut lookup = Lookup::new(root, path)?;
    while let Some(wanted) = lookup.wants() {
        let bytes = world.blocks[&wanted.handle()].1.clone();
        lookup.supply(wanted.prove(&hasher(), bytes)?)?;
    }
    Ok(lookup.outcome().unwrap().clone())
}

/// Counts as `verify` does: at the end of a directory its totals are known.
#[test]
fn directories_end_in_order_and_their_totals_add_up() {
    let file = |n| Model::File(n, 1, Attributes::None);
    let inner: Names = (0..50u8)
        .map(|n| (vec![b'a' + n % 26, b'a' + n / 26], file(u16::from(n % 3))))
        .collect();
    let twice = Model::Directory(inner, Attributes::Inline);
    let outer: Names = [("x", twice.clone()), ("y", twice), ("z", file(2))]
        .map(|(name, model)| (name.as_bytes().to_vec(), model))
        .into();
    let mut world = World::default();
    let root = world.root(&outer);
    let mut model = BTreeMap::new();
    paths(&mut world, b"", &whole(&outer), &mut model);
    let mut expected = Totals::default();
    model
        .values()
        .for_each(|inode| expected.add(Totals::of(inode)));

    let mut reach = Reach::default();
    reach.root(root, None);
    let mut known = std::collections::HashMap::new();
    let mut stack: Vec<(Totals, Option<Handle>)> = Vec::new();
    let (mut totals, mut skipped) = (Totals::default(), 0);
    while let Some(step) = reach.next_step().unwrap() {
        match step {
            Step::Entry(_, inode) => match &inode.content {
                Content::Directory { map, .. } => {
                    let handle = map.map(|map| map.handle.any());
                    stack.push((Totals::of(&inode), handle));
                }
                _ => stack.last_mut().unwrap().0.add(Totals::of(&inode)),
            },
            Step::Need(need) => {
                if let (true, Some(sum)) = (need.is_directory(), known.get(&need.handle())) {
                    let (mine, _) = stack.last_mut().unwrap();
                    *mine = *sum;
                    skipped += 1;
                    reach.skip(need);
                    continue;
                }
                let bytes = world.blocks[&need.handle()].1.clone();
                let found = need.wanted().prove(&hasher(), bytes).unwrap();
                reach.supply(need, found).unwrap();
            }
            Step::End(_) => {
                let (sum, handle) = stack.pop().unwrap();
                handle.map(|handle| known.insert(handle, sum));
                match stack.last_mut() {
                    Some((parent, _)) => parent.add(sum),
                    None => totals = sum,
                }
            }
        }
    }
    assert_eq!((totals, skipped), (expected, 1));
}

fn directory(map: Option<MapRoot>) -> Inode {
    let content = Content::Directory { map, opaque: false };
    Inode::new(0o755, Time::default(), content)
}

fn array_file(root: ArrayRoot) -> Inode {
    let content = Content::Regular(FileContent::Array(root));
    Inode::new(0o644, Time::default(), content)
}

#[test]
fn tree_nested_in_itself_is_walked_in_linear_time() {
    let mut world = World::default();
    let mut inode = directory(None);
    for _ in 0..60 {
        let names = [(b"l".to_vec(), inode.clone()), (b"r".to_vec(), inode)];
        inode = directory(world.map(&names));
    }
    let root = world.inode_block(&inode);
    let mut reach = Reach::default();
    reach.root(root, None);
    let walked = walk(&world, &mut reach, 4, 1);
    assert!(reach.is_proved());
    assert!(walked.needs <= 2 * 60 + 2, "{} needs", walked.needs);
}

/// A tree of one directory with a valid file `ok` and with `inode` as `bad`.
fn beside(world: &mut World, inode: Inode) -> (Handle<crate::InodeBlock>, Walked, Reach) {
    let ok = world.inode(&Model::File(3, 9, Attributes::None));
    let map = world.map(&[(b"bad".to_vec(), inode), (b"ok".to_vec(), ok)]);
    let root = world.inode_block(&directory(map));
    let mut reach = Reach::default();
    reach.root(root, None);
    let walked = walk(world, &mut reach, 3, 5);
    (root, walked, reach)
}

/// Files and directories whose roots contradict their nodes.
fn liars(world: &mut World) -> Vec<Inode> {
    let names = (0..100u8).map(|n| (vec![b'n', 100 + n], Model::File(0, 0, Attributes::Inline)));
    let large = world.inode(&Model::Directory(names.collect(), Attributes::None));
    let Content::Directory { map: Some(map), .. } = large.content else {
        panic!("a directory");
    };
    let Content::Regular(FileContent::Array(array)) =
        world.inode(&Model::File(400, 1, Attributes::None)).content
    else {
        panic!("a file");
    };
    let Content::Regular(FileContent::Array(single)) =
        world.inode(&Model::File(2, 1, Attributes::None)).content
    else {
        panic!("a file");
    };
    assert!(map.height > 1 && array.height > 1);
    let short = world.put(Kind::Data, Bytes::from_static(b"short"));
    let short = Extent::Data {
        handle: Handle::from_bytes(*short.as_bytes()),
        len: 6,
    };
    let data = world.array(&[Extent::Hole { len: 300 }, short]);
    vec![
        directory(Some(MapRoot {
            entries: map.entries + 1,
            ..map
        })),
        directory(Some(MapRoot {
            height: map.height + 1,
            ..map
        })),
        array_file(ArrayRoot {
            len: array.len + 1,
            ..array
        }),
        array_file(ArrayRoot {
            height: array.height + 1,
            ..array
        }),
        array_file(ArrayRoot {
            len: single.len - 1,
            ..single
        }),
        array_file(data),
    ]
}

#[test]
fn malformed_part_is_refused_and_the_rest_is_walked() {
    let mut world = World::default();
    let liars = liars(&mut world);
    for (number, liar) in liars.into_iter().enumerate() {
        let is_directory = matches!(liar.content, Content::Directory { .. });
        let mut world = world.clone();
        let (root, walked, reach) = beside(&mut world, liar);
        if is_directory {
            let followed = follow(&world, root, b"bad/no");
            assert!(matches!(followed, Err(Reject::BadTree { .. })), "{number}");
        }
        assert!(reach.is_done() && !reach.is_proved(), "{number}");
        let [refused] = walked.refused.as_slice() else {
            panic!("{number}: {:?}", walked.refused);
        };
        assert_eq!(refused.path, b"bad", "{number}");
        assert_eq!(reach.lacking(), 1, "{number}");
        assert_eq!(refused.why.class(), Class::Integrity);
        assert!(matches!(refused.why, Reject::BadTree { .. }), "{number}");
        assert!(told(&walked).contains_key(b"ok".as_slice()), "{number}");
    }
}

#[test]
fn entry_that_no_directory_may_hold_is_refused() {
    for name in [&b".."[..], b"a/b", b"nul\0", b"."] {
        let mut world = World::default();
        let file = world.inode(&Model::Symlink);
        let names = [(name.to_vec(), file.clone()), (b"zz".to_vec(), file)];
        let map = world.map(&names);
        let root = world.inode_block(&directory(map));
        let mut reach = Reach::default();
        reach.root(root, None);
        let walked = walk(&world, &mut reach, 1, 1);
        assert!(reach.is_done() && !reach.is_proved());
        assert_eq!(walked.refused.len(), 1, "{name:?}");
        assert!(told(&walked).contains_key(b"zz".as_slice()));
    }
}

#[test]
fn directory_nested_too_deeply_is_refused() {
    let mut world = World::default();
    let mut inode = directory(None);
    for _ in 0..MAX_DEPTH {
        inode = directory(world.map(&[(b"d".to_vec(), inode)]));
    }
    let root = world.inode_block(&inode);
    let mut reach = Reach::default();
    reach.root(root, None);
    let walked = walk(&world, &mut reach, 1, 1);
    assert!(reach.is_proved());
    assert_eq!(walked.ends.len(), MAX_DEPTH + 1);
    let inode = directory(world.map(&[(b"d".to_vec(), inode)]));
    let root = world.inode_block(&inode);
    let mut reach = Reach::default();
    reach.root(root, None);
    let walked = walk(&world, &mut reach, 1, 1);
    assert!(reach.is_done() && !reach.is_proved());
    assert!(
        walked.refused[0]
            .why
            .to_string()
            .contains("nested too deeply")
    );
}

#[test]
fn block_of_another_kind_is_refused() {
    let mut world = World::default();
    let root = world.root(&Names::from([(b"a".to_vec(), Model::Symlink)]));
    let mut reach = Reach::default();
    reach.root(root, None);
    let need = reach.needs(9).unwrap().pop().unwrap();
    let refused = reach.supply(need, Found::Data { len: 1 }).unwrap_err();
    assert_eq!(refused.why, Reject::WrongBlock);
    assert!(reach.is_done() && !reach.is_proved());
    let mut lookup = Lookup::new(root, b"a").unwrap();
    assert_eq!(
        lookup.supply(Found::Data { len: 1 }),
        Err(Reject::WrongBlock)
    );
    let wanted = lookup.wants().unwrap();
    let other = world.put(Kind::Inode, Bytes::from_static(b"other"));
    let bytes = world.blocks[&other].1.clone();
    assert_eq!(
        wanted.prove(&hasher(), bytes).unwrap_err(),
        Reject::WrongBlock
    );
}

#[test]
fn frame_is_unpacked_and_the_party_at_fault_is_named() {
    let wanted = Wanted::Map(hasher().handle::<MapNode>(b"no node"));
    let mut packer = Packer::new();
    let mut unpack = |kind, bytes: &[u8]| {
        let frame = packer.pack(kind, bytes).unwrap();
        wanted.unpack(&hasher(), &frame).unwrap_err()
    };
    let signed = unpack(Kind::Map, b"no node");
    assert!(signed.is_publishers_fault(), "{signed}");
    let other_bytes = unpack(Kind::Map, b"other");
    assert_eq!(other_bytes, Reject::WrongBlock);
    let other_kind = unpack(Kind::Data, b"no node");
    assert!(matches!(other_kind, Reject::WrongKind { .. }));
    for why in [other_bytes, other_kind] {
        assert!(!why.is_publishers_fault(), "{why}");
    }
}

#[test]
fn need_that_does_not_come_back_leaves_the_walk_unproved() {
    let mut world = World::default();
    let root = world.root(&Names::from([(b"a".to_vec(), Model::Symlink)]));
    let mut reach = Reach::default();
    reach.root(root, None);
    drop(reach.needs(1).unwrap());
    assert!(reach.needs(1).unwrap().is_empty());
    assert!(!reach.is_done() && !reach.is_proved());
    assert_eq!(reach.under_way(), 1);
}

#[test]
fn memory_is_bounded_by_the_depth_and_by_what_is_under_way() {
    let fat = |n: u16| Model::File(n, 1, Attributes::Inline);
    let mut names: Names = (0..200u16)
        .map(|n| (n.to_be_bytes().map(|b| b'a' + b % 26).to_vec(), fat(n % 3)))
        .collect();
    for depth in 0..12u8 {
        let inner = Model::Directory(names.clone(), Attributes::None);
        names = (0..60u16)
            .map(|n| (format!("{depth}-{n}").into_bytes(), fat(n % 3)))
            .collect();
        names.insert(b"inner".to_vec(), inner);
    }
    let mut world = World::default();
    let root = world.root(&names);
    let all: usize = world.blocks.values().map(|(_, bytes)| bytes.len()).sum();
    for (batch, most) in [(1, 13 * 3 * (64 << 10)), (8, 8 * 13 * 3 * (64 << 10))] {
        let mut reach = Reach::default();
        reach.root(root, None);
        let walked = walk(&world, &mut reach, batch, 7);
        assert!(reach.is_proved());
        let held = walked.most_weight_bytes;
        assert!(
            held > 0 && held <= most,
            "{held} bytes with {batch} under way"
        );
        assert_eq!(reach.weight_bytes(), 0, "nothing waits at the end");
    }
    assert!(all > 300_000);
}

#[test]
fn impossible_path_is_refused() {
    let root = Handle::from_bytes([1; 32]);
    let long = vec!["a"; MAX_COMPONENTS + 1].join("/");
    for path in ["/a", "a/", "a//b", ".", "a/..", &"n".repeat(256), &long] {
        assert!(Lookup::new(root, path.as_bytes()).is_err(), "{path}");
    }
    let longest = vec!["a"; MAX_COMPONENTS].join("/");
    assert!(Lookup::new(root, longest.as_bytes()).is_ok());
}
