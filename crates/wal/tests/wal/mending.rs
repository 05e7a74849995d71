//! Superblocks and key slots, of which one copy is damaged.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use sim::device::{Fault, Lie, Machine};
use wal::{Copied, CopyDefect, Device, Log, LogError};

use crate::volume::{Hooked, ONE, PAGE, device, machine, open, open_at, put, record, seeds};

/// Superblock 0 and its copy, superblock 1 and its copy.
const SUPERBLOCKS: [u64; 4] = [0, 128 << 10, 64 << 10, 192 << 10];
const KEY_SLOTS: [u64; 2] = [256 << 10, 512 << 10];

/// A bit in the middle of what the page says.
fn damage(machine: &Machine, offset: u64) {
    device(machine).flip((offset + 60) * 8 + 3);
}

fn check(log: &Log) -> Vec<CopyDefect> {
    let mut found = Vec::new();
    log.check_copies(&mut |defect| found.push(defect)).unwrap();
    found
}

fn told(of: Copied, offsets: &[u64], is_mended: bool) -> Vec<CopyDefect> {
    let one = |offset: &u64| CopyDefect {
        of,
        offset: *offset,
        is_mended,
    };
    offsets.iter().map(one).collect()
}

fn opened() -> (Machine, Log) {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    put(&log, ONE, record(1, 1));
    (machine, log)
}

#[test]
fn log_with_one_wrong_copy_is_opened_and_used() {
    for offset in SUPERBLOCKS {
        let (machine, log) = opened();
        drop(log);
        damage(&machine, offset);
        let log = open_at(&machine).unwrap().finish(&[]).unwrap();
        put(&log, ONE, record(2, 1));
        let end = log.end();
        log.checkpoint(ONE, end, b"cookie").unwrap();
        // Both superblocks were written since.
        assert_eq!(check(&log), [], "copy at {offset}");
        drop(log);
        assert_eq!(open_at(&machine).unwrap().cookie(ONE), b"cookie");
    }
    for offset in KEY_SLOTS {
        let (machine, log) = opened();
        damage(&machine, offset);
        assert_eq!(wal::key_slots(&*device(&machine)).unwrap().1, b"slots");
        assert_eq!(check(&log), told(Copied::KeySlots, &[offset], true));
    }
}

#[test]
fn sound_copies_are_left_alone() {
    let (machine, log) = opened();
    let contents = device(&machine).contents();
    assert_eq!(check(&log), []);
    assert!(device(&machine).contents() == contents);
}

#[test]
fn wrong_copy_is_written_again_from_the_other_one() {
    for (of, offset) in SUPERBLOCKS
        .map(|offset| (Copied::Superblock, offset))
        .into_iter()
        .chain(KEY_SLOTS.map(|offset| (Copied::KeySlots, offset)))
    {
        let (machine, log) = opened();
        let before = device(&machine).contents();
        damage(&machine, offset);
        assert_eq!(check(&log), told(of, &[offset], true));
        assert!(device(&machine).contents() == before, "copy at {offset}");
        assert_eq!(check(&log), []);
        // A disk that takes nothing there, and one that says that it does.
        damage(&machine, offset);
        let page = offset..offset + PAGE;
        for lie in [Lie::WriteFails { written: 0 }, Lie::WriteDropped] {
            device(&machine).inject(Fault::always(lie).at(page.clone()));
            assert_eq!(check(&log), told(of, &[offset], false));
            device(&machine).heal();
        }
        device(&machine).inject(Fault::always(Lie::ReadFails).at(page));
        assert_eq!(check(&log), told(of, &[offset], false));
        device(&machine).heal();
        assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [1]);
    }
}

#[test]
fn older_superblock_without_a_right_copy_is_replaced_by_the_next_generation() {
    for older in [&SUPERBLOCKS[..2], &SUPERBLOCKS[2..]] {
        let (machine, log) = opened();
        older.iter().for_each(|offset| damage(&machine, *offset));
        let mut found = Vec::new();
        match log.check_copies(&mut |defect| found.push(defect)) {
            Ok(_) => {
                assert_eq!(found, told(Copied::Superblock, older, true));
                assert_eq!(check(&log), []);
                put(&log, ONE, record(2, 1));
                drop(log);
                assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [1, 2]);
            }
            // This one was the newest.
            Err(error) => assert!(matches!(error, LogError::Failed { .. }), "{error}"),
        }
    }
}

