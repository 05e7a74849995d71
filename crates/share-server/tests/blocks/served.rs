//! What clients get from a block server over real storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use share_server::blocks::{Error, Limit, Options, Progress, Quota, Server, Storage};
use sim::device::{Held, Machine, SimDevice};
use sim::disk::CrashDisk;
use store::Repository;
use trust::{Frame, Record, Reject};
use wal::{Device as LogDevice, Lsn};

use crate::support::{
    self, DEVICE_BYTES, Time, answered, block, entry, much, session, store, submit,
};

struct Place {
    device: Arc<SimDevice>,
    repository: Repository,
    time: Time,
}

fn place() -> Place {
    let machine = Machine::new(&[("log", DEVICE_BYTES)]);
    let device = machine.device("log");
    support::format(&*device);
    Place {
        device,
        repository: Repository::create_on(CrashDisk::new()).unwrap(),
        time: Time::default(),
    }
}

impl Place {
    fn open(&self, options: Options) -> Storage {
        let device: Arc<dyn LogDevice> = self.device.clone();
        support::open(device, self.repository.clone(), &self.time, options).unwrap()
    }

    /// The server, and the orderer's entries that it found: the frame and the number of each.
    fn open_with_entries(&self) -> (Storage, Vec<(Lsn, u8)>) {
        let mut found = Vec::new();
        let device: Arc<dyn LogDevice> = self.device.clone();
        let storage = support::open_with(
            device,
            self.repository.clone(),
            &self.time,
            Options::default(),
            &mut |entry| found.push((entry.frame, entry.body[0])),
        );
        (storage.unwrap(), found)
    }

    fn minutes(&self, minutes: u64) {
        self.time.pass(Duration::from_secs(61 * minutes));
    }
}

#[test]
fn stored_block_is_found_in_the_log_and_then_in_the_segments() {
    let place = place();
    let storage = place.open(Options::default());
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    let blocks = [block(1, 8192), block(2, 100), block(3, 0)];
    let receipt = store(&storage, one, &blocks).unwrap();
    assert_eq!(receipt.stored, [true; 3]);
    let again = store(&storage, other, &[block(2, 100), block(4, 5000)]).unwrap();
    assert_eq!(again.stored, [false, true]);
    for _ in 0..2 {
        for block in &blocks {
            assert_eq!(
                storage.retrieve(other, &block.handle).unwrap().as_ref(),
                Some(block)
            );
            assert!(storage.cstore(one, &block.handle).unwrap());
        }
        assert_eq!(storage.retrieve(one, &block(9, 9).handle).unwrap(), None);
        assert!(!storage.cstore(one, &block(9, 9).handle).unwrap());
        place.minutes(2);
        storage.settle().unwrap();
        assert_eq!(storage.temporary_blocks(), 0);
    }
    assert_eq!(place.repository.index_entries(), 4);
    assert_eq!(storage.log().pressure().used, 0);
}

#[test]
fn dereferenced_block_never_reaches_the_segments() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let (short_lived, kept) = (block(1, 3000), block(2, 3000));
    store(&storage, one, &[short_lived.clone(), kept.clone()]).unwrap();
    assert!(storage.decref(one, &short_lived.handle).unwrap());
    place.minutes(3);
    let moved = storage.settle().unwrap();
    assert_eq!((moved.moved, moved.dropped), (1, 1));
    assert_eq!(storage.retrieve(one, &short_lived.handle).unwrap(), None);
    assert_eq!(storage.retrieve(one, &kept.handle).unwrap(), Some(kept));
    // It can be stored again.
    assert_eq!(
        store(&storage, one, std::slice::from_ref(&short_lived))
            .unwrap()
            .stored,
        [true]
    );
    assert_eq!(
        storage.retrieve(one, &short_lived.handle).unwrap(),
        Some(short_lived)
    );
}

#[test]
fn blocks_of_others_and_old_blocks_are_not_dereferenced() {
    let place = place();
    let storage = place.open(Options::default());
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    let kept = block(1, 3000);
    store(&storage, one, std::slice::from_ref(&kept)).unwrap();
    assert!(!storage.decref(other, &kept.handle).unwrap());
    place.minutes(1);
    assert!(!storage.decref(one, &kept.handle).unwrap());
    place.minutes(3);
    storage.settle().unwrap();
    assert!(!storage.decref(one, &kept.handle).unwrap());
    assert!(storage.cstore(one, &kept.handle).unwrap());
    storage.close_session(one);
    assert!(matches!(
        storage.decref(one, &kept.handle),
        Err(Error::NoSession)
    ));
    assert!(matches!(
        storage.retrieve(one, &kept.handle),
        Err(Error::NoSession)
    ));
}

