//! The ring of a log in use is read again.

use std::sync::{Arc, Mutex};

use sim::device::{Fault, Lie, Machine};
use wal::{Device, Log, Lsn, Mark, Patrol, RingDefect};

use crate::volume::{
    Hooked, ONE, PAGE, TWO, device, geometry, machine, open, open_at, put, record, ring_start,
};

const RING_PAGES: u64 = 64;

/// Frames of a header page and two pages, with the seeds 1 to 6.
fn six(log: &Log) -> Vec<(Lsn, Mark)> {
    (1..=6).map(|seed| put(log, ONE, record(seed, 2))).collect()
}

fn opened() -> (Machine, Log, Vec<(Lsn, Mark)>) {
    let machine = machine(RING_PAGES);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let frames = six(&log);
    (machine, log, frames)
}

fn offset(lsn: Lsn) -> u64 {
    ring_start(&geometry(RING_PAGES)) + lsn.0 % (RING_PAGES * PAGE)
}

/// All steps, of one frame each, and the bytes that were read.
fn walk(patrol: &mut Patrol, log: &Log) -> (Vec<RingDefect>, u64) {
    let (mut found, mut bytes) = (Vec::new(), 0);
    loop {
        let step = patrol.step(log, 1, &mut |defect| found.push(defect));
        let step = step.unwrap();
        bytes += step.bytes;
        if step.is_over {
            return (found, bytes);
        }
    }
}

fn release(log: &Log, oldest: Lsn) {
    for client in [ONE, TWO] {
        log.checkpoint(client, oldest, b"").unwrap();
    }
}

#[test]
fn sound_ring_is_read_from_the_tail_to_the_end_in_every_lap() {
    let machine = machine(RING_PAGES);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    for seed in 0..60 {
        let (start, _) = put(&log, ONE, record(seed, (seed % 4) as usize));
        let all = log.durable().lsn.0 - log.tail().0;
        assert_eq!(walk(&mut Patrol::new(), &log), (Vec::new(), all));
        if seed % 5 == 4 {
            release(&log, start);
        }
    }
    assert!(log.end().0 > 2 * log.ring_bytes());
    // What is not durable is not read.
    let all = log.durable().lsn.0 - log.tail().0;
    log.append(&[(ONE, record(1, 1))]).unwrap();
    assert_eq!(walk(&mut Patrol::new(), &log), (Vec::new(), all));
    // A step reads no more than it must.
    let step = Patrol::new().step(&log, 4 * PAGE, &mut |defect| panic!("{defect:?}"));
    assert!((4 * PAGE..8 * PAGE).contains(&step.unwrap().bytes));
}

#[test]
fn every_part_of_a_frames_header_counts() {
    let (machine, log, frames) = opened();
    let start = frames[2].0;
    for bit in (0..PAGE * 8).step_by(1013).chain([PAGE * 8 - 1]) {
        device(&machine).flip(offset(start) * 8 + bit);
        let expected = RingDefect {
            frame: start,
            offset: offset(start),
            page: None,
        };
        assert_eq!(walk(&mut Patrol::new(), &log).0, [expected], "bit {bit}");
        device(&machine).flip(offset(start) * 8 + bit);
    }
    assert_eq!(walk(&mut Patrol::new(), &log).0, []);
}

#[test]
fn wrong_page_is_named_with_its_record_and_the_frames_after_it_are_read() {
    let (machine, log, frames) = opened();
    for number in [1, 4] {
        device(&machine).flip((offset(frames[number].0) + 2 * PAGE) * 8 + 5);
    }
    let (found, _) = walk(&mut Patrol::new(), &log);
    assert_eq!(found.len(), 2);
    for (number, defect) in [1, 4].into_iter().zip(found) {
        let start = frames[number].0;
        assert_eq!(
            (defect.frame, defect.offset),
            (start, offset(start) + 2 * PAGE)
        );
        let page = defect.page.unwrap();
        assert_eq!((page.client, page.pages, page.number), (ONE, 2, 1));
        assert_eq!(page.body, format!("record {}", number + 1));
    }
    // A page that changes on the way is right.
    let (machine, log, frames) = opened();
    let page = offset(frames[1].0) + PAGE;
    device(&machine).inject(Fault::once(Lie::ReadWrong).at(page..page + PAGE));
    assert_eq!(walk(&mut Patrol::new(), &log).0, []);
}

