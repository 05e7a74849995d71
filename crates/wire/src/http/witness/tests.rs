//! Witnesses that answer as they should, and others.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trust::history::{Frontier, LogPoint};
use trust::statement::VolumeId;

use super::*;

/// Longest wait of these tests: nothing here needs it.
const LONG: Duration = Duration::from_secs(60);

fn point(size: u64) -> LogPoint {
    let mut frontier = Frontier::new();
    for leaf in 0..size {
        frontier.push(&leaf.to_be_bytes()).unwrap();
    }
    frontier.point(0)
}

/// Requests that came to a place.
type Came = Arc<Mutex<Vec<String>>>;

/// A server that gives these answers to requests, one after the other.
async fn place(answers: Vec<Vec<u8>>) -> (HttpAddress, Came) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/w", listener.local_addr().unwrap());
    let came = Came::default();
    let keep = Arc::clone(&came);
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = request(&mut stream).await;
            keep.lock().unwrap().push(request);
            // The client may leave before it has read all.
            let _ = stream.write_all(&answer).await;
        }
        // Further clients get no answer.
        std::future::pending::<()>().await;
    });
    (address.parse().unwrap(), came)
}

/// A request with its body.
async fn request(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    loop {
        let mut part = [0; 4096];
        let n = stream.read(&mut part).await.unwrap();
        all.extend_from_slice(&part[..n]);
        let text = String::from_utf8(all.clone()).unwrap();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.to_lowercase();
            let length = length.split("content-length: ").nth(1).unwrap();
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            if body.len() >= length {
                return text;
            }
        }
        assert!(n > 0, "the request breaks off");
    }
}

fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", "", body)
}

fn size_is(size: &str) -> Vec<u8> {
    answer("409 Conflict", "Content-Type: text/x.tlog.size\r\n", size)
}

fn client(places: Vec<HttpAddress>, deadline: Duration) -> Witnesses {
    Witnesses::new(places, &Tls::System, deadline, Duration::from_millis(200)).unwrap()
}

/// What one witness says about the log of nine entries.
async fn said(answers: Vec<Vec<u8>>) -> (Result<Bytes, NoCosignature>, Vec<String>) {
    let (address, came) = place(answers).await;
    let witnesses = client(vec![address], LONG);
    let note = Note::new(VolumeId::from_bytes([5; 32]), point(9));
    let question = Question {
        note: &note,
        likely: 4,
        // A proof that tells from where it is.
        proof: &|old| (old != 5).then(|| vec![[old as u8; 32]]),
    };
    let mut answers = witnesses.ask(&question, |_| false).await;
    let came = came.lock().unwrap().clone();
    (answers.remove(0), came)
}

#[tokio::test]
async fn the_proof_is_made_from_the_size_that_the_witness_names() {
    let (said, came) = said(vec![size_is("7\n"), ok("\u{2014} w AAAA\n")]).await;
    assert_eq!(said, Ok(Bytes::from("\u{2014} w AAAA\n")));
    let bodies: Vec<Submission> = came
        .iter()
        .map(|text| {
            assert!(
                text.starts_with("POST /w/add-checkpoint HTTP/1.1\r\n"),
                "{text}"
            );
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            Submission::decode(body.as_bytes()).unwrap()
        })
        .collect();
    let told: Vec<_> = bodies
        .iter()
        .map(|body| (body.old, body.proof[0][0]))
        .collect();
    assert_eq!(told, [(4, 4), (7, 7)]);
    assert_eq!(bodies[1].note.log, point(9));
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let longer = NoCosignature::Longer { size: 10, own: 9 };
    assert_eq!(said(vec![size_is("10\n")]).await.0, Err(longer));
    let other = NoCosignature::Other { size: 4 };
    assert_eq!(said(vec![size_is("4\n")]).await.0, Err(other));
    // The same size, and the witness says no more.
    let conflict = answer("409 Conflict", "", "another root");
    let other = NoCosignature::Other { size: 9 };
    assert_eq!(said(vec![size_is("9\n"), conflict]).await.0, Err(other));
    let unproved = answer("422 Unprocessable Entity", "", "a wrong proof");
    let other = NoCosignature::Other { size: 7 };
    assert_eq!(said(vec![size_is("7\n"), unproved]).await.0, Err(other));
    let unproved = NoCosignature::NoProof { size: 5 };
    assert_eq!(said(vec![size_is("5\n")]).await.0, Err(unproved));
    let unknown = answer("404 Not Found", "", "which log?");
    let text = "which log?".to_owned();
    let told = NoCosignature::UnknownLog { text };
    assert_eq!(said(vec![unknown]).await.0, Err(told));
    let refused = answer("403 Forbidden", "", "not\u{1b} signed\nat all");
    let text = "not signed".to_owned();
    let told = NoCosignature::Refused { status: 403, text };
    assert_eq!(said(vec![refused]).await.0, Err(told));
}

