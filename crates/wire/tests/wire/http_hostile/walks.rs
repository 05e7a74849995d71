//! Who reads a whole tree over HTTP fetches a large index once, in pieces; who reads some files fetches no more of it
//! than the pages that they need. Records that a walk wants here and there come in few requests. The repository has 646
//! pages, more than are fetched whole for some pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all, try_join, try_join_all};
use store::{BlockStore, StoreError};
use tokio::sync::Semaphore;
use trust::Handle;
use wire::http::HttpOptions;

use super::server::{Act, Asked, World, impatient_world, ok, world_of};

const RECORDS: u64 = 60_000;
const PIECE_BYTES: usize = 64 * 4096;
const PIECES: usize = 11;
const TABLE_BYTES: u64 = 646 * 32 + 16 + 56;

/// Many handles at random places, as a walk asks for them: the number of the call, and 256 of each.
fn many(world: &World, call: usize) -> Vec<Handle> {
    let numbers = (0..256).map(|n| (call * 256 + n) * 29 % RECORDS as usize);
    numbers.map(|n| world.handle(n)).collect()
}

fn is_piece(asked: &Asked) -> bool {
    let long = |(first, last): (usize, usize)| last - first + 1 >= PIECE_BYTES;
    asked.is_index() && asked.range.is_some_and(long)
}

#[tokio::test]
async fn a_walk_fetches_a_large_index_once() {
    let world = world_of(RECORDS, 30, |_| Act::Honest).await;
    let calls: Vec<Vec<Handle>> = (0..12).map(|call| many(&world, call)).collect();
    let got = try_join_all(calls.iter().map(|call| world.store.get_many(call, 0))).await;
    for (call, got) in calls.iter().zip(got.unwrap()) {
        let mut expected = call.clone();
        let mut got: Vec<Handle> = got.iter().map(|record| record.handle).collect();
        expected.sort_unstable();
        expected.dedup();
        got.sort_unstable();
        assert_eq!(got, expected);
    }
    // The table, and the pieces.
    let requests = world.requests("/index/");
    assert!(requests <= 1 + PIECES, "{requests}");
}

#[tokio::test]
async fn a_reader_of_some_files_fetches_only_their_pages() {
    let world = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => Act::Send(Vec::new()),
        false => Act::Honest,
    })
    .await;
    for n in 0..40 {
        let wanted = [world.handle(n * 1009), world.handle(n * 1009 + 1)];
        let got = world.store.get_many(&wanted, 0).await.unwrap();
        assert_eq!(got.len(), 2);
    }
    let records = 80 * 2 * 100;
    let at_most = 4096 + TABLE_BYTES + 80 * 4096 + records;
    assert!(world.received() <= at_most, "{}", world.received());
}

#[tokio::test]
async fn a_piece_with_any_page_changed_is_refused() {
    let at = Arc::new(AtomicU32::new(0));
    let place = Arc::clone(&at);
    let world = world_of(RECORDS, 30, move |a| {
        if !is_piece(a) {
            return Act::Honest;
        }
        let mut body = a.body.clone();
        let at = place.load(Ordering::SeqCst) as usize;
        body[at % a.body.len()] ^= 0x10;
        Act::Send(a.partial(&format!("Content-Length: {}\r\n", body.len()), &body))
    })
    .await;
    for page in [0, 1, 31, 62, 63] {
        at.store(page * 4096 + 17 * page, Ordering::SeqCst);
        let got = world.store.get_many(&many(&world, 0), 0).await;
        assert!(
            matches!(got, Err(StoreError::BadAnswer { .. })),
            "page {page}"
        );
    }
}

#[tokio::test]
async fn a_walk_that_gives_up_keeps_the_pieces_that_came() {
    let (stalls, pieces) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (stalled, counted) = (Arc::clone(&stalls), Arc::clone(&pieces));
    let world = world_of(RECORDS, 30, move |a| {
        let before = match is_piece(a) {
            true => counted.fetch_add(1, Ordering::SeqCst),
            false => 0,
        };
        match before >= 3 && stalled.load(Ordering::SeqCst) {
            true => Act::Stall(Vec::new()),
            false => Act::Honest,
        }
    })
    .await;
    let wanted = many(&world, 0);
    let first = world.store.get_many(&wanted, 0);
    let ended = tokio::time::timeout(Duration::from_secs(3), first).await;
    assert!(ended.is_err());
    stalls.store(false, Ordering::SeqCst);
    let before = pieces.swap(0, Ordering::SeqCst);
    assert!(before > 3, "{before}");
    world.store.get_many(&wanted, 0).await.unwrap();
    let again = pieces.load(Ordering::SeqCst) as usize;
    // The last piece is shorter.
    assert!(again <= PIECES - 3, "{again}");
}

