//! Tiles and the proof over them, against logs built leaf by leaf and against wrong tiles.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::history::leaf_hash;
use crate::history::tiles::Edge;

/// A log with its tiles, as a replica that saw every version keeps it.
struct Kept {
    edge: Edge,
    tiles: HashMap<String, Vec<u8>>,
    frontiers: Vec<Frontier>,
}

impl Kept {
    /// A log of `size` leaves. From index `other` on its leaves differ from those of other logs.
    fn new(size: u64, other: u64) -> Kept {
        let mut kept = Kept {
            edge: Edge::new(),
            tiles: HashMap::new(),
            frontiers: vec![Frontier::new()],
        };
        let mut frontier = Frontier::new();
        for index in 0..size {
            let leaf = format!("{index} {}", index >= other).into_bytes();
            frontier.push(&leaf).unwrap();
            kept.frontiers.push(frontier.clone());
            let mut filled = Vec::new();
            kept.edge.push(leaf_hash(&leaf), &mut filled).unwrap();
            for (name, tile) in filled {
                assert_eq!(tile.len(), name.len_bytes());
                kept.tiles.insert(name.to_string(), tile);
            }
        }
        for (name, tile) in kept.edge.tiles() {
            assert_eq!(tile.len(), name.len_bytes());
            kept.tiles.insert(name.to_string(), tile);
        }
        assert_eq!(kept.edge.frontier(), frontier);
        kept
    }

    fn point(&self, size: u64) -> LogPoint {
        self.frontiers[size as usize].point(3)
    }

    /// Begins to show that `old` is the beginning of this log without its last leaf.
    fn prefix(&self, old: LogPoint) -> Prefix {
        let (size, before) = (self.edge.size(), self.edge.size() as usize - 1);
        Prefix::new(old, 3, &self.frontiers[before], size).unwrap()
    }

    fn shown(&self, old: LogPoint) -> Result<LogPoint, Reject> {
        let mut prefix = self.prefix(old);
        let wants = prefix.wants();
        assert!(wants.len() <= 8);
        for name in wants {
            prefix.supply(&self.tiles[&name.to_string()]).unwrap();
        }
        prefix.finish(&self.point(self.edge.size() - 1))
    }
}

#[test]
fn log_of_each_size_is_shown_to_begin_every_later_one() {
    for size in 1..70 {
        let kept = Kept::new(size, u64::MAX);
        for old in 0..size {
            let old = kept.point(old);
            assert_eq!(kept.shown(old), Ok(old), "{} in {size}", old.size);
        }
    }
}

#[test]
fn edge_that_is_read_back_grows_like_the_original() {
    for (size, more) in [
        (0, 1),
        (1, 300),
        (255, 1),
        (256, 256),
        (65_535, 2),
        (65_536, 1),
    ] {
        let (kept, grown) = (Kept::new(size, u64::MAX), Kept::new(size + more, u64::MAX));
        let names = Edge::names(size);
        let tiles: Vec<&Vec<u8>> = names.iter().map(|n| &kept.tiles[&n.to_string()]).collect();
        let mut edge = Edge::read(size, &tiles).unwrap();
        assert_eq!(edge.frontier(), kept.edge.frontier());
        let mut filled = Vec::new();
        for index in size..size + more {
            let leaf = format!("{index} false").into_bytes();
            edge.push(leaf_hash(&leaf), &mut filled).unwrap();
        }
        assert_eq!(edge.frontier(), grown.edge.frontier());
        for (name, tile) in filled.into_iter().chain(edge.tiles()) {
            assert_eq!(tile, grown.tiles[&name.to_string()], "{name} after {size}");
        }
    }
}

#[test]
fn edge_with_wrong_lengths_is_refused() {
    let tiles = [vec![0; 32 * 44], vec![0; 32]];
    assert!(Edge::read(300, &tiles).is_ok());
    for bad in [
        vec![],
        vec![tiles[0].clone()],
        vec![tiles[1].clone(), tiles[0].clone()],
        vec![tiles[0][1..].to_vec(), tiles[1].clone()],
        vec![tiles[0].clone(), tiles[1].clone(), vec![0; 32]],
    ] {
        assert!(Edge::read(300, &bad).is_err());
    }
}