#[test]
fn wrong_block_and_bomb_are_refused_and_occupy_no_name() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let good = block(1, 3000);
    let wrong = Record {
        handle: good.handle,
        frame: block(2, 3000).frame,
    };
    // A frame that states 1 MiB and unpacks to more.
    let zeros = Record {
        handle: good.handle,
        frame: trust::frame::Packer::new()
            .pack(trust::Kind::Data, &[0; 1 << 20])
            .unwrap(),
    };
    let mut short = zeros.frame.as_bytes().to_vec();
    short[2..6].copy_from_slice(&4096u32.to_le_bytes());
    let bomb = Record {
        handle: good.handle,
        frame: Frame::parse(short.into()).unwrap(),
    };
    for (bad, why) in [(wrong, "another block"), (bomb, "a bomb")] {
        let answer = submit(&storage, one, vec![block(3, 10), bad], vec![entry(1)]);
        let refused = answered(&answer).unwrap();
        let is_refused = matches!(
            refused,
            Err(Error::WrongBlock { handle, why: Reject::WrongBlock | Reject::BadFrame(_) }) if handle == good.handle
        );
        assert!(is_refused, "{why}: {refused:?}");
    }
    assert_eq!(storage.commit(), Progress::Idle);
    assert_eq!(storage.temporary_blocks(), 0);
    assert_eq!(store(&storage, one, &[good]).unwrap().stored, [true]);
}