#[tokio::test]
async fn who_prepares_for_a_walk_fetches_the_index_once_and_the_walk_nothing_of_it() {
    let world = world_of(RECORDS, 30, |_| Act::Honest).await;
    world.store.prepare(PIECE_BYTES as u64).await;
    assert_eq!(world.requests("/index/"), 0, "it is longer");
    // It stops when a piece takes four seconds, and on a busy machine one does.
    for _ in 0..PIECES {
        world.store.prepare(u64::MAX).await;
    }
    // The table, whether the server sends parts, and the pieces.
    assert_eq!(world.requests("/index/"), PIECES + 2);
    world.store.get_many(&[world.handle(5)], 0).await.unwrap();
    world.store.get_many(&many(&world, 0), 0).await.unwrap();
    world.store.prepare(u64::MAX).await;
    assert_eq!(world.requests("/index/"), PIECES + 2);
}

#[tokio::test]
async fn a_walk_waits_for_an_index_that_is_being_fetched() {
    let world = world_of(RECORDS, 30, |a| {
        if is_piece(a) {
            std::thread::sleep(Duration::from_millis(100));
        }
        Act::Honest
    })
    .await;
    // The table is known, so both begin at once.
    world.store.get_many(&[world.handle(5)], 0).await.unwrap();
    let before = world.requests("/index/");
    let prepare = async {
        world.store.prepare(u64::MAX).await;
        Ok::<_, StoreError>(())
    };
    let calls: Vec<Vec<Handle>> = (0..4)
        .map(|call| many(&world, call).split_off(192))
        .collect();
    let walk = try_join_all(calls.iter().map(|call| world.store.get_many(call, 0)));
    let (_, got) = try_join(prepare, walk).await.unwrap();
    for (call, got) in calls.iter().zip(got) {
        assert_eq!(got.len(), call.len());
    }
    // Whether the server sends parts, and the pieces: no single pages.
    let requests = world.requests("/index/") - before;
    assert!(requests <= PIECES + 1, "{requests}");
}

#[tokio::test]
async fn an_index_that_comes_slowly_or_wrong_is_not_fetched_ahead() {
    let slow = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => Act::Stall(Vec::new()),
        false => Act::Honest,
    })
    .await;
    let began = Instant::now();
    slow.store.prepare(u64::MAX).await;
    assert!(began.elapsed() < Duration::from_secs(8));
    // Later calls do not wait for pieces.
    let few = many(&slow, 0).split_off(236);
    assert_eq!(slow.store.get_many(&few, 0).await.unwrap().len(), few.len());
    assert!(began.elapsed() < Duration::from_secs(8));
    let wrong = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => {
            let length = format!("Content-Length: {}\r\n", a.body.len());
            Act::Send(a.partial(&length, &vec![7; a.body.len()]))
        }
        false => Act::Honest,
    })
    .await;
    wrong.store.prepare(u64::MAX).await;
    let got = wrong.store.get_many(&[wrong.handle(5)], 0).await;
    assert_eq!(got.unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_that_sends_the_whole_index_instead_of_pieces_is_unusable() {
    let world = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => Act::Send(ok("", &vec![0; 3 << 20])),
        false => Act::Honest,
    })
    .await;
    let got = world.store.get_many(&many(&world, 0), 0).await;
    // Of the first MiB it is believed, and is wrong; later parts are not read.
    assert!(matches!(
        got,
        Err(StoreError::BadAnswer { .. } | StoreError::Unavailable { .. })
    ));
    assert!(world.received() < 4 << 20, "{}", world.received());
}

#[tokio::test]
async fn pieces_that_are_cut_short_or_endless_are_refused() {
    let cut = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => Act::Close(a.partial("Content-Length: 262144\r\n", &a.body[..100_000])),
        false => Act::Honest,
    })
    .await;
    let got = cut.store.get_many(&many(&cut, 0), 0).await;
    assert!(matches!(got, Err(StoreError::Unavailable { .. })));
    let endless = world_of(RECORDS, 30, |a| match is_piece(a) {
        true => Act::Repeat(a.partial("", &a.body), vec![7; 64 << 10], Duration::ZERO),
        false => Act::Honest,
    })
    .await;
    let got = endless.store.get_many(&many(&endless, 0), 0).await;
    assert!(matches!(got, Err(StoreError::BadAnswer { .. })));
    assert!(endless.received() < 8 << 20, "{}", endless.received());
}

