//! Journals with cut, flipped or zeroed bytes, on stalled disks, and with two writers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sim::time::wait_until;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn replayed(path: &Path) -> Result<(Journal, Vec<Vec<u8>>, Replayed), StateError> {
    let mut found = Vec::new();
    let (journal, replayed) = Journal::open(path, soon(), |record| found.push(record.to_vec()))?;
    Ok((journal, found, replayed))
}

fn records() -> Vec<Vec<u8>> {
    (1..=5u8).map(|i| vec![i; usize::from(i) * 3]).collect()
}

/// The bytes of a journal with [`records`], none of them fsynced, and the end of each record.
fn unsynced(directory: &Path) -> (Vec<u8>, Vec<usize>) {
    let path = directory.join("whole");
    let (journal, ..) = replayed(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let mut ends = vec![bytes.len()];
    for record in records() {
        let mut tail = Vec::new();
        let at = bytes.len() as u64;
        Record::new(at, &record).unwrap().write(&mut tail);
        bytes.extend_from_slice(&tail);
        ends.push(bytes.len());
        journal.append_blocking(soon(), &record).unwrap();
    }
    // The journal writes the documented format.
    assert_eq!(
        fs::read(&path).unwrap()[format::HEADER_BYTES..],
        bytes[format::HEADER_BYTES..]
    );
    (bytes, ends)
}

#[test]
fn every_torn_tail_is_cut_off_and_the_journal_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (bytes, ends) = unsynced(directory.path());
    let path = directory.path().join("torn");
    for cut in ends[0]..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        // The tail is cut off, is zeros, or is something else.
        let rest = bytes.len() - cut;
        for tail in [vec![], vec![0; rest], vec![0xa5; rest]] {
            let mut torn = bytes[..cut].to_vec();
            torn.extend_from_slice(&tail);
            fs::write(&path, &torn).unwrap();
            let (journal, found, replay) = replayed(&path).unwrap();
            assert_eq!(found, records()[..whole], "cut at {cut}");
            assert_eq!(replay.torn_bytes as usize, torn.len() - ends[whole]);
            assert_eq!(journal.synced_bytes() as usize, ends[whole]);
            journal.append_blocking(soon(), b"next").unwrap();
            drop(journal);
            let (_, found, replay) = replayed(&path).unwrap();
            assert_eq!(found.len(), whole + 1);
            assert_eq!(found.last().unwrap(), b"next");
            assert_eq!(replay.torn_bytes, 0);
        }
    }
}

#[test]
fn flipped_bit_ends_the_journal_before_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let (bytes, ends) = unsynced(directory.path());
    let path = directory.path().join("flipped");
    for at in ends[0]..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).unwrap();
        let whole = ends.iter().filter(|end| **end <= at).count() - 1;
        let (_, found, _) = replayed(&path).unwrap();
        assert_eq!(found, records()[..whole], "flipped at {at}");
    }
}

#[test]
fn loss_of_fsynced_records_is_damage_and_not_a_torn_tail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("synced");
    let (journal, ..) = replayed(&path).unwrap();
    for record in records() {
        journal.append_blocking(soon(), &record).unwrap();
    }
    journal.sync_blocking(soon()).unwrap();
    assert_eq!(journal.synced_bytes(), journal.len_bytes());
    drop(journal);
    let (journal, ..) = replayed(&path).unwrap();
    drop(journal);
    let bytes = fs::read(&path).unwrap();
    for cut in format::HEADER_BYTES..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let error = replayed(&path).unwrap_err();
        assert!(error.to_string().contains("were fsynced"), "{error}");
        // The file stays unchanged, for people to look at.
        assert_eq!(fs::read(&path).unwrap(), bytes[..cut]);
        let mut flipped = bytes.clone();
        flipped[cut] ^= 4;
        fs::write(&path, &flipped).unwrap();
        replayed(&path).unwrap_err();
    }
}

#[test]
fn one_torn_slot_of_the_header_is_harmless_and_a_foreign_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (bytes, _) = unsynced(directory.path());
    let path = directory.path().join("header");
    for at in 0..format::HEADER_BYTES {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert_eq!(replayed(&path).is_ok(), at >= 16, "flipped at {at}");
    }
    let mut neither = bytes.clone();
    neither[16] ^= 1;
    neither[32] ^= 1;
    for bad in [&neither[..], b"", &bytes[..47], b"something else entirely"] {
        fs::write(&path, bad).unwrap();
        assert!(replayed(&path).is_err());
    }
}

#[test]
fn record_is_in_the_file_before_append_returns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("now");
    let (journal, ..) = replayed(&path).unwrap();
    let longest = vec![7; MAX_RECORD_BYTES];
    journal.append_blocking(soon(), &longest).unwrap();
    assert!(fs::read(&path).unwrap().ends_with(&longest));
    for bad in [vec![], vec![0; MAX_RECORD_BYTES + 1]] {
        let error = journal.append_blocking(soon(), &bad).unwrap_err();
        assert!(error.to_string().contains("record"), "{error}");
    }
    drop(journal);
    assert_eq!(replayed(&path).unwrap().1, [longest]);
}

