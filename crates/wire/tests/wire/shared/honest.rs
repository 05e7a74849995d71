//! What a link does with an honest server: many callers at once, deliveries at the caller's pace, deadlines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use store::{BlockSink, BlockStore};
use tokio::sync::Notify;
use trust::frame::Packer;
use trust::handle::{Hasher, Kind};
use trust::{Handle, Record};
use trust_shared::mark::Nonce;
use wire::refusal::put_error;
use wire::shared::answer::encode_have;
use wire::shared::link::{LinkError, LinkOptions};
use wire::shared::request::{Slot, Step};
use wire::shared::{FULL, NOT_MEMBER, Request, SESSION_ID, WINDOW, kind};

use super::peer::{
    Peer, connect, heartbeat, impatient, linked, linked_with, note, patient, server, terms,
};

fn record(bytes: &[u8]) -> Record {
    Record {
        handle: Hasher::new(&[0; 32]).name(Kind::Data, bytes),
        frame: Packer::new().pack(Kind::Data, bytes).unwrap(),
    }
}

/// A store of blocks in memory. It answers the second of two requests first when it has both.
async fn block_server(mut peer: Peer) {
    let mut blocks: Vec<Record> = Vec::new();
    let mut late: Option<(u8, u32, Vec<u8>)> = None;
    while let Some((kind, id, body)) = peer.recv().await {
        let answer = match Request::decode(kind, &body).unwrap() {
            Request::Store(records) | Request::Pstore(records) => {
                blocks.extend(records);
                (kind::DONE, id, Vec::new())
            }
            Request::Cstore(handles) => {
                let has = |handle: &Handle| blocks.iter().any(|r| r.handle == *handle);
                let have: Vec<bool> = handles.iter().map(has).collect();
                (kind::HAVE, id, encode_have(&have).to_vec())
            }
            Request::Retrieve(handles) => {
                for record in blocks.iter().filter(|r| handles.contains(&r.handle)) {
                    let mut found = BytesMut::new();
                    record.put(&mut found);
                    peer.send(kind::RECORDS, id, &found).await;
                }
                (kind::DONE, id, Vec::new())
            }
            _ => (kind::DONE, id, Vec::new()),
        };
        match late.take() {
            None if !peer.buffer.is_empty() => late = Some(answer),
            before => {
                for (kind, id, body) in [Some(answer), before].into_iter().flatten() {
                    peer.send(kind, id, &body).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn blocks_are_stored_found_and_given_to_the_right_caller() {
    let (link, _pushes) = linked(block_server).await;
    let records: Vec<Record> = (0..40u8).map(|n| record(&[n; 1000])).collect();
    link.put(&records).await.unwrap();
    link.flush().await.unwrap();
    let absent = Handle::from_bytes([1; 32]);
    let handles: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    let asked = [&handles[..3], &[absent, absent]].concat();
    assert_eq!(link.touch(&asked).await.unwrap(), [absent]);
    let ask = |n: usize| {
        let (link, handle) = (link.clone(), handles[n]);
        tokio::spawn(async move { link.get_many(&[handle, handle], 0).await })
    };
    let tasks: Vec<_> = (0..40).map(ask).collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap(), [records[n].clone()]);
    }
    assert_eq!(link.get_many(&[absent], 0).await.ok(), Some(Vec::new()));
    link.ping().await.unwrap();
}

#[tokio::test]
async fn large_batches_are_cut_to_what_one_message_holds() {
    let (link, _pushes) = linked(block_server).await;
    let noise = |n| sim::random::noise(n, 900_000);
    let records: Vec<Record> = (0..5).map(|n| record(&noise(n))).collect();
    link.store(&records).await.unwrap();
    let handles: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    let mut found = link.retrieve(&handles).await.unwrap();
    assert_eq!(found.len(), 5);
    found.sort_by_key(|r| handles.iter().position(|h| *h == r.handle));
    assert_eq!(found, records);
}

#[tokio::test]
async fn server_sends_as_fast_as_deliveries_are_taken() {
    let behave = |mut peer: Peer| async move {
        let (kind, id, body) = peer.recv().await.unwrap();
        assert_eq!((kind, id), (kind::OPEN, SESSION_ID));
        assert_eq!(
            Request::decode(kind, &body),
            Ok(Request::Open {
                heartbeat_ms: 10_000,
                note: Some(note(5))
            })
        );
        for size in 0..WINDOW {
            peer.send(kind::DELIVERY, 0, &heartbeat(size.into())).await;
        }
        for size in WINDOW..20 {
            let (kind, _, _) = peer.recv().await.unwrap();
            assert_eq!(kind, kind::NEXT);
            peer.send(kind::DELIVERY, 0, &heartbeat(size.into())).await;
        }
        peer.drain().await;
    };
    let (link, mut pushes) = linked_with(&impatient(), behave).await;
    link.open(Some(&note(5))).unwrap();
    // A server that has filled the window is not silent.
    tokio::time::sleep(impatient().max_silence + Duration::from_millis(500)).await;
    for size in 0..20 {
        assert_eq!(pushes.next().await.unwrap().from, size);
    }
    let began = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(60), pushes.next()).await;
    let ended = ended.expect("silence ends the link").unwrap_err();
    assert!(ended.to_string().contains("silent"), "{ended}");
    // The last heartbeat may have waited in the window for a part of the time.
    assert!(began.elapsed() >= impatient().max_silence / 4);
}

/// The silence that a client accepts is that of the heartbeats which the server says that it sends.
#[tokio::test]
async fn answer_to_open_says_how_long_a_server_may_be_silent() {
    let behave = |mut peer: Peer| async move {
        let (kind, _, body) = peer.recv().await.unwrap();
        let asked = Request::decode(kind, &body).unwrap();
        let Request::Open { heartbeat_ms, .. } = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(heartbeat_ms, 400);
        peer.send(kind::DELIVERY, 0, &heartbeat(1)).await;
        peer.send(kind::OPENED, SESSION_ID, &terms(500).encode())
            .await;
        peer.drain().await;
    };
    let options = LinkOptions {
        heartbeat: Duration::from_millis(400),
        ..patient()
    };
    let (link, mut pushes) = linked_with(&options, behave).await;
    link.open(None).unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(60), link.terms());
    assert_eq!(asked.await.unwrap(), Ok(terms(500)));
    assert_eq!(pushes.next().await.unwrap().from, 1);
    let began = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(30), pushes.next()).await;
    let ended = ended.expect("silence ends the link").unwrap_err();
    assert!(ended.to_string().contains("silent"), "{ended}");
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "three heartbeats"
    );
    assert_eq!(link.terms().await, Ok(terms(500)), "it stays known");
}

