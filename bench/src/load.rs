//! A load generator with thousands of clients of the bulla protocol in one thread.
//!
//! It sends requests that were encoded before and parses only the headers of the answers. The product's
//! own client does much more work per answer than a server, so a machine with thousands of them would
//! measure the clients. The product's client checks every answer once; afterwards only lengths are
//! checked.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use store::{BlockStore, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wire::RemoteOptions;
use wire::frame::{self, HEADER_BYTES, HELLO, HELLO_BYTES, Header, MAX_ANSWER_BYTES, PROTOCOL};
use wire::mirror::{MAX_HANDLES, Request, kind};
use wire::refusal::Refusal;

use crate::protocol::{Call, Place};

/// Most bytes that are read from a connection at a time.
const READ_BYTES: usize = 256 << 10;
/// Request id of a client's only request in flight.
const REQUEST: u32 = 1;

/// A request, and the minimum of its answer.
#[derive(Debug)]
pub struct Step {
    message: Bytes,
    least_bytes: usize,
}

impl Step {
    /// Bytes of the blocks or the head in its answer.
    pub fn bytes(&self) -> usize {
        self.least_bytes
    }
}

/// Records the requests of these calls. Each call is made once and must be answered completely.
pub async fn script(place: &Place, calls: &[Call]) -> Result<Rc<[Step]>> {
    let store = place.connect();
    let volume = place.volume;
    let mut steps = Vec::new();
    let mut add = |request: &Request, least_bytes| {
        let mut message = BytesMut::new();
        request.put(REQUEST, &mut message);
        steps.push(Step {
            message: message.freeze(),
            least_bytes,
        });
    };
    for call in calls {
        match call {
            Call::Head { toward } => {
                let least_bytes = store.head_toward(toward).await?.len();
                let request = Request::Head {
                    volume,
                    around_bytes: RemoteOptions::default().head_around_bytes,
                    known: None,
                    toward: toward.clone(),
                };
                add(&request, least_bytes);
            }
            Call::Data { want, around_bytes } => {
                for want in want.chunks(MAX_HANDLES) {
                    let records = store.get_many(want, 0).await?;
                    ensure!(
                        records.len() == want.len(),
                        "the server does not have a requested block"
                    );
                    let frames = records.iter().map(|r| r.frame.as_bytes().len());
                    let request = Request::Data {
                        volume,
                        around_bytes: *around_bytes,
                        want: want.to_vec(),
                    };
                    add(&request, frames.sum());
                }
            }
        }
    }
    ensure!(!steps.is_empty(), "the script is empty");
    Ok(steps.into())
}

/// Clients that stay connected.
pub struct Clients {
    streams: Vec<Rc<TcpStream>>,
    /// Buffer for bytes read from a connection; its content is not kept.
    buffer: Rc<RefCell<Vec<u8>>>,
}

