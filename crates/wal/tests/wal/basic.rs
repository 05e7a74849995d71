//! What an honest device keeps.

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;
use wal::{AppendError, LogError, Lsn, OpenOptions, Record};

use crate::volume::{
    ONE, PAGE, TWO, VOLUME, device, file, geometry, key, machine, open, open_at, put, record, seeds,
};

#[test]
fn records_of_two_clients_survive_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let device = file(directory.path(), &geometry(64));
    let recovery = open(&device).unwrap();
    assert_eq!(recovery.cookie(ONE), b"first cookie");
    assert_eq!((recovery.volume(), recovery.epoch()), (VOLUME, 1));
    let log = recovery.finish(&[(ONE, record(1, 0))]).unwrap();
    let first = log
        .append(&[(ONE, record(2, 2)), (TWO, record(3, 1))])
        .unwrap();
    let second = log.append(&[(TWO, record(4, 3))]).unwrap();
    assert_eq!(first.payloads[1].0, first.payloads[0].0 + 2 * PAGE);
    let page = &record(4, 3).payload[2];
    let lsn = Lsn(second.payloads[0].0 + 2 * PAGE);
    assert_eq!(log.read(lsn, page.digest).unwrap(), page.page);
    let mark = log.flush(second.end).wait().unwrap();
    assert_eq!(mark, log.durable());
    assert_eq!(log.read(lsn, page.digest).unwrap(), page.page);
    let other = record(5, 1).payload[0].digest;
    let wrong = log.read(lsn, other).unwrap_err();
    assert!(matches!(wrong, LogError::Integrity { lsn: at, .. } if at == lsn));
    drop(log);

    let recovery = open(&device).unwrap();
    assert_eq!((recovery.end(), recovery.epoch()), (mark, 2));
    assert_eq!(seeds(&recovery, ONE), [1, 2]);
    assert_eq!(seeds(&recovery, TWO), [3, 4]);
}

#[test]
fn checkpoints_free_space_for_many_laps() {
    let machine = machine(32);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    for n in 0..200 {
        let (start, _) = put(&log, ONE, record(n, (n % 3) as usize));
        for client in [ONE, TWO] {
            log.checkpoint(client, start, &n.to_le_bytes()).unwrap();
        }
    }
    assert!(log.end().0 > 10 * log.ring_bytes());
    drop(log);
    let recovery = open_at(&machine).unwrap();
    assert_eq!(recovery.cookie(ONE), 199u64.to_le_bytes());
    assert_eq!(seeds(&recovery, ONE), [199]);
    assert_eq!(seeds(&recovery, TWO), []);
}

#[test]
fn released_pages_are_named() {
    let machine = machine(32);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let first = log.append(&[(ONE, record(1, 1))]).unwrap();
    log.flush(first.end).wait().unwrap();
    let digest = record(1, 1).payload[0].digest;
    log.read(first.payloads[0], digest).unwrap();
    for client in [ONE, TWO] {
        log.checkpoint(client, first.end, b"").unwrap();
    }
    for _ in 0..2 {
        let error = log.read(first.payloads[0], digest).unwrap_err();
        assert!(matches!(error, LogError::Released { .. }), "{error}");
        put(&log, ONE, record(2, 1));
    }
    drop(log);
    let recovery = open_at(&machine).unwrap();
    let error = recovery.read(first.payloads[0], digest).unwrap_err();
    assert!(matches!(error, LogError::Released { .. }), "{error}");
}

#[test]
fn full_log_takes_only_reserved_frames_until_a_checkpoint() {
    let machine = machine(32);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let full = loop {
        match log.append(&[(ONE, record(1, 1))]) {
            Ok(appended) => log.flush(appended.end).wait().unwrap(),
            Err(error) => break error,
        };
    };
    assert!(matches!(full, AppendError::Full { .. }), "{full}");
    let pressure = log.pressure();
    assert_eq!((pressure.client, pressure.oldest), (ONE, Lsn(0)));
    assert!(pressure.free < 2 * PAGE);
    // The reserve takes a frame of the greatest length, wherever the ring ends, and a short one.
    let longest = (log.max_frame_bytes() / PAGE - 1) as usize;
    let long = log.append_reserved(&[(ONE, record(2, longest))]).unwrap();
    log.flush(long.end).wait().unwrap();
    let short = log.append_reserved(&[(ONE, record(3, 0))]).unwrap();
    log.flush(short.end).wait().unwrap();
    for client in [ONE, TWO] {
        log.checkpoint(client, short.start, b"").unwrap();
    }
    assert_eq!(log.tail(), short.start);
    put(&log, ONE, record(4, 1));
    drop(log);
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [3, 4]);
}

