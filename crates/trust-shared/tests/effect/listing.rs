//! A page of a directory's names ends soon, however many names were removed since the last fold.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trust::inode::FileKind;
use trust::reach::{Found, Wanted};
use trust_shared::calls::{self, Calls, Held, Spot, Turn};
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay};
use trust_shared::fold::{Changes, first_root_directory, fold};
use trust_shared::ops::{Body, Op};
use trust_shared::principal::Name;

use trust::{Handle, Reject};

use crate::world::{
    BEGIN, EVERYBODY, Store, file, members, name, regular, root, target, volume, written,
};

/// More than a page looks at.
const FILES: u64 = 5000;

/// Blocks are read once.
struct Parsed<'a> {
    store: &'a Store,
    blocks: RefCell<HashMap<Handle, Found>>,
}

impl Blocks for Parsed<'_> {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        let known = self.blocks.borrow().get(&wanted.handle()).cloned();
        let found = match known {
            Some(found) => return Ok(Some(found)),
            None => self.store.block(wanted)?,
        };
        let parsed = found.clone().map(|found| (wanted.handle(), found));
        self.blocks.borrow_mut().extend(parsed);
        Ok(found)
    }
}

impl Bodies for Parsed<'_> {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        self.store.body(position)
    }
}

fn named(number: u64) -> Name {
    name(&format!("f{number:04}"))
}

/// A fold of a directory with many files.
fn folded(store: &Store) -> Op {
    let number = |number| file(EVERYBODY, 1, number);
    let mut changes = Changes::default();
    let names: BTreeMap<_, _> = (1..=FILES)
        .map(|n| (named(n), Some(target(number(n), FileKind::Regular))))
        .collect();
    let inode = Arc::new(regular("text"));
    let files = (1..=FILES).map(|n| (number(n).number, Some(inode.clone())));
    changes.inodes.extend(files);
    let first = Arc::new(first_root_directory());
    changes.inodes.insert(root().id.number, Some(first));
    changes.entries.insert(root().id.number, names);
    let keep = |kind, handle, bytes: &_| store.keep(kind, handle, bytes);
    let made = fold(&volume().hasher, None, &changes, BEGIN, store, keep);
    calls::fold(EVERYBODY, None, made.unwrap())
}

/// The removal of one of them.
fn gone(n: u64) -> Op {
    let file = file(EVERYBODY, 1, n);
    let spot = Spot {
        directory: root(),
        name: named(n),
        found: Some(target(file, FileKind::Regular)),
    };
    let held = Held {
        file,
        inode: Arc::new(regular("text")),
        turn: Turn::Free,
    };
    let volume = volume();
    Calls {
        volume: &volume,
        time: crate::world::TIME,
    }
    .unlink(&spot, Some(&held))
    .unwrap()
}

#[test]
fn page_ends_after_many_names_that_are_gone_and_says_where_the_next_one_begins() {
    let (store, members) = (Store::default(), members());
    let mut replay = Replay::new(volume());
    let ops = std::iter::once(folded(&store)).chain((1..FILES).map(gone));
    for (position, op) in (BEGIN..).zip(ops) {
        let body = Arc::new(Body::new(vec![op]).unwrap());
        let written = written(1, position, position);
        replay.push(&written, &body.outline(), &members).unwrap();
        store.entries.borrow_mut().insert(position, body);
    }
    let (end, directory) = (replay.size(), root().id);
    let from = Sources {
        members: &members,
        stored: &Parsed {
            store: &store,
            blocks: RefCell::default(),
        },
    };
    assert_eq!(replay.entries(end, &directory, from), Ok(1));
    let mut page = |after: Option<&Name>| replay.list(end, &directory, after, 10, from).unwrap();
    let first = page(None);
    assert_eq!(first.names, []);
    let after = first.next.expect("it has not looked at all names");
    let second = page(Some(&after));
    let names: Vec<&Name> = second.names.iter().map(|(name, _)| name).collect();
    assert_eq!(names, [&named(FILES)]);
    assert_eq!(second.next, None);
}
