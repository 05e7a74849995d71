//! Which blocks the overlay refuses, and that cache pressure evicts none.

use reader::{Expect, Fetch, OverlayError, Position, ReadError, now};
use trust::frame::MAX_BLOCK_BYTES;
use trust::{Data, Handle, MapNode};

use crate::store_log::{StoreLog, blocks, soon};

const LIMIT_BYTES: u64 = 1 << 20;

fn block(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; 10_000];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn full_overlay_refuses_new_blocks_until_some_are_stored() {
    let store = StoreLog::new();
    let blocks = blocks(&store, 1 << 20, LIMIT_BYTES);
    let overlay = blocks.overlay().unwrap();
    let mut handles: Vec<Handle<Data>> = Vec::new();
    let refused = loop {
        match overlay.put::<Data>(&block(handles.len() as u32)) {
            Ok(handle) => handles.push(handle),
            Err(error) => break error,
        }
        assert!(handles.len() < 1000, "the overlay never becomes full");
    };
    let (used_bytes, limit_bytes) = overlay.memory_bytes();
    assert_eq!(limit_bytes, LIMIT_BYTES);
    assert!(used_bytes <= LIMIT_BYTES && used_bytes > LIMIT_BYTES - 11_000);
    let OverlayError::Full { needed_bytes, .. } = refused else {
        panic!("{refused}");
    };
    assert!(needed_bytes > 10_000);
    // A block that is there already needs no room.
    assert_eq!(overlay.put::<Data>(&block(0)), Ok(handles[0]));
    let first = overlay.upload(Position::default(), 1).unwrap();
    assert_eq!(first.records.len(), 1);
    blocks.stored(&[first.records[0].handle]);
    assert!(!overlay.contains(&handles[0].any()));
    let cached = now(blocks.get(&handles[0], Expect::Nothing, Fetch::Cached));
    assert_eq!(cached.unwrap().bytes().as_ref(), block(0));
    let count = handles.len() as u32;
    overlay.put::<Data>(&block(count)).unwrap();
    assert!(overlay.memory_bytes().0 <= LIMIT_BYTES);
}

#[test]
fn empty_blocks_count_towards_the_limit() {
    let store = StoreLog::new();
    let blocks = blocks(&store, 1 << 20, 10_000);
    let overlay = blocks.overlay().unwrap();
    let put = |number: u32| overlay.put::<Data>(&number.to_le_bytes());
    let taken = (0..1000).take_while(|number| put(*number).is_ok()).count();
    assert!((10..50).contains(&taken), "{taken}");
}

#[tokio::test]
async fn cache_pressure_evicts_no_block_of_the_overlay() {
    let store = StoreLog::new();
    // The cache holds six of these blocks, the overlay a hundred.
    let blocks = blocks(&store, 64 << 10, 2 << 20);
    let overlay = blocks.overlay().unwrap();
    let own: Vec<Handle<Data>> = (0..100)
        .map(|number| overlay.put(&block(number)).unwrap())
        .collect();
    let mut packer = trust::frame::Packer::new();
    let hasher = blocks.hasher().clone();
    for number in 1000..1100 {
        let frame = packer.pack(trust::Kind::Data, &block(number)).unwrap();
        let handle: Handle<Data> = hasher.handle(&block(number));
        let record = trust::Record {
            handle: handle.any(),
            frame,
        };
        store.insert(record);
        blocks.get(&handle, Expect::Nothing, soon()).await.unwrap();
    }
    for (number, handle) in own.iter().enumerate() {
        let got = now(blocks.get(handle, Expect::Nothing, Fetch::Cached)).unwrap();
        assert_eq!(got.bytes().as_ref(), block(number as u32));
        assert!(!store.was_asked(&handle.any()));
    }
}

#[test]
fn long_and_malformed_blocks_are_refused() {
    let store = StoreLog::new();
    let blocks = blocks(&store, 1 << 20, 4 << 20);
    let overlay = blocks.overlay().unwrap();
    let long = overlay.put::<Data>(&vec![0; MAX_BLOCK_BYTES + 1]);
    let len_bytes = MAX_BLOCK_BYTES + 1;
    assert_eq!(long, Err(OverlayError::TooLong { len_bytes }));
    let no_node = overlay.put::<MapNode>(b"not a map node");
    assert!(matches!(no_node, Err(OverlayError::Malformed(_))));
    assert!(overlay.is_empty());
    assert_eq!(overlay.memory_bytes().0, 0);
    overlay.put::<Data>(&vec![0; MAX_BLOCK_BYTES]).unwrap();
}

#[test]
fn block_read_as_another_kind_is_malformed() {
    let store = StoreLog::new();
    let blocks = blocks(&store, 1 << 20, 1 << 20);
    let data = blocks.overlay().unwrap().put::<Data>(b"data").unwrap();
    let node = Handle::<MapNode>::from_bytes(*data.as_bytes());
    let read = now(blocks.get(&node, Expect::Nothing, Fetch::Cached));
    assert!(matches!(read, Err(ReadError::Malformed(_))), "{read:?}");
}
