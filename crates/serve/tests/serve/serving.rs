//! `RemoteStore` against `Server`: honest clients.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serve::mirror::Options;
use serve::net::Limits;
use sim::random::noise;
use sim::time::eventually;
use store::{BlockStore, Replica, StoreError};
use trust::statement::VolumeId;
use trust::{Handle, Record};
use wire::{ObjectName, RemoteStore};

use crate::support::{Running, SEGMENT, TestReader, VOLUME, patient, record};

fn some_records(count: u64, len: usize) -> Vec<Record> {
    (0..count).map(|n| record(n, len)).collect()
}

fn same(got: &[Record], expected: &[Record]) {
    let by = |r: &[Record]| {
        let mut r = r.to_vec();
        r.sort_by_key(|r| r.handle);
        r
    };
    assert_eq!(by(got), by(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_and_blocks_come_as_they_lie() {
    let records = some_records(300, 900);
    let server = Running::start(Arc::new(TestReader::new(&records)), Limits::default());
    let store = server.store();
    assert_eq!(&store.head().await.unwrap()[..], b"head 1");
    let mut want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    want.push(Handle::from_bytes([0xaa; 32]));
    want.push(want[0]);
    same(&store.get_many(&want, 0).await.unwrap(), &records);
    assert!(store.get_many(&[], 0).await.unwrap().is_empty());
    let none = [Handle::from_bytes([1; 32])];
    assert!(store.get_many(&none, 1 << 20).await.unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn neighbouring_records_come_after_the_wanted_ones() {
    let records = some_records(200, 900);
    let server = Running::start(Arc::new(TestReader::new(&records)), Limits::default());
    let store = server.store();
    // As many as fit into one request, and more.
    for (count, around) in [(1, 5000), (64, 5000), (150, 150_000)] {
        let wanted = &records[10..10 + count];
        let want: Vec<Handle> = wanted.iter().map(|r| r.handle).collect();
        let got = store.get_many(&want, around).await.unwrap();
        same(&got[..count], wanted);
        let unasked: usize = got[count..].iter().map(Record::len).sum();
        assert!(got.len() > count && unasked <= around, "{count}");
        let different: HashSet<Handle> = got.iter().map(|r| r.handle).collect();
        assert_eq!(different.len(), got.len());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_longer_than_a_slice_come_whole_from_memory_and_from_disk() {
    let records = some_records(24, 1 << 20);
    let shelf = Arc::new(TestReader::new(&records));
    let server = Running::start(Arc::clone(&shelf), Limits::default());
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    for cold in [false, true] {
        shelf.cold.store(cold, Ordering::Relaxed);
        same(
            &server.store().get_many(&want, 1 << 20).await.unwrap(),
            &records,
        );
    }
    eventually("nothing is held", || {
        server.counters.net.held_bytes.get() == 0
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_disk_does_not_delay_blocks_in_memory() {
    let records = some_records(40, 500);
    let shelf = Arc::new(TestReader::new(&records));
    let server = Running::start(Arc::clone(&shelf), Limits::default());
    let store = Arc::new(server.store());
    store.head().await.unwrap();
    shelf.cold.store(true, Ordering::Relaxed);
    shelf.held.store(true, Ordering::SeqCst);
    let slow: Vec<_> = (0..10)
        .map(|n| {
            let (store, handle) = (Arc::clone(&store), records[n].handle);
            tokio::spawn(async move { store.get_many(&[handle], 0).await.unwrap().len() })
        })
        .collect();
    // Side by side, not one after the other.
    let waiting = || shelf.waiting.load(Ordering::SeqCst);
    eventually("ten reads wait", || waiting() == 10).await;
    store.head().await.unwrap();
    assert_eq!(waiting(), 10);
    shelf.held.store(false, Ordering::SeqCst);
    for task in slow {
        assert_eq!(task.await.unwrap(), 1);
    }
    server.stop().await;
}

#[tokio::test]
async fn ranges_of_objects_are_served_and_missing_names_are_none() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    let store = server.store();
    let whole = noise(99, 300_000);
    let got = store.range(SEGMENT, 1000, 5000).await.unwrap().unwrap();
    assert_eq!(got, whole[1000..6000]);
    let end = store.range(SEGMENT, 299_000, 5000).await.unwrap().unwrap();
    assert_eq!(end, whole[299_000..]);
    assert!(
        store
            .range(SEGMENT, u64::MAX, 10)
            .await
            .unwrap()
            .unwrap()
            .is_empty()
    );
    assert_eq!(store.range(ObjectName::Format, 0, 10).await.unwrap(), None);
    server.stop().await;
}

#[tokio::test]
async fn an_unknown_volume_is_reported_as_such() {
    let server = Running::start(Arc::new(TestReader::new(&[])), Limits::default());
    let address = server.address.to_string();
    let store = RemoteStore::new(&address, VolumeId::from_bytes([8; 32]), patient());
    assert!(matches!(
        store.head().await,
        Err(StoreError::NoVolume { .. })
    ));
    let want = [Handle::from_bytes([1; 32])];
    let got = store.get_many(&want, 0).await;
    assert!(matches!(got, Err(StoreError::NoVolume { .. })));
    assert_eq!(server.counters.no_volume.get(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_broken_disk_is_unavailable_and_reports_no_paths() {
    let records = some_records(1, 100);
    let shelf = Arc::new(TestReader::new(&records));
    shelf.broken.store(true, Ordering::Relaxed);
    let server = Running::start(shelf, Limits::default());
    let store = server.store();
    let error = store.get_many(&[records[0].handle], 0).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }));
    assert!(!error.to_string().contains("secret"), "{error}");
    // The connection stays open.
    store.head().await.unwrap();
    assert_eq!(server.counters.net.accepted.get(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_new_head_is_served_without_restart() {
    let shelf = Arc::new(TestReader::new(&[]));
    let options = Options {
        refresh: Duration::from_secs(3600),
        ..Options::default()
    };
    let server = Running::start_with(Arc::clone(&shelf), Limits::default(), options);
    let store = server.store();
    assert_eq!(&store.head().await.unwrap()[..], b"head 1");
    shelf.publish(b"head 2");
    server.refresher.refresh();
    eventually("the new head is there", || {
        server.counters.new_heads.get() == 1
    })
    .await;
    assert_eq!(&store.head().await.unwrap()[..], b"head 2");
    server.stop().await;
}

#[tokio::test]
async fn a_client_reconnects_after_a_restart() {
    let shelf = Arc::new(TestReader::new(&[]));
    // Still free for the second server.
    let own = ([127, 0, 0, 1], sim::port::own()).into();
    let server = Running::start_at(
        own,
        Arc::clone(&shelf),
        Limits::default(),
        Options::default(),
    );
    let store = server.store();
    store.head().await.unwrap();
    let address = server.address;
    server.stop().await;
    let error = store.head().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
    let shelf: Arc<dyn serve::mirror::RepositoryReader> = shelf;
    let again = serve::mirror::Server::listen(
        address,
        vec![(VOLUME, shelf)],
        Limits::default(),
        Options::default(),
    )
    .unwrap();
    let task = tokio::spawn(again.run(std::future::pending()));
    let began = Instant::now();
    while store.head().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_lets_answers_under_way_finish() {
    let records = some_records(1, 100);
    let shelf = Arc::new(TestReader::new(&records));
    shelf.cold.store(true, Ordering::Relaxed);
    shelf.disk_ms.store(300, Ordering::Relaxed);
    let server = Running::start(shelf, Limits::default());
    let (store, handle) = (Arc::new(server.store()), records[0].handle);
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.get_many(&[handle], 0).await })
    };
    eventually("the read is under way", || {
        server.counters.disk_reads.get() == 1
    })
    .await;
    server.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_one_connection() {
    let records = some_records(500, 3000);
    let server = Running::start(Arc::new(TestReader::new(&records)), Limits::default());
    let store = Arc::new(server.store());
    let tasks: Vec<_> = (0..64)
        .map(|t: usize| {
            let (store, records) = (Arc::clone(&store), records.clone());
            tokio::spawn(async move {
                for n in 0..50 {
                    let record = &records[(t * 31 + n * 7) % records.len()];
                    let got = store.get_many(&[record.handle], 0).await.unwrap();
                    assert_eq!(got, std::slice::from_ref(record));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(server.counters.net.accepted.get(), 1);
    let different: HashSet<_> = records.iter().map(|r| r.handle).collect();
    assert_eq!(different.len(), 500);
    server.stop().await;
}

#[tokio::test]
async fn cancelled_callers_do_not_disturb_the_next() {
    let records = some_records(64, 100_000);
    let server = Running::start(Arc::new(TestReader::new(&records)), Limits::default());
    let store = server.store();
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    for wait_us in (0..5000).step_by(500) {
        let call = store.get_many(&want, 0);
        let _ = tokio::time::timeout(Duration::from_micros(wait_us), call).await;
    }
    same(&store.get_many(&want, 0).await.unwrap(), &records);
    assert_eq!(server.counters.net.accepted.get(), 1);
    server.stop().await;
}

#[tokio::test]
async fn repeated_requests_need_no_disk_unless_the_cache_is_off() {
    for (response_cache_bytes, stays) in [(4 << 20, true), (0, false)] {
        let records = some_records(3, 900);
        let shelf = Arc::new(TestReader::new(&records));
        let options = Options {
            response_cache_bytes,
            ..Options::default()
        };
        let server = Running::start_with(shelf.clone(), Limits::default(), options);
        let store = server.store();
        let want = [records[1].handle];
        same(&store.get_many(&want, 0).await.unwrap(), &records[1..2]);
        same(&store.get_many(&want, 2000).await.unwrap(), &records[1..]);
        let absent = [Handle::from_bytes([1; 32])];
        assert!(store.get_many(&absent, 0).await.unwrap().is_empty());
        shelf.broken.store(true, Ordering::Relaxed);
        let again = store.get_many(&want, 0).await;
        let around = store.get_many(&want, 2000).await;
        // Blocks that do not exist, and requests of another form, still need the disk.
        assert!(store.get_many(&absent, 0).await.is_err());
        assert!(store.get_many(&want, 1000).await.is_err());
        assert_eq!((again.is_ok(), around.is_ok()), (stays, stays));
        if stays {
            same(&again.unwrap(), &records[1..2]);
            same(&around.unwrap(), &records[1..]);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_request_never_gets_bytes_of_another_volume() {
    let honest = record(1, 900);
    let liar = Record {
        handle: honest.handle,
        frame: record(2, 900).frame,
    };
    let shelf = |r: &Record| -> Arc<dyn serve::mirror::RepositoryReader> {
        Arc::new(TestReader::new(std::slice::from_ref(r)))
    };
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let shelves = vec![
        (VolumeId::from_bytes([1; 32]), shelf(&honest)),
        (VolumeId::from_bytes([2; 32]), shelf(&liar)),
    ];
    let server =
        serve::mirror::Server::listen(any, shelves, Limits::default(), Options::default()).unwrap();
    let address = server.local_addr().to_string();
    let task = tokio::spawn(server.run(std::future::pending()));
    for (volume, expected) in [(2, &liar), (1, &honest), (2, &liar)] {
        let store = wire::RemoteStore::new(&address, VolumeId::from_bytes([volume; 32]), patient());
        let got = store.get_many(&[honest.handle], 0).await.unwrap();
        assert_eq!(got, std::slice::from_ref(expected));
    }
    task.abort();
}