/// Each message costs both ends: the server is told of short deliveries with the client's next message, and without one
/// after a moment.
#[tokio::test]
async fn short_deliveries_that_were_taken_are_told_together() {
    let behave = |mut peer: Peer| async move {
        assert_eq!(peer.recv().await.unwrap().0, kind::OPEN);
        for size in 0..2 {
            peer.send(kind::DELIVERY, 0, &heartbeat(size)).await;
        }
        for expected in [kind::NEXT, kind::NEXT, kind::MARK] {
            assert_eq!(peer.recv().await.unwrap().0, expected);
        }
        peer.send(kind::DELIVERY, 0, &heartbeat(2)).await;
        assert_eq!(peer.recv().await.unwrap().0, kind::NEXT);
        peer.send(kind::DELIVERY, 0, &heartbeat(3)).await;
        peer.drain().await;
    };
    let (link, mut pushes) = linked(behave).await;
    link.open(None).unwrap();
    for size in 0..2 {
        assert_eq!(pushes.next().await.unwrap().from, size);
    }
    link.mark(&Nonce::from_bytes([1; 32])).unwrap();
    for size in 2..4 {
        assert_eq!(pushes.next().await.unwrap().from, size);
    }
}

#[tokio::test]
async fn messages_of_the_session_have_no_answer_and_a_refusal_ends_it() {
    let behave = |mut peer: Peer| async move {
        for expected in [kind::OPEN, kind::MARK, kind::ASK] {
            let (kind, id, _) = peer.recv().await.unwrap();
            assert_eq!((kind, id), (expected, SESSION_ID));
        }
        let mut refusal = Vec::new();
        put_error(&mut refusal, SESSION_ID, FULL, "no room");
        peer.raw(&refusal).await;
        peer.drain().await;
    };
    let (link, mut pushes) = linked(behave).await;
    link.open(None).unwrap();
    link.mark(&Nonce::from_bytes([1; 32])).unwrap();
    link.ask(&trust::device::DeviceKey::from_bytes([2; 32]))
        .unwrap();
    let ended = pushes.next().await.unwrap_err();
    assert_eq!(ended.code(), Some(FULL));
    assert_eq!(link.ping().await.unwrap_err(), ended);
    assert_eq!(link.open(None).unwrap_err(), ended);
    assert_eq!(link.ended(), Some(ended));
}