#[test]
fn record_is_fsynced_within_a_second_without_a_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("late");
    let began = Arc::new(Mutex::new(None));
    let told = began.clone();
    let fsync = Box::new(move |file: &File| {
        *told.lock().unwrap() = Some(Instant::now());
        file.sync_data()
    });
    let (journal, _) = Journal::open_with(&path, soon(), |_| {}, fsync).unwrap();
    // The quickest of ten counts: a busy machine may run the syncer late.
    let in_time = (0..10).any(|_| {
        let appended = Instant::now();
        journal.append_blocking(soon(), b"late").unwrap();
        wait_until("the record is synced", || {
            journal.synced_bytes() == journal.len_bytes()
        });
        began.lock().unwrap().unwrap() - appended < SYNC_WITHIN
    });
    assert!(in_time, "no fsync began in time");
}

/// An fsync that waits until the flag is set.
fn gate() -> (Arc<AtomicBool>, syncer::Fsync) {
    let open = Arc::new(AtomicBool::new(false));
    let waits = open.clone();
    let fsync = Box::new(move |file: &File| {
        while !waits.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        file.sync_data()
    });
    (open, fsync)
}

#[test]
fn stalled_disk_stops_appends_once_a_record_is_a_second_late() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stalled");
    let (gate, fsync) = gate();
    let (journal, _) = Journal::open_with(&path, soon(), |_| {}, fsync).unwrap();
    let first = Instant::now();
    journal.append_blocking(soon(), b"first").unwrap();
    let mut accepted = 1;
    let refused = loop {
        let deadline = Instant::now() + Duration::from_millis(50);
        match journal.append_blocking(deadline, b"more") {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(first.elapsed() < Duration::from_secs(20));
    };
    assert!(first.elapsed() >= SYNC_WITHIN);
    assert!(matches!(refused, StateError::Stalled { begun: false, .. }));
    let sync = journal.sync_blocking(Instant::now() + Duration::from_millis(50));
    assert!(matches!(sync, Err(StateError::Stalled { .. })));
    gate.store(true, Ordering::Relaxed);
    journal.append_blocking(soon(), b"again").unwrap();
    drop(journal);
    assert_eq!(replayed(&path).unwrap().1.len(), accepted + 1);
}

#[test]
fn failed_fsync_is_not_tried_again_and_stops_the_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fails");
    let fsync = Box::new(|_: &File| Err(std::io::Error::other("the disk is gone")));
    let (journal, _) = Journal::open_with(&path, soon(), |_| {}, fsync).unwrap();
    journal.append_blocking(soon(), b"one").unwrap();
    let error = journal.sync_blocking(soon()).unwrap_err();
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    let error = journal.append_blocking(soon(), b"two").unwrap_err();
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    assert!(journal.synced_bytes() < journal.len_bytes());
    // The lock is released nevertheless.
    drop(journal);
    assert_eq!(replayed(&path).unwrap().1, [b"one"]);
}

#[test]
fn second_opener_gets_the_name_of_the_holder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("both");
    let (journal, ..) = replayed(&path).unwrap();
    let deadline = Instant::now() + Duration::from_millis(100);
    let error = Journal::open(&path, deadline, |_| {}).unwrap_err();
    assert!(error.is_locked(), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()));
    drop(journal);
    replayed(&path).unwrap();
}

#[test]
fn rewritten_journal_holds_the_new_records_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rewritten");
    let (journal, ..) = replayed(&path).unwrap();
    for record in records() {
        journal.append_blocking(soon(), &record).unwrap();
    }
    let error = journal.rewrite(soon(), &[b"good", b""]).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
    journal.rewrite(soon(), &[b"a", b"b"]).unwrap();
    assert_eq!(journal.synced_bytes(), journal.len_bytes());
    journal.append_blocking(soon(), b"c").unwrap();
    journal.sync_blocking(soon()).unwrap();
    drop(journal);
    assert_eq!(replayed(&path).unwrap().1, [b"a", b"b", b"c"]);
}

#[tokio::test]
async fn append_that_is_abandoned_at_its_deadline_is_never_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("abandoned");
    let (gate, fsync) = gate();
    let (journal, _) = Journal::open_with(&path, soon(), |_| {}, fsync).unwrap();
    journal.append(soon(), b"first".to_vec()).await.unwrap();
    tokio::time::sleep(SYNC_WITHIN).await;
    let deadline = Instant::now() + Duration::from_millis(100);
    let late = journal.append(deadline, b"late".to_vec()).await;
    assert!(matches!(
        late,
        Err(StateError::Stalled { begun: false, .. })
    ));
    // The same for a future that is dropped.
    let dropped = journal.append(soon(), b"dropped".to_vec());
    let dropped = tokio::time::timeout(Duration::from_millis(100), dropped).await;
    assert!(dropped.is_err());
    gate.store(true, Ordering::Relaxed);
    journal.append(soon(), b"second".to_vec()).await.unwrap();
    journal.sync(soon()).await.unwrap();
    drop(journal);
    assert_eq!(replayed(&path).unwrap().1, [&b"first"[..], b"second"]);
}
