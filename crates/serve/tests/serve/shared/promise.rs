//! The server orders an entry only after the blocks that its device stored or asked for before it (shared-protocol.md,
//! *Blocks before an entry*), in whatever order a client sends them.

use std::collections::BTreeSet;

use bytes::Bytes;
use sim::random::Random;
use trust::{Handle, Record};
use trust_shared::entry::SignedEntry;
use wire::shared::WRONG_BLOCK;

use super::device::{Device, has};
use super::volume::{Running, block, founder, serve};

async fn begun(server: &Running) -> Device {
    let mut ada = Device::start(&server.address, founder()).await;
    ada.begin().await;
    ada
}

/// A block under a name that is not its own: no server takes it.
fn wrong(number: u64) -> Record {
    let handle = Handle::from_bytes([number as u8; 32]);
    let frame = block(number, 1000).frame;
    Record { handle, frame }
}

/// What became of an entry: whether it is in the log. Otherwise the server has said that blocks are missing.
async fn outcome(device: &mut Device, entry: &SignedEntry) -> bool {
    let hash = entry.hash();
    let told = device.until(|delivery| has(delivery, hash) || delivery.unstored == Some(hash));
    let told = told.await;
    assert_eq!(told.refused, None);
    has(&told, hash)
}

async fn send(device: &mut Device, (entry, body): &(SignedEntry, Bytes)) -> bool {
    device.link.entry(entry, Some(body)).unwrap();
    outcome(device, entry).await
}

#[tokio::test]
async fn blocks_and_their_entry_travel_together() {
    let (_dir, server) = serve();
    let mut ada = begun(&server).await;
    for round in 0..20 {
        let blocks: Vec<Record> = (0..30).map(|n| block(100 * round + n, 20_000)).collect();
        let (entry, body) = ada.entry(Vec::new());
        let link = ada.link.clone();
        // They are polled in this order, so they are written in this order.
        let (one, two, three, sent) = tokio::join!(
            link.store(&blocks[..10]),
            link.pstore(&blocks[10..20]),
            link.store(&blocks[20..]),
            async { link.entry(&entry, Some(&body)) }
        );
        sent.unwrap();
        assert!(one.is_ok() && two.is_ok() && three.is_ok());
        assert!(outcome(&mut ada, &entry).await);
        let handles: Vec<Handle> = blocks.iter().map(|block| block.handle).collect();
        assert!(!link.cstore(&handles).await.unwrap().contains(&false));
    }
    server.stop().await;
}

#[tokio::test]
async fn entry_after_a_refused_store_costs_another_try_and_nothing_else() {
    let (_dir, server) = serve();
    let mut ada = begun(&server).await;
    let it = ada.entry(Vec::new());
    let link = ada.link.clone();
    let blocks = [block(1, 1000), wrong(2)];
    let (stored, sent) = tokio::join!(link.store(&blocks), async {
        link.entry(&it.0, Some(&it.1))
    });
    sent.unwrap();
    assert_eq!(stored.unwrap_err().code(), Some(WRONG_BLOCK));
    let before = ada.prefix().size;
    assert!(!outcome(&mut ada, &it.0).await);
    assert_eq!(ada.prefix().size, before, "it is not in the log");
    // The device knows now. The same bytes can be ordered, with or without the block.
    assert!(send(&mut ada, &it).await);
    // It may have its place before its blocks are stored again over another connection.
    ada.reconnect(&server.address).await;
    let link = ada.link.clone();
    assert!(link.pstore(&blocks).await.is_err());
    link.entry(&it.0, Some(&it.1)).unwrap();
    let next = ada.entry(Vec::new());
    assert!(!send(&mut ada, &next).await, "nobody was told yet");
    assert!(send(&mut ada, &next).await);
    ada.mark(9).await;
    server.stop().await;
}

#[tokio::test]
async fn resume_and_each_kind_of_request_for_blocks_are_meant() {
    let (_dir, server) = serve();
    let mut ada = Device::start(&server.address, founder()).await;
    let link = ada.link.clone();
    assert_eq!(link.cstore(&[block(1, 900).handle]).await.unwrap(), [false]);
    let resume = ada.resume();
    link.entry(&resume, None).unwrap();
    assert!(!outcome(&mut ada, &resume).await);
    link.entry(&resume, None).unwrap();
    assert!(outcome(&mut ada, &resume).await);
    for kind in 0..3 {
        let it = ada.entry(Vec::new());
        match kind {
            0 => assert!(link.pstore(&[wrong(3)]).await.is_err()),
            1 => assert!(link.store(&[wrong(4)]).await.is_err()),
            _ => drop(link.cstore(&[wrong(5).handle]).await.unwrap()),
        }
        assert!(!send(&mut ada, &it).await, "{kind}");
        assert!(send(&mut ada, &it).await, "{kind}");
    }
    // What was asked for and is stored then is there; blocks that are only read are not meant.
    let (asked, read) = (block(6, 900), block(7, 900));
    assert_eq!(link.cstore(&[asked.handle]).await.unwrap(), [false]);
    assert_eq!(link.retrieve(&[read.handle]).await.unwrap(), []);
    link.store(&[asked]).await.unwrap();
    let it = ada.entry(Vec::new());
    assert!(send(&mut ada, &it).await);
    server.stop().await;
}

/// Any order of stores, refused stores, questions and entries: an entry is ordered if and only if nothing that came
/// before it is missing and untold.
#[tokio::test]
async fn any_order_of_messages_has_the_outcome_of_the_rule() {
    let (_dir, server) = serve();
    let mut ada = begun(&server).await;
    let link = ada.link.clone();
    let (mut random, mut missing, mut refusals) = (Random::new(5), BTreeSet::new(), 0);
    let mut waiting = ada.entry(Vec::new());
    for _ in 0..400 {
        let number = random.below(6);
        match random.below(5) {
            0 => {
                link.store(&[block(number, 500)]).await.unwrap();
                missing.remove(&block(number, 500).handle);
            }
            1 => {
                assert!(link.store(&[wrong(number)]).await.is_err());
                missing.insert(wrong(number).handle);
            }
            2 => {
                let handle = block(number, 500).handle;
                match link.cstore(&[handle]).await.unwrap()[0] {
                    true => missing.remove(&handle),
                    false => missing.insert(handle),
                };
            }
            _ => {
                let ordered = send(&mut ada, &waiting).await;
                assert_eq!(ordered, missing.is_empty());
                missing.clear();
                refusals += u32::from(!ordered);
                if ordered {
                    waiting = ada.entry(Vec::new());
                }
            }
        }
    }
    assert!(refusals > 20, "{refusals}");
    server.stop().await;
}
