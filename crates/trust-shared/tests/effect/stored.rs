//! A replay that was stored and read again is the same replay: it gives the same answers to all questions, now and
//! after more entries. That it also forgets alike, `forget` shows. What was damaged is refused, or is some replay, and
//! never a panic.

use std::collections::VecDeque;

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust_shared::effect::Replay;
use trust_shared::effect::replay::{Sink, Source};

use crate::agree::fixed_steps;
use crate::checkpoints::{answers, begun, logged, push, rows, whole};
use crate::world::*;

/// Pieces in memory.
#[derive(Clone, Default)]
struct Pieces(VecDeque<Vec<u8>>);

impl Sink for Pieces {
    fn put(&mut self, write: impl FnOnce(&mut Encoder) -> &mut Encoder) {
        let mut e = Encoder::new();
        write(&mut e);
        self.0.push_back(e.finish());
    }
}

impl Source for Pieces {
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, Reject>,
    ) -> Result<T, Reject> {
        let none = Reject::Malformed {
            what: "pieces",
            why: "none left",
        };
        let piece = self.0.pop_front().ok_or(none)?;
        let mut d = Decoder::new(&piece, "piece");
        let found = read(&mut d)?;
        d.finish()?;
        Ok(found)
    }
}

fn pieces(replay: &Replay) -> Pieces {
    let mut pieces = Pieces::default();
    replay.store(&mut pieces);
    pieces
}

/// The replay, stored and read again.
pub fn stored(replay: &Replay, world: &World) -> Replay {
    let all = pieces(replay);
    let mut rest = all.clone();
    let read = Replay::restore(world.volume.clone(), &mut rest).unwrap();
    assert!(rest.0.is_empty());
    assert_eq!(pieces(&read).0, all.0);
    read
}

#[test]
fn replay_that_was_stored_answers_alike() {
    for seed in 0..12 {
        let (world, files) = logged(&fixed_steps(seed, 30));
        let end = world.end();
        let middle = BEGIN + (end - BEGIN) / 2;
        let mut full = whole(&world);
        let before = World {
            log: world.log[..(middle - BEGIN) as usize].to_vec(),
            ..logged(&[]).0
        };
        // One that has judged nothing, one that has judged much, and one that began with a checkpoint.
        let mut unjudged = Replay::new(world.volume.clone());
        unjudged.grow(BEGIN);
        push(&mut unjudged, &before, BEGIN);
        let mut judged = unjudged.clone();
        answers(&mut judged, &world, &files, middle);
        let start = BEGIN + (middle - BEGIN) / 2;
        let mut based = begun(&world, start, &rows(&mut full, &world, start, 9));
        push(&mut based, &before, start);
        for replay in [unjudged, judged, based] {
            let mut read = stored(&replay, &world);
            push(&mut read, &world, middle);
            for at in [middle, middle + 1, end] {
                let found = answers(&mut read, &world, &files, at);
                assert_eq!(found, answers(&mut full, &world, &files, at), "{seed}");
                assert_eq!(
                    rows(&mut read, &world, at, 5),
                    rows(&mut full, &world, at, 7)
                );
            }
            for at in middle..end {
                let outcome = |replay: &mut Replay| replay.outcome(at, 0, world.sources());
                assert_eq!(outcome(&mut read), outcome(&mut full));
            }
        }
    }
}

#[test]
fn damaged_pieces_are_refused_or_are_some_replay() {
    let (world, files) = logged(&fixed_steps(3, 24));
    let mut replay = whole(&world);
    answers(&mut replay, &world, &files, world.end());
    let all = pieces(&replay);
    let mut refused = 0;
    for piece in 0..all.0.len() {
        for at in 0..all.0[piece].len() {
            let mut changed = all.clone();
            changed.0[piece][at] ^= 0x15;
            match Replay::restore(world.volume.clone(), &mut changed) {
                Err(_) => refused += 1,
                Ok(mut other) => drop(answers(&mut other, &world, &files, world.end())),
            }
        }
        let mut short = all.clone();
        short.0.truncate(piece);
        assert!(Replay::restore(world.volume.clone(), &mut short).is_err());
    }
    assert!(refused > 20, "{refused}");
}

/// Ops are counted from the one before. An op that comes twice in a list is none.
#[test]
fn items_out_of_order_are_refused() {
    let mut tried = 0;
    for seed in 0..12 {
        let (world, _) = logged(&fixed_steps(seed, 120));
        let all = pieces(&whole(&world));
        let number = |piece: usize| {
            let mut d = Decoder::new(&all.0[piece], "number");
            d.varint().unwrap() as usize
        };
        let keys_at = 2 + number(1);
        for key in 0..number(keys_at) {
            let list = keys_at + 2 * (key + 1);
            // Nobody has judged them, so each has two bytes: the distance, and that nothing is known.
            if all.0[list].len() < 4 {
                continue;
            }
            let mut changed = all.clone();
            changed.0[list][2] = 0;
            assert!(Replay::restore(world.volume.clone(), &mut changed).is_err());
            tried += 1;
        }
    }
    assert!(tried > 5, "{tried}");
}
