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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_gets_the_way_into_the_tree_with_the_head() {
    let mut model = sim::model::Model::new(3).unwrap();
    let file = model.file(&[1; 1000], 65_536).unwrap();
    let below = model
        .directory(vec![(b"f".to_vec(), file.clone())])
        .unwrap();
    let many = (0..3000).map(|n| (format!("n{n:04}").into_bytes(), file.clone()));
    let mut entries: Vec<_> = many.collect();
    let wide = model.directory(entries.split_off(10)).unwrap();
    entries.push((b"below".to_vec(), below.clone()));
    entries.push((b"wide".to_vec(), wide.clone()));
    let root = model.directory(entries).unwrap();
    let head = model.publish(&root, 1_700_000_000, 3600).unwrap();
    let handle_of = |inode: &trust::inode::Inode| match &inode.content {
        trust::inode::Content::Directory { map, .. } => map.as_ref().unwrap().handle.any(),
        _ => panic!("no directory"),
    };
    let root_block = model.hasher().handle::<trust::InodeBlock>(&root.encode());
    let way = [
        root_block.any(),
        handle_of(&root),
        handle_of(&below),
        handle_of(&wide),
    ];

    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let write = |head: &[u8]| {
        let mut writer = Writer::begin(&repository).unwrap();
        for record in &model.records {
            writer.append(record).unwrap();
        }
        writer.commit(head).unwrap();
        repository.refresh().unwrap();
    };
    write(&head);
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(any, vec![repository.clone()], Limits::default()).unwrap();
    let address = server.local_addr().to_string();
    let counters = server.counters();
    let task = tokio::spawn(server.run(std::future::pending()));
    let newcomer = |around| {
        let options = RemoteOptions {
            head_around_bytes: around,
            ..RemoteOptions::default()
        };
        RemoteStore::new(&address, *model.id().as_bytes(), options)
    };
    let store = newcomer(64 << 10);
    assert_eq!(store.head().await.unwrap(), head);
    let came: Vec<bool> = way.iter().map(|h| store.try_cached(h).is_some()).collect();
    assert_eq!(came, [true; 4]);
    // Content is not on the way, and leaves that do not fit stay at home.
    let data = sim::model::of_kind(&model.records, trust::Kind::Data)
        .next()
        .unwrap();
    assert!(store.try_cached(&data.handle).is_none());
    assert_eq!(counters.data_requests.get(), 0);
    let modest = newcomer(100);
    modest.head().await.unwrap();
    let came: Vec<bool> = way.iter().map(|h| modest.try_cached(h).is_some()).collect();
    assert!(!came[1] && !came[2] && !came[3]);
    // A head that is none is served alone.
    write(b"no head");
    let store = newcomer(64 << 10);
    assert_eq!(&store.head().await.unwrap()[..], b"no head");
    assert!(store.try_cached(&way[0]).is_none());
    task.abort();
}
