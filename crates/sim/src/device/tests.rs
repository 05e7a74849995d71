//! What a simulated machine leaves after each kind of stop, fault and change.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use wal::Device;

use super::*;

const BLOCK: usize = 4096;

fn machine() -> (Machine, Arc<SimDevice>, Arc<SimDevice>) {
    let machine = Machine::new(&[("D", 1 << 20), ("L", 1 << 20)]);
    let (d, l) = (machine.device("D"), machine.device("L"));
    (machine, d, l)
}

fn byte(device: &SimDevice, offset: u64) -> u8 {
    device.contents()[offset as usize]
}

fn all(machine: &Machine, stop: Stop, pieces: usize) -> Vec<Machine> {
    let outcomes = machine.outcomes(stop, pieces, u64::MAX, 0);
    outcomes
        .map(|outcome| machine.restart(stop, pieces, &outcome))
        .collect()
}

#[test]
fn power_cut_leaves_each_unsynced_sector_at_any_version_since_the_sync() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    d.write(0, &[2; BLOCK]).unwrap();
    d.write(0, &[3; BLOCK]).unwrap();
    assert_eq!(machine.combinations(Stop::Power, usize::MAX), 3u64.pow(8));
    assert_eq!(machine.combinations(Stop::Power, 2), 9);
    let found: BTreeSet<(u8, u8)> = all(&machine, Stop::Power, 2)
        .iter()
        .map(|m| (byte(&m.device("D"), 0), byte(&m.device("D"), 4095)))
        .collect();
    let expected = (1..4).flat_map(|a| (1..4).map(move |b| (a, b)));
    assert_eq!(found, expected.collect());
    let halves = all(&machine, Stop::Power, 2);
    let whole = |m: &Machine| {
        m.device("D").contents()[..2048]
            .windows(2)
            .all(|w| w[0] == w[1])
    };
    assert!(halves.iter().all(whole));
}

#[test]
fn kill_keeps_what_returned_and_a_later_power_cut_may_still_lose_it() {
    let (machine, d, l) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    machine.stop_at(2);
    l.write(4096, &[2; BLOCK]).unwrap_err();
    assert!(machine.stopped());
    l.read(0, &mut [0; BLOCK]).unwrap_err();
    d.write(0, &[1; BLOCK]).unwrap_err();
    let after = all(&machine, Stop::Kill, 1);
    let found: Vec<(u8, u8)> = after
        .iter()
        .map(|m| (byte(&m.device("D"), 0), byte(&m.device("L"), 4096)))
        .collect();
    assert_eq!(found, [(1, 0), (1, 2)]);
    assert_eq!(after[1].combinations(Stop::Power, 1), 4);
    after[1].device("D").sync().unwrap();
    assert_eq!(after[1].combinations(Stop::Power, 1), 2);
    assert_eq!(
        byte(&machine.device("L"), 4096),
        0,
        "the stopped machine is unchanged"
    );
}

#[test]
fn sync_that_is_in_flight_leaves_everything_in_doubt_and_one_that_returned_nothing() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    let other = machine.fork();
    machine.stop_at(2);
    d.sync().unwrap_err();
    assert_eq!(machine.combinations(Stop::Power, 1), 2);
    other.device("D").sync().unwrap();
    assert_eq!(other.combinations(Stop::Power, 1), 1);
    assert_eq!(byte(&all(&other, Stop::Power, 1)[0].device("D"), 0), 1);
}

#[test]
fn sync_does_not_cover_a_write_in_flight() {
    let (machine, d, _) = machine();
    let flight = d.begin_write(0, &[7; BLOCK]).unwrap();
    assert_eq!((byte(&d, 0), byte(&d, 4095)), (0, 0));
    flight.show(7);
    assert_eq!((byte(&d, 0), byte(&d, 4095)), (0, 7));
    d.sync().unwrap();
    assert_eq!(machine.combinations(Stop::Power, usize::MAX), 1 << 8);
    assert_eq!(machine.combinations(Stop::Kill, usize::MAX), 1 << 7);
    flight.finish().unwrap();
    assert_eq!((byte(&d, 0), byte(&d, 4095)), (7, 7));
    assert_eq!(machine.combinations(Stop::Kill, 1), 1);
    assert_eq!(machine.combinations(Stop::Power, 1), 2);
    d.sync().unwrap();
    assert_eq!(machine.combinations(Stop::Power, 1), 1);
}