impl Clients {
    /// Connects this many clients; each requests the head.
    ///
    /// # Errors
    /// When one of them cannot be connected.
    pub async fn connect(place: &Place, count: u32) -> Result<Clients> {
        let mut clients = Clients {
            streams: Vec::new(),
            buffer: Rc::new(RefCell::new(vec![0; READ_BYTES])),
        };
        let mut message = BytesMut::new();
        let head = Request::Head {
            volume: place.volume,
            around_bytes: 0,
            known: None,
            toward: Vec::new(),
        };
        head.put(REQUEST, &mut message);
        let first = Step {
            message: message.freeze(),
            least_bytes: 1,
        };
        for _ in 0..count {
            let mut stream = TcpStream::connect(("127.0.0.1", place.port)).await?;
            stream.set_nodelay(true)?;
            stream.write_all(&HELLO).await?;
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).await?;
            frame::check_hello(&hello, PROTOCOL)?;
            ask(&stream, &first, &clients.buffer).await?;
            clients.streams.push(Rc::new(stream));
        }
        Ok(clients)
    }

    /// Sends this many steps of a script that is repeated without end. Returns the seconds. Runs in a
    /// `LocalSet`.
    ///
    /// Each client has a part of the steps of equal length, so that the requests are the same for any number
    /// of clients. A client sends its requests in order, each after the answer to the one before.
    ///
    /// # Errors
    /// When an answer is not complete.
    pub async fn play(&self, script: &Rc<[Step]>, steps: usize) -> Result<f64> {
        let start = Instant::now();
        let mut tasks = Vec::new();
        let count = self.streams.len();
        for (at, stream) in self.streams.iter().enumerate() {
            let stretch = at * steps / count..(at + 1) * steps / count;
            let (stream, buffer) = (stream.clone(), self.buffer.clone());
            let script = script.clone();
            tasks.push(tokio::task::spawn_local(async move {
                for step in script
                    .iter()
                    .cycle()
                    .skip(stretch.start % script.len())
                    .take(stretch.len())
                {
                    ask(&stream, step, &buffer).await?;
                }
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

async fn ask(stream: &TcpStream, step: &Step, buffer: &RefCell<Vec<u8>>) -> Result<()> {
    let mut left = &step.message[..];
    while !left.is_empty() {
        stream.writable().await?;
        match stream.try_write(left) {
            Ok(sent) => left = left.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("sending"),
        }
    }
    let mut answer = Answer::default();
    while !answer.complete {
        stream.readable().await?;
        let mut buffer = buffer.borrow_mut();
        match stream.try_read(&mut buffer) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(came) => answer.take(buffer.get(..came).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
    ensure!(
        answer.body_bytes >= step.least_bytes,
        "{} bytes came, expected at least {}",
        answer.body_bytes,
        step.least_bytes
    );
    Ok(())
}

/// An answer that is being received.
#[derive(Default)]
struct Answer {
    /// Received bytes of the next header.
    header: Vec<u8>,
    /// Missing bytes of the body.
    left_bytes: usize,
    /// Received bytes of all bodies.
    body_bytes: usize,
    /// No header follows.
    last: bool,
    complete: bool,
}

impl Answer {
    fn take(&mut self, mut came: &[u8]) -> Result<()> {
        while !came.is_empty() {
            ensure!(!self.complete, "bytes follow the end of the answer");
            if self.left_bytes == 0 {
                let (start, rest) = came.split_at(came.len().min(HEADER_BYTES - self.header.len()));
                self.header.extend_from_slice(start);
                came = rest;
                let Some(header) = Header::peek(&self.header, MAX_ANSWER_BYTES)? else {
                    break;
                };
                self.header.clear();
                if header.kind == kind::ERROR {
                    let refusal = Refusal::decode(came).map(|refusal| refusal.text);
                    bail!("the server refused: {}", refusal.unwrap_or_default());
                }
                self.last = matches!(header.kind, kind::HEAD | kind::DONE);
                self.left_bytes = header.body_bytes;
            }
            let body = came.len().min(self.left_bytes);
            came = came.get(body..).unwrap_or_default();
            self.left_bytes -= body;
            self.body_bytes += body;
            self.complete = self.last && self.left_bytes == 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let header = Header {
            kind,
            id: REQUEST,
            body_bytes: body.len(),
        };
        header.put(&mut out);
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn answer_is_complete_at_its_end_for_any_split() {
        let parts = [
            message(kind::RECORDS, &[7; 100]),
            message(kind::RECORDS, &[8; 3]),
            message(kind::DONE, b""),
        ];
        let whole = parts.concat();
        for cut in 1..whole.len() {
            let mut answer = Answer::default();
            for piece in whole.chunks(cut) {
                assert!(!answer.complete);
                answer.take(piece).unwrap();
            }
            assert!(answer.complete);
            assert_eq!(answer.body_bytes, 103);
            assert!(answer.take(b"x").is_err());
        }
    }

    #[test]
    fn refusal_is_an_error_and_head_ends_an_answer() {
        let mut answer = Answer::default();
        answer.take(&message(kind::HEAD, &[1; 10])).unwrap();
        assert!(answer.complete);
        let refusal = message(kind::ERROR, b"\x05too many");
        let error = Answer::default().take(&refusal).unwrap_err();
        assert!(error.to_string().contains("too many"), "{error}");
    }
}
