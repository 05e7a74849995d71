//! Servers that stall, answer endlessly, with wrong ids, or with what was not asked for. Each call ends in time with the
//! right kind of error.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use sim::time::eventually;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use trust::device::DeviceKey;
use trust::frame::Packer;
use trust::handle::Kind;
use trust::{Handle, Record};
use trust_shared::attest::Attest;
use trust_shared::entry::Prefix;
use trust_shared::mark::Nonce;
use wire::frame::{HELLO, Header, hello};
use wire::refusal::{ErrorCode, put_error};
use wire::shared::delivery::put_attest;
use wire::shared::link::{Link, LinkError};
use wire::shared::{MAX_DELIVERY_BYTES, PROTOCOL, SESSION_ID, ServerAddress, WINDOW, kind};

use super::peer::{
    Peer, VOLUME, connect, connect_with, device, heartbeat, impatient, linked, linked_with, server,
    terms, welcome,
};

fn is_bad(error: &LinkError) -> bool {
    matches!(error, LinkError::BadAnswer { .. })
}

fn is_unavailable(error: &LinkError) -> bool {
    matches!(error, LinkError::Unavailable { .. })
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(120), call).await;
    done.expect("the call hangs")
}

/// A part with Attests of this length or a little less.
fn attests(bytes: usize) -> Vec<u8> {
    let attest = Attest {
        epoch: 0,
        device: DeviceKey::from(&device().public()),
        seen: Prefix {
            size: 1,
            root: [1; 32],
        },
    };
    let mut one = BytesMut::new();
    put_attest(&attest.sign(VOLUME, &device()).unwrap(), &mut one);
    one.repeat(bytes / one.len())
}

#[tokio::test]
async fn server_that_stalls_at_any_step_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = ServerAddress {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    let connect = async |to| {
        let options = impatient();
        in_time(connect_with(&options, to)).await.err().unwrap()
    };
    let began = Instant::now();
    assert!(is_unavailable(&connect(&silent).await));
    assert!(began.elapsed() >= Duration::from_millis(1900));
    let before_hello = server(|mut peer: Peer| async move { peer.drain().await }).await;
    assert!(is_unavailable(&connect(&before_hello).await));
    let before_welcome = server(|mut peer: Peer| async move {
        peer.raw(&hello(PROTOCOL)).await;
        peer.drain().await;
    });
    assert!(is_unavailable(&connect(&before_welcome.await).await));
    let behave = |mut peer: Peer| async move { peer.drain().await };
    let (link, _pushes) = linked_with(&impatient(), behave).await;
    let began = Instant::now();
    let ended = in_time(link.ping()).await.unwrap_err();
    assert!(is_unavailable(&ended), "{ended}");
    assert!(began.elapsed() >= Duration::from_millis(1900));
    drop(listener);
}

