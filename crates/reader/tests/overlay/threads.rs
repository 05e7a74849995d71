//! Many writers, readers and one uploader at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reader::{Blocks, Expect, Fetch, OverlayError, Position, now};
use trust::{Data, Handle};

use crate::store_log::{StoreLog, blocks, soon};

const WRITERS: u32 = 4;
const BLOCKS: u32 = 500;

fn content(writer: u32, number: u32) -> Vec<u8> {
    [writer, number].map(u32::to_le_bytes).concat().repeat(200)
}

/// Puts blocks and reads each at once; waits for the uploader when the overlay is full.
fn write(blocks: &Blocks, writer: u32) -> Vec<Handle<Data>> {
    let overlay = blocks.overlay().unwrap();
    let put = |number| loop {
        match overlay.put::<Data>(&content(writer, number)) {
            Ok(handle) => return handle,
            Err(OverlayError::Full { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let written = (0..BLOCKS).map(|number| {
        let handle = put(number);
        // In the overlay, or in the cache if the uploader was quick: never absent.
        let block = now(blocks.get(&handle, Expect::Nothing, Fetch::Cached)).unwrap();
        assert_eq!(block.bytes().as_ref(), content(writer, number));
        handle
    });
    written.collect()
}

/// Stores what is put until all writers are done, and then the rest.
fn upload(blocks: &Blocks, store: &StoreLog, done: &AtomicBool) {
    let overlay = blocks.overlay().unwrap();
    loop {
        let is_last = done.load(Ordering::SeqCst);
        let upload = overlay.upload(Position::default(), 64 << 10).unwrap();
        if upload.records.is_empty() {
            if is_last {
                return;
            }
            std::thread::yield_now();
            continue;
        }
        let handles: Vec<Handle> = upload.records.iter().map(|record| record.handle).collect();
        upload.records.into_iter().for_each(|r| store.insert(r));
        blocks.stored(&handles);
    }
}

#[tokio::test]
async fn concurrent_writers_read_their_blocks_while_these_are_stored() {
    let store = StoreLog::new();
    let blocks = Arc::new(blocks(&store, 64 << 20, 200_000));
    let done = AtomicBool::new(false);
    let handles = std::thread::scope(|scope| {
        let uploader = scope.spawn(|| upload(&blocks, &store, &done));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let blocks = &blocks;
                scope.spawn(move || write(blocks, writer))
            })
            .collect();
        let handles: Vec<Vec<_>> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        done.store(true, Ordering::SeqCst);
        uploader.join().unwrap();
        handles
    });
    let overlay = blocks.overlay().unwrap();
    assert!(overlay.is_empty());
    assert_eq!(overlay.memory_bytes().0, 0);
    // Another reader gets all of it from the store.
    let other = crate::store_log::blocks(&store, 1 << 20, 1 << 20);
    for (writer, handles) in handles.iter().enumerate() {
        let read = other.get_many(handles, soon()).await.unwrap();
        for (number, block) in read.iter().enumerate() {
            let expected = content(writer as u32, number as u32);
            assert_eq!(block.bytes().as_ref(), expected);
        }
    }
}
