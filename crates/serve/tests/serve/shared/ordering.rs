//! Entries, marks, Attests and asks through the server; deliveries; what comes after a reconnect and a restart.

use std::time::Duration;

use serve::shared::limits;
use share_server::host::{Host, HostOptions};
use trust_shared::entry::Prefix;
use trust_shared::note::Note;
use wire::shared::link::{Link, LinkError};
use wire::shared::{OTHER_LOG, REPLACED, RESTORED, SentLeaf};

use super::device::{Device, connect, has, link_options, soon};
use super::volume::{
    Running, directory, founder, key, options, orderer, policy, policy_named, serve,
};

#[tokio::test]
async fn entry_is_delivered_to_its_author_and_to_the_others() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada.admit(&[key(10)]).await;
    let mut bob = Device::start(&server.address, key(10)).await;
    bob.until(|delivery| !delivery.more && delivery.from > 0 || !delivery.leaves.is_empty())
        .await;
    bob.begin().await;
    let (entry, body) = ada.entry(Vec::new());
    let own = ada.order(&entry, Some(&body)).await;
    let theirs = bob.until(|delivery| has(delivery, entry.hash())).await;
    let bodies = |leaves: &[SentLeaf]| {
        let found = leaves.iter().find_map(|leaf| match leaf {
            SentLeaf::Entry { entry: one, body } if one.hash() == entry.hash() => body.clone(),
            _ => None,
        });
        found.unwrap()
    };
    assert_eq!(bodies(&own.leaves), body);
    assert_eq!(bodies(&theirs.leaves), body);
    server.stop().await;
}

#[tokio::test]
async fn volumes_at_one_address_have_logs_of_their_own() {
    let (one, two) = (directory(), tempfile::tempdir().unwrap());
    let (other, genesis) = policy_named("another");
    Host::create(two.path(), &genesis, &orderer().public(), 16 << 20).unwrap();
    let server = Running::start_all(&[one.path(), two.path()], options(), limits());
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    assert_eq!(ada.note.as_ref().unwrap().note().log.size, 1);
    // The same device is the founder of the other volume, too.
    let (me, key) = (founder(), orderer().public());
    let options = link_options();
    let connected = Link::connect(&server.address, other, &key, Some(&me), &options);
    let (link, mut pushes) = connected.await.unwrap();
    link.open(None).unwrap();
    let delivery = soon(pushes.next()).await.unwrap();
    delivery.note.verify(other, &key).unwrap();
    assert_eq!(delivery.note.note().log.size, 0);
    server.stop().await;
}

#[tokio::test]
async fn mark_comes_with_its_proof() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    for seed in 1..5 {
        soon(ada.mark(seed)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn asked_device_is_told_and_its_attest_reaches_the_others() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada.admit(&[key(10)]).await;
    let mut bob = Device::start(&server.address, key(10)).await;
    bob.until(|delivery| !delivery.more).await;
    bob.begin().await;
    ada.link.ask(&bob.device()).unwrap();
    bob.until(|delivery| delivery.asked).await;
    let attest = bob.attest();
    bob.link.attest(&attest).unwrap();
    let told = ada.until(|delivery| !delivery.attests.is_empty()).await;
    assert_eq!(told.attests, [attest]);
    server.stop().await;
}

#[tokio::test]
async fn device_without_news_gets_heartbeats_as_long_as_it_takes_them() {
    let options = HostOptions {
        heartbeat: Duration::from_secs(1),
        ..options()
    };
    let dir = directory();
    let server = Running::start(dir.path(), options, limits());
    let mut ada = Device::start(&server.address, founder()).await;
    // Longer than the silence that a client accepts.
    for _ in 0..5 {
        let beat = ada.take().await;
        assert!(beat.leaves.is_empty());
    }
    server.stop().await;
}

#[tokio::test]
async fn session_goes_on_after_a_reconnect_and_after_a_restart() {
    let (dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada.write(Vec::new()).await;
    let before = ada.prefix();
    // Lost with the connection: the same bytes again have the same place.
    let (entry, body) = ada.entry(Vec::new());
    ada.link.entry(&entry, Some(&body)).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    ada.reconnect(&server.address).await;
    ada.order(&entry, Some(&body)).await;
    let after = ada.prefix();
    assert!(after.size == before.size + 1);
    server.stop().await;
    let again = Running::start(dir.path(), options(), limits());
    ada.reconnect(&again.address).await;
    ada.write(Vec::new()).await;
    let mut fresh = Device::start(&again.address, founder()).await;
    fresh
        .until(|delivery| delivery.note.note().log.size > after.size)
        .await;
    assert_eq!(fresh.prefix(), ada.prefix());
    again.stop().await;
}

#[tokio::test]
async fn long_log_comes_in_pages_at_the_pace_of_the_device() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    // More pages than the window has.
    for _ in 0..1500 {
        let (entry, body) = ada.entry(Vec::new());
        ada.order(&entry, Some(&body)).await;
    }
    let size = ada.prefix().size;
    let mut late = Device::start(&server.address, founder()).await;
    let mut pages = 0;
    while late.prefix().size < size {
        let page = late.take().await;
        assert!(page.leaves.len() <= 256);
        pages += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(pages >= 6, "{pages}");
    assert_eq!(late.prefix(), ada.prefix());
    let some = late.link.leaves(3, 10).await.unwrap();
    assert_eq!(some.len(), 10);
    let rest = late.link.leaves(size - 1, 200).await.unwrap();
    assert_eq!(rest.len(), 1);
    assert_eq!(late.link.leaves(size + 5, 1).await.unwrap(), []);
    let bodies = late.link.bodies(&[0, 1, 2, size + 9]).await.unwrap();
    assert_eq!(bodies.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2]);
    server.stop().await;
}

#[tokio::test]
async fn second_connection_of_a_device_ends_the_first() {
    let (_dir, server) = serve();
    let mut first = Device::start(&server.address, founder()).await;
    first.take().await;
    let mut second = Device::start(&server.address, founder()).await;
    let ended = soon(async {
        loop {
            if let Err(ended) = first.pushes.next().await {
                break ended;
            }
        }
    });
    assert_eq!(ended.await.code(), Some(REPLACED));
    second.begin().await;
    server.stop().await;
}

async fn opened_with(server: &Running, point: Prefix, by: &trust::key::SecretKey) -> LinkError {
    let (volume, _) = policy();
    let note = Note {
        log: point.in_epoch(0),
        time_ms: 1,
    };
    let (link, mut pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    link.open(Some(&note.sign(volume, by))).unwrap();
    soon(pushes.next()).await.unwrap_err()
}

#[tokio::test]
async fn note_of_another_log_is_refused_and_one_of_a_longer_log_stops_the_server() {
    let (_dir, server) = serve();
    let beyond = Prefix {
        size: 1000,
        root: [1; 32],
    };
    let ended = opened_with(&server, beyond, &key(9)).await;
    assert_eq!(ended.code(), Some(OTHER_LOG));
    let ended = opened_with(&server, beyond, &orderer()).await;
    assert_eq!(ended.code(), Some(RESTORED));
    let refused = connect(&server.address, Some(&founder())).await.err();
    assert_eq!(refused.unwrap().code(), Some(RESTORED));
    server.stop().await;
}

#[tokio::test]
async fn server_that_stops_says_so() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    ada.take().await;
    let stopping = server.stop();
    let watching = async {
        loop {
            if let Err(ended) = ada.pushes.next().await {
                break ended;
            }
        }
    };
    let (ended, ()) = tokio::join!(soon(watching), stopping);
    assert_eq!(ended.code(), Some(wire::refusal::ErrorCode::STOPPING));
}