#[test]
fn held_write_of_another_thread_is_seen_in_part_until_it_is_released() {
    let (_, d, _) = machine();
    d.hold(Held::Write, 0..4096, 3);
    let writer = thread::spawn({
        let d = d.clone();
        move || d.write(0, &[5; BLOCK])
    });
    assert!(d.wait_held(Duration::from_secs(30)));
    assert_eq!((byte(&d, 3 * 512 - 1), byte(&d, 3 * 512)), (5, 0));
    d.write(8192, &[6; BLOCK]).unwrap();
    d.release();
    writer.join().unwrap().unwrap();
    assert_eq!(byte(&d, 4095), 5);
    d.write(0, &[6; BLOCK]).unwrap();
}

#[test]
fn held_write_fails_when_the_machine_stops() {
    let (machine, d, _) = machine();
    d.hold(Held::Write, 0..4096, 1);
    let writer = thread::spawn({
        let d = d.clone();
        move || d.write(0, &[5; BLOCK])
    });
    assert!(d.wait_held(Duration::from_secs(30)));
    machine.stop();
    writer.join().unwrap().unwrap_err();
    assert_eq!(machine.combinations(Stop::Kill, usize::MAX), 1 << 7);
}

#[test]
fn sync_that_lies_makes_nothing_durable() {
    let (machine, d, _) = machine();
    d.inject(Fault::once(Lie::SyncIgnored));
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    assert_eq!(machine.combinations(Stop::Power, 1), 2);
    d.sync().unwrap();
    assert_eq!(machine.combinations(Stop::Power, 1), 1);
}

#[test]
fn what_was_written_before_a_failed_sync_is_not_durable_after_the_next_one() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.inject(Fault::once(Lie::SyncFails));
    assert_eq!(d.sync().unwrap_err().raw_os_error(), Some(libc::EIO));
    d.write(8192, &[2; BLOCK]).unwrap();
    d.sync().unwrap();
    let found: Vec<(u8, u8)> = all(&machine, Stop::Power, 1)
        .iter()
        .map(|m| (byte(&m.device("D"), 0), byte(&m.device("D"), 8192)))
        .collect();
    assert_eq!(found, [(0, 2), (1, 2)]);
    d.write(0, &[3; BLOCK]).unwrap();
    d.sync().unwrap();
    assert_eq!(machine.combinations(Stop::Power, 1), 1);
}

#[test]
fn lying_writes_change_other_bytes_than_they_say() {
    let (_, d, _) = machine();
    d.inject(Fault::once(Lie::WriteDropped).at(0..4096));
    d.write(4096, &[1; BLOCK]).unwrap();
    d.write(0, &[1; BLOCK]).unwrap();
    assert_eq!((byte(&d, 0), byte(&d, 4096)), (0, 1));
    d.inject(Fault::once(Lie::WriteMisdirected { to: 65536 }).after(1));
    d.write(0, &[2; BLOCK]).unwrap();
    d.write(0, &[3; BLOCK]).unwrap();
    assert_eq!((byte(&d, 0), byte(&d, 65536)), (2, 3));
    d.inject(Fault::once(Lie::WriteTorn { written: 2 }));
    d.write(0, &[4; BLOCK]).unwrap();
    assert_eq!((byte(&d, 1023), byte(&d, 1024)), (4, 2));
    d.inject(Fault::always(Lie::WriteFails { written: 1 }));
    d.write(0, &[5; BLOCK]).unwrap_err();
    d.zero(0, 4096).unwrap_err();
    assert_eq!((byte(&d, 511), byte(&d, 512)), (0, 4));
    d.heal();
    d.zero(0, 4096).unwrap();
    assert_eq!(byte(&d, 512), 0);
}

#[test]
fn read_fails_where_it_was_told_and_recovers() {
    let (_, d, _) = machine();
    d.inject(Fault::once(Lie::ReadFails).at(4096..4097));
    let mut page = [0; BLOCK];
    d.read(0, &mut page).unwrap();
    let error = d.read(4096, &mut page).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    d.read(4096, &mut page).unwrap();
}