#[test]
fn frames_that_were_written_since_the_beginning_are_left_out() {
    let (_machine, log, frames) = opened();
    let mut patrol = Patrol::new();
    let first = patrol.step(&log, 1, &mut |defect| panic!("{defect:?}"));
    six(&log);
    let (found, bytes) = walk(&mut patrol, &log);
    assert_eq!(found, []);
    assert_eq!(
        first.unwrap().bytes + bytes,
        frames[5].1.lsn.0 - log.tail().0
    );
}

/// The tail passes what was wrong: then the rest can be followed.
#[test]
fn patrol_goes_on_behind_a_frame_that_is_wrong() {
    let (machine, log, frames) = opened();
    for number in [1, 4] {
        device(&machine).flip(offset(frames[number].0) * 8 + 5);
    }
    let mut patrol = Patrol::new();
    for number in [1, 4] {
        let (found, _) = walk(&mut patrol, &log);
        assert_eq!((found.len(), found[0].frame), (1, frames[number].0));
        let (again, _) = walk(&mut patrol, &log);
        assert_eq!(again, found);
        release(&log, frames[number + 1].0);
    }
    assert_eq!(walk(&mut patrol, &log).0, []);
}

#[test]
fn page_that_cannot_be_read_is_told() {
    let (machine, log, frames) = opened();
    let page = offset(frames[3].0) + PAGE;
    device(&machine).inject(Fault::always(Lie::ReadFails).at(page..page + PAGE));
    let (found, _) = walk(&mut Patrol::new(), &log);
    assert_eq!((found[0].frame, found.len()), (frames[3].0, 1));
    device(&machine).heal();
}

#[test]
fn what_the_tail_has_passed_does_not_matter() {
    let (machine, log, frames) = opened();
    let mut patrol = Patrol::new();
    patrol
        .step(&log, 1, &mut |defect| panic!("{defect:?}"))
        .unwrap();
    release(&log, frames[3].0);
    for (start, _) in &frames[..3] {
        device(&machine).flip(offset(*start) * 8 + 5);
        device(&machine).flip((offset(*start) + PAGE) * 8 + 5);
    }
    assert_eq!(walk(&mut patrol, &log).0, []);
}

/// The tail passes the frame while it is read, and another frame takes its place.
#[test]
fn frame_that_is_replaced_while_it_is_read_raises_no_alarm() {
    for page in [0, 1] {
        let machine = machine(RING_PAGES);
        type Work = Box<dyn FnOnce() + Send>;
        let work: Arc<Mutex<Option<Work>>> = Arc::default();
        let mut hooked = Hooked::new(machine.device("L"));
        let due = Arc::clone(&work);
        hooked.before_read = Box::new(move |_| {
            let work = due.lock().unwrap().take();
            if let Some(work) = work {
                work();
            }
            Ok(())
        });
        let hooked: Arc<dyn Device> = Arc::new(hooked);
        let log = Arc::new(open(&hooked).unwrap().finish(&[]).unwrap());
        let frames = six(&log);
        let (own, end) = (Arc::clone(&log), log.end());
        let place = offset(frames[0].0) + page * PAGE;
        let disk = machine.device("L");
        // The session's own frame is before it.
        let mut patrol = Patrol::new();
        let first = patrol.step(&log, 1, &mut |defect| panic!("{defect:?}"));
        assert_eq!(first.unwrap().bytes, frames[0].0.0);
        *work.lock().unwrap() = Some(Box::new(move || {
            release(&own, end);
            disk.write(place, &[7; PAGE as usize]).unwrap();
        }));
        assert_eq!(walk(&mut patrol, &log).0, [], "page {page}");
    }
}
