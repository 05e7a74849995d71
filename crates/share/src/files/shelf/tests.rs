//! The shelf: what stays, what goes first, and whose turn it is.

use super::*;

/// So many bodies and no more.
fn shelf(bodies: usize) -> Shelf {
    Shelf::new(ShelfBytes::each(bodies * WEIGHT))
}

const WEIGHT: usize = PLACE_BYTES + size_of::<Body>();

fn body() -> Result<Arc<Body>, Reject> {
    Ok(Arc::new(Body::default()))
}

fn has(shelf: &Shelf, position: u64) -> bool {
    matches!(shelf.body(position), Ok(Some(_)))
}

fn misses(positions: &[u64]) -> Missing {
    Missing {
        blocks: Vec::new(),
        bodies: positions.to_vec(),
    }
}

#[test]
fn body_that_was_used_least_recently_goes_first() {
    let shelf = shelf(3);
    (0..3).for_each(|position| shelf.put_body(position, body()));
    assert!(has(&shelf, 0));
    shelf.put_body(3, body());
    let left: Vec<u64> = (0..4).filter(|position| has(&shelf, *position)).collect();
    assert_eq!(left, [0, 2, 3]);
    assert!(shelf.weight_bytes() <= 3 * WEIGHT);
    // The same once more takes no more room.
    (0..9).for_each(|_| shelf.put_body(3, body()));
    assert_eq!(shelf.weight_bytes(), 3 * WEIGHT);
}

#[test]
fn bodies_push_out_no_block_and_blocks_no_body() {
    let block = |at: u8| Wanted::Data {
        handle: Handle::from_bytes([at; 32]),
        len: 1,
    };
    let shelf = Shelf::new(ShelfBytes {
        bodies: 2 * WEIGHT,
        blocks: 3 * (size_of::<Found>() + PLACE_BYTES),
    });
    let blocks = |all: std::ops::Range<u8>| {
        all.filter(|at| matches!(shelf.block(&block(*at)), Ok(Some(_))))
            .collect::<Vec<u8>>()
    };
    let put = |at: u8| shelf.put_block(&block(at), Ok(Found::Data { len: 1 }));
    (0..3).for_each(put);
    (0..9).for_each(|position| shelf.put_body(position, body()));
    let bodies: Vec<u64> = (0..9).filter(|position| has(&shelf, *position)).collect();
    assert_eq!((bodies, blocks(0..3)), (vec![7, 8], vec![0, 1, 2]));
    (3..5).for_each(put);
    assert!(has(&shelf, 7) && has(&shelf, 8));
    assert_eq!(blocks(0..5), [2, 3, 4]);
}

#[test]
fn things_of_the_oldest_question_stay_until_it_is_answered() {
    let shelf = shelf(1);
    shelf.ask();
    shelf.answered(7, Some(&misses(&[0, 1, 2])));
    shelf.ask();
    shelf.answered(8, Some(&misses(&[3])));
    (0..4).for_each(|position| shelf.put_body(position, body()));
    let left: Vec<u64> = (0..4).filter(|position| has(&shelf, *position)).collect();
    assert_eq!(left, [0, 1, 2, 3]);
    // The others have the room beside it.
    shelf.put_body(9, body());
    assert!(!has(&shelf, 3) && has(&shelf, 9) && has(&shelf, 1));
    // It is asked again, uses what is there, and misses one thing more.
    shelf.ask();
    assert!(has(&shelf, 0) && has(&shelf, 2));
    shelf.answered(7, Some(&misses(&[4])));
    shelf.put_body(4, body());
    shelf.put_body(9, body());
    let left: Vec<u64> = (0..5).filter(|position| has(&shelf, *position)).collect();
    assert_eq!(left, [0, 2, 4]);
    shelf.ask();
    shelf.answered(7, None);
    assert!(shelf.weight_bytes() <= WEIGHT);
    // It is the turn of the next one.
    [3, 5, 6]
        .iter()
        .for_each(|position| shelf.put_body(*position, body()));
    assert!(has(&shelf, 3) && !has(&shelf, 5) && has(&shelf, 6));
}

#[test]
fn question_that_costs_much_waits_until_all_that_it_misses_has_come() {
    let shelf = shelf(9);
    assert_eq!(shelf.awaited(7), None);
    shelf.ask();
    shelf.answered(7, Some(&misses(&[0, 1, 2])));
    assert_eq!(shelf.awaited(7), Some(misses(&[0, 1, 2])));
    shelf.put_body(1, body());
    shelf.put_body(5, body());
    assert_eq!(shelf.awaited(7), Some(misses(&[0, 2])));
    shelf.put_body(0, body());
    shelf.put_body(2, body());
    assert_eq!(shelf.awaited(7), None);
    // It misses something that does not come. While nothing comes for it, it is asked now and then, whether or not
    // something comes for others.
    shelf.ask();
    shelf.answered(7, Some(&misses(&[3])));
    let asked = (0..4 * PATIENCE).filter(|round| {
        if *round > 2 * PATIENCE {
            shelf.put_body(100 + round, body());
        }
        let asked = shelf.awaited(7).is_none();
        if asked {
            shelf.ask();
            shelf.answered(7, Some(&misses(&[3])));
        }
        asked
    });
    assert_eq!(asked.count(), 4);
    // A fold may have put what it asks about into other blocks.
    assert!(shelf.awaited(7).is_some());
    shelf.folded();
    assert_eq!(shelf.awaited(7), None);
}

