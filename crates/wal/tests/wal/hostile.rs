//! Devices on which somebody changes, moves, puts back or cuts off what the log wrote.

use std::ops::Range;

use sim::device::{Fault, Lie, Machine, Stop};
use wal::{LogError, Lsn, Mark, Witness};

use crate::volume::{
    ONE, PAGE, TWO, VOLUME, device, device_bytes, geometry, key, machine, open_anchored, open_at,
    put, record, refused, ring_start, seeds,
};

const RING_PAGES: u64 = 64;

/// Frames of 3 pages with seeds 1 to 6, each durable before the next is made.
struct Six {
    machine: Machine,
    starts: Vec<Lsn>,
    marks: Vec<Mark>,
    /// The machine's operations when each frame was durable.
    instants: Vec<u64>,
}

impl Six {
    fn new() -> Six {
        let machine = machine(RING_PAGES);
        let log = open_at(&machine).unwrap().finish(&[]).unwrap();
        let mut six = Six {
            machine: machine.clone(),
            starts: Vec::new(),
            marks: Vec::new(),
            instants: Vec::new(),
        };
        for seed in 1..=6 {
            let (start, mark) = put(&log, ONE, record(seed, 2));
            six.starts.push(start);
            six.marks.push(mark);
            six.instants.push(machine.operations());
        }
        six
    }

    /// Offsets of a frame on the device.
    fn frame(&self, number: usize) -> Range<u64> {
        let start = ring_start(&geometry(RING_PAGES)) + self.starts[number].0;
        start..start + 3 * PAGE
    }

    fn error(&self) -> LogError {
        refused(open_at(&self.machine))
    }
}

fn is_destroyed_at(error: &LogError, at: Lsn) -> bool {
    matches!(error, LogError::Integrity { lsn, .. } if *lsn == at)
}

fn is_rollback(error: &LogError, by: Witness) -> bool {
    matches!(error, LogError::Rollback { witness, .. } if *witness == by)
}

/// All bits of the fields and the tag, and some of the zeros between.
fn header_bits(frame: &Range<u64>) -> Vec<u64> {
    let first = frame.start * 8;
    let fields = (0..200 * 8).chain((4096 - 32) * 8..4096 * 8);
    let others = (200 * 8..(4096 - 32) * 8).step_by(997);
    fields.chain(others).map(|bit| first + bit).collect()
}

/// Some bits of the payload, with the page in the frame that they are in.
fn page_bits(frame: &Range<u64>) -> Vec<(u64, u64)> {
    let first = frame.start * 8;
    let pages = (4096 * 8..3 * 4096 * 8).step_by(1999);
    pages.map(|bit| (first + bit, bit / 8 / PAGE)).collect()
}

#[test]
fn every_flipped_bit_of_a_durable_frames_header_is_an_integrity_error() {
    let six = Six::new();
    for bit in header_bits(&six.frame(2)) {
        device(&six.machine).flip(bit);
        let error = six.error();
        assert!(is_destroyed_at(&error, six.starts[2]), "bit {bit}: {error}");
        device(&six.machine).flip(bit);
    }
    assert_eq!(
        seeds(&open_at(&six.machine).unwrap(), ONE),
        [1, 2, 3, 4, 5, 6]
    );
}

#[test]
fn wrong_page_of_a_durable_frame_is_named_and_the_log_goes_on() {
    let six = Six::new();
    for number in 0..5 {
        for (bit, page) in page_bits(&six.frame(number)) {
            device(&six.machine).flip(bit);
            let recovery = open_at(&six.machine).unwrap();
            let lost = Lsn(six.starts[number].0 + page * PAGE);
            assert_eq!(recovery.wrong_pages(), [lost], "bit {bit}");
            assert_eq!(recovery.end(), six.marks[5]);
            let entries = recovery.cursor(ONE).map(Result::unwrap);
            for (seed, entry) in (1..).zip(entries) {
                assert_eq!(entry.body, format!("record {seed}"));
                for (digest, lsn) in entry.digests.iter().zip((entry.payload.0..).step_by(4096)) {
                    let read = recovery.read(Lsn(lsn), *digest);
                    assert_eq!(read.is_err(), Lsn(lsn) == lost, "{lsn}");
                }
            }
            device(&six.machine).flip(bit);
        }
    }
    // Also after the next opening, and then by what that one wrote.
    let (bit, page) = page_bits(&six.frame(5))[0];
    let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
    device(&six.machine).flip(bit);
    let lost = [Lsn(six.starts[5].0 + page * PAGE)];
    for seed in 7..9 {
        assert_eq!(open_at(&six.machine).unwrap().wrong_pages(), lost);
        put(&log, ONE, record(seed, 1));
    }
}