#[test]
fn rewritten_history_is_a_fork_after_any_number_of_skipped_versions() {
    for skipped in [1, 2, 255, 256, 257, 70_000] {
        for seen in [2, 3, 255, 257, 300] {
            let size = seen + skipped + 1;
            let honest = Kept::new(seen, u64::MAX).point(seen);
            let rewritten = Kept::new(size, seen - 1);
            let fork = rewritten.shown(honest).unwrap_err();
            assert_eq!(fork.class(), crate::error::Class::Fork, "{skipped}, {seen}");
            let grown = Kept::new(size, seen);
            assert_eq!(grown.shown(honest), Ok(honest), "{skipped}, {seen}");
        }
    }
}

#[test]
fn shorter_or_different_log_is_a_fork() {
    let kept = Kept::new(9, u64::MAX);
    let before = &kept.frontiers[8];
    for (old, epoch) in [(kept.point(9), 3), (kept.point(4), 4)] {
        let fork = Prefix::new(old, epoch, before, 9).unwrap_err();
        assert_eq!(fork.class(), crate::error::Class::Fork);
    }
}

#[test]
fn a_wrong_tile_is_its_senders_fault_and_changes_nothing() {
    let kept = Kept::new(66_000, u64::MAX);
    let elsewhere = Kept::new(66_000, 64_900);
    let old = kept.point(65_000);
    let mut prefix = kept.prefix(old);
    let wants = prefix.wants();
    let names: Vec<String> = wants.iter().map(|n| n.to_string()).collect();
    assert_eq!(names, ["1.0", "0.253"]);
    assert_eq!(
        prefix.clone().finish(&kept.point(65_999)),
        Err(Reject::Unproved)
    );
    for name in names {
        let right = &kept.tiles[&name];
        let mut flipped = right.clone();
        flipped[8191] ^= 1;
        let (short, long) = (
            right[..8160].to_vec(),
            [right.as_slice(), &[0; 32]].concat(),
        );
        let ragged = right[..8191].to_vec();
        let other = elsewhere.tiles[&name].clone();
        for wrong in [flipped, short, long, ragged, other, vec![]] {
            let refused = prefix.supply(&wrong).unwrap_err();
            assert_eq!(refused.class(), crate::error::Class::Integrity);
        }
        prefix.supply(right).unwrap();
    }
    assert!(prefix.supply(&[0; 32]).is_err(), "nothing is wanted");
    let other = elsewhere.point(65_999);
    assert_eq!(prefix.clone().finish(&other), Err(Reject::Unproved));
    assert_eq!(prefix.finish(&kept.point(65_999)), Ok(old));
}

#[test]
fn tile_that_has_grown_since_is_accepted() {
    let (kept, later) = (Kept::new(12, u64::MAX), Kept::new(300, u64::MAX));
    let mut prefix = kept.prefix(kept.point(5));
    let names: Vec<String> = prefix.wants().iter().map(|n| n.to_string()).collect();
    assert_eq!(names, ["0.0.12"]);
    prefix.supply(&later.tiles["0.0"]).unwrap();
    assert_eq!(prefix.finish(&kept.point(11)), Ok(kept.point(5)));
}

#[test]
fn log_of_any_length_wants_few_tiles() {
    let root = [0; 32];
    for (old, new) in [(1, u64::MAX), (u64::MAX / 2, u64::MAX - 1), (255, 1 << 63)] {
        let old = LogPoint {
            epoch: 0,
            size: old,
            root,
        };
        let subtrees = vec![root; u64::count_ones(new) as usize];
        let prefix = Prefix::new(old, 0, &Frontier::of(new, subtrees), new).unwrap();
        assert!(prefix.wants().len() <= 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]
    #[test]
    fn older_log_is_proved_or_a_fork(size in 1u64..3000, part in 0.0..1.0f64, forked in any::<bool>()) {
        let old = (size as f64 * part) as u64;
        let kept = Kept::new(size, u64::MAX);
        let mut point = kept.point(old);
        point.root[0] ^= u8::from(forked);
        let shown = kept.shown(point);
        match forked {
            true => prop_assert!(matches!(shown, Err(Reject::Fork(_)))),
            false => prop_assert_eq!(shown, Ok(point)),
        }
    }
    #[test]
    fn arbitrary_bytes_are_refused_as_a_tile(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
        let kept = Kept::new(12, u64::MAX);
        let mut prefix = kept.prefix(kept.point(5));
        prop_assert!(prefix.supply(&bytes).is_err());
    }
}
