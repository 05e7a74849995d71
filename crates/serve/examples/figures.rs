//! Measures the server's cost: CPU time per request and per new connection, and memory per idle connection.
//! The server runs in a process of its own, with a repository in the page cache.
//!
//! `cargo run --release -p bulla-serve --example figures [-- SECONDS]`. One line a figure.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use serve::mirror::reader::Regions;
use serve::mirror::{Options, RepositoryReader, Server};
use serve::net::Limits;
use sim::random::noise;
use store::{Repository, StoreError, Writer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use trust::frame::Packer;
use trust::{Handle, Kind, Record};
use wire::ObjectName;
use wire::frame::{HEADER_BYTES, HELLO, Header, MAX_ANSWER_BYTES};
use wire::mirror::{Request, kind, put_get_data};

const VOLUME: trust::statement::VolumeId = trust::statement::VolumeId::from_bytes([7; 32]);
const BLOCKS: u64 = 20_000;
const BLOCK_BYTES: usize = 8 << 10;
/// Selects a repository in memory, which needs no system call: the result is the cost of the protocol.
const MEMORY: &str = "-";

fn handle(n: u64) -> Handle {
    let mut bytes = [0; 32];
    let words = noise(n + 1, 32);
    bytes.copy_from_slice(&words);
    Handle::from_bytes(bytes)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("server") {
        return serve_until_stdin_ends(&args.next().unwrap());
    }
    let seconds = first.map_or(3, |s| s.parse().expect("seconds"));
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(dir.path().join("r")).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    let mut packer = Packer::new();
    for n in 0..BLOCKS {
        let frame = packer.pack(Kind::Data, &noise(n, BLOCK_BYTES)).unwrap();
        let record = Record {
            handle: handle(n),
            frame,
        };
        writer.append(&record).unwrap();
    }
    writer.commit(&noise(1, 600)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let repository = dir.path().join("r");
    let disk = repository.to_str().unwrap();
    for (from, connections, in_flight) in [
        (disk, 64, 1),
        (disk, 64, 16),
        (disk, 1, 1),
        (disk, 1, 16),
        (MEMORY, 64, 1),
        (MEMORY, 64, 16),
    ] {
        let server = ServerProcess::start(from);
        let load = requests(server.address, connections, in_flight, seconds);
        let done = runtime.block_on(load);
        let cpu = server.cpu();
        println!(
            "8 KiB from {}, {connections:2} connections x {in_flight:2} in flight: {:6.0} requests/s, server CPU {:.2} us each",
            if from == MEMORY { "memory" } else { "pages " },
            done as f64 / seconds as f64,
            cpu.as_secs_f64() * 1e6 / done as f64
        );
    }
    let server = ServerProcess::start(repository.to_str().unwrap());
    let began = Instant::now();
    let done = runtime.block_on(new_connections(server.address, 20_000));
    println!(
        "new connection + head + 2 blocks: {:.0} /s, server CPU {:.1} us each",
        done as f64 / began.elapsed().as_secs_f64(),
        server.cpu().as_secs_f64() * 1e6 / done as f64
    );
    let server = ServerProcess::start(repository.to_str().unwrap());
    let before = server.resident_bytes();
    let idle = runtime.block_on(idle_connections(server.address, 4000));
    let after = server.resident_bytes();
    println!(
        "idle connection: {:.1} KiB of the server's memory each ({} connections)",
        (after - before) as f64 / 1024.0 / idle.len() as f64,
        idle.len()
    );
}

fn serve_until_stdin_ends(repository: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let shelf: Arc<dyn RepositoryReader> = match repository {
            MEMORY => Arc::new(MemoryReader::new()),
            path => Arc::new(Repository::open(path).unwrap()),
        };
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::listen(
            any,
            vec![(VOLUME, shelf)],
            Limits::default(),
            Options::default(),
        )
        .unwrap();
        println!("{}", server.local_addr());
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = end.send(());
        });
        let end = async {
            let _ = ended.await;
        };
        server.run(end).await;
    });
}

/// One record for every handle.
struct MemoryReader {
    block: Vec<u8>,
}

impl MemoryReader {
    fn new() -> MemoryReader {
        let mut block = vec![0; 32];
        let frame = Packer::new()
            .pack(Kind::Data, &noise(1, BLOCK_BYTES))
            .unwrap();
        block.extend_from_slice(&(frame.as_bytes().len() as u32).to_le_bytes());
        block.extend_from_slice(frame.as_bytes());
        MemoryReader { block }
    }
}