/// A crash leaves any part of what was not synced: also a later frame whole, and an earlier one torn.
#[test]
fn wrong_page_of_a_frame_that_may_never_have_been_durable_is_the_end_of_the_log() {
    let six = Six::new();
    let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
    let appended: Vec<_> = (7..10)
        .map(|seed| log.append(&[(ONE, record(seed, 2))]).unwrap())
        .collect();
    log.flush(log.end()).wait().unwrap();
    drop(log);
    for torn in &appended {
        let page = ring_start(&geometry(RING_PAGES)) + torn.start.0 + PAGE;
        device(&six.machine).flip(page * 8);
        let recovery = open_at(&six.machine).unwrap();
        assert_eq!(recovery.end().lsn, torn.start);
        assert_eq!(recovery.wrong_pages(), []);
        device(&six.machine).flip(page * 8);
    }
}

#[test]
fn every_flipped_bit_of_the_last_frame_cuts_it_off_and_an_anchor_notices() {
    let six = Six::new();
    let (header, pages) = (header_bits(&six.frame(5)), page_bits(&six.frame(5)));
    for bit in header.into_iter().chain(pages.iter().map(|page| page.0)) {
        device(&six.machine).flip(bit);
        let recovery = open_at(&six.machine).unwrap();
        assert_eq!(recovery.end(), six.marks[4], "bit {bit}");
        let opened = open_anchored(&six.machine, six.marks[5]);
        match pages.iter().find(|page| page.0 == bit) {
            None => {
                let error = refused(opened);
                assert!(is_rollback(&error, Witness::Anchor), "bit {bit}: {error}");
            }
            // The anchor proves that the frame was durable, so its page is what is wrong.
            Some((_, page)) => {
                let lost = Lsn(six.starts[5].0 + page * PAGE);
                assert_eq!(opened.unwrap().wrong_pages(), [lost], "bit {bit}");
            }
        }
        device(&six.machine).flip(bit);
    }
    let recovery = open_anchored(&six.machine, six.marks[5]).unwrap();
    assert_eq!(seeds(&recovery, ONE), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn frame_in_the_place_of_another_is_refused() {
    for (from, to) in [(1, 2), (3, 2), (5, 1), (0, 3)] {
        let six = Six::new();
        let (from, place) = (six.frame(from), six.frame(to));
        device(&six.machine).transplant(from.start, place.start, 3 * PAGE);
        let error = six.error();
        assert!(is_destroyed_at(&error, six.starts[to]), "{error}");
    }
}

#[test]
fn frame_of_another_volume_is_refused() {
    let six = Six::new();
    let geometry = geometry(RING_PAGES);
    let other = Machine::new(&[("L", device_bytes(&geometry))]);
    let volume = wal::VolumeId([8; 16]);
    let formatted = device(&other);
    wal::prepare(&*formatted, &geometry, &mut |_| {}).unwrap();
    wal::format(&*formatted, &key(), volume, &geometry, &[], b"").unwrap();
    let log = open_at(&other).unwrap().finish(&[]).unwrap();
    for seed in 1..=6 {
        put(&log, ONE, record(seed, 2));
    }
    let place = six.frame(2);
    let bytes = &formatted.contents()[place.start as usize..place.end as usize];
    assert!(wal::inspect::frame(bytes, &key(), volume).is_some());
    assert!(wal::inspect::frame(bytes, &key(), VOLUME).is_none());
    device(&six.machine).plant(place.start, bytes);
    assert!(is_destroyed_at(&six.error(), six.starts[2]));
}

/// Two histories of one log: what one wrote is authentic, and in its place, but not in the other's chain.
#[test]
fn frames_of_another_history_of_the_same_log_are_refused() {
    let six = Six::new();
    let fork = six.machine.fork();
    let grow = |machine: &Machine, seed: u64| {
        let log = open_at(machine)
            .unwrap()
            .finish(&[(TWO, record(seed, 0))])
            .unwrap();
        let (start, _) = put(&log, ONE, record(seed, 2));
        for later in seed + 1..seed + 4 {
            put(&log, ONE, record(later, 2));
        }
        start
    };
    let start = grow(&six.machine, 10);
    assert_eq!(grow(&fork, 20), start);
    let ring = ring_start(&geometry(RING_PAGES));
    let theirs = device(&fork).contents();
    // Its first frame follows the same frame, but the next one does not follow it.
    for (at, pages, end) in [
        (start.0 - PAGE, 1, start),
        (start.0, 3, start),
        (start.0 + 3 * PAGE, 3, Lsn(start.0 + 3 * PAGE)),
    ] {
        let machine = six.machine.fork();
        let place = (ring + at) as usize..(ring + at + pages * PAGE) as usize;
        device(&machine).plant(ring + at, &theirs[place]);
        let error = refused(open_at(&machine));
        assert!(is_destroyed_at(&error, end), "{error}");
    }
    // The rest of the other history, without the superblocks that name it.
    let machine = six.machine.fork();
    device(&machine).plant(ring, &theirs[ring as usize..]);
    assert!(is_rollback(
        &refused(open_at(&machine)),
        Witness::Superblock
    ));
}

#[test]
fn frames_of_an_earlier_lap_are_refused() {
    let machine = machine(RING_PAGES);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let mut laps: Vec<(Lsn, u64)> = Vec::new();
    for seed in 0..80 {
        let (start, _) = put(&log, ONE, record(seed, 2));
        laps.push((start, machine.operations()));
        let oldest = laps[laps.len().saturating_sub(6)].0;
        log.checkpoint(ONE, oldest, b"").unwrap();
        log.checkpoint(TWO, oldest, b"").unwrap();
    }
    let (start, _) = laps[77];
    let same_place = |lsn: Lsn| lsn.0 % log.ring_bytes() == start.0 % log.ring_bytes();
    let earlier = laps
        .iter()
        .filter(|(lsn, _)| *lsn < start && same_place(*lsn));
    let offset = ring_start(&geometry(RING_PAGES)) + start.0 % log.ring_bytes();
    let mut tried = 0;
    for (_, instant) in earlier {
        let machine = machine.fork();
        device(&machine).put_back(offset..offset + 3 * PAGE, *instant);
        let error = refused(open_at(&machine));
        assert!(is_destroyed_at(&error, start), "{error}");
        tried += 1;
    }
    assert!(tried > 0);
    // Superblocks of an earlier lap: their tail is overwritten by frames of later laps.
    for (lsn, instant) in &laps[..60] {
        let machine = machine.fork();
        device(&machine).put_back(0..256 << 10, *instant);
        let error = refused(open_at(&machine));
        assert!(
            matches!(error, LogError::Integrity { .. }),
            "{lsn}: {error}"
        );
    }
}

#[test]
fn destroyed_frame_is_noticed_by_frames_of_later_openings() {
    let six = Six::new();
    for seed in 7..10 {
        let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
        put(&log, ONE, record(seed, 0));
        device(&six.machine).put_back(0..256 << 10, six.instants[0]);
    }
    device(&six.machine).erase(six.frame(5));
    assert!(is_destroyed_at(&six.error(), six.starts[5]));
}

/// Bodies of the records that are left.
fn left(salvage: &wal::Salvage) -> Vec<String> {
    let entries = salvage.entries(ONE);
    let text = |entry: &wal::Entry| String::from_utf8(entry.body.to_vec()).unwrap();
    entries.map(text).collect()
}

#[test]
fn frames_around_a_destroyed_one_are_left() {
    let six = Six::new();
    for number in 0..5 {
        device(&six.machine).flip(six.frame(number).start * 8 + 99);
        let salvage = wal::salvage(six.machine.device("L"), &key()).unwrap();
        let others = (0..6).filter(|other| *other != number);
        let expected: Vec<String> = others
            .map(|other| format!("record {}", other + 1))
            .collect();
        assert_eq!(left(&salvage), expected);
        let starts = six.starts[number]..six.starts[number + 1];
        assert_eq!(salvage.holes(), [starts]);
        assert!(!salvage.lacks_its_end());
        device(&six.machine).flip(six.frame(number).start * 8 + 99);
    }
    // Whether the last one was ever durable, nothing says.
    device(&six.machine).erase(six.frame(5));
    let salvage = wal::salvage(six.machine.device("L"), &key()).unwrap();
    assert_eq!((left(&salvage).len(), salvage.holes().len()), (5, 0));
}

#[test]
fn log_that_ends_before_the_superblocks_mark_lacks_its_end() {
    let six = Six::new();
    drop(open_at(&six.machine).unwrap().finish(&[]).unwrap());
    let ring = ring_start(&geometry(RING_PAGES));
    let end = device_bytes(&geometry(RING_PAGES));
    device(&six.machine).erase(six.frame(5).start..end);
    assert!(six.frame(5).start > ring);
    let salvage = wal::salvage(six.machine.device("L"), &key()).unwrap();
    assert!(salvage.lacks_its_end());
}

/// The first frame that knows of the destroyed one's durability may lie a whole window behind it.
#[test]
fn destroyed_frame_is_noticed_across_a_window_of_undurable_frames() {
    let machine = machine(256);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let first = log.append(&[(ONE, record(1, 15))]).unwrap();
    while log.append(&[(ONE, record(2, 15))]).is_ok() {}
    log.flush(log.end()).wait().unwrap();
    let (last, _) = put(&log, ONE, record(3, 0));
    assert!(last.0 - first.start.0 > 3 * log.max_frame_bytes() / 2);
    let offset = ring_start(&geometry(256)) + first.start.0;
    device(&machine).erase(offset..offset + PAGE);
    // The frames between were made before the first was durable, so they prove nothing.
    let error = refused(open_at(&machine));
    assert!(is_destroyed_at(&error, first.start), "{error}");
    // They lead to the one that proves something, so they are left.
    let salvage = wal::salvage(machine.device("L"), &key()).unwrap();
    let holes = salvage.holes();
    assert!(left(&salvage).len() > 3 && holes.len() == 1);
    assert!(holes[0].end.0 - first.start.0 <= 17 * PAGE, "{holes:?}");
    device(&machine).erase(ring_start(&geometry(256)) + last.0..device_bytes(&geometry(256)));
    let end = open_at(&machine).unwrap().end();
    assert_eq!(
        end.lsn, first.start,
        "a suffix is gone, and nothing proves it"
    );
}

#[test]
fn cut_suffix_is_noticed_by_an_anchor_and_by_the_superblocks_mark() {
    for cut in 0..6 {
        let six = Six::new();
        device(&six.machine).erase(six.frame(cut).start..six.frame(5).end);
        let end = open_at(&six.machine).unwrap().end().lsn;
        assert_eq!(end, six.starts[cut], "without an anchor nobody notices");
        for mark in 0..6 {
            let opened = open_anchored(&six.machine, six.marks[mark]);
            assert_eq!(opened.is_ok(), mark < cut, "anchor {mark}, cut {cut}");
            let error = opened.err();
            assert!(error.is_none_or(|e| is_rollback(&e, Witness::Anchor)));
        }
    }
    let six = Six::new();
    let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
    let (start, _) = put(&log, ONE, record(7, 2));
    log.checkpoint(ONE, six.starts[1], b"").unwrap();
    let place = ring_start(&geometry(RING_PAGES)) + start.0;
    device(&six.machine).erase(place..place + 3 * PAGE);
    assert!(is_rollback(&six.error(), Witness::Superblock));
}

#[test]
fn device_that_was_put_back_is_noticed_by_an_anchor_alone() {
    for instant in 0..5 {
        let six = Six::new();
        device(&six.machine).put_back_all(six.instants[instant]);
        let recovery = open_at(&six.machine).unwrap();
        assert_eq!(recovery.end(), six.marks[instant]);
        let error = refused(open_anchored(&six.machine, six.marks[5]));
        assert!(is_rollback(&error, Witness::Anchor), "{error}");
        open_anchored(&six.machine, six.marks[instant]).unwrap();
    }
}

#[test]
fn anchor_of_another_history_is_refused_where_it_equals_the_tail() {
    let six = Six::new();
    let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
    let mark = log.durable();
    for client in [ONE, TWO] {
        log.checkpoint(client, mark.lsn, b"").unwrap();
    }
    assert_eq!(log.tail(), mark.lsn);
    open_anchored(&six.machine, mark).unwrap();
    let mut tag = mark.tag;
    tag[31] ^= 1;
    let other = Mark { tag, ..mark };
    let error = refused(open_anchored(&six.machine, other));
    assert!(is_rollback(&error, Witness::Anchor), "{error}");
    let error = refused(open_anchored(&six.machine, six.marks[5]));
    assert!(matches!(error, LogError::StaleAnchor { .. }), "{error}");
    let other = Mark {
        lsn: Lsn(mark.lsn.0 + 1),
        ..mark
    };
    assert!(is_rollback(
        &refused(open_anchored(&six.machine, other)),
        Witness::Anchor
    ));
}

/// A negative control: without the anchor, such a loss looks like an honest crash.
#[test]
fn loss_by_ignored_syncs_is_noticed_by_the_mark_or_the_anchor() {
    let machine = machine(RING_PAGES);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    put(&log, ONE, record(1, 1));
    device(&machine).inject(Fault::always(Lie::SyncIgnored));
    for seed in 2..5 {
        put(&log, ONE, record(seed, 1));
    }
    log.checkpoint(ONE, Lsn(0), b"").unwrap();
    let (_, anchor) = put(&log, ONE, record(5, 1));
    machine.stop();
    let (mut unseen, mut seen) = (0, 0);
    for outcome in machine.outcomes(Stop::Power, 1, 200, 7) {
        let found = machine.restart(Stop::Power, 1, &outcome);
        device(&found).heal();
        let whole = match open_at(&found) {
            Ok(recovery) => recovery.end() == anchor,
            Err(error) => {
                let known = is_rollback(&error, Witness::Superblock)
                    || matches!(error, LogError::Integrity { .. });
                assert!(known, "{error}");
                seen += 1;
                false
            }
        };
        let anchored = open_anchored(&found, anchor);
        assert_eq!(anchored.is_ok(), whole, "outcome {outcome}");
        unseen += u64::from(!whole);
    }
    assert!(
        unseen > seen && seen > 0,
        "{unseen} losses, {seen} seen without an anchor"
    );
}

/// A file in the payload may hold pages of this log that were written before the device was put back.
#[test]
fn authentic_frames_in_payload_prove_nothing() {
    let six = Six::new();
    let frame = six.frame(5);
    let page = device(&six.machine).contents()[frame.start as usize..][..PAGE as usize].to_vec();
    assert!(wal::inspect::frame(&page, &key(), VOLUME).is_some());
    device(&six.machine).put_back_all(six.instants[0]);
    let log = open_at(&six.machine).unwrap().finish(&[]).unwrap();
    let mut copied = record(7, 1);
    copied.payload[0].page = page.into();
    copied.payload[0].digest = crate::volume::digests().digest(&copied.payload[0].page);
    let (start, _) = put(&log, ONE, copied);
    drop(log);
    // The frame around it is torn, as by an honest crash.
    let offset = ring_start(&geometry(RING_PAGES)) + start.0;
    device(&six.machine).erase(offset..offset + 512);
    assert_eq!(open_at(&six.machine).unwrap().end().lsn, start);
}

#[test]
fn one_damaged_copy_of_each_superblock_changes_nothing() {
    let six = Six::new();
    let whole = open_at(&six.machine).unwrap().end();
    for copies in [[0, 64], [128, 192], [0, 192], [128, 64]] {
        let machine = six.machine.fork();
        for kib in copies {
            device(&machine).erase(kib << 10..(kib << 10) + PAGE);
        }
        assert_eq!(open_at(&machine).unwrap().end(), whole);
    }
}

#[test]
fn every_flipped_bit_of_superblocks_is_noticed() {
    let six = Six::new();
    let fields = (0..320 * 8).chain((4096 - 32) * 8..4096 * 8);
    for bit in fields.chain((320 * 8..(4096 - 32) * 8).step_by(499)) {
        let flip = || {
            for kib in [0, 64, 128, 192] {
                device(&six.machine).flip((kib << 13) + bit);
            }
        };
        flip();
        let error = six.error();
        let named = match bit / 8 {
            0..8 => matches!(error, LogError::NotALog),
            8..16 => matches!(error, LogError::Unsupported { .. }),
            16..48 => matches!(error, LogError::WrongKey { .. }),
            _ => matches!(error, LogError::Superblock { .. }),
        };
        assert!(named, "bit {bit}: {error}");
        flip();
    }
    open_at(&six.machine).unwrap();
}

/// A session without a frame saw the log end. A frame that an earlier session wrote behind that end, and that the device
/// hid from it, does not come back: the superblock's mark and the anchor have the later epoch.
#[test]
fn frame_that_was_hidden_from_a_session_without_a_frame_does_not_come_back() {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    put(&log, ONE, record(1, 1));
    let end = log.end();
    let without = machine.operations();
    put(&log, ONE, record(2, 1));
    drop(log);
    let with = device(&machine).contents();
    let ring = ring_start(&geometry(64));
    device(&machine).put_back(ring..ring + 64 * PAGE, without);
    let recovery = open_at(&machine).unwrap();
    assert_eq!(recovery.end().lsn, end);
    let log = recovery.finish_without_frame().unwrap();
    let mark = log.durable();
    drop(log);
    device(&machine).plant(ring, &with[ring as usize..]);
    let recovery = open_at(&machine).unwrap();
    assert_eq!(seeds(&recovery, ONE), [1]);
    assert_eq!(recovery.end(), mark);

    // All of the device is put back: only the anchor knows.
    device(&machine).plant(0, &with);
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [1, 2]);
    let anchored = open_anchored(&machine, mark).unwrap();
    assert_eq!(seeds(&anchored, ONE), [1]);
    assert_eq!(anchored.epoch(), mark.epoch + 1);
}