#[tokio::test]
async fn another_service_and_another_protocol_are_told_apart() {
    let text = server(|mut peer: Peer| async move {
        peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        peer.drain().await;
    });
    let refused = in_time(connect(&text.await)).await.err().unwrap();
    assert!(is_unavailable(&refused), "{refused}");
    let mirror = server(|mut peer: Peer| async move {
        let mut bytes = HELLO.to_vec();
        put_error(&mut bytes, 0, ErrorCode::UNSUPPORTED, "protocol 0");
        peer.raw(&bytes).await;
        peer.drain().await;
    });
    let refused = in_time(connect(&mirror.await)).await.err().unwrap();
    assert!(
        matches!(refused, LinkError::Unsupported { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn answer_instead_of_a_welcome_is_refused() {
    for (kind, id, body) in [
        (kind::WELCOME, 7, welcome()),
        (kind::WELCOME, SESSION_ID, vec![]),
        (kind::DONE, SESSION_ID, vec![]),
        (kind::DELIVERY, 0, heartbeat(1)),
    ] {
        let to = server(move |mut peer: Peer| {
            let body = body.clone();
            async move {
                peer.raw(&hello(PROTOCOL)).await;
                peer.send(kind, id, &body).await;
                peer.drain().await;
            }
        });
        let refused = in_time(connect(&to.await)).await.err().unwrap();
        assert!(is_bad(&refused), "{refused}");
    }
    let endless = server(|mut peer: Peer| async move {
        peer.raw(&hello(PROTOCOL)).await;
        peer.raw(&(4u32 << 20).to_le_bytes()).await;
        peer.raw(&[0; 70_000]).await;
        peer.drain().await;
    });
    let refused = in_time(connect(&endless.await)).await.err().unwrap();
    assert!(is_bad(&refused), "{refused}");
}

/// A server that answers the first request with one message.
async fn answering(kind: u8, other_id: bool, body: Vec<u8>) -> Link {
    let behave = move |mut peer: Peer| {
        let body = body.clone();
        async move {
            let (_, id, _) = peer.recv().await.unwrap();
            let id = if other_id { id + 1 } else { id };
            peer.send(kind, id, &body).await;
            peer.drain().await;
        }
    };
    linked(behave).await.0
}

fn record(n: u8) -> Vec<u8> {
    let record = Record {
        handle: Handle::from_bytes([n; 32]),
        frame: Packer::new().pack(Kind::Data, &[n; 100]).unwrap(),
    };
    let mut bytes = BytesMut::new();
    record.put(&mut bytes);
    bytes.to_vec()
}

#[tokio::test]
async fn answers_that_nobody_asked_for_end_the_link() {
    let handle = [Handle::from_bytes([1; 32])];
    let twice = [record(1), record(1)].concat();
    let cut = record(1)[..50].to_vec();
    for (kind, other_id, body) in [
        (kind::DONE, true, vec![]),
        (kind::DONE, false, vec![1]),
        (kind::WELCOME, false, welcome()),
        (kind::HAVE, false, vec![0]),
        (kind::LETTER, false, vec![0]),
        (kind::RECORDS, false, vec![]),
        (kind::RECORDS, false, record(2)),
        (kind::RECORDS, false, twice),
        (kind::RECORDS, false, cut),
        (kind::RECORDS, false, vec![0; 2 << 20]),
        (kind::DELIVERY, false, heartbeat(1)),
        (0x01, false, vec![]),
    ] {
        let link = answering(kind, other_id, body).await;
        let ended = in_time(link.retrieve(&handle)).await.unwrap_err();
        assert!(is_bad(&ended), "{kind:#x} {ended}");
        assert_eq!(link.ended(), Some(ended));
    }
    for body in [vec![], vec![2], vec![1, 0]] {
        let link = answering(kind::HAVE, false, body).await;
        assert!(is_bad(&in_time(link.cstore(&handle)).await.unwrap_err()));
    }
    for body in [vec![0; 8], [&[9; 8][..], &[1, 1]].concat()] {
        let link = answering(kind::BODIES_PART, false, body).await;
        assert!(is_bad(&in_time(link.bodies(&[1, 2])).await.unwrap_err()));
    }
    for (kind, body) in [
        (kind::USED, vec![0; 47]),
        (kind::USED, vec![0; 49]),
        (kind::DONE, vec![]),
    ] {
        let link = answering(kind, false, body).await;
        assert!(is_bad(&in_time(link.usage()).await.unwrap_err()));
    }
    // Any number may be there.
    let link = answering(kind::USED, false, vec![0xff; 48]).await;
    assert_eq!(in_time(link.usage()).await.unwrap().free_bytes(), None);
    let link = answering(kind::LEAVES_PART, false, vec![0; 9]).await;
    assert!(is_bad(&in_time(link.leaves(1, 1)).await.unwrap_err()));
    let link = answering(kind::POLICIES_PART, false, vec![0]).await;
    assert!(is_bad(&in_time(link.policies(0)).await.unwrap_err()));
}

#[tokio::test]
async fn endless_answer_is_cut_off_at_what_was_asked_for() {
    let behave = |mut peer: Peer| async move {
        let (_, id, _) = peer.recv().await.unwrap();
        for n in 0..200u8 {
            let many: Vec<u8> = (0..100).flat_map(|_| record(n)).collect();
            peer.send(kind::RECORDS, id, &many).await;
        }
        peer.drain().await;
    };
    let (link, _pushes) = linked(behave).await;
    let ended = in_time(link.retrieve(&[Handle::from_bytes([1; 32])])).await;
    assert!(is_bad(&ended.unwrap_err()));
}

/// Blocks of a later bulla are skipped, but they count.
#[tokio::test]
async fn endless_answer_without_its_blocks_is_cut_off() {
    let behave = |mut peer: Peer| async move {
        let (_, id, _) = peer.recv().await.unwrap();
        let mut later = record(2);
        later[trust::record::RECORD_HEADER_BYTES] = 0xee;
        let many = later.repeat(1000);
        for _ in 0..30 {
            peer.send(kind::RECORDS, id, &many).await;
        }
        peer.drain().await;
    };
    let (link, _pushes) = linked(behave).await;
    let ended = in_time(link.retrieve(&[Handle::from_bytes([1; 32])])).await;
    assert!(is_bad(&ended.unwrap_err()));
}

#[tokio::test]
async fn length_beyond_any_limit_is_refused_by_the_header() {
    for len in [0u32, 4, 6 + (4 << 20), u32::MAX] {
        let behave = move |mut peer: Peer| async move {
            peer.recv().await.unwrap();
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend_from_slice(&[kind::DONE, 2, 0, 0, 0]);
            peer.raw(&bytes).await;
            peer.drain().await;
        };
        let (link, _pushes) = linked(behave).await;
        let ended = in_time(link.ping()).await.unwrap_err();
        assert!(is_bad(&ended), "{len}: {ended}");
    }
}

#[tokio::test]
async fn message_that_breaks_off_ends_the_call() {
    let behave = |mut peer: Peer| async move {
        let (_, id, _) = peer.recv().await.unwrap();
        let mut bytes = Vec::new();
        Header::new(kind::RECORDS, id, 5000).put(&mut bytes);
        bytes.extend_from_slice(&[1; 100]);
        peer.raw(&bytes).await;
    };
    let (link, _pushes) = linked(behave).await;
    let ended = in_time(link.retrieve(&[Handle::from_bytes([1; 32])])).await;
    assert!(is_unavailable(&ended.unwrap_err()));
}

/// The answer to OPEN comes once, after OPEN, and says what an honest server may say.
#[tokio::test]
async fn answers_to_open_that_no_honest_server_gives_end_the_link() {
    let good = terms(1000).encode();
    let mut idle = good.clone();
    idle[4..12].fill(0);
    for (opens, bodies) in [
        (false, vec![good.clone()]),
        (true, vec![good.clone(), good.clone()]),
        (true, vec![good[1..].to_vec()]),
        (true, vec![[&good[..], &[0]].concat()]),
        (true, vec![terms(100).encode()]),
        (true, vec![idle]),
    ] {
        let behave = move |mut peer: Peer| {
            let bodies = bodies.clone();
            async move {
                peer.recv().await.unwrap();
                for body in bodies {
                    peer.send(kind::OPENED, SESSION_ID, &body).await;
                }
                peer.drain().await;
            }
        };
        let (link, _pushes) = linked(behave).await;
        match opens {
            true => link.open(None).unwrap(),
            false => link.mark(&Nonce::from_bytes([1; 32])).unwrap(),
        }
        eventually("the link ends", || link.ended().is_some()).await;
        let ended = link.ended().unwrap();
        assert!(is_bad(&ended), "{ended}");
    }
    // None at all: who asks is told so.
    let behave = |mut peer: Peer| async move { peer.drain().await };
    let (link, _pushes) = linked_with(&impatient(), behave).await;
    link.open(None).unwrap();
    assert!(is_unavailable(&in_time(link.terms()).await.unwrap_err()));
}

#[tokio::test]
async fn deliveries_beyond_the_window_end_the_link() {
    for opens in [true, false] {
        let behave = |mut peer: Peer| async move {
            peer.recv().await.unwrap();
            for _ in 0..=WINDOW {
                peer.send(kind::DELIVERY, 0, &heartbeat(1)).await;
            }
            peer.drain().await;
        };
        let (link, mut pushes) = linked(behave).await;
        match opens {
            true => link.open(None).unwrap(),
            // Deliveries that were never asked for.
            false => link.mark(&Nonce::from_bytes([1; 32])).unwrap(),
        }
        // Nothing is taken before the last has come.
        eventually("the link ends", || link.ended().is_some()).await;
        let ended = in_time(async {
            loop {
                if let Err(ended) = pushes.next().await {
                    break ended;
                }
            }
        });
        assert!(is_bad(&ended.await), "opened: {opens}");
    }
}

/// Each fits alone, and so do many short ones.
#[tokio::test]
async fn fifth_long_delivery_ends_the_link() {
    let behave = |mut peer: Peer| async move {
        peer.recv().await.unwrap();
        for _ in 0..5 {
            peer.send(kind::ATTESTS, 0, &attests(512 << 10)).await;
            peer.send(kind::DELIVERY, 0, &heartbeat(1)).await;
        }
        peer.drain().await;
    };
    let (link, mut pushes) = linked(behave).await;
    link.open(None).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while link.ended().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..4 {
            assert_eq!(pushes.next().await.unwrap().from, 1);
        }
        pushes.next().await.unwrap_err()
    });
    assert!(is_bad(&ended.await.unwrap()));
}

#[tokio::test]
async fn endless_delivery_is_cut_off() {
    let behave = |mut peer: Peer| async move {
        peer.recv().await.unwrap();
        let part = attests(1 << 20);
        for _ in 0..=MAX_DELIVERY_BYTES / part.len() + 1 {
            peer.send(kind::ATTESTS, 0, &part).await;
        }
        peer.drain().await;
    };
    let (link, mut pushes) = linked(behave).await;
    link.open(None).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), pushes.next()).await;
    assert!(is_bad(&ended.unwrap().unwrap_err()));
}

/// A server that takes no bytes any more: requests end at their deadline, and messages do not gather without bound.
#[tokio::test]
async fn server_that_does_not_read_is_given_up() {
    let behave = |mut peer: Peer| async move {
        // Not read: the client's bytes stay in the socket.
        std::future::pending::<()>().await;
        let _ = peer.stream.read_u8().await;
    };
    let (link, _pushes) = linked_with(&impatient(), behave).await;
    let began = Instant::now();
    let mark = Nonce::from_bytes([1; 32]);
    let mut said = 0u64;
    let ended = loop {
        if let Err(ended) = link.mark(&mark) {
            break ended;
        }
        said += 1;
        if said.is_multiple_of(1000) {
            tokio::task::yield_now().await;
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    };
    assert!(is_unavailable(&ended), "{ended}");
    assert!(said < 2_000_000, "{said}");
    let (link, _pushes) = linked_with(&impatient(), behave).await;
    let big = Record {
        handle: Handle::from_bytes([1; 32]),
        frame: Packer::new()
            .pack(Kind::Data, &sim::random::noise(1, 1 << 20))
            .unwrap(),
    };
    let ended = in_time(link.store(&[big.clone(), big])).await.unwrap_err();
    assert!(is_unavailable(&ended), "{ended}");
}
