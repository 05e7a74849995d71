//! A page of metrics in the Prometheus text format (version 0.0.4), and its responder: GET /metrics
//! over HTTP/1.1 and nothing else.
//!
//! Each response ends its connection. Requests are bounded in bytes, in time and in number, because
//! anybody may connect. docs/metrics.md lists every name.

use std::convert::Infallible;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Requests at a time; further ones wait.
const MAX_REQUESTS: usize = 8;
/// Most bytes of a request before its empty line.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Longest time for a request and its response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after `accept` failed.
const SHORTAGE: Duration = Duration::from_millis(200);
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows while the process lives.
    Counter,
    /// A value that goes up and down.
    Gauge,
}

/// A page of metrics that is being written.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    /// Begins a metric; its samples follow.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut Page {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.name = name;
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// Adds a value of the metric begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Page {
        self.text.push_str(self.name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    /// Adds the version of the program.
    pub fn build_info(&mut self, version: &str) {
        self.family(
            "bulla_build_info",
            Kind::Gauge,
            "Always 1; the label tells the version",
        )
        .sample(&[("version", version)], 1);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// Answers requests with the result of `render`, until it is dropped.
pub async fn answer(
    listener: TcpListener,
    render: impl Fn() -> String + Send + Sync + 'static,
) -> Infallible {
    let (render, turns) = (Arc::new(render), Arc::new(Semaphore::new(MAX_REQUESTS)));
    loop {
        // The semaphore is never closed.
        let turn = turns.clone().acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let render = render.clone();
                tokio::spawn(async move {
                    // A client that is too slow, or gone, gets nothing.
                    let _ = timeout(PATIENCE, one(stream, &*render)).await;
                    drop(turn);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for /metrics");
                sleep(SHORTAGE).await;
            }
        }
    }
}

async fn one(mut stream: TcpStream, render: &(impl Fn() -> String + Sync)) -> std::io::Result<()> {
    let (status, body) = match read_head(&mut stream).await? {
        Some(head) => respond(&head, render),
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\n\
         {allow}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The request up to its empty line; `None` when it is too long.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < MAX_HEAD_BYTES {
        match stream.read(&mut part).await? {
            0 => return Ok(Some(head)),
            n => head.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fn respond(head: &[u8], render: &impl Fn() -> String) -> (&'static str, String) {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    if !version.is_some_and(|version| version.starts_with(b"HTTP/1.")) {
        return ("400 Bad Request", String::new());
    }
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", render()),
        (Some(b"HEAD"), Some(b"/metrics")) => ("200 OK", String::new()),
        (Some(b"GET" | b"HEAD"), _) => ("404 Not Found", String::new()),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_in_the_text_format() {
        let mut page = Page::default();
        page.family("x_total", Kind::Counter, "What it is")
            .sample(&[], 7);
        page.family("y", Kind::Gauge, "Other")
            .sample(&[("place", "a\"b\\c\nd"), ("kind", "k")], 0.5);
        let expected = "# HELP x_total What it is\n# TYPE x_total counter\nx_total 7\n\
            # HELP y Other\n# TYPE y gauge\ny{place=\"a\\\"b\\\\c\\nd\",kind=\"k\"} 0.5\n";
        assert_eq!(page.finish(), expected);
    }

    /// The response to these bytes.
    fn ask(request: &[u8]) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(answer(listener, || "all is well\n".to_owned()));
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The responder may close before it has read all.
            let _ = stream.write_all(request).await;
            let mut told = Vec::new();
            let _ = timeout(PATIENCE * 3, stream.read_to_end(&mut told))
                .await
                .unwrap();
            String::from_utf8(told).unwrap()
        })
    }

    #[test]
    fn only_the_page_is_served() {
        let whole = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
        assert!(whole.contains("Content-Length: 12\r\n"), "{whole}");
        assert!(whole.ends_with("\r\n\r\nall is well\n"), "{whole}");
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\xff\x00\r\n\r\n", "400"),
        ] {
            let told = ask(request);
            assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{told}");
            assert!(!told.contains("well"));
        }
    }

    #[test]
    fn client_is_bounded_in_bytes_and_time() {
        let endless = vec![b'x'; 4 * MAX_HEAD_BYTES];
        assert!(!ask(&endless).contains("200"));
        let begin = std::time::Instant::now();
        // An unfinished request ends at the deadline.
        assert_eq!(ask(b"GET /metrics HTTP/1.1\r\n"), "");
        assert!(begin.elapsed() < PATIENCE * 2);
    }
}
