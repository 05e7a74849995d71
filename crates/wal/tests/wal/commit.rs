//! Group commit: threads and futures that share syncs, and waiting for space.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use wal::{AppendError, Log, LogError};

use crate::volume::{Hooked, ONE, TWO, device, machine, open, open_at, record, seeds};

/// What the device of [`slow`] counts, and what it is told.
#[derive(Default)]
struct Slow {
    syncs: AtomicU64,
    panics: AtomicBool,
}

/// A log on a device that takes time for a sync, and panics when it is told to.
fn slow(machine: &sim::device::Machine) -> (Arc<Slow>, Arc<Log>) {
    let slow = Arc::<Slow>::default();
    let told = slow.clone();
    let hooked = Hooked {
        before_sync: Box::new(move || {
            told.syncs.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(2));
            assert!(!told.panics.load(Ordering::SeqCst), "told to panic");
        }),
        ..Hooked::new(device(machine))
    };
    let opened = open(&(Arc::new(hooked) as _));
    let log = Arc::new(opened.unwrap().finish(&[]).unwrap());
    slow.syncs.store(0, Ordering::SeqCst);
    (slow, log)
}

/// Appends when there is room in the window.
fn append(log: &Log, seed: u64) -> wal::Lsn {
    loop {
        match log.append(&[(ONE, record(seed, 1))]) {
            Ok(appended) => return appended.end,
            Err(AppendError::Unsynced { .. }) => drop(log.flush(log.end()).wait()),
            Err(error) => panic!("{error}"),
        }
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives futures on this thread until all are ready.
fn block_on<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut ready = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !futures.is_empty() {
        assert!(
            Instant::now() < deadline,
            "{} futures are not ready",
            futures.len()
        );
        let before = futures.len();
        futures.retain_mut(
            |future| match std::pin::Pin::new(future).poll(&mut context) {
                Poll::Ready(output) => {
                    ready.push(output);
                    false
                }
                Poll::Pending => true,
            },
        );
        if futures.len() == before {
            thread::park_timeout(Duration::from_secs(1));
        }
    }
    ready
}

#[test]
fn threads_share_syncs() {
    let machine = machine(1024);
    let (slow, log) = slow(&machine);
    let (threads, each) = (8, 25);
    let begin = Arc::new(Barrier::new(threads));
    let workers: Vec<_> = (0..threads as u64)
        .map(|worker| {
            let (log, begin) = (Arc::clone(&log), Arc::clone(&begin));
            thread::spawn(move || {
                begin.wait();
                for n in 0..each {
                    let end = append(&log, worker * 100 + n);
                    assert!(log.flush(end).wait().unwrap().lsn >= end);
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    let commits = threads as u64 * each;
    let syncs = slow.syncs.load(Ordering::SeqCst);
    assert!(syncs * 2 < commits, "{syncs} syncs for {commits} commits");
    assert_eq!(log.durable().lsn, log.end());
    drop(log);
    let mut found = seeds(&open_at(&machine).unwrap(), ONE);
    found.sort_unstable();
    let all = (0..threads as u64).flat_map(|worker| (0..each).map(move |n| worker * 100 + n));
    assert_eq!(found, all.collect::<Vec<_>>());
}

#[test]
fn one_commit_is_one_write_and_one_sync_for_both_clients() {
    let machine = machine(64);
    let log = open_at(&machine).unwrap().finish(&[]).unwrap();
    for seed in 0..3 {
        log.append(&[(ONE, record(seed, 1)), (TWO, record(seed, 2))])
            .unwrap();
    }
    let before = machine.operations();
    log.flush(log.end()).wait().unwrap();
    assert_eq!(machine.operations() - before, 2);
    log.flush(log.end()).wait().unwrap();
    assert_eq!(
        machine.operations() - before,
        2,
        "what is durable costs nothing"
    );
}

#[test]
fn futures_share_syncs_and_are_woken() {
    let machine = machine(1024);
    let (slow, log) = slow(&machine);
    let futures: Vec<_> = (0..50).map(|seed| log.flush(append(&log, seed))).collect();
    let marks = block_on(futures);
    assert_eq!(marks.len(), 50);
    assert!(marks.into_iter().all(|mark| mark.is_ok()));
    assert_eq!(log.durable().lsn, log.end());
    assert!(slow.syncs.load(Ordering::SeqCst) < 10);
    let late = log.flush(append(&log, 50));
    drop(log);
    assert!(block_on(vec![late])[0].is_ok(), "a future outlives the log");
    assert_eq!(seeds(&open_at(&machine).unwrap(), ONE).len(), 51);
}

#[test]
fn futures_and_threads_learn_of_a_failure() {
    use sim::device::{Fault, Lie};
    let machine = machine(64);
    let (_, log) = slow(&machine);
    device(&machine).inject(Fault::always(Lie::SyncFails));
    let end = append(&log, 1);
    let thread = {
        let log = Arc::clone(&log);
        thread::spawn(move || log.flush(end).wait())
    };
    let futures = (0..3).map(|_| log.flush(end)).collect();
    for failed in block_on(futures) {
        assert!(matches!(failed, Err(LogError::Failed { .. })));
    }
    assert!(matches!(
        thread.join().unwrap(),
        Err(LogError::Failed { .. })
    ));
}

#[test]
fn panic_of_a_device_fails_the_log_and_leaves_nobody_waiting() {
    let machine = machine(64);
    let (slow, log) = slow(&machine);
    let end = append(&log, 1);
    slow.panics.store(true, Ordering::SeqCst);
    let waits: Vec<_> = (0..4)
        .map(|_| {
            let log = Arc::clone(&log);
            thread::spawn(move || log.flush(end).wait())
        })
        .collect();
    let mut panics = 0;
    for wait in waits {
        match wait.join() {
            Ok(failed) => assert!(matches!(failed, Err(LogError::Failed { .. }))),
            Err(_) => panics += 1,
        }
    }
    assert_eq!(panics, 1, "the thread that commits panics itself");
}
