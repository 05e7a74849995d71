//! The two tasks of a link: one writes what waits to be sent, one reads and gives each message to whom it is for.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use trust::Reject;

use super::dial::Stream;
use super::error::LinkError;
use super::shared::Shared;
use crate::frame::{HEADER_BYTES, Header, MAX_ANSWER_BYTES};
use crate::shared::delivery::{Delivery, Gather};

/// A body longer than this gets a buffer of its own.
const OWN_BUFFER_BYTES: usize = 64 << 10;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Starts both tasks. `buffer`: bytes that came after the welcome.
pub(super) fn start(
    shared: &Arc<Shared>,
    stream: Stream,
    buffer: BytesMut,
    deliveries: mpsc::Sender<Delivery>,
) -> [AbortHandle; 2] {
    let (read, write) = tokio::io::split(stream);
    let writer = tokio::spawn(run_writer(Arc::clone(shared), write));
    let reader = Reader {
        shared: Arc::clone(shared),
        read,
        buffer,
        large: None,
        gather: Gather::default(),
        deliveries,
    };
    let last_word = LastWord(Arc::clone(shared));
    let reader = tokio::spawn(reader.run(last_word));
    [reader.abort_handle(), writer.abort_handle()]
}

/// Ends the link when a task ends, for whatever reason.
struct LastWord(Arc<Shared>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.close("the connection was given up");
    }
}

async fn run_writer(shared: Arc<Shared>, mut write: WriteHalf<Stream>) {
    let last_word = LastWord(Arc::clone(&shared));
    loop {
        let mut bytes = shared.unsent();
        if bytes.is_empty() {
            if shared.dead().is_some() {
                // Best effort: tells the server that this end is intended.
                let _ = timeout(TICK, write.shutdown()).await;
                return;
            }
            shared.wake_writer.notified().await;
            continue;
        }
        while !bytes.is_empty() {
            match timeout(shared.write_timeout(), write.write_buf(&mut bytes)).await {
                Ok(Ok(n)) if n > 0 => {}
                Ok(Ok(_)) => return last_word.0.close("the server closed the connection"),
                Ok(Err(e)) => return last_word.0.close(&e.to_string()),
                Err(_) => return last_word.0.close("it does not read what it is sent"),
            }
        }
        match timeout(shared.write_timeout(), write.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return last_word.0.close(&e.to_string()),
            Err(_) => return last_word.0.close("it does not read what it is sent"),
        }
    }
}

struct Reader {
    shared: Arc<Shared>,
    read: ReadHalf<Stream>,
    buffer: BytesMut,
    /// A long body that is read into a buffer of its own.
    large: Option<(Header, BytesMut)>,
    gather: Gather,
    deliveries: mpsc::Sender<Delivery>,
}

impl Reader {
    async fn run(mut self, last_word: LastWord) {
        let mut clock = tokio::time::interval(TICK);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let shared = Arc::clone(&self.shared);
        let error = match self.handle() {
            Err(why) => LinkError::bad(shared.place(), why),
            Ok(()) => loop {
                tokio::select! {
                    step = self.step() => if let Err(error) = step { break error },
                    _ = clock.tick() => {
                        shared.tell();
                        if let Some(error) = shared.overdue() { break error }
                    }
                    () = shared.wait_for_end() => {}
                }
                if let Some(error) = shared.dead() {
                    break error;
                }
            },
        };
        last_word.0.die(error);
    }

    /// Reads once and handles whole messages. Cancel-safe: it only waits for the socket.
    async fn step(&mut self) -> Result<(), LinkError> {
        let read = match &mut self.large {
            Some((header, body)) => {
                let left = header.body_bytes.saturating_sub(body.len());
                self.read.read_buf(&mut body.limit(left)).await
            }
            None => {
                // Reserved only when needed: an idle link keeps no buffer.
                if self.buffer.capacity() - self.buffer.len() < 4096 {
                    self.buffer.reserve(READ_BUFFER_BYTES);
                }
                self.read.read_buf(&mut self.buffer).await
            }
        };
        let place = self.shared.place();
        match read {
            Ok(0) => {
                let why = "the server closed the connection";
                return Err(LinkError::unavailable(place, why));
            }
            Ok(_) => self.shared.heard(),
            Err(e) => return Err(LinkError::unavailable(place, e.to_string())),
        }
        self.handle()
            .map_err(|why| LinkError::bad(self.shared.place(), why))
    }

    fn handle(&mut self) -> Result<(), Reject> {
        if let Some((header, body)) = self.large.take_if(|(h, b)| b.len() >= h.body_bytes) {
            self.message(&header, body)?;
        }
        while self.large.is_none()
            && let Some(header) = Header::peek(&self.buffer, MAX_ANSWER_BYTES)?
        {
            self.check(&header)?;
            let have = self.buffer.len() - HEADER_BYTES;
            if have < header.body_bytes {
                if header.body_bytes > OWN_BUFFER_BYTES {
                    self.buffer.advance(HEADER_BYTES);
                    let mut body = BytesMut::with_capacity(header.body_bytes);
                    body.put_slice(&self.buffer);
                    self.buffer.clear();
                    self.large = Some((header, body));
                }
                break;
            }
            self.buffer.advance(HEADER_BYTES);
            let body = self.buffer.split_to(header.body_bytes);
            self.message(&header, body)?;
        }
        Ok(())
    }

    /// Refuses by its header what no honest server sends.
    fn check(&self, header: &Header) -> Result<(), Reject> {
        if header.id != 0 || !Gather::is_part(header.kind) {
            return self.shared.check(header);
        }
        match self.gather.has_room(header.body_bytes) {
            true => Ok(()),
            false => Err(bad("longer than any")),
        }
    }

    fn message(&mut self, header: &Header, body: BytesMut) -> Result<(), Reject> {
        if header.id != 0 || !Gather::is_part(header.kind) {
            return self.shared.deliver(header, body.freeze());
        }
        let bytes = self.gather.bytes().saturating_add(body.len());
        let Some(delivery) = self.gather.take(header.kind, &body)? else {
            return Ok(());
        };
        if !self.shared.received(bytes) {
            return Err(bad("more than were asked for"));
        }
        // The channel is as long as the window. It is closed if this program wants no deliveries any more.
        let _ = self.deliveries.try_send(delivery);
        Ok(())
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed {
        what: "delivery",
        why,
    }
}
