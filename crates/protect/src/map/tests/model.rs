//! The map against a vector: any changes, write-backs, new starts and crashes.

use std::ops::Range;

use proptest::prelude::*;
use sim::device::{Machine, Stop};

use super::super::{Map, MapError, Root, Value};
use super::{BLOCKS, CACHE, VOLUME, World, digest, key};

#[derive(Debug, Clone)]
enum Step {
    Set(u64, Value),
    SetRange(Range<u64>, Value),
    Commit,
    /// A write-back whose root never becomes durable.
    WriteBack,
    Reopen,
    PowerCut(u64),
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(Value::Zero),
        1 => Just(Value::Unseen),
        1 => Just(Value::Bad),
        6 => (0..1000u64).prop_map(digest),
    ]
}

fn range() -> impl Strategy<Value = Range<u64>> {
    let edge = prop_oneof![
        2 => 0..=BLOCKS,
        2 => (0..=BLOCKS / 256).prop_map(|leaf| leaf * 256),
        1 => prop_oneof![Just(0), Just(65_536), Just(BLOCKS)],
    ];
    (edge.clone(), edge).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn step() -> impl Strategy<Value = Step> {
    let block = prop_oneof![0..BLOCKS, 0..2048u64, 65_500..BLOCKS];
    let near = (block.clone(), 0..600u64).prop_map(|(b, n)| b..BLOCKS.min(b + n));
    prop_oneof![
        8 => (block, value()).prop_map(|(block, value)| Step::Set(block, value)),
        3 => (near, value()).prop_map(|(range, value)| Step::SetRange(range, value)),
        2 => (range(), value()).prop_map(|(range, value)| Step::SetRange(range, value)),
        2 => Just(Step::Commit),
        1 => Just(Step::WriteBack),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::PowerCut),
    ]
}

struct Pair {
    world: World,
    map: Map,
    now: Vec<Value>,
    durable: Vec<Value>,
}

impl Pair {
    fn take(&mut self, step: Step) {
        match step {
            Step::Set(block, value) => {
                self.map.set(block, value).unwrap();
                self.now[block as usize] = value;
            }
            Step::SetRange(range, value) => {
                self.map.set_range(range.clone(), value).unwrap();
                self.now[range.start as usize..range.end as usize].fill(value);
            }
            Step::Commit => {
                self.world.commit(&self.map).unwrap();
                self.durable.clone_from(&self.now);
            }
            Step::WriteBack => {
                self.map.write_back().unwrap();
                self.reopen();
            }
            Step::Reopen => self.reopen(),
            Step::PowerCut(seed) => {
                self.world.machine.stop();
                let outcomes = self
                    .world
                    .machine
                    .outcomes(Stop::Power, usize::MAX, 8, seed);
                let outcome = outcomes.last().unwrap();
                let machine = self
                    .world
                    .machine
                    .restart(Stop::Power, usize::MAX, &outcome);
                self.world = World::on(machine, BLOCKS, CACHE);
                self.reopen();
            }
        }
    }

    fn reopen(&mut self) {
        self.map = self.world.open();
        self.now.clone_from(&self.durable);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]
    #[test]
    fn map_is_a_vector_of_values(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new(BLOCKS, CACHE);
        let zeros = vec![Value::Zero; BLOCKS as usize];
        let map = world.open();
        let mut pair = Pair { world, map, now: zeros.clone(), durable: zeros };
        for step in steps {
            pair.take(step);
            prop_assert!(pair.map.memory_bytes() < 2 * CACHE + 4 * 4500);
        }
        prop_assert_eq!(pair.world.values(&pair.map), pair.now.clone());
        pair.take(Step::Commit);
        pair.take(Step::Reopen);
        prop_assert_eq!(pair.world.values(&pair.map), pair.now.clone());
        for block in [0, 1, 255, 256, 65_535, 65_536, BLOCKS - 1] {
            prop_assert_eq!(pair.map.get(block).unwrap(), pair.now[block as usize]);
        }
    }
}