#[test]
fn undurable_frames_are_bounded_by_the_window() {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let mut appended = log.append(&[(ONE, record(0, 1))]).unwrap();
    let window = log.ring_bytes() / 4;
    let refused = loop {
        match log.append(&[(ONE, record(1, 1))]) {
            Ok(next) => appended = next,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Unsynced { .. }), "{refused}");
    assert!(appended.end.0 - log.durable().lsn.0 <= window);
    log.flush(appended.end).wait().unwrap();
    log.append(&[(ONE, record(1, 1))]).unwrap();
}

#[test]
fn limits_of_records_and_calls_are_refused_by_name() {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    let with_body = |bytes| Record {
        kind: 0,
        body: Bytes::from(vec![0; bytes]),
        payload: Vec::new(),
    };
    let refusals = [
        log.append(&[(ONE, with_body((64 << 10) + 1))]),
        log.append(&[(ONE, record(1, 257))]),
        log.append(&[(wal::Client(9), record(1, 0))]),
        log.append(&[(ONE, record(1, 8))]),
        log.append(&vec![(ONE, with_body(64 << 10)); 17]),
    ];
    for refused in refusals {
        assert!(
            matches!(refused, Err(AppendError::Invalid { .. })),
            "{refused:?}"
        );
    }
    let (start, _) = put(&log, ONE, record(1, 0));
    let invalid = |checked: Result<(), LogError>| {
        assert!(
            matches!(checked, Err(LogError::Invalid { .. })),
            "{checked:?}"
        );
    };
    invalid(log.checkpoint(ONE, Lsn(log.end().0 + PAGE), b""));
    invalid(log.checkpoint(ONE, start, &[0; 513]));
    invalid(log.checkpoint(wal::Client(9), start, b""));
    log.checkpoint(ONE, start, b"").unwrap();
    invalid(log.checkpoint(ONE, Lsn(0), b""));
    let beyond = Lsn(log.end().0 + PAGE);
    assert!(matches!(
        log.flush(beyond).wait(),
        Err(LogError::Released { .. })
    ));
    let digest = record(1, 1).payload[0].digest;
    for lsn in [
        log.end(),
        Lsn(start.0 + 1),
        Lsn(u64::MAX),
        Lsn(u64::MAX - 4095),
    ] {
        assert!(matches!(
            log.read(lsn, digest),
            Err(LogError::Released { .. })
        ));
    }
}

#[test]
fn other_key_volume_device_and_length_are_named() {
    let machine = machine(16);
    let open = |key: &wal::Key, volume| {
        let options = OpenOptions {
            volume,
            ..OpenOptions::default()
        };
        wal::open(device(&machine), key, None, options).err()
    };
    let other = wal::VolumeId([8; 16]);
    assert!(open(&key(), Some(VOLUME)).is_none());
    let error = open(&key(), Some(other)).unwrap();
    assert!(matches!(error, LogError::OtherVolume { found, .. } if found == VOLUME));
    let error = open(&wal::Key::new([1; 32]), None).unwrap();
    assert!(matches!(error, LogError::WrongKey { volume } if volume == VOLUME));

    let contents = device(&machine).contents();
    let short = contents.len() as u64 - PAGE;
    for (bytes, name) in [(short, "Truncated"), (512, "NotALog"), (2 << 20, "NotALog")] {
        let machine = sim::device::Machine::new(&[("L", bytes)]);
        if bytes == short {
            device(&machine).plant(0, &contents[..bytes as usize]);
        }
        let error = crate::volume::refused(open_at(&machine));
        assert!(format!("{error:?}").starts_with(name), "{error:?}");
    }
}

