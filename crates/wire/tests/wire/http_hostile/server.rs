//! The server: honest, except for answers that a test changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use store::conformance::record;
use store::{BlockStore, Repository, StoreError, Writer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use trust::{Handle, Kind, Record};
use wire::http::{HttpOptions, HttpStore};

pub const VOLUME: trust::statement::VolumeId = trust::statement::VolumeId::from_bytes([1; 32]);

/// The server's reaction to a request.
pub enum Act {
    /// The honest answer.
    Honest,
    /// The honest answer, when this is closed.
    Later(Arc<Semaphore>),
    /// Sends this, keeps the connection.
    Send(Vec<u8>),
    /// Sends this and closes.
    Close(Vec<u8>),
    /// Sends this, then these bytes again and again, with a pause between.
    Repeat(Vec<u8>, Vec<u8>, Duration),
    /// Sends this and then nothing more.
    Stall(Vec<u8>),
}

/// The parts of a request that a lie may need.
#[derive(Clone)]
pub struct Asked {
    pub path: String,
    pub range: Option<(usize, usize)>,
    /// Several parts (first and last byte).
    pub parts: Vec<(usize, usize)>,
    /// How many requests for segments there were before this one.
    pub segments_before: u32,
    pub head: String,
    /// The honest answer's body.
    pub body: Vec<u8>,
}

impl Asked {
    pub fn is_head(&self) -> bool {
        self.path.ends_with("/head")
    }
    pub fn is_index(&self) -> bool {
        self.path.contains("/index/")
    }
    pub fn is_segment(&self) -> bool {
        self.path.contains("/segments/")
    }
    pub fn content_range(&self) -> String {
        let (first, _) = self.range.unwrap();
        let last = first + self.body.len() - 1;
        format!("Content-Range: bytes {first}-{last}/999999999\r\n")
    }
    /// The parts of a file that were asked for.
    pub fn several(&self, file: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for (first, last) in &self.parts {
            let range = format!("Content-Range: bytes {first}-{last}/{}", file.len());
            body.extend_from_slice(format!("\r\n--b\r\n{range}\r\n\r\n").as_bytes());
            body.extend_from_slice(&file[*first..=*last]);
        }
        body.extend_from_slice(b"\r\n--b--\r\n");
        let kind = "Content-Type: multipart/byteranges; boundary=b";
        let len = body.len();
        let head = format!("HTTP/1.1 206 P\r\n{kind}\r\nContent-Length: {len}\r\n\r\n");
        [head.as_bytes(), &body].concat()
    }
    /// A 206 with this body and `lines` among its headers.
    pub fn partial(&self, lines: &str, body: &[u8]) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 206 Partial\r\n{}{lines}\r\n",
            self.content_range()
        );
        [head.as_bytes(), body].concat()
    }
}

