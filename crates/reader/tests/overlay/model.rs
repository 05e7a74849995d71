//! The overlay against a model: a list of what was put and a set of what was stored.

use std::collections::HashSet;

use proptest::prelude::*;
use reader::{Expect, Fetch, Position, ReadError, now};
use trust::{Data, Handle};

use crate::store_log::{StoreLog, blocks, hasher, soon};

#[derive(Debug, Clone)]
enum Step {
    Put(u8),
    /// Uploads up to this many bytes, oldest first.
    Store(usize),
    Get(u8),
    /// Reads a large stored block, which evicts others from the cache.
    Evict(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..40u8).prop_map(Step::Put),
        1 => (1..3000usize).prop_map(Step::Store),
        4 => (0..40u8).prop_map(Step::Get),
        1 => (0..16u8).prop_map(Step::Evict),
    ]
}

fn content(number: u8) -> Vec<u8> {
    vec![number; 100 + 13 * usize::from(number)]
}

fn large(number: u8) -> Vec<u8> {
    vec![number; 40_000]
}

fn handle(bytes: &[u8]) -> Handle<Data> {
    hasher().handle(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 4 / 5))]

    #[test]
    fn overlay_behaves_like_a_list_of_unstored_blocks(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = StoreLog::new();
        let mut packer = trust::frame::Packer::new();
        for number in 0..16 {
            let plaintext = large(number);
            let frame = packer.pack(trust::Kind::Data, &plaintext).unwrap();
            store.insert(trust::Record { handle: handle(&plaintext).any(), frame });
        }
        let blocks = blocks(&store, 100_000, 1 << 20);
        let overlay = blocks.overlay().unwrap();
        // In the order in which they were put.
        let mut unstored: Vec<u8> = Vec::new();
        let mut stored: HashSet<u8> = HashSet::new();
        for step in steps {
            match step {
                Step::Put(number) => {
                    let put = overlay.put::<Data>(&content(number)).unwrap();
                    prop_assert_eq!(put, handle(&content(number)));
                    if !unstored.contains(&number) {
                        unstored.push(number);
                    }
                }
                Step::Store(max_bytes) => {
                    let upload = overlay.upload(Position::default(), max_bytes).unwrap();
                    let mut left = max_bytes;
                    let fits = unstored.iter().enumerate().take_while(|(at, number)| {
                        let len = content(**number).len();
                        let fits = *at == 0 || len <= left;
                        left = left.saturating_sub(len);
                        fits
                    });
                    let expected: Vec<u8> = fits.map(|(_, number)| *number).collect();
                    let handles: Vec<Handle> = upload.records.iter().map(|r| r.handle).collect();
                    let wanted: Vec<Handle> =
                        expected.iter().map(|n| handle(&content(*n)).any()).collect();
                    prop_assert_eq!(&handles, &wanted);
                    upload.records.into_iter().for_each(|record| store.insert(record));
                    blocks.stored(&handles);
                    unstored.retain(|number| !expected.contains(number));
                    stored.extend(expected);
                }
                Step::Get(number) if unstored.contains(&number) => {
                    let handle = handle(&content(number));
                    let block = now(blocks.get(&handle, Expect::Nothing, Fetch::Cached)).unwrap();
                    prop_assert_eq!(block.bytes().to_vec(), content(number));
                }
                Step::Get(number) => {
                    let handle = handle(&content(number));
                    let wanted = [handle];
                    let got = runtime.block_on(blocks.get_many(&wanted, soon()));
                    match stored.contains(&number) {
                        true => {
                            let block = got.unwrap().remove(0);
                            prop_assert_eq!(block.bytes().to_vec(), content(number));
                        }
                        false => {
                            let unavailable = matches!(got, Err(ReadError::Unavailable { .. }));
                            prop_assert!(unavailable);
                        }
                    }
                }
                Step::Evict(number) => {
                    let wanted = [handle(&large(number))];
                    let got = runtime.block_on(blocks.get_many(&wanted, soon()));
                    prop_assert_eq!(got.unwrap().len(), 1);
                }
            }
            prop_assert_eq!(overlay.len(), unstored.len());
        }
        let all = overlay.upload(Position::default(), usize::MAX).unwrap();
        let handles: Vec<Handle> = all.records.iter().map(|record| record.handle).collect();
        blocks.stored(&handles);
        prop_assert!(overlay.is_empty());
        prop_assert_eq!(overlay.memory_bytes().0, 0);
    }
}
