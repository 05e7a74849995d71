//! Clients that ask as they should, and others.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Instant;

use super::*;

/// A server, and what ends it.
struct Running {
    address: SocketAddr,
    end: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<Result<(), ListenError>>,
    runtime: tokio::runtime::Runtime,
}

impl Running {
    fn start(decide: Decide, times: Times) -> Running {
        let listen = Listen::At((Ipv4Addr::LOCALHOST, 0).into());
        let mut server = Server::bind(listen, decide).unwrap();
        server.http.times = times;
        let address = server.local_addr();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let serving = runtime.spawn(server.run(async {
            let _ = ended.await;
        }));
        Running {
            address,
            end,
            serving,
            runtime,
        }
    }

    /// Connects and sends these bytes.
    fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let long = Some(Duration::from_secs(30));
        stream.set_read_timeout(long).unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(bytes);
        stream
    }

    fn stop(self) {
        self.end.send(()).unwrap();
        self.runtime.block_on(self.serving).unwrap().unwrap();
    }
}

/// All that comes on a connection.
fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Asks with each of these bytes on a connection of its own; gives the answers and how many bodies were decided about.
fn ask(requests: &[Vec<u8>]) -> (Vec<String>, usize) {
    let decided = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&decided);
    let decide: Decide = Arc::new(move |body, _| {
        count.fetch_add(1, Ordering::Relaxed);
        Answer {
            status: 409,
            kind: "text/x.tlog.size",
            body: format!("{}\n", body.len()),
        }
    });
    let server = Running::start(decide, TIMES);
    let answers = requests.iter().map(|request| answer(server.send(request)));
    let answers = answers.collect();
    server.stop();
    (answers, decided.load(Ordering::Relaxed))
}

fn post(path: &str, length: usize, body: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    (head + &"x".repeat(body)).into_bytes()
}

#[test]
fn a_body_gets_the_answer_that_was_decided() {
    let requests = [
        post("/add-checkpoint", 7, 7),
        post("/some/w/add-checkpoint", 0, 0),
    ];
    let (answers, decided) = ask(&requests);
    assert!(
        answers[0].starts_with("HTTP/1.1 409 Conflict\r\n"),
        "{}",
        answers[0]
    );
    assert!(answers[0].contains("content-type: text/x.tlog.size\r\n"));
    assert!(answers[0].ends_with("\r\n\r\n7\n"));
    assert!(answers[1].ends_with("\r\n\r\n0\n"), "{}", answers[1]);
    assert_eq!(decided, 2);
}

#[test]
fn other_requests_and_long_bodies_are_refused() {
    let most = MAX_SUBMISSION_BYTES;
    let requests = [
        post("/", 1, 1),
        b"GET /add-checkpoint HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n".to_vec(),
        post("/add-checkpoint", most + 1, most + 1),
        b"nonsense\r\n\r\n".to_vec(),
        // More headers than anybody needs. The server may close before it has read them, and the answer is lost then.
        format!(
            "POST /add-checkpoint HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(1 << 20)
        )
        .into_bytes(),
        // It goes on.
        post("/", 1, 1),
    ];
    let (answers, decided) = ask(&requests);
    let status: Vec<&str> = answers.iter().map(|a| a.get(9..12).unwrap_or("")).collect();
    assert_eq!(status[..4], ["404", "405", "413", "400"]);
    assert!(["", "431"].contains(&status[4]), "{}", status[4]);
    assert_eq!(status[5], "404");
    assert_eq!(decided, 0);
    let (answers, decided) = ask(&[post("/add-checkpoint", most, most)]);
    assert!(answers[0].starts_with("HTTP/1.1 409"));
    assert_eq!(decided, 1);
}

/// A decision that waits until the sender is dropped. The receiver is told of each one that begins.
fn waiting() -> (Decide, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (go_on, wait) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let (wait, begin) = (Mutex::new(wait), Mutex::new(begin));
    let decide: Decide = Arc::new(move |_, _| {
        begin.lock().unwrap().send(()).unwrap();
        let _ = wait.lock().unwrap().recv();
        Answer {
            status: 200,
            kind: "text/plain; charset=utf-8",
            body: "decided".to_owned(),
        }
    });
    (decide, go_on, begun)
}

#[test]
fn requests_that_wait_are_bounded() {
    let (decide, go_on, begun) = waiting();
    let server = Running::start(decide, TIMES);
    // Dropped before the server, which waits for its threads, also if this test fails.
    let go_on = go_on;
    let request = post("/add-checkpoint", 0, 0);
    let mut streams: Vec<_> = (0..DECIDING).map(|_| server.send(&request)).collect();
    for _ in 0..DECIDING {
        begun.recv_timeout(Duration::from_secs(60)).unwrap();
    }
    let is_busy = |answer: String| {
        let answer = answer.to_lowercase();
        answer.starts_with("http/1.1 503") && answer.contains("retry-after: 1\r\n")
    };
    assert!(is_busy(answer(server.send(&request))));
    // The work of a client that has left goes on, and makes no room.
    drop(streams.split_off(DECIDING / 2));
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_busy(answer(server.send(&request))));
    drop(go_on);
    for stream in streams {
        assert!(answer(stream).ends_with("decided"));
    }
    server.stop();
}

#[test]
fn clients_of_a_proxy_on_this_machine_are_many() {
    let decide: Decide = Arc::new(|_, _| panic!("nothing is asked"));
    let server = Running::start(decide, TIMES);
    let held: Vec<_> = (0..PER_CLIENT + 8).map(|_| server.send(b"")).collect();
    assert!(answer(server.send(&post("/", 0, 0))).starts_with("HTTP/1.1 404"));
    drop(held);
    server.stop();
}

#[test]
fn slow_clients_are_cut_off() {
    let short = Times {
        asking: Duration::from_millis(300),
        ..TIMES
    };
    let decide: Decide = Arc::new(|_, _| panic!("nothing is asked"));
    let server = Running::start(Arc::clone(&decide), short);
    let began = Instant::now();
    // A body that drips, and headers that do.
    for (begins, drop, ends) in [
        (post("/add-checkpoint", 1000, 0), "x", "HTTP/1.1 408"),
        (
            b"POST /add-checkpoint HTTP/1.1\r\n".to_vec(),
            "x: y\r\n",
            "",
        ),
    ] {
        let stream = server.send(&begins);
        let mut writes = stream.try_clone().unwrap();
        let dripping = std::thread::spawn(move || {
            while writes.write_all(drop.as_bytes()).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let told = answer(stream);
        assert!(told.starts_with(ends), "{told}");
        dripping.join().unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{began:?}");
    server.stop();
    // A connection on which nothing is wrong ends, too.
    let short = Times {
        connection: Duration::from_millis(300),
        ..TIMES
    };
    let server = Running::start(decide, short);
    let began = Instant::now();
    let stream = server.send(b"POST /");
    assert_eq!(answer(stream), "");
    assert!(began.elapsed() < Duration::from_secs(8), "{began:?}");
    server.stop();
}
