//! The repositories' own layout over HTTP: the reader for static hosting can read it, the answers follow the
//! standard, and slow clients are cut off.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serve::mirror::{Counters, Options, RepositoryReader, Server};
use serve::net::Limits;
use sim::time::eventually;
use store::conformance::{Content, suite};
use store::{BlockStore, BoxFuture, Objects, Replica, Repository, StoreError, Writer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trust::statement::VolumeId;
use trust::{Handle, Record};
use wire::ObjectName;
use wire::http::HttpStore;
use wire::http::parts::{Part, boundary_of, most_bytes, range_header, split};

use crate::support::{patient_http, record};

const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

fn id() -> String {
    VOLUME.to_string()
}

/// A repository on disk behind a server, and a reader of it.
struct Served {
    dir: tempfile::TempDir,
    address: SocketAddr,
    counters: Arc<Counters>,
    store: HttpStore,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

impl Served {
    fn start(content: &Content, limits: Limits) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::create(dir.path()).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        for record in &content.records {
            writer.append(record).unwrap();
        }
        if let Some(head) = &content.head {
            writer.commit(head).unwrap();
        }
        drop(writer);
        repository.refresh().unwrap();
        let shelf: Arc<dyn RepositoryReader> = Arc::new(repository);
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::listen(any, vec![(VOLUME, shelf)], limits, Options::default()).unwrap();
        let server = server.also_http(any).unwrap();
        let address = server.http_addrs()[0];
        let (stop, stopped) = oneshot::channel::<()>();
        let url = format!("http://{address}").parse().unwrap();
        Served {
            dir,
            address,
            counters: server.counters(),
            store: HttpStore::new(&url, VOLUME, &patient_http()).unwrap(),
            stop: Some(stop),
            task: Some(tokio::spawn(server.run(async move {
                let _ = stopped.await;
            }))),
        }
    }

    fn new(limits: Limits) -> Served {
        let content = Content {
            records: (0..200).map(|n| record(n, 3000)).collect(),
            head: Some(Bytes::from_static(b"statements")),
        };
        Served::start(&content, limits)
    }

    /// The one file in a directory of the repository.
    fn file(&self, dir: &str) -> PathBuf {
        let mut files = std::fs::read_dir(self.dir.path().join(dir)).unwrap();
        files.next().unwrap().unwrap().path()
    }

    fn url_path(&self, file: &Path) -> String {
        let name = file.strip_prefix(self.dir.path()).unwrap();
        format!("/{}/{}", id(), name.display())
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn ask(&self, request: &str) -> Told {
        let mut stream = self.connect().await;
        ask_on(&mut stream, request).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl BlockStore for Served {
    fn place(&self) -> &str {
        self.store.place()
    }
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.store.get_many(want, around)
    }
}

impl Replica for Served {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.store.head()
    }
}

/// An answer, its head in lower case.
#[derive(Debug)]
struct Told {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Told {
    fn header(&self, name: &str) -> Option<&str> {
        let name = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&name))
    }
}

async fn ask_on(stream: &mut TcpStream, request: &str) -> Told {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut told = Told {
        status,
        head,
        body: Vec::new(),
    };
    let bodiless = request.starts_with("HEAD") || status == 304;
    let len: usize = told
        .header("content-length")
        .map_or(0, |n| n.parse().unwrap());
    if !bodiless {
        told.body = vec![0; len];
        stream.read_exact(&mut told.body).await.unwrap();
    }
    told
}

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{lines}\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_served_over_http_conforms() {
    let make = async |content: Content| Served::start(&content, Limits::default());
    suite(make, Bytes::from_static(b"head")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_served_whole_and_in_ranges() {
    let served = Served::new(Limits::default());
    let segment = served.file("segments");
    let bytes = std::fs::read(&segment).unwrap();
    assert!(bytes.len() > 500_000, "several pieces");
    let path = served.url_path(&segment);
    let mut stream = served.connect().await;
    let whole = ask_on(&mut stream, &get(&path, "")).await;
    assert_eq!((whole.status, &whole.body), (200, &bytes));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let keep = "public, max-age=31536000, immutable";
    assert_eq!(whole.header("cache-control"), Some(keep));
    assert_eq!(whole.header("x-content-type-options"), Some("nosniff"));
    // On the same connection.
    let total = bytes.len();
    for (range, expected) in [
        ("0-0", 0..1),
        ("16-99999", 16..100_000),
        ("-50", total - 50..total),
        ("500000-", 500_000..total),
    ] {
        let lines = format!("Range: bytes={range}\r\n");
        let piece = ask_on(&mut stream, &get(&path, &lines)).await;
        assert_eq!(piece.status, 206, "{range}");
        let last = expected.end - 1;
        let told = format!("bytes {}-{last}/{total}", expected.start);
        assert_eq!(piece.header("content-range"), Some(told.as_str()));
        assert_eq!(piece.body, bytes[expected], "{range}");
    }
    let lines = format!("Range: bytes={total}-\r\n");
    let past = ask_on(&mut stream, &get(&path, &lines)).await;
    assert_eq!(past.status, 416);
    let told = format!("bytes */{total}");
    assert_eq!(past.header("content-range"), Some(told.as_str()));
    // As a proxy asks: a range only if the tag still matches.
    let tag = whole.header("etag").unwrap();
    for (tag, status) in [(tag, 206), ("\"other\"", 200)] {
        let lines = format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n");
        let told = ask_on(&mut stream, &get(&path, &lines)).await;
        assert_eq!(told.status, status);
    }
    let lines = format!("If-None-Match: {tag}\r\n");
    assert_eq!(ask_on(&mut stream, &get(&path, &lines)).await.status, 304);
    let head = ask_on(&mut stream, &get(&path, "").replace("GET", "HEAD")).await;
    assert_eq!(head.status, 200);
    let len = total.to_string();
    assert_eq!(head.header("content-length"), Some(len.as_str()));
    let after = ask_on(&mut stream, &get(&path, "Range: bytes=0-3\r\n")).await;
    assert_eq!(
        after.body, b"bull",
        "nothing came behind the answer to HEAD"
    );
}

/// As the reader for static hosting cuts an answer with several parts.
fn cut(told: &Told, parts: &[Part]) -> Vec<Bytes> {
    let boundary = boundary_of(told.header("content-type").unwrap()).unwrap();
    split(&Bytes::from(told.body.clone()), boundary, parts).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_parts_of_a_file_come_in_one_answer() {
    let served = Served::new(Limits::default());
    let segment = served.file("segments");
    let bytes = std::fs::read(&segment).unwrap();
    let path = served.url_path(&segment);
    let mut stream = served.connect().await;
    let part = |offset, len_bytes| Part { offset, len_bytes };
    // Short ones; ones that take several pieces; as many as may be asked for; the last byte.
    let many: Vec<Part> = (0..64).map(|n| part(n * 7000 + 3, 1 + n * 50)).collect();
    let last = bytes.len() as u64 - 1;
    for parts in [
        vec![part(0, 1), part(2, 1)],
        vec![part(5, 150_000), part(200_000, 70_000), part(270_001, 9)],
        vec![part(0, 10), part(last, 1)],
        many,
    ] {
        let range = range_header(&parts).unwrap();
        let told = ask_on(&mut stream, &get(&path, &format!("Range: {range}\r\n"))).await;
        assert_eq!(told.status, 206, "{range}");
        assert_eq!(told.header("content-range"), None);
        for (part, came) in parts.iter().zip(cut(&told, &parts)) {
            let from = part.offset as usize;
            assert_eq!(came, bytes[from..from + part.len_bytes as usize]);
        }
        assert!(told.body.len() as u64 <= most_bytes(&parts));
    }
    // What the standard allows to ignore.
    for range in ["0-1,1-2", "5-6,0-1"] {
        let lines = format!("Range: bytes={range}\r\n");
        let told = ask_on(&mut stream, &get(&path, &lines)).await;
        assert_eq!((told.status, &told.body), (200, &bytes), "{range}");
    }
    let lines = "Range: bytes=0-1,4-5\r\n";
    let head = ask_on(&mut stream, &get(&format!("/{}/head", id()), lines)).await;
    assert_eq!(head.status, 200);
    let again = ask_on(&mut stream, &get(&path, lines)).await;
    assert_eq!(cut(&again, &[part(0, 2), part(4, 2)])[1], bytes[4..6]);
    // No publisher knows what separates the parts.
    let other = ask_on(&mut stream, &get(&path, lines)).await;
    assert_ne!(again.header("content-type"), other.header("content-type"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_blocks_that_lie_apart_asks_for_few_answers() {
    let served = Served::new(Limits::default());
    let wanted: Vec<Handle> = (0..200)
        .step_by(4)
        .map(|n| record(n, 3000).handle)
        .collect();
    let got = served.store.get_many(&wanted, 0).await.unwrap();
    assert_eq!(got.len(), wanted.len());
    let requests = served.counters.range_requests.get();
    // The index, whether the server sends parts, and one answer for fifty blocks.
    assert!(requests <= 4, "{requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_is_revalidated_on_each_request() {
    let served = Served::new(Limits::default());
    let path = format!("/{}/head", id());
    let first = served.ask(&get(&path, "")).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    let on_disk = std::fs::read(served.dir.path().join("head")).unwrap();
    assert_eq!(first.body, on_disk);
    let lines = format!("If-None-Match: {}\r\n", first.header("etag").unwrap());
    let same = served.ask(&get(&path, &lines)).await;
    assert_eq!((same.status, same.body.len()), (304, 0));
    // A commit is seen at once, because the next one may remove files that the old head names.
    let repository = Repository::open(served.dir.path()).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    writer.append(&record(999, 100)).unwrap();
    writer.commit(b"statements 2").unwrap();
    let second = served.ask(&get(&path, &lines)).await;
    assert_eq!(second.status, 200);
    assert_eq!(served.store.head().await.unwrap(), "statements 2");
    let got = served.store.get_many(&[record(999, 100).handle], 0).await;
    assert_eq!(got.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_objects_of_the_protocol_are_served() {
    let served = Served::new(Limits::default());
    std::fs::write(served.dir.path().join("secret"), "s").unwrap();
    let (id, other) = (id(), VolumeId::from_bytes([8; 32]).to_string());
    for path in [
        "/",
        "/head",
        "/robots.txt",
        &format!("/{id}/"),
        &format!("/{id}/lock"),
        &format!("/{id}/secret"),
        &format!("/{id}/segments/"),
        &format!("/{id}/segments/../secret"),
        &format!("/{id}/%2e%2e/secret"),
        &format!("/{id}/../../etc/passwd"),
        &format!("/{other}/head"),
        &format!("/{id}/segments/{}.seg", "0".repeat(32)),
        &format!("/{id}/log/9/9"),
    ] {
        let told = served.ask(&get(path, "")).await;
        assert_eq!(told.status, 404, "{path}");
        assert_eq!(told.header("cache-control"), Some("no-cache"));
    }
    let format = served.ask(&get(&format!("/{id}/bulla"), "")).await;
    assert!(format.body.starts_with(b"bulla repository\n"));
    // A client without an id asks for the id that no volume has, as in the protocol.
    let nobody = VolumeId::from_bytes([0; 32]).to_string();
    assert_eq!(
        served
            .ask(&get(&format!("/{nobody}/head"), ""))
            .await
            .status,
        200
    );
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "X"] {
        let told = served
            .ask(&get(&format!("/{id}/head"), "").replace("GET", method))
            .await;
        assert_eq!(told.status, 405, "{method}");
        assert_eq!(told.header("allow"), Some("get, head"));
    }
    assert_eq!(served.counters.no_object.get(), 12);
    assert_eq!(served.counters.no_volume.get(), 1);
    let none = served.store.range(ObjectName::Segment([0; 16]), 0, 1).await;
    assert_eq!(none.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_failure_is_reported_without_paths() {
    let served = Served::new(Limits::default());
    let segment = served.file("segments");
    let path = served.url_path(&segment);
    std::fs::remove_file(&segment).unwrap();
    assert_eq!(served.ask(&get(&path, "")).await.status, 404);
    std::fs::create_dir(&segment).unwrap();
    let told = served.ask(&get(&path, "")).await;
    assert_eq!(told.status, 500);
    let shown = String::from_utf8(told.body).unwrap() + &told.head;
    assert!(!shown.contains("seg") && !shown.contains("tmp"), "{shown}");
    assert_eq!(served.counters.storage_errors.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_send_half_a_request_or_nothing_are_cut_off() {
    let limits = Limits {
        hello_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let served = Served::new(limits);
    let path = format!("/{}/head", id());
    // Nothing at all.
    let mut silent = served.connect().await;
    assert_eq!(silent.read(&mut [0; 9]).await.unwrap(), 0);
    eventually("counted", || served.counters.net.idle.get() == 1).await;
    // A header a byte at a time.
    let mut slow = served.connect().await;
    for byte in get(&path, "").as_bytes() {
        if slow.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("cut off", || served.counters.net.too_slow.get() == 1).await;
    // A request, then silence.
    let mut idle = served.connect().await;
    assert_eq!(ask_on(&mut idle, &get(&path, "")).await.status, 200);
    assert_eq!(idle.read(&mut [0; 9]).await.unwrap(), 0);
    eventually("counted", || served.counters.net.idle.get() == 2).await;
    // An endless header.
    let mut long = served.connect().await;
    long.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let line = format!("X: {}\r\n", "y".repeat(1000));
    for _ in 0..100 {
        if long.write_all(line.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = long.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"));
    // Not HTTP.
    let mut other = served.connect().await;
    let _ = other.write_all(b"bulla\0\0\0\0\0\r\n\r\n").await;
    let _ = other.read_to_end(&mut answer).await;
    eventually("noticed", || served.counters.net.malformed.get() >= 2).await;
    eventually("all gone", || served.counters.net.connections.get() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_too_slowly_are_cut_off_and_hold_little_memory() {
    let limits = Limits {
        write_timeout: Duration::from_millis(500),
        min_bytes_per_second: 8 << 20,
        ..Limits::default()
    };
    let content = Content {
        records: (0..40).map(|n| record(n, 900_000)).collect(),
        head: Some(Bytes::from_static(b"head")),
    };
    let served = Served::start(&content, limits);
    let path = served.url_path(&served.file("segments"));
    let mut slow = served.connect().await;
    slow.write_all(get(&path, "").as_bytes()).await.unwrap();
    eventually("under way", || served.counters.net.held_bytes.get() > 0).await;
    assert!(served.counters.net.held_bytes.get() <= 64 << 10);
    let mut buf = vec![0; 1000];
    let began = Instant::now();
    loop {
        match slow.read(&mut buf).await {
            Ok(0) | Err(_) => break,
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
        if served.counters.net.too_slow.get() == 1 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "still served");
    }
    eventually("counted", || served.counters.net.too_slow.get() == 1).await;
    eventually("released", || served.counters.net.held_bytes.get() == 0).await;
    // A client that reads in time gets everything. A busy machine may not be as fast as the limits above.
    let served = Served::start(&content, Limits::default());
    let path = served.url_path(&served.file("segments"));
    let whole = served.ask(&get(&path, "")).await;
    assert!(whole.body.len() > 36_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_gets_a_503() {
    let limits = Limits {
        max_connections: 3,
        ..Limits::default()
    };
    let served = Served::new(limits);
    let path = format!("/{}/head", id());
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = served.connect().await;
        assert_eq!(ask_on(&mut stream, &get(&path, "")).await.status, 200);
        open.push(stream);
    }
    let told = served.ask("").await;
    assert_eq!((told.status, told.header("retry-after")), (503, Some("1")));
    drop(open);
    eventually("seats free", || served.counters.net.connections.get() == 0).await;
    assert_eq!(served.ask(&get(&path, "")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowded_server_answers_503() {
    let limits = Limits {
        max_held_bytes: 100 << 10,
        room_timeout: Duration::from_secs(600),
        ..Limits::default()
    };
    let content = Content {
        records: (0..40).map(|n| record(n, 900_000)).collect(),
        head: Some(Bytes::from_static(b"head")),
    };
    let served = Served::start(&content, limits);
    let path = served.url_path(&served.file("segments"));
    let mut takers = Vec::new();
    for address in ["127.0.0.2:0", "127.0.0.3:0"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address.parse().unwrap()).unwrap();
        let mut stream = socket.connect(served.address).await.unwrap();
        stream.write_all(get(&path, "").as_bytes()).await.unwrap();
        takers.push(stream);
    }
    eventually("crowded", || {
        served.counters.net.held_bytes.get() > 100 << 10
    })
    .await;
    let told = served.ask(&get(&path, "Range: bytes=0-9\r\n")).await;
    assert_eq!((told.status, told.header("retry-after")), (503, Some("1")));
    assert_eq!(served.counters.net.busy.get(), 1);
    drop(takers);
    let told = served.ask(&get(&path, "Range: bytes=0-9\r\n")).await;
    assert_eq!(told.status, 206);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_make_room_for_others_of_their_address() {
    let limits = Limits {
        max_held_bytes: 4 << 20,
        write_timeout: Duration::from_secs(600),
        ..Limits::default()
    };
    let content = Content {
        records: (0..40).map(|n| record(n, 900_000)).collect(),
        head: Some(Bytes::from_static(b"head")),
    };
    let served = Served::start(&content, limits);
    let path = served.url_path(&served.file("segments"));
    let mut mute = Vec::new();
    for _ in 0..6 {
        let mut stream = served.connect().await;
        stream.write_all(get(&path, "").as_bytes()).await.unwrap();
        mute.push(stream);
    }
    let net = &served.counters.net;
    eventually("their share is held", || {
        net.held_bytes.get() >= 3 * (64 << 10)
    })
    .await;
    let began = Instant::now();
    for _ in 0..3 {
        while served.ask(&get(&path, "Range: bytes=0-9\r\n")).await.status != 206 {
            assert!(began.elapsed() < Duration::from_secs(60), "refused");
        }
    }
    assert!(net.too_slow.get() > 0, "nobody was in the way");
    drop(mute);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_server_finishes_what_it_began() {
    let mut served = Served::new(Limits::default());
    let path = format!("/{}/head", id());
    let mut idle = served.connect().await;
    assert_eq!(ask_on(&mut idle, &get(&path, "")).await.status, 200);
    let began = Instant::now();
    served.stop.take();
    served.task.take().unwrap().await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "idle connections are not waited for"
    );
    assert_eq!(idle.read(&mut [0; 9]).await.unwrap(), 0);
    assert!(TcpStream::connect(served.address).await.is_err());
}
