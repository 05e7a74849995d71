//! Many connections at once, half of them with half a request, with server and clients in processes
//! of their own: a thousand always, ten thousand with BULLA_LONG=1.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use serve::mirror::{Options, RepositoryReader, Server};
use serve::net::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::frame::HELLO;
use wire::mirror::put_get_data;

use crate::support::{TestReader, VOLUME, record};

/// Set in the process that plays the server.
const ROLE: &str = "BULLA_TEST_CROWD_SERVER";
/// The test that starts itself again to play the server.
const TEST: &str = "crowd::crowd_costs_less_than_32_kib_a_connection_and_each_is_answered";

fn serve_for_ever() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let reader: Arc<dyn RepositoryReader> = Arc::new(TestReader::new(&[record(1, 8000)]));
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let limits = Limits {
            max_per_client: 16_384,
            // All are connected one after the other, which takes a busy machine minutes.
            idle_timeout: Duration::from_secs(3600),
            request_timeout: Duration::from_secs(3600),
            ..Limits::default()
        };
        let readers = vec![(VOLUME, reader)];
        let server = Server::listen(any, readers, limits, Options::default()).unwrap();
        println!("\naddress {}", server.local_addr());
        std::io::stdout().flush().unwrap();
        server.run(std::future::pending()).await;
    });
}

struct OtherProcess(Child);

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl OtherProcess {
    fn start() -> (OtherProcess, SocketAddr) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("address ")?.parse().ok())
            .expect("the server's address");
        (OtherProcess(child), address)
    }

    fn resident_bytes(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.0.id())).unwrap();
        let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}

async fn one_answer(stream: &mut TcpStream, out: &[u8], skip: usize) {
    stream.write_all(out).await.unwrap();
    let mut answer = vec![0; skip + 9 + record(1, 8000).len() + 9];
    stream.read_exact(&mut answer).await.unwrap();
}

#[test]
fn crowd_costs_less_than_32_kib_a_connection_and_each_is_answered() {
    if std::env::var_os(ROLE).is_some() {
        return serve_for_ever();
    }
    let long = std::env::var_os("BULLA_LONG").is_some();
    let connections = if long { 10_000 } else { 1000 };
    let (server, address) = OtherProcess::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let handle = record(1, 8000).handle;
        let mut first = BytesMut::from(&HELLO[..]);
        put_get_data(&mut first, 1, &VOLUME, 0, &[handle]);
        let mut again = BytesMut::new();
        put_get_data(&mut again, 2, &VOLUME, 0, &[handle]);
        let before = server.resident_bytes();
        let mut all = Vec::with_capacity(connections);
        for n in 0..connections {
            let mut stream = TcpStream::connect(address).await.unwrap();
            if n % 2 == 0 {
                one_answer(&mut stream, &first, HELLO.len()).await;
            } else {
                // Half a request: the most that a slow client can make the server keep.
                stream.write_all(&first[..first.len() - 1]).await.unwrap();
            }
            all.push(stream);
        }
        let each = server.resident_bytes().saturating_sub(before) / connections;
        assert!(each < 32 << 10, "{each} bytes a connection");
        let began = Instant::now();
        let mut slowest = Duration::ZERO;
        for stream in all.iter_mut().step_by(2) {
            let one = Instant::now();
            one_answer(stream, &again, 0).await;
            slowest = slowest.max(one.elapsed());
        }
        let per_second = connections as f64 / 2.0 / began.elapsed().as_secs_f64();
        println!(
            "{each} bytes a connection; {per_second:.0} answers/s in turn, slowest {slowest:?}"
        );
        assert!(slowest < Duration::from_secs(30), "{slowest:?}");
    });
}