#[tokio::test]
async fn refused_request_leaves_the_link_as_it_is() {
    let behave = |mut peer: Peer| async move {
        while let Some((kind, id, _)) = peer.recv().await {
            match kind {
                kind::STORE => {
                    let mut refusal = Vec::new();
                    put_error(&mut refusal, id, FULL, "no room");
                    peer.raw(&refusal).await;
                }
                _ => peer.send(kind::DONE, id, &[]).await,
            }
        }
    };
    let (link, _pushes) = linked(behave).await;
    let full = link.put(&[record(b"block")]).await.unwrap_err();
    assert!(matches!(full, store::StoreError::Full { .. }), "{full}");
    link.ping().await.unwrap();
}

#[tokio::test]
async fn device_that_is_no_member_is_told_so() {
    let to = server(|mut peer: Peer| async move {
        peer.raw(&wire::frame::hello(wire::shared::PROTOCOL)).await;
        let mut refusal = Vec::new();
        put_error(&mut refusal, SESSION_ID, NOT_MEMBER, "who are you?");
        peer.raw(&refusal).await;
        peer.drain().await;
    })
    .await;
    let refused = connect(&to).await.err().unwrap();
    assert_eq!(refused.code(), Some(NOT_MEMBER));
}

#[tokio::test]
async fn caller_that_goes_leaves_the_link_to_the_others() {
    let asked = Arc::new(Notify::new());
    let arrives = Arc::clone(&asked);
    let behave = move |mut peer: Peer| {
        let arrives = Arc::clone(&arrives);
        async move {
            let (_, first, _) = peer.recv().await.unwrap();
            arrives.notify_one();
            let (_, second, _) = peer.recv().await.unwrap();
            let mut body = BytesMut::new();
            record(b"late").put(&mut body);
            peer.send(kind::RECORDS, first, &body).await;
            peer.send(kind::DONE, first, &[]).await;
            peer.send(kind::DONE, second, &[]).await;
            peer.drain().await;
        }
    };
    let (link, _pushes) = linked(behave).await;
    let waiting = [record(b"late").handle];
    tokio::select! {
        got = link.retrieve(&waiting) => panic!("{got:?} without an answer"),
        () = asked.notified() => {}
    }
    link.ping().await.unwrap();
    assert_eq!(link.ended(), None);
}

#[tokio::test]
async fn wait_at_the_mailbox_is_longer_than_that_of_other_requests() {
    let behave = |mut peer: Peer| async move {
        let mut asked = Vec::new();
        while let Some((kind, id, body)) = peer.recv().await {
            let Ok(Request::Take { slot, wait_ms }) = Request::decode(kind, &body) else {
                panic!("{kind:#x}");
            };
            assert_eq!(slot.step, Step::Challenge);
            asked.push(wait_ms);
            if asked.len() == 1 {
                // A server that stops waiting early is asked again.
                tokio::time::sleep(Duration::from_millis(1000)).await;
                peer.send(kind::DONE, id, &[]).await;
                continue;
            }
            assert!(asked[0] > 1400 && asked[1] <= 500, "{asked:?}");
            peer.send(kind::LETTER, id, b"challenge").await;
        }
    };
    let (link, _pushes) = linked(behave).await;
    let slot = Slot {
        invitation: [3; 16],
        step: Step::Challenge,
    };
    let letter = link.take(slot, Duration::from_millis(1500)).await.unwrap();
    assert_eq!(letter.as_deref(), Some(&b"challenge"[..]));
}

#[tokio::test]
async fn program_that_wants_no_deliveries_keeps_its_link() {
    let behave = |mut peer: Peer| async move {
        while let Some((kind, id, _)) = peer.recv().await {
            match kind {
                kind::OPEN => {
                    for size in 0..WINDOW {
                        peer.send(kind::DELIVERY, 0, &heartbeat(size.into())).await;
                    }
                }
                _ => peer.send(kind::DONE, id, &[]).await,
            }
        }
    };
    let (link, pushes) = linked_with(&impatient(), behave).await;
    drop(pushes);
    link.open(None).unwrap();
    tokio::time::sleep(impatient().max_silence + Duration::from_millis(500)).await;
    link.ping().await.unwrap();
}

#[tokio::test]
async fn dropped_link_closes_its_connection() {
    let (closed, ended) = tokio::sync::oneshot::channel();
    let closed = Arc::new(std::sync::Mutex::new(Some(closed)));
    let behave = move |mut peer: Peer| {
        let closed = closed.clone();
        async move {
            peer.drain().await;
            let closed = closed.lock().unwrap().take();
            closed.unwrap().send(()).unwrap();
        }
    };
    let (link, mut pushes) = linked(behave).await;
    let clone = link.clone();
    drop(link);
    assert_eq!(clone.ended(), None);
    drop(clone);
    tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap()
        .unwrap();
    let ended = pushes.next().await.unwrap_err();
    assert!(matches!(ended, LinkError::Unavailable { .. }));
}
