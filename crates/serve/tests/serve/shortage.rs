//! A server that runs out of descriptors: it waits until some are free, without spinning, logs it once, and
//! then serves the clients that waited. In a process of its own, because the limit is one of the process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::process::{Resource, Rlimit, setrlimit};
use serve::mirror::{Options, RepositoryReader, Server};
use serve::net::Limits;
use sim::time::{eventually, wait_until};
use store::Replica;
use wire::RemoteStore;
use wire::frame::HELLO;
use wire::mirror::Request;

use crate::support::{TestReader, VOLUME, patient};

/// Set in the process that plays the server.
const ROLE: &str = "BULLA_TEST_SHORTAGE_SERVER";
/// Descriptors that are left for connections.
const LEFT: u64 = 20;

/// Not a test by itself: the server process of the test below.
#[test]
fn the_server_that_runs_short() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let shelf: Arc<dyn RepositoryReader> = Arc::new(TestReader::new(&[]));
        let limits = Limits {
            workers: 1,
            ..Limits::default()
        };
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::listen(any, vec![(VOLUME, shelf)], limits, Options::default()).unwrap();
        let (address, counters) = (server.local_addr(), server.counters());
        tokio::spawn(server.run(std::future::pending()));
        // Once a client was served, the server opens descriptors for connections only.
        let first = RemoteStore::new(&address.to_string(), VOLUME, patient());
        first.head().await.unwrap();
        drop(first);
        let open = || counters.net.connections.get();
        eventually("the first client has left", || open() == 0).await;
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let most = Some(open + LEFT);
        let limit = Rlimit {
            current: most,
            maximum: most,
        };
        setrlimit(Resource::Nofile, limit).unwrap();
        println!("\naddress {address}");
        // Each line on standard input asks for the counters.
        let ask = tokio::task::spawn_blocking(move || {
            for _ in std::io::stdin().lines() {
                let (errors, spells) = (
                    counters.net.accept_errors.get(),
                    counters.net.shortages.get(),
                );
                println!("counted {errors} {spells}");
                std::io::stdout().flush().unwrap();
            }
        });
        ask.await.unwrap();
    });
}

#[test]
fn a_shortage_of_descriptors_passes() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "shortage::the_server_that_runs_short",
            "--nocapture",
        ])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = |start: &str| {
        let mut lines = lines.by_ref().map(Result::unwrap);
        lines
            .find_map(|line| line.strip_prefix(start).map(str::to_owned))
            .expect("a line of the server's")
    };
    let address: SocketAddr = line("address ").parse().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut counted = || {
        writeln!(stdin).unwrap();
        let text = line("counted ");
        let mut numbers = text.split(' ').map(|n| n.parse::<u64>().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };

    let mut question = BytesMut::from(&HELLO[..]);
    Request::Head {
        volume: VOLUME,
        around_bytes: 0,
        known: None,
        toward: Vec::new(),
    }
    .put(1, &mut question);
    let twice = 2 * LEFT as usize;
    let began = Instant::now();
    let mut all: Vec<TcpStream> = (0..twice)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for stream in &mut all {
        stream.write_all(&question).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
    }
    let mut errors = 0;
    wait_until("a few failed attempts", || {
        errors = counted().0;
        errors >= 4
    });
    // After a failed attempt there is a pause of 100 ms.
    let most = 1 + began.elapsed().as_millis() / 100;
    assert!(
        u128::from(errors) <= most,
        "{errors} attempts, {most} expected"
    );
    assert_eq!(counted().1, 1);
    // The first clients leave, and those that waited are served.
    let mut answer = [0; HELLO.len() + 9 + 6];
    let late = all.split_off(twice / 2);
    for mut stream in all {
        stream.read_exact(&mut answer).unwrap();
    }
    for mut stream in late {
        stream.read_exact(&mut answer).unwrap();
        assert!(answer.ends_with(b"head 1"));
    }
    assert_eq!(counted().1, 1);
    drop(stdin);
    assert!(child.wait().unwrap().success());
}
