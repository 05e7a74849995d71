//! Web servers that lie about ranges and lengths, stall, trickle, never stop, redirect to login pages or in
//! loops: each call ends in time with the right kind of error, memory stays bounded, and no wrong record is
//! accepted for one that the index names.

mod objects;
mod server;
mod walks;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use server::{Act, Asked, VOLUME, impatient_world, ok, status, world, world_of};
use store::{BlockStore, Replica, StoreError};
use wire::http::{HttpOptions, HttpStore, answer::MAX_UNRANGED_BYTES};

/// The reaction of a lying server to a request.
type Lie = fn(&Asked) -> Act;
/// A page in some answer.
type Page = fn(&[u8]) -> Vec<u8>;

/// Applies a lie to segments only.
fn segments(
    act: impl Fn(&Asked) -> Act + Send + Sync + 'static,
) -> impl Fn(&Asked) -> Act + Send + Sync {
    move |asked| {
        if asked.is_segment() {
            act(asked)
        } else {
            Act::Honest
        }
    }
}

#[track_caller]
fn bad<T: std::fmt::Debug>(answer: Result<T, StoreError>, why: &str) {
    match answer {
        Err(StoreError::BadAnswer { why: told, .. }) => {
            assert!(told.to_string().contains(why), "{told}");
        }
        other => panic!("{why}: {other:?}"),
    }
}

/// The place cannot be used: to ask again may help or not, but it told no lie.
#[track_caller]
fn unavailable<T: std::fmt::Debug>(answer: Result<T, StoreError>, why: &str) {
    match answer {
        Err(StoreError::Unavailable { cause, .. } | StoreError::Unusable { cause, .. }) => {
            assert!(cause.contains(why), "{cause}")
        }
        other => panic!("{why}: {other:?}"),
    }
}

