//! Clients that ask as they should, and others.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

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
    let listen = Listen::At((Ipv4Addr::LOCALHOST, 0).into());
    let server = Server::bind(listen, decide).unwrap();
    let address = server.local_addr();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let serving = runtime.spawn(server.run(async {
        let _ = ended.await;
    }));
    let answers = requests.iter().map(|request| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    });
    let answers = answers.collect();
    end.send(()).unwrap();
    runtime.block_on(serving).unwrap().unwrap();
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
        // More headers than anybody needs.
        format!(
            "POST /add-checkpoint HTTP/1.1\r\nx: {}\r\n\r\n",
            "y".repeat(1 << 20)
        )
        .into_bytes(),
    ];
    let (answers, decided) = ask(&requests);
    let status: Vec<&str> = answers.iter().map(|a| a.get(9..12).unwrap_or("")).collect();
    assert_eq!(status[..4], ["404", "405", "413", "400"]);
    assert!(["", "431", "400"].contains(&status[4]), "{}", status[4]);
    assert_eq!(decided, 0);
    let (answers, decided) = ask(&[post("/add-checkpoint", most, most)]);
    assert!(answers[0].starts_with("HTTP/1.1 409"));
    assert_eq!(decided, 1);
}