/// 4,000 records that lie far from each other, without an index of many pages. A call wants 100 of them.
const LONG: usize = 40_000;

async fn scattered(behave: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> (World, Vec<Handle>) {
    let world = world_of(400, LONG, behave).await;
    let wanted = (0..100).map(|n| world.handle(n * 4)).collect();
    (world, wanted)
}

async fn right(world: &World, wanted: &[Handle]) {
    let got = world.store.get_many(wanted, 0).await.unwrap();
    assert_eq!(got.len(), wanted.len());
    for record in &world.records {
        let came = got.iter().find(|came| came.handle == record.handle);
        assert_eq!(came.is_some(), wanted.contains(&record.handle));
        assert!(came.is_none_or(|came| came == record));
    }
}

#[tokio::test]
async fn scattered_records_share_requests() {
    let (world, wanted) = scattered(|_| Act::Honest).await;
    right(&world, &wanted).await;
    // 100 records of 40 kB, at most 512 KiB together, and the question whether the server can.
    let requests = world.requests("/segments/");
    assert!(requests <= 10, "{requests}");
    let needed = (100 * (LONG + 200)) as u64;
    assert!(
        world.received() <= needed + needed / 10,
        "{}",
        world.received()
    );
}

#[tokio::test]
async fn ranges_of_many_calls_share_requests() {
    let gate = Arc::new(Semaphore::new(0));
    let is_busy = Arc::new(AtomicBool::new(false));
    let (closed, busy) = (Arc::clone(&gate), Arc::clone(&is_busy));
    let (world, wanted) = scattered(move |a| match busy.load(Ordering::SeqCst) {
        true if a.is_segment() => Act::Later(Arc::clone(&closed)),
        _ => Act::Honest,
    })
    .await;
    right(&world, &wanted).await;
    is_busy.store(true, Ordering::SeqCst);
    let before = world.requests("/segments/");
    let calls = (0..100).map(|n| {
        let few: Vec<Handle> = (0..4)
            .map(|k| world.handle((n * 7 + k * 91) % 400))
            .collect();
        let world = &world;
        async move { right(world, &few).await }
    });
    // No answer comes before all calls wait.
    let opens = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.close();
    };
    join(join_all(calls), opens).await;
    let requests = world.requests("/segments/") - before;
    // 400 ranges of 16 MB. As many requests as may be under way find nothing to take along, and others bring 512 KiB.
    assert!(requests <= 16 + 48, "{requests}");
}

#[tokio::test]
async fn a_call_goes_on_when_the_call_that_was_to_bring_its_ranges_gives_up() {
    let stalls = Arc::new(AtomicBool::new(false));
    let held = Arc::new(AtomicU32::new(0));
    let (now, count) = (Arc::clone(&stalls), Arc::clone(&held));
    let (world, wanted) = scattered(move |a| match now.load(Ordering::SeqCst) {
        true if a.path.contains("/segments/") => {
            count.fetch_add(1, Ordering::SeqCst);
            Act::Stall(Vec::new())
        }
        _ => Act::Honest,
    })
    .await;
    let world = Arc::new(world);
    right(&world, &wanted).await;
    stalls.store(true, Ordering::SeqCst);
    let under_way = || held.load(Ordering::SeqCst);
    let reaches = async |count: u32| {
        while under_way() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let get = |handles: Vec<Handle>| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.store.get_many(&handles, 0).await })
    };
    // As many requests as may be under way, without an end. Two more calls wait.
    let slots = u32::try_from(HttpOptions::default().max_in_flight).unwrap();
    let full: Vec<_> = (0..slots as usize).map(|n| get(vec![wanted[n]])).collect();
    reaches(slots).await;
    let first = get(wanted[20..25].to_vec());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = get(wanted[30..35].to_vec());
    tokio::time::sleep(Duration::from_millis(50)).await;
    full.iter().for_each(tokio::task::JoinHandle::abort);
    // The first call may send now, and takes the ranges of the second along.
    reaches(slots + 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(under_way(), slots + 1);
    stalls.store(false, Ordering::SeqCst);
    first.abort();
    let got = tokio::time::timeout(Duration::from_secs(5), second).await;
    assert_eq!(got.unwrap().unwrap().unwrap().len(), 5);
}