#[test]
fn built_map_has_the_values_it_was_built_from() {
    let world = World::new(BLOCKS, CACHE);
    let values = (0..BLOCKS).filter(|n| n % 3 == 0).map(|n| (n, digest(n)));
    let area = 8192..8192 + Map::area_bytes(BLOCKS).unwrap();
    let device = world.device.clone();
    let root = Map::build(device, area, &key(), VOLUME, BLOCKS, values).unwrap();
    let map = world.open_root(root);
    for (block, value) in (0..).zip(world.values(&map)) {
        let expected = if block % 3 == 0 {
            digest(block)
        } else {
            Value::Zero
        };
        assert_eq!(value, expected, "block {block}");
    }
}

#[test]
fn same_values_have_the_same_root_and_zeros_have_none() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    map.set_range(10..60_000, digest(1)).unwrap();
    map.set_range(0..BLOCKS, Value::Zero).unwrap();
    assert_eq!(map.write_back().unwrap(), Root::ZERO);
    assert_eq!(world.values(&map), vec![Value::Zero; BLOCKS as usize]);
}

#[test]
fn map_of_one_leaf_and_of_one_block() {
    for blocks in [1, 2, 255, 256, 257] {
        let world = World::new(blocks, CACHE);
        let map = world.open();
        map.set(blocks - 1, digest(5)).unwrap();
        world.commit(&map).unwrap();
        assert_eq!(world.open().get(blocks - 1).unwrap(), digest(5));
        map.set_range(0..blocks, Value::Bad).unwrap();
        world.commit(&map).unwrap();
        assert_eq!(
            world.values(&world.open()),
            vec![Value::Bad; blocks as usize]
        );
    }
}

#[test]
fn blocks_beyond_the_end_are_refused() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    let refused = |result: Result<(), MapError>| {
        assert!(
            matches!(result, Err(MapError::Range { blocks: BLOCKS, .. })),
            "{result:?}"
        );
    };
    refused(map.get(BLOCKS).map(drop));
    refused(map.get(u64::MAX).map(drop));
    refused(map.get_range(BLOCKS - 1..BLOCKS + 1).map(drop));
    refused(map.set(BLOCKS, Value::Bad));
    refused(map.set(u64::MAX, Value::Bad));
    refused(map.set_range(0..BLOCKS + 1, Value::Zero));
    assert_eq!(map.write_back().unwrap(), Root::ZERO);
}

#[test]
fn digest_that_means_another_value_is_refused() {
    let world = World::new(BLOCKS, CACHE);
    let map = world.open();
    let mut bytes = [0; 16];
    bytes[15] = 2;
    let low = Value::Digest(wal::Digest(bytes));
    assert!(matches!(map.set(0, low), Err(MapError::Digest)));
    bytes[7] = 1;
    let lowest = Value::Digest(wal::Digest(bytes));
    map.set(0, lowest).unwrap();
    assert_eq!(map.get(0).unwrap(), lowest);
}

#[test]
fn area_that_does_not_fit_is_refused() {
    let world = World::new(BLOCKS, CACHE);
    let open = |area, blocks| {
        let device = world.device.clone();
        Map::open(device, area, &key(), VOLUME, blocks, Root::ZERO, CACHE).map(drop)
    };
    let end = 8192 + Map::area_bytes(BLOCKS).unwrap();
    open(8192..end, BLOCKS).unwrap();
    let area = |result| assert!(matches!(result, Err(MapError::Area { .. })));
    area(open(8192..end - 1, BLOCKS));
    area(open(12_288..end + 4096, BLOCKS));
    area(open(u64::MAX - 4095..u64::MAX, BLOCKS));
    area(open(8192..end, 1 << 44));
    let shape = |result| assert!(matches!(result, Err(MapError::Shape { .. })));
    shape(open(8192..end, 0));
    shape(open(8192..end, (1 << 44) + 1));
    shape(open(8191..end, 1));

    let large = Machine::new(&[]).add("L", 1 << 20, 8192);
    let refused = Map::open(large, 0..1 << 20, &key(), VOLUME, 1, Root::ZERO, CACHE);
    assert!(matches!(
        refused.map(drop),
        Err(MapError::Align { align: 8192 })
    ));
}