#[test]
fn long_question_keeps_no_short_one_from_its_answer_and_loses_nothing_to_it() {
    let shelf = shelf(2);
    let ask = |question, positions: &[u64]| {
        shelf.ask();
        let missing = positions.iter().copied().filter(|at| !has(&shelf, *at));
        let missing: Vec<u64> = missing.collect();
        let missing = Some(misses(&missing)).filter(|missing| !missing.bodies.is_empty());
        shelf.answered(question, missing.as_ref());
        missing.is_none()
    };
    // It has five things, and waits for one that comes from far away.
    let long = [0, 1, 2, 3, 4, 9];
    assert!(!ask(7, &long));
    (0..5).for_each(|position| shelf.put_body(position, body()));
    for round in 10..10 + 4 * PATIENCE {
        assert!(!ask(7, &long));
        let short = [10 * round, 10 * round + 1];
        assert!(!ask(round, &short));
        for position in short {
            shelf.put_body(position, body());
        }
        assert!(ask(round, &short), "round {round}: the short one");
        let left = (0..5).filter(|position| has(&shelf, *position)).count();
        assert_eq!(left, 5, "round {round}: the long one");
        assert!(shelf.weight_bytes() <= 7 * WEIGHT, "round {round}");
    }
    shelf.put_body(9, body());
    assert!(ask(7, &long));
    assert!(shelf.weight_bytes() <= 2 * WEIGHT);
}

#[test]
fn question_that_only_waits_does_not_keep_others_from_their_answers() {
    let shelf = shelf(1);
    let ask = |question, position: &[u64]| {
        shelf.ask();
        let missing: Vec<u64> = position
            .iter()
            .copied()
            .filter(|at| !has(&shelf, *at))
            .collect();
        let missing = Some(misses(&missing)).filter(|missing| !missing.bodies.is_empty());
        shelf.answered(question, missing.as_ref());
        missing.is_none()
    };
    // What the first one needs does not come.
    let asked = |round: u64| {
        assert!(!ask(7, &[0]), "round {round}");
        let answered = ask(8, &[1, 2, 3]);
        (1..4).for_each(|position| shelf.put_body(position, body()));
        answered
    };
    let answered = (0..2 * PATIENCE).position(asked);
    assert!(answered.is_some(), "never");
    // It comes at last, while others ask.
    shelf.put_body(0, body());
    assert!(ask(7, &[0]));
}

#[test]
fn turn_stays_while_the_others_have_not_waited_long() {
    let shelf = shelf(2);
    // It has one thing, and waits for another one.
    let long = || {
        shelf.ask();
        assert!(has(&shelf, 0));
        shelf.answered(7, Some(&misses(&[1])));
    };
    shelf.put_body(0, body());
    long();
    for round in 10..10 + 2 * PATIENCE {
        // Another question waits at each moment, but none of them for long.
        shelf.ask();
        shelf.answered(round, Some(&misses(&[10 * round])));
        shelf.ask();
        shelf.answered(round - 1, None);
        shelf.put_body(10 * round, body());
        long();
        (1..=3).for_each(|other| shelf.put_body(10 * round + other, body()));
        assert!(has(&shelf, 0), "round {round}");
    }
}

#[test]
fn question_that_nobody_asks_again_is_forgotten() {
    let shelf = shelf(1);
    shelf.ask();
    shelf.answered(7, Some(&misses(&[0])));
    shelf.put_body(0, body());
    for position in 1..=PATIENCE {
        assert!(has(&shelf, 0), "after {position} supplies");
        shelf.put_body(position, body());
        shelf.ask();
        shelf.answered(8, None);
    }
    shelf.put_body(100, body());
    assert!(!has(&shelf, 0));
}

#[test]
fn body_that_came_unasked_is_read_when_it_is_used() {
    let shelf = shelf(2);
    let bytes = Bytes::from(Body::default().encode());
    let unread = UNREAD_BYTES + bytes.len();
    shelf.keep_unread(3, bytes);
    shelf.keep_unread(4, Bytes::from_static(&[0]));
    assert_eq!(shelf.weight_bytes(), unread + UNREAD_BYTES + 1);
    assert_eq!(shelf.body(3), body().map(Some));
    assert!(shelf.body(4).is_err());
    // Read once.
    assert_eq!(shelf.weight_bytes(), WEIGHT + PLACE_BYTES);
}

#[test]
fn body_that_nobody_reads_goes_before_those_that_were_fetched() {
    let shelf = shelf(2);
    shelf.put_body(9, body());
    let bytes = Bytes::from(Body::default().encode());
    (0..9).for_each(|position| shelf.keep_unread(position, bytes.clone()));
    // One that comes again is here, or was dropped: its entry has it.
    shelf.keep_unread(8, bytes);
    shelf.put_body(10, body());
    assert!(has(&shelf, 9) && has(&shelf, 10) && !has(&shelf, 8));
    assert_eq!(shelf.weight_bytes(), 2 * WEIGHT);
}

#[test]
fn few_bodies_are_kept_that_nobody_reads() {
    let shelf = Shelf::new(ShelfBytes::each(usize::MAX));
    let bytes = Bytes::from(Body::default().encode());
    shelf.keep_unread(0, bytes.clone());
    assert!(has(&shelf, 0));
    (1..=MAX_UNREAD as u64 + 2).for_each(|at| shelf.keep_unread(at, bytes.clone()));
    assert!(has(&shelf, 0) && !has(&shelf, 1) && !has(&shelf, 2));
    assert!(has(&shelf, 3));
    assert!(shelf.weight_bytes() <= WEIGHT * (MAX_UNREAD + 2));
}

#[test]
fn malformed_body_is_kept_as_such() {
    let shelf = shelf(4);
    let why = Body::decode(&[0]).unwrap_err();
    shelf.put_body(3, Err(why.clone()));
    assert_eq!(shelf.body(3), Err(why));
    assert_eq!(shelf.body(4), Ok(None));
}
