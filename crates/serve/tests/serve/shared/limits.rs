//! What holds for a device, and what happens to clients that do too much: nothing more is read of them for some time.

use std::time::{Duration, Instant};

use share_server::host::HostOptions;
use share_server::host::rate::Rate;
use trust::{Handle, Record};
use wire::shared::link::{Link, LinkOptions};
use wire::shared::terms::{MESSAGE_COST_BYTES, Pace};

use super::device::{Device, connect, link_options, soon};
use super::volume::{Running, block, directory, founder, key, options, orderer, policy};

/// A server that allows a device so many small messages in a second, and as many at once.
fn slow(messages: u64) -> (tempfile::TempDir, Running) {
    let rate = Rate {
        per_second: messages * MESSAGE_COST_BYTES,
        burst: messages * MESSAGE_COST_BYTES,
    };
    let dir = directory();
    let options = HostOptions {
        bytes: rate,
        ..options()
    };
    let server = Running::start(dir.path(), options, serve::shared::limits());
    (dir, server)
}

/// Asks so often, with many requests under way.
async fn pings(link: &Link, count: usize) {
    let ping = |_| {
        let link = link.clone();
        tokio::spawn(async move { link.ping().await.unwrap() })
    };
    let pings: Vec<_> = (0..count).map(ping).collect();
    for ping in pings {
        ping.await.unwrap();
    }
}

#[tokio::test]
async fn device_is_told_what_holds_and_gets_the_heartbeats_that_it_wishes_for() {
    let dir = directory();
    let server = Running::start(dir.path(), options(), serve::shared::limits());
    let (volume, _) = policy();
    for (wish, holds) in [(100, 250), (700, 700), (60_000, 10_000)] {
        let link_options = LinkOptions {
            heartbeat: Duration::from_millis(wish),
            ..link_options()
        };
        let (me, key) = (founder(), orderer().public());
        let connected = Link::connect(&server.address, volume, &key, Some(&me), &link_options);
        let (link, mut pushes) = connected.await.unwrap();
        link.open(None).unwrap();
        let terms = link.terms().await.unwrap();
        assert_eq!(terms.heartbeat_ms, holds);
        let given = options();
        let pace = |rate: Rate| Pace {
            per_second: rate.per_second,
            at_once: rate.burst,
        };
        let paces = (terms.bytes, terms.entries, terms.entry_bytes);
        let expected = (
            pace(given.bytes),
            pace(given.entries),
            pace(given.entry_bytes),
        );
        assert_eq!(paces, expected);
        let limits = serve::shared::limits();
        assert_eq!(
            terms.outstanding_bytes,
            limits.max_held_per_connection as u64
        );
        if holds == 10_000 {
            continue;
        }
        let began = Instant::now();
        for _ in 0..4 {
            assert!(soon(pushes.next()).await.unwrap().leaves.is_empty());
        }
        // The first is the answer to OPEN.
        assert!(began.elapsed() >= Duration::from_millis(3 * u64::from(holds) - 100));
        assert!(
            began.elapsed() < Duration::from_secs(9),
            "the server's own are slower"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn flood_of_small_messages_is_slowed_down_and_slows_nobody_else() {
    let (_dir, server) = slow(40);
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada.admit(&[key(10)]).await;
    let (ben, _pushes) = connect(&server.address, Some(&key(10))).await.unwrap();
    let link = ada.link.clone();
    let began = Instant::now();
    let flood = tokio::spawn(async move { pings(&link, 140).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    for _ in 0..10 {
        soon(ben.ping()).await.unwrap();
    }
    assert!(!flood.is_finished());
    flood.await.unwrap();
    assert!(
        began.elapsed() >= Duration::from_millis(2300),
        "{:?}",
        began.elapsed()
    );
    // Another connection of the same device goes on where that one was.
    let (again, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let began = Instant::now();
    pings(&again, 60).await;
    assert!(
        began.elapsed() >= Duration::from_millis(1000),
        "{:?}",
        began.elapsed()
    );
    // Messages without an answer, too: they are read later, and none gets lost.
    let mut ada = Device::start(&server.address, founder()).await;
    let began = Instant::now();
    for seed in 0..60 {
        ada.mark(seed).await;
    }
    assert!(
        began.elapsed() >= Duration::from_millis(1000),
        "{:?}",
        began.elapsed()
    );
    server.stop().await;
}

#[tokio::test]
async fn blocks_that_are_read_count_by_their_bytes() {
    // 8 MiB in a second, and as much at once.
    let (_dir, server) = slow(128);
    let (link, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let blocks: Vec<Record> = (0..8).map(|n| block(n, 500_000)).collect();
    link.store(&blocks).await.unwrap();
    let handles: Vec<Handle> = blocks.iter().map(|block| block.handle).collect();
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(link.retrieve(&handles).await.unwrap().len(), 8);
    }
    // 20 MB, of which the burst gives less than half.
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
    // Questions count by the names in them.
    let absent: Vec<Handle> = (0..1024).map(|n: u32| block(n.into(), 7).handle).collect();
    let began = Instant::now();
    link.cstore(&absent).await.unwrap();
    link.ping().await.unwrap();
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
    server.stop().await;
}

#[tokio::test]
async fn guest_that_floods_is_slowed_down() {
    let dir = directory();
    let server = Running::start(dir.path(), options(), serve::shared::limits());
    let (guest, _pushes) = connect(&server.address, None).await.unwrap();
    let began = Instant::now();
    pings(&guest, 2000).await;
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
    server.stop().await;
}
