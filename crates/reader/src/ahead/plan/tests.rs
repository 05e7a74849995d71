//! The plan against models of trees: in how many round trips a reader gets through, and within which bounds.

use bytes::Bytes;
use proptest::prelude::*;
use trust::map::Interval;

use super::waiting::{MAX_BLOCKS, MAX_PLACES_BYTES};
use super::*;

const QUICK: Duration = Duration::from_millis(50);
/// Entries that the reader lists at a time.
const PAGE: usize = 1000;

/// A tree of directories of one node each: the children of each, by name.
struct Tree {
    children: Vec<Vec<usize>>,
}

impl Tree {
    /// Each directory has a parent before it, which `choose` picks.
    fn of(choices: &[u16]) -> Tree {
        let mut children = vec![Vec::new()];
        for choice in choices {
            let parent = usize::from(*choice) % children.len();
            let new = children.len();
            children.push(Vec::new());
            if let Some(of_parent) = children.get_mut(parent) {
                of_parent.push(new);
            }
        }
        Tree { children }
    }

    /// A tree in which each directory above the last level has `broad` children.
    fn regular(broad: usize, depth: usize) -> Tree {
        let mut children = vec![Vec::new()];
        let mut level = vec![0];
        for _ in 0..depth {
            let mut below = Vec::new();
            for parent in level {
                for _ in 0..broad {
                    let new = children.len();
                    children.push(Vec::new());
                    children[parent].push(new);
                    below.push(new);
                }
            }
            level = below;
        }
        Tree { children }
    }