impl RepositoryReader for MemoryReader {
    fn place(&self) -> &str {
        "memory"
    }
    fn head(&self) -> Bytes {
        Bytes::from_static(b"head")
    }
    fn read_if_cached(&self, want: &[Handle], _: usize) -> Result<Option<Vec<Bytes>>, StoreError> {
        let copy = |handle: &Handle| {
            let mut block = BytesMut::from(&self.block[..]);
            block[..32].copy_from_slice(handle.as_bytes());
            block.freeze()
        };
        Ok(Some(want.iter().map(copy).collect()))
    }
    fn read_blocking(&self, _: &[Handle], _: usize, _: &mut Regions<'_>) -> Result<(), StoreError> {
        Ok(())
    }
    fn read_range(&self, _: ObjectName, _: u64, _: usize) -> Result<Option<Bytes>, StoreError> {
        Ok(None)
    }
    fn refresh(&self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl ServerProcess {
    fn start(repository: &str) -> ServerProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["server", repository])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().parse().unwrap();
        ServerProcess { child, address }
    }

    fn proc_file(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }

    /// User and system time, in ticks of 10 ms.
    fn cpu(&self) -> Duration {
        let stat = self.proc_file("stat");
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    fn resident_bytes(&self) -> u64 {
        let statm = self.proc_file("statm");
        let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Counts the complete answers in `buffer` and removes them.
fn take_answers(buffer: &mut BytesMut) -> u64 {
    let mut done = 0;
    while let Some(header) = Header::peek(buffer, MAX_ANSWER_BYTES).unwrap() {
        let whole = HEADER_BYTES + header.body_bytes;
        if buffer.len() < whole {
            break;
        }
        assert_ne!(header.kind, kind::ERROR);
        done += u64::from(header.kind == kind::DONE);
        buffer.advance(whole);
    }
    done
}

async fn requests(address: SocketAddr, connections: u64, in_flight: u64, seconds: u64) -> u64 {
    let total = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = Vec::new();
    for c in 0..connections {
        let total = Arc::clone(&total);
        tasks.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut out = BytesMut::from(&HELLO[..]);
            let mut next = c * 7919;
            let mut ask = |out: &mut BytesMut, count: u64| {
                for _ in 0..count {
                    next += 1;
                    let id = (next as u32).max(1);
                    put_get_data(out, id, &VOLUME, 0, &[handle(next * 31 % BLOCKS)]);
                }
            };
            ask(&mut out, in_flight);
            stream.write_all_buf(&mut out).await.unwrap();
            let mut hello = [0; 8];
            stream.read_exact(&mut hello).await.unwrap();
            let mut buffer = BytesMut::with_capacity(256 << 10);
            while Instant::now() < until {
                buffer.reserve(64 << 10);
                stream.read_buf(&mut buffer).await.unwrap();
                let done = take_answers(&mut buffer);
                total.fetch_add(done, Ordering::Relaxed);
                ask(&mut out, done);
                stream.write_all_buf(&mut out).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    total.load(Ordering::Relaxed)
}

async fn new_connections(address: SocketAddr, count: u64) -> u64 {
    let tasks: Vec<_> = (0..32u64)
        .map(|t| {
            tokio::spawn(async move {
                for n in 0..count / 32 {
                    let mut out = BytesMut::from(&HELLO[..]);
                    Request::Head {
                        volume: VOLUME,
                        around_bytes: 0,
                        known: None,
                        toward: Vec::new(),
                    }
                    .put(1, &mut out);
                    for id in [2, 3] {
                        let one = handle((t * 997 + n * 31 + u64::from(id)) % BLOCKS);
                        put_get_data(&mut out, id, &VOLUME, 0, &[one]);
                    }
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    stream.write_all_buf(&mut out).await.unwrap();
                    let mut hello = [0; 8];
                    stream.read_exact(&mut hello).await.unwrap();
                    let (mut buffer, mut done) = (BytesMut::new(), 0);
                    while done < 2 {
                        buffer.reserve(32 << 10);
                        stream.read_buf(&mut buffer).await.unwrap();
                        done += take_answers(&mut buffer);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    count / 32 * 32
}

/// Connections that have had one answer and are idle.
async fn idle_connections(address: SocketAddr, count: u64) -> Vec<TcpStream> {
    let mut all = Vec::new();
    let mut answer = vec![0; 8 + HEADER_BYTES + 36 + 6 + BLOCK_BYTES + HEADER_BYTES];
    for n in 0..count {
        let mut out = BytesMut::from(&HELLO[..]);
        put_get_data(&mut out, 1, &VOLUME, 0, &[handle(n)]);
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all_buf(&mut out).await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        all.push(stream);
    }
    all
}