#[test]
fn full_sparse_device_takes_writes_where_it_has_space() {
    let (_, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.set_full(true);
    d.write(0, &[2; BLOCK]).unwrap();
    let error = d.write(4096, &[2; BLOCK]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    d.zero(0, 4096).unwrap();
    d.write(0, &[2; BLOCK]).unwrap_err();
}

#[test]
fn adversary_changes_bytes_at_rest() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    let instant = machine.operations();
    d.write(0, &[2; BLOCK]).unwrap();
    d.write(4096, &[3; BLOCK]).unwrap();
    d.flip(8 * 4096 + 9);
    assert_eq!(d.contents()[4096..4098], [3, 1]);
    d.transplant(4096, 8192, 4096);
    assert_eq!(d.contents()[8192..8194], [3, 1]);
    d.put_back(0..4096, instant);
    assert_eq!((byte(&d, 0), byte(&d, 4096)), (1, 3));
    d.put_back_all(instant);
    assert_eq!((byte(&d, 0), byte(&d, 4096), byte(&d, 8192)), (1, 0, 0));
    d.plant(512, &[9; 512]);
    d.erase(0..512);
    assert_eq!(d.contents()[511..513], [0, 9]);
    assert_eq!(
        machine.combinations(Stop::Power, 1),
        1,
        "what the adversary wrote is durable"
    );
}

#[test]
fn device_can_be_put_back_to_an_instant_before_a_restart() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    let instant = machine.operations();
    d.write(0, &[2; BLOCK]).unwrap();
    for after in all(&machine, Stop::Power, 1) {
        let d = after.device("D");
        d.write(0, &[3; BLOCK]).unwrap();
        d.put_back_all(instant);
        assert_eq!(byte(&d, 0), 1);
    }
}

#[test]
fn outcomes_of_large_crashes_are_sampled_and_repeat_by_seed() {
    let (machine, d, l) = machine();
    for n in 0..40 {
        d.write(n * 4096, &[1; BLOCK]).unwrap();
        l.write(n * 4096, &[2; BLOCK]).unwrap();
    }
    let sample = |seed| -> Vec<Outcome> {
        machine
            .outcomes(Stop::Power, usize::MAX, 50, seed)
            .collect()
    };
    assert_eq!(sample(1).len(), 50);
    assert_eq!(sample(1), sample(1));
    assert_ne!(sample(1), sample(2));
    let sides: Vec<(u8, u8)> = sample(1)[..4]
        .iter()
        .map(|outcome| machine.restart(Stop::Power, usize::MAX, outcome))
        .map(|m| (byte(&m.device("D"), 0), byte(&m.device("L"), 0)))
        .collect();
    assert_eq!(sides, [(0, 0), (1, 2), (1, 0), (0, 2)]);
    let outcome = &sample(1)[7];
    assert_eq!(&outcome.to_string().parse::<Outcome>().unwrap(), outcome);
}

#[test]
fn writes_of_equal_bytes_leave_no_doubt() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    d.write(0, &[1; BLOCK]).unwrap();
    assert_eq!(machine.combinations(Stop::Power, usize::MAX), 1);
    assert_eq!(byte(&all(&machine, Stop::Power, 1)[0].device("D"), 0), 1);
}

