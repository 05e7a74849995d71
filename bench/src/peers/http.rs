//! A load generator for HTTP/1.1 that is just able to keep a static server busy.
//!
//! Only the server is measured. The client understands only answers with a stated length.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Requests a path over a new connection each time, one after the other. Checks the length of the body.
/// Returns the seconds.
pub async fn new_connections(port: u16, path: &str, count: u32, body_bytes: usize) -> Result<f64> {
    let request = format!("GET /{path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    let start = Instant::now();
    for _ in 0..count {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::with_capacity(4096);
        stream.read_to_end(&mut answer).await?;
        let (head, length) = head(&answer)?.context("the answer ended before its header did")?;
        ensure!(
            length == body_bytes && answer.len() == head + length,
            "a wrong length"
        );
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A load over persistent connections.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Connections at once.
    pub connections: u32,
    /// Requests in flight on each.
    pub in_flight: u32,
    /// Total number of requests on each.
    pub requests: u32,
    /// Bytes of each answer's body.
    pub body_bytes: usize,
}

/// Runs a load; `path` names the object of a connection's n-th request. Returns the seconds.
pub async fn keep_alive(port: u16, load: Load, path: fn(u32, u32) -> String) -> Result<f64> {
    let mut streams = Vec::new();
    for _ in 0..load.connections {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let start = Instant::now();
    let tasks: Vec<_> = streams
        .into_iter()
        .zip(0..)
        .map(|(stream, number)| tokio::spawn(connection(stream, number, load, path)))
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(start.elapsed().as_secs_f64())
}

async fn connection(
    stream: TcpStream,
    number: u32,
    load: Load,
    path: fn(u32, u32) -> String,
) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut answers = Answers::new(read);
    let ahead = load.in_flight.min(load.requests);
    let mut first = Vec::new();
    for request in 0..ahead {
        first.extend_from_slice(&get(&path(number, request)));
    }
    write.write_all(&first).await?;
    for request in ahead..load.requests {
        answers.next(load.body_bytes).await?;
        send(&mut write, &path(number, request)).await?;
    }
    for _ in 0..ahead {
        answers.next(load.body_bytes).await?;
    }
    Ok(())
}

async fn send(write: &mut OwnedWriteHalf, path: &str) -> Result<()> {
    Ok(write.write_all(&get(path)).await?)
}

fn get(path: &str) -> Vec<u8> {
    format!("GET /{path} HTTP/1.1\r\nHost: bench\r\n\r\n").into_bytes()
}

struct Answers {
    read: OwnedReadHalf,
    buffer: Vec<u8>,
}

impl Answers {
    fn new(read: OwnedReadHalf) -> Answers {
        Answers {
            read,
            buffer: Vec::with_capacity(64 << 10),
        }
    }

    /// Receives one whole answer.
    async fn next(&mut self, body_bytes: usize) -> Result<()> {
        loop {
            if let Some((head, length)) = head(&self.buffer)? {
                ensure!(
                    length == body_bytes,
                    "{length} bytes instead of {body_bytes}"
                );
                if self.buffer.len() >= head + length {
                    self.buffer.drain(..head + length);
                    return Ok(());
                }
            }
            ensure!(
                self.read.read_buf(&mut self.buffer).await? > 0,
                "the server hung up"
            );
        }
    }
}

/// Bytes of a head with its empty line, and the stated length of the body; none if it is incomplete.
fn head(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(answer.get(..end).unwrap_or_default())?;
    if !text.starts_with("HTTP/1.1 200 ") {
        bail!("{}", text.lines().next().unwrap_or_default());
    }
    let length = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("the answer has no Content-Length")?;
    Ok(Some((end + 4, length.1.trim().parse()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_and_an_error_refused() {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nbody";
        assert_eq!(head(ok).unwrap(), Some((39, 12)));
        assert_eq!(head(&ok[..20]).unwrap(), None);
        assert!(head(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
