//! Blocks through the server: stored by one device, found by another, refused when they are not what they say.

use store::{BlockSink, BlockStore};
use trust::{Handle, Record};
use wire::shared::usage::UNKNOWN;
use wire::shared::{GUEST, QUOTA, WRONG_BLOCK};

use super::device::connect;
use super::volume::{Running, block, directory, founder, options, serve};

#[tokio::test]
async fn blocks_are_stored_and_found() {
    let (_dir, server) = serve();
    let (link, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let short: Vec<Record> = (0..50).map(|n| block(n, 3000)).collect();
    let long: Vec<Record> = (100..103).map(|n| block(n, 900_000)).collect();
    link.put(&short).await.unwrap();
    link.pstore(&long).await.unwrap();
    link.flush().await.unwrap();
    let all: Vec<Handle> = short.iter().chain(&long).map(|r| r.handle).collect();
    let absent = Handle::from_bytes([1; 32]);
    let asked = [&all[..], &[absent]].concat();
    assert_eq!(link.touch(&asked).await.unwrap(), [absent]);
    let mut found = link.get_many(&asked, 0).await.unwrap();
    found.sort_by_key(|r| all.iter().position(|h| *h == r.handle));
    assert_eq!(found, [&short[..], &long[..]].concat());
    link.decref(&all[..10]).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn block_under_a_wrong_name_is_refused() {
    let (_dir, server) = serve();
    let (link, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let wrong = Record {
        handle: Handle::from_bytes([1; 32]),
        ..block(1, 1000)
    };
    let refused = link.store(&[block(2, 1000), wrong.clone()]).await;
    assert_eq!(refused.unwrap_err().code(), Some(WRONG_BLOCK));
    let refused = link.pstore(&[block(2, 1000), wrong.clone()]).await;
    assert_eq!(refused.unwrap_err().code(), Some(WRONG_BLOCK));
    assert_eq!(link.retrieve(&[wrong.handle]).await.unwrap(), []);
    link.store(&[block(3, 1000)]).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn usage_says_what_the_device_has_stored_and_what_is_left() {
    let dir = directory();
    let mut options = options();
    options.blocks.quota.daily_bytes = 1_000_000;
    let server = Running::start(dir.path(), options, serve::shared::limits());
    let (link, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let before = link.usage().await.unwrap();
    assert_eq!((before.today_bytes, before.daily_bytes), (0, 1_000_000));
    assert_eq!(before.temporary_most_bytes, UNKNOWN);
    // The disk is that of this test, and others write there.
    assert!(before.disk_free_bytes > 0 && before.disk_free_bytes <= before.disk_bytes);
    assert!(before.disk_bytes < UNKNOWN);
    link.store(&[block(1, 100_000)]).await.unwrap();
    link.pstore(&[block(2, 200_000)]).await.unwrap();
    let after = link.usage().await.unwrap();
    assert!((300_000..301_000).contains(&after.today_bytes), "{after:?}");
    assert!(
        (100_000..101_000).contains(&after.temporary_bytes),
        "{after:?}"
    );
    let left = 1_000_000 - after.today_bytes;
    assert_eq!(after.free_bytes(), Some(left.min(after.disk_free_bytes)));
    // The USAGE answer states the same limits that a STORE is judged by.
    let refused = link.store(&[block(3, 900_000)]).await;
    assert_eq!(refused.unwrap_err().code(), Some(QUOTA));
    assert_eq!(link.usage().await.unwrap().today_bytes, after.today_bytes);
    let (guest, _pushes) = connect(&server.address, None).await.unwrap();
    assert_eq!(guest.usage().await.unwrap_err().code(), Some(GUEST));
    server.stop().await;
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered() {
    let (_dir, server) = serve();
    let (link, _pushes) = connect(&server.address, Some(&founder())).await.unwrap();
    let call = |n: u64| {
        let link = link.clone();
        tokio::spawn(async move {
            let record = block(n, 20_000);
            link.store(std::slice::from_ref(&record)).await.unwrap();
            let found = link.retrieve(&[record.handle]).await.unwrap();
            assert_eq!(found, [record]);
        })
    };
    let calls: Vec<_> = (0..200).map(call).collect();
    for call in calls {
        call.await.unwrap();
    }
    server.stop().await;
}