#[tokio::test]
async fn busy_witness_is_asked_once_more() {
    let busy = |after: &str| {
        let headers = format!("Retry-After: {after}\r\n");
        answer("503 Service Unavailable", &headers, "busy")
    };
    let (told, came) = said(vec![busy("0"), ok("line")]).await;
    assert_eq!(told, Ok(Bytes::from("line")));
    assert_eq!(came.len(), 2);
    let text = "busy".to_owned();
    let refused = Err(NoCosignature::Refused { status: 503, text });
    for answers in [
        vec![busy("0"), busy("0"), ok("line")],
        vec![busy("6"), ok("line")],
        vec![busy("soon"), ok("line")],
    ] {
        assert_eq!(said(answers).await.0, refused);
    }
}

#[tokio::test]
async fn hostile_answers_are_bounded() {
    let long = ok(&"x".repeat(MAX_ANSWER_BYTES + 1));
    let (told, _) = said(vec![long]).await;
    assert!(
        matches!(told, Err(NoCosignature::Unavailable(_))),
        "{told:?}"
    );
    // Sizes that are not in decimal are no sizes.
    for size in ["07\n", "+7\n", "7\n7\n", "", "99999999999999999999\n"] {
        let (told, _) = said(vec![size_is(size)]).await;
        assert!(
            matches!(told, Err(NoCosignature::Refused { .. })),
            "{told:?}"
        );
    }
    // One that changes its size each time is left alone.
    let sizes = ["1\n", "2\n", "3\n", "6\n", "7\n", "8\n"].map(size_is);
    let (told, came) = said(sizes.to_vec()).await;
    assert!(
        matches!(told, Err(NoCosignature::Unavailable(_))),
        "{told:?}"
    );
    assert_eq!(came.len(), MAX_REQUESTS);
    // A redirect leads nowhere.
    let moved = answer(
        "307 Temporary Redirect",
        "Location: http://127.0.0.1:1/\r\n",
        "",
    );
    let (told, came) = said(vec![moved]).await;
    assert!(
        matches!(told, Err(NoCosignature::Refused { status: 307, .. })),
        "{told:?}"
    );
    assert_eq!(came.len(), 1);
}

#[tokio::test]
async fn silent_witness_does_not_delay_enough_others() {
    let (silent, _) = place(vec![]).await;
    let (first, _) = place(vec![ok("one")]).await;
    let (second, _) = place(vec![ok("two")]).await;
    let witnesses = client(vec![silent.clone(), first, second], LONG);
    let note = Note::new(VolumeId::from_bytes([5; 32]), point(9));
    let question = Question {
        note: &note,
        likely: 0,
        proof: &|_| Some(vec![]),
    };
    let both = |answers: &[Result<Bytes, NoCosignature>]| {
        answers.iter().filter(|answer| answer.is_ok()).count() >= 2
    };
    let asked = timeout(LONG / 2, witnesses.ask(&question, both))
        .await
        .unwrap();
    assert!(asked[0].is_err());
    assert_eq!(asked[1..], [Ok(Bytes::from("one")), Ok(Bytes::from("two"))]);
    // Alone, it costs its deadline.
    let alone = client(vec![silent], Duration::from_millis(300));
    let asked = timeout(LONG, alone.ask(&question, both)).await.unwrap();
    assert!(matches!(&asked[0], Err(NoCosignature::Unavailable(_))));
}