#[test]
fn quota_of_a_device_is_said_with_what_is_left_and_spares_others() {
    let place = place();
    let quota = Quota {
        temporary_bytes: 10_000,
        daily_bytes: 25_000,
    };
    let options = Options {
        quota,
        ..Options::default()
    };
    let storage = place.open(options);
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    store(&storage, one, &[block(1, 6000)]).unwrap();
    let refused = store(&storage, one, &[block(2, 100), block(3, 6000)]);
    let Err(Error::Quota {
        left,
        of: Limit::Temporary,
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(left, 10_000 - 6006);
    // Nothing of the batch was stored, and what is there already costs nothing.
    assert!(!storage.cstore(one, &block(2, 100).handle).unwrap());
    store(&storage, one, &[block(1, 6000)]).unwrap();
    store(&storage, other, &[block(3, 6000)]).unwrap();
    // What goes straight to the segments counts for the day.
    let refused = Arc::new(std::sync::Mutex::new(None));
    for number in [4, 5] {
        let place = refused.clone();
        let done = move |result| *place.lock().unwrap() = Some(result);
        storage.pstore(one, block(number, 15_000), Box::new(done));
    }
    let refused = refused.lock().unwrap().take().expect("an answer");
    assert!(
        matches!(
            refused,
            Err(Error::Quota {
                of: Limit::Daily,
                ..
            })
        ),
        "{refused:?}"
    );
    // After a restart the log's bytes still count.
    drop(storage);
    let storage = place.open(options);
    let one = session(&storage, 1);
    let refused = store(&storage, one, &[block(5, 6000)]);
    assert!(matches!(
        refused,
        Err(Error::Quota {
            of: Limit::Temporary,
            ..
        })
    ));
    storage.settle().unwrap();
    store(&storage, one, &[block(5, 6000)]).unwrap();
}

#[test]
fn one_sync_serves_all_batches_and_the_orderers_entries() {
    let place = place();
    let storage = place.open(Options::default());
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    let before = place.device.syncs();
    let answers = [
        submit(
            &storage,
            one,
            vec![block(1, 8000), block(2, 8000)],
            vec![entry(1)],
        ),
        submit(&storage, other, vec![block(2, 8000)], Vec::new()),
        submit(&storage, other, Vec::new(), vec![entry(2), entry(3)]),
    ];
    assert!(answers.iter().all(|answer| answered(answer).is_none()));
    assert_eq!(storage.commit(), Progress::Done);
    assert_eq!(place.device.syncs(), before + 1);
    let receipts = answers.map(|answer| answered(&answer).unwrap().unwrap());
    assert_eq!(receipts[0].stored, [true, true]);
    assert_eq!(receipts[1].stored, [false]);
    assert_eq!(receipts[2].durable, receipts[0].durable);
    drop(storage);
    // Blocks leave, and the entries stay until the orderer releases them.
    for _ in 0..2 {
        let (storage, found) = place.open_with_entries();
        let numbers: Vec<u8> = found.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert!(
            found.iter().all(|(frame, _)| *frame == found[0].0),
            "one frame"
        );
        storage.settle().unwrap();
        assert_eq!(storage.temporary_blocks(), 0);
    }
    let (storage, _) = place.open_with_entries();
    let end = storage.log().durable().lsn;
    storage.release_entries(end, b"orderer").unwrap();
    // The frames with which the log was opened are behind the last block.
    assert!(storage.log().pressure().used <= 3 * 4096);
    // Without entries the log is freed by blocks alone, and what the orderer left stays.
    let one = session(&storage, 1);
    store(&storage, one, &[block(8, 3000)]).unwrap();
    place.minutes(3);
    storage.settle().unwrap();
    assert_eq!(storage.log().pressure().used, 0);
    drop(storage);
    let (storage, found) = place.open_with_entries();
    assert!(found.is_empty());
    assert_eq!(storage.entries_cookie(), b"orderer");
}

#[test]
fn much_at_a_time_is_written_once() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let blocks: Vec<Record> = (0..32).map(|n| block(n, 128 << 10)).collect();
    let bytes: u64 = blocks.iter().map(|b| b.len() as u64).sum();
    let log = storage.log().end();
    let answer = submit(&storage, one, blocks.clone(), Vec::new());
    assert_eq!(storage.commit(), Progress::Idle);
    assert!(
        answered(&answer).is_none(),
        "acknowledged before it is durable"
    );
    let moved = storage.advance().unwrap();
    assert_eq!(answered(&answer).unwrap().unwrap().stored, [true; 32]);
    assert_eq!((moved.direct, storage.log().end()), (32, log));
    let each = moved.written_bytes as f64 / bytes as f64;
    assert!(each <= 1.1, "{each} bytes are written a byte");
    assert_eq!(
        storage.retrieve(one, &blocks[5].handle).unwrap().as_ref(),
        Some(&blocks[5])
    );
    // With an entry: the entry comes after the blocks. A DECREF takes nothing back.
    let mixed = [much(40), vec![block(70, 10), block(1, 128 << 10)]].concat();
    let answer = submit(&storage, one, mixed, vec![entry(7)]);
    assert_eq!(storage.commit(), Progress::Idle);
    storage.advance().unwrap();
    assert!(answered(&answer).is_none());
    assert_eq!(storage.commit(), Progress::Done);
    let stored = answered(&answer).unwrap().unwrap().stored;
    assert_eq!(stored, [&[true; 18][..], &[false]].concat());
    assert!(!storage.decref(one, &block(70, 10).handle).unwrap());
    assert!(storage.cstore(one, &block(70, 10).handle).unwrap());
    // And PSTORE of a short one.
    let (stored, seen) = (block(80, 100), Arc::new(std::sync::Mutex::new(None)));
    let place = seen.clone();
    storage.pstore(
        one,
        stored.clone(),
        Box::new(move |r| *place.lock().unwrap() = Some(r)),
    );
    storage.advance().unwrap();
    assert!(seen.lock().unwrap().take().unwrap().is_ok());
    assert!(storage.repository().contains(&stored.handle).unwrap());
}

#[test]
fn raw_block_of_64_kib_costs_one_sync_and_can_be_dereferenced() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let (lives, dies) = (block(1, 64 << 10), block(2, 64 << 10));
    let before = place.device.syncs();
    for block in [&lives, &dies] {
        assert!(block.frame.as_bytes().len() > 64 << 10);
        store(&storage, one, std::slice::from_ref(block)).unwrap();
    }
    assert_eq!(place.device.syncs(), before + 2);
    assert!(!storage.has_direct());
    assert!(storage.decref(one, &dies.handle).unwrap());
    drop(storage);
    // A restart finds both, and then nobody holds them.
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    for block in [&lives, &dies] {
        let found = storage.retrieve(one, &block.handle).unwrap();
        assert_eq!(found.as_ref(), Some(block));
    }
    storage.settle().unwrap();
    assert_eq!(
        (storage.temporary_blocks(), place.repository.index_entries()),
        (0, 2)
    );
    assert_eq!(storage.retrieve(one, &lives.handle).unwrap(), Some(lives));
}