#[tokio::test]
async fn an_honest_answer_passes_in_every_framing() {
    fn chunked(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in body.chunks(700) {
            out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            out.extend_from_slice(chunk);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    }
    let framings: [Lie; 5] = [
        |_| Act::Honest,
        |a| Act::Send(a.partial("Transfer-Encoding: chunked\r\n", &chunked(&a.body))),
        // Until the end of the connection.
        |a| Act::Close(a.partial("Connection: close\r\n", &a.body)),
        // Without saying that it closes.
        |a| {
            let lines = format!("Content-Length: {}\r\n", a.body.len());
            Act::Close(a.partial(&lines, &a.body))
        },
        |a| {
            Act::Send(a.partial(
                &format!(
                    "Content-Encoding: identity\r\nContent-Length: {}\r\n",
                    a.body.len()
                ),
                &a.body,
            ))
        },
    ];
    for (number, framing) in framings.into_iter().enumerate() {
        let world = world(segments(framing)).await;
        for _ in 0..3 {
            let got = world.get().await.unwrap();
            assert_eq!(got[0].frame, world.records[7].frame, "framing {number}");
            assert_eq!(got[1].frame, world.records[40].frame, "framing {number}");
        }
    }
}

#[tokio::test]
async fn another_piece_or_another_length_is_a_bad_answer() {
    let lies: [(&str, Lie); 9] = [
        ("another record", |a| {
            let mut body = a.body.clone();
            body[0] ^= 1;
            Act::Send(a.partial(&format!("Content-Length: {}\r\n", body.len()), &body))
        }),
        ("another piece", |a| {
            let (first, _) = a.range.unwrap();
            let range = format!(
                "Content-Range: bytes {}-{}/99999",
                first + 1,
                first + a.body.len()
            );
            let head = format!(
                "HTTP/1.1 206 P\r\nContent-Length: {}\r\n{range}\r\n\r\n",
                a.body.len()
            );
            Act::Send([head.as_bytes(), &a.body].concat())
        }),
        ("without saying which", |a| {
            Act::Send(format!("HTTP/1.1 206 P\r\nContent-Length: {}\r\n\r\n", a.body.len()).into())
        }),
        ("without saying which", |_| {
            let kind = "Content-Type: multipart/byteranges; boundary=x";
            Act::Send(
                format!("HTTP/1.1 206 P\r\nContent-Length: 9\r\n{kind}\r\n\r\n--x--....").into(),
            )
        }),
        ("longer piece", |a| {
            let (first, last) = a.range.unwrap();
            let range = format!("Content-Range: bytes {first}-{}/99999", last + 1);
            Act::Stall(format!("HTTP/1.1 206 P\r\n{range}\r\n\r\n").into())
        }),
        ("more bytes", |a| {
            let body = [&a.body[..], b"!"].concat();
            Act::Send(a.partial(&format!("Content-Length: {}\r\n", body.len()), &body))
        }),
        ("more bytes", |a| {
            Act::Repeat(a.partial("", &a.body), vec![0; 4096], Duration::ZERO)
        }),
        ("not modified", |_| {
            Act::Send(b"HTTP/1.1 304 Same\r\n\r\n".to_vec())
        }),
        ("another record", |a| {
            let zeros = vec![0; a.body.len()];
            Act::Send(a.partial(&format!("Content-Length: {}\r\n", zeros.len()), &zeros))
        }),
    ];
    for (why, lie) in lies {
        let world = world(segments(lie)).await;
        bad(world.get().await, why);
        assert!(world.received() < 1 << 20, "{why}");
    }
}

#[tokio::test]
async fn broken_answers_are_retried_and_then_unavailable() {
    let breaks: [(&str, Lie); 5] = [
        ("broke", |_| Act::Close(Vec::new())),
        ("broke", |a| {
            let lines = format!("Content-Length: {}\r\n", a.body.len());
            Act::Close(a.partial(&lines, &a.body[..a.body.len() - 1]))
        }),
        ("broke off in the middle", |a| {
            let short = &a.body[..a.body.len() - 1];
            Act::Send(a.partial(&format!("Content-Length: {}\r\n", short.len()), short))
        }),
        ("broke", |a| {
            Act::Close(a.partial("Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n"))
        }),
        ("broke", |_| {
            Act::Close(b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec())
        }),
    ];
    for (why, lie) in breaks {
        let world = world(segments(lie)).await;
        unavailable(world.store.get_many(&[world.handle(7)], 0).await, why);
        assert_eq!(world.requests("/segments/"), 3, "{why}");
        // A call that follows at once fails without another request.
        unavailable(world.get().await, "next attempt in");
        assert_eq!(world.requests("/segments/"), 3, "{why}");
        let lie = segments(move |a| {
            if a.segments_before < 2 {
                lie(a)
            } else {
                Act::Honest
            }
        });
        let world = server::world(lie).await;
        let got = world.store.get_many(&[world.handle(7)], 0).await.unwrap();
        assert_eq!(got[0].frame, world.records[7].frame);
    }
}

#[tokio::test]
async fn silence_and_trickles_end_in_time() {
    let slow: [(&str, Lie); 4] = [
        ("silent", |_| Act::Stall(Vec::new())),
        ("silent", |a| {
            Act::Stall(a.partial("Content-Length: 99\r\n", b"x"))
        }),
        ("too slow", |a| {
            let again = Duration::from_millis(100);
            Act::Repeat(a.partial("", b""), b"x".to_vec(), again)
        }),
        ("too slow", |_| {
            let again = Duration::from_millis(100);
            Act::Repeat(b"HTTP/1.1 206 P\r\n".to_vec(), b"X: y\r\n".to_vec(), again)
        }),
    ];
    // Side by side, because each waits for the client's time-outs.
    let ended = slow.map(|(why, lie)| tokio::spawn(given_up(why, lie)));
    for ended in ended {
        ended.await.unwrap();
    }
}

/// A client gives up segments that `lie` holds back, and does not ask again at once.
async fn given_up(why: &str, lie: Lie) {
    for _ in 0..20 {
        let world = impatient_world(segments(lie)).await;
        let began = Instant::now();
        let got = world.store.get_many(&[world.handle(7)], 0).await;
        let requests = world.requests("/segments/");
        // A busy machine may be late with the honest head or index.
        if requests == 0 {
            continue;
        }
        match got {
            Err(StoreError::Unavailable { cause, .. }) => {
                assert!(cause.contains(why) || cause.contains("silent"), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(60), "{why}: {took:?}");
        return assert_eq!(requests, 1, "{why}");
    }
    panic!("{why}: no segment was ever asked for");
}

#[tokio::test]
async fn endless_answers_are_bounded() {
    let endless = |first: &str| {
        let first = first.as_bytes().to_vec();
        move |_: &Asked| Act::Repeat(first.clone(), vec![b'a'; 64 << 10], Duration::ZERO)
    };
    // A head.
    let world_ = world(endless("HTTP/1.1 200 OK\r\n\r\n")).await;
    bad(world_.store.head().await, "more bytes");
    assert!(world_.received() < 2 << 20);
    let world_ = world(endless(
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    ))
    .await;
    bad(world_.store.head().await, "longer than");
    assert_eq!(world_.received(), 0);
    // Headers.
    let world_ = world(endless("HTTP/1.1 200 OK\r\nX: ")).await;
    assert!(matches!(
        world_.store.head().await,
        Err(StoreError::Unavailable { .. })
    ));
    // A whole file instead of a piece.
    let world_ = world(segments(endless("HTTP/1.1 200 OK\r\n\r\n"))).await;
    bad(world_.get().await, "another record");
    assert!(world_.received() < MAX_UNRANGED_BYTES + (1 << 20));
    let world_ = world_of(60, 100_000, segments(endless("HTTP/1.1 200 OK\r\n\r\n"))).await;
    unavailable(world_.get().await, "ignores range requests");
    assert!(world_.received() < MAX_UNRANGED_BYTES + (1 << 20));
    // An index.
    let index = |first: &'static str| {
        let act = endless(first);
        move |a: &Asked| if a.is_index() { act(a) } else { Act::Honest }
    };
    let world_ = world(index("HTTP/1.1 200 OK\r\n\r\n")).await;
    assert!(matches!(
        world_.get().await,
        Err(StoreError::BadAnswer { .. })
    ));
    assert!(world_.received() < 1 << 20);
}

#[tokio::test]
async fn a_short_retry_after_is_waited_for() {
    let busy = |line: &'static str, until: u32| {
        segments(move |a| match a.segments_before < until {
            true => Act::Send(status(line)),
            false => Act::Honest,
        })
    };
    for (line, least) in [
        ("503 Busy\r\nRetry-After: 1", 1000),
        ("429 Slow\r\nRetry-After: 0", 0),
        ("502 Bad", 100),
    ] {
        let world = world(busy(line, 1)).await;
        let began = Instant::now();
        let got = world.store.get_many(&[world.handle(7)], 0).await.unwrap();
        assert_eq!(got.len(), 1);
        assert!(began.elapsed() >= Duration::from_millis(least), "{line}");
    }
    let world_ = world(busy("503 Busy\r\nRetry-After: 86400", 9)).await;
    let began = Instant::now();
    unavailable(world_.store.get_many(&[world_.handle(7)], 0).await, "503");
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(world_.requests("/segments/"), 1);
    unavailable(world_.get().await, "next attempt in");
    let world_ = world(busy("500 Oops", 9)).await;
    unavailable(world_.store.get_many(&[world_.handle(7)], 0).await, "500");
    assert_eq!(world_.requests("/segments/"), 3);
}

#[tokio::test]
async fn missing_files_cause_one_more_read_of_the_head() {
    for line in ["404 Not Found", "410 Gone", "416 Range"] {
        let world = world(segments(move |_| Act::Send(status(line)))).await;
        let got = world.store.get_many(&[world.handle(7)], 0).await;
        unavailable(got, "head still names it");
        assert_eq!(world.requests("/head"), 2, "{line}");
        assert_eq!(world.requests("/segments/"), 1, "{line}");
    }
    // Shorter than its index says.
    let world_ = world(segments(|a| {
        let (first, _) = a.range.unwrap();
        let range = format!("Content-Range: bytes {first}-{first}/{}", first + 1);
        Act::Send(format!("HTTP/1.1 206 P\r\nContent-Length: 1\r\n{range}\r\n\r\nx").into())
    }))
    .await;
    unavailable(world_.get().await, "cut short");
    let gone = |a: &Asked| {
        if a.is_index() {
            Act::Send(status("404 No"))
        } else {
            Act::Honest
        }
    };
    let world_ = world(gone).await;
    unavailable(world_.get().await, "is not there");
}

#[tokio::test]
async fn safe_redirects_are_followed_and_others_refused() {
    // Another server with the same files is reached by a redirect and verified like any other.
    let other = Arc::new(Mutex::new(String::new()));
    let target = Arc::clone(&other);
    let world_ = world(move |a| {
        let other = target.lock().unwrap().clone();
        if other.is_empty() || a.head.contains(&format!("host: {other}")) {
            return Act::Honest;
        }
        Act::Send(status(&format!(
            "302 Found\r\nLocation: http://{other}{}",
            a.path
        )))
    })
    .await;
    let place = world_
        .store
        .place()
        .strip_prefix("http://")
        .unwrap()
        .to_owned();
    *other.lock().unwrap() = place.replace("127.0.0.1", "localhost");
    assert_eq!(world_.get().await.unwrap().len(), 3, "two, and one behind");

    for (line, why) in [
        ("301 M\r\nLocation: /head", "circle"),
        ("302 M\r\nLocation: /x/head", "too often"),
        (
            "302 M\r\nLocation: ftp://example.org/head",
            "not on the web",
        ),
        ("302 M\r\nLocation: file:///etc/passwd", ""),
        ("302 M\r\nLocation: http://u:p@127.0.0.1/head", "user name"),
        ("302 M", "answers 302"),
        ("302 M\r\nLocation: ::", ""),
        ("302 M\r\nLocation: \u{e9}\u{1}", ""),
    ] {
        let world = world(move |a| {
            let line = line.replace("/x/head", &format!("/x{}", a.path));
            Act::Send(status(&line))
        })
        .await;
        unavailable(world.store.head().await, why);
        assert!(world.requests("") <= 5, "{line}");
    }
}

#[tokio::test]
async fn a_web_page_is_neither_a_head_nor_an_index() {
    let page = b"<!DOCTYPE html><html><body>Please log in</body></html>";
    let html: [Page; 3] = [
        |page| ok("Content-Type: text/html\r\n", page),
        |page| ok("", page),
        |page| {
            ok(
                "Content-Type: application/octet-stream\r\n",
                &[b"\n ", page].concat(),
            )
        },
    ];
    for answer in html {
        let world = world(move |_| Act::Send(answer(page))).await;
        unavailable(world.store.head().await, "a web page and no repository");
    }
    let login = |a: &Asked| match a.is_head() {
        true => Act::Honest,
        false => Act::Send(ok("Content-Type: text/html\r\n", b"<html>")),
    };
    let world_ = world(login).await;
    unavailable(world_.get().await, "a web page and no repository");
}

#[tokio::test]
async fn a_head_with_any_bit_flipped_is_refused() {
    let flip = Arc::new(AtomicU32::new(0));
    let bit = Arc::clone(&flip);
    let world_ = world(move |a| {
        let mut body = a.body.clone();
        if a.is_head() {
            let bit = bit.load(Ordering::SeqCst) as usize;
            body[bit / 8 % a.body.len()] ^= 1 << (bit % 8);
            return Act::Send(ok("", &body));
        }
        Act::Honest
    })
    .await;
    for bit in 0..800 {
        flip.store(bit, Ordering::SeqCst);
        assert!(
            matches!(
                world_.store.head().await,
                // A bit of the format number or of the flags: one of a later bulla.
                Err(StoreError::BadAnswer { .. } | StoreError::Unsupported { .. })
            ),
            "bit {bit}"
        );
    }
    assert_eq!(world_.requests("/index/"), 0, "nothing else is asked for");
}

#[tokio::test]
async fn an_index_with_any_byte_changed_is_refused() {
    // 60 blocks: the index comes whole. 3,000 blocks: its table, then single pages; the test changes
    // one of them.
    const PAGES_END: usize = 3000usize.div_ceil(93) * 4096;
    for (count, from, to) in [
        (60, 0, 5000),
        (3000, PAGES_END, 140_000),
        (3000, 0, PAGES_END),
    ] {
        let at = Arc::new(AtomicU32::new(0));
        let place = Arc::clone(&at);
        let tamper = move |a: &Asked| {
            let first = a.range.map_or(0, |(first, _)| first);
            if !a.is_index() || !(from..to).contains(&first) {
                return Act::Honest;
            }
            let mut body = a.body.clone();
            let at = place.load(Ordering::SeqCst) as usize;
            body[at % a.body.len()] ^= 0x10;
            Act::Send(a.partial(&format!("Content-Length: {}\r\n", body.len()), &body))
        };
        let world = world_of(count, 30, tamper).await;
        for byte in (0..4200).step_by(131) {
            at.store(byte as u32, Ordering::SeqCst);
            let got = world.store.get_many(&[world.handle(byte % 60)], 0).await;
            assert!(
                matches!(got, Err(StoreError::BadAnswer { .. })),
                "{count} from {from}: byte {byte}"
            );
        }
    }
}

#[tokio::test]
async fn a_run_that_is_fetched_whole_is_checked_as_its_pages_are() {
    let world = world_of(3000, 30, |a| {
        let long = a
            .range
            .is_some_and(|(first, last)| first == 0 && last > 100_000);
        if !a.is_index() || !long {
            return Act::Honest;
        }
        let mut body = a.body.clone();
        body[70_000] ^= 1;
        Act::Send(a.partial(&format!("Content-Length: {}\r\n", body.len()), &body))
    })
    .await;
    let mut refused = 0;
    for n in 0..40 {
        match world.store.get_many(&[world.handle(n * 70)], 0).await {
            Ok(records) => assert_eq!(records.len(), 1),
            Err(StoreError::BadAnswer { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0, "the run was never fetched whole");
}

#[tokio::test]
async fn a_head_that_claims_a_giant_index_is_refused_early() {
    for (entries, len_bytes) in [
        (
            1u64 << 31,
            (1u64 << 31).div_ceil(93) * (4096 + 32) + 16 + 56,
        ),
        (u64::MAX, u64::MAX),
        (93, u64::MAX),
        (0, 0),
    ] {
        let world = world(move |a| {
            if !a.is_head() {
                return Act::Repeat(a.partial("", b""), vec![0; 64 << 10], Duration::ZERO);
            }
            let mut head = store::head::Head::decode(&a.body).unwrap();
            for run in &mut head.runs {
                run.entries = entries;
                run.len_bytes = len_bytes;
            }
            Act::Send(ok("", &head.encode()))
        })
        .await;
        assert!(world.get().await.is_err());
        assert_eq!(world.requests("/index/"), 0);
        assert!(world.received() < 64 << 10);
    }
}

#[tokio::test]
async fn not_modified_without_a_known_head_is_a_bad_answer() {
    let same = |a: &Asked| match a.is_head() {
        true => Act::Send(b"HTTP/1.1 304 Same\r\n\r\n".to_vec()),
        false => Act::Honest,
    };
    let world_ = world(same).await;
    bad(world_.store.head().await, "nothing was known");
    // With a tag it may always say so: that shows an old head, until its statement expires.
    let tagged = |a: &Asked| match a.head.contains("if-none-match: \"v1\"") {
        true => Act::Send(b"HTTP/1.1 304 Same\r\n\r\n".to_vec()),
        false if a.is_head() => {
            assert!(a.head.contains("cache-control: no-cache"));
            Act::Send(ok("ETag: \"v1\"\r\n", &a.body))
        }
        false => Act::Honest,
    };
    let world_ = world(tagged).await;
    for _ in 0..3 {
        assert_eq!(
            world_.store.head().await.unwrap(),
            Bytes::from_static(b"head")
        );
    }
}

#[tokio::test]
async fn an_unreachable_server_fails_fast_and_is_not_asked_for_a_while() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let store = |first_pause| {
        let options = HttpOptions {
            first_pause,
            ..HttpOptions::default()
        };
        HttpStore::new(&address.parse().unwrap(), VOLUME, &options).unwrap()
    };
    let waits = store(Duration::from_secs(60));
    unavailable(waits.head().await, "cannot connect");
    unavailable(waits.head().await, "next attempt in");
    assert_eq!(waits.counters().requests.load(Ordering::Relaxed), 1);
    let asks_again = store(Duration::from_millis(10));
    unavailable(asks_again.head().await, "cannot connect");
    tokio::time::sleep(Duration::from_millis(20)).await;
    unavailable(asks_again.head().await, "cannot connect");
    assert_eq!(asks_again.counters().requests.load(Ordering::Relaxed), 2);
}