#[tokio::test]
async fn a_request_whose_connection_alone_is_silent_is_sent_again() {
    let stalled = Arc::new(AtomicBool::new(false));
    let first = Arc::clone(&stalled);
    let world = impatient_world(move |a| {
        let is_first = a.path.contains("/segments/") && !first.swap(true, Ordering::SeqCst);
        match is_first {
            true => Act::Stall(Vec::new()),
            false => Act::Honest,
        }
    })
    .await;
    let wanted = [world.handle(7)];
    let alone = world.store.get_many(&wanted, 0);
    let others = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let _ = world.store.get_many(&[world.handle(50)], 0).await;
        }
    };
    tokio::select! {
        got = alone => assert_eq!(got.unwrap().len(), 1),
        () = others => {}
    }
    assert!(stalled.load(Ordering::SeqCst));
}

#[tokio::test]
async fn few_records_are_asked_for_one_by_one() {
    let (world, wanted) = scattered(|a| match a.parts.is_empty() {
        true => Act::Honest,
        false => Act::Send(Vec::new()),
    })
    .await;
    right(&world, &wanted[..16]).await;
    let near = world_of(400, 600, |a| match a.parts.is_empty() {
        true => Act::Honest,
        false => Act::Send(Vec::new()),
    })
    .await;
    let wanted: Vec<Handle> = (0..16).map(|n| near.handle(n * 8)).collect();
    right(&near, &wanted).await;
}

#[tokio::test]
async fn records_between_others_come_without_them() {
    let world = world_of(4000, 600, |_| Act::Honest).await;
    let wanted: Vec<Handle> = (0..256).map(|n| world.handle(n * 15)).collect();
    right(&world, &wanted).await;
    // 256 records of 640 bytes, each with headers, and an index of 44 pages.
    let at_most = 256 * (640 + 200) + 46 * 4096 + 4096;
    assert!(world.received() <= at_most, "{}", world.received());
}

#[tokio::test]
async fn server_that_sends_no_parts_is_asked_for_them_once() {
    let one = |a: &Asked| match a.parts.first() {
        None => Act::Honest,
        Some((first, last)) => {
            let range = format!("Content-Range: bytes {first}-{last}/99999999");
            let len = last - first + 1;
            let head = format!("HTTP/1.1 206 P\r\n{range}\r\nContent-Length: {len}\r\n\r\n");
            Act::Close([head.into_bytes(), a.body[*first..=*last].to_vec()].concat())
        }
    };
    let all = |a: &Asked| match a.parts.is_empty() {
        true => Act::Honest,
        false => Act::Send(ok("", &a.body)),
    };
    let bad = |a: &Asked| match a.parts.is_empty() {
        true => Act::Honest,
        false => Act::Send(super::status("400 Bad Request")),
    };
    let acts: [fn(&Asked) -> Act; 3] = [one, all, bad];
    for act in acts {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let (world, wanted) = scattered(move |a| {
            counted.fetch_add(u32::from(!a.parts.is_empty()), Ordering::SeqCst);
            act(a)
        })
        .await;
        right(&world, &wanted).await;
        right(&world, &wanted).await;
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(world.received() < 20 << 20, "{}", world.received());
    }
}

#[tokio::test]
async fn other_parts_than_were_asked_for_are_not_taken() {
    let swapped = |a: &Asked| {
        let mut other = a.clone();
        other.parts.reverse();
        Act::Send(other.several(&a.body))
    };
    let shifted = |a: &Asked| {
        let mut file = a.body.clone();
        file.rotate_left(1);
        Act::Send(a.several(&file))
    };
    let endless = |a: &Asked| {
        let kind = "Content-Type: multipart/byteranges; boundary=b";
        let head = format!("HTTP/1.1 206 P\r\n{kind}\r\n\r\n--b\r\nX: {:?}", a.range);
        Act::Repeat(head.into_bytes(), vec![b'a'; 64 << 10], Duration::ZERO)
    };
    let acts: [fn(&Asked) -> Act; 3] = [swapped, shifted, endless];
    for (n, act) in acts.into_iter().enumerate() {
        // The question whether the server can send parts is answered honestly.
        let (world, wanted) = scattered(move |a| match a.parts.len() {
            0 | 2 => Act::Honest,
            _ => act(a),
        })
        .await;
        match n {
            0 => right(&world, &wanted).await,
            _ => {
                let got = world.store.get_many(&wanted, 0).await;
                assert!(matches!(got, Err(StoreError::BadAnswer { .. })), "{n}");
            }
        }
        assert!(world.received() < 40 << 20, "{}", world.received());
    }
}
