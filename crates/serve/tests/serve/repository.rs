//! A repository on disk, served and read back.

use std::time::Duration;

use serve::mirror::{Options, ServeError, Server};
use serve::net::Limits;
use sim::random::noise;
use sim::time::eventually;
use store::{BlockStore, Replica, Repository, Writer};
use trust::inode::Content;
use trust::statement::VolumeId;
use trust::{Handle, Kind};
use wire::{ObjectName, RemoteOptions, RemoteStore};

use crate::support::{patient, record};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpublished_or_foreign_head_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let empty = Server::bind(
        any,
        vec![repository.clone()],
        Limits::default(),
        Options::default(),
    );
    assert!(matches!(empty.err(), Some(ServeError::Unpublished { .. })));
    let mut writer = Writer::begin(&repository).unwrap();
    writer.commit(b"no head").unwrap();
    drop(writer);
    repository.refresh().unwrap();
    let foreign = Server::bind(any, vec![repository], Limits::default(), Options::default());
    assert!(matches!(foreign.err(), Some(ServeError::Head { .. })));
    let none = Server::bind(any, vec![], Limits::default(), Options::default());
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
    let options = Options {
        refresh: Duration::from_millis(20),
        ..Options::default()
    };
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let shelf: std::sync::Arc<dyn serve::mirror::RepositoryReader> =
        std::sync::Arc::new(repository.clone());
    let server = Server::listen(
        any,
        vec![(VolumeId::from_bytes([9; 32]), shelf)],
        Limits::default(),
        options,
    )
    .unwrap();
    let address = server.local_addr().to_string();
    let task = tokio::spawn(server.run(std::future::pending()));
    let store = RemoteStore::new(&address, VolumeId::from_bytes([9; 32]), patient());
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
    eventually("the new head", || repository.statements() == "two").await;
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
async fn link_planted_in_a_repository_gives_no_file_away() {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    writer.put_log_leaf(0, 0, b"leaf").unwrap();
    writer.commit(b"one").unwrap();
    drop(writer);
    repository.refresh().unwrap();
    std::fs::write(dir.path().join("key"), "private").unwrap();
    std::os::unix::fs::symlink("../../../key", dir.path().join("r/log/0/7")).unwrap();
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let reader: std::sync::Arc<dyn serve::mirror::RepositoryReader> =
        std::sync::Arc::new(repository);
    let volume = VolumeId::from_bytes([9; 32]);
    let volumes = vec![(volume, reader)];
    let server = Server::listen(any, volumes, Limits::default(), Options::default()).unwrap();
    let address = server.local_addr().to_string();
    let task = tokio::spawn(server.run(std::future::pending()));
    let store = RemoteStore::new(&address, volume, patient());
    let given = store.range("log/0/7".parse().unwrap(), 0, 1000).await;
    assert!(given.is_err(), "{given:?}");
    let leaf = store.range("log/0/0".parse().unwrap(), 0, 1000).await;
    assert_eq!(&leaf.unwrap().unwrap()[..], b"leaf");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_reader_gets_blocks_of_the_tree_with_the_head() {
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
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(
        any,
        vec![repository.clone()],
        Limits::default(),
        Options::default(),
    )
    .unwrap();
    let address = server.local_addr().to_string();
    let counters = server.counters();
    let task = tokio::spawn(server.run(std::future::pending()));
    let newcomer = |around| {
        let options = RemoteOptions {
            head_around_bytes: around,
            ..patient()
        };
        RemoteStore::new(&address, model.id(), options)
    };
    let store = newcomer(64 << 10);
    assert_eq!(store.head().await.unwrap(), head);
    let came: Vec<bool> = way.iter().map(|h| store.try_cached(h).is_some()).collect();
    assert_eq!(came, [true; 4]);
    // Content is not on the path, and leaves that do not fit are not sent.
    let data = sim::model::of_kind(&model.records, trust::Kind::Data)
        .next()
        .unwrap();
    assert!(store.try_cached(&data.handle).is_none());
    assert_eq!(counters.data_requests.get(), 0);
    let modest = newcomer(100);
    modest.head().await.unwrap();
    let came: Vec<bool> = way.iter().map(|h| modest.try_cached(h).is_some()).collect();
    assert!(!came[1] && !came[2] && !came[3]);
    // A head that cannot be decoded is served alone.
    write(b"no head");
    let store = newcomer(64 << 10);
    assert_eq!(&store.head().await.unwrap()[..], b"no head");
    assert!(store.try_cached(&way[0]).is_none());
    task.abort();
}

/// A volume of a wide root (2,000 names), `a/b/deep`, `long` (many blocks) and `link`.
struct Wide {
    model: sim::model::Model,
    head: bytes::Bytes,
    _dir: tempfile::TempDir,
    repository: Repository,
    options: Options,
}

impl Wide {
    fn new() -> Wide {
        let mut model = sim::model::Model::new(5).unwrap();
        let one = model.file(&[1; 1000], 65_536).unwrap();
        let deep = model.file(&[2; 1000], 65_536).unwrap();
        let long = model.file(&noise(3, 200_000), 1000).unwrap();
        let b = model.directory(vec![(b"deep".to_vec(), deep)]).unwrap();
        let a = model.directory(vec![(b"b".to_vec(), b)]).unwrap();
        let link = sim::model::inode(0o777, Content::Symlink(b"a/b/deep".as_slice().into()));
        let mut entries: Vec<_> = (0..2000)
            .map(|n| (format!("n{n:04}").into_bytes(), one.clone()))
            .collect();
        entries.push((b"a".to_vec(), a));
        entries.push((b"long".to_vec(), long));
        entries.push((b"link".to_vec(), link));
        let root = model.directory(entries).unwrap();
        let head = model.publish(&root, 1_700_000_000, 3600).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::create(dir.path().join("r")).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        for record in &model.records {
            writer.append(record).unwrap();
        }
        writer.commit(&head).unwrap();
        drop(writer);
        repository.refresh().unwrap();
        Wide {
            model,
            head,
            _dir: dir,
            repository,
            options: Options::default(),
        }
    }

    fn start(
        &self,
    ) -> (
        String,
        std::sync::Arc<serve::mirror::Counters>,
        tokio::task::JoinHandle<()>,
    ) {
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(
            any,
            vec![self.repository.clone()],
            Limits::default(),
            self.options.clone(),
        )
        .unwrap();
        let (address, counters) = (server.local_addr().to_string(), server.counters());
        let task = tokio::spawn(server.run(std::future::pending()));
        (address, counters, task)
    }

    /// How many records of each kind come for `path`: inode blocks, nodes of maps, nodes of arrays,
    /// data.
    async fn came(&self, address: &str, path: &[u8], around: usize) -> [usize; 4] {
        let options = RemoteOptions {
            way_around_bytes: around,
            ..patient()
        };
        let store = RemoteStore::new(address, self.model.id(), options);
        assert_eq!(store.head_toward(path).await.unwrap(), self.head);
        let kinds = [Kind::Inode, Kind::Map, Kind::Array, Kind::Data];
        kinds.map(|kind| {
            let of_kind = sim::model::of_kind(&self.model.records, kind);
            of_kind.filter_map(|r| store.try_cached(&r.handle)).count()
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_names_a_path_gets_the_blocks_on_it() {
    let wide = Wide::new();
    let (address, counters, task) = wide.start();
    let all = 64 << 10;
    // Twice: the second time from memory.
    for _ in 0..2 {
        for (path, expected) in [
            (&b"n0007"[..], [1, 2, 0, 1]),
            (b"a/b/deep", [1, 4, 0, 1]),
            (b"a/b", [1, 4, 0, 0]),
            (b"long", [1, 2, 1, 0]),
            (b"link", [1, 2, 0, 0]),
            (b"link/x", [1, 2, 0, 0]),
            (b"nowhere", [1, 2, 0, 0]),
            (b"a/nowhere/x", [1, 3, 0, 0]),
        ] {
            let came = wide.came(&address, path, all).await;
            assert_eq!(came, expected, "{}", String::from_utf8_lossy(path));
        }
    }
    assert_eq!(counters.walks.get(), 8);
    assert_eq!(counters.data_requests.get(), 0);
    assert_eq!(wide.came(&address, b"n0007", 0).await, [0; 4]);
    let root_only = wide.came(&address, b"n0007", 300).await;
    assert_eq!(root_only[0], 1);
    assert!(root_only[1] < 2 && root_only[3] == 0, "{root_only:?}");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ever_new_paths_over_one_connection_take_bounded_memory() {
    let mut wide = Wide::new();
    wide.options.path_cache_bytes = 1 << 20;
    let (address, counters, task) = wide.start();
    let id = wide.model.id();
    let store = RemoteStore::new(&address, id, patient());
    for n in 0..3000 {
        let path = format!("absent {n}/{}", "x/".repeat(100) + "y");
        assert_eq!(store.head_toward(path.as_bytes()).await.unwrap(), wide.head);
    }
    assert_eq!(counters.walks.get(), 3000);
    eventually("all is free", || counters.net.held_bytes.get() == 0).await;
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_expected_to_leave_may_stay() {
    let wide = Wide::new();
    let (address, counters, task) = wide.start();
    let id = wide.model.id();
    wide.came(&address, b"n0007", 64 << 10).await;
    let store = RemoteStore::new(&address, id, patient());
    let data: Vec<Handle> = sim::model::of_kind(&wide.model.records, Kind::Data)
        .map(|r| r.handle)
        .collect();
    store.head_toward(b"n0007").await.unwrap();
    for handle in &data[1..100] {
        let got = store.get_many(&[*handle], 0).await.unwrap();
        assert_eq!(got[0].handle, *handle);
    }
    assert_eq!(counters.net.connections.get(), 1);
    assert_eq!(counters.net.accepted.get(), 2);
    drop(store);
    // The server notices that a client left, without another connection.
    let store = RemoteStore::new(&address, id, patient());
    store.head_toward(b"n0007").await.unwrap();
    drop(store);
    eventually("all have left", || counters.net.connections.get() == 0).await;
    task.abort();
}