#[test]
fn range_outside_the_device_or_off_its_blocks_is_refused() {
    let machine = Machine::new(&[("D", 8192 + 512)]);
    let d = machine.device("D");
    assert_eq!(
        d.write(512, &[0; 4096]).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    d.write(8192, &[1; 512]).unwrap();
    let error = d.write(8192, &[0; 1024]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(machine.operations(), 1);
}

#[test]
fn machine_forgets_what_no_crash_can_find() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    d.write(0, &[2; BLOCK]).unwrap();
    machine.forget();
    assert_eq!(machine.combinations(Stop::Power, 1), 2);
    assert_eq!(byte(&all(&machine, Stop::Power, 1)[0].device("D"), 0), 1);
}

#[test]
fn sync_covers_what_returned_before_it_began() {
    let (machine, d, _) = machine();
    d.write(0, &[1; BLOCK]).unwrap();
    d.hold(Held::Sync, 0..1, 0);
    let sync = thread::spawn({
        let d = d.clone();
        move || d.sync()
    });
    assert!(d.wait_held(Duration::from_secs(30)));
    assert_eq!(machine.combinations(Stop::Power, 1), 2);
    d.write(0, &[2; BLOCK]).unwrap();
    d.write(8192, &[2; BLOCK]).unwrap();
    d.release();
    sync.join().unwrap().unwrap();
    let found: BTreeSet<(u8, u8)> = all(&machine, Stop::Power, 1)
        .iter()
        .map(|m| (byte(&m.device("D"), 0), byte(&m.device("D"), 8192)))
        .collect();
    assert_eq!(found, BTreeSet::from([(1, 0), (1, 2), (2, 0), (2, 2)]));
}

#[test]
fn held_read_returns_what_is_there_when_it_is_released() {
    let (_, d, _) = machine();
    d.hold(Held::Read, 0..4096, 0);
    let read = thread::spawn({
        let d = d.clone();
        move || {
            let mut page = [9; BLOCK];
            d.read(0, &mut page).unwrap();
            page[0]
        }
    });
    assert!(d.wait_held(Duration::from_secs(30)));
    d.write(0, &[1; BLOCK]).unwrap();
    d.release();
    assert_eq!(read.join().unwrap(), 1);
}

#[test]
fn atomic_units_do_not_tear() {
    let (machine, d, _) = machine();
    d.set_atomic(4096);
    d.write(4096, &[1; 3 * BLOCK]).unwrap();
    assert_eq!(machine.combinations(Stop::Power, usize::MAX), 8);
    for after in all(&machine, Stop::Power, usize::MAX) {
        for block in after.device("D").contents().chunks(BLOCK) {
            assert!(block.iter().all(|byte| *byte == block[0]));
        }
    }
}

#[test]
fn recorded_machines_stopped_at_each_operation_in_turn() {
    let (machine, d, l) = machine();
    machine.record();
    d.write(0, &[1; BLOCK]).unwrap();
    d.sync().unwrap();
    l.write(0, &[2; BLOCK]).unwrap();
    let doubts: Vec<(u64, u64)> = machine
        .recorded()
        .iter()
        .inspect(|m| assert!(m.stopped()))
        .map(|m| {
            (
                m.combinations(Stop::Power, 1),
                m.combinations(Stop::Kill, 1),
            )
        })
        .collect();
    assert_eq!(doubts, [(2, 2), (2, 1), (2, 2)]);
    assert!(!machine.stopped());
    assert!(machine.recorded().is_empty());
}

#[test]
fn fingerprint_tells_what_a_crash_can_find_and_not_how_it_came_about() {
    let (machine, d, _) = machine();
    let empty = machine.fingerprint();
    let other = machine.fork();
    d.write(0, &[1; BLOCK]).unwrap();
    let unsynced = machine.fingerprint();
    d.sync().unwrap();
    let synced = machine.fingerprint();
    assert!(empty != unsynced && unsynced != synced && synced != empty);
    let d = other.device("D");
    d.write(0, &[2; BLOCK]).unwrap();
    d.sync().unwrap();
    d.write(0, &[1; BLOCK]).unwrap();
    assert_ne!(other.fingerprint(), synced);
    d.sync().unwrap();
    assert_eq!(other.fingerprint(), synced);
}

#[test]
fn masked_bytes_do_not_count_but_torn_structures_do() {
    let write = |random: u8, outcome: &str| {
        let (machine, d, _) = machine();
        d.mask(0..4096, &[8..24, 4064..4096]);
        let mut page = [1; BLOCK];
        page[8..24].fill(random);
        page[4064..].fill(random);
        d.write(0, &page).unwrap();
        page[0] = 2;
        page[4064..].fill(random + 1);
        d.write(0, &page).unwrap();
        let outcome = outcome.parse().unwrap();
        machine.restart(Stop::Power, 2, &outcome).fingerprint()
    };
    assert_eq!(write(3, "1.1"), write(5, "1.1"));
    assert_eq!(write(3, "1.2"), write(5, "1.2"));
    let different = ["0.0", "1.1", "2.2", "1.2", "1.0"].map(|outcome| write(3, outcome));
    assert_eq!(BTreeSet::from(different).len(), 5);
}