#[test]
fn amount_of_a_session_decides_and_not_the_length_of_a_block() {
    let place = place();
    let storage = place.open(Options::default());
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    let each = |number| vec![block(number, 200_000)];
    // One after the other they go through the log, however many.
    for number in 0..6 {
        store(&storage, one, &each(number)).unwrap();
    }
    assert!(!storage.has_direct());
    // What waits together with them: the sixth is too much, and another session's is not.
    let answers: Vec<_> = (10..16)
        .map(|number| submit(&storage, one, each(number), Vec::new()))
        .collect();
    assert!(storage.has_direct());
    let others = submit(&storage, other, each(20), Vec::new());
    while storage.commit() == Progress::Done {}
    let durable = answers.iter().filter(|answer| answered(answer).is_some());
    assert_eq!(durable.count(), 5);
    assert!(answered(&others).unwrap().is_ok());
    assert_eq!(storage.advance().unwrap().direct, 1);
    assert!(answered(&answers[5]).unwrap().is_ok());
    // Nothing waits any more, so the next one goes through the log again.
    store(&storage, one, &each(30)).unwrap();
    // A block that no frame of this log holds goes straight to the segments.
    let large = submit(&storage, one, vec![block(40, 300_000)], Vec::new());
    assert!(storage.has_direct() && answered(&large).is_none());
    storage.advance().unwrap();
    assert!(answered(&large).unwrap().is_ok());
}

#[test]
fn blocks_that_no_frame_holds_go_in_several() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let mut blocks: Vec<Record> = (0..12).map(|n| block(n, 60_000)).collect();
    blocks.insert(6, block(50, 200_000));
    let answer = submit(&storage, one, blocks.clone(), Vec::new());
    for _ in 0..100 {
        while storage.commit() == Progress::Done {}
        storage.advance().unwrap();
    }
    assert_eq!(answered(&answer).unwrap().unwrap().stored, [true; 13]);
    let again = submit(&storage, one, blocks.clone(), Vec::new());
    for _ in 0..100 {
        while storage.commit() == Progress::Done {}
        storage.advance().unwrap();
    }
    assert!(answered(&again).unwrap().is_ok());
    for block in &blocks {
        let found = storage.retrieve(one, &block.handle).unwrap();
        assert_eq!(found.as_ref(), Some(block));
    }
    // Of several batches that are one, the first that fails fails it.
    blocks[12] = Record {
        handle: blocks[0].handle,
        ..blocks[12].clone()
    };
    let answer = submit(&storage, one, blocks, Vec::new());
    for _ in 0..100 {
        while storage.commit() == Progress::Done {}
        storage.advance().unwrap();
    }
    let wrong = answered(&answer).unwrap();
    assert!(matches!(wrong, Err(Error::WrongBlock { .. })), "{wrong:?}");
}

#[test]
fn batch_with_an_entry_that_no_frame_holds_is_refused() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let blocks: Vec<Record> = (0..10).map(|n| block(n, 60_000)).collect();
    let answer = submit(&storage, one, blocks.clone(), vec![entry(7)]);
    let refused = answered(&answer).unwrap();
    let Err(Error::TooLarge { bytes, most }) = refused else {
        panic!("{refused:?}");
    };
    assert!(bytes > most);
    // In several batches they go in several frames of one commit.
    let answers: Vec<_> = blocks
        .chunks(3)
        .map(|some| submit(&storage, one, some.to_vec(), Vec::new()))
        .collect();
    while storage.commit() == Progress::Done {}
    assert!(
        answers
            .iter()
            .all(|answer| answered(answer).unwrap().is_ok())
    );
}

/// Damages the second page of a block in the log.
fn damage(device: &SimDevice, block: &Record) {
    let contents = device.contents();
    let start = &block.frame.as_bytes()[..600];
    let mut pages = (0..contents.len()).step_by(4096);
    let at = pages.find(|at| contents[*at..].starts_with(start)).unwrap();
    device.write(at as u64 + 4096, &[0; 4096]).unwrap();
}

