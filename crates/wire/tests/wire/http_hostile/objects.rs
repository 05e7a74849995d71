//! Objects of a repository on a web server, read in ranges.

use store::Objects;
use store::head::MAX_HEAD_BYTES;
use wire::ObjectName;

use super::server::{Act, world};

#[tokio::test]
async fn ranges_of_objects_equal_the_file() {
    let world_ = world(|a| {
        assert!(a.head.contains("accept-encoding: identity"));
        assert!(!a.head.contains("referer"));
        Act::Honest
    })
    .await;
    let format = world_.store.range(ObjectName::Format, 0, 5).await.unwrap();
    assert_eq!(format.unwrap(), "bulla");
    let all = world_
        .store
        .range(ObjectName::Format, 6, 4096)
        .await
        .unwrap();
    assert!(all.unwrap().starts_with(b"repository\n"));
    let none = world_
        .store
        .range(ObjectName::Segment([9; 16]), 0, 10)
        .await;
    assert_eq!(none.unwrap(), None);
    let head = world_.store.range(ObjectName::Head, 0, MAX_HEAD_BYTES);
    let head = head.await.unwrap().unwrap();
    let decoded = store::head::Head::decode(&head).unwrap();
    assert_eq!(decoded.statements, "head");
    let len = head.len() as u64;
    let end = world_.store.range(ObjectName::Head, len - 3, 99).await;
    assert_eq!(end.unwrap().unwrap(), head.slice(head.len() - 3..));
    let past = world_.store.range(ObjectName::Head, u64::MAX, 99).await;
    assert_eq!(past.unwrap().unwrap(), "");
}