#[test]
fn superblock_of_another_session_is_not_written_over() {
    let (machine, log) = opened();
    let other = open_at(&machine).unwrap().finish(&[]).unwrap();
    damage(&machine, SUPERBLOCKS[0]);
    let contents = device(&machine).contents();
    let mut found = Vec::new();
    let error = log.check_copies(&mut |defect| found.push(defect));
    assert!(matches!(error.unwrap_err(), LogError::Foreign));
    assert_eq!(found, []);
    assert!(device(&machine).contents() == contents);
    assert_eq!(check(&other).len(), 1);
}

#[test]
fn session_that_comes_while_the_copies_are_read_is_not_written_over() {
    let machine = machine(64);
    // The reads of superblocks that pass before the other host comes: those that look for its session.
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let mut hooked = Hooked::new(device(&machine));
    let (taken, counts) = (machine.clone(), left.clone());
    hooked.before_read = Box::new(move |_| {
        if counts.fetch_sub(1, Ordering::Relaxed) == 0 {
            drop(open_at(&taken).unwrap().finish(&[]).unwrap());
        }
        Ok(())
    });
    let hooked: Arc<dyn Device> = Arc::new(hooked);
    let log = open(&hooked).unwrap().finish(&[]).unwrap();
    left.store(SUPERBLOCKS.len() as i64, Ordering::Relaxed);
    let error = log.check_copies(&mut |defect| panic!("{defect:?}"));
    assert!(matches!(error.unwrap_err(), LogError::Foreign));
    assert!(left.load(Ordering::Relaxed) < 0);
    let other = open_at(&machine).unwrap();
    // Each opening begins the next epoch.
    assert_eq!(other.epoch(), log.epoch() + 2, "its superblock is gone");
}

#[test]
fn next_generation_that_the_disk_did_not_take_is_not_called_right() {
    for older in [&SUPERBLOCKS[..2], &SUPERBLOCKS[2..]] {
        let (machine, log) = opened();
        older.iter().for_each(|offset| damage(&machine, *offset));
        for offset in older {
            let page = *offset..*offset + PAGE;
            device(&machine).inject(Fault::always(Lie::WriteDropped).at(page));
        }
        let mut found = Vec::new();
        // One of the two pairs is the newest.
        if log.check_copies(&mut |defect| found.push(defect)).is_ok() {
            assert_eq!(found, told(Copied::Superblock, older, false));
        }
    }
}

/// A crash between the writes of two copies is no damage. The key that was removed is not in the older copy any more.
#[test]
fn copy_of_an_older_generation_is_made_good_without_a_word() {
    let (machine, log) = opened();
    drop(log);
    let old = device(&machine).contents();
    wal::set_key_slots(&*device(&machine), b"newer").unwrap();
    device(&machine)
        .write(KEY_SLOTS[0], &old[256 << 10..384 << 10])
        .unwrap();
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    assert_eq!(check(&log), []);
    let contents = device(&machine).contents();
    let [first, second] = KEY_SLOTS.map(|at| &contents[at as usize..][..128 << 10]);
    assert!(first == second);
    assert_eq!(wal::key_slots(&*device(&machine)).unwrap().1, b"newer");
}

#[test]
fn key_slots_of_which_both_copies_are_wrong_are_told() {
    let (machine, log) = opened();
    KEY_SLOTS
        .iter()
        .for_each(|offset| damage(&machine, *offset));
    assert_eq!(check(&log), told(Copied::KeySlots, &KEY_SLOTS, false));
    assert_eq!(open_at(&machine).unwrap().cookie(ONE), b"first cookie");
    let refused = wal::key_slots(&*device(&machine)).unwrap_err();
    assert!(matches!(refused, LogError::Superblock { .. }), "{refused}");
}