#[test]
fn damaged_block_in_the_log_is_told_and_can_be_stored_again() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let (damaged, whole) = (block(1, 8192), block(2, 8192));
    store(&storage, one, &[damaged.clone(), whole.clone()]).unwrap();
    damage(&place.device, &damaged);
    let refused = storage.retrieve(one, &damaged.handle);
    assert!(matches!(refused, Err(Error::Damaged { handle }) if handle == damaged.handle));
    place.minutes(3);
    storage.settle().unwrap();
    assert_eq!(storage.retrieve(one, &whole.handle).unwrap(), Some(whole));
    assert_eq!(storage.retrieve(one, &damaged.handle).unwrap(), None);
    store(&storage, one, std::slice::from_ref(&damaged)).unwrap();
    assert_eq!(
        storage.retrieve(one, &damaged.handle).unwrap(),
        Some(damaged)
    );
}

#[test]
fn block_whose_page_was_lost_in_a_restart_can_be_stored_again() {
    let place = place();
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    let (damaged, whole) = (block(1, 8192), block(2, 8192));
    store(&storage, one, std::slice::from_ref(&damaged)).unwrap();
    // Proves that the first frame was durable, so that it is no torn end.
    store(&storage, one, std::slice::from_ref(&whole)).unwrap();
    drop(storage);
    damage(&place.device, &damaged);
    let storage = place.open(Options::default());
    let one = session(&storage, 1);
    assert_eq!(storage.retrieve(one, &whole.handle).unwrap(), Some(whole));
    assert_eq!(storage.retrieve(one, &damaged.handle).unwrap(), None);
    assert_eq!(
        store(&storage, one, std::slice::from_ref(&damaged))
            .unwrap()
            .stored,
        [true]
    );
    storage.settle().unwrap();
    assert_eq!(
        storage.retrieve(one, &damaged.handle).unwrap(),
        Some(damaged)
    );
}

#[test]
fn block_that_is_not_durable_yet_is_neither_given_out_nor_moved() {
    let place = place();
    let storage = place.open(Options::default());
    let (one, other) = (session(&storage, 1), session(&storage, 2));
    let waits = block(1, 3000);
    let answer = submit(&storage, one, vec![waits.clone()], Vec::new());
    place.device.hold(Held::Sync, 0..u64::MAX, 0);
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| storage.commit());
        assert!(place.device.wait_held(Duration::from_secs(60)));
        place.minutes(4);
        scope.spawn(|| {
            assert!(storage.cstore(other, &waits.handle).unwrap());
            finished.fetch_add(1, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let found = storage.retrieve(other, &waits.handle).unwrap();
            assert_eq!(found.as_ref(), Some(&waits));
            finished.fetch_add(1, Ordering::SeqCst);
        });
        scope.spawn(|| {
            while !storage.is_ripe() {
                std::thread::yield_now();
            }
            assert_eq!(storage.advance().unwrap().moved, 1);
            finished.fetch_add(1, Ordering::SeqCst);
        });
        // A wrong server answers in no time.
        std::thread::sleep(Duration::from_millis(300));
        let early = (finished.load(Ordering::SeqCst), answered(&answer).is_some());
        // Whoever asked has made the block young again.
        place.minutes(4);
        place.device.release();
        assert_eq!(early, (0, false));
    });
    assert!(answered(&answer).unwrap().is_ok());
    assert_eq!(finished.load(Ordering::SeqCst), 3);
}

#[test]
fn clients_at_once_share_syncs_and_are_all_answered() {
    const CLIENTS: u64 = 8;
    const EACH: u64 = 20;
    let place = place();
    let options = Options {
        window: Duration::from_millis(100),
        ..Options::default()
    };
    let server = Server::start(place.open(options)).unwrap();
    let before = place.device.syncs();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let session = session(server.storage(), client as u8);
                for number in 0..EACH {
                    let mine = block(client * EACH + number, 5000);
                    assert_eq!(
                        server.store(session, vec![mine.clone()]).unwrap().stored,
                        [true]
                    );
                    let found = server.storage().retrieve(session, &mine.handle).unwrap();
                    assert_eq!(found, Some(mine));
                }
                let many = much(1000 + 100 * client);
                let long = many[16].clone();
                server.store(session, many).unwrap();
                server.pstore(session, block(5000 + client, 100)).unwrap();
                assert!(server.storage().cstore(session, &long.handle).unwrap());
            });
        }
    });
    let syncs = place.device.syncs() - before;
    println!("{syncs} syncs for {} blocks", CLIENTS * EACH);
    place.minutes(3);
    server.storage().settle().unwrap();
    assert_eq!(server.storage().temporary_blocks(), 0);
    assert_eq!(place.repository.index_entries(), CLIENTS * (EACH + 18));
}