pub fn ok(lines: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{lines}\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

type Behaviour = dyn Fn(&Asked) -> Act + Send + Sync;

/// A repository of 60 blocks and the server for it.
pub struct World {
    pub records: Vec<Record>,
    pub store: HttpStore,
    pub log: Arc<Mutex<Vec<String>>>,
}

pub async fn world(behave: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> World {
    world_of(60, 1500, behave).await
}

pub async fn world_of(
    count: u64,
    len: usize,
    behave: impl Fn(&Asked) -> Act + Send + Sync + 'static,
) -> World {
    world_with(count, len, patient(), behave).await
}

/// Time-outs that no answer of the server reaches, however busy the machine is. What follows a failure at once falls
/// into the pause.
fn patient() -> HttpOptions {
    HttpOptions {
        connect_timeout: Duration::from_secs(60),
        stall: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        first_pause: Duration::from_secs(60),
        ..HttpOptions::default()
    }
}

/// The world of a client that gives up soon.
pub async fn impatient_world(behave: impl Fn(&Asked) -> Act + Send + Sync + 'static) -> World {
    let options = HttpOptions {
        stall: Duration::from_secs(2),
        grace: Duration::from_secs(4),
        ..patient()
    };
    world_with(60, 1500, options, behave).await
}

async fn world_with(
    count: u64,
    len: usize,
    options: HttpOptions,
    behave: impl Fn(&Asked) -> Act + Send + Sync + 'static,
) -> World {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path()).unwrap();
    let records: Vec<Record> = (0..count).map(|n| record(Kind::Data, n, len)).collect();
    let mut writer = Writer::begin(&repository).unwrap();
    records
        .iter()
        .for_each(|r| assert!(writer.append(r).unwrap()));
    writer.commit(b"head").unwrap();
    let mut files = HashMap::new();
    for part in ["", "index", "segments"] {
        for entry in std::fs::read_dir(dir.path().join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                let name = entry.file_name().into_string().unwrap();
                let path = format!("/{part}/{name}").replace("//", "/");
                files.insert(path, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    let log = Arc::new(Mutex::new(Vec::new()));
    let address = listen(Arc::new(files), Arc::clone(&log), Arc::new(behave)).await;
    let address = format!("http://{address}").parse().unwrap();
    World {
        records,
        store: HttpStore::new(&address, VOLUME, &options).unwrap(),
        log,
    }
}

async fn listen(
    files: Arc<HashMap<String, Vec<u8>>>,
    log: Arc<Mutex<Vec<String>>>,
    behave: Arc<Behaviour>,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let segments = Arc::new(AtomicU32::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (files, log) = (Arc::clone(&files), Arc::clone(&log));
            let (behave, segments) = (Arc::clone(&behave), Arc::clone(&segments));
            tokio::spawn(async move {
                let _ = connection(stream, &files, &log, &*behave, &segments).await;
            });
        }
    });
    address
}

async fn connection(
    mut stream: TcpStream,
    files: &HashMap<String, Vec<u8>>,
    log: &Mutex<Vec<String>>,
    behave: &Behaviour,
    segments: &AtomicU32,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let head: Vec<u8> = buffer.drain(..end).collect();
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let range = head.lines().find_map(|l| l.strip_prefix("range: bytes="));
        let parts: Vec<(usize, usize)> = range
            .into_iter()
            .flat_map(|r| r.split(','))
            .map(|r| {
                let (first, last) = r.trim().split_once('-').unwrap();
                (first.parse().unwrap(), last.parse().unwrap())
            })
            .collect();
        let (range, parts) = match &*parts {
            [] => (None, Vec::new()),
            [one] => (Some(*one), Vec::new()),
            _ => (None, parts),
        };
        let body = files.get(&path).map(|file| match range {
            None => file.clone(),
            Some((first, last)) => {
                let end = file.len().min(last + 1);
                file[first.min(end)..end].to_vec()
            }
        });
        let mut asked = Asked {
            segments_before: segments.load(Ordering::SeqCst),
            path,
            range,
            parts,
            head,
            body: body.clone().unwrap_or_default(),
        };
        log.lock().unwrap().push(asked.path.clone());
        let mut act = behave(&asked);
        if asked.is_segment() {
            segments.fetch_add(1, Ordering::SeqCst);
        }
        if let Act::Later(gate) = &act {
            let _ = gate.acquire().await;
            act = Act::Honest;
        }
        match act {
            Act::Honest | Act::Later(_) => {
                let answer = match (body, range) {
                    (None, _) => status("404 Not Found"),
                    (Some(file), None) if !asked.parts.is_empty() => asked.several(&file),
                    (Some(body), None) => ok("", &body),
                    (Some(body), Some((first, _))) => {
                        let total = files[&asked.path].len();
                        let lines = format!("Content-Length: {}\r\n", body.len());
                        asked.body = body.clone();
                        let honest = String::from_utf8_lossy(&asked.partial(&lines, b""))
                            .replace("999999999", &total.to_string());
                        assert!(first <= total);
                        [honest.as_bytes(), &body].concat()
                    }
                };
                stream.write_all(&answer).await?;
            }
            Act::Send(bytes) => stream.write_all(&bytes).await?,
            Act::Close(bytes) => {
                stream.write_all(&bytes).await?;
                return Ok(());
            }
            Act::Repeat(first, again, pause) => {
                stream.write_all(&first).await?;
                loop {
                    stream.write_all(&again).await?;
                    tokio::time::sleep(pause).await;
                }
            }
            Act::Stall(bytes) => {
                stream.write_all(&bytes).await?;
                // Until the client hangs up.
                stream.read_to_end(&mut buffer).await?;
                return Ok(());
            }
        }
    }
}

impl World {
    pub fn handle(&self, n: usize) -> Handle {
        self.records[n].handle
    }
    pub async fn get(&self) -> Result<Vec<Record>, StoreError> {
        self.store
            .get_many(&[self.handle(7), self.handle(40)], 3000)
            .await
    }
    pub fn requests(&self, part: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|path| path.contains(part)).count()
    }
    pub fn received(&self) -> u64 {
        self.store.counters().received_bytes.load(Ordering::Relaxed)
    }
}