    fn node(number: usize, place: &Place) -> Wanted {
        let mut handle = [0; 32];
        handle[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let child = ChildRef {
            handle: Handle::from_bytes(handle),
            level: 1,
            entries: 1,
            interval: Interval::everything(),
        };
        Wanted::Directory(place.clone(), child)
    }

    fn number(wanted: &Wanted) -> usize {
        let handle = wanted.handle().unwrap();
        u64::from_le_bytes(handle[..8].try_into().unwrap()) as usize - 1
    }

    fn name(number: usize) -> Bytes {
        Bytes::from(format!("{number:08}"))
    }
}

/// What a walk of the whole tree came to.
#[derive(Debug, Default)]
struct Walked {
    /// Round trips that the reader waited.
    waits: u32,
    requested: usize,
    most_ahead_bytes: u64,
    most_waiting: usize,
}

/// Reads a tree depth first and page by page. Requests are answered together, a round trip after they were made.
fn walk(tree: &Tree, mut plan: Plan) -> Walked {
    let mut walked = Walked::default();
    let mut here = vec![false; tree.children.len()];
    let mut under_way: Vec<Request> = Vec::new();
    let top = Place::of_path(b"");
    plan.add(Tree::node(0, &top));
    let mut stack = vec![(0, top, 0)];
    while let Some((number, place, next)) = stack.pop() {
        loop {
            while let Some(request) = plan.next() {
                walked.requested += request.wanted.len();
                under_way.push(request);
            }
            walked.most_ahead_bytes = walked.most_ahead_bytes.max(plan.ahead.bytes());
            walked.most_waiting = walked.most_waiting.max(plan.waiting.len());
            if here[number] {
                break;
            }
            // A round trip: all that was requested comes, and what the reader asks for itself.
            walked.waits += 1;
            for request in std::mem::take(&mut under_way) {
                for wanted in &request.wanted {
                    let number = Tree::number(wanted);
                    here[number] = true;
                    let Wanted::Directory(place, _) = wanted else {
                        continue;
                    };
                    for child in &tree.children[number] {
                        plan.add(Tree::node(*child, &place.entry(&Tree::name(*child))));
                    }
                }
                plan.finished(&request, QUICK, false);
            }
            here[number] = true;
        }
        let children = &tree.children[number];
        if next % PAGE == 0 {
            for child in children.iter().skip(next).take(PAGE) {
                plan.add(Tree::node(*child, &place.entry(&Tree::name(*child))));
            }
        }
        if let Some(child) = children.get(next) {
            let below = place.entry(&Tree::name(*child));
            stack.push((number, place, next + 1));
            plan.reached(&below);
            stack.push((*child, below, 0));
        }
    }
    walked
}

#[test]
fn broad_tree_comes_in_few_round_trips() {
    let tree = Tree::regular(30, 3);
    let walked = walk(&tree, Plan::new(1 << 40));
    assert_eq!(walked.requested, tree.children.len(), "each once");
    // 27,931 nodes that count 4 KiB each, with at first one and at last 32 MiB under way.
    assert!(walked.waits <= 25, "{walked:?}");
}

#[test]
fn deep_tree_costs_a_round_trip_for_each_level() {
    let walked = walk(&Tree::regular(1, 200), Plan::new(1 << 40));
    assert_eq!(walked.waits, 201);
}

#[test]
fn list_of_waiting_blocks_is_bounded() {
    let tree = Tree::regular(100_000, 1);
    let walked = walk(&tree, Plan::new(1 << 20));
    let most = walked.most_waiting;
    assert!((MAX_BLOCKS / 2..=MAX_BLOCKS).contains(&most), "{most}");
    assert!(walked.waits <= 100_000 / 128, "{walked:?}");
    let mut plan = Plan::new(1 << 20);
    let long = vec![b'x'; 500_000];
    for number in 0..200 {
        let place = Place::of_path(&[&long[..], &Tree::name(number)].concat());
        plan.add(Tree::node(number, &place));
    }
    assert!(plan.waiting.places_bytes() <= MAX_PLACES_BYTES);
    assert!(!plan.waiting.is_empty(Group::Directories));
}

proptest! {
    #[test]
    fn what_is_ahead_of_the_reader_stays_within_the_budget(
        choices in prop::collection::vec(any::<u16>(), 0..400),
        window_bytes in NODE_BYTES..64 * NODE_BYTES,
    ) {
        let tree = Tree::of(&choices);
        let walked = walk(&tree, Plan::new(window_bytes));
        prop_assert!(walked.most_ahead_bytes <= window_bytes, "{walked:?}");
        prop_assert!(walked.waits as usize <= tree.children.len());
    }
}

#[test]
fn nearest_blocks_are_requested_first() {
    let mut plan = Plan::new(3 * NODE_BYTES);
    for (number, path) in [(9, "b"), (2, "a/y"), (1, "a/x"), (3, "a-")] {
        plan.add(Tree::node(number, &Place::of_path(path.as_bytes())));
    }
    let request = plan.next().unwrap();
    let numbers: Vec<usize> = request.wanted.iter().map(Tree::number).collect();
    assert_eq!(numbers, [1, 2, 3], "what is below `a` comes before `a-`");
    assert!(plan.next().is_none(), "the budget is used up");
    plan.finished(&request, QUICK, false);
    assert!(plan.next().is_none(), "the reader has passed nothing");
    plan.reached(&Place::of_path(b"a/y"));
    assert_eq!(plan.next().unwrap().wanted.len(), 1);
}

#[test]
fn blocks_of_a_failed_request_may_be_added_again() {
    let mut plan = Plan::new(1 << 20);
    let place = Place::of_path(b"a");
    plan.add(Tree::node(1, &place));
    let request = plan.next().unwrap();
    plan.add(Tree::node(1, &place));
    assert!(plan.next().is_none(), "it is under way");
    plan.finished(&request, QUICK, true);
    assert_eq!(plan.ahead.bytes(), 0);
    plan.add(Tree::node(1, &place));
    assert!(plan.next().is_some());
}

#[test]
fn slow_answers_reduce_what_is_under_way() {
    let mut plan = Plan::new(1 << 40);
    for number in 0..40_000 {
        plan.add(Tree::node(number, &Place::of_path(&Tree::name(number))));
    }
    let mut flights = Vec::new();
    for took in [QUICK; 6].into_iter().chain([SLOW * 2; 12]) {
        let mut requests = Vec::new();
        while let Some(request) = plan.next() {
            requests.push(request);
        }
        flights.push(plan.flight_bytes);
        for request in requests {
            plan.finished(&request, took, false);
        }
    }
    assert_eq!(flights[0], FIRST_FLIGHT_BYTES);
    assert_eq!(flights.iter().max(), Some(FLIGHT_BYTES.end()));
    assert_eq!(flights.last(), Some(FLIGHT_BYTES.start()));
}

fn data(number: usize, place: Place, len: u32) -> Wanted {
    let mut handle = [0xda; 32];
    handle[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let handle = Handle::from_bytes(handle);
    Wanted::Content(place, 0, Child::Extent(Extent::Data { handle, len }))
}

fn groups(requests: &[Request]) -> Vec<Group> {
    requests
        .iter()
        .map(|request| request.wanted[0].group())
        .collect()
}

#[test]
fn directories_do_not_wait_for_content() {
    let mut plan = Plan::new(4 << 20);
    for number in 0..10_000 {
        let place = Place::of_path(&Tree::name(number));
        plan.add(data(number, place, 16 << 10));
    }
    let all = |plan: &mut Plan| std::iter::from_fn(|| plan.next()).collect::<Vec<_>>();
    let mut requests = all(&mut plan);
    // Answers come, until the budget for content is used up.
    while !requests.is_empty() {
        for request in requests.drain(..) {
            plan.finished(&request, QUICK, false);
        }
        requests = all(&mut plan);
    }
    assert!(plan.ahead.bytes() > 3 << 20, "{}", plan.ahead.bytes());
    // One directory behind all of it becomes known.
    let behind = Place::of_path(b"\xff");
    plan.add(Tree::node(10_001, &behind));
    assert_eq!(groups(&all(&mut plan)), [Group::Directories]);
    // Many directories do not take the place of content.
    for number in 20_000..30_000 {
        plan.add(Tree::node(number, &behind.entry(&Tree::name(number))));
    }
    all(&mut plan);
    let leading = plan.ahead.leading_bytes();
    assert!((256 << 10..=512 << 10).contains(&leading), "{leading}");
    plan.reached(&Place::of_path(&Tree::name(100)));
    assert!(groups(&all(&mut plan)).contains(&Group::Data));
}

#[test]
fn directories_leave_room_for_content() {
    let mut plan = Plan::new(4 << 20);
    plan.add(data(1, Place::of_path(b"a"), 16 << 10));
    for number in 0..10_000 {
        plan.add(Tree::node(number, &Place::of_path(&Tree::name(number))));
    }
    while let Some(request) = plan.next() {
        plan.finished(&request, QUICK, false);
    }
    let leading = plan.ahead.leading_bytes();
    assert!((256 << 10..=512 << 10).contains(&leading), "{leading}");
}

#[test]
fn content_is_asked_for_in_full_requests_while_there_is_enough() {
    let mut plan = Plan::new(32 << 20);
    for number in 0..60_000 {
        let place = Place::of_path(&Tree::name(number));
        plan.add(data(number, place, 16 << 10));
    }
    let mut under_way = std::collections::VecDeque::new();
    let (mut blocks, mut made) = (0, 0);
    // The reader passes one file after another. An answer takes as long as 420 files.
    for number in 0..50_000 {
        plan.reached(&Place::of_path(&Tree::name(number)));
        while let Some((asked, _)) = under_way.front()
            && asked + 420 <= number
            && let Some((_, request)) = under_way.pop_front()
        {
            plan.finished(&request, QUICK, false);
        }
        while let Some(request) = plan.next() {
            if number > 20_000 {
                blocks += request.wanted.len();
                made += 1;
            }
            under_way.push_back((number, request));
        }
    }
    // 32 blocks of 16 KiB are 512 KiB.
    assert!(blocks / made >= 20, "{blocks} blocks, {made} requests");
}

#[test]
fn block_that_is_larger_than_the_budget_does_not_stop_the_plan() {
    let mut plan = Plan::new(10);
    plan.add(data(1, Place::of_path(b"a"), 1 << 20));
    plan.add(data(2, Place::of_path(b"b"), 1 << 20));
    let request = plan.next().unwrap();
    assert_eq!(request.wanted.len(), 1);
    plan.finished(&request, QUICK, false);
    assert!(plan.next().is_none());
    plan.reached(&Place::of_path(b"b"));
    assert!(plan.next().is_some());
}

#[test]
fn all_nodes_of_a_directory_that_is_listed_are_used() {
    let node = |number: u8, level, lower: Option<&'static [u8]>| ChildRef {
        handle: Handle::from_bytes([number; 32]),
        level,
        entries: 1,
        interval: Interval {
            lower: lower.map(Bytes::from_static),
            upper: None,
        },
    };
    let mut plan = Plan::unknown(1 << 30);
    plan.open();
    let directory = Place::of_path(b"d");
    plan.add(Wanted::Directory(directory.clone(), node(1, 2, None)));
    for (number, lower) in [(2, &b"a"[..]), (3, b"m")] {
        let child = node(number, 1, Some(lower));
        plan.add(Wanted::Directory(directory.clone(), child));
    }
    plan.add(Wanted::Directory(directory.entry(b"b"), node(4, 1, None)));
    assert_eq!(plan.next().unwrap().wanted.len(), 4);
    assert_eq!(plan.ahead.bytes(), 4 * NODE_BYTES);
    assert_eq!(plan.used(&[1; 32]), Some(directory));
    assert_eq!(plan.ahead.bytes(), NODE_BYTES, "that of `d/b` is not used");
    assert_eq!(plan.window_bytes, FIRST_WINDOW_BYTES + 6 * NODE_BYTES);
    assert_eq!(plan.used(&[9; 32]), None);
}
