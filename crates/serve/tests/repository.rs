//! The real thing: a repository on disk, served and read back.

mod support;

use std::time::Duration;

use serve::{Limits, ServeError, Server};
use store::{BlockStore, Replica, Repository, Writer};
use support::record;
use trust::Handle;
use wire::{ObjectName, RemoteOptions, RemoteStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpublished_or_foreign_head_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let empty = Server::bind(any, vec![repository.clone()], Limits::default());
    assert!(matches!(empty.err(), Some(ServeError::Unpublished { .. })));
    let mut writer = Writer::begin(&repository).unwrap();
    writer.commit(b"no head").unwrap();
    drop(writer);
    repository.refresh().unwrap();
    let foreign = Server::bind(any, vec![repository], Limits::default());
    assert!(matches!(foreign.err(), Some(ServeError::Head { .. })));
    let none = Server::bind(any, vec![], Limits::default());
    assert!(matches!(none.err(), Some(ServeError::Nothing)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_ranges_and_new_heads_of_a_repository_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let records: Vec<_> = (0..400).map(|n| record(n, 3000)).collect();
    let write = |range: std::ops::Range<usize>, head: &[u8]| {
        let mut writer = Writer::begin(&repository).unwrap();
        for record in &records[range] {
            writer.append(record).unwrap();
        }
        writer.commit(head).unwrap();
    };
    write(0..300, b"one");
    repository.refresh().unwrap();
    let limits = Limits {
        refresh: Duration::from_millis(20),
        ..Limits::default()
    };
    let any = "127.0.0.1:0".parse().unwrap();
    let shelf: std::sync::Arc<dyn serve::Shelf> = std::sync::Arc::new(repository.clone());
    let server = Server::listen(any, vec![([9; 32], shelf)], limits).unwrap();
    let address = server.local_addr().to_string();
    let task = tokio::spawn(server.run(std::future::pending()));
    let store = RemoteStore::new(&address, [9; 32], RemoteOptions::default());
    assert_eq!(&store.head().await.unwrap()[..], b"one");
    let want: Vec<Handle> = records.iter().map(|r| r.handle).collect();
    let mut got = store.get_many(&want, 0).await.unwrap();
    got.sort_by_key(|r| r.handle);
    let mut expected = records[..300].to_vec();
    expected.sort_by_key(|r| r.handle);
    assert_eq!(got, expected);
    let near = store.get_many(&want[..1], 20_000).await.unwrap();
    assert_eq!(near[0], records[0]);
    assert_eq!(near[1..], records[1..near.len()]);
    assert!(near.len() > 4);
    write(300..400, b"two");
    support::eventually("the new head", || repository.statements() == "two").await;
    assert_eq!(&store.head().await.unwrap()[..], b"two");
    assert_eq!(store.get_many(&want, 0).await.unwrap().len(), 400);
    let format = std::fs::read(dir.path().join("r/bulla")).unwrap();
    let got = store.range(ObjectName::Format, 0, 1000).await.unwrap();
    assert_eq!(got.unwrap(), format);
    for file in std::fs::read_dir(dir.path().join("r/segments")).unwrap() {
        let file = file.unwrap();
        let name = format!("segments/{}", file.file_name().to_str().unwrap());
        let bytes = std::fs::read(file.path()).unwrap();
        let got = store.range(name.parse().unwrap(), 100, 200_000).await;
        let end = bytes.len().min(200_100);
        assert_eq!(got.unwrap().unwrap(), bytes[100..end]);
    }
    let absent = store.range(ObjectName::Segment([1; 16]), 0, 10).await;
    assert_eq!(absent.unwrap(), None);
    task.abort();
}