#[test]
fn geometry_out_of_bounds_is_refused() {
    let large = sim::device::Machine::new(&[("L", 4 << 20)]);
    let refused = |geometry: wal::Geometry, name: &str| {
        let error = wal::prepare(&*device(&large), &geometry, &mut |_| {}).unwrap_err();
        assert!(format!("{error:?}").starts_with(name), "{error:?}");
    };
    let with = |ring_bytes, areas: Vec<(wal::Client, u64)>| wal::Geometry { ring_bytes, areas };
    refused(with((64 << 10) - 1, vec![(ONE, 0)]), "Invalid");
    refused(with(u64::MAX, vec![(ONE, 0)]), "Invalid");
    refused(with(1 << 20, vec![]), "Invalid");
    refused(
        with(1 << 20, (0..7).map(|n| (wal::Client(n), 0)).collect()),
        "Invalid",
    );
    refused(with(1 << 20, vec![(ONE, 0), (ONE, 0)]), "Invalid");
    refused(with(1 << 20, vec![(ONE, u64::MAX)]), "Invalid");
    refused(with(1 << 20, vec![(ONE, 1 << 60)]), "Truncated");
    refused(with(4 << 20, vec![(ONE, 0)]), "Truncated");
    large.add("coarse", 4 << 20, 8192);
    let coarse = large.device("coarse");
    let error = wal::prepare(&*coarse, &geometry(16), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LogError::Invalid { .. }), "{error:?}");
}

#[derive(Debug, Clone)]
enum Step {
    Append(u8, usize),
    Flush,
    Checkpoint(u8, usize),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..3u8, 0..5usize).prop_map(|(client, pages)| Step::Append(client, pages)),
        3 => Just(Step::Flush),
        2 => (1..3u8, 0..4usize).prop_map(|(client, kept)| Step::Checkpoint(client, kept)),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]

    /// The log of a client is the list of what it appended since its oldest position.
    #[test]
    fn log_is_a_list(steps in prop::collection::vec(step(), 1..60)) {
        let machine = machine(64);
        let mut log = open_at(&machine).unwrap().finish(&[]).unwrap();
        let mut lists: [VecDeque<(u64, Lsn)>; 2] = Default::default();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Append(client, pages) => {
                    number += 1;
                    let records = [(wal::Client(client), record(number, pages))];
                    match log.append(&records) {
                        Ok(at) => lists[usize::from(client) - 1].push_back((number, at.start)),
                        Err(AppendError::Unsynced { .. }) => {
                            log.flush(log.end()).wait().unwrap();
                        }
                        Err(AppendError::Full { needed, free }) => prop_assert!(needed > free),
                        Err(error) => panic!("{error}"),
                    }
                }
                Step::Flush => {
                    log.flush(log.end()).wait().unwrap();
                }
                Step::Checkpoint(client, kept) => {
                    log.flush(log.end()).wait().unwrap();
                    let list = &mut lists[usize::from(client) - 1];
                    list.drain(..list.len().saturating_sub(kept));
                    let oldest = list.front().map_or(log.end(), |(_, start)| *start);
                    log.checkpoint(wal::Client(client), oldest, &number.to_le_bytes()).unwrap();
                }
                Step::Reopen => {
                    log.flush(log.end()).wait().unwrap();
                    drop(log);
                    let recovery = open_at(&machine).unwrap();
                    for (client, list) in [ONE, TWO].into_iter().zip(&lists) {
                        let listed: Vec<u64> = list.iter().map(|(seed, _)| *seed).collect();
                        prop_assert_eq!(seeds(&recovery, client), listed);
                    }
                    log = match recovery.finish(&[]) {
                        Ok(log) => log,
                        Err(LogError::Full { .. }) => return Ok(()),
                        Err(error) => panic!("{error}"),
                    };
                }
            }
        }
    }
}

#[test]
fn sessions_without_a_frame_cost_no_space() {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    put(&log, ONE, record(1, 1));
    let first = log.durable();
    drop(log);
    for epoch in 2..100 {
        let log = open_at(&machine).unwrap().finish_without_frame().unwrap();
        assert_eq!((log.epoch(), log.end()), (epoch, first.lsn));
        let mark = log.durable();
        assert!(mark.is_same_frame(&first) && mark.epoch == epoch);
        log.check_session().unwrap();
    }
    // The anchor of an earlier session, and a log whose tail is the mark of a later one.
    let log = open_at(&machine).unwrap().finish_without_frame().unwrap();
    log.checkpoint(ONE, log.end(), b"").unwrap();
    log.checkpoint(TWO, log.end(), b"").unwrap();
    assert_eq!(log.tail(), first.lsn);
    drop(log);
    let options = OpenOptions::default();
    let recovery = wal::open(device(&machine), &key(), Some(first), options).unwrap();
    assert_eq!(recovery.epoch(), 101);
    let log = recovery.finish(&[]).unwrap();
    put(&log, ONE, record(2, 1));
    drop(log);
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [2]);
}
